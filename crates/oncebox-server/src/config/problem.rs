//! What is wrong with a configuration file, and where.

use std::fmt;
use std::ops::Range;

/// Everything that is wrong with a configuration, in the order it stands there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// At least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.problems.iter().enumerate() {
            if number > 0 {
                formatter.write_str("\n")?;
            }
            problem.fmt(formatter)?;
        }
        Ok(())
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file's name, as it was given.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// What is wrong and what to do.
    pub text: String,
    /// The line as it stands there, other texts than the wrong one hidden; empty when it cannot be shown.
    pub excerpt: String,
    /// How many characters are meant.
    pub width: usize,
}

impl Problem {
    /// Finds line and column of a place in a text. `hidden` are the places of texts that may be secret.
    pub(crate) fn new(
        file: &str,
        source: &str,
        at: Range<usize>,
        text: String,
        hidden: &[Range<usize>],
    ) -> Self {
        let start = floor(source, at.start);
        let line_start = source[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = source[start..].find('\n').map_or(source.len(), |newline| start + newline);
        let excerpt: String = source[line_start..line_end]
            .char_indices()
            .map(|(place, character)| {
                let place = line_start + place;
                let secret = hidden.iter().any(|range| range.contains(&place)) && !at.contains(&place);
                if secret && !matches!(character, '"' | '\'' | '$' | '{' | '}') { '*' } else { character }
            })
            .collect();
        let end = floor(source, at.end.clamp(start, line_end));
        Self {
            file: file.to_owned(),
            line: source[..start].matches('\n').count() + 1,
            column: source[line_start..start].chars().count() + 1,
            text,
            excerpt: excerpt.trim_end().to_owned(),
            width: source[start..end].chars().count().max(1),
        }
    }

    /// The same without its line, for files that could not be read as TOML: nobody knows what in them is secret.
    pub(crate) fn without_excerpt(mut self) -> Self {
        self.excerpt.clear();
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, text, excerpt, width } = self;
        write!(formatter, "{file}:{line}:{column}: {text}")?;
        if excerpt.is_empty() {
            return Ok(());
        }
        let number = line.to_string();
        let margin = " ".repeat(number.len());
        let before = " ".repeat(column - 1);
        write!(formatter, "\n  {number} | {excerpt}\n  {margin} | {before}{}", "^".repeat(*width))
    }
}

/// The nearest of some words, when one is near enough to be meant.
pub(crate) fn nearest<'a>(word: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = (word.chars().count() / 3).max(2);
    words
        .into_iter()
        .map(|known| (strsim::damerau_levenshtein(&word.to_lowercase(), known), known))
        .filter(|(distance, known)| *distance <= most && *distance < known.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// `; did you mean …?`, or the whole list when nothing is near.
pub(crate) fn suggestion<'a>(word: &str, words: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match nearest(word, words.clone()) {
        Some(near) => format!("; did you mean `{near}`?"),
        None => {
            let all: Vec<&str> = words.into_iter().collect();
            if all.is_empty() { String::new() } else { format!("; use one of: {}", all.join(", ")) }
        }
    }
}

/// The nearest place at or before this one where a character begins.
fn floor(text: &str, place: usize) -> usize {
    let mut place = place.min(text.len());
    while !text.is_char_boundary(place) {
        place -= 1;
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_shows_its_place_and_hides_other_texts() {
        let source = "a = 1\nverify = { secret = \"hunter2\", tolerence = \"5m\" }\n";
        let at = source.find("tolerence").unwrap();
        let secret = source.find("\"hunter2\"").unwrap();
        let hidden = secret..secret + 9;
        let at = at..at + 9;
        let problem = Problem::new("x.toml", source, at, "unknown".to_owned(), std::slice::from_ref(&hidden));
        let expected = "x.toml:2:32: unknown\n  2 | verify = { secret = \"*******\", tolerence = \"5m\" }\n    | \
                        \u{20}                              ^^^^^^^^^";
        assert_eq!(problem.to_string(), expected);
    }

    #[test]
    fn the_nearest_word_is_near() {
        let keys = ["listen", "token", "max_body"];
        assert_eq!(nearest("lisen", keys), Some("listen"));
        assert_eq!(nearest("Token", keys), Some("token"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(suggestion("colour", keys), "; use one of: listen, token, max_body");
    }
}
