//! A TOML file as a tree in which every value knows where it stands.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::problem::{ConfigError, Problem};

/// A file that could be read as TOML.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) root: Table,
    /// Where texts stand: they may be secret, so a message about something else hides them.
    texts: Vec<Range<usize>>,
}

pub(crate) type Table = BTreeMap<String, Node>;

/// A value, and where it and its key stand.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) key_at: Range<usize>,
    pub(crate) at: Range<usize>,
    pub(crate) value: Value,
}

#[derive(Debug)]
pub(crate) enum Value {
    Text(String),
    Whole(i64),
    Flag(bool),
    List(Vec<Node>),
    Table(Table),
    Fraction(f64),
    /// A date, a number too large: nothing here wants one.
    Other(&'static str),
}

impl Value {
    pub(crate) fn what(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Whole(_) => "a whole number",
            Self::Flag(_) => "true or false",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
            Self::Fraction(_) => "a number with a fraction",
            Self::Other(what) => what,
        }
    }
}

impl Document {
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, ConfigError> {
        let parsed = DeTable::parse(text).map_err(|error| {
            let at = error.span().unwrap_or(0..0);
            let problem = Problem::new(name, text, at.clone(), what(error.message(), text, at), &[]);
            ConfigError { problems: vec![problem.without_excerpt()] }
        })?;
        let mut texts = Vec::new();
        let root = table(parsed.get_ref(), &mut texts);
        Ok(Self { name: name.to_owned(), text: text.to_owned(), root, texts })
    }

    pub(crate) fn problem(&self, at: Range<usize>, text: String) -> Problem {
        Problem::new(&self.name, &self.text, at, text, &self.texts)
    }
}

/// The parser's words, but for the one mistake that deserves better ones.
fn what(message: &str, text: &str, at: Range<usize>) -> String {
    if !message.contains("duplicate key") {
        return message.lines().collect::<Vec<_>>().join("; ");
    }
    let before = &text[..at.start.min(text.len())];
    let line = before.rfind('\n').map_or(0, |newline| newline + 1);
    let whole = text[line..].lines().next().unwrap_or_default().trim();
    match whole.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
        Some(section) => match section.split_once('.') {
            Some((sort @ ("handler" | "source" | "sink"), name)) => {
                format!("{sort} `{name}` is defined twice; give one of them another name")
            }
            _ => format!("[{section}] is written twice; put its keys together"),
        },
        None => {
            let key = text.get(at).unwrap_or_default();
            format!("key `{key}` is written twice; leave one of them out")
        }
    }
}

fn table(parsed: &DeTable<'_>, texts: &mut Vec<Range<usize>>) -> Table {
    parsed
        .iter()
        .map(|(key, value)| {
            let node = node(key.span(), value.span(), value.get_ref(), texts);
            (key.get_ref().clone().into_owned(), node)
        })
        .collect()
}

fn node(key_at: Range<usize>, at: Range<usize>, value: &DeValue<'_>, texts: &mut Vec<Range<usize>>) -> Node {
    let value = match value {
        DeValue::String(text) => {
            texts.push(at.clone());
            Value::Text(text.clone().into_owned())
        }
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Whole(number),
            Err(_) => Value::Other("a number that is too large"),
        },
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Float(number) => match number.as_str().parse() {
            Ok(number) => Value::Fraction(number),
            Err(_) => Value::Other("a number with a fraction"),
        },
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Array(list) => Value::List(
            list.iter().map(|item| node(item.span(), item.span(), item.get_ref(), texts)).collect(),
        ),
        DeValue::Table(inner) => Value::Table(table(inner, texts)),
    };
    Node { key_at, at, value }
}
