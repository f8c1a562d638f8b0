//! Changes as `metal.commit` reads them.

use serde::Serialize;
use sqlx::PgConnection;

use super::{
    fault::ErrorMapper,
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

/// A written record, as `metal.record_part`.
#[derive(Serialize)]
pub(super) struct RecordPart {
    uid: String,
    namespace: String,
    name: String,
    fate: &'static str,
    runner: Option<String>,
    body: String,
}

impl RecordPart {
    pub(super) fn of(record: &Maintenance, fate: &'static str, faults: &ErrorMapper) -> Result<Self, StoreError> {
        Ok(Self {
            uid: escaped(record.uid.raw()).into_owned(),
            namespace: record.id.namespace().to_owned(),
            name: record.id.name().to_owned(),
            fate,
            runner: record.attachment.as_ref().map(|attachment| escaped(attachment.runner.id.raw()).into_owned()),
            body: text(record.uid.raw(), record, faults)?,
        })
    }
}

/// A new approval, as `metal.approval_part`.
#[derive(Serialize)]
pub(super) struct ApprovalPart {
    uid: String,
    owner: String,
    body: String,
    used_by: Option<String>,
}

/// A used approval, as `metal.use_part`.
#[derive(Serialize)]
struct UsePart {
    uid: String,
    used_by: Option<String>,
}

/// An audit line, as `metal.event_part`.
#[derive(Serialize)]
struct EventPart {
    namespace: String,
    name: String,
    body: String,
}

/// The changes to approvals.
#[derive(Default)]
pub(super) struct Approvals {
    gone: Vec<String>,
    pub(super) given: Vec<ApprovalPart>,
    used: Vec<UsePart>,
}

impl Approvals {
    pub(super) fn between(before: &Ownership, after: &Ownership, faults: &ErrorMapper) -> Result<Self, StoreError> {
        let mut moved = Self::default();
        let kept = |one: &Approval, other: &Approval| {
            Approval { used_by: None, ..one.clone() } == Approval { used_by: None, ..other.clone() }
        };
        for old in &before.approvals {
            if !after.approval(&old.uid).is_some_and(|new| kept(new, old)) {
                moved.gone.push(escaped(old.uid.raw()).into_owned());
            }
        }
        let owner = after.claim.as_ref().map(|claim| escaped(claim.owner.raw()).into_owned()).unwrap_or_default();
        for new in &after.approvals {
            let uid = escaped(new.uid.raw()).into_owned();
            let used_by = new.used_by.as_ref().map(|uid| escaped(uid.raw()).into_owned());
            match before.approval(&new.uid).filter(|old| kept(new, old)) {
                Some(old) if old.used_by == new.used_by => {}
                Some(_) => moved.used.push(UsePart { uid, used_by }),
                None => {
                    let body = text(new.uid.raw(), new, faults)?;
                    moved.given.push(ApprovalPart { uid, owner: owner.clone(), body, used_by });
                }
            }
        }
        Ok(moved)
    }
}

/// One lock's change, as `metal.change`.
#[derive(Serialize)]
pub(super) struct Prepared {
    lock_key: String,
    expected: i64,
    /// A store that lost commits reuses revisions but never commit names.
    newest: String,
    commit_name: String,
    /// Another version can change the format while this process has the database open.
    format: i64,
    head_moved: bool,
    generation: i64,
    last_ticket: i64,
    slot: Option<String>,
    claim_moved: bool,
    claim: Option<String>,
    withdrawn: Vec<String>,
    records: Vec<RecordPart>,
    unapproved: Vec<String>,
    approvals: Vec<ApprovalPart>,
    used: Vec<UsePart>,
    events: Vec<EventPart>,
    channel: String,
}

impl Prepared {
    pub(super) fn of(change: &CommitDelta<'_>, channel: String, faults: &ErrorMapper) -> Result<Self, StoreError> {
        let (before, after) = (&change.before.lock, change.after);
        let key = after.key.raw();
        if change.adds() {
            capacity::check(faults, &after.key, after.active.len(), capacity::RECORDS, "records")?;
        }
        let slot = StoredSlot::of(after).map(|slot| text(key, &slot, faults)).transpose()?;
        let claim = after.ownership.claim.as_ref().map(|claim| text(key, claim, faults)).transpose()?;
        let head_moved = (after.generation, after.last_ticket, StoredSlot::of(after))
            != (before.generation, before.last_ticket, StoredSlot::of(before));
        let ended = change.finished.iter().map(|record| RecordPart::of(record, "ended", faults));
        let written = change.written().map(|record| RecordPart::of(record, "active", faults));
        let approvals = Approvals::between(&before.ownership, &after.ownership, faults)?;
        let events = change.events.iter().map(|event| {
            let (namespace, name) = (event.id.namespace().to_owned(), event.id.name().to_owned());
            Ok(EventPart { namespace, name, body: text(key, event, faults)? })
        });
        Ok(Self {
            lock_key: escaped(key).into_owned(),
            expected: change.before.revision,
            newest: change.before.commits.newest().unwrap_or_default().to_owned(),
            commit_name: change.commit.to_owned(),
            format: FORMAT,
            head_moved,
            generation: signed(after.generation, faults)?,
            last_ticket: signed(after.last_ticket, faults)?,
            slot,
            claim_moved: after.ownership.claim != before.ownership.claim,
            claim,
            withdrawn: change.withdrawn().map(|record| escaped(record.uid.raw()).into_owned()).collect(),
            records: ended.chain(written).collect::<Result<_, _>>()?,
            unapproved: approvals.gone,
            approvals: approvals.given,
            used: approvals.used,
            events: events.collect::<Result<_, StoreError>>()?,
            channel,
        })
    }
}

/// A change's outcome.
pub(super) enum Committed {
    /// The new revision, or `None` if another process was first.
    Revision(Option<i64>),
    /// Another lock has an active record with one of the new names.
    NameTaken,
}

/// One change's result: number, revision, and the error's code, text and constraint.
type ChangeRow = (i32, Option<i64>, Option<String>, Option<String>, Option<String>);

const COMMIT: &str = "\
    SELECT r.item, r.revision, r.code, r.cause, r.constraint_name FROM metal.commit(ARRAY( \
    SELECT c FROM jsonb_populate_recordset(NULL::metal.change, $1::text::jsonb) AS c)) AS r";

/// Writes changes to different locks. Each has its own outcome.
pub(super) async fn commit(
    db: &mut PgConnection,
    changes: &[Prepared],
    link: &StoreClient,
) -> Result<Vec<Result<Committed, StoreError>>, StoreError> {
    let faults = &link.faults;
    let query = sqlx::query_as(COMMIT).bind(text("a change", &changes, faults)?).persistent(!link.pooled);
    let rows: Vec<ChangeRow> = query.fetch_all(&mut *db).await.map_err(|error| faults.sqlx(&error))?;
    let unanswered = || Err(faults.unavailable("it did not answer for each change"));
    let mut outcomes: Vec<_> = changes.iter().map(|_| unanswered()).collect();
    for (item, revision, code, cause, constraint) in rows {
        let outcome = match code.as_deref() {
            None => Ok(Committed::Revision(revision)),
            Some("23505") if constraint.as_deref() == Some("maintenances_active_name") => Ok(Committed::NameTaken),
            Some("MT004") => {
                let found = schema::version(db, faults).await?;
                format::check_open(found, faults).and_then(|()| Err(faults.unavailable("its format changed")))
            }
            Some(code) => Err(faults.coded(code, cause.unwrap_or_default())),
        };
        if let Some(place) = usize::try_from(item - 1).ok().and_then(|place| outcomes.get_mut(place)) {
            *place = outcome;
        }
    }
    Ok(outcomes)
}
