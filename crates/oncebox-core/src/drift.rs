//! What differs between a schema and what its migrations make, for stores that can list both.

use std::collections::{BTreeMap, BTreeSet};

/// Every object of a schema by its description (``index `log_key` ``), with its owner and its definition.
///
/// The owner is the table or function it belongs to.
pub type Catalog = BTreeMap<String, (String, String)>;

/// A line for each thing that is missing, was changed, or was added to something of ours.
///
/// An owner that is not among the expected ones is somebody else's, and left out.
pub fn differences(expected: &Catalog, found: &Catalog) -> Vec<String> {
    let mut lines = Vec::new();
    for (object, (_, definition)) in expected {
        match found.get(object) {
            None => lines.push(format!("{object} is missing")),
            Some((_, other)) if other != definition => lines.push(format!("{object} was changed")),
            Some(_) => {}
        }
    }
    let ours: BTreeSet<&str> = expected.values().map(|(owner, _)| owner.as_str()).collect();
    for (object, (owner, _)) in found {
        if ours.contains(owner.as_str()) && !expected.contains_key(object) {
            lines.push(format!("{object} was added"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalog(rows: &[(&str, &str, &str)]) -> Catalog {
        rows.iter()
            .map(|(object, owner, text)| ((*object).to_owned(), ((*owner).to_owned(), (*text).to_owned())))
            .collect()
    }

    #[test]
    fn what_is_missing_changed_or_added_to_ours_is_told() {
        let expected =
            catalog(&[("table `a`", "a", ""), ("index `i`", "a", "(x)"), ("index `j`", "a", "(y)")]);
        let found = catalog(&[
            ("table `a`", "a", ""),
            ("index `i`", "a", "(x, y)"),
            ("index `k`", "a", "(z)"),
            ("table `b`", "b", ""),
        ]);
        assert_eq!(
            differences(&expected, &found),
            ["index `i` was changed", "index `j` is missing", "index `k` was added"]
        );
        assert!(differences(&expected, &expected).is_empty());
    }
}
