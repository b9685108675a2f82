//! `type = "http"`: messages come in by `POST /in/NAME`.

use oncebox_core::mapping::Mapping;

use crate::config::section::Section;
use crate::config::units::Rate;

/// A source that others post to.
#[derive(Debug, Clone)]
pub struct HttpSourceConfig {
    /// The name space of its ids.
    pub scope: String,
    /// Where id, kind and key are read.
    pub mapping: Mapping,
    /// Whether some part is read from the payload, which is then parsed.
    pub reads_json: bool,
    /// How requests prove where they come from.
    pub verify: Option<super::Verify>,
    /// When requests need a token.
    pub token: super::TokenRule,
    /// The most messages in a time.
    pub rate: Option<Rate>,
    /// Names of headers to store, a trailing `*` for all that begin so; lower case.
    pub keep_headers: Vec<String>,
}

pub(super) fn read(name: &str, section: &Section<'_>) -> HttpSourceConfig {
    // Every section has it; here it is what led to this function.
    section.has("type");
    let (ids, kinds, keys) = (section.texts("id"), section.texts("kind"), section.texts("key"));
    let reads_json = ids
        .iter()
        .chain(&kinds)
        .chain(&keys)
        .any(|place| place.starts_with("json:") || place == "cloudevents");
    let mapping = mapping(section, &ids, &kinds, &keys);
    let scope = section.text("scope");
    HttpSourceConfig {
        scope: if scope.is_empty() { name.to_owned() } else { scope },
        mapping,
        reads_json,
        verify: super::verify(section),
        token: section.word(
            "token",
            &[
                ("auto", super::TokenRule::Auto),
                ("always", super::TokenRule::Always),
                ("never", super::TokenRule::Never),
            ],
        ),
        rate: section.rate("rate"),
        keep_headers: section.texts("keep_headers").iter().map(|name| name.to_ascii_lowercase()).collect(),
    }
}

/// Each part for itself, so that a problem stands at the key it belongs to.
fn mapping(section: &Section<'_>, ids: &[String], kinds: &[String], keys: &[String]) -> Mapping {
    let mut mapping = Mapping::new(&["hash"], &["none"]).expect("a mapping that is always good");
    for (key, changed) in [
        ("id", mapping.clone().id(ids)),
        ("kind", mapping.clone().kind(kinds)),
        ("key", mapping.clone().key(keys)),
    ] {
        if let Err(wrong) = changed {
            section.wrong(key, format!("`{key}`: {wrong}"));
            return mapping;
        }
    }
    for place in ids.iter().chain(kinds).chain(keys) {
        if place.starts_with("property:") || matches!(place.as_str(), "routing-key" | "position") {
            section.wrong("type", format!("`{place}` is for brokers; an http source has header:NAME, json:/POINTER, cloudevents and hash"));
        }
    }
    mapping = mapping
        .id(ids)
        .and_then(|mapping| mapping.kind(kinds))
        .and_then(|mapping| mapping.key(keys))
        .expect("each part has been tried");
    mapping
}
