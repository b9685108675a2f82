//! One table of the configuration being read: each key once, with its default, and an error for what nobody asked for.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use super::document::{Document, Node, Table, Value};
use super::problem::{Problem, suggestion};
use super::secret::Secret;
use super::units::{self, Rate};

/// The file being read, the compiled-in defaults, the environment, and the problems found so far.
pub(crate) struct Reader<'a> {
    pub(crate) file: &'a Document,
    pub(crate) defaults: &'a Document,
    pub(crate) environment: &'a dyn Fn(&str) -> Option<String>,
    problems: RefCell<Vec<Problem>>,
    literal_secrets: RefCell<bool>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(
        file: &'a Document,
        defaults: &'a Document,
        environment: &'a dyn Fn(&str) -> Option<String>,
    ) -> Self {
        let problems = RefCell::default();
        Self { file, defaults, environment, problems, literal_secrets: RefCell::new(false) }
    }

    pub(crate) fn problem(&self, at: Range<usize>, text: impl Into<String>) {
        let problem = self.file.problem(at, text.into());
        self.problems.borrow_mut().push(problem);
    }

    /// All problems, in the order of the file.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| (problem.line, problem.column));
        problems
    }

    /// Whether a secret stands in the file itself instead of in the environment.
    pub(crate) fn has_literal_secret(&self) -> bool {
        *self.literal_secrets.borrow()
    }

    /// The section of this path; its defaults are those of `defaults`, first in the file, then compiled in.
    pub(crate) fn section(&'a self, path: &str, defaults: &str) -> Section<'a> {
        let (at, own) = match self.table(self.file, path) {
            Some((at, table)) => (at, Some(table)),
            None => (0..0, None),
        };
        let mut tables: Vec<&Table> = own.into_iter().collect();
        if path != defaults {
            tables.extend(self.table(self.file, defaults).map(|(_, table)| table));
        }
        let compiled = self.table(self.defaults, defaults).map(|(_, table)| table);
        Section { reader: self, path: path.to_owned(), at, own, tables, compiled, asked: RefCell::default() }
    }

    /// The names under a table: `[handler.NAME]`.
    pub(crate) fn names(&self, sort: &str) -> Vec<(String, Range<usize>)> {
        let Some((_, table)) = self.table(self.file, sort) else { return Vec::new() };
        table.iter().map(|(name, node)| (name.clone(), node.key_at.clone())).collect()
    }

    /// Refuses tables at the top that mean nothing.
    pub(crate) fn check_top(&self, known: &[&str]) {
        for (name, node) in &self.file.root {
            if !known.contains(&name.as_str()) {
                let hint = suggestion(name, known.iter().copied());
                self.problem(node.key_at.clone(), format!("unknown section `{name}`{hint}"));
            } else if !matches!(node.value, Value::Table(_)) {
                let what = node.value.what();
                self.problem(node.key_at.clone(), format!("`{name}` is {what}; write a section [{name}]"));
            }
        }
    }

    fn table<'d>(&self, document: &'d Document, path: &str) -> Option<(Range<usize>, &'d Table)> {
        let mut table = &document.root;
        let mut at = 0..0;
        // Names may hold dots, so only the first two dots of a path mean something.
        for name in path.splitn(depth(path), '.') {
            let node = table.get(name)?;
            let Value::Table(inner) = &node.value else { return None };
            (table, at) = (inner, node.key_at.clone());
        }
        Some((at, table))
    }
}

/// How many names a path has: `defaults.source.http` three, `handler.a.b` two.
fn depth(path: &str) -> usize {
    if path.starts_with("defaults.source.") || path.starts_with("defaults.sink.") { 3 } else { 2 }
}

