//! The invariants of this repository that the compiler does not check.
//!
//! Each check is a function from the files to its [`Problem`]s, in a file of its own with its tests. A new check is a
//! new file and a line in `CHECKS`.

mod clock;
mod dependencies;
mod included;
mod leftovers;
mod length;
mod links;
mod named_tests;
mod rust_text;
mod sql;
mod stores;
mod tree;
mod words;

use std::fmt;
use std::path::Path;

use crate::cargo;
use crate::error::Error;

use tree::Tree;

const CHECKS: &[fn(&Tree) -> Vec<Problem>] = &[
    length::check,
    sql::check_strings,
    sql::check_first_lines,
    clock::check,
    words::check,
    stores::check,
    links::check,
    included::check,
    named_tests::check,
    leftovers::check_machine_paths,
    leftovers::check_unfinished,
];

/// One place where an invariant does not hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file, from the root of the repository.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}; {}", self.file, self.line, self.what, self.remedy)
    }
}

/// Runs every check; the problems come sorted by place.
///
/// Fails when the files or `cargo metadata` cannot be read.
pub fn check(root: &Path) -> Result<Vec<Problem>, Error> {
    let tree = Tree::read(root)?;
    let graph = dependencies::Graph::from_metadata(&cargo::metadata(root)?, root);
    let mut problems = dependencies::check(&graph, &tree);
    problems.extend(CHECKS.iter().flat_map(|check| check(&tree)));
    problems.sort();
    problems.dedup();
    Ok(problems)
}

/// One line about how many problems there are.
pub fn summary(problems: &[Problem]) -> String {
    match problems.len() {
        0 => "tidy".to_owned(),
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    }
}
