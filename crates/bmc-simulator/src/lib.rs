//! A Redfish service that behaves like a fleet of BMCs, for tests.
//!
//! A [`Simulator`] runs any number of machines, each with its own BMC or with a shared BMC. Clients
//! use Redfish. Tests use the methods of [`Simulator`], or the same over HTTP ([`control`]): they
//! change machines, inject faults, hold requests, and read both the requests and the machines'
//! actual events.
//!
//! - [`SimulatorConfig`], [`SystemConfig`]: the configuration.
//! - [`Personality`]: vendor-specific BMC behaviour; [`Behaviour`]: machine behaviour.
//! - [`Fault`]: an injected fault; [`HeldRequest`]: a request that waits for the test.
//! - [`JournalEntry`]: a received request; [`Event`]: a machine's event.
#![deny(clippy::print_stdout, clippy::print_stderr, reason = "these macros panic when the output cannot be written")]

mod bmc;
mod clock;
mod config;
pub mod control;
mod fault;
mod glob;
mod hold;
mod inventory;
mod journal;
mod machine;
mod net;
mod operate;
mod personality;
mod redact;
mod redfish;
mod simulator;
mod words;
mod world;

pub use self::bmc::{Availability, BmcStatus};
pub use self::clock::Stamp;
pub use self::config::{Credentials, Layout, SimulatorConfig, SystemConfig, TlsMode};
pub use self::fault::{ActiveFault, Fault, FaultAction, FaultBody, Phase, Place};
pub use self::hold::{HeldQuery, HeldRequest};
pub use self::journal::{Authentication, Counts, JournalEntry, JournalMode, JournalQuery, Outcome};
pub use self::machine::{
    Behaviour, BootOverride, BootRecord, BootSource, Cause, Event, EventKind, Identity, InsertedMedia, SystemStatus,
    SystemUuid,
};
pub use self::net::{TlsError, Trust};
pub use self::operate::{InsertChange, SimulatorError, SystemChange};
pub use self::personality::{
    Accepted, AlreadyThere, BootResource, BootRules, Etags, HttpRules, IfMatch, MediaDevice, MediaPath, MediaRules,
    Personality, PowerRules, Quirks, SessionRules, SettingsApply, ToldBy,
};
pub use self::redfish::{Reply, RequestView};
pub use self::simulator::{Simulator, StartError};
pub use self::words::{BootMode, BootProgress, BootTarget, OverrideEnabled, PowerState, ResetType};
pub use self::world::AddError;
