//! Refusals as `application/problem+json` (RFC 9457), each with what to do about it.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use oncebox_core::{Error, ErrorKind};

/// What is wrong, for people and for programs.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    /// The end of its `type`.
    name: &'static str,
    title: &'static str,
    detail: String,
    is_worth_another_try: bool,
}

impl Problem {
    fn new(status: StatusCode, name: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Self { status, name, title, detail: detail.into(), is_worth_another_try: false }
    }

    /// True when it is the service's fault, not the client's.
    pub(crate) fn is_ours(&self) -> bool {
        self.status.is_server_error()
    }

    fn try_again(mut self) -> Self {
        self.is_worth_another_try = true;
        self
    }

    pub(crate) fn key_missing() -> Self {
        let detail = "this request needs the header `Idempotency-Key`: a string of your own choice in double quotes, best \
                      a random UUID, and the same one when you send the request again";
        Self::new(StatusCode::BAD_REQUEST, "key-missing", "Idempotency-Key is missing", detail)
    }

    pub(crate) fn key_invalid(what: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "key-invalid", "Idempotency-Key cannot be read", what)
    }

    pub(crate) fn in_flight() -> Self {
        let detail = "a request with this `Idempotency-Key` is being handled; send yours again in a moment to get its \
                      response";
        Self::new(
            StatusCode::CONFLICT,
            "in-flight",
            "A request is outstanding for this Idempotency-Key",
            detail,
        )
        .try_again()
    }

    pub(crate) fn other_content() -> Self {
        let detail = "this `Idempotency-Key` was used for a request with another path, query, content type or body; use \
                      a new key for a new request";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "key-reused", "Idempotency-Key is already used", detail)
    }

    pub(crate) fn body_too_large(limit: usize) -> Self {
        let detail = format!("the body of this request may have {limit} bytes; send less");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large", detail)
    }

    pub(crate) fn body_unreadable() -> Self {
        let detail = "the body could not be read to its end; send the request again with the same key";
        Self::new(StatusCode::BAD_REQUEST, "body-unreadable", "The body cannot be read", detail)
    }

    pub(crate) fn caller_unknown() -> Self {
        let detail = "the caller of this request is not known; sign in first";
        Self::new(StatusCode::UNAUTHORIZED, "caller-unknown", "The caller is not known", detail)
    }

    pub(crate) fn caller_not_told() -> Self {
        let detail = "this service does not say whose keys are whose: the request has a cookie and no `Authorization`, and \
                      the layer `Idempotency` was not told how to find the caller (`Idempotency::caller`)";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "caller-not-told", "The caller is not known", detail)
    }

    pub(crate) fn no_layer() -> Self {
        let detail = "the handler takes a `RequestTx`, and there is no layer `Idempotency` of the same store around it";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "no-layer", "The service is not set up", detail)
    }

    pub(crate) fn response_too_large(limit: usize) -> Self {
        let detail = format!(
            "the response could not be read to its end within {limit} bytes, so it cannot be kept, and nothing was done; \
             raise `Idempotency::response_limit` in the service"
        );
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "response-too-large",
            "The response is too large",
            detail,
        )
    }

    /// For an error of the store. Its text goes to the log: it may name what is nobody's business.
    pub(crate) fn of_store(error: &Error) -> Self {
        tracing::error!(%error, kind = ?error.kind(), "a request with an idempotency key could not be finished");
        match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Contention => {
                let detail = "the store cannot be reached, or the outcome is not known; send the request again with the \
                              same key";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "store-away", "Try again", detail).try_again()
            }
            ErrorKind::Fenced | ErrorKind::Ended => {
                let detail = "the work of this request could not be committed, and nothing of it is kept: the handler must \
                              return SQL errors instead of swallowing them, and not end its transaction itself";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "not-committed", "Nothing was done", detail)
            }
            _ => {
                let detail = "the service could not keep the outcome of this request; its log says why";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "store-failed", "Nothing was done", detail)
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::json!({
            "type": format!("urn:oncebox:idempotency:{}", self.name),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let mut response = (self.status, body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.is_worth_another_try {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
