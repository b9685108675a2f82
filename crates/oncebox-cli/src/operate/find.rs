//! `search`, `show`

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;
use oncebox::admin::{DeliveryFilter, HeaderMatch, MessageSearch, PayloadMatch};
use oncebox::store::DeliveryId;
use oncebox_server::view::{Message, Progressed, Received, Whole};

use super::desk::{Desk, Done, PAGE};
use super::screen::{safe, short, state, table};
use super::{in_order, limit, one_or_more, when};

/// How long one command searches before it says where to go on.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct Search {
    /// In this scope: the name of their source, unless the source says otherwise.
    #[arg(long)]
    scope: Option<String>,
    /// With this id.
    #[arg(long)]
    id: Option<String>,
    /// Of this kind; with `*` at its end, of all that begin so.
    #[arg(long)]
    kind: Option<String>,
    /// With this key.
    #[arg(long)]
    key: Option<String>,
    /// With this header: name=value, or name for any value.
    #[arg(long, value_parser = header)]
    header: Option<HeaderMatch>,
    /// With this in a JSON payload: /pointer=value, as in /customer/id=7.
    #[arg(long, value_parser = payload)]
    payload: Option<PayloadMatch>,
    /// Received within this time: 30s, 15m, 1h, 7d; or since an instant: 2026-05-01T00:00:00Z.
    #[arg(long, value_parser = when)]
    since: Option<Timestamp>,
    /// Received before that: 1h ago, or an instant.
    #[arg(long, value_parser = when)]
    until: Option<Timestamp>,
    /// The most messages.
    #[arg(long, default_value = "100", value_parser = limit)]
    limit: usize,
    /// Where to go on: what the search before said, with the same arguments.
    #[arg(long)]
    cursor: Option<String>,
    /// Print a JSON object per line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The message's id.
    message: String,
    /// In this scope; looked for unless set.
    #[arg(long)]
    scope: Option<String>,
    /// Print one JSON object.
    #[arg(long, conflicts_with = "raw")]
    json: bool,
    /// Write the bytes of the payload, and nothing else.
    #[arg(long)]
    raw: bool,
}

pub(super) async fn search(desk: &impl Desk, options: Search) -> Done<bool> {
    in_order(options.since, options.until)?;
    let mut search = MessageSearch::default();
    (search.scope, search.id) = (options.scope, options.id);
    (search.kind, search.key) = (options.kind, options.key);
    (search.header, search.payload) = (options.header, options.payload);
    (search.since, search.until) = (options.since, options.until);
    let (mut found, mut next) = (Vec::new(), options.cursor);
    let started = Instant::now();
    loop {
        search.limit = Some((options.limit - found.len()).min(PAGE));
        let page = desk.messages(&search, next.as_deref()).await?;
        found.extend(page.messages);
        next = page.next;
        if next.is_none() || found.len() >= options.limit || started.elapsed() > PATIENCE {
            break;
        }
    }
    if options.json {
        for message in &found {
            println!("{message}");
        }
    } else if !found.is_empty() {
        let rows: Vec<Vec<String>> = found.iter().map(row).collect();
        print!("{}", table(&["MESSAGE", "SCOPE", "KIND", "KEY", "RECEIVED", "BYTES"], &rows));
    }
    match &next {
        Some(cursor) => eprintln!("there may be more: go on with --cursor {cursor}"),
        None if found.is_empty() => eprintln!("no message in the log matches"),
        None => {}
    }
    Ok(!found.is_empty())
}

fn row(one: &Received) -> Vec<String> {
    let message = &one.message;
    vec![
        short(&message.id, 40),
        short(&message.scope, 30),
        safe(&message.kind),
        message.key.as_deref().map_or(String::new(), |key| short(key, 30)),
        one.received_at.to_string(),
        message.payload_bytes().map_or(0, |bytes| bytes.len()).to_string(),
    ]
}

pub(super) async fn show(desk: &impl Desk, show: Show) -> Done<bool> {
    let id = &show.message;
    let scope = match &show.scope {
        Some(scope) => scope.clone(),
        None => {
            let scopes = scopes(desk, id).await?;
            match scopes.len() {
                // Not in the log any more; its id may still be known in the usual scope.
                0 => "default".to_owned(),
                1 => scopes.into_iter().next().unwrap_or_default(),
                _ => {
                    let names: Vec<String> = scopes.iter().map(|scope| safe(scope)).collect();
                    eprintln!("message `{}` is in {} scopes; say which:", safe(id), scopes.len());
                    for name in names {
                        eprintln!("  --scope {name}");
                    }
                    return Ok(false);
                }
            }
        }
    };
    let Some(whole) = desk.message(&scope, id).await? else {
        let hint =
            if show.scope.is_none() { "; one whose payload was purged is found with --scope" } else { "" };
        eprintln!("message `{}` was never received, or longer ago than ids are kept{hint}", safe(id));
        return Ok(false);
    };
    if show.raw {
        return raw(&whole);
    }
    if show.json {
        println!("{whole}");
    } else {
        print_whole(&whole);
    }
    Ok(true)
}

