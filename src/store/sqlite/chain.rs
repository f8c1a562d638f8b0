//! The chain of the audit log. The file has one writer at a time, so one chain for all locks costs
//! nobody a wait; and its end is read with the schema, and written with the names of the commits,
//! so it costs no statement either.

use sqlx::SqliteConnection;

use super::{
    SqliteStore,
    fault::ErrorMapper,
    rows::{self, AuditRow},
};
use crate::{
    maintenance::lock::AuditEvent,
    store::{
        AuditProof, ChainEnd, ChainEnds, StoreError,
        chain::{self, AuditLine, ChainName, ChainPlace, Chains},
    },
};

/// Where `meta` has the end of the chain, and of what was pruned of it.
pub(super) const END: &str = "audit";
const START: &str = "audit/pruned";

/// An end as `meta` holds it.
pub(super) fn text(end: &ChainEnd) -> String {
    format!("{} {}", end.number, end.hash)
}

pub(super) fn parse(text: &str, faults: &ErrorMapper) -> Result<ChainEnd, StoreError> {
    let parts = text.split_once(' ').and_then(|(number, hash)| Some((number.parse().ok()?, hash.to_owned())));
    let (number, hash) = parts.ok_or_else(|| faults.unreadable(format!("{text:?} is not the end of a chain")))?;
    Ok(ChainEnd { number, hash })
}

async fn value(db: &mut SqliteConnection, key: &str, faults: &ErrorMapper) -> Result<Option<ChainEnd>, StoreError> {
    let text: Option<String> = sqlx::query_scalar("SELECT value FROM meta WHERE key = ?")
        .bind(key)
        .fetch_optional(db)
        .await
        .map_err(|error| faults.sqlx(&error))?;
    text.map(|text| parse(&text, faults)).transpose()
}

pub(super) async fn write(
    db: &mut SqliteConnection,
    key: &str,
    end: &ChainEnd,
    faults: &ErrorMapper,
) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value")
        .bind(key)
        .bind(text(end))
        .execute(db)
        .await
        .map_err(|error| faults.sqlx(&error))?;
    Ok(())
}

/// Adds lines to the log, and to the chain where the file has one; its new end is written by the
/// caller.
pub(super) async fn save(
    db: &mut SqliteConnection,
    events: &[AuditEvent],
    end: Option<&mut ChainEnd>,
    faults: &ErrorMapper,
) -> Result<(), StoreError> {
    let lines = match end {
        Some(end) => chain::add(&ChainName::default(), end, events),
        None => events.iter().cloned().map(AuditLine::from).collect(),
    };
    for line in &lines {
        rows::save_event(db, line, faults).await?;
    }
    Ok(())
}

/// Gives the lines that are older than the chain their places in it.
pub(super) async fn adopt(db: &mut SqliteConnection, faults: &ErrorMapper) -> Result<(), StoreError> {
    if value(db, END, faults).await?.is_some() {
        return Ok(());
    }
    let mut end = ChainEnd::default();
    for (id, row) in rows_by_id(db, faults).await? {
        let lines = chain::add(&ChainName::default(), &mut end, &[rows::event(row, faults)?]);
        let Some(ChainPlace { number, hash, .. }) = lines.into_iter().find_map(|line| line.chain) else { continue };
        sqlx::query("UPDATE audit SET number = ?, hash = ? WHERE id = ?")
            .bind(rows::signed(number, faults)?)
            .bind(hash)
            .bind(id)
            .execute(&mut *db)
            .await
            .map_err(|error| faults.sqlx(&error))?;
    }
    write(db, END, &end, faults).await
}

async fn rows_by_id(db: &mut SqliteConnection, faults: &ErrorMapper) -> Result<Vec<(i64, AuditRow)>, StoreError> {
    type Row = (i64, String, String, String, String, i64, String, String, String);
    let found: Vec<Row> =
        sqlx::query_as("SELECT id, at, namespace, name, uid, generation, actor, what, detail FROM audit ORDER BY id")
            .fetch_all(db)
            .await
            .map_err(|error| faults.sqlx(&error))?;
    let row = |(id, at, namespace, name, uid, generation, by, what, detail)| {
        (id, (at, namespace, name, uid, generation, by, what, detail))
    };
    Ok(found.into_iter().map(row).collect())
}

/// Verifies all of it, of one moment.
pub(super) async fn verify(store: &SqliteStore, earlier: &ChainEnds) -> Result<AuditProof, StoreError> {
    let mut db = store.read().await?;
    let proof = read(&mut db, earlier, &store.faults).await?;
    db.end("COMMIT").await?;
    Ok(proof)
}

pub(super) async fn read(
    db: &mut SqliteConnection,
    earlier: &ChainEnds,
    faults: &ErrorMapper,
) -> Result<AuditProof, StoreError> {
    let Some(end) = value(db, END, faults).await? else {
        return Ok(gone());
    };
    let mut chains = Chains::default();
    chains.starts(ChainName::default(), value(db, START, faults).await?.unwrap_or_default());
    chains.ends(ChainName::default(), end);
    let places: Vec<(i64, Option<i64>, Option<String>)> =
        sqlx::query_as("SELECT id, number, hash FROM audit ORDER BY id")
            .fetch_all(&mut *db)
            .await
            .map_err(|error| faults.sqlx(&error))?;
    for ((_, row), (_, number, hash)) in rows_by_id(db, faults).await?.into_iter().zip(places) {
        let link = number.and_then(|number| u64::try_from(number).ok()).zip(hash);
        let chain = link.map(|(number, hash)| ChainPlace { name: ChainName::default(), number, hash });
        // One that cannot be read fits nowhere.
        match rows::event(row, faults) {
            Ok(event) => chains.line(AuditLine { event, chain }),
            Err(error) => return Ok(chain::unreadable(chain.map(|link| link.number), &error)),
        }
    }
    Ok(chains.verify(earlier, false))
}

fn gone() -> AuditProof {
    chain::unreadable(None, &"the end of the chain is gone")
}

/// Forgets the oldest lines, without gaps, up to the first one that is not old enough. How many.
pub(super) async fn prune(
    db: &mut SqliteConnection,
    before: &str,
    most: u32,
    faults: &ErrorMapper,
) -> Result<u64, StoreError> {
    let last: Option<(i64, i64, String)> = sqlx::query_as(
        "WITH oldest AS (SELECT id, number, hash, at < ? AS is_old FROM audit ORDER BY id LIMIT ?) \
         SELECT id, number, hash FROM oldest WHERE number IS NOT NULL \
         AND id < coalesce((SELECT min(id) FROM oldest WHERE NOT is_old), id + 1) ORDER BY id DESC LIMIT 1",
    )
    .bind(before)
    .bind(most)
    .fetch_optional(&mut *db)
    .await
    .map_err(|error| faults.sqlx(&error))?;
    let Some((id, number, hash)) = last else { return Ok(0) };
    let gone = sqlx::query("DELETE FROM audit WHERE id <= ?").bind(id).execute(&mut *db).await;
    let start = ChainEnd { number: u64::try_from(number).unwrap_or_default(), hash };
    write(db, START, &start, faults).await?;
    Ok(gone.map_err(|error| faults.sqlx(&error))?.rows_affected())
}
