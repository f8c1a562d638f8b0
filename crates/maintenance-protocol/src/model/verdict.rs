//! What a step needs next, as the facts of the machine have it, and how long things may take.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{operation::OperationOutcome, step::Action};

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long an operating system may take to shut down before the power is cut.
    pub graceful_shutdown: Duration,
    /// How long a power change may take after the machine was told without asking its operating
    /// system.
    pub power_change: Duration,
    /// How long boot progress is waited for after the power is on, where the machine shows it.
    pub boot_progress: Duration,
    /// How long a call may be under way: the length of a lease.
    pub call: Duration,
    /// How long a boot change may take to be shown after it was accepted, or sent without a known
    /// outcome.
    pub settle: Duration,
    /// The same of a medium: a BMC first has to reach the image's server.
    pub media: Duration,
    /// How long a machine may refuse a call for now. BMCs refuse power changes for about a minute
    /// after one.
    pub busy: Duration,
    /// The same while its firmware tests the machine (POST).
    pub post: Duration,
    /// How often a call that may be accepted later is made.
    pub attempts: usize,
    /// How long to wait between two such calls.
    pub retry_pause: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            graceful_shutdown: Duration::from_secs(150),
            power_change: Duration::from_mins(2),
            boot_progress: Duration::from_mins(1),
            call: Duration::from_secs(30),
            settle: Duration::from_secs(30),
            media: Duration::from_mins(2),
            busy: Duration::from_secs(90),
            post: Duration::from_mins(5),
            attempts: 5,
            retry_pause: Duration::from_secs(5),
        }
    }
}

/// What a step needs next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: what it is for is seen.
    Done,
    /// A call.
    Act(Action),
    /// Time.
    Wait {
        /// What is waited for, for people.
        why: String,
        /// When the answer changes by itself.
        until: Option<Timestamp>,
    },
    /// Facts that were not read yet.
    Look(Need),
    /// The machine was changed by somebody else meanwhile: begin again at the switch-off.
    Again,
    /// Nothing: an operation ended so.
    Concluded(OperationOutcome),
    /// It cannot be done.
    Fail(String),
}

/// Facts that a rule wants read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Power, boot progress and boot override.
    Machine,
    /// The virtual drives.
    Media,
    /// The firmware's boot menu, before a virtual drive is filled.
    MenuBefore,
    /// The firmware's boot menu as it is now.
    Menu,
    /// What the machine can be told.
    Capabilities,
    /// The image: reachable, and the one that was meant.
    Image,
    /// The external preparer's word.
    Preparer,
    /// Whether the URL of `complete_when` answers as agreed.
    Completion,
    /// Where our request to a gate stands, by its place in the record.
    Gate(usize),
    /// Whose the Lease of its Kubernetes Node is.
    Node,
    /// Whether that Node is cordoned, and which Pods are left on it.
    Drain,
    /// Where the work of the external system stands.
    Service,
}

/// `at + duration`, or the end of time.
#[must_use]
pub fn after(at: Timestamp, duration: Duration) -> Timestamp {
    SignedDuration::try_from(duration).ok().and_then(|duration| at.checked_add(duration).ok()).unwrap_or(Timestamp::MAX)
}
