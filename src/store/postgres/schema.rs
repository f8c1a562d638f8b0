//! Brings a database to the schema of this program, also when many processes use it for the first time at once.

use std::borrow::Cow;

use sqlx::{Connection as _, PgConnection, migrate::Migrator};

use super::fault::Faults;
use crate::store::StoreError;

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/postgres");

/// Where the migrations that were applied are written down.
const VERSIONS: &str = "metal.schema_versions";

/// "metl": what those who migrate at the same time exclude each other with.
const MIGRATING: i64 = 1_835_365_484;

fn newest() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// The version of the schema; 0 when there is none.
async fn version(db: &mut PgConnection, faults: &Faults) -> Result<i64, StoreError> {
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

/// Makes the database ready and returns the store's id. One that is ready already is only read.
pub(super) async fn open(db: &mut PgConnection, faults: &Faults) -> Result<String, StoreError> {
    let fault = |error: sqlx::Error| faults.sqlx(&error);
    // In a transaction, as everything here: a pooler may give each one another session.
    let mut transaction = db.begin().await.map_err(fault)?;
    let found = version(&mut transaction, faults).await?;
    if found > newest() {
        return Err(faults.newer(found, newest()));
    }
    if found < newest() {
        // Until the end of this transaction; sqlx's own lock is one of the session, which a pooler does not keep.
        sqlx::query("SELECT pg_advisory_xact_lock($1)")
            .bind(MIGRATING)
            .persistent(false)
            .execute(&mut *transaction)
            .await
            .map_err(fault)?;
        let migrations = Migrator {
            migrations: MIGRATIONS.migrations.clone(),
            locking: false,
            table_name: Cow::Borrowed(VERSIONS),
            create_schemas: Cow::Owned(vec![Cow::Borrowed("metal")]),
            ..Migrator::DEFAULT
        };
        let migrated = migrations.run_direct(None, &mut *transaction, false).await;
        migrated.map_err(|error| faults.migration(&error, newest(), |error| faults.sqlx(error)))?;
    }
    let id = sqlx::query_scalar("SELECT value FROM metal.meta WHERE key = 'store_id'").persistent(false);
    let id = id.fetch_one(&mut *transaction).await.map_err(fault)?;
    transaction.commit().await.map_err(fault)?;
    Ok(id)
}
