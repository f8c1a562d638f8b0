//! Commits as one statement.

use std::collections::HashMap;

use sqlx::{AssertSqlSafe, PgConnection, Postgres, postgres::PgArguments};

use super::{
    fault::{ErrorMapper, is_taken_name},
    link::StoreClient,
    rows::{escaped, signed, text},
    schema,
};
use crate::{
    maintenance::{approval::Approval, ownership::Ownership, state::Maintenance},
    store::{
        StoreError, capacity,
        extended::StoredSlot,
        format::{self, FORMAT},
        optimistic::CommitDelta,
    },
};

/// The written records as columns, one list per column.
#[derive(Default)]
pub(super) struct RecordColumns {
    pub(super) uids: Vec<String>,
    pub(super) namespaces: Vec<String>,
    pub(super) names: Vec<String>,
    pub(super) fates: Vec<&'static str>,
    pub(super) runners: Vec<Option<String>>,
    pub(super) bodies: Vec<String>,
}

impl RecordColumns {
    pub(super) fn add(
        &mut self,
        record: &Maintenance,
        fate: &'static str,
        faults: &ErrorMapper,
    ) -> Result<(), StoreError> {
        self.uids.push(escaped(&record.uid.0).into_owned());
        self.namespaces.push(record.id.namespace().to_owned());
        self.names.push(record.id.name().to_owned());
        self.fates.push(fate);
        self.runners.push(record.attachment.as_ref().map(|attachment| escaped(&attachment.runner.id.0).into_owned()));
        self.bodies.push(text(&record.uid.0, record, faults)?);
        Ok(())
    }
}

/// The changes to approvals.
#[derive(Default)]
pub(super) struct Approvals {
    pub(super) gone: Vec<String>,
    pub(super) uids: Vec<String>,
    pub(super) owners: Vec<String>,
    pub(super) bodies: Vec<String>,
    pub(super) uses: Vec<Option<String>>,
    pub(super) used: Vec<String>,
    pub(super) used_by: Vec<Option<String>>,
}

