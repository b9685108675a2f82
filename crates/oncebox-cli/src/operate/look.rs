//! `status`, `list`, `show`

use clap::Args;
use oncebox::admin::{DeliveryFilter, DeliveryInfo};
use oncebox::{Error, Store};
use oncebox_server::view;

use super::Filter;
use super::screen::{length, safe, short, table};

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
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Print a JSON object per line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The message's id.
    message: String,
    /// In this scope; in every scope unless set.
    #[arg(long)]
    scope: Option<String>,
    /// Print a JSON object per delivery.
    #[arg(long)]
    json: bool,
}

pub(super) async fn status<St: Store>(store: &St, status: Status) -> Result<bool, Error> {
    let (handlers, outbox, counts) = (store.handlers().await?, store.outbox().await?, store.counts().await?);
    if status.json {
        println!("{}", view::status(&handlers, &outbox, &counts));
        return Ok(true);
    }
    let total = |handler: &str, name: &str| {
        counts
            .iter()
            .find(|count| count.handler == handler && count.name == name)
            .map_or(0, |count| count.value)
    };
    println!(
        "received {}, duplicates {}, conflicts {}, unrouted {}\n",
        total("", "received"),
        total("", "duplicate"),
        total("", "conflict"),
        total("", "unrouted")
    );
    let rows: Vec<Vec<String>> = handlers
        .iter()
        .map(|one| {
            let about = if one.waiting_is_exact { "" } else { "~" };
            let name = if one.paused { format!("{} (paused)", one.name) } else { one.name.clone() };
            let numbers = [one.retrying, one.held, one.scheduled, one.dead];
            let mut row =
                vec![safe(&name), format!("{about}{}", one.waiting), one.lag.map_or("-".to_owned(), length)];
            row.extend(numbers.iter().map(u64::to_string));
            row.push(total(&one.name, "done").to_string());
            row
        })
        .collect();
    print!(
        "{}",
        table(&["HANDLER", "WAITING", "LAG", "RETRYING", "HELD", "SCHEDULED", "DEAD", "DONE"], &rows)
    );
    if !outbox.is_empty() {
        let rows: Vec<Vec<String>> = outbox
            .iter()
            .map(|one| {
                let lag = one.lag.map_or("-".to_owned(), length);
                vec![
                    safe(&one.sink),
                    one.waiting.to_string(),
                    lag,
                    one.retrying.to_string(),
                    one.dead.to_string(),
                ]
            })
            .collect();
        print!("\n{}", table(&["SINK", "WAITING", "LAG", "RETRYING", "DEAD"], &rows));
    }
    Ok(true)
}

pub(super) async fn list<St: Store>(store: &St, list: List) -> Result<bool, Error> {
    let found = store.deliveries(&list.filter.to_delivery_filter().limit(list.limit)).await?;
    if list.json {
        for delivery in &found {
            println!("{}", view::delivery(delivery));
        }
        return Ok(!found.is_empty());
    }
    let rows: Vec<Vec<String>> = found
        .iter()
        .map(|one| {
            let error = one.history.last().map_or(String::new(), |attempt| short(&attempt.error, 60));
            vec![
                short(&one.message.id, 40),
                safe(&one.handler),
                one.state.as_str().to_owned(),
                one.attempts.to_string(),
                safe(&one.message.kind),
                format!("{:.0}", one.received_at),
                error,
            ]
        })
        .collect();
    if found.is_empty() {
        eprintln!("no delivery matches");
        return Ok(false);
    }
    print!(
        "{}",
        table(&["MESSAGE", "HANDLER", "STATE", "ATTEMPTS", "KIND", "RECEIVED", "LAST ERROR"], &rows)
    );
    if found.len() == list.limit {
        eprintln!("the first {}; there may be more (--limit)", list.limit);
    }
    Ok(true)
}

pub(super) async fn show<St: Store>(store: &St, show: Show) -> Result<bool, Error> {
    let mut filter = DeliveryFilter::all().message_id(&show.message);
    filter.scope = show.scope.clone();
    let found = store.deliveries(&filter).await?;
    if found.is_empty() {
        eprintln!(
            "no delivery of message `{}` has a row of its own: it is done, waits for its first attempt, or was never received",
            safe(&show.message)
        );
        return Ok(false);
    }
    for delivery in &found {
        if show.json {
            println!("{}", view::delivery(delivery));
        } else {
            print_whole(delivery);
        }
    }
    Ok(true)
}

fn print_whole(one: &DeliveryInfo) {
    let message = &one.message;
    println!(
        "{} in {}, handler {}: {}",
        safe(&message.id),
        safe(&message.scope),
        safe(&one.handler),
        one.state.as_str()
    );
    println!("  kind      {}", safe(&message.kind));
    if let Some(key) = &message.key {
        println!("  key       {}", safe(key));
    }
    println!("  received  {:.0}", one.received_at);
    println!("  attempts  {}, due {:.0}", one.attempts, one.due_at);
    for (name, value) in message.headers.iter() {
        println!("  header    {}: {}", safe(name), safe(&String::from_utf8_lossy(value)));
    }
    for attempt in &one.history {
        println!("  failed    {} {:.0}: {}", attempt.attempt, attempt.at, safe(&attempt.error));
    }
    match std::str::from_utf8(&message.payload) {
        Ok(text) => println!("  payload   {}", safe(text)),
        Err(_) => println!("  payload   {} bytes that are no text (see --json)", message.payload.len()),
    }
}
