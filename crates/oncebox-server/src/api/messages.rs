//! `/api/v1/messages`, `/conflicts` and `/duplicates`

use std::sync::Arc;

use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use oncebox::admin::{ConflictAsk, ConflictPlace, HeaderMatch, MessageSearch, PayloadMatch};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::{IntoParams, ToSchema};

use super::answer::{Answer, Answered, ErrorBody, Problem, asked};
use super::ask::{Limit, MOST_BYTES, NamedTwice, Query, Text, Time};
use crate::service::App;
use crate::stores::ServiceStore;
use crate::view;

/// Which messages; every parameter that is there must match. State, handler and error are parameters of `/deliveries`.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct MessageQuery {
    /// In this scope: the name of their source, unless the source says otherwise.
    scope: Option<Text>,
    /// With this id.
    id: Option<Text>,
    /// Of this kind; with `*` at its end, of all that begin so.
    kind: Option<Text>,
    /// With this key.
    key: Option<Text>,
    /// Received at or after this time.
    since: Option<Time>,
    /// Received before this time.
    until: Option<Time>,
    /// With this header: `name:value`, or `name` for any value.
    #[param(value_type = Option<String>, pattern = r"^[^\x00:]+(:[^\x00]*)?$")]
    header: Option<Text>,
    /// With this in a JSON payload: a JSON pointer, `=`, and the value as text, as in `/customer/id=7`.
    #[param(value_type = Option<String>, pattern = r"^/[^\x00=]*=[^\x00]*$")]
    payload: Option<Text>,
    /// Where to go on: what `next` of the page before said, with the same parameters.
    #[param(value_type = Option<String>, pattern = "^[A-Za-z0-9_-]{22}$")]
    cursor: Option<Text>,
    /// The most messages; 100 unless set.
    limit: Option<Limit>,
}

/// Messages, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MessagePageView {
    /// May be empty although there is more to search.
    messages: Vec<view::Received>,
    /// The `cursor` to go on with; null when the search is at its end.
    next: Option<String>,
}

/// Which conflicts.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ConflictQuery {
    /// Where to go on: what `next` of the page before said.
    #[param(value_type = Option<String>, pattern = "^[A-Za-z0-9_-]{54}$")]
    cursor: Option<Text>,
    /// The most conflicts; 100 unless set.
    limit: Option<Limit>,
}

/// Messages whose id was known with other bytes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Conflicts {
    conflicts: Vec<view::Received>,
    /// The `cursor` to go on with; null when this is the end.
    next: Option<String>,
}

/// What came more than once.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Duplicates {
    /// How often a known id came again: `duplicate` with the same bytes, `conflict` with others. An empty handler is the
    /// inbox as a whole.
    counts: Vec<view::Counted>,
    /// The newest messages with other bytes, which were kept apart: at most 100, and no more after 8 MiB.
    conflicts: Vec<view::Received>,
    /// The `cursor` to go on with at `/conflicts`; null when these are all.
    next: Option<String>,
}

/// Received messages, newest first. Looks at a bounded number of them, so a page may be empty before the end.
///
/// A page ends early once it has 8 MiB of payloads.
#[utoipa::path(
    get, path = "/api/v1/messages", tag = "messages", params(MessageQuery),
    responses((status = 200, body = MessagePageView)),
)]
pub(crate) async fn messages<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Query(query): Query<MessageQuery>,
) -> Answered<MessagePageView> {
    let search = query.into_search()?;
    let page = asked(app.inbox.store().messages(&search)).await?;
    let next = page.next.map(|place| cursor(&search, place));
    Ok(Answer::ok(MessagePageView { messages: page.messages.iter().map(view::hit).collect(), next }))
}

