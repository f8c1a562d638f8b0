//! The steps between a free server and a prepared one, and back.
//!
//! A step is judged by what the machine shows, never by whether it was called: so a process that
//! takes over after a crash goes on at the recorded step without doing anything twice that must not
//! be. Each call is recorded as an [`Attempt`] before it is made; one without a reply is answered
//! by observing.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::machine::{BootOverride, ResetType};

/// One step. Preparing uses those up to [`Step::Service`], releasing the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Step {
    /// Hold the Lease of the Kubernetes Node that runs on the server.
    TakeNode,
    /// Read and store how the server is.
    RecordPriorState,
    /// The image is reachable and is the one that was meant.
    CheckImage,
    /// Drain the Kubernetes Node that runs on the server.
    DrainNode,
    /// Take the server out of service in its own maintenance system, where that has no queue.
    EnterGate,
    /// Off, so that the boot change takes effect at the next start.
    SwitchOff,
    /// Set the boot override.
    ConfigureBoot,
    /// Put the image into a virtual drive.
    InsertMedium,
    /// Wait for the word of whoever prepares the boot environment.
    AwaitReady,
    /// Power as asked while in maintenance.
    ApplyPower,
    /// The one power operation that was asked for.
    Operate,
    /// The work of the external system that was asked for.
    Service,
    /// Off, so that no installer loses its medium and the maintenance's system does not run on.
    StopForRestore,
    /// Virtual drives as before.
    RestoreMedia,
    /// No boot override, so that the start that puts the power back uses up none.
    DisarmBoot,
    /// Boot override as before.
    RestoreBoot,
    /// Power as before.
    RestorePower,
    /// Look once more.
    Verify,
    /// Give the server back to its own maintenance system.
    LeaveGate,
    /// Uncordon its Kubernetes Node, once that is Ready again.
    UncordonNode,
    /// Give the Lease of its Kubernetes Node back.
    ReturnNode,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TakeNode => "taking the Lease of its Node",
            Self::RecordPriorState => "recording the prior state",
            Self::CheckImage => "checking the image",
            Self::DrainNode => "draining its Node",
            Self::EnterGate => "entering its external system",
            Self::SwitchOff => "switching off",
            Self::ConfigureBoot => "setting the boot override",
            Self::InsertMedium => "inserting the image",
            Self::AwaitReady => "waiting for the boot environment",
            Self::ApplyPower => "setting the power",
            Self::Operate => "power operation",
            Self::Service => "service by its external system",
            Self::StopForRestore => "switching off before the restore",
            Self::RestoreMedia => "restoring the virtual drives",
            Self::DisarmBoot => "clearing the boot override",
            Self::RestoreBoot => "restoring the boot override",
            Self::RestorePower => "restoring the power",
            Self::Verify => "verifying the prior state",
            Self::LeaveGate => "leaving its external system",
            Self::UncordonNode => "uncordoning its Node",
            Self::ReturnNode => "releasing the Lease of its Node",
        })
    }
}

/// One call to the outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Read power, boot and media and store them as prior state.
    Record,
    /// Fetch the image as far as needed to trust it.
    CheckImage,
    /// Ask the external preparer once.
    AskPreparer,
    /// Change power.
    Reset(ResetType),
    /// Change the boot override.
    SetBoot {
        /// Properties to set; `None` leaves a property alone.
        wanted: BootOverride,
        /// Whether a listed HTTP boot address is emptied.
        clear_http_boot_uri: bool,
    },
    /// Insert an image.
    Insert {
        /// Which drive.
        slot: String,
        /// The image's address.
        image: String,
        /// Whether the system may not write to it.
        write_protected: bool,
    },
    /// Empty a drive.
    Eject {
        /// Which drive.
        slot: String,
    },
    /// Ask the server's own maintenance system for it.
    EnterGate,
    /// Take the request back.
    LeaveGate,
    /// Let the external system begin its work.
    BeginService {
        /// What that system showed before (`ServiceView::stamp`).
        stamp: String,
    },
    /// Take the Lease of its Kubernetes Node.
    TakeNode,
    /// Give that Lease back.
    ReturnNode,
    /// Cordon the Kubernetes Node of the server.
    CordonNode {
        /// Whether other people have cordoned it.
        #[serde(default, skip_serializing_if = "super::drain::is_false")]
        theirs: bool,
        /// The cluster, by the UID of its namespace `kube-system`, where a role lets that be read.
        cluster: Option<String>,
    },
    /// Ask once for the eviction of each of its Pods.
    EvictPods,
    /// Uncordon it.
    UncordonNode,
}

impl Action {
    /// Whether it changes something, so that it is recorded before it is called and needs the
    /// lease.
    #[must_use]
    pub fn is_mutation(&self) -> bool {
        !matches!(self, Self::Record | Self::CheckImage | Self::AskPreparer)
    }
}

impl Action {
    /// Whether it may stop what runs on the server.
    #[must_use]
    pub fn may_stop(&self) -> bool {
        match self {
            Self::Reset(reset) => *reset != ResetType::On,
            Self::EnterGate | Self::BeginService { .. } => true,
            _ => false,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record => write!(f, "read the server's state"),
            Self::CheckImage => write!(f, "check the image"),
            Self::AskPreparer => write!(f, "ask the preparer"),
            Self::Reset(reset) => write!(f, "{reset}"),
            Self::SetBoot { wanted, .. } => write!(f, "set boot override {wanted}"),
            Self::Insert { .. } => write!(f, "insert the image"),
            Self::Eject { .. } => write!(f, "eject the image"),
            Self::EnterGate => write!(f, "request it from the external system"),
            Self::LeaveGate => write!(f, "delete the external request"),
            Self::BeginService { .. } => write!(f, "begin the service"),
            Self::TakeNode => write!(f, "take the Lease of its Node"),
            Self::ReturnNode => write!(f, "release the Lease of its Node"),
            Self::CordonNode { .. } => write!(f, "cordon its Node"),
            Self::EvictPods => write!(f, "evict the Pods of its Node"),
            Self::UncordonNode => write!(f, "uncordon its Node"),
        }
    }
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// None yet, or it was lost: the call may or may not have been applied.
    Unknown,
    /// The call failed, and the machine's answer does not show whether it was applied.
    Unclear {
        /// The machine's message.
        message: String,
    },
    /// The machine accepted it.
    Accepted,
    /// Nothing reached the machine, or it said no.
    Refused {
        /// Its words.
        message: String,
        /// Whether the same call may be accepted later.
        transient: bool,
    },
}

impl Reply {
    /// Returns true if the call could have been applied and no reply confirms it.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown | Self::Unclear { .. })
    }

    /// Returns the machine's message.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        match self {
            Self::Unclear { message } | Self::Refused { message, .. } => Some(message),
            Self::Unknown | Self::Accepted => None,
        }
    }
}

/// One call made for a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// What was called.
    pub action: Action,
    /// When the intent was recorded, on the store's clock.
    pub at: Timestamp,
    /// What came of it.
    pub reply: Reply,
    /// When the call was answered, or was given up, on the store's clock; one that is refused later
    /// was answered before. `None`: it was not, or by a version that did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered: Option<Timestamp>,
}

impl Attempt {
    /// A call that is about to be made.
    #[must_use]
    pub fn intended(action: Action, at: Timestamp) -> Self {
        Self { action, at, reply: Reply::Unknown, answered: None }
    }

    /// From when on its effect is waited for: a call may take minutes until it is answered.
    #[must_use]
    pub fn answered_at(&self) -> Timestamp {
        self.answered.unwrap_or(self.at)
    }
}
