//! Records that this version cannot read.

use super::ids::MaintenanceId;
use super::ids::Uid;
use super::shared::Shared;
use super::state::Maintenance;
use serde_json::Value;
use shown_text::OneLine;

/// A record that this version cannot read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// UID of the record in the store.
    pub uid: Uid,
    /// Name of the maintenance, if readable.
    pub id: Option<MaintenanceId>,
    /// Name of the server, if readable.
    pub server: Option<OneLine>,
    /// The cause.
    pub why: OneLine,
    /// The stored text, which is written unchanged.
    pub raw: OneLine,
}

/// A lock's active records and its unreadable ones.
pub type Records = (Vec<Shared<Maintenance>>, Vec<Unreadable>);

impl Unreadable {
    /// Parses a record. `uid` is its key in the store.
    pub fn or_record(uid: &str, raw: &str) -> Result<Maintenance, Box<Self>> {
        serde_json::from_str(raw)
            .map_err(|error| Box::new(Self::of(uid, raw, format!("the record {uid:?} is not understood: {error}"))))
    }

    /// Extracts the readable fields of a record.
    pub(crate) fn of(uid: &str, raw: &str, why: String) -> Self {
        let found: Value = serde_json::from_str(raw).unwrap_or_default();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Self {
            uid: Uid::new(uid),
            id: text(&found["id"]).and_then(|id| id.parse().ok()),
            server: text(&found["spec"]["server"]).map(OneLine::from),
            why: why.into(),
            raw: raw.into(),
        }
    }

    /// Separates readable and unreadable records.
    pub fn part(read: impl Iterator<Item = Result<Maintenance, Box<Self>>>) -> Records {
        let (mut records, mut unreadable) = (Vec::new(), Vec::new());
        for one in read {
            match one {
                Ok(record) => records.push(record.into()),
                Err(other) => unreadable.push(*other),
            }
        }
        (records, unreadable)
    }
}
