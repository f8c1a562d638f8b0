//! Exports, imports and prunes a whole file.

use std::collections::HashMap;

use jiff::Timestamp;

use super::{
    SqliteStore,
    rows::{self, AuditRow, LockRow, lock_columns},
};
use crate::{
    maintenance::{
        ids::LockKey,
        quarantine::{Records, Unreadable},
    },
    shown::OneLine,
    store::{Contents, StoreError},
};

/// Reads a consistent snapshot.
pub(super) async fn read(store: &SqliteStore) -> Result<Contents, StoreError> {
    let faults = &store.faults;
    let fault = |error: sqlx::Error| faults.sqlx(&error);
    let mut db = store.read().await?;
    let problems: Vec<String> =
        sqlx::query_scalar("PRAGMA integrity_check").fetch_all(&mut *db).await.map_err(fault)?;
    let mut oddities: Vec<OneLine> = problems.into_iter().filter(|line| line != "ok").map(OneLine::from).collect();
    let records: Vec<(bool, String, String, String)> =
        sqlx::query_as("SELECT active, lock_key, uid, body FROM maintenances ORDER BY active DESC, ended_at, id")
            .fetch_all(&mut *db)
            .await
            .map_err(fault)?;
    let mut active: HashMap<String, Records> = HashMap::new();
    let mut history = Vec::new();
    for (is_active, key, uid, body) in records {
        match (Unreadable::or_record(&uid, &body), is_active) {
            (Ok(record), true) => active.entry(key).or_default().0.push(record.into()),
            (Err(other), true) => active.entry(key).or_default().1.push(*other),
            (Ok(record), false) => history.push(record),
            (Err(other), false) => oddities.push(other.why),
        }
    }
    let locks: Vec<LockRow> = sqlx::query_as(concat!("SELECT ", lock_columns!(), " FROM locks ORDER BY lock_key"))
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
    let locks = locks.into_iter().map(|row| {
        let records = active.remove(&row.0).unwrap_or_default();
        rows::shown(row, records, faults)
    });
    let locks = locks.collect::<Result<Vec<_>, StoreError>>()?;
    let strays = active.keys().map(|key| format!("records of {key} exist, but its lock was never requested"));
    oddities.extend(strays.map(OneLine::from));
    let bindings: Vec<(String, String)> = sqlx::query_as("SELECT server, lock_key FROM bindings ORDER BY server")
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
    let lines: Vec<AuditRow> =
        sqlx::query_as("SELECT at, namespace, name, uid, generation, actor, what, detail FROM audit ORDER BY id")
            .fetch_all(&mut *db)
            .await
            .map_err(fault)?;
    db.end("COMMIT").await?;
    let mut audit = Vec::new();
    for line in lines {
        match rows::event(line, faults) {
            Ok(event) => audit.push(event),
            Err(StoreError::Unreadable { cause, .. }) => {
                oddities.push(format!("an audit line cannot be read: {cause}").into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Contents {
        store_id: store.id.clone(),
        locks,
        history,
        bindings: bindings.into_iter().map(|(name, key)| (name, LockKey::new(key))).collect(),
        audit,
        oddities,
    })
}

/// Fills an unused store.
pub(super) async fn write(store: &SqliteStore, contents: &Contents) -> Result<(), StoreError> {
    let faults = &store.faults;
    let fault = |error: sqlx::Error| faults.sqlx(&error);
    let mut db = store.write().await?;
    let used: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM locks) OR EXISTS (SELECT 1 FROM bindings) OR EXISTS (SELECT 1 FROM audit)",
    )
    .fetch_one(&mut *db)
    .await
    .map_err(fault)?;
    if used {
        db.end("ROLLBACK").await?;
        return Err(faults.in_use());
    }
    for lock in &contents.locks {
        rows::save_lock(&mut db, lock, faults).await?;
        for record in &lock.active {
            rows::save_record(&mut db, record, true, faults).await?;
        }
    }
    for record in &contents.history {
        rows::save_record(&mut db, record, false, faults).await?;
    }
    for (name, key) in &contents.bindings {
        let query = sqlx::query("INSERT INTO bindings (server, lock_key) VALUES (?, ?)").bind(name).bind(key.raw());
        query.execute(&mut *db).await.map_err(fault)?;
    }
    for event in &contents.audit {
        rows::save_event(&mut db, event, faults).await?;
    }
    let id = sqlx::query("UPDATE meta SET value = ? WHERE key = 'store_id'").bind(&contents.store_id);
    id.execute(&mut *db).await.map_err(fault)?;
    db.end("COMMIT").await
}

/// Deletes ended records and audit lines from before a given time.
pub(super) async fn prune(store: &SqliteStore, before: Timestamp, most: u32) -> Result<u64, StoreError> {
    let mut gone = 0;
    let mut db = store.write().await?;
    let before = rows::time_text(before);
    for query in [
        "DELETE FROM maintenances WHERE id IN \
         (SELECT id FROM maintenances WHERE active = 0 AND ended_at < ? ORDER BY ended_at LIMIT ?)",
        "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < ? ORDER BY at LIMIT ?)",
    ] {
        let query = sqlx::query(query).bind(&before).bind(most).execute(&mut *db).await;
        gone += query.map_err(|error| store.faults.sqlx(&error))?.rows_affected();
    }
    db.end("COMMIT").await?;
    Ok(gone)
}
