//! A Redfish service that behaves like a fleet of BMCs, for tests.
//!
//! A [`Simulator`] runs any number of machines, each behind a BMC of its own or many behind one.
//! What a client does goes through Redfish; what a test does goes behind its back, through the
//! methods of [`Simulator`] or the same over HTTP ([`control`]): change a machine, make requests
//! fail, hold a request at a moment of interest, read what was asked for and what really happened.
//!
//! - [`SimulatorConfig`], [`SystemConfig`]: what it is started with.
//! - [`Personality`]: how BMCs behave where vendors differ; [`Behaviour`]: how machines behave.
//! - [`Fault`]: what goes wrong; [`HeldRequest`]: a request that waits for the test.
//! - [`JournalEntry`]: a request that was made; [`Event`]: what a machine did.
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
pub use self::fault::{ActiveFault, Fault, FaultAction, FaultBody, Phase};
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
