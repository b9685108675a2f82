//! A running service, through its API.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use oncebox::Message;
use oncebox::admin::{DeliveryFilter, MessageSearch, OutgoingFilter};
use oncebox_server::view::{self, Audited, Delivery, Outgoing, Received, Replay, Status, Whole};
use reqwest::{Client, Method, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::super::screen::safe;
use super::{Desk, Done, Found, Listed, PAGE, Part};

/// How long the service may take: it gives up on its store after ten seconds itself, except for a large change.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often to ask how far a replay is.
const FOLLOW: Duration = Duration::from_millis(200);

/// The address of a service, and a token for it.
pub(in crate::operate) struct Server {
    client: Client,
    url: Url,
    token: Option<String>,
}

/// A service's answer that is neither a refusal nor a mistake of ours.
struct Reply {
    status: StatusCode,
    body: Vec<u8>,
}

impl Server {
    /// Fails for an address that is none; connects to nothing yet.
    pub(in crate::operate) fn new(url: &str, token: Option<String>) -> Done<Self> {
        let wrong = || "`--server` is no address; write it as in http://127.0.0.1:8420".to_owned();
        let url = Url::parse(url).map_err(|_| wrong())?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(wrong());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(
                "`--server` has a name or password in it; give a token with ONCEBOX_TOKEN instead".to_owned()
            );
        }
        // Characters that cannot stand in a header; what is printed here shows no token.
        if token.as_ref().is_some_and(|token| !token.chars().all(|one| one.is_ascii_graphic())) {
            return Err(
                "the token has a character that no token has, such as a line break; check ONCEBOX_TOKEN"
                    .to_owned(),
            );
        }
        if token.is_some() && url.scheme() == "http" && !is_this_machine(&url) {
            eprintln!("the token goes to {} unencrypted; use https, or a tunnel", shown(&url));
        }
        oncebox_server::use_ring();
        let client = Client::builder()
            .timeout(PATIENCE)
            .connect_timeout(Duration::from_secs(5))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("oncebox/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("requests cannot be made: {error}"))?;
        Ok(Self { client, url, token })
    }

    /// What the service finds wrong with itself and its store, worst first.
    pub(in crate::operate) async fn findings(&self) -> Done<Vec<view::Finding>> {
        #[derive(Deserialize)]
        struct Report {
            findings: Vec<view::Finding>,
        }
        Ok(self.get::<Report>(&["findings"], &[]).await?.findings)
    }

    fn address(&self, parts: &[&str], query: &[(String, String)]) -> Url {
        let mut url = self.url.clone();
        url.set_query(None);
        url.set_fragment(None);
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(parts);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    fn api(&self, parts: &[&str], query: &[(String, String)]) -> Url {
        self.address(&[&["api", "v1"], parts].concat(), query)
    }

    async fn ask(&self, method: Method, url: Url, sort: &str, body: Option<Vec<u8>>) -> Done<Reply> {
        let role = match (&method, sort) {
            (&Method::GET, _) => "read",
            (_, "application/x-ndjson") => "ingest",
            _ => "operate",
        };
        let mut request = self.client.request(method, url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.header("content-type", sort).body(body);
        }
        let unreachable = |error: reqwest::Error| {
            let reason = reasons(&error.without_url());
            format!(
                "the service at {} cannot be reached: {reason}; is it running, and is `--server` right?",
                shown(&self.url)
            )
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let body = response.bytes().await.map_err(unreachable)?.to_vec();
        let reply = Reply { status, body };
        if status.is_success() || status == StatusCode::NOT_FOUND {
            return Ok(reply);
        }
        Err(self.refusal(&reply, role))
    }

    fn refusal(&self, reply: &Reply, role: &str) -> String {
        let Some(error) = reply.error() else { return self.stranger(reply.status) };
        // A source that verifies signatures says 401 as well, and no token helps there.
        let signed = if role == "ingest" { "; to a source with `verify`, send with --store" } else { "" };
        match reply.status {
            StatusCode::UNAUTHORIZED if self.token.is_none() => format!(
                "the service wants a token ({error}); put one into ONCEBOX_TOKEN: `oncebox token create NAME --role {role}` \
                 makes it{signed}"
            ),
            StatusCode::UNAUTHORIZED => format!(
                "the service does not accept this token ({error}): it is wrong, was revoked or has expired; make another with \
                 `oncebox token create NAME --role {role}`{signed}"
            ),
            StatusCode::FORBIDDEN => {
                format!(
                    "{error}; use a token with the role {role} or admin (`oncebox token list` shows roles)"
                )
            }
            StatusCode::TOO_MANY_REQUESTS => format!("the service answers: {error}; try again in a minute"),
            StatusCode::SERVICE_UNAVAILABLE => {
                format!("the service answers: {error}; try again, and see its log")
            }
            _ => error,
        }
    }

    fn stranger(&self, status: StatusCode) -> String {
        format!(
            "what answers at {} ({status}) is no Oncebox service of this version; check `--server`",
            shown(&self.url)
        )
    }

    async fn get<T: DeserializeOwned>(&self, parts: &[&str], query: &[(String, String)]) -> Done<T> {
        self.look(parts, query).await?.ok_or_else(|| self.stranger(StatusCode::NOT_FOUND))
    }

    /// `None` when there is no such thing.
    async fn look<T: DeserializeOwned>(&self, parts: &[&str], query: &[(String, String)]) -> Done<Option<T>> {
        self.read(self.ask(Method::GET, self.api(parts, query), "", None).await?)
    }

    async fn post<T: DeserializeOwned>(&self, parts: &[&str], body: Option<&Value>) -> Done<Option<T>> {
        let body = body.map(|body| body.to_string().into_bytes());
        self.read(self.ask(Method::POST, self.api(parts, &[]), "application/json", body).await?)
    }

    fn read<T: DeserializeOwned>(&self, reply: Reply) -> Done<Option<T>> {
        if reply.status == StatusCode::NOT_FOUND && reply.error().is_some() {
            return Ok(None);
        }
        serde_json::from_slice(&reply.body).map(Some).map_err(|_| self.stranger(reply.status))
    }
}

impl Reply {
    /// What the service says is wrong.
    fn error(&self) -> Option<String> {
        let body: Value = serde_json::from_slice(&self.body).ok()?;
        body["error"].as_str().map(safe)
    }
}

impl Desk for Server {
    async fn status(&self) -> Done<Status> {
        self.get(&["status"], &[]).await
    }

    async fn deliveries(&self, filter: &DeliveryFilter) -> Done<Listed> {
        #[derive(Deserialize)]
        struct Page {
            deliveries: Vec<Delivery>,
            next: Option<i64>,
        }
        let mut query = pairs(letters(filter).unwrap_or_default());
        query.extend(filter.state.map(|state| ("state".to_owned(), state.as_str().to_owned())));
        query.extend(filter.after.map(|after| ("after".to_owned(), after.0.to_string())));
        query.extend(filter.limit.map(|limit| ("limit".to_owned(), limit.to_string())));
        let page: Page = self.get(&["deliveries"], &query).await?;
        Ok(Listed { deliveries: page.deliveries, more: page.next.is_some() })
    }

    async fn outgoing(&self, filter: &OutgoingFilter) -> Done<Vec<Outgoing>> {
        #[derive(Deserialize)]
        struct Page {
            messages: Vec<Outgoing>,
        }
        let query = [
            ("sink", filter.sink.clone()),
            ("state", filter.state.map(|state| state.as_str().to_owned())),
            ("after", filter.after.map(|after| after.to_string())),
            ("limit", filter.limit.map(|limit| limit.to_string())),
        ];
        let query: Vec<(String, String)> =
            query.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        Ok(self.get::<Page>(&["outbox"], &query).await?.messages)
    }

    async fn messages(&self, search: &MessageSearch, cursor: Option<&str>) -> Done<Found> {
        #[derive(Deserialize)]
        struct Page {
            messages: Vec<Received>,
            next: Option<String>,
        }
        let header = search.header.as_ref().map(|header| match &header.value {
            Some(value) => format!("{}:{value}", header.name),
            None => header.name.clone(),
        });
        let payload = search.payload.as_ref().map(|payload| format!("{}={}", payload.pointer, payload.value));
        let query = [
            ("scope", search.scope.clone()),
            ("id", search.id.clone()),
            ("kind", search.kind.clone()),
            ("key", search.key.clone()),
            ("since", search.since.map(|at| at.to_string())),
            ("until", search.until.map(|at| at.to_string())),
            ("header", header),
            ("payload", payload),
            ("limit", search.limit.map(|limit| limit.to_string())),
            ("cursor", cursor.map(str::to_owned)),
        ];
        let query: Vec<(String, String)> =
            query.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        let page: Page = self.get(&["messages"], &query).await?;
        Ok(Found { messages: page.messages, next: page.next })
    }

    async fn message(&self, scope: &str, id: &str) -> Done<Option<Whole>> {
        self.look(&["messages", scope, id], &[]).await
    }

    async fn count_dead(&self, filter: &DeliveryFilter) -> Done<u64> {
        #[derive(Deserialize)]
        struct Preview {
            matched: u64,
        }
        let mut body = chosen(filter);
        body.insert("dry_run".to_owned(), true.into());
        let preview: Option<Preview> = self.post(&["replays"], Some(&body.into())).await?;
        Ok(preview.ok_or_else(|| self.stranger(StatusCode::NOT_FOUND))?.matched)
    }

    async fn start_replay(&self, filter: &DeliveryFilter, rate: Option<u32>) -> Done<Replay> {
        let mut body = chosen(filter);
        body.insert("rate".to_owned(), json!(rate));
        let started = self.post(&["replays"], Some(&body.into())).await?;
        started.ok_or_else(|| self.stranger(StatusCode::NOT_FOUND))
    }

    async fn step_replay(&self, replay: i64) -> Done<Replay> {
        let found = self.look(&["replays", &replay.to_string()], &[]).await?;
        found.ok_or_else(|| format!("there is no replay {replay} any more"))
    }

    fn pace(&self, _: Option<u32>) -> Duration {
        FOLLOW
    }

    async fn cancel_replay(&self, replay: i64) -> Done<Replay> {
        let cancelled = self.post(&["replays", &replay.to_string(), "cancel"], None).await?;
        cancelled.ok_or_else(|| format!("there is no replay {replay} any more"))
    }

    async fn discard(&self, filter: &DeliveryFilter, reason: &str) -> Done<u64> {
        #[derive(Deserialize)]
        struct Discarded {
            discarded: u64,
        }
        let mut body = chosen(filter);
        body.insert("reason".to_owned(), reason.into());
        let done: Option<Discarded> = self.post(&["discards"], Some(&body.into())).await?;
        Ok(done.ok_or_else(|| self.stranger(StatusCode::NOT_FOUND))?.discarded)
    }

    async fn set_paused(&self, part: Part<'_>, paused: bool) -> Done<bool> {
        let (sort, name) = match part {
            Part::Handler(name) => ("handlers", name),
            Part::Source(name) => ("sources", name),
        };
        let action = if paused { "pause" } else { "resume" };
        let done: Option<Value> = self.post(&[sort, name, action], None).await?;
        Ok(done.is_some())
    }

    async fn send(&self, message: Message) -> Done<String> {
        // As a batch of one, which says id, kind and key itself: a single post has them where its source looks for them.
        let mut line = json!({
            "id": message.id,
            "kind": message.kind,
            "payload_base64": STANDARD.encode(&message.payload),
        });
        if let Some(key) = &message.key {
            line["key"] = key.as_str().into();
        }
        let url = self.address(&["in", &message.scope], &[]);
        let body = format!("{line}\n").into_bytes();
        let reply = self.ask(Method::POST, url, "application/x-ndjson", Some(body)).await?;
        if reply.status == StatusCode::NOT_FOUND {
            let error = reply.error().ok_or_else(|| self.stranger(reply.status))?;
            return Err(format!("{error}; `--source` names one of the service's http sources"));
        }
        let answer: Value = serde_json::from_slice(&reply.body).map_err(|_| self.stranger(reply.status))?;
        match (answer["status"].as_str(), answer["error"].as_str()) {
            (Some(word @ ("new" | "duplicate" | "conflict")), _) => Ok(word.to_owned()),
            (_, Some(error)) => Err(format!("the service did not take it: {}", safe(error))),
            _ => Err(self.stranger(reply.status)),
        }
    }

    async fn audit(&self, before: Option<i64>, limit: usize) -> Done<Vec<Audited>> {
        #[derive(Deserialize)]
        struct Page {
            audit: Vec<Audited>,
        }
        let mut query = vec![("limit".to_owned(), limit.min(PAGE).to_string())];
        query.extend(before.map(|number| ("before".to_owned(), number.to_string())));
        Ok(self.get::<Page>(&["audit"], &query).await?.audit)
    }
}

/// A filter in the words of the API; `None` when it names nothing.
fn letters(filter: &DeliveryFilter) -> Option<Map<String, Value>> {
    let words: Map<String, Value> = serde_json::from_str(&view::letters(filter)).ok()?;
    (!words.contains_key("all")).then_some(words)
}

/// Which dead letters, in a body.
fn chosen(filter: &DeliveryFilter) -> Map<String, Value> {
    let mut body = Map::new();
    match letters(filter) {
        Some(words) => body.insert("filter".to_owned(), words.into()),
        None => body.insert("all".to_owned(), true.into()),
    };
    body
}

fn pairs(words: Map<String, Value>) -> Vec<(String, String)> {
    words.into_iter().filter_map(|(name, value)| Some((name, value.as_str()?.to_owned()))).collect()
}

fn is_this_machine(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

fn shown(url: &Url) -> String {
    safe(&url.origin().ascii_serialization())
}

/// An error and what caused it.
fn reasons(error: &dyn std::error::Error) -> String {
    let mut text = safe(&error.to_string());
    let mut cause = error.source();
    while let Some(inner) = cause {
        let reason = safe(&inner.to_string());
        if !text.contains(&reason) {
            text = format!("{text}: {reason}");
        }
        cause = inner.source();
    }
    text
}
