//! A test that a document names is one that there is.

use std::collections::HashSet;

use super::Problem;
use super::tree::Tree;

/// A name of at least this many words is a test's, for nothing else is called so at length.
const WORDS: usize = 4;

/// But metrics and the settings of databases, which begin like this.
const OTHERS: &[&str] = &["oncebox_", "innodb_", "idle_in_transaction_", "log_bin_"];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let functions: HashSet<&str> = tree.with_extension("rs").flat_map(|file| functions(file.text)).collect();
    let mut problems = Vec::new();
    for file in tree.with_extension("md") {
        for (line, text) in file.numbered_lines() {
            let missing = named(text).filter(|name| !functions.contains(name));
            problems.extend(missing.map(|name| Problem {
                file: file.path.to_owned(),
                line,
                what: format!("there is no test `{name}`"),
                remedy: "name the test as it is called now".to_owned(),
            }));
        }
    }
    problems
}

fn functions(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |one: char| one.is_ascii_alphanumeric() || one == '_';
    text.split("fn ").skip(1).map(move |rest| rest.split(|one| !is_part(one)).next().unwrap_or_default())
}

/// What stands in backticks and looks like the name of a test.
fn named(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2).filter(|name| {
        let is_name = name.chars().all(|one| one.is_ascii_lowercase() || one.is_ascii_digit() || one == '_');
        is_name && name.split('_').count() >= WORDS && !OTHERS.iter().any(|other| name.starts_with(other))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_is_not_there_is_found() {
        let tree = Tree::from([
            ("guides/one.md", "Kept by `a_rule_that_holds` and\n`a_rule_that_is_gone`, as `some_fn` says.\n"),
            ("crates/one/tests/rules.rs", "#[test]\nfn a_rule_that_holds() {}\nasync fn other<T>() {}\n"),
        ]);
        let found: Vec<_> = check(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            ["guides/one.md:2: there is no test `a_rule_that_is_gone`; name the test as it is called now"]
        );
    }

    #[test]
    fn metrics_settings_and_code_are_no_tests() {
        let text = "`oncebox_http_requests_total` `innodb_lock_wait_timeout` `let a_b_c_d = 1` a_b_c_d\n";
        assert!(check(&Tree::from([("README.md", text)])).is_empty());
    }
}
