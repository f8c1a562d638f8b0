//! How a time is shown.

use jiff::Timestamp;

/// A moment for people, in UTC to the second.
#[must_use]
pub fn shown_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}
