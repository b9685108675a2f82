//! What the API answers: a value as JSON, or what is wrong and what to do about it.

use std::future::Future;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use oncebox::{Error, ErrorKind};
use serde::Serialize;
use utoipa::ToSchema;

/// How long the store may take: an answer that is late is of no use to a person.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is wrong.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// In words, with the remedy where it is known.
    pub(crate) error: String,
}

/// A value and its status.
#[derive(Debug)]
pub(crate) struct Answer<T>(pub(crate) StatusCode, pub(crate) T);

impl<T> Answer<T> {
    pub(crate) fn ok(value: T) -> Self {
        Self(StatusCode::OK, value)
    }

    pub(crate) fn created(value: T) -> Self {
        Self(StatusCode::CREATED, value)
    }
}

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        match serde_json::to_string(&self.1) {
            Ok(text) => {
                let sort = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
                (self.0, sort, text + "\n").into_response()
            }
            Err(error) => {
                tracing::error!(%error, "an answer cannot be written as JSON");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

/// Why there is no value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// 400: the question cannot be understood.
    Bad(String),
    /// 401: nobody is told whether a token is missing, unknown, revoked or has expired.
    Unauthorized,
    /// 403: the token is good for other things.
    NotAllowed,
    /// 403: a page in a browser asks a service that trusts this machine.
    FromPage,
    /// 404
    NotFound(String),
    /// 405
    NoSuchMethod,
    /// 408: the body took too long.
    Slow,
    /// 409
    Conflict(String),
    /// 413
    TooLarge(usize),
    /// 415: a form of a web page, say.
    NotJson,
    /// 429: too many wrong tokens from this address.
    Guessing(Duration),
    /// 503: the store does not answer, or there is no room.
    Unavailable(&'static str),
}

impl Problem {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Bad(_) => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::NotAllowed | Self::FromPage => StatusCode::FORBIDDEN,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::NoSuchMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Guessing(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Bad(text) | Self::NotFound(text) | Self::Conflict(text) => text,
            Self::Unauthorized => "a valid bearer token is needed".to_owned(),
            Self::NotAllowed => "this token may not do that".to_owned(),
            Self::FromPage => {
                "requests of web pages need a token, and so do requests to another name than `localhost`"
                    .to_owned()
            }
            Self::NoSuchMethod => "this place does not take that method; see `allow`".to_owned(),
            Self::Slow => "the body took too long to come".to_owned(),
            Self::TooLarge(most) => format!("the body is larger than {most} bytes"),
            Self::NotJson => "send JSON, with `content-type: application/json`".to_owned(),
            Self::Guessing(_) => GUESSING.to_owned(),
            Self::Unavailable(text) => text.to_owned(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let wait = if let Self::Guessing(wait) = &self { Some(*wait) } else { None };
        let mut response = Answer(status, ErrorBody { error: self.text() }).into_response();
        let headers = response.headers_mut();
        headers.extend(wait.map(|wait| (header::RETRY_AFTER, retry_after(wait))));
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            // The rest of the body is not read, so the connection is of no more use.
            StatusCode::REQUEST_TIMEOUT | StatusCode::PAYLOAD_TOO_LARGE => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

/// What an address is told that has tried too many tokens.
pub(crate) const GUESSING: &str =
    "too many wrong tokens came from this address; wait, and then send the right one";

/// Whole seconds, rounded up: nobody should come back too early.
pub(crate) fn retry_after(wait: Duration) -> HeaderValue {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    HeaderValue::from(seconds.max(1))
}

/// What the store says to an API call.
pub(crate) type Answered<T> = Result<Answer<T>, Problem>;

/// Waits for the store, but not for long.
pub(crate) async fn asked<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Problem> {
    asked_within(PATIENCE, work).await
}

/// The same for what takes longer.
pub(crate) async fn asked_within<T>(
    patience: Duration,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Problem> {
    match tokio::time::timeout(patience, work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) if error.kind() == ErrorKind::Invalid => Err(Problem::Bad(error.to_string())),
        Ok(Err(error)) => {
            tracing::warn!(error = %error.to_string().escape_debug(), "the store could not do what the API asked");
            Err(Problem::Unavailable("the store cannot be used now"))
        }
        Err(_) => Err(Problem::Unavailable("the store takes too long")),
    }
}
