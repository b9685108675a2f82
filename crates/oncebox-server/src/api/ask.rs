//! What the API is asked: parameters, parts of the path and JSON bodies, read strictly. A name that is unknown is an
//! error, so that a typing mistake neither finds nor changes everything.

use std::future::Future;
use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::header;
use axum::http::request::Parts;
use jiff::Timestamp;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use utoipa::ToSchema;

use super::answer::Problem;
use crate::config::suggestion;
use crate::ingest::check_depth;
use crate::service::App;
use crate::stores::ServiceStore;

/// The most entries in one answer.
pub(crate) const MOST: usize = 1000;

/// After how many bytes of payload a page ends early: at least one entry is always there.
pub(crate) const MOST_BYTES: usize = 8 * 1024 * 1024;

/// The largest whole number that every JSON reader can hold.
const LARGEST: i64 = 9_007_199_254_740_991;

/// The most bytes of a body.
const LARGEST_BODY: usize = 1024 * 1024;

/// The parameters after `?`.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parameters(parts.uri.query().unwrap_or_default()).map(Self).map_err(Problem::Bad)
    }
}

/// One part of the path.
#[derive(Debug)]
pub(crate) struct Named(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Ok(Self(path_parts::<1, S>(parts, state).await?.map_or_else(String::new, |[name]| name)))
    }
}

/// Two parts of the path.
#[derive(Debug)]
pub(crate) struct NamedTwice(pub(crate) String, pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for NamedTwice {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let [first, second] = path_parts::<2, S>(parts, state).await?.unwrap_or_default();
        Ok(Self(first, second))
    }
}

async fn path_parts<const N: usize, S: Send + Sync>(
    parts: &mut Parts,
    state: &S,
) -> Result<Option<[String; N]>, Problem> {
    let wrong = || Problem::Bad("a part of the path is not UTF-8; write it with %XX".to_owned());
    let found = RawPathParams::from_request_parts(parts, state).await.map_err(|_| wrong())?;
    let texts: Vec<String> = found.iter().map(|(_, text)| text.to_owned()).collect();
    if texts.iter().any(|text| text.contains('\0')) {
        return Err(Problem::NotFound("nothing has a name with a NUL in it".to_owned()));
    }
    Ok(texts.try_into().ok())
}

/// A JSON body.
#[derive(Debug)]
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, St: ServiceStore> FromRequest<Arc<App<St>>> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App<St>>) -> Result<Self, Problem> {
        let sort = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let sort = sort.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        if !sort.eq_ignore_ascii_case("application/json") {
            return Err(Problem::NotJson);
        }
        let reading = to_bytes(request.into_body(), LARGEST_BODY);
        let bytes = tokio::time::timeout(app.http.body_timeout, reading).await.map_err(|_| Problem::Slow)?;
        let bytes = bytes.map_err(|_| Problem::TooLarge(LARGEST_BODY))?;
        let deep = || Problem::Bad("the JSON is nested too deep".to_owned());
        check_depth(&bytes, app.http.json_depth).map_err(|_| deep())?;
        body(&bytes).map(Self).map_err(Problem::Bad)
    }
}

fn parameters<T: DeserializeOwned>(query: &str) -> Result<T, String> {
    let pairs = url::form_urlencoded::parse(query.as_bytes());
    serde_path_to_error::deserialize(serde_urlencoded::Deserializer::new(pairs)).map_err(told)
}

fn body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    // A list of values in the right order could be read as well, and nobody could tell what it means.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err("it is no JSON object; send one".to_owned());
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(told)?;
    reader.end().map_err(|_| "there is more after the JSON; send one object".to_owned())?;
    Ok(value)
}

/// Names the place, and the word that was likely meant.
fn told<E: std::fmt::Display>(error: serde_path_to_error::Error<E>) -> String {
    let path = error.path().to_string();
    let text = error.into_inner().to_string();
    let words: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
    if let Some((given, known)) = words.split_first()
        && (text.starts_with("unknown field") || text.starts_with("unknown variant"))
    {
        let what = if text.starts_with("unknown field") { "name" } else { "word" };
        let hint = suggestion(given, known.iter().copied());
        return format!("unknown {what} `{}`{hint}", given.escape_debug());
    }
    match path.as_str() {
        "." | "?" => text,
        place => format!("`{}`: {text}", place.escape_debug()),
    }
}

