//! Room for the release: a store adds no record to a lock that would leave too little of it.
//!
//! Whatever holds a server has to be recorded step by step until it is released, and what it was
//! becomes history. A lock that was filled by its own queue could not take that any more.

use super::{StoreError, fault::StoreErrors};
use crate::maintenance::ids::LockKey;

/// How much of the capacity new records may fill, in percent.
const FOR_NEW: usize = 75;

/// How many records one lock holds where the store itself has no smaller limit. Each change looks
/// at all of them.
pub(super) const RECORDS: usize = 10_000;

/// Refuses a change that adds a record, if the lock would be fuller than three quarters with it.
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
        "the lock of {key} is full: with one more maintenance it would have {used} {unit} of {capacity}, and only {FOR_NEW} % \
         may be filled by the queue, so that the present holder can always be released. Wait until some of the queue has \
         ended, or withdraw some of it"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_kept_for_the_release() {
        let (about, key) = (StoreErrors::new("here"), LockKey("k".into()));
        check(&about, &key, 75, 100, "records").unwrap();
        let refused = check(&about, &key, 76, 100, "records").unwrap_err();
        assert!(matches!(refused, StoreError::Forbidden { .. }), "{refused}");
        assert!(refused.to_string().contains("76 records of 100"), "{refused}");
    }
}
