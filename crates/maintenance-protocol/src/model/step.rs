//! Steps of preparations and releases.
//!
//! Observations of the machine complete a step, not calls. A process that takes over after a crash
//! continues at the recorded step and does not repeat calls. Each call is recorded as an
//! [`Attempt`] before it is sent. If a reply is missing, the next observation decides.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use shown_text::OneLine;

use super::machine::{BootOverride, ResetType};

/// One step. A preparation uses the steps up to [`Step::Service`], a release the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Step {
    /// Acquire the Lease of the server's Kubernetes Node.
    TakeNode,
    /// Read and store the prior state.
    RecordPriorState,
    /// Check that the image is reachable and has the expected content.
    CheckImage,
    /// Drain the server's Kubernetes Node.
    DrainNode,
    /// Take the server out of service in an external system without a queue.
    EnterGate,
    /// Power off, so that the boot change applies to the next start.
    SwitchOff,
    /// Set the boot override.
    ConfigureBoot,
    /// Insert the image into a virtual drive.
    InsertMedium,
    /// Wait until the external preparer reports that the boot environment is ready.
    AwaitReady,
    /// Set the requested power.
    ApplyPower,
    /// Perform the power operation.
    Operate,
    /// Run the external system's service.
    Service,
    /// Power off, so that no installer loses its medium and the maintenance's system stops.
    StopForRestore,
    /// Restore the virtual drives.
    RestoreMedia,
    /// Disable the boot override, so that restoring power does not use a one-time override.
    DisarmBoot,
    /// Restore the boot override.
    RestoreBoot,
    /// Restore the power.
    RestorePower,
    /// Verify the restored state.
    Verify,
    /// Return the server to its external system.
    LeaveGate,
    /// Uncordon the Kubernetes Node after it is Ready.
    UncordonNode,
    /// Release the Kubernetes Node's Lease.
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

/// One external call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Read power, boot and media and store them as prior state.
    Record,
    /// Fetch enough of the image to verify it.
    CheckImage,
    /// Query the external preparer once.
    AskPreparer,
    /// Change the power.
    Reset(ResetType),
    /// Change the boot override.
    SetBoot {
        /// Properties to set; `None` keeps a property.
        wanted: BootOverride,
        /// True if a listed HTTP boot URL is cleared.
        clear_http_boot_uri: bool,
    },
    /// Insert an image.
    Insert {
        /// Name of the drive.
        slot: OneLine,
        /// The image's address.
        image: OneLine,
        /// True if the medium is write-protected.
        write_protected: bool,
    },
    /// Eject a medium.
    Eject {
        /// Name of the drive.
        slot: OneLine,
    },
    /// Create a request in the external system.
    EnterGate,
    /// Withdraw that request.
    LeaveGate,
    /// Start the external system's service.
    BeginService {
        /// The system's prior stamp (`ServiceView::stamp`).
        stamp: OneLine,
    },
    /// Acquire the Kubernetes Node's Lease.
    TakeNode,
    /// Release that Lease.
    ReturnNode,
    /// Cordon the server's Kubernetes Node.
    CordonNode {
        /// True if another author has cordoned it.
        #[serde(default, skip_serializing_if = "super::drain::is_false")]
        theirs: bool,
        /// The cluster, as the UID of namespace `kube-system`; `None` if a role hides it.
        cluster: Option<OneLine>,
    },
    /// Request an eviction for each of its Pods once.
    EvictPods,
    /// Uncordon the Node.
    UncordonNode,
}

impl Action {
    /// Returns true if the call changes something. It is then recorded first and requires the
    /// lease.
    #[must_use]
    pub fn is_mutation(&self) -> bool {
        !matches!(self, Self::Record | Self::CheckImage | Self::AskPreparer)
    }
}

impl Action {
    /// Returns true if the call can interrupt the workload on the server.
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
            Self::AskPreparer => write!(f, "read the preparer"),
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

/// A call's outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The outcome is unknown: no reply arrived, so the call was possibly applied.
    Unknown,
    /// The call failed, and the machine's reply does not show if it was applied.
    Unclear {
        /// The machine's message.
        message: OneLine,
    },
    /// The machine accepted the call.
    Accepted,
    /// The call did not reach the machine, or the machine rejected it.
    Refused {
        /// The rejection's message.
        message: OneLine,
        /// True if a later attempt can succeed.
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
    pub fn message(&self) -> Option<&OneLine> {
        match self {
            Self::Unclear { message } | Self::Refused { message, .. } => Some(message),
            Self::Unknown | Self::Accepted => None,
        }
    }
}

/// A step's call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The call.
    pub action: Action,
    /// When the intent was recorded, on the store's clock.
    pub at: Timestamp,
    /// The outcome.
    pub reply: Reply,
    /// Time of the reply or of the timeout, on the store's clock. A later rejection does not change
    /// it. `None` without a reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered: Option<Timestamp>,
    /// `LastResetTime` when the call was decided. A different value proves a reset after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reset: Option<OneLine>,
}

impl Attempt {
    /// Creates an attempt for a call that follows.
    #[must_use]
    pub fn intended(action: Action, at: Timestamp) -> Self {
        Self { action, at, reply: Reply::Unknown, answered: None, last_reset: None }
    }

    /// Returns when the wait for the effect starts. A reply can take minutes.
    #[must_use]
    pub fn answered_at(&self) -> Timestamp {
        self.answered.unwrap_or(self.at)
    }
}
