//! How handlers, deliveries and the outbox look as JSON: the same in the API and in `--json` of the commands.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use oncebox::admin::{Conflict, DeliveryInfo, HandlerStatus, OutboxStatus};
use oncebox::store::Count;
use oncebox::{Headers, Message};
use serde_json::{Map, Value, json};

/// Everything on one screen.
pub fn status(handlers: &[HandlerStatus], sinks: &[OutboxStatus], counts: &[Count]) -> Value {
    let counts =
        counts.iter().map(|one| json!({ "handler": one.handler, "name": one.name, "value": one.value }));
    json!({
        "handlers": handlers.iter().map(handler).collect::<Vec<_>>(),
        "outbox": sinks.iter().map(outbox).collect::<Vec<_>>(),
        "counts": counts.collect::<Vec<_>>(),
    })
}

/// A handler and what waits for it.
pub fn handler(one: &HandlerStatus) -> Value {
    json!({
        "handler": one.name, "on": one.kinds, "paused": one.paused, "waiting": one.waiting,
        "waiting_is_exact": one.waiting_is_exact, "lag_seconds": one.lag.map(|lag| lag.as_secs_f64()),
        "retrying": one.retrying, "held": one.held, "scheduled": one.scheduled, "dead": one.dead,
    })
}

/// What waits for a sink.
pub fn outbox(one: &OutboxStatus) -> Value {
    json!({
        "sink": one.sink, "waiting": one.waiting, "retrying": one.retrying, "dead": one.dead,
        "lag_seconds": one.lag.map(|lag| lag.as_secs_f64()),
    })
}

/// A delivery with its message and every failed attempt.
pub fn delivery(one: &DeliveryInfo) -> Value {
    let history = one.history.iter().map(
        |attempt| json!({ "attempt": attempt.attempt, "at": attempt.at.to_string(), "error": attempt.error }),
    );
    let mut object = Map::from_iter([
        ("delivery".to_owned(), json!(one.id.0)),
        ("handler".to_owned(), json!(one.handler)),
        ("state".to_owned(), json!(one.state.as_str())),
        ("attempts".to_owned(), json!(one.attempts)),
        ("due_at".to_owned(), json!(one.due_at.to_string())),
        ("received_at".to_owned(), json!(one.received_at.to_string())),
        ("history".to_owned(), Value::from_iter(history)),
    ]);
    object.extend(message(&one.message));
    Value::Object(object)
}

/// A message that was not accepted, because its id was known with other bytes.
pub fn conflict(one: &Conflict) -> Value {
    let mut object = message(&one.message);
    object.insert("received_at".to_owned(), json!(one.received_at.to_string()));
    Value::Object(object)
}

/// A payload that is text is `payload`, any other is `payload_base64`.
fn message(message: &Message) -> Map<String, Value> {
    let (name, payload) = match std::str::from_utf8(&message.payload) {
        Ok(text) => ("payload", json!(text)),
        Err(_) => ("payload_base64", json!(STANDARD.encode(&message.payload))),
    };
    Map::from_iter([
        ("scope".to_owned(), json!(message.scope)),
        ("id".to_owned(), json!(message.id)),
        ("kind".to_owned(), json!(message.kind)),
        ("key".to_owned(), json!(message.key)),
        ("headers".to_owned(), headers(&message.headers)),
        (name.to_owned(), payload),
    ])
}

fn headers(headers: &Headers) -> Value {
    Value::from_iter(headers.iter().map(|(name, value)| json!([name, String::from_utf8_lossy(value)])))
}
