//! Reserves capacity for releases: a store rejects a new record that would leave too little.
//!
//! A lock grows while its holder works: each step is recorded, and ended records become history. A
//! queue must not fill the space needed for that.

use super::{StoreError, fault::StoreErrors};
use crate::maintenance::ids::LockKey;

/// Capacity available to new records, in percent.
const FOR_NEW: usize = 75;

/// Records per lock without a smaller store limit. Every change scans all of them.
pub(super) const RECORDS: usize = 10_000;

/// Rejects a change that adds a record if the lock would be more than three quarters full.
pub(super) fn check(
    about: &StoreErrors,
    key: &LockKey,
    used: usize,
    capacity: usize,
    unit: &str,
) -> Result<(), StoreError> {
    if used.saturating_mul(100) <= capacity.saturating_mul(FOR_NEW) {
        return Ok(());
    }
    Err(about.forbidden(format!(
        "the lock of {key} is full: one more maintenance would use {used} {unit} of {capacity}, and the queue can use \
         only {FOR_NEW} %, so that the current holder can always be released. Wait until queued maintenances have \
         ended, or withdraw some"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_kept_for_the_release() {
        let (about, key) = (StoreErrors::new("here"), LockKey::new("k"));
        check(&about, &key, 75, 100, "records").unwrap();
        let refused = check(&about, &key, 76, 100, "records").unwrap_err();
        assert!(matches!(refused, StoreError::Forbidden { .. }), "{refused}");
        assert!(refused.to_string().contains("76 records of 100"), "{refused}");
    }
}
