//! The chain of the audit log, computed again.

use sqlx::{Connection as _, PgConnection};

use super::{fault::ErrorMapper, link::StoreClient};
use crate::store::{
    AuditProof, BrokenLine, ChainEnd, ChainEnds, StoreError,
    chain::{ChainName, NOT_THERE},
};

/// The first line that does not fit, and why: `missing`, `changed` or `end`. The hash is made here
/// and not by the database's function, which a role that owns the schema could replace.
const BROKEN: &str = "\
    WITH line AS (
        SELECT a.*, coalesce(lag(a.number) OVER before, c.forgotten) AS number_before,
            coalesce(lag(a.hash) OVER before, c.forgotten_hash) AS hash_before
        FROM metal.audit AS a, metal.audit_chain AS c WHERE a.number IS NOT NULL WINDOW before AS (ORDER BY a.number)
    ), broken AS (
        SELECT CASE WHEN number <> number_before + 1 THEN number_before + 1 ELSE number END AS number,
            CASE WHEN number <> number_before + 1 THEN 'missing' ELSE 'changed' END AS what,
            to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') || ' ' || role_name || ' ' || namespace || '/' || name AS line
        FROM line
        WHERE number <> number_before + 1 OR previous IS DISTINCT FROM hash_before
            OR hash IS DISTINCT FROM sha256(hash_before || convert_to(concat_ws(
                '|', number, (extract(epoch FROM at) * 1000000)::bigint, length(namespace), namespace, length(name), name,
                length(role_name::text), role_name::text, body
            ), 'UTF8'))
        UNION ALL
        SELECT coalesce(l.number, c.forgotten) + 1, 'end', ''
        FROM metal.audit_chain AS c LEFT JOIN LATERAL (
            SELECT a.number, a.hash FROM metal.audit AS a WHERE a.number IS NOT NULL ORDER BY a.number DESC LIMIT 1
        ) AS l ON true
        WHERE c.number <> coalesce(l.number, c.forgotten) OR c.hash <> coalesce(l.hash, c.forgotten_hash)
    )
    SELECT number, what, line FROM broken ORDER BY number LIMIT 1";

const COUNTS: &str = "SELECT count(a.number), count(*) - count(a.number), (SELECT c.forgotten FROM metal.audit_chain AS c) \
                      FROM metal.audit AS a";

/// The end of the chain; and, given the place of a line, its hash: that of the line, or nothing
/// where it was pruned.
const END: &str = "SELECT number, encode(hash, 'hex') FROM metal.audit_chain";
const AT: &str = "SELECT encode(a.hash, 'hex') FROM metal.audit AS a WHERE a.number = $1 \
                  UNION ALL SELECT encode(c.forgotten_hash, 'hex') FROM metal.audit_chain AS c WHERE c.forgotten = $1 \
                  UNION ALL SELECT NULL FROM metal.audit_chain AS c WHERE c.forgotten > $1";

/// Verifies all of it, of one moment.
pub(super) async fn verify(link: &StoreClient, earlier: &ChainEnds) -> Result<AuditProof, StoreError> {
    let fault = |error: sqlx::Error| link.faults.sqlx(&error);
    let mut session = link.session().await?;
    let mut db = session.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map_err(fault)?;
    let proof = read(&mut db, link.pooled, &link.faults, earlier).await?;
    db.commit().await.map_err(fault)?;
    session.end().await?;
    Ok(proof)
}

pub(super) async fn read(
    db: &mut PgConnection,
    pooled: bool,
    faults: &ErrorMapper,
    earlier: &ChainEnds,
) -> Result<AuditProof, StoreError> {
    let fault = |error: sqlx::Error| faults.sqlx(&error);
    let found: Option<(i64, String, String)> =
        sqlx::query_as(BROKEN).persistent(!pooled).fetch_optional(&mut *db).await.map_err(fault)?;
    if let Some((number, what, line)) = found {
        let problem = match what.as_str() {
            "missing" => "is missing",
            "changed" => "is not as it was written",
            _ => "is missing: the chain ended later",
        };
        let line = Some(line).filter(|_| what == "changed");
        return Ok(broken(number, problem, line));
    }
    let name = ChainName::default().to_string();
    for (chain, seen) in earlier {
        let number = i64::try_from(seen.number).unwrap_or(i64::MAX);
        let there: Option<Option<String>> =
            sqlx::query_scalar(AT).bind(number).persistent(!pooled).fetch_optional(&mut *db).await.map_err(fault)?;
        let fits = there.is_some_and(|hash| hash.is_none_or(|hash| hash == seen.hash));
        if *chain != name || !fits {
            return Ok(broken(number, NOT_THERE, None));
        }
    }
    let counted = sqlx::query_as(COUNTS).persistent(!pooled).fetch_one(&mut *db).await.map_err(fault)?;
    let (lines, waiting, forgotten): (i64, i64, i64) = counted;
    let (number, hash): (i64, String) =
        sqlx::query_as(END).persistent(!pooled).fetch_one(&mut *db).await.map_err(fault)?;
    let ends = if number > 0 { [(name, ChainEnd { number: count(number), hash })].into() } else { ChainEnds::new() };
    Ok(AuditProof::Whole { lines: count(lines), forgotten: count(forgotten), waiting: count(waiting), ends })
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

fn broken(number: i64, problem: &'static str, line: Option<String>) -> AuditProof {
    AuditProof::Broken(BrokenLine { chain: None, number: Some(count(number)), problem, line })
}
