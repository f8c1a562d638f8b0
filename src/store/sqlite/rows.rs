//! Conversions between rows and a [`ServerLock`].

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::{
    fault::ErrorMapper,
    leases::{self, Moment},
};
use crate::{
    maintenance::{
        extension::Extension,
        ids::{LockKey, Uid},
        lock::{AuditEvent, Leases, LockHolder, ServerLock},
        ownership::Ownership,
        quarantine::{Records, Unreadable},
        state::Maintenance,
    },
    store::{StoreError, extended, format::FORMAT, optimistic::Commits, views::Stored},
};

/// A row of `locks`.
pub(super) type LockRow =
    (String, i64, i64, Option<String>, Option<String>, Option<String>, Option<String>, i64, Option<String>);

/// The columns of a [`LockRow`].
macro_rules! lock_columns {
    () => {
        "lock_key, generation, last_ticket, slot_uid, slot_since, slot_acting, ownership, revision, \
         (SELECT value FROM meta WHERE key = 'commits/' || lock_key)"
    };
}

pub(super) use lock_columns;

/// Formats a time with nine fraction digits, so that text order is time order.
pub(super) fn time_text(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%9fZ").to_string()
}

pub(super) fn time(text: &str, faults: &ErrorMapper) -> Result<Timestamp, StoreError> {
    text.parse().map_err(|error| faults.unreadable(format!("{text:?} is not a valid time: {error}")))
}

fn unsigned(value: i64, faults: &ErrorMapper) -> Result<u64, StoreError> {
    u64::try_from(value).map_err(|_| faults.unreadable(format!("{value} is not a valid generation or ticket")))
}

pub(super) fn signed(value: u64, faults: &ErrorMapper) -> Result<i64, StoreError> {
    i64::try_from(value).map_err(|_| faults.unreadable(format!("{value} is more than SQLite can count")))
}

fn json<T: DeserializeOwned>(uid: &str, text: &str, faults: &ErrorMapper) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| faults.record(uid, &error))
}

/// Parses a record from its columns.
pub(super) fn record((uid, body): (String, String), faults: &ErrorMapper) -> Result<Maintenance, StoreError> {
    json(&uid, &body, faults)
}

pub(super) fn lock_of(row: LockRow, records: Records, faults: &ErrorMapper) -> Result<Stored, StoreError> {
    let (revision, commits) = (row.7, Arc::new(Commits::parse(row.8.as_deref().unwrap_or_default(), "")));
    let mut lock = head(row, faults)?;
    (lock.active, lock.unreadable) = records;
    Ok(Stored { revision, lock: Arc::new(lock), commits })
}

/// Returns a lock for display; an unreadable lock is [quarantined](ServerLock::quarantined).
pub(super) fn shown(row: LockRow, records: Records, faults: &ErrorMapper) -> Result<ServerLock, StoreError> {
    let key = LockKey::new(row.0.clone());
    match head(row, faults) {
        Ok(lock) => Ok(ServerLock { active: records.0, unreadable: records.1, ..lock }),
        Err(StoreError::Unreadable { cause, .. }) => {
            Ok(ServerLock::quarantined(key, cause.raw(), &records.0, records.1))
        }
        Err(error) => Err(error),
    }
}

/// Returns a lock without its records.
fn head(row: LockRow, faults: &ErrorMapper) -> Result<ServerLock, StoreError> {
    let (key, generation, last_ticket, slot_uid, slot_since, slot_acting, ownership, ..) = row;
    let mut lock = ServerLock::new(LockKey::new(key));
    lock.generation = unsigned(generation, faults)?;
    lock.last_ticket = unsigned(last_ticket, faults)?;
    if let (Some(uid), Some(since)) = (slot_uid, slot_since) {
        lock.slot =
            Some(LockHolder { uid: Uid::new(uid), since: time(&since, faults)?, acting: slot_acting.map(Uid::new) });
    }
    if let Some(text) = ownership {
        let Read(stored) = json(&format!("of the lock {}", lock.key), &text, faults)?;
        (lock.ownership, lock.extension) = (stored.ownership, stored.extension);
    }
    Ok(lock)
}

/// The column `ownership`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Owned {
    ownership: Ownership,
    extension: Extension,
}

/// The column with its format number, for reading.
struct Read(Owned);

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        extended::checked(deserializer).map(Self)
    }
}

/// The column with its format number, for writing.
#[derive(Serialize)]
struct Written {
    format: i64,
    #[serde(flatten)]
    owned: Owned,
}

