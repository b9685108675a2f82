//! `send`, `replay`, `discard`, `pause`, `resume`, `purge`

use std::io::{IsTerminal, Read, Write};
use std::time::Duration;

use clap::Args;
use oncebox::admin::{DeliveryFilter, DeliveryState};
use oncebox::store::{DeliveryId, Retention};
use oncebox::{Error, Inbox, Message, Received, Store};

use super::screen::safe;
use super::{Filter, duration};

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
    /// The source whose message it is: the scope of its id.
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
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    #[command(flatten)]
    which: Which,
    /// At most this many in a second.
    #[arg(long, value_parser = rate)]
    rate: Option<usize>,
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
    /// The handler's name.
    handler: String,
}

#[derive(Debug, Args)]
pub(crate) struct Purge {
    /// How long a message id still blocks duplicates.
    #[arg(long, default_value = "14d", value_parser = duration)]
    keep: Duration,
    /// How long a message that every handler is done with stays readable.
    #[arg(long, default_value = "14d", value_parser = duration)]
    keep_payload: Duration,
}

pub(super) async fn send<St: Store>(store: St, send: Send) -> Result<bool, String> {
    let mut payload = Vec::new();
    match send.file.as_deref() {
        None | Some("-") => {
            std::io::stdin().read_to_end(&mut payload).map_err(|error| format!("standard input: {error}"))?;
        }
        Some(file) => {
            payload = std::fs::read(file).map_err(|error| format!("`{file}` cannot be read: {error}"))?
        }
    }
    let mut message = Message::new(send.kind, payload).scope(send.source);
    if let Some(id) = send.id {
        message = message.id(id);
    }
    message.key = send.key;
    let received =
        Inbox::new(store).receive(std::slice::from_ref(&message)).await.map_err(|error| error.to_string())?;
    let word = match received.first() {
        Some(Received::New) => "new",
        Some(Received::Duplicate) => "duplicate",
        _ => "conflict",
    };
    println!("{}", serde_json::json!({ "id": message.id, "status": word }));
    Ok(word != "conflict")
}

pub(super) async fn replay<St: Store>(store: &St, replay: Replay) -> Result<bool, Error> {
    let Some(found) = chosen(store, &replay.which, "replay").await? else { return Ok(false) };
    if replay.which.dry_run {
        return Ok(true);
    }
    let mut done = 0;
    // In steps, so that a rate can be kept and no statement names too many rows.
    for (number, part) in found.chunks(replay.rate.unwrap_or(1000)).enumerate() {
        if number > 0 && replay.rate.is_some() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        done += store.replay(&rows(part)).await?;
    }
    println!("replayed {done}");
    Ok(done > 0)
}

pub(super) async fn discard<St: Store>(store: &St, discard: Discard) -> Result<bool, Error> {
    let Some(found) = chosen(store, &discard.which, "discard").await? else { return Ok(false) };
    if discard.which.dry_run {
        return Ok(true);
    }
    let mut done = 0;
    for part in found.chunks(1000) {
        done += store.discard(&rows(part), &discard.reason).await?;
    }
    println!("discarded {done}");
    Ok(done > 0)
}

pub(super) async fn set_paused<St: Store>(store: &St, which: Pause, paused: bool) -> Result<bool, Error> {
    if store.set_paused(&which.handler, paused).await? {
        println!("{} {}", if paused { "paused" } else { "resumed" }, safe(&which.handler));
        return Ok(true);
    }
    let known: Vec<String> = store.handlers().await?.into_iter().map(|handler| handler.name).collect();
    eprintln!("the store knows no handler `{}`; it knows: {}", safe(&which.handler), known.join(", "));
    Ok(false)
}

pub(super) async fn purge<St: Store>(store: &St, purge: Purge) -> Result<bool, Error> {
    let retention = Retention { keep: purge.keep, payload: purge.keep_payload, ..Retention::default() };
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

/// The dead letters that are meant, once a person has agreed; `None` when there are none or the answer was no.
async fn chosen<St: Store>(store: &St, which: &Which, what: &str) -> Result<Option<Vec<DeliveryId>>, Error> {
    if which.messages.is_empty() && which.filter.is_empty() {
        return Err(Error::invalid(format!(
            "nothing is named to {what}: give ids of messages, or a filter such as --handler H (--state dead for all)"
        )));
    }
    if which.filter.state.is_some_and(|state| state != DeliveryState::Dead) {
        return Err(Error::invalid(format!(
            "only dead letters can be {what}ed; leave --state out, or say dead"
        )));
    }
    let mut found = Vec::new();
    let mut ids: Vec<Option<&String>> = which.messages.iter().map(Some).collect();
    if ids.is_empty() {
        ids.push(None);
    }
    for id in ids {
        let mut filter = which.filter.to_delivery_filter().state(DeliveryState::Dead).limit(1000);
        filter.message_id = id.cloned();
        loop {
            let page = store.deliveries(&filter).await?;
            found.extend(page.iter().map(|delivery| delivery.id));
            filter.after = page.last().map(|delivery| delivery.id);
            if page.len() < 1000 {
                break;
            }
        }
    }
    if found.is_empty() {
        eprintln!("no dead letter matches");
        return Ok(None);
    }
    let count = found.len();
    eprintln!("{count} dead letter{}", if count == 1 { "" } else { "s" });
    // Those named one by one are meant; a filter may have found more than one thought.
    let ask = which.messages.is_empty() && !which.yes && !which.dry_run;
    if ask && !agreed(what) {
        eprintln!("nothing was changed");
        return Ok(None);
    }
    Ok(Some(found))
}

fn agreed(what: &str) -> bool {
    if !std::io::stdin().is_terminal() {
        eprintln!("say --yes to {what} them without being asked");
        return false;
    }
    eprint!("{what} them? [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

fn rows(part: &[DeliveryId]) -> DeliveryFilter {
    let mut filter = DeliveryFilter::all();
    filter.deliveries = part.to_vec();
    filter
}

fn rate(text: &str) -> Result<usize, String> {
    let number = text.strip_suffix("/s").unwrap_or(text).parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("`{text}`: write how many in a second, as in 100/s"))
}
