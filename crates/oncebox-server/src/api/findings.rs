//! `/api/v1/findings`: what is wrong, each with its remedy.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::{Answer, Answered, Problem, asked_within};
use super::ask::to_the_end;
use crate::findings::{Configured, examine};
use crate::service::App;
use crate::stores::ServiceStore;
use crate::view;

/// How long the store may take to be examined.
const PATIENCE: Duration = Duration::from_secs(45);

/// What was found, worst first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Findings {
    /// True when nothing is worse than a note.
    good: bool,
    findings: Vec<view::Finding>,
}

/// What is wrong with the store and this service, worst first: what `oncebox doctor` finds.
///
/// It is work for the database, so who asks within five seconds of another gets the same answer.
#[utoipa::path(get, path = "/api/v1/findings", tag = "status", responses((status = 200, body = Findings)))]
pub(crate) async fn findings<St: ServiceStore>(State(app): State<Arc<App<St>>>) -> Answered<Findings> {
    // To the end: some stores make a schema to compare with, and remove it again.
    let found = to_the_end(async move { Ok(app.findings.get(look(&app)).await) }).await?;
    let found = found.ok_or(Problem::Unavailable("the store cannot be examined now; see the log"))?;
    let good = found.iter().all(|finding| finding.severity == "note");
    Ok(Answer::ok(Findings { good, findings: found.to_vec() }))
}

async fn look<St: ServiceStore>(app: &App<St>) -> Option<Arc<Vec<view::Finding>>> {
    let sources = app.sources.keys().chain(app.brokers.iter().map(|(name, _)| name));
    let configured = Configured {
        handlers: app.handlers.clone(),
        sources: sources.cloned().collect(),
        has_token: app.http.token.is_some(),
    };
    let found = asked_within(PATIENCE, examine(app.inbox.store(), Some(&configured))).await.ok()?;
    Some(Arc::new(found.iter().map(view::finding).collect()))
}
