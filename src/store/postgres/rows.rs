//! Between rows and a [`ServerLock`].

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use sqlx::PgConnection;

use super::{
    fault::{Faults, is_taken_name},
    link::Link,
};
use crate::{
    maintenance::{
        approval::{Approval, Claim},
        ids::{LockKey, RunnerId, Uid},
        lock::{Leases, ServerLock},
        ownership::Ownership,
        state::Maintenance,
    },
    store::{
        LockView, StoreError, capacity,
        extended::StoredSlot,
        optimistic::{Change, Commits, Loaded},
        views::Stored,
    },
};

/// PostgreSQL's text cannot hold a zero byte; a key of ours may.
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

/// A moment as microseconds since 1970, which is what PostgreSQL's clock counts.
pub(super) fn time(micros: i64, faults: &Faults) -> Result<Timestamp, StoreError> {
    Timestamp::from_microsecond(micros).map_err(|error| faults.unreadable(format!("{micros} is no time: {error}")))
}

fn unsigned(value: i64, faults: &Faults) -> Result<u64, StoreError> {
    u64::try_from(value).map_err(|_| faults.unreadable(format!("{value} is no generation or ticket")))
}

fn signed(value: u64, faults: &Faults) -> Result<i64, StoreError> {
    i64::try_from(value).map_err(|_| faults.unreadable(format!("{value} is more than PostgreSQL can count")))
}

pub(super) fn json<T: DeserializeOwned>(what: &str, text: &str, faults: &Faults) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| faults.record(what, &error))
}

pub(super) fn text<T: serde::Serialize>(what: &str, value: &T, faults: &Faults) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| faults.record(what, &error))
}

/// The columns of a lock, its approvals and leases, and the time.
#[derive(sqlx::FromRow)]
struct LockRow {
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

impl LockRow {
    fn lock(&mut self, active: Vec<Maintenance>, faults: &Faults) -> Result<ServerLock, StoreError> {
        let mut lock = ServerLock::new(LockKey(unescaped(&self.lock_key)));
        lock.generation = unsigned(self.generation, faults)?;
        lock.last_ticket = unsigned(self.last_ticket, faults)?;
        let key = lock.key.0.clone();
        StoredSlot::into_lock(self.slot.as_ref().map(|slot| json(&key, slot, faults)).transpose()?, &mut lock);
        lock.ownership.claim = self.claim.as_ref().map(|claim| json(&key, claim, faults)).transpose()?;
        let owner = lock.ownership.claim.as_ref().map(|claim: &Claim| claim.owner.clone());
        let given = self.approvals.iter().zip(&self.approval_owners).zip(std::mem::take(&mut self.approval_uses));
        for ((body, by), used_by) in given {
            // The database saw to it that this owner gave it; it counts for a claim of this owner only.
            if owner.as_deref() == Some(&*unescaped(by)) {
                let approval: Approval = json(&key, body, faults)?;
                lock.ownership
                    .approvals
                    .push(Approval { used_by: used_by.map(|uid| Uid(unescaped(&uid))), ..approval });
            }
        }
        lock.active = active;
        Ok(lock)
    }

