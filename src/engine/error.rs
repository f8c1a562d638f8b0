//! What can go wrong while a record is driven.

use crate::{
    backend::BackendError,
    maintenance::{identity::IdentityError, ids::MaintenanceId, lock::Refusal, state::Maintenance},
    store::StoreError,
};

/// A drive that ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The store.
    #[error(transparent)]
    Store(StoreError),
    /// The store, while a maintenance was under way: what was done to the server until then is in
    /// its record.
    #[error("{cause}")]
    StoreLost {
        /// The maintenance.
        id: MaintenanceId,
        /// What is wrong with the store.
        cause: Box<StoreError>,
    },
    /// The machine.
    #[error(transparent)]
    Machine(#[from] BackendError),
    /// The protocol said no; nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The server has no lock of its own. Nothing was changed.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// No server is known by it.
    #[error("{text:?} is neither a known OWNER/SERVER nor a known identifier of {store}")]
    UnknownIdentifier {
        /// What was given.
        text: String,
        /// The store's address.
        store: String,
    },
    /// The lease could not be kept, so nothing may be done to the machine.
    #[error("the lease of this process was lost and could not be renewed: {0}")]
    LeaseLost(String),
    /// The process was told to stop before anything was recorded or done.
    #[error("stopped before anything was done")]
    Stopped,
    /// No such maintenance in this store.
    #[error("{id} is not in {store}")]
    NotFound {
        /// Its name.
        id: MaintenanceId,
        /// The store's address.
        store: String,
    },
    /// The record names an image without the signature of its address, and this process was not
    /// told the whole address.
    #[error(
        "the store keeps {image} without its signature, and this process does not know the whole address: apply the \
         configuration again, or name the address in a file (drive --image-addresses)"
    )]
    AddressUnknown {
        /// The address as far as it is known.
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
    /// Says of an error of the store that it came while a maintenance was under way.
    #[must_use]
    pub(super) fn under_way(self, record: &Maintenance) -> Self {
        match self {
            Self::Store(cause) => Self::StoreLost { id: record.id.clone(), cause: Box::new(cause) },
            other => other,
        }
    }
}
