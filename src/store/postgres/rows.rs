//! Conversions between rows and a [`ServerLock`].

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use sqlx::{PgConnection, postgres::PgRow};

use super::{commit::Approvals, fault::ErrorMapper, link::StoreClient};
use crate::{
    maintenance::{
        approval::{Approval, Claim},
        ids::{LockKey, RunnerId, Uid},
        lock::{Leases, ServerLock},
        quarantine::{Records, Unreadable},
        shared::Shared,
        state::Maintenance,
    },
    store::{
        LockView, StoreError,
        extended::StoredSlot,
        optimistic::{Commits, Loaded},
        table::row_of,
        views::Stored,
    },
};

/// Escapes zero bytes: PostgreSQL text rejects them, but lock keys can contain them.
pub(super) fn escaped(text: &str) -> Cow<'_, str> {
    if text.contains(['\0', '\\']) {
        Cow::Owned(text.replace('\\', "\\\\").replace('\0', "\\0"))
    } else {
        Cow::Borrowed(text)
    }
}

/// The reverse of [`escaped`].
pub(super) fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        plain.push(match letter {
            '\\' if letters.next() == Some('0') => '\0',
            other => other,
        });
    }
    plain
}

/// Converts microseconds since 1970, the resolution of PostgreSQL's clock.
pub(super) fn time(micros: i64, faults: &ErrorMapper) -> Result<Timestamp, StoreError> {
    Timestamp::from_microsecond(micros)
        .map_err(|error| faults.unreadable(format!("{micros} is not a valid time: {error}")))
}

fn unsigned(value: i64, faults: &ErrorMapper) -> Result<u64, StoreError> {
    u64::try_from(value).map_err(|_| faults.unreadable(format!("{value} is not a valid generation or ticket")))
}

pub(super) fn signed(value: u64, faults: &ErrorMapper) -> Result<i64, StoreError> {
    i64::try_from(value).map_err(|_| faults.unreadable(format!("{value} is more than PostgreSQL can count")))
}

pub(super) fn json<T: DeserializeOwned>(what: &str, text: &str, faults: &ErrorMapper) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| faults.record(what, &error))
}

pub(super) fn text<T: serde::Serialize>(what: &str, value: &T, faults: &ErrorMapper) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| faults.record(what, &error))
}

row_of! {
    /// A lock's columns with its approvals, its leases and the time.
    LockRow from PgRow {
        lock_key: String,
        generation: i64,
        last_ticket: i64,
        slot: Option<String>,
        claim: Option<String>,
        revision: i64,
        commits: String,
        active: i64,
        approvals: Vec<String>,
        approval_owners: Vec<String>,
        approval_uses: Vec<Option<String>>,
        runners: Vec<String>,
        untils: Vec<i64>,
        uids: Vec<String>,
        fates: Vec<String>,
        bodies: Vec<String>,
        now: i64,
    }
}

impl LockRow {
    fn lock(&mut self, active: Vec<Shared<Maintenance>>, faults: &ErrorMapper) -> Result<ServerLock, StoreError> {
        let mut lock = ServerLock::new(LockKey::new(unescaped(&self.lock_key)));
        lock.generation = unsigned(self.generation, faults)?;
        lock.last_ticket = unsigned(self.last_ticket, faults)?;
        let key = lock.key.raw().to_owned();
        let what = format!("of the lock {key}");
        StoredSlot::into_lock(self.slot.as_ref().map(|slot| json(&what, slot, faults)).transpose()?, &mut lock);
        lock.ownership.claim = self.claim.as_ref().map(|claim| json(&key, claim, faults)).transpose()?;
        let owner = lock.ownership.claim.as_ref().map(|claim: &Claim| claim.owner.raw().to_owned());
        let given = self.approvals.iter().zip(&self.approval_owners).zip(std::mem::take(&mut self.approval_uses));
        for ((body, by), used_by) in given {
            // The database records the author. Only the claim owner's approvals count. Unreadable
            // approvals are ignored, because an approver could otherwise freeze the server; `store
            // check` reports them.
            if owner.as_deref() == Some(&*unescaped(by))
                && let Ok(approval) = serde_json::from_str::<Approval>(body)
            {
                lock.ownership
                    .approvals
                    .push(Approval { used_by: used_by.map(|uid| Uid::new(unescaped(&uid))), ..approval });
            }
        }
        lock.active = active;
        Ok(lock)
    }

    fn records(&self) -> Records {
        let stored = self.uids.iter().zip(&self.bodies);
        Unreadable::part(stored.map(|(uid, body)| Unreadable::or_record(&unescaped(uid), body)))
    }

