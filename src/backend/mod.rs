//! Machines. This room knows no queue, lock or window.
//!
//! A backend turns a server's name into a [`Machine`]; a machine is a handful of small capabilities. None of them
//! repeats a call whose reply was lost: that is said with [`BackendError::ReplyLost`], and the caller observes.

mod error;
pub mod redfish;

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;

use crate::maintenance::machine::{BootOverride, Capabilities, MachineView, MediaSlot, ResetType};

pub use error::BackendError;

/// Which physical machine a server is, whatever name or address it goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The lock key: see [`Identity::kind`] for where it came from.
    pub lock_key: String,
    /// How sure the key is.
    pub kind: IdentityKind,
}

/// Where a lock key came from, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityKind {
    /// The system UUID, in lower case.
    SystemUuid,
    /// Manufacturer and serial number, because the UUID is missing, nil or a placeholder.
    SerialNumber,
    /// Host and system path, because nothing better is known. Two names of one machine would not meet: worth a warning.
    Address,
    /// Given in configuration.
    Configured,
}

/// A way to reach servers.
#[async_trait]
pub trait Backend: Send + Sync + Debug {
    /// The names of all configured servers, sorted.
    fn servers(&self) -> Vec<String>;

    /// The machine behind a configured name. Does no I/O. The error is [`BackendError::UnknownServer`].
    fn machine(&self, server: &str) -> Result<Arc<dyn Machine>, BackendError>;

    /// Ends what is open on the BMCs (sessions). Called once, on every way out of the process; bounded in time.
    async fn close(&self);
}

/// One physical machine.
#[async_trait]
pub trait Machine: PowerControl + BootControl + MediaControl + Send + Sync + Debug {
    /// Where it is reached, for people: a URL without credentials.
    fn address(&self) -> String;

    /// Its hardware identity.
    async fn identify(&self) -> Result<Identity, BackendError>;

    /// What it is now. One request where sessions are warm.
    async fn observe(&self) -> Result<MachineView, BackendError>;

    /// What it can be told to do.
    async fn capabilities(&self) -> Result<Capabilities, BackendError>;
}

/// Power.
#[async_trait]
pub trait PowerControl {
    /// Asks for one power change and returns once it is accepted, not once it is done.
    async fn reset(&self, reset: ResetType) -> Result<(), BackendError>;
}

/// Boot override.
#[async_trait]
pub trait BootControl {
    /// Makes the boot override equal to `wanted` in every property that `wanted` names and that differs now; other
    /// properties are not sent. `clear_http_boot_uri` says that a listed `HttpBootUri` is to be emptied.
    async fn set_boot_override(&self, wanted: &BootOverride, clear_http_boot_uri: bool) -> Result<(), BackendError>;
}

/// Virtual media.
#[async_trait]
pub trait MediaControl {
    /// Every virtual drive and what is in it; empty where the machine has none.
    async fn media(&self) -> Result<Vec<MediaSlot>, BackendError>;

    /// Inserts the image at `image` into the drive `slot`.
    async fn insert_medium(&self, slot: &str, image: &str, write_protected: bool) -> Result<(), BackendError>;

    /// Empties the drive `slot`.
    async fn eject_medium(&self, slot: &str) -> Result<(), BackendError>;
}
