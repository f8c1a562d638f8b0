//! Which state manages a record: marking it, taking it over, and what a person forbade or allows
//! again.

use std::sync::PoisonError;

use crate::{
    maintenance::{
        change::{Applied, LockChange},
        ids::{LockKey, MaintenanceId, Uid},
        restrictions::{Block, ReleasedName, Restrictions},
        state::Maintenance,
    },
    store::RecordLookup,
};

use super::{Engine, EngineError};

/// What stands against a name: for people who ask about it.
#[derive(Clone, Debug, Default)]
pub struct Forbidden {
    /// The release that refuses it.
    pub released: Option<ReleasedName>,
    /// The block of its server that came with that release.
    pub block: Option<Block>,
}

impl Engine {
    /// Marks a record as managed by a state, once. Refused when another state manages it.
    pub async fn mark_known(&self, record: &Maintenance, state: &str) -> Result<(), EngineError> {
        if let Some(refusal) = record.refuses_state(state) {
            return Err(refusal.into());
        }
        if record.known_to.is_none() && !state.is_empty() {
            let by = self.runner().to_string();
            self.apply(&record.lock_key, &LockChange::MarkKnown { uid: &record.uid, state, by: &by }).await?;
        }
        self.note_managed(&record.uid);
        if record.known_to.as_ref().is_some_and(|known| known.successor.is_some()) {
            self.announced.lock().unwrap_or_else(PoisonError::into_inner).insert(record.uid.clone());
        }
        Ok(())
    }

    /// Notes that a state of this run manages a record, as a refresh does.
    pub fn note_managed(&self, uid: &Uid) {
        self.managed.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.clone());
    }

    /// Whether a state of this run manages a record: a plan that replaces it does not take it over.
    #[must_use]
    pub fn manages(&self, uid: &Uid) -> bool {
        self.managed.lock().unwrap_or_else(PoisonError::into_inner).contains(uid)
    }

    /// Whether an earlier plan announced a successor of a record, as far as this run has read it.
    #[must_use]
    pub fn announces(&self, uid: &Uid) -> bool {
        self.announced.lock().unwrap_or_else(PoisonError::into_inner).contains(uid)
    }

    /// Notes under which name a state requests the server of its record next; `None`: under no
    /// other. Only a mark: where it cannot be written, a creation before the release waits instead
    /// of being refused.
    pub async fn announce(&self, uid: &Uid, state: &str, successor: Option<&MaintenanceId>) {
        let Ok(Some(RecordLookup::Active(record))) = self.store().find_uid(uid).await else { return };
        let known = record.known_to.as_ref().and_then(|known| known.successor.as_ref());
        if known == successor || state.is_empty() {
            return;
        }
        let by = self.runner().to_string();
        let change = LockChange::Announce { uid, state, successor, by: &by };
        if let Err(error) = self.apply(&record.lock_key, &change).await {
            tracing::debug!(%error, id = %record.id, "the successor could not be noted");
        }
    }

    /// Gives a record to a state, whichever had it before. For an import, which names the record.
    pub async fn take_over(&self, record: &Maintenance, state: &str) -> Result<(), EngineError> {
        let by = self.runner().to_string();
        self.apply(&record.lock_key, &LockChange::TakeOver { uid: &record.uid, state, owner: self.owner(), by: &by })
            .await?;
        Ok(())
    }

    /// What a person forbade about a name.
    pub async fn forbidden(&self, id: &MaintenanceId) -> Result<Forbidden, EngineError> {
        let mut found = Forbidden::default();
        for view in self.store().view_all().await? {
            found.released = found.released.or_else(|| view.lock.release_of(id).cloned());
            found.block = found.block.or_else(|| view.lock.block(view.now).filter(|block| block.id == *id).cloned());
        }
        Ok(found)
    }

    /// Lets a name that was released ask again, and ends the block that came with its release.
    /// Nothing is returned when nothing was forbidden.
    pub async fn allow(&self, id: &MaintenanceId) -> Result<Restrictions, EngineError> {
        let by = self.runner().to_string();
        let views = self.store().view_all().await?;
        let concerned = |block: Option<&Block>| block.is_some_and(|block| block.id == *id);
        let keys: Vec<LockKey> = views
            .iter()
            .filter(|view| view.lock.release_of(id).is_some() || concerned(view.lock.block(view.now)))
            .map(|view| view.lock.key.clone())
            .collect();
        let mut all = Restrictions::default();
        for key in keys {
            if let Applied::Allowed(mut allowed) = self.apply(&key, &LockChange::Allow { id, by: &by }).await? {
                all.block = all.block.or(allowed.block);
                all.released.append(&mut allowed.released);
            }
        }
        Ok(all)
    }
}
