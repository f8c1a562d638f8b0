//! The audit log, in an order that no later line breaks.
//!
//! A transaction gets its lines' ids before it ends, so a line with a lower id can appear later. An
//! export therefore orders lines by their transactions, and leaves out each transaction that a
//! running transaction precedes. A dump that was loaded into another server contains higher
//! transactions than that server has: its lines are read immediately.

use super::{link::StoreClient, rows::time};
use crate::store::{AuditLine, AuditPosition, AuditStart, StoreError};

const LINES: &str = "\
    SELECT a.id, a.writer::text, a.role_name::text, (extract(epoch FROM a.at) * 1000000)::bigint, a.body \
    FROM metal.audit AS a, pg_current_snapshot() AS now \
    WHERE (a.writer < pg_snapshot_xmin(now) OR a.writer >= pg_snapshot_xmax(now)) \
    AND (a.writer, a.id) > ($1::text::xid8, $2) \
    AND ($3::bigint IS NULL OR a.at >= metal.clock() - $3 * interval '1 microsecond') \
    ORDER BY a.writer, a.id LIMIT $4";

/// Reads the next lines.
pub(super) async fn read(link: &StoreClient, start: &AuditStart, most: u32) -> Result<Vec<AuditLine>, StoreError> {
    let fault = |error: sqlx::Error| link.faults.sqlx(&error);
    let mut session = link.session().await?;
    let (mut after, mut age) = (AuditPosition::default(), None);
    match start {
        AuditStart::Oldest => {}
        AuditStart::Age(most) => age = Some(i64::try_from(most.as_micros()).unwrap_or(i64::MAX / 2).min(i64::MAX / 2)),
        AuditStart::After(position) => after = position.clone(),
        AuditStart::AfterId(id) => {
            let number = id.parse::<i64>().map_err(|_| link.faults.no_such_line(id))?;
            let writer: Option<String> = sqlx::query_scalar("SELECT writer::text FROM metal.audit WHERE id = $1")
                .bind(number)
                .persistent(!link.pooled)
                .fetch_optional(&mut *session)
                .await
                .map_err(fault)?;
            after = position(&writer.ok_or_else(|| link.faults.no_such_line(id))?, number, link)?;
        }
    }
    let rows: Vec<(i64, String, String, i64, String)> = sqlx::query_as(LINES)
        .bind(after.order.to_string())
        .bind(after.number)
        .bind(age)
        .bind(i64::from(most))
        .persistent(!link.pooled)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
    session.end().await?;
    let exported = |(id, writer, role, at, body): (i64, String, String, i64, String)| {
        Ok(AuditLine {
            id: id.to_string(),
            position: position(&writer, id, link)?,
            event: serde_json::from_str(&body).map_err(|_| body.into()),
            stamp: Some((role, time(at, &link.faults)?)),
        })
    };
    rows.into_iter().map(exported).collect()
}

fn position(writer: &str, number: i64, link: &StoreClient) -> Result<AuditPosition, StoreError> {
    let order = writer.parse().map_err(|_| link.faults.unreadable(format!("{writer:?} is not a transaction")))?;
    Ok(AuditPosition { order, commit: String::new(), number })
}
