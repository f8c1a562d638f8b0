//! Creates the file's schema, even if many processes open it for the first time together.

use std::{sync::LazyLock, time::Duration};

use sqlx::{SqliteConnection, migrate::Migrator};

use super::{
    SqliteOptions,
    fault::{ErrorMapper, is_busy},
};
use crate::{
    clock::Clock,
    store::{StoreError, format, table::migrations_of},
};

static MIGRATIONS: LazyLock<Migrator> = migrations_of!("sqlite":
    (1, "0001_coordination.sql", "coordination"),
);

/// `application_id` of our files, set by the first migration.
const APPLICATION_ID: i64 = 1_835_365_484;

/// The kind of file.
enum Schema {
    Empty,
    Ours(i64),
}

/// An opened file.
pub(super) struct Opened {
    /// The store's id.
    pub(super) id: String,
    /// True if write-ahead logging is enabled.
    pub(super) wal: bool,
}

async fn look(db: &mut SqliteConnection, faults: &ErrorMapper) -> Result<Schema, StoreError> {
    let fault = |error: sqlx::Error| faults.sqlx(&error);
    let tables: i64 =
        sqlx::query_scalar("SELECT count(*) FROM sqlite_schema").fetch_one(&mut *db).await.map_err(fault)?;
    if tables == 0 {
        return Ok(Schema::Empty);
    }
    let application: i64 = sqlx::query_scalar("PRAGMA application_id").fetch_one(&mut *db).await.map_err(fault)?;
    if application != APPLICATION_ID {
        return Err(faults.unreadable("it is another program's database"));
    }
    Ok(Schema::Ours(version(db, faults).await?))
}

/// Returns the schema version of our file.
pub(super) async fn version(db: &mut SqliteConnection, faults: &ErrorMapper) -> Result<i64, StoreError> {
    let version = sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM _sqlx_migrations");
    version.fetch_one(db).await.map_err(|error| faults.sqlx(&error))
}

/// Creates a new file's schema. An existing schema is only read.
pub(super) async fn open(
    db: &mut SqliteConnection,
    clock: &dyn Clock,
    options: SqliteOptions,
    faults: &ErrorMapper,
) -> Result<Opened, StoreError> {
    let mut schema = look(db, faults).await?;
    let wal = write_ahead_log(db, clock, options.patience, faults).await?;
    if let Schema::Empty = schema {
        run(db, faults).await?;
        schema = look(db, faults).await?;
    }
    if let Schema::Ours(version) = schema {
        format::check(version, faults)?;
    }
    let id = sqlx::query_scalar("SELECT value FROM meta WHERE key = 'store_id'");
    let id = id.fetch_one(&mut *db).await.map_err(|error| faults.sqlx(&error))?;
    Ok(Opened { id, wal })
}

/// Runs all migrations in one exclusive transaction. sqlx does not lock SQLite, but its own
/// transactions become savepoints in ours. Another process could have created the schema first.
async fn run(db: &mut SqliteConnection, faults: &ErrorMapper) -> Result<(), StoreError> {
    use sqlx::Connection as _;
    let mut transaction = db.begin_with("BEGIN IMMEDIATE").await.map_err(|error| faults.sqlx(&error))?;
    match look(&mut transaction, faults).await? {
        Schema::Ours(_) => {}
        Schema::Empty => MIGRATIONS
            .run_direct(None, &mut *transaction, false)
            .await
            .map_err(|error| faults.migration(&error, |error| faults.sqlx(error)))?,
    }
    transaction.commit().await.map_err(|error| faults.sqlx(&error))
}

/// Enables write-ahead logging, which is permanent for the file. SQLite's busy timeout does not
/// cover all the locks that this needs.
async fn write_ahead_log(
    db: &mut SqliteConnection,
    clock: &dyn Clock,
    patience: Duration,
    faults: &ErrorMapper,
) -> Result<bool, StoreError> {
    let deadline = clock.monotonic() + patience;
    loop {
        let mode: Result<String, _> = sqlx::query_scalar("PRAGMA journal_mode = WAL").fetch_one(&mut *db).await;
        match mode {
            Ok(mode) => return Ok(mode.eq_ignore_ascii_case("wal")),
            Err(error) if is_busy(&error) && clock.monotonic() < deadline => {
                clock.sleep(Duration::from_millis(10)).await;
            }
            Err(error) => return Err(faults.sqlx(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{format::FORMAT, table};

    #[test]
    fn the_format_is_the_number_of_the_only_migration() {
        assert_eq!(MIGRATIONS.iter().map(|migration| migration.version).collect::<Vec<_>>(), [FORMAT]);
    }

    #[tokio::test]
    async fn the_program_has_all_migrations() {
        table::as_in_its_folder(&MIGRATIONS, "sqlite").await;
    }
}
