//! A program shown in a guide is the file that the tests run, to the letter.

use super::Problem;
use super::tree::{TextFile, Tree};

/// Stands alone on the line before the code block: `<!-- file: examples/languages/psql/charge.sql -->`.
const BEFORE: &str = "<!-- file: ";
const AFTER: &str = " -->";

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    tree.with_extension("md").flat_map(|file| check_file(tree, file)).collect()
}

fn check_file(tree: &Tree, file: TextFile<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut lines = file.numbered_lines();
    while let Some((line, text)) = lines.next() {
        let Some(path) = text.strip_prefix(BEFORE).and_then(|rest| rest.strip_suffix(AFTER)) else {
            continue;
        };
        let mut problem = |what: String, remedy: &str| {
            problems.push(Problem { file: file.path.to_owned(), line, what, remedy: remedy.to_owned() });
        };
        let opened = lines.next().is_some_and(|(_, text)| text.starts_with("```"));
        let mut shown = String::new();
        for (_, text) in lines.by_ref().take_while(|(_, text)| opened && *text != "```") {
            shown.push_str(text);
            shown.push('\n');
        }
        match tree.text(path) {
            None => problem(format!("there is no file `{path}`"), "name a file of the repository"),
            Some(_) if !opened => problem(
                format!("`{path}` is named, but no code follows"),
                "put the file's text into a code block in the next line",
            ),
            Some(text) if text != shown => problem(
                format!("the code is not that of `{path}`, which the tests run"),
                "copy the file's text into the code block",
            ),
            Some(_) => {}
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(guide: &str) -> Vec<String> {
        let tree = Tree::from([("guides/a.md", guide), ("examples/a.py", "one\n\ntwo\n")]);
        check(&tree).into_iter().map(|problem| format!("{}: {}", problem.line, problem.what)).collect()
    }

    #[test]
    fn the_code_must_be_the_file() {
        let none: [&str; 0] = [];
        assert_eq!(
            problems("# A\n\n<!-- file: examples/a.py -->\n```python\none\n\ntwo\n```\n\nText.\n"),
            none
        );
        assert_eq!(
            problems("<!-- file: examples/a.py -->\n```python\none\n```\n"),
            ["1: the code is not that of `examples/a.py`, which the tests run"]
        );
        assert_eq!(
            problems("\n<!-- file: examples/b.py -->\n```\n```\n"),
            ["2: there is no file `examples/b.py`"]
        );
        assert_eq!(
            problems("<!-- file: examples/a.py -->\n\nText.\n"),
            ["1: `examples/a.py` is named, but no code follows"]
        );
    }
}
