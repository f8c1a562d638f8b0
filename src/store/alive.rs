//! Process liveness, for stores whose servers each have their own clock.
//!
//! A lease is written with one server's time and read with another's, so its end alone proves
//! little. A process is dead if
//!
//! - it resigned,
//! - or its lease stayed unchanged for its whole length, on our monotonic clock,
//! - or its end passed longer ago than two servers' clocks can differ.
//!
//! A process that first looks shortly after another process died waits for up to a lease length. A
//! process that was already watching does not wait.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

use crate::maintenance::ids::RunnerId;

/// The largest difference between two servers' clocks. Beyond that, a cluster rejects its own
/// certificates and tokens.
const APART: SignedDuration = SignedDuration::from_secs(30);

/// The shortest remaining time reported for a lease that has not ended.
const STILL: SignedDuration = SignedDuration::from_millis(500);

/// The minimum age before what a dead process left behind is removed.
pub(super) const LEFT_BEHIND: SignedDuration = SignedDuration::from_hours(24);

/// Cached leases. Other leases count as first seen at each look.
const REMEMBERED: usize = 8192;

/// A process's lease as read.
#[derive(Clone, Debug)]
pub(super) struct LeaseStatus {
    pub(super) runner: RunnerId,
    pub(super) until: Timestamp,
    pub(super) over: bool,
    pub(super) length: Duration,
    /// Changes with each renewal.
    pub(super) version: String,
}

/// A read's time, on our monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) asked: Duration,
    pub(super) answered: Duration,
    /// The store's time.
    pub(super) now: Timestamp,
}

/// Leases observed by this process.
#[derive(Debug, Default)]
pub(super) struct Alive {
    /// A lease's version and when it was first observed.
    seen: Mutex<HashMap<RunnerId, (String, Duration)>>,
}

impl Alive {
    /// Returns the latest time until which a process can act; it is dead if that is before the
    /// look. `one_clock`: all times come from one clock, so written times are exact.
    pub(super) fn until(&self, said: &LeaseStatus, look: Look, one_clock: bool) -> Timestamp {
        let unchanged = self.unchanged(said, look);
        let left_by_clock = said.until.duration_since(look.now) + if one_clock { SignedDuration::ZERO } else { APART };
        let left_by_sight = said.length.saturating_sub(unchanged);
        let over_by_sight = left_by_sight.is_zero() && !one_clock;
        if said.over || left_by_clock <= SignedDuration::ZERO || over_by_sight {
            return said.until.min(look.now);
        }
        let left = SignedDuration::try_from(left_by_sight).unwrap_or(left_by_clock).min(left_by_clock);
        if said.until > look.now { said.until } else { look.now + left.max(STILL) }
    }

    /// Returns the minimum time since the last change: from the first look that found this version
    /// (its end) to this look (its start).
    fn unchanged(&self, said: &LeaseStatus, look: Look) -> Duration {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.get(&said.runner) {
            Some((version, first)) if *version == said.version => look.asked.saturating_sub(*first),
            _ => {
                if seen.len() >= REMEMBERED {
                    seen.clear();
                }
                seen.insert(said.runner.clone(), (said.version.clone(), look.answered));
                Duration::ZERO
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(version: &str, until: i64) -> LeaseStatus {
        let until = Timestamp::from_second(until).unwrap();
        let (runner, length) = (RunnerId::new("r"), Duration::from_secs(30));
        LeaseStatus { runner, until, over: false, length, version: version.into() }
    }

    /// Returns a look at a monotonic second and a server time.
    fn look(monotonic: u64, now: i64) -> Look {
        let at = Duration::from_secs(monotonic);
        Look { asked: at, answered: at, now: Timestamp::from_second(now).unwrap() }
    }

    fn alive(all: &Alive, said: &LeaseStatus, look: Look) -> bool {
        all.until(said, look, false) > look.now
    }

    #[test]
    fn who_was_seen_unchanged_for_the_length_of_its_lease_is_gone_whatever_the_clocks_say() {
        for skew in [-3600, 0, 29, 3600] {
            let all = Alive::default();
            // Written at 1000 for 30 s; the reader's server differs by `skew` seconds.
            let at = |monotonic| look(monotonic, 1000 + skew + i64::try_from(monotonic).unwrap());
            let first = alive(&all, &said("1", 1030), at(0));
            assert_eq!(first, skew < 60, "a first look trusts only a lease that ended long ago: {skew}");
            assert_eq!(alive(&all, &said("1", 1030), at(29)), skew + 29 < 60, "{skew}");
            assert!(!alive(&all, &said("1", 1030), at(30)), "{skew}");
            // A renewal restarts the time.
            assert_eq!(alive(&all, &said("2", 1061), at(31)), skew < 60);
            assert!(!alive(&all, &said("2", 1061), at(62)), "{skew}");
        }
    }

    #[test]
    fn who_said_that_it_is_over_is_gone_and_it_is_known_since_when() {
        let all = Alive::default();
        let over = LeaseStatus { over: true, ..said("1", 1030) };
        assert_eq!(all.until(&over, look(0, 1010), false), Timestamp::from_second(1010).unwrap());
        assert_eq!(all.until(&over, look(0, 2000), false), over.until);
    }

    #[test]
    fn by_one_clock_a_lease_ends_to_the_moment() {
        let all = Alive::default();
        assert!(all.until(&said("1", 1030), look(0, 1029), true) > Timestamp::from_second(1029).unwrap());
        assert_eq!(all.until(&said("1", 1030), look(0, 1030), true), Timestamp::from_second(1030).unwrap());
        // The observation time does not matter.
        assert!(all.until(&said("1", 1030), look(99, 1029), true) > Timestamp::from_second(1029).unwrap());
    }
}
