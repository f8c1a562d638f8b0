//! The audit log in commit order.
//!
//! An order is a time on the store's clock, and its commit can be stored later. So an export
//! omits the newest lines as long as a commit with an earlier order can still arrive.

use jiff::{SignedDuration, Timestamp};

use super::{BucketStore, journal, lock::Listed};
use crate::store::{AuditLine, AuditPosition, AuditStart, StoreError, forgotten_before, history};

/// An export omits younger lines: a commit ends after ten seconds, and two servers' clocks can
/// differ.
const SETTLED: SignedDuration = SignedDuration::from_secs(60);

/// Reads the next lines.
pub(super) async fn read(store: &BucketStore, start: &AuditStart) -> Result<Vec<AuditLine>, StoreError> {
    let now = store.link.now().await?;
    let from = if let AuditStart::After(position) = start { Some(position.order) } else { None };
    let mut lines = all(store, from).await?;
    if !store.link.one_clock() {
        let settled = now.checked_sub(SETTLED).unwrap_or(Timestamp::MIN).as_microsecond();
        lines.retain(|line| line.position.order < settled);
    }
    let since = match start {
        AuditStart::Age(age) => forgotten_before(now, *age),
        _ => Timestamp::MIN,
    };
    history::from(lines, start, since, &store.link.faults)
}

/// Reads all lines, or those of the journals with an order from `from` on.
pub(super) async fn all(store: &BucketStore, from: Option<i64>) -> Result<Vec<AuditLine>, StoreError> {
    // Locks first: an entry that moves to a journal in between is in both.
    let locks = store.locks().await?;
    let mut entries = Vec::new();
    for lock in &locks {
        if let Listed::Row(row) = lock {
            entries.extend(row.outbox.iter().cloned());
        }
    }
    let (moved, unreadable) = journal::read(&store.link, from).await?;
    entries.extend(moved);
    let mut lines = history::lines(entries);
    let newest = lines.last().map_or(0, |line| line.position.order);
    for (name, cause) in unreadable {
        // A name can be forged: a later order would hide later lines.
        let order = super::objects::orders(&name).map_or(0, |(order, _)| order).min(newest);
        let position = AuditPosition { order, commit: name.clone(), number: 0 };
        lines.push(AuditLine { id: name, position, event: Err(cause), stamp: None });
    }
    for lock in locks {
        if let Listed::Unreadable(lock) = lock {
            let position = AuditPosition { order: newest, commit: lock.key.raw().to_owned(), number: 0 };
            let why = lock.unreadable.first().map_or_else(|| "it cannot be read".into(), |record| record.why.clone());
            lines.push(AuditLine { id: lock.key.raw().to_owned(), position, event: Err(why), stamp: None });
        }
    }
    Ok(lines)
}
