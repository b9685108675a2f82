//! SQL lives where a reader looks for it, and says which rows it locks.

use super::Problem;
use super::rust_text::RustText;
use super::tree::{TextFile, Tree};

const STORES: &[&str] = &["crates/oncebox-sqlite/", "crates/oncebox-postgres/", "crates/oncebox-mariadb/"];
const FIRST_WORDS: &[&str] = &["select", "insert", "update", "delete", "with", "create", "alter", "drop"];

/// Statements stand in `.sql` files or in `sql.rs`, not in strings all over a store.
pub(super) fn check_strings(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.with_extension("rs").filter(|file| must_be_free_of_sql(*file)) {
        let rust = RustText::parse(file.text);
        for literal in rust.strings.iter().filter(|literal| !rust.is_test(literal.line)) {
            if let Some(word) = statement_word(&literal.text) {
                problems.push(Problem {
                    file: file.path.to_owned(),
                    line: literal.line,
                    what: format!("this string starts like SQL: `{word} `"),
                    remedy: "move the statement to a `.sql` file or to `sql.rs`, or reword a message"
                        .to_owned(),
                });
            }
        }
    }
    problems
}

/// Every `.sql` file starts with a comment; a statement's file with its own name and what it locks.
pub(super) fn check_first_lines(tree: &Tree) -> Vec<Problem> {
    let wrong = tree.with_extension("sql").filter_map(|file| {
        let first = file.text.lines().next().unwrap_or_default();
        let (good, wanted) = if file.is_below("sql") {
            let start = format!("-- {}: ", file.name());
            let good = first.strip_prefix(&start).is_some_and(|rest| !rest.trim().is_empty());
            (good, format!("`{start}…`, saying which rows it locks"))
        } else {
            (first.len() > 3 && first.starts_with("-- "), "`-- ` and what the file is for".to_owned())
        };
        (!good).then(|| Problem {
            file: file.path.to_owned(),
            line: 1,
            what: "the first line does not say what the file is".to_owned(),
            remedy: format!("start it with {wanted}"),
        })
    });
    wrong.collect()
}

fn must_be_free_of_sql(file: TextFile<'_>) -> bool {
    let exempt = ["tests", "examples", "benches", "sql"].iter().any(|folder| file.is_below(folder))
        || ["sql.rs", "tests.rs"].contains(&file.name());
    !exempt && STORES.iter().any(|store| file.path.starts_with(store))
}

fn statement_word(literal: &str) -> Option<&'static str> {
    let mut text = literal.trim_start();
    while let Some(rest) = ["\\\n", "\\n", "\\t"].iter().find_map(|blank| text.strip_prefix(blank)) {
        text = rest.trim_start();
    }
    let (first, _) = text.split_once(|c: char| c.is_whitespace() || c == '\\')?;
    FIRST_WORDS.iter().copied().find(|word| first.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_with_sql(path: &str, text: &str) -> Vec<usize> {
        check_strings(&Tree::from([(path, text)])).iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn sql_in_a_string_of_a_store_is_found() {
        let text = "/// \"select 1\"\nconst A: &str = \"\n  SELECT 1\";\nconst B: &str = \"\\\n update a set b = 1\";\n";
        assert_eq!(lines_with_sql("crates/oncebox-sqlite/src/store.rs", text), [2, 4]);
        assert_eq!(lines_with_sql("crates/oncebox-postgres/src/store.rs", "f(r\"with a as\")"), [1]);
    }

    #[test]
    fn sql_where_it_belongs_is_not_found() {
        let text = "const A: &str = \"select 1\";\n";
        for path in
            ["sqlite/src/sql.rs", "sqlite/tests/run.rs", "sqlite/examples/run.rs", "core/src/store.rs"]
        {
            assert_eq!(lines_with_sql(&format!("crates/oncebox-{path}"), text), [] as [usize; 0], "{path}");
        }
        let tests = "#[cfg(test)]\nmod tests { const A: &str = \"select 1\"; }\n";
        assert!(lines_with_sql("crates/oncebox-sqlite/src/store.rs", tests).is_empty());
    }

    #[test]
    fn other_strings_are_not_sql() {
        for text in ["selected", "the update failed", "select", "", "drop"] {
            assert_eq!(statement_word(text), None, "{text}");
        }
    }

    #[test]
    fn a_sql_file_must_say_what_it_is() {
        let tree = Tree::from([
            ("a/migrations/0001.sql", "-- The first tables.\ncreate table a ();\n"),
            ("a/migrations/0002.sql", "create table b ();\n"),
            ("a/sql/good.sql", "-- good.sql: locks nothing\nselect 1\n"),
            ("a/sql/named.sql", "-- other.sql: locks nothing\nselect 1\n"),
            ("a/sql/silent.sql", "-- silent.sql: \nselect 1\n"),
        ]);
        let files: Vec<_> = check_first_lines(&tree).into_iter().map(|problem| problem.file).collect();
        assert_eq!(files, ["a/migrations/0002.sql", "a/sql/named.sql", "a/sql/silent.sql"]);
    }
}