/// Reads one lock. A cached lock with the same revision is reused.
pub(super) async fn load(
    db: &mut SqliteConnection,
    key: &LockKey,
    known: Option<Stored>,
    faults: &ErrorMapper,
) -> Result<Stored, StoreError> {
    let fault = |error: sqlx::Error| faults.sqlx(&error);
    let row: Option<LockRow> = sqlx::query_as(concat!("SELECT ", lock_columns!(), " FROM locks WHERE lock_key = ?"))
        .bind(key.raw())
        .fetch_optional(&mut *db)
        .await
        .map_err(fault)?;
    let Some(row) = row else {
        return Ok(Stored::none(key));
    };
    let commits = Commits::parse(row.8.as_deref().unwrap_or_default(), "");
    if let Some(known) = known.filter(|known| known.revision == row.7 && *known.commits == commits) {
        return Ok(known);
    }
    let rows: Vec<(String, String)> =
        sqlx::query_as("SELECT uid, body FROM maintenances WHERE active = 1 AND lock_key = ? ORDER BY id")
            .bind(key.raw())
            .fetch_all(&mut *db)
            .await
            .map_err(fault)?;
    let read = Unreadable::part(rows.iter().map(|(uid, body)| Unreadable::or_record(uid, body)));
    lock_of(row, read, faults)
}

/// Reads every lock that has an active record or an owner, sorted by key, each with its leases.
pub(super) async fn load_all(
    db: &mut SqliteConnection,
    now: &Moment,
    faults: &ErrorMapper,
) -> Result<Vec<(Arc<ServerLock>, Leases)>, StoreError> {
    let fault = |error: sqlx::Error| faults.sqlx(&error);
    let records: Vec<(String, String, String)> =
        sqlx::query_as("SELECT lock_key, uid, body FROM maintenances WHERE active = 1 ORDER BY lock_key, id")
            .fetch_all(&mut *db)
            .await
            .map_err(fault)?;
    let mut active: HashMap<String, Records> = HashMap::new();
    for (key, uid, body) in records {
        let (records, unreadable) = active.entry(key).or_default();
        match Unreadable::or_record(&uid, &body) {
            Ok(record) => records.push(record.into()),
            Err(other) => unreadable.push(*other),
        }
    }
    let locks: Vec<LockRow> = sqlx::query_as(concat!(
        "SELECT ",
        lock_columns!(),
        " FROM locks WHERE ownership IS NOT NULL OR lock_key IN (SELECT lock_key FROM maintenances WHERE active = 1) \
         ORDER BY lock_key",
    ))
    .fetch_all(&mut *db)
    .await
    .map_err(fault)?;
    let leases = leases::all(db, now, faults).await?;
    let mut found = Vec::with_capacity(locks.len());
    for row in locks {
        let records = active.remove(&row.0).unwrap_or_default();
        let lock = Arc::new(shown(row, records, faults)?);
        if lock.is_idle() {
            continue;
        }
        let attached = lock.active.iter().filter_map(|record| record.attachment.as_ref());
        let own = attached.filter_map(|a| leases.until(a).map(|until| (a.runner.id.clone(), until))).collect();
        found.push((lock, Leases(own)));
    }
    Ok(found)
}

/// Writes a transition's changes. Returns the stored lock, or `None` if the lock is unchanged (its
/// audit lines are still written).
pub(super) async fn save(
    db: &mut SqliteConnection,
    stored: &Stored,
    mut after: ServerLock,
    faults: &ErrorMapper,
) -> Result<Option<Stored>, StoreError> {
    let before = &*stored.lock;
    let finished = std::mem::take(&mut after.finished);
    let events = std::mem::take(&mut after.events);
    // Check before writing, because other changes share this transaction.
    for record in after.active.iter().filter(|record| before.get(&record.uid).is_none()) {
        refuse_taken_name(db, before, record, faults).await?;
    }
    let moved = after != *before || !finished.is_empty();
    let revision = if moved { save_lock(db, &after, faults).await? } else { 0 };
    // Delete first: a name can end and start again in one transition.
    let stays = |uid: &Uid| after.get(uid).is_some() || finished.iter().any(|record| record.uid == *uid);
    for gone in before.active.iter().filter(|record| !stays(&record.uid)) {
        sqlx::query("DELETE FROM maintenances WHERE uid = ? AND active = 1")
            .bind(gone.uid.raw())
            .execute(&mut *db)
            .await
            .map_err(|error| faults.sqlx(&error))?;
    }
    for record in &finished {
        save_record(db, record, false, faults).await?;
    }
    for record in &after.active {
        if before.get(&record.uid) != Some(record) {
            save_record(db, record, true, faults).await?;
        }
    }
    for event in &events {
        save_event(db, event, faults).await?;
    }
    if !moved {
        return Ok(None);
    }
    let stored = stored.after(&revision.into(), after, &Uuid::new_v4().simple().to_string());
    save_commits(db, &stored, faults).await?;
    Ok(Some(stored))
}

/// Stores a lock's last commit names. A restored file reuses revisions but never names.
async fn save_commits(db: &mut SqliteConnection, stored: &Stored, faults: &ErrorMapper) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO meta (key, value) VALUES ('commits/' || ?, ?) \
         ON CONFLICT (key) DO UPDATE SET value = excluded.value",
    )
    .bind(stored.lock.key.raw())
    .bind(stored.commits.text())
    .execute(db)
    .await
    .map_err(|error| faults.sqlx(&error))?;
    Ok(())
}

