//! Restrictions that people set on a server.

use super::ids::Generation;
use super::ids::MaintenanceId;
use super::ids::Runner;
use super::ids::Uid;
use super::shown_time::shown_time;
use jiff::Timestamp;
use serde::Deserialize;
use serde::Serialize;
use shown_text::OneLine;
use std::collections::BTreeMap;
use std::fmt;

/// Restrictions that people set on one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Restrictions {
    /// A block. Nothing is admitted before it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<Block>,
    /// Names that were released, the latest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub released: Vec<ReleasedName>,
}

impl Restrictions {
    /// Returns true if no restriction is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A period in which no maintenance is admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Start, on the store's clock.
    pub since: Timestamp,
    /// End, on the store's clock.
    pub until: Timestamp,
    /// The maintenance whose release set the block.
    pub id: MaintenanceId,
    /// Record of that maintenance.
    pub uid: Uid,
    /// Its generation.
    pub generation: Generation,
    /// The provider's owner of that maintenance.
    pub owner: OneLine,
    /// The server's name in its configuration.
    pub server: OneLine,
    /// The process that blocked the server.
    pub by: Runner,
    /// The reason, for people.
    pub reason: OneLine,
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "until {} by {} ({:?})", shown_time(self.until), self.by, self.reason)
    }
}

/// A name that a person released. Requests are rejected until `triggers` changes or a person allows
/// the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleasedName {
    /// The name.
    pub id: MaintenanceId,
    /// The released record.
    pub uid: Uid,
    /// Its `triggers`. Different values count as another run of the work.
    pub triggers: BTreeMap<OneLine, OneLine>,
    /// When it was released, on the store's clock.
    pub at: Timestamp,
    /// The process that released it, for people.
    pub by: OneLine,
    /// The reason, for people.
    pub reason: OneLine,
    /// The released generation.
    pub generation: Generation,
}

impl fmt::Display for ReleasedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, by, reason, at, generation, .. } = self;
        write!(f, "{by} released {id} at {} ({reason:?}, generation {generation})", shown_time(*at))
    }
}
