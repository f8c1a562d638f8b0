//! The audit log in id order. The file has one writer, so that is the commit order.

use jiff::Timestamp;

use super::{SqliteStore, rows};
use crate::store::{AuditLine, AuditPosition, AuditStart, StoreError, forgotten_before};

type Row = (i64, String, String, String, String, i64, String, String, String);

/// Reads the next lines.
pub(super) async fn read(store: &SqliteStore, start: &AuditStart, most: u32) -> Result<Vec<AuditLine>, StoreError> {
    let fault = |error: sqlx::Error| store.faults.sqlx(&error);
    let mut db = store.read().await?;
    let (mut after, mut since) = (0, Timestamp::MIN);
    match start {
        AuditStart::Oldest => {}
        AuditStart::Age(age) => since = forgotten_before(store.clock.now(), *age),
        AuditStart::After(position) => after = position.number,
        AuditStart::AfterId(id) => {
            after = id.parse().map_err(|_| store.faults.no_such_line(id))?;
            let exists = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM audit WHERE id = ?)").bind(after);
            let exists: bool = exists.fetch_one(&mut *db).await.map_err(fault)?;
            if !exists {
                db.end("COMMIT").await?;
                return Err(store.faults.no_such_line(id));
            }
        }
    }
    let lines: Vec<Row> = sqlx::query_as(
        "SELECT id, at, namespace, name, uid, generation, actor, what, detail FROM audit WHERE id > ? AND at >= ? \
         ORDER BY id LIMIT ?",
    )
    .bind(after)
    .bind(if since == Timestamp::MIN { String::new() } else { rows::time_text(since) })
    .bind(most)
    .fetch_all(&mut *db)
    .await
    .map_err(fault)?;
    db.end("COMMIT").await?;
    let line = |(number, at, namespace, name, uid, generation, by, what, detail): Row| {
        let raw = format!("{at} {namespace}/{name} {what} {detail}");
        AuditLine {
            id: number.to_string(),
            position: AuditPosition { number, ..AuditPosition::default() },
            event: rows::event((at, namespace, name, uid, generation, by, what, detail), &store.faults)
                .map_err(|_| raw.into()),
            stamp: None,
        }
    };
    Ok(lines.into_iter().map(line).collect())
}
