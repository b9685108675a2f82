//! One word, one meaning: the words we do not use.

use super::Problem;
use super::tree::{TextFile, Tree};

/// The word we do not use, in any case and also with an `s`, and the one we do.
const WORDS: &[(&str, &str)] = &[
    ("backend", "store"),
    ("dlq", "dead letter"),
    ("poison", "dead letter"),
    ("ttl", "keep"),
    ("worker", "handler, runner or process"),
];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.text_files().filter(|file| is_read_by_users(*file)) {
        for (line, text) in file.numbered_lines() {
            // Whole names only: Postgres has a function `pg_terminate_backend`, the standard library `PoisonError`.
            for word in text.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
                let Some(ours) = replacement(word) else { continue };
                problems.push(Problem {
                    file: file.path.to_owned(),
                    line,
                    what: format!("we do not use the word `{word}`"),
                    remedy: format!("say `{ours}`"),
                });
            }
        }
    }
    problems
}

fn is_read_by_users(file: TextFile<'_>) -> bool {
    let in_crate = file.path.strip_prefix("crates/").and_then(|path| path.split('/').nth(1)) == Some("src");
    in_crate || file.path == "README.md" || file.path.starts_with("guides/")
}

fn replacement(word: &str) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    let singular = word.strip_suffix('s').unwrap_or(&word);
    WORDS.iter().find(|(theirs, _)| *theirs == word || *theirs == singular).map(|(_, ours)| *ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_we_do_not_use_is_found_wherever_users_read() {
        let tree = Tree::from([
            ("README.md", "Fine.\nNo DLQ here.\n"),
            ("guides/one.md", "Two Backends.\n"),
            ("crates/oncebox/src/lib.rs", "//! keep\nfn ttl() {}\n"),
            ("crates/oncebox/tests/run.rs", "fn ttl() {}\n"),
            ("COMPARE.md", "Others call it DLQ.\n"),
        ]);
        let found: Vec<_> = check(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "README.md:2: we do not use the word `DLQ`; say `dead letter`",
                "crates/oncebox/src/lib.rs:2: we do not use the word `ttl`; say `keep`",
                "guides/one.md:1: we do not use the word `Backends`; say `store`",
            ]
        );
    }

    #[test]
    fn longer_names_are_other_words() {
        let text = "select pg_terminate_backend(pid), backend_type; PoisonError; tokio::task;\n";
        assert!(check(&Tree::from([("crates/oncebox/src/lib.rs", text)])).is_empty());
    }
}
