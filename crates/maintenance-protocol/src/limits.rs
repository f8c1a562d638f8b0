//! Limits for inputs. The priority limit bounds the waiting time. The text limits keep a lock with
//! a long queue within a store's transaction size.

use std::{collections::BTreeMap, fmt, ops::RangeInclusive};

/// The accepted priorities.
///
/// An entry gains one level per `aging` interval. A request that arrives more than `(100 -
/// priority) * aging` after an entry is therefore never served before it. Only requests in the
/// queue by then can precede the entry.
pub const PRIORITY: RangeInclusive<i64> = -100..=100;

/// A server's name, in characters.
pub const SERVER: usize = 253;
/// `reason`, in characters.
pub const REASON: usize = 1024;
/// `ticket`, in characters.
pub const TICKET: usize = 2048;
/// A claim's `contact`, in characters.
pub const CONTACT: usize = 256;
/// A URL (`image`, `url`), in characters.
pub const URL: usize = 2048;
/// Maximum number of `triggers`.
pub const TRIGGERS: usize = 32;
/// A trigger's name, in characters.
pub const TRIGGER_NAME: usize = 128;
/// A trigger's value, in characters.
pub const TRIGGER: usize = 1024;

/// An exceeded limit. The message continues a sentence about the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A text is too long.
    #[error("is {length} characters long; at most {most} are allowed")]
    Length {
        /// The text's length in characters.
        length: usize,
        /// The limit.
        most: usize,
    },
    /// A map has too many entries.
    #[error("has {count} entries; at most {most} are allowed")]
    Count {
        /// Number of entries.
        count: usize,
        /// The limit.
        most: usize,
    },
    /// A priority is out of range.
    #[error("is {0}; {least} to {most} are allowed", least = PRIORITY.start(), most = PRIORITY.end())]
    Priority(i64),
}

/// Checks a text's length.
pub fn check_length(text: &str, most: usize) -> Result<(), LimitError> {
    // Skips counting characters, because there are never more characters than bytes.
    if text.len() <= most {
        return Ok(());
    }
    match text.chars().count() {
        length if length > most => Err(LimitError::Length { length, most }),
        _ => Ok(()),
    }
}

/// Checks a priority.
pub fn check_priority(priority: i64) -> Result<(), LimitError> {
    if PRIORITY.contains(&priority) { Ok(()) } else { Err(LimitError::Priority(priority)) }
}

/// The part of `triggers` that exceeds its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TriggerPart<'a> {
    /// The whole map.
    Map,
    /// This trigger's name.
    Name(&'a str),
    /// This trigger's value.
    Value(&'a str),
}

impl fmt::Display for TriggerPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Map => write!(f, "the map"),
            Self::Name(name) => write!(f, "the name {:?}", name.chars().take(32).collect::<String>()),
            Self::Value(name) => write!(f, "the value of {name:?}"),
        }
    }
}

/// Checks `triggers` and returns the first violation with its location.
pub fn check_triggers(triggers: &BTreeMap<String, String>) -> Result<(), (TriggerPart<'_>, LimitError)> {
    if triggers.len() > TRIGGERS {
        return Err((TriggerPart::Map, LimitError::Count { count: triggers.len(), most: TRIGGERS }));
    }
    for (name, value) in triggers {
        check_length(name, TRIGGER_NAME).map_err(|error| (TriggerPart::Name(name), error))?;
        check_length(value, TRIGGER).map_err(|error| (TriggerPart::Value(name), error))?;
    }
    Ok(())
}

/// Clamps a stored priority to the accepted range, because a store role can write any value.
#[must_use]
pub fn counted(priority: i64) -> i64 {
    priority.clamp(*PRIORITY.start(), *PRIORITY.end())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::{SignedDuration, Timestamp};
    use proptest::prelude::*;

    use super::*;
    use crate::{
        ids::{LockKey, MaintenanceId, Runner, Uid},
        model::lock::{EnqueueRequest, Leases, ServerLock},
        queue::waiting,
        spec::{MaintenanceKind, Spec},
    };

    fn request(name: &str, priority: i64) -> EnqueueRequest {
        let runner = Runner::new("r", "ada", "desk", 1);
        let spec = Spec { priority, ..Spec::new(MaintenanceKind::Maintenance, "node") };
        let (uid, id) = (Uid::new(name), MaintenanceId::new("ops", name).unwrap());
        let asking = crate::lock::AskingState::default();
        EnqueueRequest {
            uid,
            id,
            owner: "team".into(),
            spec,
            gates: Vec::new(),
            location: None,
            runner,
            keeps_place: true,
            asking,
        }
    }

    proptest! {
        /// Includes priorities outside the range, which a store role can write.
        #[test]
        fn nothing_that_is_asked_for_later_than_the_bound_goes_first(
            priority in prop_oneof![any::<i64>(), PRIORITY],
            later_priority in prop_oneof![any::<i64>(), PRIORITY],
            aging in 1..1_000_000_i64,
            later_by in 0..1000_i64,
            looked_after in 0..1_000_000_000_i64,
        ) {
            let begin = Timestamp::UNIX_EPOCH;
            let bound = SignedDuration::from_secs((PRIORITY.end() - counted(priority)) * aging);
            let asked = begin + bound + SignedDuration::from_secs(later_by);
            let mut lock = ServerLock::new(LockKey::new("k"));
            lock.enqueue(request("first", priority), &Leases::default(), begin).unwrap();
            lock.enqueue(request("later", later_priority), &Leases::default(), asked).unwrap();
            let now = asked + SignedDuration::from_secs(looked_after);
            let order = waiting(&lock, Duration::from_secs(aging.unsigned_abs()), now);
            prop_assert_eq!(order[0].id.name(), "first");
        }
    }

    #[test]
    fn a_length_is_counted_in_characters() {
        assert_eq!(check_length(&"ä".repeat(10), 10), Ok(()));
        let error = check_length(&"ä".repeat(11), 10).unwrap_err();
        assert_eq!(error.to_string(), "is 11 characters long; at most 10 are allowed");
    }

    #[test]
    fn the_trigger_that_is_too_long_is_named() {
        let triggers = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        assert_eq!(check_triggers(&triggers("a", &"x".repeat(TRIGGER))), Ok(()));
        let long = triggers("a", &"x".repeat(TRIGGER + 1));
        assert_eq!(check_triggers(&long).unwrap_err().0, TriggerPart::Value("a"));
        let many: BTreeMap<_, _> = (0..=TRIGGERS).map(|n| (n.to_string(), String::new())).collect();
        assert_eq!(check_triggers(&many).unwrap_err().0, TriggerPart::Map);
    }
}