/// The scopes in which this id is, as far as the log and the deliveries know.
async fn scopes(desk: &impl Desk, id: &str) -> Done<BTreeSet<String>> {
    let mut filter = DeliveryFilter::all().message_id(id).limit(PAGE);
    let mut scopes: BTreeSet<String> = BTreeSet::new();
    loop {
        let page = desk.deliveries(&filter).await?;
        filter.after = page.deliveries.last().map(|last| DeliveryId(last.delivery));
        scopes.extend(page.deliveries.into_iter().map(|delivery| delivery.message.scope));
        if !page.more {
            break;
        }
    }
    let mut search = MessageSearch::default();
    (search.id, search.limit) = (Some(id.to_owned()), Some(PAGE));
    let (mut next, started) = (None, Instant::now());
    loop {
        let page = desk.messages(&search, next.as_deref()).await?;
        scopes.extend(page.messages.into_iter().map(|hit| hit.message.scope));
        next = page.next;
        if next.is_none() {
            return Ok(scopes);
        }
        if started.elapsed() > PATIENCE {
            eprintln!("the log is long, and only its newest part was looked at; give --scope to be sure");
            return Ok(scopes);
        }
    }
}

fn raw(whole: &Whole) -> Done<bool> {
    let Some(message) = &whole.message else {
        eprintln!("its payload was purged; only its id is still known");
        return Ok(false);
    };
    let bytes = message.payload_bytes().ok_or("the payload is not what it says it is")?;
    let mut out = std::io::stdout().lock();
    out.write_all(&bytes).and_then(|()| out.flush()).map_err(|error| format!("standard output: {error}"))?;
    Ok(true)
}

fn print_whole(whole: &Whole) {
    println!("{} in {}", safe(&whole.id), safe(&whole.scope));
    println!("  received  {}", whole.received_at);
    match &whole.message {
        Some(message) => print_message(message),
        None => println!("  payload   purged, or handled inline: only the id still blocks duplicates"),
    }
    for handler in &whole.handlers {
        print_handler(handler);
    }
    if whole.handlers.is_empty() && whole.message.is_some() {
        println!("  handler   none wants this kind");
    }
    for conflict in &whole.conflicts {
        println!(
            "  conflict  {} with other bytes: {}",
            conflict.received_at,
            short(&payload_text(&conflict.message), 200)
        );
    }
}

fn print_message(message: &Message) {
    println!("  kind      {}", safe(&message.kind));
    if let Some(key) = &message.key {
        println!("  key       {}", safe(key));
    }
    for header in &message.headers {
        let text = |place: usize| header.get(place).map_or(String::new(), |text| safe(text));
        println!("  header    {}: {}", text(0), text(1));
    }
    println!("  payload   {}", payload_text(message));
}

fn payload_text(message: &Message) -> String {
    match &message.payload {
        Some(text) => safe(text),
        None => {
            let bytes = message.payload_bytes().map_or(0, |bytes| bytes.len());
            format!("{} that are no text (--raw writes them)", one_or_more(bytes as u64, "byte", "bytes"))
        }
    }
}

fn print_handler(one: &Progressed) {
    let mut line = format!("  handler   {}: {}", safe(&one.handler), state(&safe(&one.state)));
    if let Some(attempts) = one.attempts {
        line.push_str(&format!(", {}", one_or_more(u64::from(attempts), "attempt", "attempts")));
    }
    // Nothing more comes of a dead or discarded one by itself.
    if let Some(due) =
        one.due_at.as_ref().filter(|_| !matches!(one.state.as_str(), "dead" | "discarded" | "done"))
    {
        line.push_str(&format!(", due {due}"));
    }
    println!("{line}");
    for attempt in &one.history {
        println!("    failed  {} {}: {}", attempt.attempt, attempt.at, safe(&attempt.error));
    }
}

fn header(text: &str) -> Result<HeaderMatch, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    // A colon ends a header's name wherever headers come from, so none has one.
    if name.is_empty() || name.contains(':') {
        return Err("write name=value, or name for any value".to_owned());
    }
    Ok(HeaderMatch { name: name.to_owned(), value })
}

fn payload(text: &str) -> Result<PayloadMatch, String> {
    let pair = text.split_once('=').filter(|(pointer, _)| pointer.starts_with('/'));
    let (pointer, value) = pair.ok_or("write a JSON pointer, `=` and a value, as in /customer/id=7")?;
    Ok(PayloadMatch { pointer: pointer.to_owned(), value: value.to_owned() })
}