/// A text without NUL, which no stored text has.
#[derive(Debug, Clone, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, pattern = r"^[^\x00]*$")]
pub(crate) struct Text(pub(crate) String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.contains('\0') {
            return Err(D::Error::custom("no stored text has a NUL in it"));
        }
        Ok(Self(text))
    }
}

/// An instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, format = DateTime)]
pub(crate) struct Time(pub(crate) Timestamp);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || D::Error::custom("it is no time; write it as in 2026-05-01T00:00:00Z");
        text.parse().map(Self).map_err(|_| wrong())
    }
}

/// How many entries an answer has at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[schema(value_type = u32, minimum = 1, maximum = 1000)]
pub(crate) struct Limit(pub(crate) usize);

impl Limit {
    /// 100 unless set.
    pub(crate) fn of(limit: Option<Self>) -> usize {
        limit.map_or(100, |limit| limit.0)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let limit = whole(&text).and_then(|number| usize::try_from(number).ok());
        let limit = limit.filter(|limit| (1..=MOST).contains(limit));
        limit.map(Self).ok_or_else(|| D::Error::custom(format!("it goes from 1 to {MOST}")))
    }
}

/// Where to go on: what `next` of the page before said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[schema(value_type = i64, minimum = 0, maximum = 9007199254740991_i64)]
pub(crate) struct Place(pub(crate) i64);

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        whole(&text).map(Self).ok_or_else(|| D::Error::custom("give what `next` said"))
    }
}

/// Only digits: what a program writes, nothing that merely can be read as a number.
pub(crate) fn whole(text: &str) -> Option<i64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && *number <= LARGEST)
}

/// The number of a delivery in a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[schema(value_type = i64, minimum = 0, maximum = 9007199254740991_i64)]
pub(crate) struct Number(pub(crate) i64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        let good = (0..=LARGEST).contains(&number);
        if good { Ok(Self(number)) } else { Err(D::Error::custom("it is no number of a delivery")) }
    }
}

/// Runs work to its end even when whoever asked has gone: a change that has begun is not left half done.
pub(crate) async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::spawn(work).await {
        Ok(done) => done,
        Err(error) => {
            tracing::error!(%error, "a change broke off");
            Err(Problem::Unavailable("the change broke off; see the log"))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn query<T: DeserializeOwned>(text: &str) -> Result<T, String> {
        parameters(text)
    }

    pub(crate) fn json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
        body(text.as_bytes())
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        text: Option<Text>,
        limit: Option<Limit>,
        place: Option<Place>,
        at: Option<Time>,
    }

    #[test]
    fn parameters_are_read_and_mistakes_are_named() {
        let sample: Sample = query("text=a%2Fb+c&limit=5&place=7&at=2026-05-01T00:00:00Z").unwrap();
        assert_eq!((sample.text, sample.limit), (Some(Text("a/b c".to_owned())), Some(Limit(5))));
        assert!(sample.place == Some(Place(7)) && sample.at.is_some());
        for (text, expected) in [
            ("limt=5", "did you mean `limit`?"),
            ("limit=0", "`limit`: it goes from 1 to 1000"),
            ("limit=1001", "from 1 to 1000"),
            ("limit=+5", "from 1 to 1000"),
            ("limit=1&limit=2", "duplicate field `limit`"),
            ("place=x", "what `next` said"),
            ("at=yesterday", "2026-05-01T00:00:00Z"),
            ("text=%00", "NUL"),
            ("zzz=1", "use one of: text, limit, place, at"),
        ] {
            let wrong = query::<Sample>(text).unwrap_err();
            assert!(wrong.contains(expected), "{text}: {wrong}");
        }
    }

    #[test]
    fn a_body_is_one_object_without_anything_unknown() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Sample {
            #[allow(dead_code)]
            rows: Vec<Number>,
        }
        assert!(json::<Sample>(r#"{"rows":[1]}"#).is_ok());
        for (text, expected) in [
            (r#"{"rows":[1]} {}"#, "more after the JSON"),
            (r#"{"row":[1]}"#, "did you mean `rows`?"),
            (r#"{"rows":[-1]}"#, "`rows[0]`: it is no number of a delivery"),
            (r#"{"rows":[1],"rows":[2]}"#, "duplicate field `rows`"),
            ("{", "EOF"),
            ("[[1]]", "no JSON object"),
            ("", "no JSON object"),
        ] {
            let wrong = json::<Sample>(text).unwrap_err();
            assert!(wrong.contains(expected), "{text}: {wrong}");
        }
    }
}