/// One table being read.
pub(crate) struct Section<'a> {
    reader: &'a Reader<'a>,
    path: String,
    at: Range<usize>,
    own: Option<&'a Table>,
    tables: Vec<&'a Table>,
    compiled: Option<&'a Table>,
    asked: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Section<'a> {
    /// Where the section stands.
    pub(crate) fn at(&self) -> Range<usize> {
        self.at.clone()
    }

    pub(crate) fn reader(&self) -> &'a Reader<'a> {
        self.reader
    }

    /// Whether the section itself has this key. Marks it as known.
    pub(crate) fn has(&self, key: &'static str) -> bool {
        self.asked.borrow_mut().insert(key);
        self.own.is_some_and(|own| own.contains_key(key))
    }

    /// Notes a problem with a key's value: at the value, unless that could show a secret.
    pub(crate) fn wrong(&self, key: &'static str, text: impl Into<String>) {
        let at = self.node(key).map_or(self.at(), |node| node.key_at.clone());
        self.reader.problem(at, text);
    }

    pub(crate) fn text(&self, key: &'static str) -> String {
        self.optional_text(key).unwrap_or_else(|| self.compiled_text(key))
    }

    /// A text that has no default; a problem when it is missing.
    pub(crate) fn required_text(&self, key: &'static str) -> String {
        self.optional_text(key).unwrap_or_else(|| {
            if self.node(key).is_none() {
                self.reader.problem(self.at(), format!("[{}] has no `{key}`; add it", self.path));
            }
            String::new()
        })
    }

    pub(crate) fn optional_text(&self, key: &'static str) -> Option<String> {
        let node = self.node(key)?;
        match &node.value {
            Value::Text(text) => self.filled(node, text),
            other => self.not(key, node, other, "a text"),
        }
    }

    /// One text, or a list of them.
    pub(crate) fn texts(&self, key: &'static str) -> Vec<String> {
        let Some(node) = self.node(key) else { return self.compiled_texts(key) };
        match &node.value {
            Value::Text(text) => self.filled(node, text).into_iter().collect(),
            Value::List(items) => items
                .iter()
                .filter_map(|item| match &item.value {
                    Value::Text(text) => self.filled(item, text),
                    other => self.not(key, item, other, "a text"),
                })
                .collect(),
            other => self.not(key, node, other, "a text or a list of texts").unwrap_or_default(),
        }
    }

    /// Secrets: none when the key is missing. Empty ones are a problem.
    pub(crate) fn secrets(&self, key: &'static str) -> Vec<Secret> {
        if self.node(key).is_none() {
            return Vec::new();
        }
        self.note_literals(key);
        let texts = self.texts(key);
        if texts.iter().any(String::is_empty) {
            self.wrong(key, format!("`{key}` is empty; a secret that everybody knows protects nothing"));
        }
        texts.into_iter().map(Secret::new).collect()
    }

    pub(crate) fn secret(&self, key: &'static str) -> Option<Secret> {
        let node = self.node(key)?;
        self.note_literals(key);
        match &node.value {
            Value::Text(text) => self.filled(node, text).map(Secret::new),
            other => self.not(key, node, other, "a text"),
        }
    }

    pub(crate) fn duration(&self, key: &'static str) -> Duration {
        self.converted(key, "10s", units::duration)
    }

    /// A length of time that must be longer than nothing.
    pub(crate) fn positive_duration(&self, key: &'static str) -> Duration {
        let duration = self.duration(key);
        if duration.is_zero() {
            self.wrong(key, format!("`{key}` must be longer than nothing"));
        }
        duration
    }

    pub(crate) fn size(&self, key: &'static str) -> usize {
        self.converted(key, "16MiB", units::size)
    }

    pub(crate) fn rate(&self, key: &'static str) -> Option<Rate> {
        self.converted(key, "100/s", units::rate)
    }

    pub(crate) fn flag(&self, key: &'static str) -> bool {
        let compiled = || match self.compiled(key).value {
            Value::Flag(flag) => flag,
            _ => panic!("the default of `{key}` is no flag"),
        };
        match self.node(key) {
            None => compiled(),
            Some(Node { value: Value::Flag(flag), .. }) => *flag,
            Some(node) => {
                let _: Option<bool> = self.not(key, node, &node.value, "true or false");
                compiled()
            }
        }
    }

    /// A whole number within bounds.
    pub(crate) fn whole(&self, key: &'static str, least: u32, most: u32) -> u32 {
        let compiled = || match self.compiled(key).value {
            Value::Whole(number) => u32::try_from(number).unwrap_or(least),
            _ => panic!("the default of `{key}` is no whole number"),
        };
        match self.node(key) {
            None => compiled(),
            Some(Node { value: Value::Whole(number), at, .. }) => {
                match u32::try_from(*number).ok().filter(|number| (least..=most).contains(number)) {
                    Some(number) => number,
                    None => {
                        let text = format!("`{key}` is {number}; it goes from {least} to {most}");
                        self.reader.problem(at.clone(), text);
                        compiled()
                    }
                }
            }
            Some(node) => {
                let _: Option<u32> = self.not(key, node, &node.value, "a whole number");
                compiled()
            }
        }
    }

    /// A share, from 0 to 1.
    pub(crate) fn share(&self, key: &'static str) -> f64 {
        let read = |node: &Node| match node.value {
            Value::Fraction(number) => Some(number),
            Value::Whole(number) => Some(number as f64),
            _ => None,
        };
        let compiled = || read(self.compiled(key)).expect("the default is a number");
        let Some(node) = self.node(key) else { return compiled() };
        match read(node) {
            Some(share) if (0.0..=1.0).contains(&share) => share,
            Some(share) => {
                self.reader.problem(node.at.clone(), format!("`{key}` is {share}; it goes from 0.0 to 1.0"));
                compiled()
            }
            None => {
                let _: Option<f64> = self.not(key, node, &node.value, "a number from 0.0 to 1.0");
                compiled()
            }
        }
    }

    /// One of a few words.
    pub(crate) fn word<T: Copy>(&self, key: &'static str, words: &[(&'static str, T)]) -> T {
        let find = |text: &str| words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
        if let Some(text) = self.optional_text(key) {
            if let Some(found) = find(&text) {
                return found;
            }
            let hint = suggestion(&text, words.iter().map(|(word, _)| *word));
            let at = self.node(key).map_or(self.at(), |node| node.at.clone());
            self.reader.problem(at, format!("`{key}` cannot be `{text}`{hint}"));
        }
        match self.compiled.and_then(|table| table.get(key)) {
            Some(Node { value: Value::Text(text), .. }) => find(text).unwrap_or(words[0].1),
            _ => words[0].1,
        }
    }

    /// A table inside this one, whose defaults are inside this one's defaults.
    pub(crate) fn inner(&self, key: &'static str) -> Option<Section<'a>> {
        self.asked.borrow_mut().insert(key);
        let own = self.node(key);
        let tables: Vec<&Table> = self.tables.iter().filter_map(|table| inner_table(table, key)).collect();
        let compiled = self.compiled.and_then(|table| inner_table(table, key));
        if let Some(node) = own
            && !matches!(node.value, Value::Table(_))
        {
            let _: Option<()> = self.not(key, node, &node.value, "a table");
        }
        if tables.is_empty() && compiled.is_none() {
            return None;
        }
        Some(Section {
            reader: self.reader,
            path: format!("{}.{key}", self.path),
            at: own.map_or(self.at(), |node| node.key_at.clone()),
            own: own.and_then(|node| match &node.value {
                Value::Table(table) => Some(table),
                _ => None,
            }),
            tables,
            compiled,
            asked: RefCell::default(),
        })
    }

    /// Free names with texts, as in `headers = { x-tenant = "acme" }`.
    pub(crate) fn pairs(&self, key: &'static str) -> Vec<(String, Secret)> {
        let Some(node) = self.node(key) else { return Vec::new() };
        let Value::Table(table) = &node.value else {
            return self.not(key, node, &node.value, "a table of texts").unwrap_or_default();
        };
        let pair = |(name, node): (&String, &Node)| match &node.value {
            Value::Text(text) => Some((name.clone(), Secret::new(self.filled(node, text)?))),
            other => self.not(key, node, other, "a text"),
        };
        table.iter().filter_map(pair).collect()
    }

    /// Every key but these, for a broker's crate to read: the section's own, else the file's default, else the one
    /// compiled in. Variables are filled in.
    pub(crate) fn rest(&self, read: &[&str]) -> serde_json::Map<String, serde_json::Value> {
        let mut rest = self.merged(&self.tables, self.compiled);
        rest.retain(|key, _| !read.contains(&key.as_str()));
        rest
    }

    /// A problem for each key that is neither in the reference nor one of these.
    pub(crate) fn check_rest(&self, read: &[&str]) {
        if let (Some(own), Some(compiled)) = (self.own, self.compiled) {
            self.check_table(own, compiled, &self.path, read);
        }
    }

    fn check_table(&self, own: &Table, compiled: &Table, path: &str, read: &[&str]) {
        for (key, node) in own {
            match (compiled.get(key).map(|node| &node.value), &node.value) {
                // An empty one is for names of any kind.
                (Some(Value::Table(compiled)), Value::Table(own)) if !compiled.is_empty() => {
                    self.check_table(own, compiled, &format!("{path}.{key}"), &[]);
                }
                (Some(_), _) => {}
                (None, _) if read.contains(&key.as_str()) => {}
                (None, _) => {
                    let known: Vec<&str> =
                        compiled.keys().map(String::as_str).chain(read.iter().copied()).collect();
                    let hint = suggestion(key, known);
                    self.reader
                        .problem(node.key_at.clone(), format!("unknown key `{key}` in [{path}]{hint}"));
                }
            }
        }
    }

    fn merged(
        &self,
        tables: &[&Table],
        compiled: Option<&Table>,
    ) -> serde_json::Map<String, serde_json::Value> {
        let mut merged = serde_json::Map::new();
        let keys: BTreeSet<&String> = tables.iter().copied().chain(compiled).flat_map(Table::keys).collect();
        for key in keys {
            let default = compiled.and_then(|table| table.get(key));
            let Some(node) = tables.iter().find_map(|table| table.get(key)).or(default) else { continue };
            let value = match (&node.value, default.map(|default| &default.value)) {
                // As in the reference, where an empty text stands for a key that is not set.
                (Value::Text(text), Some(Value::Text(default))) if text.is_empty() && default.is_empty() => {
                    None
                }
                (Value::Table(_), Some(Value::Table(default))) => {
                    let inner: Vec<&Table> =
                        tables.iter().filter_map(|table| inner_table(table, key)).collect();
                    Some(self.merged(&inner, Some(default)).into())
                }
                _ => {
                    self.note_secret(key, &node.value);
                    self.json(node)
                }
            };
            merged.extend(value.map(|value| (key.clone(), value)));
        }
        merged
    }

    /// Notes a secret that stands in the file itself: a password by its key, or one in an address.
    fn note_secret(&self, key: &str, value: &Value) {
        let Value::Text(text) = value else { return };
        let is_secret =
            ["password", "secret", "token", "nkey", "key.pem"].iter().any(|word| key.contains(word));
        let login =
            text.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@')).map(|(login, _)| login);
        let has_secret = login.is_some_and(|login| login.contains(':') || text.starts_with("nats"));
        if (is_secret || has_secret) && !text.is_empty() && !text.contains("${") {
            *self.reader.literal_secrets.borrow_mut() = true;
        }
    }

    fn json(&self, node: &Node) -> Option<serde_json::Value> {
        use serde_json::Value as Json;
        Some(match &node.value {
            Value::Text(text) => Json::from(self.filled(node, text)?),
            Value::Whole(number) => Json::from(*number),
            Value::Fraction(number) => Json::from(*number),
            Value::Flag(flag) => Json::from(*flag),
            Value::List(items) => {
                items.iter().map(|item| self.json(item)).collect::<Option<Vec<_>>>()?.into()
            }
            Value::Table(table) => {
                let pairs = table.iter().map(|(key, node)| {
                    self.note_secret(key, &node.value);
                    Some((key.clone(), self.json(node)?))
                });
                Json::Object(pairs.collect::<Option<_>>()?)
            }
            Value::Other(_) => {
                let what = node.value.what();
                self.reader.problem(node.at.clone(), format!("{what} means nothing here"));
                return None;
            }
        })
    }

    /// Notes a problem that a broker's crate found.
    pub(crate) fn wrong_in_rest(&self, wrong: &crate::brokers::Wrong) {
        let mut path: Vec<&str> = wrong.path.iter().map(String::as_str).collect();
        if path.is_empty() {
            // Its first words name the setting.
            let words = wrong.text.split([' ', ':', '.', '`']).filter(|word| !word.is_empty());
            path.extend(
                words.take(1).filter(|word| self.compiled.is_some_and(|table| table.contains_key(*word))),
            );
        }
        let found = self.tables.iter().find_map(|table| deepest(table, &path));
        let at = found.map_or(self.at(), |node| node.key_at.clone());
        let text = match wrong.path.last() {
            Some(key) => format!("`{key}`: {}", wrong.text),
            None => format!("[{}]: {}", self.path, wrong.text),
        };
        self.reader.problem(at, text);
    }

    /// A problem for each key nobody asked for.
    pub(crate) fn finish(self) {
        let asked = self.asked.borrow();
        for (key, node) in self.own.into_iter().flatten() {
            if !asked.contains(key.as_str()) {
                let hint = suggestion(key, asked.iter().copied());
                let text = format!("unknown key `{key}` in [{}]{hint}", self.path);
                self.reader.problem(node.key_at.clone(), text);
            }
        }
    }

    /// The value in the file: the section's own, or the file's default for all of its sort.
    fn node(&self, key: &'static str) -> Option<&'a Node> {
        self.asked.borrow_mut().insert(key);
        self.tables.iter().find_map(|table| table.get(key))
    }

    fn compiled(&self, key: &'static str) -> &'a Node {
        let node = self.compiled.and_then(|table| table.get(key));
        node.unwrap_or_else(|| panic!("config.default.toml has no `{key}` for [{}]", self.path))
    }

    fn compiled_text(&self, key: &'static str) -> String {
        match &self.compiled(key).value {
            Value::Text(text) => text.clone(),
            _ => panic!("the default of `{key}` is no text"),
        }
    }

    fn compiled_texts(&self, key: &'static str) -> Vec<String> {
        match self.compiled.and_then(|table| table.get(key)).map(|node| &node.value) {
            None => Vec::new(),
            Some(Value::Text(text)) => vec![text.clone()],
            Some(Value::List(items)) => items
                .iter()
                .filter_map(|item| match &item.value {
                    Value::Text(text) => Some(text.clone()),
                    _ => None,
                })
                .collect(),
            Some(_) => panic!("the default of `{key}` is no list of texts"),
        }
    }

    fn converted<T>(&self, key: &'static str, like: &str, read: impl Fn(&str) -> Result<T, String>) -> T {
        let compiled =
            || read(&self.compiled_text(key)).unwrap_or_else(|wrong| panic!("config.default.toml: {wrong}"));
        let Some(node) = self.node(key) else { return compiled() };
        let text = match &node.value {
            Value::Text(text) => self.filled(node, text),
            Value::Whole(number) => {
                let text = format!(
                    "`{key}` is a number without a unit; write \"{number}\" with one, as in \"{like}\""
                );
                self.reader.problem(node.at.clone(), text);
                None
            }
            other => self.not(key, node, other, "a text with a unit"),
        };
        text.and_then(|text| match read(&text) {
            Ok(value) => Some(value),
            Err(wrong) => {
                self.reader.problem(node.at.clone(), wrong);
                None
            }
        })
        .unwrap_or_else(compiled)
    }

    fn not<T>(&self, key: &str, node: &Node, value: &Value, wanted: &str) -> Option<T> {
        let text = format!("`{key}` is {}; it must be {wanted}", value.what());
        self.reader.problem(node.key_at.clone(), text);
        None
    }

    fn note_literals(&self, key: &'static str) {
        let literal = |value: &Value| matches!(value, Value::Text(text) if !text.contains("${"));
        let found = self.node(key).is_some_and(|node| match &node.value {
            Value::List(items) => items.iter().any(|item| literal(&item.value)),
            value => literal(value),
        });
        *self.reader.literal_secrets.borrow_mut() |= found;
    }

    /// Puts the environment's values in for `${NAME}`; `$${` stands for `${` itself.
    fn filled(&self, node: &Node, text: &str) -> Option<String> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some(place) = rest.find("${") {
            if rest[..place].ends_with('$') {
                filled.push_str(&rest[..place - 1]);
                filled.push_str("${");
                rest = &rest[place + 2..];
                continue;
            }
            filled.push_str(&rest[..place]);
            let Some(length) = rest[place..].find('}') else {
                self.reader.problem(node.key_at.clone(), "`${` without `}`; write `$${` for the text itself");
                return None;
            };
            let name = &rest[place + 2..place + length];
            let Some(value) = (self.reader.environment)(name) else {
                let text = format!(
                    "the environment variable `{name}` is not set; set it, or write `$${{` for `${{`"
                );
                self.reader.problem(node.key_at.clone(), text);
                return None;
            };
            filled.push_str(&value);
            rest = &rest[place + length + 1..];
        }
        filled.push_str(rest);
        Some(filled)
    }
}

fn inner_table<'a>(table: &'a Table, key: &str) -> Option<&'a Table> {
    match &table.get(key)?.value {
        Value::Table(inner) => Some(inner),
        _ => None,
    }
}

/// The node at the end of a path, or as far down as there is one.
fn deepest<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Node> {
    let (first, rest) = path.split_first()?;
    let node = table.get(*first)?;
    match &node.value {
        Value::Table(inner) => deepest(inner, rest).or(Some(node)),
        _ => Some(node),
    }
}
