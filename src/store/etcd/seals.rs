//! Why an approval of one maintenance counts for one run only, although a runner may write where
//! its use is marked.
//!
//! A permission of etcd names keys: it cannot allow that a mark is made and forbid that it is
//! removed. But each key has the revision at which it was created and a number of its versions, and
//! nobody chooses those. So the approver creates the mark, [`OPEN`], in the transaction of the
//! words. The run that uses the approval writes its name over it. From then on the mark cannot
//! become what it was: a key that is written again has another version, one that is deleted and
//! made again has a later revision. The words, which only an approver writes, hold the revision
//! that counts ([`Seal`]).

use std::{collections::HashMap, sync::Arc};

use etcd_client::KeyValue;

use super::keys::Keys;
use crate::{
    maintenance::{
        approval::{Approval, Scope},
        ids::Uid,
    },
    store::{
        optimistic::CommitDelta,
        seals::{Seal, Seals},
    },
};

/// What a mark holds until a run uses the approval, as JSON.
pub(super) const OPEN: &str = "\"open\"";

/// The run of a mark that was removed or is not as a run writes it.
const UNKNOWN: &str = "unknown";

/// The seals of words that were written at a revision.
pub(super) fn written_at(revision: i64, seals: Seals) -> Arc<Seals> {
    let known = |seal: Seal| Seal { created: seal.created.or(Some(revision)), ..seal };
    Arc::new(seals.into_iter().map(|(uid, seal)| (uid, known(seal))).collect())
}

/// The seals that a change of the words writes, and the approvals whose marks it creates.
pub(super) fn next(change: &CommitDelta<'_>) -> (Seals, Vec<Uid>) {
    let mut created = Vec::new();
    let one = |approval: &Approval| {
        let seal = match (&approval.used_by, change.before.seals.get(&approval.uid)) {
            (Some(run), _) => Seal { created: None, used_by: Some(run.clone()) },
            (None, Some(known)) => known.clone(),
            (None, None) => {
                created.push(approval.uid.clone());
                Seal::default()
            }
        };
        (approval.uid.clone(), seal)
    };
    let approvals = change.after.ownership.approvals.iter().filter(|approval| is_used_up(approval));
    let seals = approvals.map(one).collect();
    (seals, created)
}

/// The seals and marks of approvals that are moved from another store.
pub(super) fn moved(approvals: &[Approval]) -> (Seals, Vec<Uid>) {
    let sealed = || approvals.iter().filter(|approval| is_used_up(approval));
    let seal = |approval: &Approval| Seal { created: None, used_by: approval.used_by.clone() };
    let created = sealed().filter(|approval| approval.used_by.is_none());
    (
        sealed().map(|approval| (approval.uid.clone(), seal(approval))).collect(),
        created.map(|approval| approval.uid.clone()).collect(),
    )
}

/// Whether an approval is for one run.
fn is_used_up(approval: &Approval) -> bool {
    matches!(approval.scope, Scope::Maintenance { .. })
}

/// Which run has used which approval.
pub(super) fn uses(seals: &Seals, marks: &[KeyValue]) -> HashMap<Uid, Uid> {
    let mut runs = HashMap::new();
    for mark in marks {
        if let (Some(approval), Ok(run)) = (Keys::last(mark.key()).map(Uid), serde_json::from_slice(mark.value())) {
            runs.insert(approval, (run, mark));
        }
    }
    let mut uses: HashMap<Uid, Uid> = HashMap::new();
    for (approval, seal) in seals {
        let mark = runs.remove(approval);
        let run = seal.used_by.clone().or_else(|| used(seal, mark));
        uses.extend(run.map(|run| (approval.clone(), run)));
    }
    uses.extend(runs.into_iter().map(|(approval, (run, _))| (approval, run)));
    uses
}

/// The run that used a sealed approval, by its mark.
fn used(seal: &Seal, mark: Option<(Uid, &KeyValue)>) -> Option<Uid> {
    let unknown = || Some(Uid(UNKNOWN.to_owned()));
    let Some((run, mark)) = mark else { return unknown() };
    if seal.created != Some(mark.create_revision()) {
        return unknown();
    }
    match (mark.value() == OPEN.as_bytes(), mark.version()) {
        (true, 1) => None,
        // Used in the transaction that gave it, or later.
        (false, 1 | 2) => Some(run),
        _ => unknown(),
    }
}

/// What a runner did to marks: those of approvals in force that are neither open nor as a run
/// writes them.
pub(super) fn forged(approvals: &[Approval]) -> impl Iterator<Item = &Uid> {
    let unknown = |approval: &&Approval| approval.used_by.as_ref().is_some_and(|run| run.0 == UNKNOWN);
    approvals.iter().filter(unknown).map(|approval| &approval.uid)
}
