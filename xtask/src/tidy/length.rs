//! A file is about one noun, so no Rust file grows past a limit.

use super::Problem;
use super::tree::Tree;

const LIMIT: usize = 800;

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let long = tree.with_extension("rs").filter_map(|file| {
        let count = file.text.lines().count();
        (count > LIMIT).then(|| Problem {
            file: file.path.to_owned(),
            line: LIMIT + 1,
            what: format!("the file has {count} lines, the limit is {LIMIT}"),
            remedy: "split it by noun".to_owned(),
        })
    });
    long.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rust_file_over_the_limit_is_found() {
        let (fits, long) = ("//\n".repeat(LIMIT), "//\n".repeat(LIMIT + 1));
        let tree = Tree::from([("fits.rs", &*fits), ("long.rs", &*long), ("long.md", &*long)]);
        let problems = check(&tree);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].to_string().starts_with("long.rs:801: the file has 801 lines"));
    }
}
