//! Display formats of times.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Formats a time in UTC to the second.
#[must_use]
pub fn shown_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// Formats a duration: `1h 30m`, `300ms`.
#[must_use]
pub fn shown_duration(duration: Duration) -> String {
    format!("{:#}", SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_shown_in_units_that_people_use() {
        for (millis, shown) in [(300, "300ms"), (10_000, "10s"), (1_500, "1s 500ms"), (5_400_000, "1h 30m")] {
            assert_eq!(shown_duration(Duration::from_millis(millis)), shown);
        }
        assert!(shown_duration(Duration::MAX).starts_with("2562047788015215h"));
    }
}