    fn leases(&self, faults: &Faults) -> Result<Leases, StoreError> {
        let leases = self.runners.iter().zip(&self.untils);
        let leases = leases.map(|(runner, until)| Ok((RunnerId(unescaped(runner)), time(*until, faults)?)));
        Ok(Leases(leases.collect::<Result<_, StoreError>>()?))
    }
}

/// One statement, so that all of it is of one moment. `$which` are the records that are read.
macro_rules! lock_query {
    ($records:literal, $which:literal) => {
        concat!(
            "SELECT l.lock_key, l.generation, l.last_ticket, l.slot, l.claim, l.revision, l.commits, \
             (SELECT count(*) FROM metal.maintenances AS m WHERE m.lock_key = l.lock_key AND m.fate = 'active') AS active, \
             a.approvals, a.approval_owners, a.approval_uses, s.runners, s.untils, r.uids, r.fates, r.bodies, \
             (extract(epoch FROM metal.clock()) * 1000000)::bigint AS now \
             FROM metal.locks AS l, \
             LATERAL (SELECT coalesce(array_agg(a.body ORDER BY a.id), '{}') AS approvals, \
              coalesce(array_agg(a.owner ORDER BY a.id), '{}') AS approval_owners, \
              coalesce(array_agg(a.used_by ORDER BY a.id), '{}') AS approval_uses \
              FROM metal.approvals AS a WHERE a.lock_key = l.lock_key) AS a, \
             LATERAL (SELECT coalesce(array_agg(s.runner_id), '{}') AS runners, \
              coalesce(array_agg((extract(epoch FROM s.until) * 1000000)::bigint), '{}') AS untils \
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

/// Reads one lock: all of it, or only what moved since the revision that is known.
pub(super) async fn load(
    db: &mut PgConnection,
    key: &LockKey,
    known: Option<Stored>,
    link: &Link,
) -> Result<Loaded, StoreError> {
    let faults = &link.faults;
    let fault = |error: sqlx::Error| faults.sqlx(&error);
    let name = escaped(&key.0);
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

/// The store's time.
pub(super) async fn now(db: &mut PgConnection, link: &Link) -> Result<Timestamp, StoreError> {
    let now = sqlx::query_scalar("SELECT (extract(epoch FROM metal.clock()) * 1000000)::bigint");
    let now = now.persistent(!link.pooled).fetch_one(db).await;
    time(now.map_err(|error| link.faults.sqlx(&error))?, &link.faults)
}

fn whole(mut row: LockRow, faults: &Faults) -> Result<Loaded, StoreError> {
    let records = row.uids.iter().zip(&row.bodies).map(|(uid, body)| json(uid, body, faults));
    let records = records.collect::<Result<_, _>>()?;
    let lock = Arc::new(row.lock(records, faults)?);
    loaded(&row, lock, faults)
}

fn loaded(row: &LockRow, lock: Arc<ServerLock>, faults: &Faults) -> Result<Loaded, StoreError> {
    let commits = Arc::new(Commits::parse(&row.commits, ""));
    Ok(Loaded {
        stored: Stored { revision: row.revision, lock, commits, raw: None },
        leases: row.leases(faults)?,
        now: time(row.now, faults)?,
    })
}

/// What is known with what moved since. `None` when that does not add up: then all of it is read.
fn onto(known: Stored, mut row: LockRow, faults: &Faults) -> Result<Option<Loaded>, StoreError> {
    // What is known may have been lost since, and other changes may have its revision.
    if row.revision < known.revision || !Commits::parse(&row.commits, "").go_on_from(&known.commits) {
        return Ok(None);
    }
    if row.revision == known.revision {
        return loaded(&row, known.lock, faults).map(Some);
    }
    let mut active = known.lock.active.clone();
    let place: HashMap<Uid, usize> = active.iter().enumerate().map(|(at, record)| (record.uid.clone(), at)).collect();
    let mut left = Vec::new();
    for ((uid, fate), body) in row.uids.iter().zip(&row.fates).zip(&row.bodies) {
        let uid = Uid(unescaped(uid));
        match (fate.as_str(), place.get(&uid)) {
            ("active", Some(at)) => active[*at] = json(&uid.0, body, faults)?,
            ("active", None) => active.push(json(&uid.0, body, faults)?),
            (_, Some(_)) => left.push(uid),
            (_, None) => {}
        }
    }
    active.retain(|record| !left.contains(&record.uid));
    if i64::try_from(active.len()) != Ok(row.active) {
        return Ok(None);
    }
    let lock = Arc::new(row.lock(active, faults)?);
    loaded(&row, lock, faults).map(Some)
}

/// Reads every lock that has an active record or an owner, sorted by key, and the time.
pub(super) async fn load_all(db: &mut PgConnection, link: &Link) -> Result<Vec<LockView>, StoreError> {
    let query = lock_query!(
        "m.fate = 'active'",
        "l.claim IS NOT NULL OR l.slot LIKE '{\"format\":%' OR l.lock_key IN (SELECT o.lock_key FROM metal.maintenances AS o WHERE o.fate = 'active')"
    );
    let mut views = load_some(db, query, link).await?;
    views.retain(|view| !view.lock.is_idle());
    Ok(views)
}

async fn load_some(db: &mut PgConnection, query: &'static str, link: &Link) -> Result<Vec<LockView>, StoreError> {
    let faults = &link.faults;
    let rows: Vec<LockRow> =
        sqlx::query_as(query).persistent(!link.pooled).fetch_all(db).await.map_err(|error| faults.sqlx(&error))?;
    let views = rows.into_iter().map(|row| {
        let Loaded { stored, leases, now, .. } = whole(row, faults)?;
        Ok(LockView::new(stored.lock, leases, now))
    });
    let mut views = views.collect::<Result<Vec<_>, StoreError>>()?;
    // What is escaped sorts elsewhere.
    views.sort_by(|one, other| one.lock.key.cmp(&other.lock.key));
    Ok(views)
}

/// Reads every lock there is, sorted by key.
pub(super) async fn load_every(db: &mut PgConnection, link: &Link) -> Result<Vec<LockView>, StoreError> {
    load_some(db, lock_query!("m.fate = 'active'", "true"), link).await
}

/// Inserts a lock without its records.
pub(super) async fn insert(db: &mut PgConnection, lock: &ServerLock, link: &Link) -> Result<(), StoreError> {
    let (faults, key) = (&link.faults, &lock.key.0);
    let empty = ServerLock::new(lock.key.clone());
    let slot = StoredSlot::of(lock).map(|slot| text(key, &slot, faults)).transpose()?;
    let claim = lock.ownership.claim.as_ref().map(|claim| text(key, claim, faults)).transpose()?;
    let approvals = Approvals::between(&empty.ownership, &lock.ownership, faults)?;
    sqlx::query(
        "WITH one AS (INSERT INTO metal.locks (lock_key, generation, last_ticket, slot, claim, revision, commits) \
         VALUES ($1, $2, $3, $4, $5, 1, '') RETURNING lock_key) \
         INSERT INTO metal.approvals (uid, lock_key, owner, body, used_by) \
         SELECT a.uid, one.lock_key, a.owner, a.body, a.used_by \
         FROM one, unnest($6, $7, $8, $9) AS a (uid, owner, body, used_by)",
    )
    .bind(escaped(key).as_ref())
    .bind(signed(lock.generation, faults)?)
    .bind(signed(lock.last_ticket, faults)?)
    .bind(slot)
    .bind(claim)
    .bind(approvals.uids)
    .bind(approvals.owners)
    .bind(approvals.bodies)
    .bind(approvals.uses)
    .persistent(!link.pooled)
    .execute(db)
    .await
    .map_err(|error| faults.sqlx(&error))?;
    Ok(())
}

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
struct Approvals {
    gone: Vec<String>,
    uids: Vec<String>,
    owners: Vec<String>,
    bodies: Vec<String>,
    uses: Vec<Option<String>>,
    used: Vec<String>,
    used_by: Vec<Option<String>>,
}

impl Approvals {
    fn between(before: &Ownership, after: &Ownership, faults: &Faults) -> Result<Self, StoreError> {
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
    let head = (after.generation, after.last_ticket, &after.slot, &after.extension)
        != (before.generation, before.last_ticket, &before.slot, &before.extension);
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
         WHERE $2 = 0 OR EXISTS (SELECT FROM metal.locks AS l WHERE l.lock_key = $1 AND l.revision = $2 \
         AND split_part(l.commits, ' ', 1) = $28)",
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
    .persistent(!link.pooled)
    .fetch_optional(&mut *db)
    .await;
    match result {
        Ok(revision) => Ok(revision.flatten()),
        Err(error) if is_taken_name(&error) => Err(taken(change, faults)),
        Err(error) => Err(faults.sqlx(&error)),
    }
}

/// Which of the new names it was is asked afterwards; the place is filled in by [`super::PostgresStore`].
fn taken(change: &Change<'_>, faults: &Faults) -> StoreError {
    match change.written().find(|record| change.is_new(record)) {
        Some(record) => StoreError::NameTaken { id: record.id.clone(), key: LockKey(String::new()) },
        None => faults.unreadable("a name that was ours is somebody else's"),
    }
}
