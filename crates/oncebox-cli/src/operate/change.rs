//! `send`, `discard`, `pause`, `resume`

use std::io::{IsTerminal, Read, Write};

use clap::Args;
use oncebox::Message;
use oncebox::admin::{DeliveryFilter, DeliveryState};
use oncebox::store::DeliveryId;

use super::desk::{COUNTED, Desk, Done, PAGE, Part};
use super::screen::safe;
use super::{Filter, one_or_more, tell_unknown_handler};

#[derive(Debug, Args)]
pub(crate) struct Send {
    /// The kind.
    kind: String,
    /// The file with the payload; `-` or nothing for standard input.
    file: Option<String>,
    /// The id; a fresh one unless set, so sending again is another message.
    #[arg(long)]
    id: Option<String>,
    /// The key.
    #[arg(long)]
    key: Option<String>,
    /// The source whose message it is: the scope of its id, and with --server one of its http sources.
    #[arg(long, default_value = "default")]
    source: String,
}

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Ids of messages.
    messages: Vec<String>,
    #[command(flatten)]
    filter: Filter,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    /// Only say how many there are.
    #[arg(long)]
    pub(super) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Discard {
    #[command(flatten)]
    which: Which,
    /// Why, for whoever looks later.
    #[arg(long)]
    reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct Pause {
    /// The name of the handler, or of the source with --source.
    name: String,
    /// It is a source.
    #[arg(long)]
    source: bool,
}

/// Dead letters that a person has agreed to change.
pub(super) struct Chosen {
    /// Each is a change of its own.
    pub(super) filters: Vec<DeliveryFilter>,
    /// How many letters, as far as they were counted.
    pub(super) count: u64,
}

pub(super) async fn send(desk: &impl Desk, send: Send) -> Done<bool> {
    let mut payload = Vec::new();
    match send.file.as_deref() {
        None | Some("-") => {
            std::io::stdin().read_to_end(&mut payload).map_err(|error| format!("standard input: {error}"))?;
        }
        Some(file) => {
            payload = std::fs::read(file).map_err(|error| {
                format!("`{file}` cannot be read: {error}; name the file with the payload, or `-` for standard input")
            })?;
        }
    }
    let mut message = Message::new(send.kind, payload).scope(send.source);
    if let Some(id) = send.id {
        message = message.id(id);
    }
    message.key = send.key;
    let id = message.id.clone();
    let word = desk.send(message).await?;
    println!("{}", serde_json::json!({ "id": id, "status": word }));
    Ok(word != "conflict")
}

pub(super) async fn discard(desk: &impl Desk, discard: Discard) -> Done<bool> {
    if !(1..=1000).contains(&discard.reason.chars().count()) {
        return Err("`--reason` has 1 to 1000 characters".to_owned());
    }
    let Some(chosen) = chosen(desk, &discard.which, "discard").await? else { return Ok(false) };
    if discard.which.dry_run {
        return Ok(true);
    }
    let mut done = 0;
    for filter in &chosen.filters {
        done += desk.discard(filter, &discard.reason).await?;
    }
    println!("discarded {done}");
    Ok(done > 0)
}

pub(super) async fn set_paused(desk: &impl Desk, which: Pause, paused: bool) -> Done<bool> {
    let name = safe(&which.name);
    let part = if which.source { Part::Source(&which.name) } else { Part::Handler(&which.name) };
    if desk.set_paused(part, paused).await? {
        println!("{} {name}", if paused { "paused" } else { "resumed" });
        return Ok(true);
    }
    if which.source {
        eprintln!("the service has no source `{name}`; `GET /api/v1/sources` lists those it has");
    } else if tell_unknown_handler(desk, &which.name).await? {
        eprintln!("say --source for a source");
    }
    Ok(false)
}

/// The dead letters that are meant, once a person has agreed; `None` when there are none or the answer was no.
pub(super) async fn chosen(desk: &impl Desk, which: &Which, what: &str) -> Done<Option<Chosen>> {
    if which.messages.is_empty() && which.filter.is_empty() {
        return Err(format!(
            "nothing is named to {what}: give ids of messages, or a filter such as --handler H (--state dead for all)"
        ));
    }
    if which.filter.state.is_some_and(|state| state != DeliveryState::Dead) {
        return Err(format!("only dead letters can be {what}ed; leave --state out, or say dead"));
    }
    let filter = which.filter.to_delivery_filter()?.state(DeliveryState::Dead);
    let chosen = if which.messages.is_empty() {
        let count = desk.count_dead(&filter).await?;
        Chosen { filters: vec![filter], count }
    } else {
        named(desk, &filter, &which.messages).await?
    };
    if chosen.count == 0 {
        let unknown = match &which.filter.handler {
            Some(handler) => tell_unknown_handler(desk, handler).await?,
            None => false,
        };
        if !unknown {
            eprintln!("no dead letter matches; see `oncebox list --state dead`");
        }
        return Ok(None);
    }
    let about = if chosen.count >= COUNTED { "at least " } else { "" };
    eprintln!("{about}{}", one_or_more(chosen.count, "dead letter", "dead letters"));
    // Those named one by one are meant; a filter may have found more than one thought.
    let ask = which.messages.is_empty() && !which.yes && !which.dry_run;
    if ask && !agreed(what) {
        eprintln!("nothing was changed");
        return Ok(None);
    }
    Ok(Some(chosen))
}

/// The dead letters of these messages, as rows: no more than they are now.
async fn named(desk: &impl Desk, filter: &DeliveryFilter, messages: &[String]) -> Done<Chosen> {
    let mut rows: Vec<DeliveryId> = Vec::new();
    for id in messages {
        let mut filter = filter.clone().message_id(id).limit(PAGE);
        let before = rows.len();
        loop {
            let page = desk.deliveries(&filter).await?;
            rows.extend(page.deliveries.iter().map(|delivery| DeliveryId(delivery.delivery)));
            filter.after = page.deliveries.last().map(|delivery| DeliveryId(delivery.delivery));
            if !page.more {
                break;
            }
        }
        if rows.len() == before {
            let id = safe(id);
            eprintln!("message `{id}` has no such dead letter; see `oncebox show {id}`");
        }
    }
    rows.sort_unstable_by_key(|row| row.0);
    rows.dedup();
    let filters = rows.chunks(PAGE).map(|rows| {
        let mut filter = DeliveryFilter::all().state(DeliveryState::Dead);
        filter.deliveries = rows.to_vec();
        filter
    });
    Ok(Chosen { filters: filters.collect(), count: rows.len() as u64 })
}

pub(super) fn agreed(what: &str) -> bool {
    if !std::io::stdin().is_terminal() {
        eprintln!("say --yes to {what} them without being asked");
        return false;
    }
    eprint!("{what} them? [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}
