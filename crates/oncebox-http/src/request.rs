//! What tells requests apart: whose they are, what they are for, and what is in them.

use axum::extract::{MatchedPath, OriginalUri};
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, COOKIE};
use http::request::Parts;
use sha2::{Digest, Sha256};

use crate::problem::Problem;

/// Whose request this is, unless the application says: whoever sends the same `Authorization`.
///
/// A session in a cookie is not understood here, and taking all of its users for one would show them each other's
/// responses; so that is refused.
pub(crate) fn authorized(parts: &Parts) -> Result<Vec<u8>, Problem> {
    let mut caller = Vec::new();
    for value in parts.headers.get_all(AUTHORIZATION) {
        caller.extend_from_slice(&Sha256::digest(value.as_bytes()));
    }
    if caller.is_empty() && parts.headers.contains_key(COOKIE) {
        return Err(Problem::caller_not_told());
    }
    Ok(caller)
}

/// The 16 bytes that stand for a key: of this caller, for this method and route.
pub(crate) fn identity(scope: &str, caller: &[u8], parts: &Parts, key: &str) -> [u8; 16] {
    let route = parts.extensions.get::<MatchedPath>().map_or_else(|| path(parts), MatchedPath::as_str);
    let method = parts.method.as_str();
    digest(&[scope.as_bytes(), caller, method.as_bytes(), route.as_bytes(), key.as_bytes()])
}

/// The 16 bytes that stand for what is in a request.
pub(crate) fn fingerprint(parts: &Parts, body: &[u8]) -> [u8; 16] {
    let query = parts.uri.query().unwrap_or_default();
    let header = |name| parts.headers.get(name).map_or(&b""[..], |value| value.as_bytes());
    digest(&[path(parts).as_bytes(), query.as_bytes(), header(CONTENT_TYPE), header(CONTENT_ENCODING), body])
}

/// The whole path, also inside of a nested router.
fn path(parts: &Parts) -> &str {
    parts.extensions.get::<OriginalUri>().map_or(parts.uri.path(), |uri| uri.0.path())
}

/// Each part after its length, so that no two lists of parts have the same bytes.
fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let hash = hasher.finalize();
    let mut first = [0; 16];
    first.copy_from_slice(&hash[..16]);
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn parts(method: &str, uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_key_belongs_to_scope_caller_method_and_route() {
        let post = parts("POST", "/orders", &[]);
        let all = [
            identity("", b"a", &post, "key"),
            identity("s", b"a", &post, "key"),
            identity("", b"b", &post, "key"),
            identity("", b"a", &parts("PATCH", "/orders", &[]), "key"),
            identity("", b"a", &parts("POST", "/order", &[]), "skey"),
            identity("", b"a", &post, "keys"),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[index + 1..].contains(one), "{index}");
        }
        assert_eq!(identity("", b"a", &parts("POST", "/orders?q=1", &[]), "key"), all[0]);
    }

    #[test]
    fn the_content_is_path_query_type_and_body() {
        let json = [("content-type", "application/json")];
        let all = [
            fingerprint(&parts("POST", "/orders", &json), b"{}"),
            fingerprint(&parts("POST", "/orders?q=1", &json), b"{}"),
            fingerprint(&parts("POST", "/orders/1", &json), b"{}"),
            fingerprint(&parts("POST", "/orders", &[]), b"{}"),
            fingerprint(&parts("POST", "/orders", &json), b"{ }"),
            fingerprint(&parts("POST", "/orders", &[json[0], ("content-encoding", "gzip")]), b"{}"),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[index + 1..].contains(one), "{index}");
        }
        let retried = [json[0], ("date", "today"), ("user-agent", "other"), ("authorization", "new")];
        assert_eq!(fingerprint(&parts("POST", "/orders", &retried), b"{}"), all[0]);
    }

    #[test]
    fn a_cookie_alone_does_not_make_everybody_the_same_caller() {
        let one = |headers: &[(&str, &str)]| authorized(&parts("POST", "/", headers)).ok();
        assert_eq!(one(&[]), Some(Vec::new()));
        assert_eq!(one(&[("cookie", "session=1")]), None);
        let alice = one(&[("authorization", "Bearer a"), ("cookie", "session=1")]);
        assert!(alice.is_some() && alice != one(&[("authorization", "Bearer b")]));
        assert_eq!(alice, one(&[("authorization", "Bearer a")]));
    }
}
