//! In the core, time comes from a clock and randomness from a seed.

use super::Problem;
use super::rust_text::RustText;
use super::tree::Tree;

const FOLDER: &str = "crates/oncebox-core/src/";
const EXEMPT: &str = "clock.rs";

/// What asks the system, and whom to ask instead.
const CALLS: &[(&str, &str)] = &[
    ("SystemTime::now", "ask the clock"),
    ("Utc::now", "ask the clock"),
    ("Timestamp::now", "ask the clock"),
    ("rand::random", "use the seed"),
    ("thread_rng", "use the seed"),
];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    let files =
        tree.with_extension("rs").filter(|file| file.path.starts_with(FOLDER) && file.name() != EXEMPT);
    for file in files {
        for (line, code) in RustText::parse(file.text).numbered_lines() {
            for (call, remedy) in CALLS.iter().filter(|(call, _)| code.contains(call)) {
                problems.push(Problem {
                    file: file.path.to_owned(),
                    line,
                    what: format!("`{call}` asks the system, so no test can control it"),
                    remedy: (*remedy).to_owned(),
                });
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_the_system_in_the_core_is_found() {
        let text = "// not Timestamp::now\nlet now = jiff::Timestamp::now();\nlet ok = Instant::now();\n";
        let tree = Tree::from([
            ("crates/oncebox-core/src/run.rs", text),
            ("crates/oncebox-core/src/clock.rs", text),
            ("crates/oncebox-core/tests/run.rs", text),
            ("crates/oncebox-core/src/engine/retry.rs", "let a: u64 = rand::random();\n"),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|problem| (problem.file, problem.line)).collect();
        assert_eq!(
            found,
            [
                ("crates/oncebox-core/src/engine/retry.rs".to_owned(), 1),
                ("crates/oncebox-core/src/run.rs".to_owned(), 2)
            ]
        );
    }
}
