//! Records and locks that this version cannot read: damaged, or written by a newer version.
//!
//! They are not changed. An unreadable holder keeps its lock, its name stays reserved, and all
//! other servers work normally.

pub use super::model::unreadable::{Records, Unreadable};

use jiff::Timestamp;

use super::{
    ids::{LockKey, MaintenanceId, Uid},
    model::lock::{LockHolder, Refusal, ServerLock},
    shared::Shared,
    state::Maintenance,
};

impl ServerLock {
    /// Creates a placeholder for a lock with an unreadable holder. It is locked, and each record is
    /// unreadable for the reason `why`. It is for display only; stores reject changes of such a
    /// lock.
    #[must_use]
    pub fn quarantined(key: LockKey, why: &str, records: &[Shared<Maintenance>], unreadable: Vec<Unreadable>) -> Self {
        let records = records.iter().map(|record| Unreadable {
            uid: record.uid.clone(),
            id: Some(record.id.clone()),
            server: Some(record.spec.server.clone()),
            why: why.into(),
            raw: serde_json::to_string(record).unwrap_or_default().into(),
        });
        let mut all: Vec<Unreadable> = records.chain(unreadable).collect();
        if all.is_empty() {
            all.push(Unreadable::of("", "", why.to_owned()));
        }
        let uid = all.first().map_or_else(|| Uid::new(String::new()), |first| first.uid.clone());
        let slot = Some(LockHolder { uid, since: Timestamp::UNIX_EPOCH, acting: None });
        Self { slot, unreadable: all, ..Self::new(key) }
    }

    /// Fails if an unreadable record uses this name.
    pub(super) fn refuse_unreadable(&self, id: &MaintenanceId) -> Result<(), Refusal> {
        match self.unreadable.iter().find(|record| record.id.as_ref() == Some(id)) {
            None => Ok(()),
            Some(record) => Err(Refusal::Unreadable { id: id.clone(), why: record.why.to_string() }),
        }
    }

    /// Returns true if an unreadable record acts under the lock. Its process is possibly alive, so
    /// no other record acts.
    #[must_use]
    pub fn unreadable_acts(&self) -> bool {
        let acting = self.slot.as_ref().and_then(|slot| slot.acting.as_ref());
        acting.is_some_and(|acting| self.unreadable.iter().any(|record| record.uid == *acting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_of_a_record_is_told_as_can_be_read() {
        let raw = r#"{"uid": 7, "id": "ops/a", "spec": {"server": "node-1"}}"#;
        let found = Unreadable::or_record("u", raw).unwrap_err();
        assert_eq!((found.uid, found.id, found.server), (Uid::new("u"), "ops/a".parse().ok(), Some("node-1".into())));
        assert_eq!(found.raw, raw);
        let damaged = Unreadable::or_record("u", "{").unwrap_err();
        assert!(
            damaged.id.is_none() && damaged.why.shown().contains("the record \"u\" is not understood"),
            "{}",
            damaged.why
        );
    }

    #[test]
    fn a_lock_that_cannot_be_read_is_shown_as_held() {
        let lock = ServerLock::quarantined(LockKey::new("k"), "it has format 9", &[], Vec::new());
        assert!(lock.slot.is_some() && !lock.is_idle());
        assert_eq!(lock.unreadable[0].why, "it has format 9");
    }
}
