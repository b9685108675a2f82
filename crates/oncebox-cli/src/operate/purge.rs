//! `purge`: removes what is done and old enough, now.

use std::time::Duration;

use clap::Args;
use oncebox::Error;
use oncebox::admin::AdminStore;
use oncebox::store::Retention;
use serde_json::json;

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
}

pub(super) async fn purge<St: AdminStore>(store: &St, purge: Purge) -> Result<bool, Error> {
    let retention = Retention { keep: purge.keep, payload: purge.keep_payload, ..Retention::default() };
    let details =
        json!({ "keep_seconds": purge.keep.as_secs(), "keep_payload_seconds": purge.keep_payload.as_secs() });
    store.add_audit(&change("purge", "", details.to_string())).await?;
    let (mut ids, mut messages, mut others) = (0, 0, 0);
    loop {
        let purged = store.purge(&retention).await?;
        (ids, messages, others) = (ids + purged.ids, messages + purged.messages, others + purged.others);
        if !purged.more {
            break;
        }
    }
    println!("removed {ids} ids, {messages} messages, {others} other rows");
    Ok(true)
}
