//! Creates the database schema, even if many processes start at the same time.

use std::{borrow::Cow, sync::LazyLock};

use jiff::Timestamp;
use sqlx::{Connection as _, PgConnection, migrate::Migrator};

use super::{
    fault::{ErrorMapper, is_undefined},
    rows,
};
use crate::store::{StoreError, format, table::migrations_of};

static MIGRATIONS: LazyLock<Migrator> = migrations_of!("postgres":
    (1, "0001_coordination.sql", "coordination"),
);

/// The functions through which all roles write.
pub(super) const FUNCTIONS: [&str; 2] = [include_str!("rules.sql"), include_str!("commit.sql")];

/// The table of applied migrations.
const VERSIONS: &str = "metal.schema_versions";

/// "metl": the advisory lock for migrations.
const MIGRATING: i64 = 1_835_365_484;

/// Returns the database's format; 0 when it is empty.
pub(super) async fn version(db: &mut PgConnection, faults: &ErrorMapper) -> Result<i64, StoreError> {
    let fault = |error: sqlx::Error| faults.sqlx(&error);
    let there: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = 'metal' AND tablename = 'schema_versions')",
    )
    .persistent(false)
    .fetch_one(&mut *db)
    .await
    .map_err(fault)?;
    if !there {
        return Ok(0);
    }
    let version = sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM metal.schema_versions").persistent(false);
    version.fetch_one(db).await.map_err(fault)
}

/// An opened database.
pub(super) struct Opened {
    /// The store's id.
    pub(super) id: String,
    /// The store's time.
    pub(super) now: Timestamp,
    /// Why the store can lose confirmed changes.
    pub(super) loses: Option<&'static str>,
}

/// Returns why a server can lose confirmed changes, from our session's `synchronous_standby_names`
/// and `synchronous_commit`
/// (<https://www.postgresql.org/docs/current/runtime-config-wal.html#GUC-SYNCHRONOUS-COMMIT>).
fn loses(standbys: &str, commit: &str) -> Option<&'static str> {
    match (commit, standbys.trim()) {
        ("off", _) => Some("synchronous_commit is off: a server crash loses the last changes"),
        (_, "") => {
            Some("no standby confirms a change (synchronous_standby_names is empty): a failover loses the last changes")
        }
        ("local", _) => Some("synchronous_commit is local: a failover loses the last changes"),
        _ => None,
    }
}

/// Opens a database, and creates its schema if it is missing.
pub(super) async fn open(db: &mut PgConnection, pooled: bool, faults: &ErrorMapper) -> Result<Opened, StoreError> {
    let fault = |error: sqlx::Error| faults.sqlx(&error);
    // A single round trip for an existing schema. A pooler requires a transaction, because each
    // transaction can use another session.
    if !pooled {
        match existing(db).await {
            Err(error) if is_undefined(&error) => {}
            found => return opened(found.map_err(fault)?, faults),
        }
    }
    let mut transaction = db.begin().await.map_err(fault)?;
    let mut found = version(&mut transaction, faults).await?;
    if found == 0 {
        run(&mut transaction, faults).await?;
        found = version(&mut transaction, faults).await?;
    }
    format::check(found, faults)?;
    let found = existing(&mut transaction).await.map_err(fault)?;
    transaction.commit().await.map_err(fault)?;
    opened(found, faults)
}

/// The store's id, `synchronous_standby_names`, `synchronous_commit`, the time and the format.
type Existing = (String, String, String, i64, i64);

async fn existing(db: &mut PgConnection) -> Result<Existing, sqlx::Error> {
    let query = "SELECT m.value, current_setting('synchronous_standby_names'), current_setting('synchronous_commit'), \
                 (extract(epoch FROM metal.clock()) * 1000000)::bigint, \
                 (SELECT coalesce(max(s.version), 0) FROM metal.schema_versions AS s) \
                 FROM metal.meta AS m WHERE m.key = 'store_id'";
    sqlx::query_as(query).persistent(false).fetch_one(db).await
}

fn opened((id, standbys, commit, now, format): Existing, faults: &ErrorMapper) -> Result<Opened, StoreError> {
    format::check(format, faults)?;
    Ok(Opened { id, now: rows::time(now, faults)?, loses: loses(&standbys, &commit) })
}

/// Creates the schema, unless another process was first.
async fn run(db: &mut PgConnection, faults: &ErrorMapper) -> Result<(), StoreError> {
    // A transaction lock: sqlx's own session lock does not work behind a pooler.
    let locked = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(MIGRATING).persistent(false);
    locked.execute(&mut *db).await.map_err(|error| faults.sqlx(&error))?;
    if version(db, faults).await? > 0 {
        return Ok(());
    }
    // Behind a pooler, another client could have used this session. sqlx numbers its prepared
    // statements the same way in every session, and migrations cannot run unnamed. Clear sqlx's
    // cache too; otherwise it would use the deallocated statements after the migration.
    db.clear_cached_statements().await.map_err(|error| faults.sqlx(&error))?;
    sqlx::raw_sql("DEALLOCATE ALL").execute(&mut *db).await.map_err(|error| faults.sqlx(&error))?;
    let migrations = Migrator {
        migrations: MIGRATIONS.migrations.clone(),
        locking: false,
        table_name: Cow::Borrowed(VERSIONS),
        create_schemas: Cow::Owned(vec![Cow::Borrowed("metal")]),
        ..Migrator::DEFAULT
    };
    let migrated = migrations.run_direct(None, &mut *db, false).await;
    migrated.map_err(|error| faults.migration(&error, |error| faults.sqlx(error)))?;
    for functions in FUNCTIONS {
        sqlx::raw_sql(functions).execute(&mut *db).await.map_err(|error| faults.sqlx(&error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{MIGRATIONS, loses};
    use crate::store::{format::FORMAT, table};

    #[test]
    fn the_format_is_the_number_of_the_only_migration() {
        assert_eq!(MIGRATIONS.iter().map(|migration| migration.version).collect::<Vec<_>>(), [FORMAT]);
    }

    #[tokio::test]
    async fn the_program_has_all_migrations() {
        table::as_in_its_folder(&MIGRATIONS, "postgres").await;
    }

    #[test]
    fn only_a_synchronous_standby_keeps_what_was_confirmed() {
        assert_eq!(loses("ANY 1 (a, b)", "on"), None);
        assert_eq!(loses("*", "remote_apply"), None);
        for (standbys, commit, why) in [
            ("", "on", "synchronous_standby_names is empty"),
            (" ", "remote_write", "synchronous_standby_names is empty"),
            ("*", "local", "synchronous_commit is local"),
            ("*", "off", "synchronous_commit is off"),
            ("", "off", "synchronous_commit is off"),
        ] {
            assert!(loses(standbys, commit).is_some_and(|said| said.contains(why)), "{standbys:?} {commit}");
        }
    }
}
