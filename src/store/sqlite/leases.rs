//! Process leases, judged by the boot clock.
//!
//! The store's clock is the machine's wall clock, which people and NTP can set. A step forwards
//! would end leases while processes still work, and a step back would keep dead processes alive.
//! Each lease therefore also has an end on the boot clock. It is valid only within that boot, and
//! leases of an earlier boot have ended, because no process survives a boot. The wall clock counts
//! only for leases of other machines (plans warn about a file that machines share).

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sqlx::{SqliteConnection, sqlite::SqliteRow};

use super::{fault::ErrorMapper, lane::Transaction, rows};
use crate::{
    clock::{Boot, BootRelation, BootTime, Clock},
    maintenance::{
        ids::{LockKey, Runner, RunnerId},
        lock::Leases,
    },
    store::{StoreError, lease_end, table::row_of},
};

/// How long ended leases without references are kept.
const KEEP_ENDED: SignedDuration = SignedDuration::from_hours(24);

/// Both clocks, read together.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    pub(super) wall: Timestamp,
    boot: Option<BootTime>,
}

impl Moment {
    /// Reads both clocks.
    pub(super) fn of(clock: &dyn Clock) -> Self {
        Self { boot: clock.boot(), wall: clock.now() }
    }

    /// Returns a lease's end on the current wall clock; never in the future if the lease has ended.
    fn end_of(&self, row: &Row, faults: &ErrorMapper) -> Result<Timestamp, StoreError> {
        let until = rows::time(&row.until, faults)?;
        let (Some(here), Some((boot, end))) = (&self.boot, row.boot()) else { return Ok(until) };
        Ok(match here.boot.relation(&boot) {
            BootRelation::Same => {
                let left = SignedDuration::from_nanos(end.saturating_sub(nanos(here.since)));
                let latest = if left.is_positive() { Timestamp::MAX } else { self.wall };
                self.wall.checked_add(left).unwrap_or(latest)
            }
            BootRelation::Ended => until.min(self.wall),
            BootRelation::Unknown => until,
        })
    }

    fn machine(&self) -> Option<&str> {
        self.boot.as_ref().map(|now| now.boot.machine.as_str())
    }

    fn boot(&self) -> Option<&str> {
        self.boot.as_ref().map(|now| now.boot.id.as_str())
    }

    fn namespace(&self) -> Option<&str> {
        self.boot.as_ref().map(|now| now.boot.namespace.as_str())
    }

