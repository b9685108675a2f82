//! Learn one store, know them all: the same file names in each.

use std::collections::{BTreeMap, BTreeSet};

use super::Problem;
use super::tree::Tree;

/// Crates that have the same files in `src`; the ones not written yet are passed over.
const GROUPS: &[&[&str]] = &[&["oncebox-sqlite", "oncebox-postgres", "oncebox-mariadb"]];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    GROUPS.iter().flat_map(|group| check_group(tree, group)).collect()
}

fn check_group(tree: &Tree, group: &[&str]) -> Vec<Problem> {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    let mut present: BTreeSet<(&str, &str)> = BTreeSet::new();
    let crates: Vec<&str> =
        group.iter().copied().filter(|name| tree.contains(&format!("crates/{name}/Cargo.toml"))).collect();
    for name in &crates {
        let folder = format!("crates/{name}/src/");
        for file in tree.with_extension("rs") {
            let Some(file) = file.path.strip_prefix(&folder).filter(|file| !file.contains('/')) else {
                continue;
            };
            owners.entry(file).or_insert(name);
            present.insert((name, file));
        }
    }
    let every_pair =
        crates.iter().flat_map(|name| owners.iter().map(move |(file, owner)| (*name, *file, *owner)));
    let missing = every_pair.filter(|(name, file, _)| !present.contains(&(*name, *file)));
    missing
        .map(|(name, file, owner)| Problem {
            file: format!("crates/{name}/src/{file}"),
            line: 1,
            what: format!("the file is missing, but {owner} has it"),
            remedy: "give both the same file names".to_owned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_only_one_store_has_is_found() {
        let tree = Tree::from([
            ("crates/oncebox-postgres/Cargo.toml", ""),
            ("crates/oncebox-postgres/src/lib.rs", ""),
            ("crates/oncebox-postgres/src/notify.rs", ""),
            ("crates/oncebox-sqlite/Cargo.toml", ""),
            ("crates/oncebox-sqlite/src/lib.rs", ""),
            ("crates/oncebox-sqlite/src/sql/only_here.rs", ""),
            ("crates/oncebox-sqlite/src/wal.rs", ""),
        ]);
        let files: Vec<_> = check(&tree).into_iter().map(|problem| problem.file).collect();
        assert_eq!(files, ["crates/oncebox-sqlite/src/notify.rs", "crates/oncebox-postgres/src/wal.rs"]);
    }
}