pub(super) async fn save_lock(
    db: &mut SqliteConnection,
    lock: &ServerLock,
    faults: &ErrorMapper,
) -> Result<i64, StoreError> {
    let slot = lock.slot.as_ref();
    let (ownership, extension) = (lock.ownership.clone(), lock.extension.clone());
    let stored = (!ownership.is_empty() || !extension.is_empty())
        .then_some(Written { format: FORMAT, owned: Owned { ownership, extension } });
    let ownership = stored.map(|stored| serde_json::to_string(&stored));
    let ownership = ownership.transpose().map_err(|error| faults.record(lock.key.raw(), &error))?;
    sqlx::query_scalar(
        "INSERT INTO locks (lock_key, generation, last_ticket, slot_uid, slot_since, slot_acting, ownership, revision) \
         VALUES (?, ?, ?, ?, ?, ?, ?, (SELECT coalesce(max(revision), 0) + 1 FROM locks)) \
         ON CONFLICT (lock_key) DO UPDATE SET generation = excluded.generation, last_ticket = excluded.last_ticket, \
         slot_uid = excluded.slot_uid, slot_since = excluded.slot_since, slot_acting = excluded.slot_acting, \
         ownership = excluded.ownership, revision = excluded.revision RETURNING revision",
    )
    .bind(lock.key.raw())
    .bind(signed(lock.generation, faults)?)
    .bind(signed(lock.last_ticket, faults)?)
    .bind(slot.map(|slot| slot.uid.raw()))
    .bind(slot.map(|slot| time_text(slot.since)))
    .bind(slot.and_then(|slot| slot.acting.as_ref()).map(Uid::raw))
    .bind(ownership)
    .fetch_one(db)
    .await
    .map_err(|error| faults.sqlx(&error))
}

/// Rejects a new record if another lock has its name. This lock frees the name in the same change.
async fn refuse_taken_name(
    db: &mut SqliteConnection,
    before: &ServerLock,
    record: &Maintenance,
    faults: &ErrorMapper,
) -> Result<(), StoreError> {
    let taken: Option<String> =
        sqlx::query_scalar("SELECT lock_key FROM maintenances WHERE active = 1 AND namespace = ? AND name = ?")
            .bind(record.id.namespace())
            .bind(record.id.name())
            .fetch_optional(db)
            .await
            .map_err(|error| faults.sqlx(&error))?;
    match taken {
        Some(key) if key != before.key.raw() => {
            Err(StoreError::NameTaken { id: record.id.clone(), key: LockKey::new(key) })
        }
        _ => Ok(()),
    }
}

pub(super) async fn save_record(
    db: &mut SqliteConnection,
    record: &Maintenance,
    active: bool,
    faults: &ErrorMapper,
) -> Result<(), StoreError> {
    let body = serde_json::to_string(record).map_err(|error| faults.record(record.uid.raw(), &error))?;
    let written = sqlx::query(
        "INSERT INTO maintenances (uid, lock_key, namespace, name, active, runner, body, ended_at) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uid) DO UPDATE SET active = excluded.active, \
         runner = excluded.runner, body = excluded.body, ended_at = excluded.ended_at WHERE maintenances.lock_key = excluded.lock_key AND maintenances.active = 1",
    )
    .bind(record.uid.raw())
    .bind(record.lock_key.raw())
    .bind(record.id.namespace())
    .bind(record.id.name())
    .bind(active)
    .bind(record.attachment.as_ref().map(|attachment| attachment.runner.id.raw()))
    .bind(body)
    .bind(record.detached_at.filter(|_| !active).map(time_text))
    .execute(db)
    .await
    .map_err(|error| faults.sqlx(&error))?;
    if written.rows_affected() == 1 {
        return Ok(());
    }
    Err(faults.unreadable(format!("the incarnation {} of {} was used before", record.uid, record.id)))
}

pub(super) async fn save_event(
    db: &mut SqliteConnection,
    event: &AuditEvent,
    faults: &ErrorMapper,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO audit (at, namespace, name, uid, generation, actor, what, detail) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(time_text(event.at))
    .bind(event.id.namespace())
    .bind(event.id.name())
    .bind(event.uid.raw())
    .bind(signed(event.generation, faults)?)
    .bind(event.by.raw())
    .bind(event.what.raw())
    .bind(event.detail.raw())
    .execute(db)
    .await
    .map_err(|error| faults.sqlx(&error))?;
    Ok(())
}

/// A row of `audit`.
pub(super) type AuditRow = (String, String, String, String, i64, String, String, String);

pub(super) fn event(row: AuditRow, faults: &ErrorMapper) -> Result<AuditEvent, StoreError> {
    let (at, namespace, name, uid, generation, by, what, detail) = row;
    Ok(AuditEvent {
        at: time(&at, faults)?,
        id: crate::maintenance::ids::MaintenanceId::new(&namespace, &name)
            .map_err(|error| faults.unreadable(format!("an audit line of {namespace:?}/{name:?}: {error}")))?,
        uid: Uid::new(uid),
        generation: unsigned(generation, faults)?,
        by: by.into(),
        what: what.into(),
        detail: detail.into(),
    })
}
