//! The stored form of a lock's holder and its extension.
//!
//! Each stored document contains the format number. A program rejects only the locks with another
//! format; all other locks remain usable.

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error},
};
use serde_json::Value;

use super::format::FORMAT;
use crate::maintenance::{
    extension::Extension,
    lock::{LockHolder, ServerLock},
};

/// Reads a document after checking its format number.
pub(super) fn checked<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let mut value = Value::deserialize(deserializer)?;
    let format = value.as_object_mut().and_then(|fields| fields.remove("format")).unwrap_or_default();
    if format.as_i64() != Some(FORMAT) {
        return Err(D::Error::custom(format!(
            "it has format {format}, and this provider version supports format {FORMAT}: use the version that wrote it"
        )));
    }
    serde_json::from_value(value).map_err(D::Error::custom)
}

/// A lock's holder and extension in stored form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct StoredSlot {
    format: i64,
    holder: Option<LockHolder>,
    extension: Extension,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    holder: Option<LockHolder>,
    extension: Extension,
}

impl<'de> Deserialize<'de> for StoredSlot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Fields { holder, extension } = checked(deserializer)?;
        Ok(Self { format: FORMAT, holder, extension })
    }
}

impl StoredSlot {
    /// Returns a lock's stored form, or `None` if it would be empty.
    pub(super) fn of(lock: &ServerLock) -> Option<Self> {
        let (holder, extension) = (lock.slot.clone(), lock.extension.clone());
        (holder.is_some() || !extension.is_empty()).then_some(Self { format: FORMAT, holder, extension })
    }

    /// Copies a stored form into its lock.
    pub(super) fn into_lock(stored: Option<Self>, lock: &mut ServerLock) {
        (lock.slot, lock.extension) = stored.map(|stored| (stored.holder, stored.extension)).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance::ids::{LockKey, Uid};

    #[test]
    fn a_lock_is_stored_with_its_format_and_read_back() {
        let mut lock = ServerLock::new(LockKey::new("k"));
        assert_eq!(StoredSlot::of(&lock), None);
        lock.slot = Some(LockHolder { uid: Uid::new("u"), since: jiff::Timestamp::UNIX_EPOCH, acting: None });
        lock.extension.effects.push(crate::maintenance::effects::PendingEffect {
            root: Uid::new("u"),
            by: Uid::new("u"),
            action: crate::maintenance::step::Action::Eject { slot: "Cd".into() },
            at: jiff::Timestamp::UNIX_EPOCH,
            until: jiff::Timestamp::UNIX_EPOCH,
        });
        let text = serde_json::to_string(&StoredSlot::of(&lock)).unwrap();
        assert!(text.starts_with("{\"format\":1,"), "{text}");
        let mut back = ServerLock::new(LockKey::new("k"));
        StoredSlot::into_lock(serde_json::from_str(&text).unwrap(), &mut back);
        assert_eq!(back, lock);
    }

    #[test]
    fn another_format_and_unknown_fields_are_rejected() {
        let read = |text: &str| serde_json::from_str::<Option<StoredSlot>>(text).unwrap_err().to_string();
        for (text, said) in [
            (r#"{"format":3,"holder":null,"extension":{}}"#, "format 3"),
            (r#"{"format":"x"}"#, "format \"x\""),
            (r#"{"holder":null,"extension":{}}"#, "format null"),
            (r#"{"format":1,"holder":null,"extension":{"weather":"fine"}}"#, "weather"),
            (r#"{"format":1,"holder":null,"extension":{},"weather":"fine"}"#, "weather"),
        ] {
            assert!(read(text).contains(said), "{text}: {}", read(text));
        }
    }
}
