//! Just enough of Rust's grammar to tell code, comments and string literals apart.

use std::ops::Range;

/// A Rust file, taken apart.
#[derive(Debug)]
pub(super) struct RustText {
    /// The file with every comment and the inside of every literal blanked; the lines stay where they are.
    pub(super) code: String,
    /// The string literals, byte and raw ones included.
    pub(super) strings: Vec<Literal>,
    test_lines: Vec<Range<usize>>,
}

/// A string literal as written, without its quotes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Literal {
    pub(super) line: usize,
    pub(super) text: String,
}

impl RustText {
    pub(super) fn parse(text: &str) -> Self {
        let mut scanner =
            Scanner { text, at: 0, code: String::with_capacity(text.len()), strings: Vec::new() };
        while scanner.at < text.len() {
            scanner.step();
        }
        let Scanner { code, strings, .. } = scanner;
        let test_lines = test_lines(&code);
        Self { code, strings, test_lines }
    }

    /// Whether the line is inside an item marked `#[cfg(test)]`.
    pub(super) fn is_test(&self, line: usize) -> bool {
        self.test_lines.iter().any(|lines| lines.contains(&line))
    }

    /// The lines of [`code`](Self::code) with their numbers, from 1.
    pub(super) fn numbered_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.code.lines())
    }
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    code: String,
    strings: Vec<Literal>,
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn step(&mut self) {
        let rest = self.rest();
        if rest.starts_with("//") {
            self.blank(rest.find('\n').unwrap_or(rest.len()));
        } else if rest.starts_with("/*") {
            self.blank(block_comment_length(rest));
        } else if let Some(hashes) = raw_string_hashes(rest, self.code.chars().next_back()) {
            let end = format!("\"{}", "#".repeat(hashes));
            self.keep(hashes + 2);
            let inside = self.rest().find(&end).unwrap_or(self.rest().len());
            self.string(inside);
            self.keep(end.len());
        } else if rest.starts_with('"') {
            self.keep(1);
            self.string(escaped_length(self.rest(), '"'));
            self.keep(1);
        } else if let Some(inside) = char_literal_length(rest) {
            self.keep(1);
            self.blank(inside);
            self.keep(1);
        } else {
            self.keep(rest.chars().next().map_or(0, char::len_utf8));
        }
    }

    fn keep(&mut self, length: usize) {
        let end = (self.at + length).min(self.text.len());
        self.code.push_str(&self.text[self.at..end]);
        self.at = end;
    }

    fn blank(&mut self, length: usize) {
        let blanked = self.rest()[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' });
        self.code.extend(blanked);
        self.at += length;
    }

    fn string(&mut self, length: usize) {
        let line = 1 + self.code.matches('\n').count();
        self.strings.push(Literal { line, text: self.rest()[..length].to_owned() });
        self.blank(length);
    }
}

fn block_comment_length(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(found) = text[at..].find(['/', '*']) {
        at += found;
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// How many `#` a raw string starts with, when one starts here. `before` tells it from a name that ends in `r`.
fn raw_string_hashes(text: &str, before: Option<char>) -> Option<usize> {
    let after_r = text.strip_prefix('r')?;
    let prefixed = before.is_none_or(|c| !(c.is_alphanumeric() || c == '_') || c == 'b' || c == 'c');
    let hashes = after_r.len() - after_r.trim_start_matches('#').len();
    (prefixed && after_r[hashes..].starts_with('"')).then_some(hashes)
}

/// The length up to the closing quote, or to the end of the text.
fn escaped_length(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at,
            _ => {}
        }
    }
    text.len()
}

/// The length inside the quotes of a character literal; none for a lifetime.
fn char_literal_length(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('\'')?;
    let first = inside.chars().next()?;
    if first == '\\' {
        return Some(escaped_length(inside, '\''));
    }
    inside[first.len_utf8()..].starts_with('\'').then_some(first.len_utf8())
}

fn test_lines(code: &str) -> Vec<Range<usize>> {
    let line_of = |at: usize| 1 + code[..at].matches('\n').count();
    let mut found = Vec::new();
    for (start, _) in code.match_indices("#[cfg(test)]") {
        let Some(open) = code[start..].find(['{', ';']).map(|at| start + at) else { continue };
        let mut depth = 0_usize;
        let mut end = open;
        for (at, c) in code[open..].char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                end = open + at;
                break;
            }
        }
        found.push(line_of(start)..line_of(end) + 1);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let text =
            "let a = \"x // y\"; // \"no\"\n/* one /* two */ \"no\" */ let b = '\"'; let c: &'static str;\n";
        let parsed = RustText::parse(text);
        assert_eq!(parsed.strings, [Literal { line: 1, text: "x // y".to_owned() }]);
        assert_eq!(parsed.code.lines().nth(1).unwrap().trim(), "let b = ' '; let c: &'static str;");
        assert_eq!(parsed.code.lines().count(), 2);
    }

    #[test]
    fn raw_byte_and_escaped_strings_are_literals() {
        let parsed = RustText::parse("f(r#\"a \"q\" b\"#, br\"c\", b\"d\\\"e\", '\\'', \"\n\", \"f\")");
        let found: Vec<_> = parsed.strings.iter().map(|s| (s.line, s.text.as_str())).collect();
        assert_eq!(found, [(1, "a \"q\" b"), (1, "c"), (1, "d\\\"e"), (1, "\n"), (2, "f")]);
    }

    #[test]
    fn a_raw_name_is_not_a_raw_string() {
        let parsed = RustText::parse("let r#type = r; bar(\"x\")");
        assert_eq!(parsed.code, "let r#type = r; bar(\" \")");
    }

    #[test]
    fn test_modules_are_known() {
        let parsed =
            RustText::parse("fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { \"}\" }\n}\nfn c() {}\n");
        let lines: Vec<bool> = (1..=6).map(|line| parsed.is_test(line)).collect();
        assert_eq!(lines, [false, true, true, true, true, false]);
    }
}