/// One message and what became of it; of the same id with other bytes, the first 100, and no more after 8 MiB.
#[utoipa::path(
    get, path = "/api/v1/messages/{scope}/{id}", tag = "messages",
    params(
        ("scope" = String, Path, description = "The scope: the name of its source, unless the source says otherwise."),
        ("id" = String, Path, description = "Its id; write what is special in an address with %XX."),
    ),
    responses(
        (status = 200, body = view::Whole),
        (status = 404, body = ErrorBody, description = "It was never received, or longer ago than `keep`."),
    ),
)]
pub(crate) async fn message<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    NamedTwice(scope, id): NamedTwice,
) -> Answered<view::Whole> {
    let found = asked(app.inbox.store().message(&scope, &id)).await?;
    let unknown =
        || Problem::NotFound("this message was never received, or longer ago than `keep`".to_owned());
    found.map(|found| Answer::ok(view::whole(&scope, &id, &found))).ok_or_else(unknown)
}

/// Messages whose id was known with other bytes, newest first.
///
/// A page ends early once it has 8 MiB of payloads.
#[utoipa::path(
    get, path = "/api/v1/conflicts", tag = "messages", params(ConflictQuery),
    responses((status = 200, body = Conflicts)),
)]
pub(crate) async fn conflicts<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Query(query): Query<ConflictQuery>,
) -> Answered<Conflicts> {
    let ask = query.into_ask()?;
    let page = asked(app.inbox.store().conflict_page(&ask)).await?;
    Ok(Answer::ok(Conflicts {
        conflicts: page.conflicts.iter().map(view::conflict).collect(),
        next: page.next.map(|place| URL_SAFE_NO_PAD.encode(place.to_bytes())),
    }))
}

/// How often known ids came again, and what came with other bytes.
#[utoipa::path(get, path = "/api/v1/duplicates", tag = "messages", responses((status = 200, body = Duplicates)))]
pub(crate) async fn duplicates<St: ServiceStore>(State(app): State<Arc<App<St>>>) -> Answered<Duplicates> {
    let store = app.inbox.store();
    let ask = ConflictQuery { cursor: None, limit: None }.into_ask()?;
    let (counts, page) =
        asked(async { Ok((store.counts().await?, store.conflict_page(&ask).await?)) }).await?;
    let counts = counts.iter().filter(|count| ["duplicate", "conflict"].contains(&count.name.as_str()));
    Ok(Answer::ok(Duplicates {
        counts: counts.map(view::counted).collect(),
        conflicts: page.conflicts.iter().map(view::conflict).collect(),
        next: page.next.map(|place| URL_SAFE_NO_PAD.encode(place.to_bytes())),
    }))
}

impl ConflictQuery {
    fn into_ask(self) -> Result<ConflictAsk, Problem> {
        let read = |text: Text| {
            let place =
                URL_SAFE_NO_PAD.decode(text.0).ok().and_then(|bytes| ConflictPlace::from_bytes(&bytes));
            place.ok_or_else(|| Problem::Bad("`cursor` is not what `next` said".to_owned()))
        };
        Ok(ConflictAsk {
            after: self.cursor.map(read).transpose()?,
            limit: Some(Limit::of(self.limit)),
            bytes: Some(MOST_BYTES),
        })
    }
}

impl MessageQuery {
    fn into_search(self) -> Result<MessageSearch, Problem> {
        let mut search = MessageSearch::default();
        let text = |text: Option<Text>| text.map(|text| text.0);
        search.scope = text(self.scope);
        search.id = text(self.id);
        search.kind = text(self.kind);
        search.key = text(self.key);
        search.since = self.since.map(|time| time.0);
        search.until = self.until.map(|time| time.0);
        search.header = self.header.map(|text| header(&text.0)).transpose()?;
        search.payload = self.payload.map(|text| payload(&text.0)).transpose()?;
        search.limit = Some(Limit::of(self.limit));
        search.bytes = Some(MOST_BYTES);
        search.before = self.cursor.map(|text| place(&search, &text.0)).transpose()?;
        Ok(search)
    }
}

