//! One change as one statement.

use sqlx::PgConnection;

use super::{
    fault::{Faults, is_taken_name},
    link::Link,
    rows::{escaped, signed, text},
    schema::{self, SUPPORTED},
};
use crate::{
    maintenance::{approval::Approval, ids::LockKey, ownership::Ownership, state::Maintenance},
    store::{StoreError, capacity, extended::StoredSlot, optimistic::Change},
};

/// Columns of what a change writes, one list for each.
#[derive(Default)]
pub(super) struct Written {
    pub(super) uids: Vec<String>,
    pub(super) namespaces: Vec<String>,
    pub(super) names: Vec<String>,
    pub(super) fates: Vec<&'static str>,
    pub(super) runners: Vec<Option<String>>,
    pub(super) bodies: Vec<String>,
}

impl Written {
    pub(super) fn add(&mut self, record: &Maintenance, fate: &'static str, faults: &Faults) -> Result<(), StoreError> {
        self.uids.push(escaped(&record.uid.0).into_owned());
        self.namespaces.push(record.id.namespace().to_owned());
        self.names.push(record.id.name().to_owned());
        self.fates.push(fate);
        self.runners.push(record.attachment.as_ref().map(|attachment| escaped(&attachment.runner.id.0).into_owned()));
        self.bodies.push(text(&record.uid.0, record, faults)?);
        Ok(())
    }
}

/// What a change does to the owner's words.
#[derive(Default)]
pub(super) struct Approvals {
    pub(super) gone: Vec<String>,
    pub(super) uids: Vec<String>,
    pub(super) owners: Vec<String>,
    pub(super) bodies: Vec<String>,
    pub(super) uses: Vec<Option<String>>,
    pub(super) used: Vec<String>,
    pub(super) used_by: Vec<Option<String>>,
}

impl Approvals {
    pub(super) fn between(before: &Ownership, after: &Ownership, faults: &Faults) -> Result<Self, StoreError> {
        let mut moved = Self::default();
        let kept = |one: &Approval, other: &Approval| {
            Approval { used_by: None, ..one.clone() } == Approval { used_by: None, ..other.clone() }
        };
        for old in &before.approvals {
            if !after.approval(&old.uid).is_some_and(|new| kept(new, old)) {
                moved.gone.push(escaped(&old.uid.0).into_owned());
            }
        }
        let owner = after.claim.as_ref().map(|claim| escaped(&claim.owner).into_owned()).unwrap_or_default();
        for new in &after.approvals {
            let used_by = new.used_by.as_ref().map(|uid| escaped(&uid.0).into_owned());
            match before.approval(&new.uid).filter(|old| kept(new, old)) {
                Some(old) if old.used_by == new.used_by => {}
                Some(_) => {
                    moved.used.push(escaped(&new.uid.0).into_owned());
                    moved.used_by.push(used_by);
                }
                None => {
                    moved.uids.push(escaped(&new.uid.0).into_owned());
                    moved.owners.push(owner.clone());
                    moved.bodies.push(text(&new.uid.0, new, faults)?);
                    moved.uses.push(used_by);
                }
            }
        }
        Ok(moved)
    }
}

/// Writes a change if nobody else wrote since it was read: the new revision, or nothing.
pub(super) async fn commit(
    db: &mut PgConnection,
    change: &Change<'_>,
    channel: &str,
    link: &Link,
) -> Result<Option<i64>, StoreError> {
    let faults = &link.faults;
    let (before, after) = (&change.before.lock, change.after);
    let key = &after.key.0;
    if change.adds() {
        capacity::check(faults, &after.key, after.active.len(), capacity::RECORDS, "records")?;
    }
    let slot = StoredSlot::of(after).map(|slot| text(key, &slot, faults)).transpose()?;
    let claim = after.ownership.claim.as_ref().map(|claim| text(key, claim, faults)).transpose()?;
    let head = (after.generation, after.last_ticket, StoredSlot::of(after))
        != (before.generation, before.last_ticket, StoredSlot::of(before));
    let mut written = Written::default();
    for record in change.finished {
        written.add(record, "ended", faults)?;
    }
    for record in change.written() {
        written.add(record, "active", faults)?;
    }
    let withdrawn: Vec<_> = change.withdrawn().map(|record| escaped(&record.uid.0).into_owned()).collect();
    let approvals = Approvals::between(&before.ownership, &after.ownership, faults)?;
    let namespaces: Vec<&str> = change.events.iter().map(|event| event.id.namespace()).collect();
    let names: Vec<&str> = change.events.iter().map(|event| event.id.name()).collect();
    let events = change.events.iter().map(|event| text(key, event, faults)).collect::<Result<Vec<_>, _>>()?;
    let result: Result<Option<Option<i64>>, sqlx::Error> = sqlx::query_scalar(
        "SELECT metal.commit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, \
         $21, $22, $23, $24, $25, $26, $27) \
         WHERE ($2 = 0 OR EXISTS (SELECT FROM metal.locks AS l WHERE l.lock_key = $1 AND l.revision = $2 \
         AND split_part(l.commits, ' ', 1) = $28)) \
         AND NOT EXISTS (SELECT FROM metal.schema_versions AS s WHERE s.version > $29)",
    )
    .bind(escaped(key).as_ref())
    .bind(change.before.revision)
    .bind(change.commits())
    .bind(head)
    .bind(signed(after.generation, faults)?)
    .bind(signed(after.last_ticket, faults)?)
    .bind(slot)
    .bind(after.ownership.claim != before.ownership.claim)
    .bind(claim)
    .bind(withdrawn)
    .bind(written.uids)
    .bind(written.namespaces)
    .bind(written.names)
    .bind(written.fates)
    .bind(written.runners)
    .bind(written.bodies)
    .bind(approvals.gone)
    .bind(approvals.uids)
    .bind(approvals.owners)
    .bind(approvals.bodies)
    .bind(approvals.uses)
    .bind(approvals.used)
    .bind(approvals.used_by)
    .bind(namespaces)
    .bind(names)
    .bind(events)
    .bind(channel)
    // A revision is given out again by a store that lost commits; a name is not.
    .bind(change.before.commits.newest().unwrap_or_default())
    // A newer version may have migrated the database since this process opened it.
    .bind(SUPPORTED.newest)
    .persistent(!link.pooled)
    .fetch_optional(&mut *db)
    .await;
    match result {
        Ok(None) => {
            SUPPORTED.check_open(schema::version(db, faults).await?, faults)?;
            Ok(None)
        }
        Ok(revision) => Ok(revision.flatten()),
        Err(error) if is_taken_name(&error) => Err(taken(change, faults)),
        Err(error) => Err(faults.sqlx(&error)),
    }
}

/// Which of the new names it was is asked afterwards; the place is filled in by [`super::PostgresStore`].
fn taken(change: &Change<'_>, faults: &Faults) -> StoreError {
    match change.written().find(|record| change.is_new(record)) {
        Some(record) => StoreError::NameTaken { id: record.id.clone(), key: LockKey(String::new()) },
        None => faults.unreadable("a name that belonged to this maintenance belongs to another one"),
    }
}