    fn leases(&self, faults: &ErrorMapper) -> Result<Leases, StoreError> {
        let leases = self.runners.iter().zip(&self.untils);
        let leases = leases.map(|(runner, until)| Ok((RunnerId::new(unescaped(runner)), time(*until, faults)?)));
        Ok(Leases(leases.collect::<Result<_, StoreError>>()?))
    }
}

/// One statement for one snapshot: the records selected by `$records` of the locks selected by
/// `$which`. A runner can write any end of a lease, even `infinity`, so ends are limited to a valid
/// range.
macro_rules! lock_query {
    ($records:literal, $which:literal) => {
        lock_query!($records, "", $which)
    };
    ($records:literal, $known:literal, $which:literal) => {
        concat!(
            "SELECT l.lock_key, l.generation, l.last_ticket, l.slot, l.claim, l.revision, l.commits, \
             (SELECT count(*) FROM metal.maintenances AS m WHERE m.lock_key = l.lock_key AND m.fate = 'active') AS active, \
             a.approvals, a.approval_owners, a.approval_uses, s.runners, s.untils, r.uids, r.fates, r.bodies, \
             (extract(epoch FROM metal.clock()) * 1000000)::bigint AS now \
             FROM metal.locks AS l, ",
            $known,
            "LATERAL (SELECT coalesce(array_agg(a.body ORDER BY a.id), '{}') AS approvals, \
              coalesce(array_agg(a.owner ORDER BY a.id), '{}') AS approval_owners, \
              coalesce(array_agg(a.used_by ORDER BY a.id), '{}') AS approval_uses \
              FROM metal.approvals AS a WHERE a.lock_key = l.lock_key) AS a, \
             LATERAL (SELECT coalesce(array_agg(s.runner_id), '{}') AS runners, \
              coalesce(array_agg((extract(epoch FROM greatest('1970-01-01', least(s.until, '9000-01-01'))) * 1000000)::bigint), '{}') AS untils \
              FROM metal.leases AS s WHERE s.runner_id IN \
               (SELECT m.runner FROM metal.maintenances AS m WHERE m.lock_key = l.lock_key AND m.fate = 'active')) AS s, \
             LATERAL (SELECT coalesce(array_agg(m.uid ORDER BY m.id), '{}') AS uids, \
              coalesce(array_agg(m.fate ORDER BY m.id), '{}') AS fates, \
              coalesce(array_agg(m.body ORDER BY m.id), '{}') AS bodies \
              FROM metal.maintenances AS m WHERE m.lock_key = l.lock_key AND ",
            $records,
            ") AS r WHERE ",
            $which
        )
    };
}

/// Reads one lock: completely, or only the changes since the cached revision.
pub(super) async fn load(
    db: &mut PgConnection,
    key: &LockKey,
    known: Option<Stored>,
    link: &StoreClient,
) -> Result<Loaded, StoreError> {
    let faults = &link.faults;
    let fault = |error: sqlx::Error| faults.sqlx(&error);
    let name = escaped(key.raw());
    if let Some(known) = known.filter(|known| known.revision > 0) {
        let row: Option<LockRow> =
            sqlx::query_as(lock_query!("m.revision > $2 AND l.revision <> $2", "l.lock_key = $1"))
                .bind(name.as_ref())
                .bind(known.revision)
                .persistent(!link.pooled)
                .fetch_optional(&mut *db)
                .await
                .map_err(fault)?;
        if let Some(loaded) = row.map(|row| onto(known, row, faults)).transpose()?.flatten() {
            return Ok(loaded);
        }
    }
    let row: Option<LockRow> = sqlx::query_as(lock_query!("m.fate = 'active'", "l.lock_key = $1"))
        .bind(name.as_ref())
        .persistent(!link.pooled)
        .fetch_optional(&mut *db)
        .await
        .map_err(fault)?;
    match row {
        Some(row) => whole(row, faults),
        None => Ok(Loaded { stored: Stored::none(key), leases: Leases::default(), now: now(db, link).await? }),
    }
}

