//! Questions to JetStream, which are JSON over requests.

use async_nats::{Client, RequestErrorKind};
use oncebox_core::{Error, ErrorKind};
use serde_json::Value;

/// There is no stream of this name.
pub(crate) const STREAM_NOT_FOUND: u64 = 10059;
/// There is no consumer of this name.
pub(crate) const CONSUMER_NOT_FOUND: u64 = 10014;
/// There is no such message.
pub(crate) const MESSAGE_NOT_FOUND: u64 = 10037;

/// JetStream as one account sees it.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    client: Client,
    prefix: String,
}

/// Why there was no answer.
#[derive(Debug)]
pub(crate) enum ApiError {
    /// JetStream said no.
    Refused { code: u64, text: String },
    /// It could not be asked.
    Unavailable(Error),
}

impl From<ApiError> for Error {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::Refused { code, text } => {
                Self::new(ErrorKind::Unavailable, format!("JetStream refused: {text} (error {code})"))
            }
            ApiError::Unavailable(error) => error,
        }
    }
}

impl Api {
    pub(crate) fn new(client: Client, domain: Option<&str>) -> Self {
        let prefix = domain.map_or("$JS.API".to_owned(), |domain| format!("$JS.{domain}.API"));
        Self { client, prefix }
    }

    /// The subject of a question.
    pub(crate) fn subject(&self, what: &str) -> String {
        format!("{}.{what}", self.prefix)
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn ask(&self, what: &str, about: &Value) -> Result<Value, ApiError> {
        let body = if about.is_null() { String::new() } else { about.to_string() };
        let answer = self.client.request(self.subject(what), body.into()).await.map_err(|error| {
            let text = match error.kind() {
                RequestErrorKind::NoResponders => {
                    "JetStream is not enabled on the server, or not for this account"
                }
                _ => "JetStream did not answer",
            };
            ApiError::Unavailable(Error::caused(ErrorKind::Unavailable, text, error))
        })?;
        let answer: Value = serde_json::from_slice(&answer.payload).map_err(|error| {
            ApiError::Unavailable(Error::caused(
                ErrorKind::Unavailable,
                "JetStream's answer cannot be read",
                error,
            ))
        })?;
        match answer.get("error") {
            None => Ok(answer),
            Some(error) => Err(ApiError::Refused {
                code: error["err_code"].as_u64().unwrap_or_default(),
                text: error["description"].as_str().unwrap_or("no reason given").to_owned(),
            }),
        }
    }
}
