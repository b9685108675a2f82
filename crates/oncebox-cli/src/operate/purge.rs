//! `purge`: removes what is done and old enough, now.

use std::time::Duration;

use clap::Args;
use oncebox::Error;
use oncebox::admin::AdminStore;
use oncebox::store::{Purged, Retention};
use serde_json::json;

use super::change::agreed;
use super::desk::change;
use super::duration;

#[derive(Debug, Args)]
pub(crate) struct Purge {
    /// How long a message id still blocks duplicates.
    #[arg(long, default_value = "14d", value_parser = duration)]
    keep: Duration,
    /// How long a message that every handler is done with stays readable.
    #[arg(long, default_value = "14d", value_parser = duration)]
    keep_payload: Duration,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    /// Only say how much would go.
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn purge<St: AdminStore>(store: &St, purge: Purge) -> Result<bool, Error> {
    let retention = Retention { keep: purge.keep, payload: purge.keep_payload, ..Retention::default() };
    let foretold = store.purgeable(&retention).await?;
    let would = counted(&foretold);
    if purge.dry_run {
        println!("would remove {would}");
        return Ok(true);
    }
    // Nothing that could be missed needs nobody's word.
    if foretold.ids + foretold.messages + foretold.others > 0 && !purge.yes {
        eprintln!("{would} are old enough");
        if !agreed("remove") {
            eprintln!("nothing was changed");
            return Ok(false);
        }
    }
    let details =
        json!({ "keep_seconds": purge.keep.as_secs(), "keep_payload_seconds": purge.keep_payload.as_secs() });
    store.add_audit(&change("purge", "", details.to_string())).await?;
    let mut all = Purged::default();
    loop {
        let step = store.purge(&retention).await?;
        all.ids += step.ids;
        all.messages += step.messages;
        all.others += step.others;
        if !step.more {
            break;
        }
    }
    println!("removed {}", counted(&all));
    Ok(true)
}

fn counted(purged: &Purged) -> String {
    format!("{} ids, {} messages, {} other rows", purged.ids, purged.messages, purged.others)
}
