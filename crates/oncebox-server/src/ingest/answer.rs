//! What a sender is told.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use oncebox::Received;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::word;
use crate::api::answer::{Answer, GUESSING, retry_after as seconds};

/// Why nothing was stored.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// 400: the request cannot be understood.
    Bad(String),
    /// 401: the same for everybody, whether or not there is such a source, and whatever is missing.
    Unauthorized,
    /// 429: too many wrong tokens from this address.
    Guessing(Duration),
    /// 403: a web page posts to a service that trusts this machine.
    Forbidden,
    /// 403: the token is for something else.
    NotAllowed,
    /// 404
    NotFound(String),
    /// 408: the body took too long.
    Slow,
    /// 413
    TooLarge(usize),
    /// 413: more lines in one batch than there is memory for, ever.
    TooManyLines(usize),
    /// 429: the source's rate limit.
    TooMany(Duration),
    /// 503: somebody has paused the source.
    Paused,
    /// 503: there is no room, or the store does not answer.
    Unavailable,
}

impl Refusal {
    pub(crate) fn into_response(self, retry_after: Duration) -> Response {
        let (status, text, wait) = match self {
            Self::Bad(text) => (StatusCode::BAD_REQUEST, text, None),
            Self::Unauthorized => {
                (StatusCode::UNAUTHORIZED, "the token or the signature is missing or wrong".to_owned(), None)
            }
            Self::Guessing(wait) => (StatusCode::TOO_MANY_REQUESTS, GUESSING.to_owned(), Some(wait)),
            Self::Forbidden => (
                StatusCode::FORBIDDEN,
                "requests of web pages, and to another name than `localhost`, need a token or a signature"
                    .to_owned(),
                None,
            ),
            Self::NotAllowed => (StatusCode::FORBIDDEN, "this token may not do that".to_owned(), None),
            Self::NotFound(text) => (StatusCode::NOT_FOUND, text, None),
            Self::Slow => (StatusCode::REQUEST_TIMEOUT, "the body took too long to come".to_owned(), None),
            Self::TooLarge(most) => {
                (StatusCode::PAYLOAD_TOO_LARGE, format!("it is larger than {most} bytes"), None)
            }
            Self::TooManyLines(most) => (
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the batch has more than {most} lines; split it"),
                None,
            ),
            Self::TooMany(wait) => {
                (StatusCode::TOO_MANY_REQUESTS, "the source's rate limit is reached".to_owned(), Some(wait))
            }
            Self::Paused => {
                (StatusCode::SERVICE_UNAVAILABLE, "the source is paused".to_owned(), Some(retry_after))
            }
            Self::Unavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "it cannot be stored now".to_owned(), Some(retry_after))
            }
        };
        let mut response = json_response(status, &json!({ "error": text }));
        if let Some(wait) = wait {
            response.headers_mut().insert(header::RETRY_AFTER, seconds(wait));
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::PAYLOAD_TOO_LARGE) {
            // The rest of the body is not read, so the connection is of no more use.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// What became of a message.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Taken {
    id: String,
    /// `new`, `duplicate` or `conflict`.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<&'static str>,
}

/// The answer for one message.
pub(crate) fn stored(id: &str, received: Received) -> Response {
    let (word, status) = word(received);
    Answer(status, line(id, word)).into_response()
}

/// The same as one line of a batch's answer.
pub(crate) fn line(id: &str, word: &'static str) -> Taken {
    let error = (word == "conflict").then_some("this id was received before with other bytes");
    Taken { id: id.to_owned(), status: word, error }
}

pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(format!("{value}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
