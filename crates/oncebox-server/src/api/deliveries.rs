//! `/api/v1/deliveries` and `/discards`

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use oncebox::admin::{DeliveryFilter, DeliveryState};
use oncebox::store::DeliveryId;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::answer::{Answer, Answered, Problem, asked};
use super::ask::{Body, Limit, MOST_BYTES, Number, Place, Query, Text, Time, to_the_end};
use super::audit::write_down;
use crate::access::Actor;
use crate::service::App;
use crate::stores::ServiceStore;
use crate::view;

/// How many letters one statement touches.
const AT_ONCE: usize = 1000;

/// How many letters are counted before the answer is "at least".
pub(crate) const COUNTED: u64 = 100_000;

/// Which deliveries; every parameter that is there must match.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeliveryQuery {
    /// Of this handler.
    handler: Option<Text>,
    /// In this state.
    state: Option<StateWord>,
    /// Of messages in this scope.
    scope: Option<Text>,
    /// Of this message id.
    id: Option<Text>,
    /// Of messages of this kind.
    kind: Option<Text>,
    /// Of messages with this key.
    key: Option<Text>,
    /// Whose last error contains this text.
    error: Option<Text>,
    /// Received at or after this time.
    since: Option<Time>,
    /// Received before this time.
    until: Option<Time>,
    /// Only deliveries after this one: what `next` of the page before said.
    after: Option<Place>,
    /// The most deliveries; 100 unless set.
    limit: Option<Limit>,
}

/// Where a delivery stands.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = DeliveryState)]
pub(crate) enum StateWord {
    Waiting,
    Retrying,
    Held,
    Scheduled,
    Dead,
    Discarded,
}

impl From<StateWord> for DeliveryState {
    fn from(state: StateWord) -> Self {
        match state {
            StateWord::Waiting => Self::Waiting,
            StateWord::Retrying => Self::Retrying,
            StateWord::Held => Self::Held,
            StateWord::Scheduled => Self::Scheduled,
            StateWord::Dead => Self::Dead,
            StateWord::Discarded => Self::Discarded,
        }
    }
}

impl DeliveryQuery {
    fn into_filter(self) -> DeliveryFilter {
        let mut filter = DeliveryFilter::all().limit(Limit::of(self.limit));
        let text = |text: Option<Text>| text.map(|text| text.0);
        filter.handler = text(self.handler);
        filter.state = self.state.map(DeliveryState::from);
        filter.scope = text(self.scope);
        filter.message_id = text(self.id);
        filter.kind = text(self.kind);
        filter.key = text(self.key);
        filter.error = text(self.error);
        filter.since = self.since.map(|time| time.0);
        filter.until = self.until.map(|time| time.0);
        filter.after = self.after.map(|place| DeliveryId(place.0));
        filter.bytes = Some(MOST_BYTES);
        filter
    }
}

/// Deliveries in the order of their numbers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeliveryPage {
    deliveries: Vec<view::Delivery>,
    /// Where to go on; null when this is the end.
    next: Option<i64>,
}

/// Deliveries that have a row of their own: retrying, held, scheduled, dead, discarded.
///
/// A page ends early once it has 8 MiB of payloads.
#[utoipa::path(
    get, path = "/api/v1/deliveries", tag = "deliveries", params(DeliveryQuery),
    responses((status = 200, body = DeliveryPage)),
)]
pub(crate) async fn deliveries<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Query(query): Query<DeliveryQuery>,
) -> Answered<DeliveryPage> {
    let filter = query.into_filter();
    let limit = filter.limit.unwrap_or(AT_ONCE);
    let found = asked(app.inbox.store().deliveries(&filter)).await?;
    let bytes: usize = found.iter().map(|one| one.message.payload.len()).sum();
    let next = found.last().filter(|_| found.len() == limit || bytes >= MOST_BYTES).map(|last| last.id.0);
    Ok(Answer::ok(DeliveryPage { deliveries: found.iter().map(view::delivery).collect(), next }))
}

