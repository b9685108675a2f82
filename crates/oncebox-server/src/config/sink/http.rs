//! `type = "http"`: one request per outgoing message.

use url::Url;

use crate::config::handler;
use crate::config::secret::Secret;
use crate::config::section::Section;

/// A sink that posts.
#[derive(Debug, Clone)]
pub struct HttpSinkConfig {
    /// Where to.
    pub url: Url,
    /// What signs it.
    pub secrets: Vec<Secret>,
    /// Headers of the user's own.
    pub headers: Vec<(String, Secret)>,
    /// How much of an answer is kept.
    pub max_response: usize,
}

pub(super) fn read(section: &Section<'_>) -> HttpSinkConfig {
    let url = handler::url(section, "url");
    let shared = read_shared(section);
    HttpSinkConfig { url: url.unwrap_or_else(|| shared.url.clone()), ..shared }
}

/// All but the address, which has no default.
pub(super) fn read_shared(section: &Section<'_>) -> HttpSinkConfig {
    HttpSinkConfig {
        url: Url::parse("http://localhost/").expect("a good address"),
        secrets: section.secrets("secret"),
        headers: handler::headers(section),
        max_response: section.size("max_response"),
    }
}
