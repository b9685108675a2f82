//! Many messages in one request: a JSON object per line, an answer per line.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use oncebox::{ErrorKind, Headers, Limits, Message, Received};
use oncebox_core::LONGEST_HEADERS;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::answer::{self, Refusal};
use super::body::Share;
use super::{HttpSource, check_depth, refused, take_rate, word};
use crate::service::App;
use crate::stores::ServiceStore;

/// What a line takes at least while it is read, stored and answered for, however short it is.
const LINE: usize = 512;

/// The answer to a batch; who reads it slowly keeps its share of the memory.
#[derive(Debug)]
struct Held {
    text: String,
    _share: Share,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

/// One line of a batch.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    id: Option<Text>,
    kind: Option<String>,
    key: Option<Text>,
    /// Read only when it is known that they are not too many bytes.
    #[serde(borrow)]
    headers: Option<&'a RawValue>,
    /// As it was written: its bytes are what the handler gets.
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    /// Instead of `payload`, for what is no JSON.
    payload_base64: Option<String>,
}

/// A text, or a whole number as the text it is written with.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Text {
    Text(String),
    Whole(i64),
}

impl Text {
    fn into_string(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Whole(number) => number.to_string(),
        }
    }
}

/// Stores what can be stored and answers for every line.
///
/// When the store does not answer, the whole request is refused: sent again, what was stored is a duplicate.
pub(super) async fn take<St: ServiceStore>(
    app: &App<St>,
    source: &HttpSource,
    body: &Bytes,
    mut share: Share,
) -> Result<Response, Refusal> {
    make_room(&mut share, lines_of(body).count())?;
    let limits = Limits { payload_bytes: app.max_payload };
    let mut lines: Vec<Result<usize, (Option<String>, String)>> = Vec::new();
    let mut messages = Vec::new();
    for text in lines_of(body) {
        let read = check_depth(text, app.http.json_depth)
            .map_err(|refusal| (None, told(refusal)))
            .and_then(|()| read(&body.slice_ref(text), &source.config.scope, app.http.max_headers))
            .and_then(|message| match limits.check(&message) {
                Ok(()) => Ok(message),
                Err(error) => Err((Some(message.id), error.to_string())),
            });
        lines.push(read.map(|message| {
            messages.push(message);
            messages.len() - 1
        }));
    }
    if lines.is_empty() {
        return Err(Refusal::Bad("the batch has no line".to_owned()));
    }
    take_rate(source, messages.len())?;
    let received = receive(app, &messages).await?;
    let mut answer = String::new();
    for line in lines {
        let value: Value = match line {
            Ok(place) => match &received[place] {
                Ok(received) => json!(answer::line(&messages[place].id, word(*received).0)),
                Err(error) => invalid(Some(&messages[place].id), error),
            },
            Err((id, error)) => invalid(id.as_deref(), &error),
        };
        answer.push_str(&value.to_string());
        answer.push('\n');
    }
    share.shrink_to(answer.len());
    let answer = Bytes::from_owner(Held { text: answer, _share: share });
    let mut response = Response::new(Body::from(answer));
    *response.status_mut() = StatusCode::MULTI_STATUS;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}

fn invalid(id: Option<&str>, error: &str) -> Value {
    json!({ "id": id, "status": "invalid", "error": error })
}

/// As many as one statement takes.
const PIECE: usize = 1000;

/// Stores messages; an error is that of one message, which the store refuses.
async fn receive<St: ServiceStore>(
    app: &App<St>,
    messages: &[Message],
) -> Result<Vec<Result<Received, String>>, Refusal> {
    let mut answers = Vec::with_capacity(messages.len());
    for piece in messages.chunks(PIECE) {
        match app.inbox.receive(piece).await {
            Ok(received) => answers.extend(received.into_iter().map(Ok)),
            Err(error) if error.kind() == ErrorKind::Invalid => {
                answers.extend(receive_singly(app, piece).await?)
            }
            Err(error) => return Err(refused(error)),
        }
    }
    Ok(answers)
}

/// Where one is refused. Large messages take several statements, so some may be stored already: those are duplicates now.
async fn receive_singly<St: ServiceStore>(
    app: &App<St>,
    messages: &[Message],
) -> Result<Vec<Result<Received, String>>, Refusal> {
    let mut answers = Vec::with_capacity(messages.len());
    for message in messages {
        match app.inbox.receive(std::slice::from_ref(message)).await {
            Ok(received) => answers.extend(received.into_iter().map(Ok)),
            Err(error) if error.kind() == ErrorKind::Invalid => answers.push(Err(error.to_string())),
            Err(error) => return Err(refused(error)),
        }
    }
    Ok(answers)
}

/// The lines that are not empty.
fn lines_of(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    body.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty())
}

/// Takes the memory for these lines: a small body may be a great many of them.
fn make_room(share: &mut Share, lines: usize) -> Result<(), Refusal> {
    let most = share.most() / LINE;
    if lines > most {
        return Err(Refusal::TooManyLines(most));
    }
    share.grow_to(lines * LINE)
}

/// A line's message, or its id as far as it is known and what is wrong.
fn read(text: &Bytes, scope: &str, max_headers: usize) -> Result<Message, (Option<String>, String)> {
    let line: Line<'_> =
        serde_json::from_slice(text).map_err(|error| (None, format!("the line cannot be read: {error}")))?;
    let id = line.id.map(Text::into_string).filter(|id| !id.is_empty());
    let wrong = |text: &str| Err((id.clone(), text.to_owned()));
    let Some(kind) = line.kind.filter(|kind| !kind.is_empty()) else { return wrong("it has no kind") };
    let payload = match (line.payload, line.payload_base64) {
        (Some(_), Some(_)) => return wrong("it has both `payload` and `payload_base64`"),
        // A part of the body, which is there until all of it is stored.
        (Some(raw), None) => text.slice_ref(raw.get().as_bytes()),
        (None, Some(encoded)) => match STANDARD.decode(encoded) {
            Ok(bytes) => Bytes::from(bytes),
            Err(_) => return wrong("`payload_base64` is not base64"),
        },
        (None, None) => return wrong("it has no payload"),
    };
    let headers = match line.headers.map_or(Ok(Headers::new()), |raw| headers(raw.get(), max_headers)) {
        Ok(headers) => headers,
        Err(text) => return wrong(&text),
    };
    let Some(id) = id else { return Err((None, "it has no id".to_owned())) };
    let mut message = Message::with_id(id, kind, payload).scope(scope);
    message.key = line.key.map(Text::into_string);
    message.headers = headers;
    Ok(message)
}

/// The headers of a line: as many as a request may have, because each takes far more memory than it has letters.
fn headers(raw: &str, most: usize) -> Result<Headers, String> {
    // Every byte may be written with six: `\u0041`.
    if raw.len() > most * 16 + LONGEST_HEADERS * 6 {
        return Err(format!("its headers have {} bytes; the limit is {LONGEST_HEADERS}", raw.len()));
    }
    let read: BTreeMap<String, String> =
        serde_json::from_str(raw).map_err(|error| format!("its headers cannot be read: {error}"))?;
    if read.len() > most {
        return Err(format!("it has {} headers; the limit is {most}", read.len()));
    }
    let mut headers = Headers::new();
    for (name, value) in read {
        headers.push(name, value);
    }
    Ok(headers)
}

fn told(refusal: Refusal) -> String {
    match refusal {
        Refusal::Bad(text) => text,
        other => format!("{other:?}"),
    }
}
