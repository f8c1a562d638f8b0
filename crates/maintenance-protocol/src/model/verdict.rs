//! Verdicts on steps, the facts that they need, and time limits.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use shown_text::OneLine;

use super::{operation::OperationOutcome, step::Action};

/// Time limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Limit for an operating system's shutdown before the power is cut.
    pub graceful_shutdown: Duration,
    /// Limit for a power change that does not involve the operating system.
    pub power_change: Duration,
    /// Limit for boot progress after power-on, if the machine reports it.
    pub boot_progress: Duration,
    /// Limit for one call: the lease duration.
    pub call: Duration,
    /// Limit for a boot change to be reported, after its acceptance or an unknown outcome.
    pub settle: Duration,
    /// Limit for a medium to be reported. The BMC must first contact the image server.
    pub media: Duration,
    /// Limit for temporary rejections. BMCs reject power changes for about a minute after a power
    /// change.
    pub busy: Duration,
    /// Limit for temporary rejections while the firmware tests the machine (POST).
    pub post: Duration,
    /// Maximum number of attempts after temporary rejections.
    pub attempts: usize,
    /// Pause between two attempts.
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

/// A rule's verdict on the current step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The goal is observed.
    Done,
    /// Send this call.
    Act(Action),
    /// Wait.
    Wait {
        /// The awaited condition, for people.
        why: OneLine,
        /// When time alone changes the verdict.
        until: Option<Timestamp>,
    },
    /// Read facts first.
    Look(Need),
    /// Another author changed the machine: restart at the switch-off.
    Again,
    /// The operation ended with this outcome.
    Concluded(OperationOutcome),
    /// The step is impossible.
    Fail(OneLine),
}

/// Facts that a rule must read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Power, boot progress and boot override.
    Machine,
    /// The virtual drives.
    Media,
    /// The firmware's boot menu before a virtual drive is loaded.
    MenuBefore,
    /// The firmware's current boot menu.
    Menu,
    /// The machine's capabilities.
    Capabilities,
    /// The image check.
    Image,
    /// The external preparer's response.
    Preparer,
    /// The response of the URL in `complete_when`.
    Completion,
    /// State of a gate's request, by index in the record.
    Gate(usize),
    /// The holder of the Kubernetes Node's Lease.
    Node,
    /// That Node's cordon and its remaining Pods.
    Drain,
    /// Progress of the external service.
    Service,
}

/// Returns `at + duration`, saturating at the largest timestamp.
#[must_use]
pub fn after(at: Timestamp, duration: Duration) -> Timestamp {
    SignedDuration::try_from(duration).ok().and_then(|duration| at.checked_add(duration).ok()).unwrap_or(Timestamp::MAX)
}
