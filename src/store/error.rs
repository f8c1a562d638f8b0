//! Store errors.

use crate::{
    maintenance::{
        ids::{LockKey, MaintenanceId},
        lock::Refusal,
    },
    shown::OneLine,
};

/// A failed store request. Messages contain no credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be opened or reached, or did not answer in time. Its contents are unknown.
    #[error("the coordination store {address} cannot be used: {cause}")]
    Unavailable {
        /// The store, without credentials.
        address: OneLine,
        /// The cause, for people.
        cause: OneLine,
    },
    /// The store answers reads and rejects every change: a full disk, a quota, a read-only primary.
    /// The rejected change was not stored.
    #[error("the coordination store {address} accepts no changes: {cause}")]
    Unwritable {
        /// The store, without credentials.
        address: OneLine,
        /// The cause, for people.
        cause: OneLine,
    },
    /// The store denies access: failed login, missing permission, or unusable URL.
    #[error("the coordination store {address} denied access: {cause}")]
    Forbidden {
        /// The store, without credentials.
        address: OneLine,
        /// The cause, for people.
        cause: OneLine,
    },
    /// Other users can change the store unnoticed.
    #[error("the coordination store {address} is not used: {cause}")]
    Untrusted {
        /// The store, without credentials.
        address: OneLine,
        /// The users with write access, and the fix.
        cause: OneLine,
    },
    /// This version cannot read the stored data.
    #[error("the coordination store {address} cannot be read: {cause}")]
    Unreadable {
        /// The store, without credentials.
        address: OneLine,
        /// The cause, for people.
        cause: OneLine,
    },
    /// The transition was refused; nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Another lock key has an active record with this name.
    #[error("{id} is active for another server ({key})")]
    NameTaken {
        /// The name.
        id: MaintenanceId,
        /// The lock key with the active record.
        key: LockKey,
    },
    /// A server's name now refers to a different machine.
    #[error("{server} was {bound} but is now {found}")]
    OtherIdentity {
        /// The server's name.
        server: OneLine,
        /// The bound key.
        bound: LockKey,
        /// The key found now.
        found: LockKey,
    },
    /// The store returned older data than before: a backup, a snapshot or a lagging standby
    /// replaced it.
    #[error("the coordination store {address} went back in time: {cause}")]
    WentBack {
        /// The store, without credentials.
        address: OneLine,
        /// The revision read before, and the current revision.
        cause: OneLine,
    },
    /// An export starts after a line that the store does not have.
    #[error(
        "the coordination store {address} does not contain audit line {id:?}: it was pruned, or belongs to another \
         store. Lines after it can be missing, too. Next: audit export --since DURATION"
    )]
    NoSuchLine {
        /// The store, without credentials.
        address: OneLine,
        /// The line's id.
        id: OneLine,
    },
    /// An import requires an empty store.
    #[error("the coordination store {address} is not empty")]
    InUse {
        /// The store, without credentials.
        address: OneLine,
    },
}

impl StoreError {
    /// Returns true if the same request can succeed later with the same configuration.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Unwritable { .. })
    }
}
