//! The audit log as lines with stable ids. Log shippers copy it to storage that the store's roles
//! cannot change.

use std::time::Duration;

use jiff::Timestamp;

use crate::{maintenance::lock::AuditEvent, shown::OneLine};

/// A line's position in the export. Later lines have a higher position.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuditPosition {
    /// The commit's order.
    pub(super) order: i64,
    /// The commit, if the order does not identify it.
    pub(super) commit: String,
    /// The line's number within its commit, or within the store.
    pub(super) number: i64,
}

/// An audit line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLine {
    /// The line's permanent id within its store.
    pub id: String,
    /// The position from which the next export continues.
    pub position: AuditPosition,
    /// The event, or the stored text if it cannot be parsed.
    pub event: Result<AuditEvent, OneLine>,
    /// The database role and time, if the store's server records them.
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