/// Which dead letters are meant; every field that is set must match.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LetterFilter {
    /// These deliveries only, 1 to 1000 of them.
    #[schema(min_items = 1, max_items = 1000)]
    deliveries: Option<Vec<Number>>,
    /// Of this handler.
    handler: Option<Text>,
    /// Of messages in this scope.
    scope: Option<Text>,
    /// Of this message id.
    id: Option<Text>,
    /// Of messages of this kind.
    kind: Option<Text>,
    /// Of messages with this key.
    key: Option<Text>,
    /// Whose last error contains this text.
    error: Option<Text>,
    /// Received at or after this time.
    since: Option<Time>,
    /// Received before this time.
    until: Option<Time>,
}

impl LetterFilter {
    /// What the store understands. Everything is never meant by accident: an empty filter needs `all`.
    pub(crate) fn into_filter(self, all: bool) -> Result<DeliveryFilter, Problem> {
        let texts = [&self.handler, &self.scope, &self.id, &self.kind, &self.key, &self.error];
        let is_empty = texts.iter().all(|text| text.is_none())
            && self.deliveries.is_none()
            && self.since.is_none()
            && self.until.is_none();
        let bad = |text: &str| Err(Problem::Bad(text.to_owned()));
        match (is_empty, all) {
            (true, false) => return bad("`filter` names nothing; for every dead letter say `\"all\": true`"),
            (false, true) => return bad("`all` and a `filter` say two things; leave one of them out"),
            _ => {}
        }
        // A program that found nothing to name must not touch everything.
        if self.deliveries.as_ref().is_some_and(|rows| !(1..=1000).contains(&rows.len())) {
            return bad("`deliveries` has 1 to 1000 of them");
        }
        let rows = self.deliveries.unwrap_or_default();
        let mut filter = DeliveryFilter::all().state(DeliveryState::Dead);
        let text = |text: Option<Text>| text.map(|text| text.0);
        filter.deliveries = rows.iter().map(|row| DeliveryId(row.0)).collect();
        filter.handler = text(self.handler);
        filter.scope = text(self.scope);
        filter.message_id = text(self.id);
        filter.kind = text(self.kind);
        filter.key = text(self.key);
        filter.error = text(self.error);
        filter.since = self.since.map(|time| time.0);
        filter.until = self.until.map(|time| time.0);
        Ok(filter)
    }
}

/// What is to be given up.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewDiscard {
    /// Which dead letters.
    #[serde(default)]
    filter: LetterFilter,
    /// Every dead letter there is; then `filter` must be left out.
    #[serde(default)]
    all: bool,
    /// Only count them.
    #[serde(default)]
    dry_run: bool,
    /// Why, for whoever looks later.
    #[schema(min_length = 1, max_length = 1000)]
    reason: Text,
}

/// What was given up, or would be.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Discarded {
    /// Letters that matched before anything was changed, counted up to 100,000.
    matched: u64,
    /// How many were given up; none when it was a dry run.
    discarded: u64,
}

/// Gives dead letters up for good, with a reason in their history.
#[utoipa::path(
    post, path = "/api/v1/discards", tag = "deliveries", request_body = NewDiscard,
    responses((status = 200, body = Discarded)),
)]
pub(crate) async fn discard<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Extension(actor): Extension<Actor>,
    Body(wanted): Body<NewDiscard>,
) -> Answered<Discarded> {
    let reason = wanted.reason.0;
    if !(1..=1000).contains(&reason.chars().count()) {
        return Err(Problem::Bad("`reason` has 1 to 1000 characters".to_owned()));
    }
    let mut filter = wanted.filter.into_filter(wanted.all)?;
    let matched = asked(app.inbox.store().count_deliveries(&filter, COUNTED)).await?;
    if wanted.dry_run || matched == 0 {
        return Ok(Answer::ok(Discarded { matched, discarded: 0 }));
    }
    to_the_end(async move {
        let details = serde_json::json!({ "reason": reason, "matched": matched });
        write_down(&app, &actor, "discard", &described(&filter), details).await?;
        // In steps, so that no statement locks too many rows.
        filter.limit = Some(AT_ONCE);
        let mut discarded = 0;
        loop {
            let step = asked(app.inbox.store().discard(&filter, &reason)).await?;
            discarded += step;
            if step < AT_ONCE as u64 {
                break;
            }
        }
        app.events.nudge();
        Ok(Answer::ok(Discarded { matched, discarded }))
    })
    .await
}

