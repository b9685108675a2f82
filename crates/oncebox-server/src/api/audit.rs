//! `/api/v1/audit`: who changed what.

use std::sync::Arc;

use axum::extract::State;
use oncebox::admin::Audit;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::answer::{Answer, Answered, Problem, asked};
use super::ask::{Limit, Place, Query};
use crate::access::Actor;
use crate::service::App;
use crate::stores::ServiceStore;
use crate::view;

/// Which entries.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditQuery {
    /// Only entries before this one: what `next` of the page before said.
    before: Option<Place>,
    /// The most entries; 100 unless set.
    limit: Option<Limit>,
}

/// Changes, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditPage {
    audit: Vec<view::Audited>,
    /// Where to go on; null when this is the end.
    next: Option<i64>,
}

/// Who changed what, newest first.
#[utoipa::path(get, path = "/api/v1/audit", tag = "audit", params(AuditQuery), responses((status = 200, body = AuditPage)))]
pub(crate) async fn audit<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Query(query): Query<AuditQuery>,
) -> Answered<AuditPage> {
    let limit = Limit::of(query.limit);
    let found = asked(app.inbox.store().audit(query.before.map(|place| place.0), limit)).await?;
    let next = found.last().filter(|_| found.len() == limit).map(|last| last.number);
    Ok(Answer::ok(AuditPage { audit: found.iter().map(view::audited).collect(), next }))
}

/// Writes a change down before it is made; what cannot be written down is not done.
pub(crate) async fn write_down<St: ServiceStore>(
    app: &App<St>,
    actor: &Actor,
    action: &str,
    target: &str,
    details: serde_json::Value,
) -> Result<(), Problem> {
    // A request may have begun before its token was revoked.
    if !app.access.still_allows(actor) {
        return Err(Problem::Unauthorized);
    }
    let change = Audit {
        actor: actor.name.clone(),
        action: action.to_owned(),
        target: target.to_owned(),
        details: details.to_string(),
    };
    asked(app.inbox.store().add_audit(&change)).await?;
    tracing::info!(actor = change.actor, action, target = %target.escape_debug(), "changed through the API");
    Ok(())
}
