//! Which kinds a handler wants.

/// One or more kinds: exact names, or prefixes with a trailing `*`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kinds {
    /// Kinds wanted by their whole name.
    pub exact: Vec<String>,
    /// Kinds wanted by how they begin; `*` alone is the empty prefix.
    pub prefixes: Vec<String>,
}

impl Kinds {
    /// True when a message of this kind is wanted.
    pub fn wants(&self, kind: &str) -> bool {
        self.exact.iter().any(|exact| exact == kind)
            || self.prefixes.iter().any(|prefix| kind.starts_with(prefix.as_str()))
    }

    /// The patterns as they were written.
    pub fn patterns(&self) -> impl Iterator<Item = String> {
        self.exact.iter().cloned().chain(self.prefixes.iter().map(|prefix| format!("{prefix}*")))
    }

    /// Adds one pattern; says what is wrong with it when it is not one.
    pub fn add(&mut self, pattern: &str) -> Result<(), String> {
        match pattern.strip_suffix('*') {
            Some(prefix) if prefix.contains('*') => {
                Err(format!("kind pattern `{pattern}` has a `*` that is not at its end"))
            }
            Some(prefix) => {
                self.prefixes.push(prefix.to_owned());
                Ok(())
            }
            None if pattern.is_empty() => Err("a kind pattern is empty; write `*` for every kind".to_owned()),
            None if pattern.contains('*') => {
                Err(format!("kind pattern `{pattern}` has a `*` that is not at its end"))
            }
            None => {
                self.exact.push(pattern.to_owned());
                Ok(())
            }
        }
    }
}

/// What [`Inbox::on`](crate::Inbox::on) takes: one kind, or a list of them.
pub trait IntoKinds {
    /// The patterns, as written.
    fn into_patterns(self) -> Vec<String>;
}

impl IntoKinds for &str {
    fn into_patterns(self) -> Vec<String> {
        vec![self.to_owned()]
    }
}

impl IntoKinds for String {
    fn into_patterns(self) -> Vec<String> {
        vec![self]
    }
}

impl<T: Into<String>, const N: usize> IntoKinds for [T; N] {
    fn into_patterns(self) -> Vec<String> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<T: Into<String>> IntoKinds for Vec<T> {
    fn into_patterns(self) -> Vec<String> {
        self.into_iter().map(Into::into).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trailing_star_matches_by_prefix_and_nothing_else_does() {
        let mut kinds = Kinds::default();
        kinds.add("order.placed").unwrap();
        kinds.add("page.*").unwrap();
        assert!(kinds.wants("order.placed") && kinds.wants("page.viewed") && kinds.wants("page."));
        assert!(!kinds.wants("order.placed2") && !kinds.wants("page") && !kinds.wants("Order.placed"));
        for wrong in ["", "a*b", "*a", "a**"] {
            assert!(kinds.add(wrong).is_err(), "{wrong}");
        }
    }
}
