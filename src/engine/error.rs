//! Errors of a drive.

use crate::{
    backend::BackendError,
    maintenance::{identity::IdentityError, ids::MaintenanceId, lock::Refusal, state::Maintenance},
    store::StoreError,
};

/// A drive that ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// The store failed during a maintenance. The record lists the changes to the server before
    /// that.
    #[error("{cause}")]
    StoreLost {
        /// The maintenance.
        id: MaintenanceId,
        /// The store's error.
        cause: Box<StoreError>,
    },
    /// The machine failed.
    #[error(transparent)]
    Machine(#[from] BackendError),
    /// The protocol rejected the change; nothing changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The server's lock could not be determined; nothing changed.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// No server matches the identifier.
    #[error("{text:?} is neither a known OWNER/SERVER nor a known identifier of {store}")]
    UnknownIdentifier {
        /// The given text.
        text: String,
        /// The store's address.
        store: String,
    },
    /// The lease is lost, so calls to the machine are not allowed.
    #[error("this process lost its lease and could not renew it: {0}")]
    LeaseLost(String),
    /// The process was stopped before it recorded or did anything.
    #[error("stopped before anything was done")]
    Stopped,
    /// The store does not contain the maintenance.
    #[error("{id} is not in {store}")]
    NotFound {
        /// Its name.
        id: MaintenanceId,
        /// The store's address.
        store: String,
    },
    /// The record contains an image address without its signature, and this process does not have
    /// the full address.
    #[error(
        "the store contains {image} without its signature, and this process does not have the complete address: \
         apply the configuration again, or write the address into a file (drive --image-addresses)"
    )]
    AddressUnknown {
        /// The address without its signature.
        image: String,
    },
    /// The maintenance has already ended.
    #[error("{} has ended ({})", .0.id, .0.phase.name())]
    Over(Box<Maintenance>),
}

impl From<StoreError> for EngineError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused(refusal) => Self::Refused(refusal),
            other => Self::Store(other),
        }
    }
}

impl EngineError {
    /// Converts a store error during a maintenance into [`Self::StoreLost`].
    #[must_use]
    pub(super) fn under_way(self, record: &Maintenance) -> Self {
        match self {
            Self::Store(cause) => Self::StoreLost { id: record.id.clone(), cause: Box::new(cause) },
            other => other,
        }
    }
}
