//! The state that manages a record, takeovers after an import, and names that a forced release
//! blocks.

use std::sync::PoisonError;

use crate::{
    maintenance::{
        change::{Applied, LockChange},
        ids::{LockKey, MaintenanceId, Uid},
        restrictions::{Block, ReleasedName, Restrictions},
    },
    store::RecordLookup,
};

use super::{Engine, EngineError};

/// Restrictions on a name, for messages.
#[derive(Clone, Debug, Default)]
pub struct Forbidden {
    /// The release that blocks it.
    pub released: Option<ReleasedName>,
    /// The block on its server that came with that release.
    pub block: Option<Block>,
}

impl Engine {
    /// Marks a record as managed in this run. A refresh calls this.
    pub fn note_managed(&self, uid: &Uid) {
        self.managed.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.clone());
    }

    /// Returns true if one of this run's states manages a record. A plan that replaces it does not
    /// adopt it.
    #[must_use]
    pub fn manages(&self, uid: &Uid) -> bool {
        self.managed.lock().unwrap_or_else(PoisonError::into_inner).contains(uid)
    }

    /// Notes that this run released a maintenance and requests its name again.
    pub fn note_replaced(&self, id: &MaintenanceId, server: &str) {
        self.replaced.lock().unwrap_or_else(PoisonError::into_inner).insert((id.clone(), server.to_owned()));
    }

    /// Returns true if this run replaces a maintenance under the same name and server.
    #[must_use]
    pub fn has_replaced(&self, id: &MaintenanceId, server: &str) -> bool {
        self.replaced.lock().unwrap_or_else(PoisonError::into_inner).contains(&(id.clone(), server.to_owned()))
    }

    /// Moves a record to a state, whichever managed it before: the apply that follows an import.
    pub async fn take_over(&self, uid: &Uid, state: &str) -> Result<(), EngineError> {
        let Some(RecordLookup::Active(record)) = self.store().find_uid(uid).await? else { return Ok(()) };
        let by = self.runner().to_string();
        self.apply(&record.lock_key, &LockChange::TakeOver { uid, state, owner: self.owner(), by: &by }).await?;
        Ok(())
    }

    /// Returns the restrictions on a name.
    pub async fn forbidden(&self, id: &MaintenanceId) -> Result<Forbidden, EngineError> {
        let mut found = Forbidden::default();
        for view in self.store().view_all().await? {
            found.released = found.released.or_else(|| view.lock.release_of(id).cloned());
            found.block = found.block.or_else(|| view.lock.block(view.now).filter(|block| block.id == *id).cloned());
        }
        Ok(found)
    }

    /// Allows a released name again, and ends the block that came with its release. The result is
    /// empty without restrictions.
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
