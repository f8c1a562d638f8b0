//! Reaction of a run to a failed store request.

use std::time::Duration;

/// Pause after the first failure. Each consecutive failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// A run whose last store request failed: the store did not answer, or rejected the change.
#[derive(Clone, Copy, Debug)]
pub struct StoreFailure {
    /// Number of failed requests since the last stored change.
    pub in_a_row: u32,
    /// Remaining time of the run.
    pub left: Duration,
    /// True if the run must stop.
    pub stop: bool,
    /// The longest pause.
    pub longest: Duration,
}

impl StoreFailure {
    /// Returns the pause before the next request, or `None` if the run ends with the error.
    ///
    /// A store that answers reads and rejects changes would repeat the same decision endlessly.
    /// Every failed request is therefore followed by a pause. The time limit ends the run even if
    /// that decision cannot be stored.
    #[must_use]
    pub fn pause(&self) -> Option<Duration> {
        if self.stop || self.left.is_zero() {
            return None;
        }
        let doubled = FIRST_PAUSE.saturating_mul(2u32.saturating_pow(self.in_a_row.min(16)));
        Some(doubled.min(self.longest).min(self.left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_is_followed_by_a_pause_or_the_end() {
        let secs = Duration::from_secs;
        for in_a_row in 0..64 {
            for left in [Duration::ZERO, Duration::from_millis(1), secs(1), secs(3600)] {
                for stop in [false, true] {
                    let pause = StoreFailure { in_a_row, left, stop, longest: secs(2) }.pause();
                    match pause {
                        None => assert!(stop || left.is_zero()),
                        Some(pause) => {
                            assert!(!stop && !pause.is_zero() && pause <= left && pause <= secs(2), "{pause:?}");
                            assert!(pause == left || pause >= FIRST_PAUSE, "{pause:?}");
                        }
                    }
                }
            }
        }
    }
}
