//! Exports, imports and prunes a whole database.

use std::time::Duration;

use sqlx::{Connection as _, PgConnection};

use super::{
    PostgresStore,
    commit::RecordPart,
    rights,
    rows::{self, escaped, text, unescaped},
};
use crate::{
    maintenance::{
        approval::Approval, ids::LockKey, lock::AuditEvent, quarantine::Unreadable, shared::Shared, state::Maintenance,
    },
    shown::OneLine,
    store::{Contents, StoreError},
};

/// Reads a consistent snapshot.
pub(super) async fn read(store: &PostgresStore) -> Result<Contents, StoreError> {
    let (link, faults) = (&store.link, &store.link.faults);
    let fault = |error: sqlx::Error| faults.sqlx(&error);
    let mut session = link.session().await?;
    let mut db = session.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map_err(fault)?;
    let locks = rows::load_every(&mut db, link).await?;
    let history: Vec<(String, String)> =
        sqlx::query_as("SELECT uid, body FROM metal.maintenances WHERE fate = 'ended' ORDER BY ended_at, id")
            .persistent(!link.pooled)
            .fetch_all(&mut *db)
            .await
            .map_err(fault)?;
    let bindings: Vec<(String, String)> = sqlx::query_as("SELECT server, lock_key FROM metal.bindings")
        .persistent(!link.pooled)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
    let audit: Vec<(i64, String)> = sqlx::query_as("SELECT id, body FROM metal.audit ORDER BY id")
        .persistent(!link.pooled)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
    let oddities: Vec<(String,)> = sqlx::query_as(
        "SELECT 'the approval ' || a.uid || ' is for ' || a.lock_key || ', which is not claimed' FROM metal.approvals AS a \
         JOIN metal.locks AS l USING (lock_key) WHERE l.claim IS NULL \
         UNION ALL \
         SELECT 'the record ' || m.uid || ' was written after ' || m.lock_key FROM metal.maintenances AS m \
         JOIN metal.locks AS l USING (lock_key) WHERE m.revision > l.revision \
         UNION ALL \
         SELECT 'the revision of ' || l.lock_key || ' is ' || l.revision || ', which cannot grow' FROM metal.locks AS l \
         WHERE l.revision NOT BETWEEN 1 AND 4611686018427387904",
    )
    .persistent(!link.pooled)
    .fetch_all(&mut *db)
    .await
    .map_err(fault)?;
    let mut oddities: Vec<OneLine> = oddities.into_iter().map(|(line,)| line.into()).collect();
    let approvals: Vec<(String, String)> = sqlx::query_as("SELECT uid, body FROM metal.approvals ORDER BY id")
        .persistent(!link.pooled)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
    for (uid, body) in &approvals {
        if let Err(error) = serde_json::from_str::<Approval>(body) {
            oddities.push(format!("the approval {uid} cannot be read and is ignored: {error}").into());
        }
    }
    let mut lines = Vec::new();
    for (id, body) in &audit {
        match serde_json::from_str::<AuditEvent>(body) {
            Ok(event) => lines.push(event),
            Err(error) => oddities.push(format!("the audit line {id} cannot be read: {error}").into()),
        }
    }
    oddities.extend(rights::disabled(&mut db, link.pooled, faults).await?.into_iter().map(OneLine::from));
    db.commit().await.map_err(fault)?;
    session.end().await?;
    let mut bindings: Vec<(String, LockKey)> =
        bindings.iter().map(|(name, key)| (unescaped(name), LockKey::new(unescaped(key)))).collect();
    bindings.sort();
    let (history, unread) = Unreadable::part(history.iter().map(|(uid, body)| Unreadable::or_record(uid, body)));
    Ok(Contents {
        store_id: store.id.clone(),
        locks: locks.into_iter().map(|view| (*view.lock).clone()).collect(),
        history: history.into_iter().map(Shared::into_inner).collect(),
        bindings,
        audit: lines,
        oddities: oddities.into_iter().chain(unread.into_iter().map(|record| record.why)).collect(),
    })
}

