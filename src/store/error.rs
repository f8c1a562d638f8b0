//! What can go wrong between us and a store.

use crate::maintenance::{
    ids::{LockKey, MaintenanceId},
    lock::Refusal,
};

/// A failed request to a store. Messages name no credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be opened or reached, or did not answer in time. Nothing is known about
    /// what it holds.
    #[error("the coordination store {address} cannot be used: {cause}")]
    Unavailable {
        /// Which, without credentials.
        address: String,
        /// The cause, for people.
        cause: String,
    },
    /// The store answers reads and rejects every change: a full disk, a quota, a read-only primary.
    /// The rejected change was not stored.
    #[error("the coordination store {address} accepts no changes: {cause}")]
    Unwritable {
        /// Which, without credentials.
        address: String,
        /// The cause, for people.
        cause: String,
    },
    /// The store refuses access: the login, a missing right, or a URL that it cannot be used with.
    #[error("the coordination store {address} refuses: {cause}")]
    Forbidden {
        /// Which, without credentials.
        address: String,
        /// The cause, for people.
        cause: String,
    },
    /// Other users may change it unnoticed.
    #[error("the coordination store {address} is not used: {cause}")]
    Untrusted {
        /// Which, without credentials.
        address: String,
        /// Who may, and what to do.
        cause: String,
    },
    /// What it holds is not what this version can read.
    #[error("the coordination store {address} cannot be read: {cause}")]
    Unreadable {
        /// Which, without credentials.
        address: String,
        /// The cause, for people.
        cause: String,
    },
    /// The transition was refused; nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Another lock key has an active record of this name.
    #[error("{id} is active for another server ({key})")]
    NameTaken {
        /// The name.
        id: MaintenanceId,
        /// Where it is active.
        key: LockKey,
    },
    /// A server's name stands for another machine than before.
    #[error("{server} was {bound} and is now {found}")]
    OtherIdentity {
        /// The server's name.
        server: String,
        /// The key it is bound to.
        bound: LockKey,
        /// The key that was found now.
        found: LockKey,
    },
    /// It shows less than it was seen to hold: a backup, a snapshot or a standby that lagged took
    /// the place of newer data.
    #[error("the coordination store {address} went back in time: {cause}")]
    WentBack {
        /// Which, without credentials.
        address: String,
        /// The revision that was read before, and the present one.
        cause: String,
    },
    /// An export starts after a line that the store does not have.
    #[error(
        "the coordination store {address} has no audit line {id:?}: it was pruned, or belongs to another store. Lines after it can \
         be missing, too. Next: audit export --since DURATION"
    )]
    NoSuchLine {
        /// Which, without credentials.
        address: String,
        /// The id.
        id: String,
    },
    /// An import needs an empty store, and this one was used.
    #[error("the coordination store {address} is not empty")]
    InUse {
        /// Which, without credentials.
        address: String,
    },
}

impl StoreError {
    /// Returns true if the same request can succeed later with the same configuration.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Unwritable { .. })
    }
}
