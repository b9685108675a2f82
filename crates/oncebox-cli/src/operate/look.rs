//! `status`, `list`, `outbox`, `audit`

use std::time::Duration;

use clap::Args;
use oncebox::admin::{OutgoingFilter, OutgoingState};
use oncebox::store::DeliveryId;
use oncebox_server::view::{Delivery, Outgoing};

use super::desk::{Desk, Done, PAGE};
use super::screen::{length, safe, short, table};
use super::{Filter, limit, tell_unknown_handler};

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    filter: Filter,
    /// The most rows.
    #[arg(long, default_value = "100", value_parser = limit)]
    limit: usize,
    /// Only deliveries after this number: what the list before said.
    #[arg(long)]
    after: Option<i64>,
    /// Print a JSON object per line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Outbox {
    /// For this sink; empty for the relay without a name.
    #[arg(long)]
    sink: Option<String>,
    /// In this state: waiting, retrying or dead.
    #[arg(long, value_parser = outgoing_state)]
    state: Option<OutgoingState>,
    /// The most rows.
    #[arg(long, default_value = "100", value_parser = limit)]
    limit: usize,
    /// Only messages after this number: what the list before said.
    #[arg(long)]
    after: Option<i64>,
    /// Print a JSON object per line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Audit {
    /// The most entries.
    #[arg(long, default_value = "100", value_parser = limit)]
    limit: usize,
    /// Only entries before this number: what the list before said.
    #[arg(long)]
    before: Option<i64>,
    /// Print a JSON object per line.
    #[arg(long)]
    json: bool,
}

pub(super) async fn status(desk: &impl Desk, options: Status) -> Done<bool> {
    let status = desk.status().await?;
    if options.json {
        println!("{status}");
        return Ok(true);
    }
    let total = |handler: &str, name: &str| {
        let own = status.counts.iter().find(|count| count.handler == handler && count.name == name);
        own.map_or(0, |count| count.value)
    };
    println!(
        "received {}, duplicates {}, conflicts {}, unrouted {}\n",
        total("", "received"),
        total("", "duplicate"),
        total("", "conflict"),
        total("", "unrouted")
    );
    let rows: Vec<Vec<String>> = status
        .handlers
        .iter()
        .map(|one| {
            let about = if one.waiting_is_exact { "" } else { "~" };
            let name = if one.paused { format!("{} (paused)", one.handler) } else { one.handler.clone() };
            let numbers = [one.retrying, one.held, one.scheduled, one.dead];
            let mut row = vec![safe(&name), format!("{about}{}", one.waiting), lag(one.lag_seconds)];
            row.extend(numbers.iter().map(u64::to_string));
            row.push(total(&one.handler, "done").to_string());
            row
        })
        .collect();
    print!(
        "{}",
        table(&["HANDLER", "WAITING", "LAG", "RETRYING", "HELD", "SCHEDULED", "DEAD", "DONE"], &rows)
    );
    if !status.outbox.is_empty() {
        let rows: Vec<Vec<String>> = status
            .outbox
            .iter()
            .map(|one| {
                let numbers = [one.retrying, one.dead].map(|number| number.to_string());
                [vec![safe(&one.sink), one.waiting.to_string(), lag(one.lag_seconds)], numbers.to_vec()]
                    .concat()
            })
            .collect();
        print!("\n{}", table(&["SINK", "WAITING", "LAG", "RETRYING", "DEAD"], &rows));
    }
    Ok(true)
}

fn lag(seconds: Option<f64>) -> String {
    let lag = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    lag.map_or("-".to_owned(), length)
}

pub(super) async fn list(desk: &impl Desk, list: List) -> Done<bool> {
    let mut filter = list.filter.to_delivery_filter()?;
    filter.after = list.after.map(DeliveryId);
    let mut found: Vec<Delivery> = Vec::new();
    while found.len() < list.limit {
        let wanted = (list.limit - found.len()).min(PAGE);
        filter.limit = Some(wanted);
        let page = desk.deliveries(&filter).await?;
        found.extend(page.deliveries);
        filter.after = found.last().map(|last| DeliveryId(last.delivery));
        if !page.more {
            break;
        }
    }
    if list.json {
        for delivery in &found {
            println!("{delivery}");
        }
    } else if found.is_empty() {
        let unknown = match &list.filter.handler {
            Some(handler) => tell_unknown_handler(desk, handler).await?,
            None => false,
        };
        if !unknown {
            eprintln!("no delivery matches; what is done has no row left: see `oncebox search`");
        }
    } else {
        let rows: Vec<Vec<String>> = found.iter().map(row).collect();
        print!(
            "{}",
            table(&["MESSAGE", "HANDLER", "STATE", "ATTEMPTS", "KIND", "RECEIVED", "LAST ERROR"], &rows)
        );
    }
    if let Some(last) = found.last().filter(|_| found.len() == list.limit) {
        eprintln!("the first {}; there may be more: go on with --after {}", list.limit, last.delivery);
    }
    Ok(!found.is_empty())
}