/// Reads several locks with as many statements as one.
pub(super) async fn load_group(
    db: &mut PgConnection,
    wanted: &[(LockKey, Option<Stored>)],
    link: &StoreClient,
) -> Result<Vec<Result<Loaded, StoreError>>, StoreError> {
    let faults = &link.faults;
    if let [(key, known)] = wanted {
        return Ok(vec![load(db, key, known.clone(), link).await]);
    }
    let mut found: HashMap<LockKey, Loaded> = HashMap::new();
    let known: HashMap<&LockKey, &Stored> = wanted
        .iter()
        .filter_map(|(key, known)| Some((key, known.as_ref()?)))
        .filter(|(_, it)| it.revision > 0)
        .collect();
    if !known.is_empty() {
        let (keys, revisions): (Vec<String>, Vec<i64>) =
            known.iter().map(|(key, known)| (escaped(key.raw()).into_owned(), known.revision)).unzip();
        let query = lock_query!(
            "m.revision > k.revision AND l.revision <> k.revision",
            "unnest($1, $2) AS k (lock_key, revision), ",
            "l.lock_key = k.lock_key"
        );
        let query = sqlx::query_as(query).bind(keys).bind(revisions).persistent(!link.pooled);
        let rows: Vec<LockRow> = query.fetch_all(&mut *db).await.map_err(|error| faults.sqlx(&error))?;
        for row in rows {
            let key = LockKey::new(unescaped(&row.lock_key));
            // Unreadable locks are read again below, so that the error concerns only that lock.
            let loaded = known.get(&key).and_then(|known| onto((*known).clone(), row, faults).ok().flatten());
            found.extend(loaded.map(|loaded| (key, loaded)));
        }
    }
    let unknown: Vec<&LockKey> = wanted.iter().map(|(key, _)| key).filter(|key| !found.contains_key(key)).collect();
    let mut failed: HashMap<LockKey, StoreError> = HashMap::new();
    if !unknown.is_empty() {
        let keys: Vec<String> = unknown.iter().map(|key| escaped(key.raw()).into_owned()).collect();
        let query = sqlx::query_as(lock_query!("m.fate = 'active'", "l.lock_key = ANY ($1)"));
        let query = query.bind(keys).persistent(!link.pooled);
        let rows: Vec<LockRow> = query.fetch_all(&mut *db).await.map_err(|error| faults.sqlx(&error))?;
        let mut time = None;
        for row in rows {
            let key = LockKey::new(unescaped(&row.lock_key));
            time = Some(self::time(row.now, faults)?);
            match whole(row, faults) {
                Ok(loaded) => drop(found.insert(key, loaded)),
                Err(error) => drop(failed.insert(key, error)),
            }
        }
        let missing = |key: &&LockKey| !found.contains_key(*key) && !failed.contains_key(*key);
        let new: Vec<LockKey> = unknown.into_iter().filter(missing).cloned().collect();
        if !new.is_empty() {
            let now = match time {
                Some(now) => now,
                None => now(db, link).await?,
            };
            let none = |key: LockKey| {
                let stored = Stored::none(&key);
                (key, Loaded { stored, leases: Leases::default(), now })
            };
            found.extend(new.into_iter().map(none));
        }
    }
    let one = |(key, _): &(LockKey, Option<Stored>)| match (found.remove(key), failed.remove(key)) {
        (Some(loaded), _) => Ok(loaded),
        (None, Some(error)) => Err(error),
        (None, None) => Err(faults.unavailable("it did not answer for each lock")),
    };
    Ok(wanted.iter().map(one).collect())
}

/// Returns the store's time.
pub(super) async fn now(db: &mut PgConnection, link: &StoreClient) -> Result<Timestamp, StoreError> {
    let now = sqlx::query_scalar("SELECT (extract(epoch FROM metal.clock()) * 1000000)::bigint");
    let now = now.persistent(!link.pooled).fetch_one(db).await;
    time(now.map_err(|error| link.faults.sqlx(&error))?, &link.faults)
}

fn whole(mut row: LockRow, faults: &ErrorMapper) -> Result<Loaded, StoreError> {
    let (records, unreadable) = row.records();
    let lock = ServerLock { unreadable, ..row.lock(records, faults)? };
    loaded(&row, Arc::new(lock), faults)
}

fn loaded(row: &LockRow, lock: Arc<ServerLock>, faults: &ErrorMapper) -> Result<Loaded, StoreError> {
    let commits = Arc::new(Commits::parse(&row.commits, ""));
    Ok(Loaded {
        stored: Stored { revision: row.revision, lock, commits },
        leases: row.leases(faults)?,
        now: time(row.now, faults)?,
    })
}