    fn since(&self, more: Duration) -> Option<i64> {
        self.boot.as_ref().map(|now| nanos(now.since.saturating_add(more)))
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

row_of! {
    /// A row of `leases`.
    Row from SqliteRow {
        runner_id: String,
        until: String,
        machine: Option<String>,
        boot: Option<String>,
        namespace: Option<String>,
        boot_until: Option<i64>,
    }
}

impl Row {
    fn boot(&self) -> Option<(Boot, i64)> {
        let (machine, id) = (self.machine.clone()?, self.boot.clone()?);
        Some((Boot { machine, id, namespace: self.namespace.clone()? }, self.boot_until?))
    }
}

/// Reads one lock's leases.
pub(super) async fn of_lock(
    db: &mut SqliteConnection,
    key: &LockKey,
    now: &Moment,
    faults: &ErrorMapper,
) -> Result<Leases, StoreError> {
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT * FROM leases WHERE runner_id IN (SELECT runner FROM maintenances WHERE active = 1 AND lock_key = ?)",
    )
    .bind(key.raw())
    .fetch_all(db)
    .await
    .map_err(|error| faults.sqlx(&error))?;
    read(&rows, now, faults)
}

/// Reads the leases of all locks.
pub(super) async fn all(db: &mut SqliteConnection, now: &Moment, faults: &ErrorMapper) -> Result<Leases, StoreError> {
    let rows: Vec<Row> =
        sqlx::query_as("SELECT * FROM leases WHERE runner_id IN (SELECT runner FROM maintenances WHERE active = 1)")
            .fetch_all(db)
            .await
            .map_err(|error| faults.sqlx(&error))?;
    read(&rows, now, faults)
}

fn read(rows: &[Row], now: &Moment, faults: &ErrorMapper) -> Result<Leases, StoreError> {
    let leases = rows.iter().map(|row| Ok((RunnerId::new(row.runner_id.clone()), now.end_of(row, faults)?)));
    Ok(Leases(leases.collect::<Result<_, StoreError>>()?))
}

/// Creates or renews a lease. `now` is read after the wait for the file's lock.
pub(super) async fn renew(
    db: &mut Transaction<'_>,
    runner: &Runner,
    ttl: Duration,
    now: &Moment,
    faults: &ErrorMapper,
) -> Result<(), StoreError> {
    let text = serde_json::to_string(runner).map_err(|error| faults.record(runner.id.raw(), &error))?;
    end_earlier_boots(db, now, faults).await?;
    sqlx::query(
        "INSERT INTO leases (runner_id, until, runner, machine, boot, namespace, boot_until) VALUES (?, ?, ?, ?, ?, ?, ?) \
         ON CONFLICT (runner_id) DO UPDATE SET until = excluded.until, runner = excluded.runner, machine = excluded.machine, \
         boot = excluded.boot, namespace = excluded.namespace, boot_until = excluded.boot_until",
    )
    .bind(runner.id.raw())
    .bind(rows::time_text(lease_end(now.wall, ttl)))
    .bind(text)
    .bind(now.machine())
    .bind(now.boot())
    .bind(now.namespace())
    .bind(now.since(ttl))
    .execute(&mut **db)
    .await
    .map_err(|error| faults.sqlx(&error))?;
    Ok(())
}

/// Stores an end time for leases of earlier boots. Later wall-clock changes then cannot revive
/// them.
async fn end_earlier_boots(db: &mut SqliteConnection, now: &Moment, faults: &ErrorMapper) -> Result<(), StoreError> {
    if now.machine().is_none_or(str::is_empty) {
        return Ok(());
    }
    sqlx::query(
        "UPDATE leases SET until = min(until, ?1), boot = ?2, namespace = ?3, boot_until = ?4 \
         WHERE machine = ?5 AND boot <> ?2",
    )
    .bind(rows::time_text(now.wall))
    .bind(now.boot())
    .bind(now.namespace())
    .bind(now.since(Duration::ZERO))
    .bind(now.machine())
    .execute(db)
    .await
    .map_err(|error| faults.sqlx(&error))?;
    Ok(())
}

/// Ends a lease. It is kept, because its process's absence is measured from there.
pub(super) async fn resign(
    db: &mut Transaction<'_>,
    runner: &RunnerId,
    now: &Moment,
    faults: &ErrorMapper,
) -> Result<(), StoreError> {
    // If the boot clock's end is not comparable with ours, drop it and use the wall clock.
    sqlx::query(
        "UPDATE leases SET until = min(until, ?1), boot_until = min(boot_until, ?4), \
         boot = CASE WHEN boot = ?2 AND namespace = ?3 THEN boot ELSE NULL END WHERE runner_id = ?5",
    )
    .bind(rows::time_text(now.wall))
    .bind(now.boot())
    .bind(now.namespace())
    .bind(now.since(Duration::ZERO))
    .bind(runner.raw())
    .execute(&mut **db)
    .await
    .map_err(|error| faults.sqlx(&error))?;
    Ok(())
}

/// Deletes leases that ended long ago and are not referenced. Otherwise the table would grow by one
/// row per process forever.
pub(super) async fn forget(
    db: &mut SqliteConnection,
    clock: &dyn Clock,
    faults: &ErrorMapper,
) -> Result<(), StoreError> {
    const OLD: &str = "SELECT count(*) FROM leases WHERE until < ?";
    let before = rows::time_text(clock.now().checked_sub(KEEP_ENDED).unwrap_or(Timestamp::MIN));
    let old: i64 =
        sqlx::query_scalar(OLD).bind(&before).fetch_one(&mut *db).await.map_err(|error| faults.sqlx(&error))?;
    if old > 0 {
        // Errors are ignored: the next renewal tries again.
        let _ = sqlx::query(
            "DELETE FROM leases WHERE until < ? AND runner_id NOT IN \
             (SELECT runner FROM maintenances WHERE active = 1 AND runner IS NOT NULL)",
        )
        .bind(&before)
        .execute(db)
        .await;
    }
    Ok(())
}
