//! What is fine while working and must not stay: paths of one machine, unfinished code, tests that do not run.

use super::Problem;
use super::rust_text::RustText;
use super::tree::Tree;

/// Folders that exist only where this was written. In two halves, so that this file does not name them itself.
const ABSOLUTE_FOLDERS: &[&str] = &[concat!("/", "work/"), concat!("/", "root/")];
const RELATIVE_FOLDER: &str = concat!("shared", "/");

/// What stands in unfinished code, and what to do about it.
const UNFINISHED: &[(&str, &str)] = &[
    ("todo!(", "finish it"),
    ("unimplemented!(", "implement it, or take it out of the interface"),
    ("#[ignore", "make the test pass, or look at `ONCEBOX_TEST_ALL` when it is slow"),
];

/// Nothing refers to folders that other machines do not have.
pub(super) fn check_machine_paths(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.text_files().filter(|file| file.name() != "Cargo.lock") {
        for (line, text) in file.numbered_lines() {
            if let Some(folder) = machine_path(text) {
                problems.push(Problem {
                    file: file.path.to_owned(),
                    line,
                    what: format!("`{folder}` does not exist on other machines"),
                    remedy: "name a file of this repository".to_owned(),
                });
            }
        }
    }
    problems
}

/// Code is finished and every test runs.
pub(super) fn check_unfinished(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.with_extension("rs") {
        for (line, code) in RustText::parse(file.text).numbered_lines() {
            for (mark, remedy) in UNFINISHED.iter().filter(|(mark, _)| code.contains(mark)) {
                problems.push(Problem {
                    file: file.path.to_owned(),
                    line,
                    what: format!("`{mark}` is left in the code"),
                    remedy: (*remedy).to_owned(),
                });
            }
        }
    }
    problems
}

fn machine_path(line: &str) -> Option<&'static str> {
    let mut absolute = ABSOLUTE_FOLDERS.iter().copied();
    let found = absolute.find(|folder| line.match_indices(folder).any(|(at, _)| starts_path(&line[..at])));
    found.or_else(|| {
        let mut places = line.match_indices(RELATIVE_FOLDER);
        let is_path = |at: usize| {
            let before = line[..at].trim_end_matches("../");
            starts_path(before) && !before.ends_with('/') && names_a_file(&line[at + RELATIVE_FOLDER.len()..])
        };
        places.any(|(at, _)| is_path(at)).then_some(RELATIVE_FOLDER)
    })
}

/// Whether a path can start after this text: `example.com/work/` is part of a longer one.
fn starts_path(before: &str) -> bool {
    !before.ends_with(|c: char| c.is_alphanumeric() || "._-".contains(c))
}

/// Whether a file or folder is named here: "a shared/exclusive lock" is prose.
fn names_a_file(text: &str) -> bool {
    let after = text.trim_start_matches(|c: char| c.is_alphanumeric() || "_-".contains(c));
    let extension =
        after.strip_prefix('.').is_some_and(|rest| rest.starts_with(|c: char| c.is_alphanumeric()));
    after.len() < text.len() && (extension || after.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_one_machine_are_found() {
        for text in [
            concat!("see /", "work/main"),
            concat!("(/", "root/.cargo)"),
            concat!("file:///", "root/x"),
            concat!("see sha", "red/design.md"),
            concat!("[x](../sha", "red/notes/a)"),
        ] {
            assert_eq!(check_machine_paths(&Tree::from([("a.md", text)])).len(), 1, "{text}");
            assert!(check_machine_paths(&Tree::from([("Cargo.lock", text)])).is_empty(), "{text}");
        }
    }

    #[test]
    fn other_folders_are_not_found() {
        for text in
            ["network/work/x", "https://example.com/work/x", "a shared/exclusive lock", "src/shared/a.rs"]
        {
            assert_eq!(machine_path(text), None, "{text}");
        }
    }

    #[test]
    fn unfinished_code_is_found() {
        let text = "// todo!() in a comment\nfn a() { todo!() }\n#[ignore = \"slow\"]\nfn b() { unimplemented!() }\n";
        let lines: Vec<_> = check_unfinished(&Tree::from([("a.rs", text)])).iter().map(|p| p.line).collect();
        assert_eq!(lines, [2, 3, 4]);
        assert!(check_unfinished(&Tree::from([("a.md", text)])).is_empty());
    }
}
