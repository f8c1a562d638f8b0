//! The stored form of a lock's holder with what else is known of the lock.
//!
//! It stands where version 0.1.0 kept the holder alone. A lock that has nothing else is written as
//! that version wrote it; of one that has, that version says that it cannot read it, and leaves
//! it alone instead of dropping what it does not know.

use serde::{Deserialize, Serialize};

use crate::maintenance::{
    extension::Extension,
    lock::{ServerLock, Slot},
};

/// The number of this form.
const FORMAT: u32 = 2;

/// A lock's holder and extension, as a store keeps them.
#[allow(clippy::large_enum_variant, reason = "few of them exist at a time")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum StoredSlot {
    /// With what else is known.
    Extended {
        /// The number of the form.
        format: u32,
        /// Who is admitted.
        holder: Option<Slot>,
        /// What else is known.
        extension: Extension,
    },
    /// The holder alone.
    Plain(Slot),
}

impl StoredSlot {
    /// What is stored of a lock; nothing where it has neither.
    pub(super) fn of(lock: &ServerLock) -> Option<Self> {
        if lock.extension.is_empty() {
            return lock.slot.clone().map(Self::Plain);
        }
        let (holder, extension) = (lock.slot.clone(), lock.extension.clone());
        Some(Self::Extended { format: FORMAT, holder, extension })
    }

    /// Puts back what [`Self::of`] took.
    pub(super) fn into_lock(stored: Option<Self>, lock: &mut ServerLock) {
        (lock.slot, lock.extension) = match stored {
            None => (None, Extension::default()),
            Some(Self::Plain(slot)) => (Some(slot), Extension::default()),
            Some(Self::Extended { holder, extension, .. }) => (holder, extension),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance::ids::{LockKey, Uid};

    #[test]
    fn version_0_1_0_leaves_alone_what_it_does_not_know() {
        let mut lock = ServerLock::new(LockKey("k".into()));
        assert_eq!(StoredSlot::of(&lock), None);
        lock.slot = Some(Slot { uid: Uid("u".into()), since: jiff::Timestamp::UNIX_EPOCH, acting: None });
        let text = |lock: &ServerLock| serde_json::to_string(&StoredSlot::of(lock)).unwrap();
        let read_by_0_1_0 = |text: &str| serde_json::from_str::<Option<Slot>>(text);
        assert_eq!(read_by_0_1_0(&text(&lock)).unwrap(), lock.slot);
        lock.extension.effects.push(crate::maintenance::effects::PendingEffect {
            root: Uid("u".into()),
            by: Uid("u".into()),
            action: crate::maintenance::step::Action::Eject { slot: "Cd".into() },
            at: jiff::Timestamp::UNIX_EPOCH,
            until: jiff::Timestamp::UNIX_EPOCH,
        });
        assert!(read_by_0_1_0(&text(&lock)).is_err());
        lock.slot = None;
        assert!(read_by_0_1_0(&text(&lock)).is_err());
        let mut back = ServerLock::new(LockKey("k".into()));
        StoredSlot::into_lock(serde_json::from_str(&text(&lock)).unwrap(), &mut back);
        assert_eq!(back, lock);
    }
}
