//! One request per message: to the target of an `http` handler or sink.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use oncebox::clock::Seed;
use oncebox::{Error, Message, TraceContext};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode};
use url::Url;

use super::address::{Resolver, check_url};
use crate::config::Secret;
use crate::ingest::signature;

/// The longest that another side's Retry-After is believed.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Posts messages to one address.
#[derive(Debug)]
pub(crate) struct Poster {
    client: Client,
    url: Url,
    secrets: Vec<Secret>,
    headers: HeaderMap,
    max_response: usize,
    seed: Seed,
}

/// What a poster is made of.
pub(crate) struct PosterConfig<'a> {
    pub(crate) url: &'a Url,
    pub(crate) secrets: &'a [Secret],
    pub(crate) headers: &'a [(String, Secret)],
    pub(crate) max_response: usize,
    pub(crate) timeout: Duration,
}

/// Why a message was not taken.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) text: String,
    pub(crate) next: Next,
    /// Whether it says something about the other side as a whole, and not about this message.
    pub(crate) is_outage: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Backoff,
    After(Duration),
    Never,
}

impl Poster {
    /// Fails when the TLS setup of this machine cannot be used.
    pub(crate) fn new(config: PosterConfig<'_>) -> Result<Self, Error> {
        let client = Client::builder()
            .timeout(config.timeout)
            .connect_timeout(config.timeout.min(Duration::from_secs(10)))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .dns_resolver(Resolver)
            .user_agent(concat!("oncebox/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Error::invalid(format!("requests cannot be made: {}", told(&error))))?;
        let mut headers = HeaderMap::new();
        for (name, value) in config.headers {
            let (Ok(name), Ok(mut value)) =
                (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value.expose()))
            else {
                return Err(Error::invalid(format!("header `{name}` cannot be sent")));
            };
            value.set_sensitive(true);
            headers.append(name, value);
        }
        Ok(Self {
            client,
            url: config.url.clone(),
            secrets: config.secrets.to_vec(),
            headers,
            max_response: config.max_response,
            seed: Seed::from_system(),
        })
    }

    /// Posts one message and waits for the answer.
    pub(crate) async fn post(&self, message: &Message) -> Result<(), Refused> {
        // Once more, should the address have come from somewhere else than the configuration.
        check_url(&self.url).map_err(|wrong| Refused { text: wrong, next: Next::Never, is_outage: false })?;
        let headers = self.request_headers(message).map_err(|text| Refused {
            text,
            next: Next::Never,
            is_outage: false,
        })?;
        let request = self.client.post(self.url.clone()).headers(headers).body(message.payload.clone());
        let response = request.send().await.map_err(|error| Refused {
            text: told(&error.without_url()),
            next: Next::Backoff,
            is_outage: true,
        })?;
        let status = response.status();
        let wait = retry_after(response.headers());
        let answer = self.beginning(response).await;
        if status.is_success() {
            return Ok(());
        }
        let text = if answer.is_empty() {
            format!("answered {status}")
        } else {
            format!("answered {status}: {answer}")
        };
        Err(Refused {
            text,
            next: next(status, wait),
            is_outage: status.is_server_error() || status.as_u16() == 429,
        })
    }

    fn request_headers(&self, message: &Message) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        let content_type =
            message.headers.get("content-type").and_then(|value| HeaderValue::from_bytes(value).ok());
        headers.insert(
            "content-type",
            content_type.unwrap_or(HeaderValue::from_static("application/octet-stream")),
        );
        let id = value("id", &message.id)?;
        headers.insert("webhook-id", id.clone());
        headers.insert("idempotency-key", id);
        headers.insert("message-kind", value("kind", &message.kind)?);
        headers.insert("message-scope", value("scope", &message.scope)?);
        if let Some(key) = &message.key {
            headers.insert("message-key", value("key", key)?);
        }
        headers.insert("traceparent", value("trace", &self.traceparent(message))?);
        if let Some(state) =
            message.headers.text("tracestate").and_then(|text| HeaderValue::from_str(text).ok())
        {
            headers.insert("tracestate", state);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        headers.insert("webhook-timestamp", HeaderValue::from(now));
        if !self.secrets.is_empty() {
            let signatures = self
                .secrets
                .iter()
                .filter_map(|secret| signature::standard_webhook(secret, &message.id, now, &message.payload));
            let signatures = signatures.collect::<Vec<_>>().join(" ");
            headers.insert("webhook-signature", value("signature", &signatures)?);
        }
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
        Ok(headers)
    }

    /// The call of this handler, or what the relay or the sender wrote; else a new trace.
    fn traceparent(&self, message: &Message) -> String {
        match TraceContext::current().or_else(|| TraceContext::extract(&message.headers)) {
            Some(trace) => trace.traceparent(),
            None => {
                let (high, low, span) = (self.seed.next(), self.seed.next().max(1), self.seed.next().max(1));
                format!("00-{high:016x}{low:016x}-{span:016x}-01")
            }
        }
    }

    /// The beginning of an answer, never more than is kept of it.
    async fn beginning(&self, mut response: Response) -> String {
        let mut kept = Vec::new();
        while kept.len() < self.max_response {
            match response.chunk().await {
                Ok(Some(chunk)) => {
                    kept.extend_from_slice(&chunk[..chunk.len().min(self.max_response - kept.len())])
                }
                Ok(None) | Err(_) => break,
            }
        }
        String::from_utf8_lossy(&kept).trim().to_owned()
    }
}

fn value(what: &str, text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(text).or_else(|_| HeaderValue::from_bytes(text.as_bytes())).map_err(|_| {
        format!("the {what} `{}` of the message cannot be sent in a header", text.escape_debug())
    })
}

fn next(status: StatusCode, wait: Option<Duration>) -> Next {
    let again = status.is_server_error()
        || status.is_redirection()
        || matches!(status.as_u16(), 408 | 409 | 425 | 429);
    match wait {
        _ if !again => Next::Never,
        Some(wait) => Next::After(wait),
        None => Next::Backoff,
    }
}

/// Seconds, or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
            Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default()
        }
    };
    Some(wait.min(LONGEST_WAIT))
}

/// An error with its causes, which say what really happened.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_decide_what_comes_next() {
        for (status, expected) in [
            (408, Next::Backoff),
            (409, Next::Backoff),
            (425, Next::Backoff),
            (429, Next::Backoff),
            (500, Next::Backoff),
            (503, Next::Backoff),
            (302, Next::Backoff),
            (400, Next::Never),
            (401, Next::Never),
            (404, Next::Never),
            (410, Next::Never),
            (422, Next::Never),
        ] {
            assert_eq!(next(StatusCode::from_u16(status).unwrap(), None), expected, "{status}");
        }
        let wait = Some(Duration::from_secs(7));
        assert_eq!(next(StatusCode::SERVICE_UNAVAILABLE, wait), Next::After(Duration::from_secs(7)));
        assert_eq!(next(StatusCode::BAD_REQUEST, wait), Next::Never);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_never_for_ever() {
        let headers =
            |text: &str| HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_str(text).unwrap())]);
        assert_eq!(retry_after(&headers("120")), Some(Duration::from_secs(120)));
        assert_eq!(retry_after(&headers("99999999999")), Some(LONGEST_WAIT));
        assert_eq!(retry_after(&headers("Wed, 21 Oct 2015 07:28:00 GMT")), Some(Duration::ZERO));
        assert_eq!(retry_after(&headers("Wed, 21 Oct 2099 07:28:00 GMT")), Some(LONGEST_WAIT));
        assert_eq!(retry_after(&headers("soon")), None);
    }
}
