//! Whether the audit log is as it was written.

use std::fmt;

/// What a look at all lines of the audit log found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditProof {
    /// The store keeps no chain.
    None(&'static str),
    /// Each line fits.
    Whole {
        /// How many lines are in the chain.
        lines: u64,
        /// How many older ones were pruned.
        forgotten: u64,
        /// How many are not in the chain yet: the next change adds them.
        waiting: u64,
    },
    /// A line does not fit.
    Broken(BrokenLine),
}

/// The first line that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenLine {
    /// Its place in the chain.
    pub number: i64,
    /// What of it does not fit.
    pub problem: &'static str,
    /// When it was written, by which role, and about which maintenance; nothing where it is missing.
    pub line: Option<String>,
}

impl fmt::Display for BrokenLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} {}", self.number, self.problem)?;
        self.line.as_ref().map_or(Ok(()), |line| write!(f, ": {line}"))
    }
}
