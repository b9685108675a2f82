//! What is wrong, or soon will be, with a store.

/// How bad a [`Finding`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Costs speed or space; nothing is at stake.
    Note,
    /// Becomes a fault if nobody acts.
    Warning,
    /// Messages do not flow, or the guarantee does not hold.
    Fault,
}

impl Severity {
    /// The word for it, as commands and tables show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fault => "fault",
        }
    }
}

impl Finding {
    /// A finding.
    pub fn new(
        code: &'static str,
        severity: Severity,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { code, severity, what: what.into(), remedy: remedy.into() }
    }
}

/// One thing that is wrong, with its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// A short stable word for programs, such as `synchronous-commit-off`.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What was seen, with names and numbers.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}