fn header(text: &str) -> Result<HeaderMatch, Problem> {
    let (name, value) = match text.split_once(':') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    if name.is_empty() {
        return Err(Problem::Bad("`header` has no name; write name:value, or name for any value".to_owned()));
    }
    Ok(HeaderMatch { name: name.to_owned(), value })
}

fn payload(text: &str) -> Result<PayloadMatch, Problem> {
    let pair = text.split_once('=').filter(|(pointer, _)| pointer.starts_with('/'));
    let (pointer, value) = pair.ok_or_else(|| {
        Problem::Bad("`payload` is a JSON pointer, `=` and a value, as in /customer/id=7".to_owned())
    })?;
    Ok(PayloadMatch { pointer: pointer.to_owned(), value: value.to_owned() })
}

/// A place in the log with a mark of the search it belongs to: with another search it would skip messages unseen.
fn cursor(search: &MessageSearch, place: i64) -> String {
    let place = place.to_be_bytes();
    let mut bytes = place.to_vec();
    bytes.extend(&mark(search, place)[..8]);
    URL_SAFE_NO_PAD.encode(bytes)
}

fn place(search: &MessageSearch, cursor: &str) -> Result<i64, Problem> {
    let read = || {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (place, given) = bytes.split_first_chunk::<8>()?;
        (mark(search, *place)[..8] == *given).then_some(i64::from_be_bytes(*place))
    };
    read().ok_or_else(|| Problem::Bad("`cursor` is not what `next` said to this search".to_owned()))
}

fn mark(search: &MessageSearch, place: [u8; 8]) -> [u8; 32] {
    let MessageSearch { scope, id, kind, key, since, until, header, payload, .. } = search;
    let asked = format!("{:?}", (scope, id, kind, key, since, until, header, payload));
    Sha256::new().chain_update(place).chain_update(asked).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ask::tests::query;

    fn search(text: &str) -> Result<MessageSearch, String> {
        query::<MessageQuery>(text)?.into_search().map_err(|problem| format!("{problem:?}"))
    }

    #[test]
    fn every_parameter_is_read_and_mistakes_are_named() {
        let all = "scope=s&id=i&kind=k*&key=x&since=2026-05-01T00:00:00Z&until=2026-05-02T00:00:00Z\
                   &header=x-a:b:c&payload=/a/b=c=d&limit=7";
        let found = search(all).unwrap();
        assert_eq!(found.header.as_ref().unwrap().value.as_deref(), Some("b:c"));
        let payload = found.payload.as_ref().unwrap();
        assert_eq!((payload.pointer.as_str(), payload.value.as_str()), ("/a/b", "c=d"));
        assert!([&found.scope, &found.id, &found.kind, &found.key].iter().all(|text| text.is_some()));
        assert_eq!((found.limit, found.since < found.until), (Some(7), true));
        assert_eq!(search("header=x-a").unwrap().header.unwrap().value, None);
        for (text, word) in [
            ("header=:b", "no name"),
            ("payload=a=b", "JSON pointer"),
            ("payload=/a", "JSON pointer"),
            ("cursor=AAAAAAAAAAAAAAAAAAAAAA", "not what `next` said"),
            ("handler=x", "unknown name `handler`"),
        ] {
            let wrong = search(text).unwrap_err();
            assert!(wrong.contains(word), "{text}: {wrong}");
        }
    }

    #[test]
    fn a_cursor_belongs_to_its_search() {
        let asked = search("kind=k&limit=5").unwrap();
        let next = cursor(&asked, 42);
        assert_eq!(next.len(), 22);
        assert_eq!(search(&format!("kind=k&limit=9&cursor={next}")).unwrap().before, Some(42));
        assert!(search(&format!("kind=other&cursor={next}")).is_err());
        for place in 0..next.len() {
            let mut bytes = next.clone().into_bytes();
            bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            let read = search(&format!("kind=k&cursor={changed}"));
            assert!(read.is_err(), "{changed}");
        }
    }
}
