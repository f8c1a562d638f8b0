//! Object names and contents. All names are generated here.
//!
//! Names come from untrusted text, so object names contain digests. The text itself is in the
//! objects.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    maintenance::ids::{LockKey, MaintenanceId, RunnerId, Uid},
    store::{digest, history::Entry},
};

pub(super) const STORE: &str = "store.json";
pub(super) const BINDINGS: &str = "bindings.json";
/// The pruning process's claim.
pub(super) const SWEEPER: &str = "sweeper.json";

/// Folders that are listed.
pub(super) const LOCKS: &str = "locks";
pub(super) const LEASES: &str = "leases";
pub(super) const AUDIT: &str = "audit";

/// The contents of `store.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Meta {
    pub(super) store_id: String,
    pub(super) format: i64,
}

/// An ended record of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PastRecord {
    pub(super) uid: Uid,
    pub(super) key: LockKey,
    /// The commit that ended it.
    pub(super) order: i64,
}

/// The contents of `names/…`: the server for which a name is taken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Pointer {
    pub(super) id: MaintenanceId,
    pub(super) uid: Uid,
    pub(super) key: LockKey,
    /// The commit that took the name. It distinguishes each two versions of the object.
    pub(super) commit: String,
    /// The last ended record that left its lock.
    pub(super) past: Option<PastRecord>,
}

/// The contents of `records/…`: a record's place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) uid: Uid,
    pub(super) key: LockKey,
    /// An ended record's journal, after it left its lock.
    pub(super) journal: Option<String>,
}

/// The contents of `leases/…`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoredLease {
    pub(super) runner: RunnerId,
    pub(super) until: Timestamp,
    pub(super) length_ms: u64,
    /// True if it was ended on purpose.
    pub(super) over: bool,
}

/// The contents of `audit/…`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Journal {
    pub(super) key: LockKey,
    pub(super) entries: Vec<Entry>,
}

pub(super) fn lock(key: &LockKey) -> String {
    format!("{LOCKS}/{}.json", digest(key.raw()))
}

pub(super) fn name(id: &MaintenanceId) -> String {
    format!("names/{}.json", digest(&id.to_string()))
}

pub(super) fn record(uid: &Uid) -> String {
    format!("records/{}.json", digest(uid.raw()))
}

pub(super) fn lease(runner: &RunnerId) -> String {
    format!("{LEASES}/{}.json", digest(runner.raw()))
}

/// Returns a journal's name. Names sort by the newest entry's time, so an export lists only
/// the journals after its start. The oldest entry's time follows, for pruning.
pub(super) fn journal(key: &LockKey, revision: i64, entries: &[Entry]) -> String {
    let orders = || entries.iter().filter_map(|entry| entry.order);
    let (oldest, newest) = (orders().min().unwrap_or_default(), orders().max().unwrap_or_default());
    format!("{AUDIT}/{}-{}-{}-{revision}.json", sortable(newest), sortable(oldest), digest(key.raw()))
}

/// Returns the name after which journals with this order or a later one sort.
pub(super) fn journals_from(order: i64) -> String {
    format!("{AUDIT}/{}", sortable(order))
}

/// Returns the orders of the newest and oldest entry, from a journal's name.
pub(super) fn orders(name: &str) -> Option<(i64, i64)> {
    let mut parts = name.rsplit('/').next()?.split('-');
    let mut order = || parts.next()?.parse::<i64>().ok().map(|order| order - IMPORTED);
    Some((order()?, order()?))
}

/// Imported entries have negative orders, so that they precede every commit.
const IMPORTED: i64 = 1_000_000_000;

fn sortable(order: i64) -> String {
    format!("{:020}", order.saturating_add(IMPORTED).max(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_sort_by_their_newest_entry() {
        let entry = |order| Entry { commit: order_name(order), order: Some(order), finished: vec![], events: vec![] };
        let key = LockKey::new("k");
        let name = |orders: &[i64]| journal(&key, 1, &orders.iter().map(|order| entry(*order)).collect::<Vec<_>>());
        let (imported, early, late) = (name(&[-3, -2]), name(&[5, 9]), name(&[7, 1_800_000_000_000_000]));
        assert!(imported < early && early < late);
        assert_eq!(orders(&early), Some((9, 5)));
        assert_eq!(orders(&imported), Some((-2, -3)));
        assert!(journals_from(9) < early && journals_from(10) > early);
        assert_eq!(orders("audit/x"), None);
    }

    fn order_name(order: i64) -> String {
        format!("c{order}")
    }
}
