//! Handlers from a configuration: `sql`, `http` and `sink`.

pub(crate) mod address;
pub(crate) mod hold;
pub(crate) mod request;
pub mod statement;

use std::sync::Arc;
use std::time::Duration;

use oncebox::{Attempt, Error, Failure, Inbox, Message, NamedHandler, Relay, SendFailure, Sink, Tx, handler};

use crate::brokers::relay_of;
use crate::config::{Action, Config, HandlerConfig, HttpAction, HttpSinkConfig, SinkConfig};
use crate::metrics::Metrics;
use crate::stores::{ServiceStore, Sql};
use hold::{Breaker, Bucket, Hold};
use request::{Next, Poster, PosterConfig, Refused};

/// Beyond the request's own time limit, so that the request is what ends, with a reason, and not the call around it.
const GRACE: Duration = Duration::from_secs(2);

/// Adds every configured handler to an inbox.
pub(crate) fn register<St: ServiceStore>(
    mut inbox: Inbox<St>,
    config: &Config,
    metrics: &Metrics,
) -> Result<Inbox<St>, Error> {
    for own in &config.handlers {
        let times = metrics.handler_time(&own.name);
        let hold = Arc::new(Hold {
            rate: own.rate.map(Bucket::new),
            breaker: match &own.action {
                Action::Http(action) => Breaker::new(action.breaker),
                _ => None,
            },
        });
        inbox = match &own.action {
            Action::Sql(statements) => {
                let sql: Arc<Vec<Sql>> =
                    Arc::new(statements.iter().map(|statement| St::sql(statement, &config.store)).collect());
                let run = move |mut tx: Tx<St::Connection>, message: Message, Attempt(attempt): Attempt| {
                    let (sql, timing) = (sql.clone(), times.start());
                    async move {
                        let _timing = timing;
                        run_sql::<St>(&mut tx, &sql, &message, attempt).await
                    }
                };
                inbox.on(own.on.clone(), with_settings(handler(&own.name, run), own, hold))
            }
            Action::Http(action) => {
                let poster = Arc::new(poster(action, own.timeout)?);
                let held = hold.clone();
                let post = move |message: Message| {
                    let (poster, held, timing) = (poster.clone(), held.clone(), times.start());
                    async move {
                        let _timing = timing;
                        post(&poster, &held, &message).await
                    }
                };
                let named = with_settings(handler(&own.name, post), own, hold);
                inbox.on(own.on.clone(), named.timeout(own.timeout.saturating_add(GRACE)))
            }
            Action::Sink(sink) => {
                let sink = sink.clone();
                let forward = move |mut tx: Tx<St::Connection>, message: Message| {
                    let (sink, timing) = (sink.clone(), times.start());
                    async move {
                        let _timing = timing;
                        tx.publish(message.to(sink)).await.map(|_| ()).map_err(Failure::from)
                    }
                };
                inbox.on(own.on.clone(), with_settings(handler(&own.name, forward), own, hold))
            }
        };
    }
    Ok(inbox)
}

/// The relay of a configured sink.
pub(crate) fn relay(config: &SinkConfig, http: &HttpSinkConfig) -> Result<Relay<HttpSink>, Error> {
    let poster = Poster::new(PosterConfig {
        url: &http.url,
        secrets: &http.secrets,
        headers: &http.headers,
        max_response: http.max_response,
        timeout: config.timeout,
    })?;
    let relay = relay_of(config, HttpSink(Arc::new(poster)));
    Ok(relay.timeout((config.timeout + GRACE).min(Duration::from_secs(25))))
}

/// A sink that posts each message.
#[derive(Debug, Clone)]
pub(crate) struct HttpSink(Arc<Poster>);

/// How many requests of one lot are under way at one time.
const AT_ONCE: usize = 16;

impl Sink for HttpSink {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        use futures_util::StreamExt;
        // In a list of its own, because a stream over borrowed messages is not general enough for the compiler.
        let posts: Vec<_> = messages.iter().map(|message| self.0.post(message)).collect();
        let answers: Vec<Result<(), Refused>> =
            futures_util::stream::iter(posts).buffered(AT_ONCE).collect().await;
        let failure = |refused: Refused| match refused.next {
            Next::Never => SendFailure::Permanent(refused.text),
            Next::Backoff | Next::After(_) => SendFailure::Retry(refused.text),
        };
        Ok(answers.into_iter().map(|answer| answer.map_err(failure)).collect())
    }
}

fn with_settings<F, Args>(
    named: NamedHandler<F, Args>,
    own: &HandlerConfig,
    hold: Arc<Hold>,
) -> NamedHandler<F, Args> {
    let mut named =
        named.max_attempts(own.max_attempts).backoff(own.backoff).timeout(own.timeout).batch(own.batch);
    if own.ordered {
        named = named.ordered();
    }
    if own.from_start {
        named = named.from_start();
    }
    if let Some(calls) = own.concurrency {
        named = named.concurrency(calls);
    }
    for former in &own.formerly {
        named = named.formerly(former);
    }
    // A gate costs a little speed, so only those that need one have one.
    if hold.rate.is_some() || hold.breaker.is_some() { named.gate(hold) } else { named }
}

async fn run_sql<St: ServiceStore>(
    tx: &mut St::Driver,
    sql: &[Sql],
    message: &Message,
    attempt: u32,
) -> Result<(), Failure> {
    for statement in sql {
        let values = statement.values(message, attempt)?;
        St::execute(tx, statement, values).await?;
    }
    Ok(())
}

fn poster(action: &HttpAction, timeout: Duration) -> Result<Poster, Error> {
    Poster::new(PosterConfig {
        url: &action.url,
        secrets: &action.secrets,
        headers: &action.headers,
        max_response: action.max_response,
        timeout,
    })
}

async fn post(poster: &Poster, hold: &Hold, message: &Message) -> Result<(), Failure> {
    let answer = poster.post(message).await;
    if let Some(breaker) = &hold.breaker {
        match &answer {
            Err(refused) if refused.is_outage => {
                let was_open = breaker.is_open();
                breaker.failed();
                if !was_open && breaker.is_open() {
                    tracing::warn!(error = %refused.text.escape_debug(), "too many requests failed in a row; waiting before the next");
                }
            }
            // An answer about this message is an answer: the other side is there.
            _ => breaker.succeeded(),
        }
    }
    answer.map_err(|Refused { text, next, .. }| match next {
        Next::Backoff => Failure::from(text),
        Next::After(wait) => Failure::retry_in(wait, text),
        Next::Never => Failure::permanent(text),
    })
}
