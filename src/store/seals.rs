//! What is kept beside approvals about their use, in a store that cannot forbid that a mark of use
//! is removed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::maintenance::ids::Uid;

/// What the words hold about the use of one approval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seal {
    /// The revision that created the mark; nothing where that is the revision of these words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) created: Option<i64>,
    /// The run that had used it when these words were written: then the mark is not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) used_by: Option<Uid>,
}

/// The seals of one claim's approvals. Approvals of earlier versions have none, and are judged by
/// their marks alone.
pub(super) type Seals = BTreeMap<Uid, Seal>;