fn row(one: &Delivery) -> Vec<String> {
    let error = one.history.last().map_or(String::new(), |attempt| short(&attempt.error, 60));
    vec![
        short(&one.message.id, 40),
        safe(&one.handler),
        safe(&one.state),
        one.attempts.to_string(),
        safe(&one.message.kind),
        one.received_at.to_string(),
        error,
    ]
}

pub(super) async fn outbox(desk: &impl Desk, outbox: Outbox) -> Done<bool> {
    let mut filter = OutgoingFilter::default();
    (filter.sink, filter.state, filter.after) = (outbox.sink, outbox.state, outbox.after);
    let mut found: Vec<Outgoing> = Vec::new();
    while found.len() < outbox.limit {
        let wanted = (outbox.limit - found.len()).min(PAGE);
        filter.limit = Some(wanted);
        let page = desk.outgoing(&filter).await?;
        let is_last = page.len() < wanted;
        found.extend(page);
        filter.after = found.last().map(|last| last.number);
        if is_last {
            break;
        }
    }
    if outbox.json {
        for message in &found {
            println!("{message}");
        }
    } else if found.is_empty() {
        eprintln!("no outgoing message matches; what was sent has no row left");
    } else {
        let rows: Vec<Vec<String>> = found.iter().map(outgoing_row).collect();
        let titles = ["MESSAGE", "SINK", "STATE", "ATTEMPTS", "KIND", "PUBLISHED", "NEXT TRY", "LAST ERROR"];
        print!("{}", table(&titles, &rows));
    }
    if let Some(last) = found.last().filter(|_| found.len() == outbox.limit) {
        eprintln!("the first {}; there may be more: go on with --after {}", outbox.limit, last.number);
    }
    Ok(!found.is_empty())
}

fn outgoing_row(one: &Outgoing) -> Vec<String> {
    vec![
        short(&one.id, 40),
        safe(&one.sink),
        safe(&one.state),
        one.attempts.to_string(),
        safe(&one.kind),
        one.created_at.to_string(),
        one.due_at.as_ref().map_or("-".to_owned(), ToString::to_string),
        one.error.as_deref().map_or(String::new(), |error| short(error, 60)),
    ]
}

fn outgoing_state(text: &str) -> Result<OutgoingState, String> {
    OutgoingState::from_word(text).ok_or_else(|| "use one of waiting, retrying, dead".to_owned())
}

pub(super) async fn audit(desk: &impl Desk, audit: Audit) -> Done<bool> {
    let mut found = Vec::new();
    let mut before = audit.before;
    while found.len() < audit.limit {
        let wanted = (audit.limit - found.len()).min(PAGE);
        let page = desk.audit(before, wanted).await?;
        let is_last = page.len() < wanted;
        before = page.last().map(|last| last.number);
        found.extend(page);
        if is_last {
            break;
        }
    }
    if audit.json {
        for entry in &found {
            println!("{entry}");
        }
    } else if found.is_empty() {
        match audit.before {
            Some(before) => eprintln!("nothing was changed before entry {before}"),
            None => eprintln!("nothing was changed yet"),
        }
    } else {
        let rows: Vec<Vec<String>> = found
            .iter()
            .map(|one| {
                let texts = [&one.actor, &one.action, &one.target, &one.details].map(|text| short(text, 80));
                [vec![one.number.to_string(), one.at.to_string()], texts.to_vec()].concat()
            })
            .collect();
        print!("{}", table(&["NUMBER", "AT", "ACTOR", "ACTION", "TARGET", "DETAILS"], &rows));
    }
    if let Some(last) = found.last().filter(|_| found.len() == audit.limit) {
        eprintln!("the newest {}; there may be more: go on with --before {}", audit.limit, last.number);
    }
    Ok(!found.is_empty())
}
