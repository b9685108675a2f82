//! A statement with named parameters, as a `sql` handler has it.

use std::fmt;

/// What a statement may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter {
    /// The message's id, a text.
    Id,
    /// Its kind, a text.
    Kind,
    /// Its key, a text or null.
    Key,
    /// Its payload as text.
    Payload,
    /// Its payload as bytes.
    PayloadBytes,
    /// Its headers as a JSON object.
    Headers,
    /// Which attempt this is, from 1.
    Attempt,
}

const PARAMETERS: &[(&str, Parameter)] = &[
    ("id", Parameter::Id),
    ("kind", Parameter::Kind),
    ("key", Parameter::Key),
    ("payload", Parameter::Payload),
    ("payload_bytes", Parameter::PayloadBytes),
    ("headers", Parameter::Headers),
    ("attempt", Parameter::Attempt),
];

/// Words that would end or split the transaction that Oncebox commits.
const NOT_ALLOWED: &[&str] =
    &["begin", "commit", "end", "rollback", "abort", "start", "savepoint", "release", "xa", "prepare"];

/// A statement, taken apart at its parameters.
///
/// Parameters are `:id :kind :key :payload :payload_bytes :headers :attempt`. What stands in texts, quoted names,
/// comments and casts (`::jsonb`) is no parameter.
///
/// ```
/// use oncebox_server::handlers::statement::{Parameter, Statement};
///
/// let statement = Statement::parse("insert into t values (:id, :payload::jsonb, ':id')").unwrap();
/// assert_eq!(statement.parameters(), [Parameter::Id, Parameter::Payload]);
/// assert_eq!(statement.with(|number| format!("${number}")), "insert into t values ($1, $2::jsonb, ':id')");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// One more than there are parameters: what stands before, between and after them.
    pieces: Vec<String>,
    parameters: Vec<Parameter>,
}

impl Statement {
    /// Takes a statement apart; says what is wrong with it when it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut scan = Scan { text, place: 0 };
        let (mut pieces, mut parameters) = (vec![String::new()], Vec::new());
        let mut ended = false;
        while let Some(token) = scan.next()? {
            let last = pieces.last_mut().expect("there is always a piece");
            match token {
                Token::Blank(blank) => last.push_str(blank),
                // A trailing semicolon ends the one statement; the database does not need it.
                Token::Semicolon => ended = true,
                _ if ended => {
                    return Err("`sql` holds more than one statement; give a list of them".to_owned());
                }
                Token::Other(other) => last.push_str(other),
                Token::Parameter(name) => {
                    parameters.push(parameter(name)?);
                    pieces.push(String::new());
                }
            }
        }
        let statement = Self { pieces, parameters };
        statement.check_first_word()?;
        Ok(statement)
    }

    /// The parameters in the order they stand in, repeated ones repeatedly.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The statement with each parameter written as the database wants it; `write` gets its number from 1.
    pub fn with(&self, write: impl Fn(usize) -> String) -> String {
        let mut text = self.pieces[0].clone();
        for (number, piece) in self.pieces[1..].iter().enumerate() {
            text.push_str(&write(number + 1));
            text.push_str(piece);
        }
        text
    }

    fn check_first_word(&self) -> Result<(), String> {
        let text = without_comments(&self.pieces[0]);
        let word: String =
            text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if word.is_empty() && self.parameters.is_empty() {
            return Err("`sql` holds no statement".to_owned());
        }
        if NOT_ALLOWED.contains(&word.to_ascii_lowercase().as_str()) {
            return Err(format!(
                "`sql` begins with `{word}`: Oncebox begins and commits the transaction, together with the done mark; \
                 leave it out"
            ));
        }
        Ok(())
    }
}

impl fmt::Display for Statement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |number: usize| {
            let known = PARAMETERS.iter().find(|(_, known)| *known == self.parameters[number - 1]);
            format!(":{}", known.map_or("", |(name, _)| name))
        };
        formatter.write_str(&self.with(name))
    }
}

fn parameter(name: &str) -> Result<Parameter, String> {
    let found = PARAMETERS.iter().find(|(known, _)| *known == name).map(|(_, parameter)| *parameter);
    found.ok_or_else(|| {
        let hint = crate::config::suggestion(name, PARAMETERS.iter().map(|(known, _)| *known));
        format!("`sql` has an unknown parameter `:{name}`{hint}")
    })
}

enum Token<'a> {
    Blank(&'a str),
    Semicolon,
    Parameter(&'a str),
    Other(&'a str),
}

struct Scan<'a> {
    text: &'a str,
    place: usize,
}

impl<'a> Scan<'a> {
    fn next(&mut self) -> Result<Option<Token<'a>>, String> {
        let rest = &self.text[self.place..];
        let Some(first) = rest.chars().next() else { return Ok(None) };
        let (length, token): (usize, fn(&'a str) -> Token<'a>) = match first {
            c if c.is_whitespace() => (first.len_utf8(), Token::Blank),
            ';' => (1, |_| Token::Semicolon),
            '\'' | '"' | '`' => (quoted(rest, first)?, Token::Other),
            '-' if rest.starts_with("--") => (rest.find('\n').unwrap_or(rest.len()), Token::Blank),
            '/' if rest.starts_with("/*") => (comment(rest)?, Token::Blank),
            '$' => (dollar(rest)?, Token::Other),
            ':' if rest.starts_with("::") || rest.starts_with(":=") => (2, Token::Other),
            ':' if rest[1..].starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') => {
                (1 + word(&rest[1..]), |text| Token::Parameter(&text[1..]))
            }
            c if c.is_alphabetic() || c == '_' => (word(rest), Token::Other),
            _ => (first.len_utf8(), Token::Other),
        };
        self.place += length;
        Ok(Some(token(&rest[..length])))
    }
}

