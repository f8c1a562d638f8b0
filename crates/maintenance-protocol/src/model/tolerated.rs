//! The quirk table: differences between the requested or recorded state and the BMC's values that
//! do not fail a step. The output reports each difference.

use std::fmt;

use serde::{Deserialize, Serialize};
use shown_text::OneLine;

/// A kind of tolerated difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quirk {
    /// The BMC accepted `Once` and lists `Continuous`, as sushy-tools always does.
    OnceAsContinuous,
    /// The BMC accepted a boot mode and lists none.
    ModeNotListed,
    /// The BMC accepted a boot menu entry but does not report it.
    EntryNotListed,
    /// The override is disabled before and after, and the BMC did not restore an unused property.
    UnusedProperty,
    /// A start during the maintenance used the recorded one-time override.
    OnceUsed,
}

impl Quirk {
    /// All quirks.
    pub const ALL: [Self; 5] =
        [Self::OnceAsContinuous, Self::ModeNotListed, Self::EntryNotListed, Self::UnusedProperty, Self::OnceUsed];

    /// Returns the name in the documentation.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OnceAsContinuous => "once_as_continuous",
            Self::ModeNotListed => "mode_not_listed",
            Self::EntryNotListed => "entry_not_listed",
            Self::UnusedProperty => "unused_property",
            Self::OnceUsed => "once_used",
        }
    }

    /// Returns why the difference is tolerated and its consequence.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::OnceAsContinuous => {
                "The next start is the requested one. Later starts during the maintenance can boot the same target again."
            }
            Self::ModeNotListed => "The BMC accepted the mode. Check the console if the server does not boot.",
            Self::EntryNotListed => "The BMC accepted the entry. Check the console if the server boots its disk.",
            Self::UnusedProperty => "No override is active, so the next start does not use it.",
            Self::OnceUsed => "It is not armed again, because a start has used it.",
        }
    }
}

/// A tolerated difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tolerated {
    /// Its kind.
    pub quirk: Quirk,
    /// The requested or recorded value, and the BMC's value.
    pub shown: OneLine,
}

impl fmt::Display for Tolerated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. {}", self.shown, self.quirk.reason())
    }
}

/// Writes to the boot override by a maintenance and by resources under it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootWrites {
    /// The last boot mode that was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<OneLine>,
    /// A start used the recorded one-time override before the first write.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub once_used: bool,
}