/// A filter in the words of the API, for the audit log.
pub(crate) fn described(filter: &DeliveryFilter) -> String {
    let mut object = serde_json::Map::new();
    let texts = [
        ("handler", &filter.handler),
        ("scope", &filter.scope),
        ("id", &filter.message_id),
        ("kind", &filter.kind),
        ("key", &filter.key),
        ("error", &filter.error),
    ];
    for (name, text) in texts {
        object.extend(text.as_ref().map(|text| (name.to_owned(), text.as_str().into())));
    }
    for (name, time) in [("since", filter.since), ("until", filter.until)] {
        object.extend(time.map(|time| (name.to_owned(), time.to_string().into())));
    }
    if !filter.deliveries.is_empty() {
        let rows: Vec<i64> = filter.deliveries.iter().map(|row| row.0).collect();
        object.insert("deliveries".to_owned(), rows.into());
    }
    if object.is_empty() {
        object.insert("all".to_owned(), true.into());
    }
    serde_json::Value::Object(object).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ask::tests::{json, query};

    #[test]
    fn every_parameter_is_read_and_mistakes_are_named() {
        let text = "handler=h&state=dead&scope=s&id=a%2Fb&kind=k&key=x&error=no+such&since=2026-05-01T00:00:00Z\
                    &until=2026-05-02T00:00:00Z&after=7&limit=5";
        let filter = query::<DeliveryQuery>(text).unwrap().into_filter();
        assert_eq!((filter.message_id.as_deref(), filter.error.as_deref()), (Some("a/b"), Some("no such")));
        assert_eq!(
            (filter.after, filter.limit, filter.state),
            (Some(DeliveryId(7)), Some(5), Some(DeliveryState::Dead))
        );
        let texts = [&filter.handler, &filter.scope, &filter.kind, &filter.key];
        assert!(texts.iter().all(|text| text.is_some()) && filter.since < filter.until);
        for (text, word) in [("stat=dead", "did you mean `state`?"), ("state=ded", "did you mean `dead`?")] {
            let wrong = query::<DeliveryQuery>(text).unwrap_err();
            assert!(wrong.contains(word), "{text}: {wrong}");
        }
    }

    #[test]
    fn everything_is_never_meant_by_accident() {
        let filter = |text: &str, all| json::<LetterFilter>(text).unwrap().into_filter(all);
        assert!(filter("{}", true).is_ok());
        assert!(filter(r#"{"handler":"h"}"#, false).is_ok());
        for (text, all) in [
            ("{}", false),
            (r#"{"handler":null}"#, false),
            (r#"{"handler":"h"}"#, true),
            (r#"{"deliveries":[]}"#, false),
            (r#"{"deliveries":[],"handler":"h"}"#, false),
        ] {
            assert!(matches!(filter(text, all), Err(Problem::Bad(_))), "{text} {all}");
        }
        let all = r#"{"deliveries":[1,2],"handler":"h","scope":"s","id":"i","kind":"k","key":"x","error":"e",
                     "since":"2026-05-01T00:00:00Z","until":"2026-05-02T00:00:00Z"}"#;
        let described = described(&filter(all, false).unwrap());
        let again: serde_json::Value = serde_json::from_str(&described).unwrap();
        assert_eq!(again, serde_json::from_str::<serde_json::Value>(all).unwrap());
    }
}