impl Approvals {
    pub(super) fn between(before: &Ownership, after: &Ownership, faults: &ErrorMapper) -> Result<Self, StoreError> {
        let mut moved = Self::default();
        let kept = |one: &Approval, other: &Approval| {
            Approval { used_by: None, ..one.clone() } == Approval { used_by: None, ..other.clone() }
        };
        for old in &before.approvals {
            if !after.approval(&old.uid).is_some_and(|new| kept(new, old)) {
                moved.gone.push(escaped(&old.uid.0).into_owned());
            }
        }
        let owner = after.claim.as_ref().map(|claim| escaped(claim.owner.raw()).into_owned()).unwrap_or_default();
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

/// A change as the arguments of `metal.commit`.
pub(super) struct Prepared {
    key: String,
    revision: i64,
    commits: String,
    head: bool,
    generation: i64,
    last_ticket: i64,
    slot: Option<String>,
    claim_moved: bool,
    claim: Option<String>,
    withdrawn: Vec<String>,
    written: RecordColumns,
    approvals: Approvals,
    namespaces: Vec<String>,
    names: Vec<String>,
    events: Vec<String>,
    channel: String,
    newest: String,
}

/// Arguments per change, including the two that are compared.
const ARGUMENTS: usize = 29;

impl Prepared {
    pub(super) fn of(change: &CommitDelta<'_>, channel: String, faults: &ErrorMapper) -> Result<Self, StoreError> {
        let (before, after) = (&change.before.lock, change.after);
        let key = &after.key.0;
        if change.adds() {
            capacity::check(faults, &after.key, after.active.len(), capacity::RECORDS, "records")?;
        }
        let slot = StoredSlot::of(after).map(|slot| text(key, &slot, faults)).transpose()?;
        let claim = after.ownership.claim.as_ref().map(|claim| text(key, claim, faults)).transpose()?;
        let head = (after.generation, after.last_ticket, StoredSlot::of(after))
            != (before.generation, before.last_ticket, StoredSlot::of(before));
        let mut written = RecordColumns::default();
        for record in change.finished {
            written.add(record, "ended", faults)?;
        }
        for record in change.written() {
            written.add(record, "active", faults)?;
        }
        Ok(Self {
            key: escaped(key).into_owned(),
            revision: change.before.revision,
            commits: change.commits(),
            head,
            generation: signed(after.generation, faults)?,
            last_ticket: signed(after.last_ticket, faults)?,
            slot,
            claim_moved: after.ownership.claim != before.ownership.claim,
            claim,
            withdrawn: change.withdrawn().map(|record| escaped(&record.uid.0).into_owned()).collect(),
            written,
            approvals: Approvals::between(&before.ownership, &after.ownership, faults)?,
            namespaces: change.events.iter().map(|event| event.id.namespace().to_owned()).collect(),
            names: change.events.iter().map(|event| event.id.name().to_owned()).collect(),
            events: change.events.iter().map(|event| text(key, event, faults)).collect::<Result<_, _>>()?,
            channel,
            // A store that lost commits reuses revisions but never commit names.
            newest: change.before.commits.newest().unwrap_or_default().to_owned(),
        })
    }

    fn bind<'q>(&'q self, query: CommitQuery<'q>) -> CommitQuery<'q> {
        let (written, approvals) = (&self.written, &self.approvals);
        query
            .bind(&self.key)
            .bind(self.revision)
            .bind(&self.commits)
            .bind(self.head)
            .bind(self.generation)
            .bind(self.last_ticket)
            .bind(self.slot.as_deref())
            .bind(self.claim_moved)
            .bind(self.claim.as_deref())
            .bind(&self.withdrawn)
            .bind(&written.uids)
            .bind(&written.namespaces)
            .bind(&written.names)
            .bind(&written.fates)
            .bind(&written.runners)
            .bind(&written.bodies)
            .bind(&approvals.gone)
            .bind(&approvals.uids)
            .bind(&approvals.owners)
            .bind(&approvals.bodies)
            .bind(&approvals.uses)
            .bind(&approvals.used)
            .bind(&approvals.used_by)
            .bind(&self.namespaces)
            .bind(&self.names)
            .bind(&self.events)
            .bind(&self.channel)
            .bind(&self.newest)
            // Another version can change the format while this process has the database open.
            .bind(FORMAT)
    }
}

type CommitQuery<'q> = sqlx::query::QueryAs<'q, Postgres, (i32, Option<i64>), PgArguments>;

/// Returns a statement with this many changes. Each change depends on its own lock only.
fn statement(changes: usize) -> String {
    let one = |n: usize| {
        let argument = |which: usize| format!("${}", n * ARGUMENTS + which);
        let all: Vec<String> = (1..=27).map(argument).collect();
        let (key, revision, newest, format) = (argument(1), argument(2), argument(28), argument(29));
        format!(
            "SELECT {n}, metal.commit({}) WHERE ({revision} = 0 OR EXISTS (SELECT FROM metal.locks AS l \
             WHERE l.lock_key = {key} AND l.revision = {revision} AND split_part(l.commits, ' ', 1) = {newest})) \
             AND NOT EXISTS (SELECT FROM metal.schema_versions AS s WHERE s.version > {format})",
            all.join(", ")
        )
    };
    (0..changes).map(one).collect::<Vec<_>>().join(" UNION ALL ")
}

/// The outcome of several changes.
pub(super) enum CommitOutcome {
    /// Each change's new revision, or `None` if another process wrote its lock since the read.
    Done(Vec<Option<i64>>),
    /// A name is taken; no change was committed.
    NameTaken,
}

/// Writes changes to different locks. An error in one is an error for all, and no change is
/// committed.
pub(super) async fn commit(
    db: &mut PgConnection,
    changes: &[Prepared],
    link: &StoreClient,
) -> Result<CommitOutcome, StoreError> {
    let faults = &link.faults;
    let query = sqlx::query_as(AssertSqlSafe(statement(changes.len()))).persistent(!link.pooled);
    let query = changes.iter().fold(query, |query, change| change.bind(query));
    let rows = match query.fetch_all(&mut *db).await {
        Err(error) if is_taken_name(&error) => return Ok(CommitOutcome::NameTaken),
        rows => rows.map_err(|error| faults.sqlx(&error))?,
    };
    if rows.len() < changes.len() {
        format::check_open(schema::version(db, faults).await?, faults)?;
    }
    let revisions: HashMap<i32, Option<i64>> = rows.into_iter().collect();
    let of = |n| i32::try_from(n).ok().and_then(|n| revisions.get(&n).copied().flatten());
    Ok(CommitOutcome::Done((0..changes.len()).map(of).collect()))
}