fn word(text: &str) -> usize {
    text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len())
}

/// The length of a text or name in quotes; a doubled quote is one inside.
fn quoted(text: &str, quote: char) -> Result<usize, String> {
    let mut characters = text.char_indices().skip(1).peekable();
    let mut escaped = false;
    while let Some((place, character)) = characters.next() {
        if character == '\\' {
            escaped = !escaped;
            continue;
        }
        if character == quote && std::mem::take(&mut escaped) {
            // MariaDB goes on after it, the others do not.
            return Err(format!(
                "`sql` has \\{quote} in a text, which databases read differently; write {quote}{quote}"
            ));
        }
        escaped = false;
        if character != quote {
            continue;
        }
        if characters.peek().is_some_and(|(_, next)| *next == quote) {
            characters.next();
            continue;
        }
        return Ok(place + quote.len_utf8());
    }
    Err(format!("`sql` has a {quote} without an end"))
}

/// Comments nest in Postgres and not elsewhere; one inside another is refused, so that all read the same.
fn comment(text: &str) -> Result<usize, String> {
    let end = text.find("*/").ok_or("`sql` has a comment without an end")?;
    if text[2..end].contains("/*") {
        return Err(
            "`sql` has a comment inside a comment, which databases read differently; take it out".to_owned()
        );
    }
    Ok(end + 2)
}

/// A dollar-quoted text of Postgres, or a single `$`.
fn dollar(text: &str) -> Result<usize, String> {
    let Some(length) = text[1..].find('$') else { return Ok(1) };
    let tag = &text[..length + 2];
    let inner = &tag[1..tag.len() - 1];
    let is_tag = inner.chars().all(|c| c.is_alphanumeric() || c == '_')
        && !inner.starts_with(|c: char| c.is_ascii_digit());
    if !is_tag {
        return Ok(1);
    }
    let end = text[tag.len()..].find(tag).ok_or_else(|| format!("`sql` has a {tag} without an end"))?;
    Ok(tag.len() + end + tag.len())
}

fn without_comments(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text.trim_start();
    loop {
        if let Some(comment) = rest.strip_prefix("--") {
            rest = comment.split_once('\n').map_or("", |(_, after)| after).trim_start();
        } else if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, after)| after).trim_start();
        } else {
            kept.push_str(rest);
            return kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(text: &str) -> String {
        Statement::parse(text)
            .unwrap_or_else(|wrong| panic!("{text}: {wrong}"))
            .with(|number| format!("${number}"))
    }

    #[test]
    fn parameters_in_texts_comments_names_and_casts_are_none() {
        for (text, expected) in [
            ("select f(:id, :payload)", "select f($1, $2)"),
            ("select ':id', :id", "select ':id', $1"),
            ("select 'it''s :id', :kind", "select 'it''s :id', $1"),
            (r#"select ":id", :kind"#, r#"select ":id", $1"#),
            ("select `:id`, :kind", "select `:id`, $1"),
            ("select :payload::jsonb -> 'a'", "select $1::jsonb -> 'a'"),
            ("select a::text, :id", "select a::text, $1"),
            ("select :id -- not :kind\n, :key", "select $1 -- not :kind\n, $2"),
            ("select :id /* not :kind */, :key", "select $1 /* not :kind */, $2"),
            ("select $$ :id $$, $x$ :id $x$, :attempt", "select $$ :id $$, $x$ :id $x$, $1"),
            ("select a[1:2], :headers", "select a[1:2], $1"),
            ("select @a := :id", "select @a := $1"),
            ("select :payload_bytes, :payload", "select $1, $2"),
            ("select :id;  -- done\n", "select $1  -- done\n"),
            ("select '\u{e9}', :id, '\u{1f600}'", "select '\u{e9}', $1, '\u{1f600}'"),
        ] {
            assert_eq!(numbered(text), expected, "{text}");
        }
        let twice = Statement::parse("select :id, :key, :id").unwrap();
        assert_eq!(twice.parameters(), [Parameter::Id, Parameter::Key, Parameter::Id]);
        assert_eq!(twice.to_string(), "select :id, :key, :id");
    }

    #[test]
    fn what_is_no_single_statement_is_refused_with_the_remedy() {
        for (text, word) in [
            ("select :idd", "did you mean `id`?"),
            ("select :paylod", "did you mean `payload`?"),
            ("insert into a values (1); insert into b values (2)", "give a list"),
            ("commit", "leave it out"),
            ("  -- first\n Rollback to x", "leave it out"),
            ("/* a */ BEGIN", "leave it out"),
            ("", "no statement"),
            ("-- nothing", "no statement"),
            ("select 'abc", "without an end"),
            ("select /* abc", "without an end"),
            ("select /* a /* b */ :id */", "comment inside a comment"),
            ("select $x$ abc", "without an end"),
            (r"select 'it\'s :id'", "write ''"),
        ] {
            let wrong = Statement::parse(text).unwrap_err();
            assert!(wrong.contains(word), "{text}: {wrong}");
        }
    }
}