/// Fills an unused store in one transaction.
pub(super) async fn write(store: &PostgresStore, contents: &Contents) -> Result<(), StoreError> {
    let (link, faults) = (&store.link, &store.link.faults);
    let fault = |error: sqlx::Error| faults.sqlx(&error);
    let mut session = link.session().await?;
    let mut db = session.begin().await.map_err(fault)?;
    // Prevents other processes from using the store during the import.
    sqlx::raw_sql("LOCK TABLE metal.locks, metal.bindings IN EXCLUSIVE MODE").execute(&mut *db).await.map_err(fault)?;
    let used = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM metal.locks) OR EXISTS (SELECT FROM metal.bindings) \
         OR EXISTS (SELECT FROM metal.audit)",
    );
    if used.persistent(!link.pooled).fetch_one(&mut *db).await.map_err(fault)? {
        return Err(faults.in_use());
    }
    for lock in &contents.locks {
        rows::insert(&mut db, lock, link).await?;
        records(&mut db, lock.active.iter().map(|record| &**record), "active", store).await?;
    }
    records(&mut db, contents.history.iter(), "ended", store).await?;
    for (name, key) in &contents.bindings {
        let query = sqlx::query("INSERT INTO metal.bindings (server, lock_key) VALUES ($1, $2)");
        let query = query.bind(escaped(name).as_ref()).bind(escaped(key.raw()).as_ref()).persistent(!link.pooled);
        query.execute(&mut *db).await.map_err(fault)?;
    }
    events(&mut db, &contents.audit, store).await?;
    let id = sqlx::query("UPDATE metal.meta SET value = $1 WHERE key = 'store_id'").bind(&contents.store_id);
    id.persistent(!link.pooled).execute(&mut *db).await.map_err(fault)?;
    db.commit().await.map_err(fault)?;
    session.end().await
}

async fn records(
    db: &mut PgConnection,
    records: impl Iterator<Item = &Maintenance>,
    fate: &'static str,
    store: &PostgresStore,
) -> Result<(), StoreError> {
    let (link, faults) = (&store.link, &store.link.faults);
    for record in records {
        let part = text(record.uid.raw(), &RecordPart::of(record, fate, faults)?, faults)?;
        let query = sqlx::query(
            "INSERT INTO metal.maintenances (uid, lock_key, namespace, name, fate, revision, runner, body, ended_at) \
             SELECT r.uid, $2, r.namespace, r.name, r.fate, 1, r.runner, r.body, \
             to_timestamp($3::double precision / 1000000) \
             FROM jsonb_populate_record(NULL::metal.record_part, $1::text::jsonb) AS r",
        );
        let ended = record.detached_at.filter(|_| fate == "ended").map(jiff::Timestamp::as_microsecond);
        let query = query.bind(part).bind(escaped(record.lock_key.raw()).into_owned()).bind(ended);
        query.persistent(!link.pooled).execute(&mut *db).await.map_err(|error| faults.sqlx(&error))?;
    }
    Ok(())
}

async fn events(db: &mut PgConnection, events: &[AuditEvent], store: &PostgresStore) -> Result<(), StoreError> {
    let (link, faults) = (&store.link, &store.link.faults);
    for event in events {
        let query = sqlx::query(
            "INSERT INTO metal.audit (at, namespace, name, body) \
             VALUES (to_timestamp($1::double precision / 1000000), $2, $3, $4)",
        );
        let query = query.bind(event.at.as_microsecond()).bind(event.id.namespace()).bind(event.id.name());
        let query = query.bind(text(event.uid.raw(), event, faults)?).persistent(!link.pooled);
        query.execute(&mut *db).await.map_err(|error| faults.sqlx(&error))?;
    }
    Ok(())
}

/// Deletes ended records older than `keep`, old audit lines, and leases without references.
pub(super) async fn prune(store: &PostgresStore, keep: Duration, most: u32) -> Result<u64, StoreError> {
    let (link, faults) = (&store.link, &store.link.faults);
    let keep = i64::try_from(keep.as_micros()).unwrap_or(i64::MAX / 2).min(i64::MAX / 2);
    let mut session = link.session().await?;
    let query = sqlx::query_scalar("SELECT metal.prune($1 * interval '1 microsecond', $2)");
    let query = query.bind(keep).bind(i64::from(most)).persistent(!link.pooled);
    let deleted: i64 = query.fetch_one(&mut *session).await.map_err(|error| faults.sqlx(&error))?;
    session.end().await?;
    Ok(u64::try_from(deleted).unwrap_or_default())
}
