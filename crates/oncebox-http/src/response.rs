//! What of a response is kept, and how it is given again.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::response::Parts;
use http::{HeaderMap, StatusCode};
use oncebox_core::responses::StoredResponse;
use oncebox_core::{Error, ErrorKind};

/// The header that says that a response was stored before: `true` on every replay, absent from the first response.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Headers that belong to one response or one connection, or that are a secret made for one moment.
const NOT_REPLAYED: &[&str] = &[
    "age",
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "www-authenticate",
];

/// What follows from a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The work is committed and the response stored.
    Done,
    /// The work is rolled back and the response stored.
    Refused,
    /// The work is rolled back and nothing is stored, so that the next request with the key runs.
    Forgotten,
}

impl Fate {
    pub(crate) fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            // "Not you" and "not now" may be otherwise the next time.
            401 | 403 | 407 | 408 | 421 | 423 | 425 | 429 => Self::Forgotten,
            400..500 => Self::Refused,
            200..400 => Self::Done,
            _ => Self::Forgotten,
        }
    }
}

/// The response as it is kept.
pub(crate) fn stored(parts: &Parts, body: &Bytes) -> StoredResponse {
    let is_kept = |name: &HeaderName| {
        !NOT_REPLAYED.contains(&name.as_str())
            && !named_by_connection(&parts.headers, name)
            && *name != REPLAYED
    };
    let headers = parts
        .headers
        .iter()
        .filter(|(name, _)| is_kept(name))
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()));
    StoredResponse { status: parts.status.as_u16(), headers: headers.collect(), body: body.clone() }
}

/// `Connection` can name more headers that are meant for one connection.
fn named_by_connection(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers
        .get_all(http::header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|named| named.trim().eq_ignore_ascii_case(name.as_str()))
}

/// A stored response, given again.
pub(crate) fn replay(stored: StoredResponse) -> Result<Response, Error> {
    let spoilt = |_| Error::new(ErrorKind::Store, "a stored response cannot be sent; remove its row");
    let mut response = Response::new(Body::from(stored.body));
    *response.status_mut() = StatusCode::from_u16(stored.status).map_err(|_| spoilt(()))?;
    for (name, value) in stored.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| spoilt(()))?;
        let value = HeaderValue::from_bytes(&value).map_err(|_| spoilt(()))?;
        response.headers_mut().append(name, value);
    }
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_what_belongs_to_one_connection_are_not_kept() {
        let mut builder = Response::builder().status(201);
        for name in NOT_REPLAYED {
            builder = builder.header(*name, "x");
        }
        let response = builder
            .header("connection", "close, X-Hop")
            .header("x-hop", "1")
            .header("location", "/orders/7")
            .header("x-many", "1")
            .header("x-many", "2")
            .body(())
            .unwrap();
        let (parts, ()) = response.into_parts();
        let kept = stored(&parts, &Bytes::from_static(b"{}"));
        let names: Vec<&str> = kept.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["location", "x-many", "x-many"]);
        let replayed = replay(kept).unwrap();
        assert_eq!(replayed.status(), StatusCode::CREATED);
        assert_eq!(replayed.headers()["location"], "/orders/7");
        assert_eq!(replayed.headers()[REPLAYED], "true");
    }

    #[test]
    fn what_cannot_be_a_response_is_an_error() {
        let spoilt = [
            StoredResponse { status: 7, ..StoredResponse::default() },
            StoredResponse {
                status: 200,
                headers: vec![("a b".to_owned(), Vec::new())],
                ..StoredResponse::default()
            },
            StoredResponse {
                status: 200,
                headers: vec![("a".to_owned(), b"\n".to_vec())],
                ..StoredResponse::default()
            },
        ];
        for stored in spoilt {
            assert!(replay(stored).is_err());
        }
    }

    #[test]
    fn the_status_decides() {
        let fate = |status| Fate::of(StatusCode::from_u16(status).unwrap());
        for status in [200, 201, 204, 299, 301, 303] {
            assert_eq!(fate(status), Fate::Done, "{status}");
        }
        for status in [400, 402, 404, 409, 410, 422, 451] {
            assert_eq!(fate(status), Fate::Refused, "{status}");
        }
        for status in [101, 401, 403, 407, 408, 421, 423, 425, 429, 500, 502, 503, 504, 599, 600] {
            assert_eq!(fate(status), Fate::Forgotten, "{status}");
        }
    }
}