/// Applies the changes to the cached lock. Returns `None` if they do not match; then the lock is
/// read completely.
fn onto(known: Stored, mut row: LockRow, faults: &ErrorMapper) -> Result<Option<Loaded>, StoreError> {
    // The cached commits could be lost, and other changes could have the same revision.
    if row.revision < known.revision || !Commits::parse(&row.commits, "").go_on_from(&known.commits) {
        return Ok(None);
    }
    if row.revision == known.revision {
        return loaded(&row, known.lock, faults).map(Some);
    }
    let mut active = known.lock.active.clone();
    let place: HashMap<Uid, usize> = active.iter().enumerate().map(|(at, record)| (record.uid.clone(), at)).collect();
    let (mut left, mut unreadable) = (Vec::new(), known.lock.unreadable.clone());
    for ((uid, fate), body) in row.uids.iter().zip(&row.fates).zip(&row.bodies) {
        let uid = Uid::new(unescaped(uid));
        unreadable.retain(|record| record.uid != uid);
        match (fate.as_str(), place.get(&uid)) {
            ("active", at) => match (Unreadable::or_record(uid.raw(), body), at) {
                (Ok(record), Some(at)) => active[*at] = record.into(),
                (Ok(record), None) => active.push(record.into()),
                (Err(other), _) => {
                    left.push(uid);
                    unreadable.push(*other);
                }
            },
            (_, Some(_)) => left.push(uid),
            (_, None) => {}
        }
    }
    active.retain(|record| !left.contains(&record.uid));
    if i64::try_from(active.len() + unreadable.len()) != Ok(row.active) {
        return Ok(None);
    }
    let lock = ServerLock { unreadable, ..row.lock(active, faults)? };
    loaded(&row, Arc::new(lock), faults).map(Some)
}

/// Reads every lock with an active record or an owner, sorted by key, and the time.
pub(super) async fn load_all(db: &mut PgConnection, link: &StoreClient) -> Result<Vec<LockView>, StoreError> {
    let query = lock_query!(
        "m.fate = 'active'",
        "l.claim IS NOT NULL OR l.slot LIKE '{\"format\":%' OR l.lock_key IN (SELECT o.lock_key FROM metal.maintenances AS o WHERE o.fate = 'active')"
    );
    let mut views = load_some(db, query, link).await?;
    views.retain(|view| !view.lock.is_idle());
    Ok(views)
}

async fn load_some(
    db: &mut PgConnection,
    query: &'static str,
    link: &StoreClient,
) -> Result<Vec<LockView>, StoreError> {
    let faults = &link.faults;
    let rows: Vec<LockRow> =
        sqlx::query_as(query).persistent(!link.pooled).fetch_all(db).await.map_err(|error| faults.sqlx(&error))?;
    let views = rows.into_iter().map(|mut row| {
        let (records, unreadable) = row.records();
        let lock = match row.lock(Vec::new(), faults) {
            Ok(lock) => ServerLock { active: records, unreadable, ..lock },
            Err(StoreError::Unreadable { cause, .. }) => {
                ServerLock::quarantined(LockKey::new(unescaped(&row.lock_key)), cause.raw(), &records, unreadable)
            }
            Err(error) => return Err(error),
        };
        Ok(LockView::new(Arc::new(lock), row.leases(faults)?, time(row.now, faults)?))
    });
    let mut views = views.collect::<Result<Vec<_>, StoreError>>()?;
    // Escaped keys have a different sort order in the database.
    views.sort_by(|one, other| one.lock.key.cmp(&other.lock.key));
    Ok(views)
}

/// Reads every lock, sorted by key.
pub(super) async fn load_every(db: &mut PgConnection, link: &StoreClient) -> Result<Vec<LockView>, StoreError> {
    load_some(db, lock_query!("m.fate = 'active'", "true"), link).await
}

/// Inserts a lock without its records.
pub(super) async fn insert(db: &mut PgConnection, lock: &ServerLock, link: &StoreClient) -> Result<(), StoreError> {
    let (faults, key) = (&link.faults, lock.key.raw());
    let empty = ServerLock::new(lock.key.clone());
    let slot = StoredSlot::of(lock).map(|slot| text(key, &slot, faults)).transpose()?;
    let claim = lock.ownership.claim.as_ref().map(|claim| text(key, claim, faults)).transpose()?;
    let approvals = Approvals::between(&empty.ownership, &lock.ownership, faults)?;
    sqlx::query(
        "WITH one AS (INSERT INTO metal.locks (lock_key, generation, last_ticket, slot, claim, revision, commits) \
         VALUES ($1, $2, $3, $4, $5, 1, '') RETURNING lock_key) \
         INSERT INTO metal.approvals (uid, lock_key, owner, body, used_by) \
         SELECT a.uid, one.lock_key, a.owner, a.body, a.used_by \
         FROM one, jsonb_populate_recordset(NULL::metal.approval_part, $6::text::jsonb) AS a",
    )
    .bind(escaped(key).as_ref())
    .bind(signed(lock.generation, faults)?)
    .bind(signed(lock.last_ticket, faults)?)
    .bind(slot)
    .bind(claim)
    .bind(text(key, &approvals.given, faults)?)
    .persistent(!link.pooled)
    .execute(db)
    .await
    .map_err(|error| faults.sqlx(&error))?;
    Ok(())
}
