//! The stored form of a lock's holder with what else is known of the lock.
//!
//! It stands where version 0.1.0 kept the holder alone. A lock that has nothing else is written as
//! that version wrote it; of one that has, that version says that it cannot read it, and leaves
//! it alone instead of dropping what it does not know.

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error},
};
use serde_json::Value;

use crate::maintenance::{
    address,
    extension::Extension,
    lock::{LockHolder, ServerLock},
    machine::BootOverride,
};

/// The number of this form. Each later form has a higher one: a version refuses a lock with a
/// number that it does not know.
pub(super) const FORMAT: u32 = 2;

/// The least provider version that reads and writes this form. It is stored with each lock, so that
/// a version that does not know the form can name the one to use.
pub(super) const NEEDS: &str = "0.2.0";

/// Whether a lock holds what version 0.1.0 would drop when it writes the lock, and what decides
/// something: not the text of a wait.
pub(super) fn is_extended(lock: &ServerLock) -> bool {
    let unknown = lock.active.iter().any(|record| {
        let passes_on = !record.spec.hand_over.is_restore() || record.took_over.is_some();
        let image = record.spec.boot.as_ref().and_then(|boot| boot.image.as_deref());
        record.update.is_some()
            || image.is_some_and(address::is_sealed)
            || record.prior.as_ref().and_then(|prior| prior.boot.as_ref()).is_some_and(BootOverride::names_an_entry)
            || !record.spec.allow_under.is_empty()
            || record.gates.iter().any(|gate| gate.system.gate.is_some())
            || passes_on
    });
    unknown || !lock.extension.is_empty()
}

/// A stored document in one of its two forms.
pub(super) enum Form<P, E> {
    /// As version 0.1.0 wrote it.
    Plain(P),
    /// With the number of its form.
    Numbered(E),
}

/// Reads a document. One of a later form is refused, with the version that it names.
pub(super) fn form<'de, D, P, E>(deserializer: D) -> Result<Form<P, E>, D::Error>
where
    D: Deserializer<'de>,
    P: DeserializeOwned,
    E: DeserializeOwned,
{
    let value = Value::deserialize(deserializer)?;
    let Some(format) = value.get("format") else {
        return serde_json::from_value(value).map(Form::Plain).map_err(D::Error::custom);
    };
    if format.as_u64().is_none_or(|format| format > u64::from(FORMAT)) {
        let needs = value["needs"].as_str().map_or("a newer one".to_owned(), |version| format!("{version} or later"));
        return Err(D::Error::custom(format!(
            "it has format {format}, and this provider version reads and writes up to {FORMAT}; the provider version that it \
             needs is {needs}"
        )));
    }
    serde_json::from_value(value).map(Form::Numbered).map_err(D::Error::custom)
}

/// A lock's holder and extension, as a store keeps them.
#[allow(clippy::large_enum_variant, reason = "few of them exist at a time")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum StoredSlot {
    /// With what else is known.
    Extended(Extended),
    /// The holder alone.
    Plain(LockHolder),
}

/// A lock's holder with what else is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Extended {
    /// The number of the form.
    format: u32,
    /// The least provider version that reads and writes it.
    #[serde(default)]
    needs: String,
    /// Who is admitted.
    holder: Option<LockHolder>,
    /// What else is known.
    extension: Extension,
}

impl<'de> Deserialize<'de> for StoredSlot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match form(deserializer)? {
            Form::Plain(slot) => Self::Plain(slot),
            Form::Numbered(extended) => Self::Extended(extended),
        })
    }
}

impl StoredSlot {
    /// What is stored of a lock; nothing where it has neither.
    pub(super) fn of(lock: &ServerLock) -> Option<Self> {
        if !is_extended(lock) {
            return lock.slot.clone().map(Self::Plain);
        }
        let (holder, extension) = (lock.slot.clone(), lock.extension.clone());
        Some(Self::Extended(Extended { format: FORMAT, needs: NEEDS.to_owned(), holder, extension }))
    }

    /// Puts back what [`Self::of`] took.
    pub(super) fn into_lock(stored: Option<Self>, lock: &mut ServerLock) {
        (lock.slot, lock.extension) = match stored {
            None => (None, Extension::default()),
            Some(Self::Plain(slot)) => (Some(slot), Extension::default()),
            Some(Self::Extended(Extended { holder, extension, .. })) => (holder, extension),
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
        lock.slot = Some(LockHolder { uid: Uid("u".into()), since: jiff::Timestamp::UNIX_EPOCH, acting: None });
        let text = |lock: &ServerLock| serde_json::to_string(&StoredSlot::of(lock)).unwrap();
        let read_by_0_1_0 = |text: &str| serde_json::from_str::<Option<LockHolder>>(text);
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

    #[test]
    fn a_later_form_is_refused_with_the_version_that_it_needs() {
        let read = |text: &str| serde_json::from_str::<Option<StoredSlot>>(text).unwrap_err().to_string();
        let later = read(r#"{"format":3,"needs":"0.7.0","holder":null,"extension":{}}"#);
        assert!(later.contains("format 3") && later.contains("0.7.0 or later"), "{later}");
        assert!(read(r#"{"format":"x"}"#).contains("a newer one"));
        // A fact that this version does not know is not dropped.
        assert!(read(r#"{"format":2,"holder":null,"extension":{"weather":"fine"}}"#).contains("weather"));
        assert!(read(r#"{"format":2,"holder":null,"extension":{},"weather":"fine"}"#).contains("weather"));
    }

    #[test]
    fn what_version_0_1_0_would_drop_makes_a_lock_extended() {
        let golden = include_str!("../../tests/store/golden/v0.1.0/store.json");
        let golden: serde_json::Value = serde_json::from_str(golden).unwrap();
        let lock: ServerLock = serde_json::from_value(golden["locks"][0].clone()).unwrap();
        assert!(!is_extended(&lock), "a lock of version 0.1.0 stays one that it reads and writes");
        let mut listed = lock.clone();
        listed.active[0].spec.allow_under.push("others".into());
        assert!(matches!(StoredSlot::of(&listed), Some(StoredSlot::Extended(_))));
        let mut entry = lock.clone();
        let prior = entry.active.iter_mut().find_map(|record| record.prior.as_mut()).unwrap();
        prior.boot = Some(BootOverride { uefi_target: Some("PciRoot(0x0)".into()), ..BootOverride::default() });
        assert!(is_extended(&entry));
    }
}
