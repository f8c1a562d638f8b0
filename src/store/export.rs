//! The audit log as lines with stable ids, so that a log shipper can copy it beyond the reach of
//! the store's roles.

use std::time::Duration;

use jiff::Timestamp;

use crate::maintenance::lock::AuditEvent;

/// The place of a line in the order of an export. Later lines have a higher position.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuditPosition {
    /// The order of the line's commit.
    pub(super) order: i64,
    /// The commit, where the order alone does not identify it.
    pub(super) commit: String,
    /// The line's number within its commit, or within the store.
    pub(super) number: i64,
}

/// An audit line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLine {
    /// Identifies the line in its store, forever.
    pub id: String,
    /// Where the export continues after this line.
    pub position: AuditPosition,
    /// The event, or the stored text that cannot be read.
    pub event: Result<AuditEvent, String>,
    /// The database's role and time, where the store's server records them.
    pub stamp: Option<(String, Timestamp)>,
}

/// The first line of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditStart {
    /// The oldest line.
    Oldest,
    /// The first line of this age or younger.
    Age(Duration),
    /// The line after this id. The id must exist: if it was pruned, later lines can be missing too.
    AfterId(String),
    /// The line after this position.
    After(AuditPosition),
}
