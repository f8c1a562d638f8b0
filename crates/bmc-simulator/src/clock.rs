//! One timeline and one order for all events that a test can compare.

use std::sync::atomic::{AtomicU64, Ordering};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;

/// A point in time.
///
/// The wall time is derived from the monotonic time, so both have the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stamp {
    /// Microseconds since the simulator started.
    pub micros: u64,
    /// The wall time.
    pub wall: Timestamp,
}

/// The simulator's clock, its sequence numbers, and its change signal.
#[derive(Debug)]
pub(crate) struct Timeline {
    start: Instant,
    wall: Timestamp,
    sequence: AtomicU64,
    changed: Notify,
}

impl Timeline {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), wall: Timestamp::now(), sequence: AtomicU64::new(0), changed: Notify::new() }
    }

    /// Returns the next number; requests and events share one sequence, which starts at 1.
    pub(crate) fn next(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the last assigned number.
    pub(crate) fn last(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    pub(crate) fn stamp(&self) -> Stamp {
        self.stamp_at(Instant::now())
    }

    pub(crate) fn stamp_at(&self, at: Instant) -> Stamp {
        let since = at.saturating_duration_since(self.start);
        let micros = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        let offset = SignedDuration::try_from(since).unwrap_or(SignedDuration::MAX);
        Stamp { micros, wall: self.wall.checked_add(offset).unwrap_or(Timestamp::MAX) }
    }

    /// Wakes all waiters; costs almost nothing without waiters.
    pub(crate) fn announce(&self) {
        self.changed.notify_waiters();
    }

    /// Calls `look` until it returns a value or `deadline` passes.
    pub(crate) async fn wait<T>(&self, deadline: Instant, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Register before looking, so that no change between look and wait is lost.
            changed.as_mut().enable();
            if let Some(found) = look() {
                return Some(found);
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                return look();
            }
        }
    }
}

/// Serde functions for a duration in whole milliseconds.
pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde fixes the signature")]
    pub(crate) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

/// Serde functions for an optional duration in whole milliseconds.
pub(crate) mod optional_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[allow(clippy::ref_option, reason = "serde fixes the signature")]
    pub(crate) fn serialize<S: Serializer>(value: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        value.map(|value| u64::try_from(value.as_millis()).unwrap_or(u64::MAX)).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
    }
}
