//! Links in Markdown to files of the repository lead somewhere.

use super::Problem;
use super::tree::{TextFile, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    tree.with_extension("md").flat_map(|file| check_file(tree, file)).collect()
}

fn check_file(tree: &Tree, file: TextFile<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut fence: Option<&str> = None;
    for (line, text) in file.numbered_lines() {
        let marker = ["```", "~~~"].into_iter().find(|marker| text.trim_start().starts_with(marker));
        match (fence, marker) {
            (None, Some(opening)) => fence = Some(opening),
            (Some(opening), Some(closing)) if opening == closing => fence = None,
            (Some(_), _) => {}
            (None, None) => {
                let broken = targets(text).into_iter().filter(|target| is_broken(tree, file.path, target));
                problems.extend(broken.map(|target| Problem {
                    file: file.path.to_owned(),
                    line,
                    what: format!("the link to `{target}` leads nowhere"),
                    remedy: "name a file of this repository".to_owned(),
                }));
            }
        }
    }
    problems
}

/// The targets of `[text](target)`, `![text](target)` and `[name]: target`.
fn targets(line: &str) -> Vec<String> {
    let line = without_code(line);
    let mut found: Vec<String> =
        line.split("](").skip(1).filter_map(|after| after.split(')').next()).map(bare).collect();
    let definition = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    found.extend(definition.map(|(_, target)| bare(target)));
    found
}

/// Without angle brackets and without a title.
fn bare(target: &str) -> String {
    let target = target.trim();
    match target.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
        Some((inside, _)) => inside.to_owned(),
        None => target.split_whitespace().next().unwrap_or_default().to_owned(),
    }
}

fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

fn is_broken(tree: &Tree, file: &str, target: &str) -> bool {
    let path = target.split(['#', '?']).next().unwrap_or_default();
    // `::` and a kind before `@` are rustdoc's links to items; rustdoc checks them itself.
    let elsewhere = path.is_empty() || path.contains(':') || path.contains('@') || path.starts_with("//");
    !elsewhere && !resolve(file, path).is_some_and(|path| tree.contains(&path))
}

/// The path from the root; none when it leads out of the repository.
fn resolve(file: &str, target: &str) -> Option<String> {
    let (mut parts, relative): (Vec<&str>, &str) = match target.strip_prefix('/') {
        Some(from_root) => (Vec::new(), from_root),
        None => (file.split('/').collect(), target),
    };
    if relative == target {
        parts.pop();
    }
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            _ => parts.push(part),
        }
    }
    Some(parts.join("/").replace("%20", " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(text: &str) -> Vec<String> {
        let tree =
            Tree::from([("guides/one.md", text), ("README.md", ""), ("guides/two.md", ""), ("a/b.rs", "")]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let text = "See [x](two.md) and\n[y](three.md#part).\n\n[z]: ../nowhere/\n[o](../../outside.md)\n";
        assert_eq!(
            broken(text),
            [
                "guides/one.md:2: the link to `three.md#part` leads nowhere; name a file of this repository",
                "guides/one.md:4: the link to `../nowhere/` leads nowhere; name a file of this repository",
                "guides/one.md:5: the link to `../../outside.md` leads nowhere; name a file of this repository",
            ]
        );
    }

    #[test]
    fn links_that_lead_somewhere_are_not_found() {
        let text = "[a](../README.md \"title\") [b](/a/b.rs) [c](<two.md>) [d](#here) [e](https://example.com/x)\n\
                    [f](../a/) ![g](./two.md) [h](crate::Thing) [i](mailto:a@b) [j](..)\n\
                    `[code](nowhere.md)`\n```md\n[k](nowhere.md)\n```\n";
        assert_eq!(broken(text), [] as [String; 0]);
    }
}
