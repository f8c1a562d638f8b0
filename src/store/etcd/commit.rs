//! One change as one transaction.

use std::{collections::HashMap, sync::Arc};

use etcd_client::{Compare, CompareOp, DeleteOptions, PutOptions, Txn, TxnOp};
use jiff::Timestamp;

use super::{
    fault::ErrorMapper,
    group,
    keys::Keys,
    rows::{ApprovalSet, Head, RecordPointer, text},
    seals,
};
use crate::{
    maintenance::{ids::MaintenanceId, state::Maintenance},
    store::{
        StoreError, capacity,
        chain::{self, AuditLine, Ends},
        extended::StoredSlot,
        optimistic::CommitDelta,
        seals::Seals,
    },
};

/// What one request of etcd takes, in bytes, unless it is told otherwise (`--max-request-bytes`).
const REQUEST: usize = 3 * 512 * 1024;

/// How many operations of a change are one part of its transaction. etcd takes 128
/// (`--max-txn-ops`) from the top down: those of a part, with the conditions or parts beside it,
/// with the transactions that travel together.
const AT_ONCE: usize = 128 - TOGETHER - 8 - group::MOST;

/// How many transitions are one commit at most. Each new record is a condition, and four
/// operations.
pub(super) const TOGETHER: usize = 60;

/// Collects the operations of one change; a key is written once only, which etcd insists on.
struct Writes<'a> {
    keys: &'a Keys,
    faults: &'a ErrorMapper,
    puts: HashMap<String, String>,
    deletes: Vec<String>,
    /// What becomes history with this change.
    old: Vec<String>,
}

impl Writes<'_> {
    fn place(&self, record: &Maintenance, key: String) -> Result<String, StoreError> {
        let place = RecordPointer { lock_key: record.lock_key.clone(), uid: record.uid.clone(), record: key };
        text(&record.uid.0, &place, self.faults)
    }

    fn active(&mut self, record: &Maintenance, new: bool) -> Result<(), StoreError> {
        let key = self.keys.active(&record.lock_key, &record.uid);
        self.puts.insert(key.clone(), text(&record.uid.0, record, self.faults)?);
        if new {
            let place = self.place(record, key)?;
            self.puts.insert(self.keys.name(&record.id), place.clone());
            self.puts.insert(self.keys.uid(&record.uid), place);
        }
        Ok(())
    }

    fn ended(&mut self, record: &Maintenance) -> Result<(), StoreError> {
        let key = self.keys.past(&record.id, &record.uid);
        self.puts.insert(key.clone(), text(&record.uid.0, record, self.faults)?);
        let place = self.place(record, key.clone())?;
        self.puts.insert(self.keys.uid(&record.uid), place);
        self.old.extend([key, self.keys.uid(&record.uid)]);
        self.gone(record);
        Ok(())
    }

    /// Not active any more.
    fn gone(&mut self, record: &Maintenance) {
        self.deletes.extend([self.keys.active(&record.lock_key, &record.uid), self.keys.name(&record.id)]);
    }

    /// The lines of one change. Those of the owner's words alone are where an approver may write,
    /// and no process follows what an approver writes: they are found without a pointer when they
    /// are old.
    fn audit(&mut self, lines: &[AuditLine], commit: &str, told_only: bool) -> Result<(), StoreError> {
        let mut names: Vec<(&MaintenanceId, Vec<&AuditLine>)> = Vec::new();
        for line in lines {
            let id = &line.event.id;
            match names.iter_mut().find(|(known, _)| *known == id) {
                Some((_, lines)) => lines.push(line),
                None => names.push((id, vec![line])),
            }
        }
        for (id, lines) in names {
            let all = if told_only { self.keys.told_all(id) } else { self.keys.audit_all(id) };
            let key = format!("{all}{commit}");
            self.puts.insert(key.clone(), text(&id.to_string(), &lines, self.faults)?);
            if !told_only {
                self.old.push(key);
            }
        }
        Ok(())
    }

    /// Deletes what is not written again. Many operations are several transactions without
    /// conditions: etcd counts them one by one at each level, and judges all conditions before it
    /// writes.
    fn operations(mut self) -> Vec<TxnOp> {
        self.deletes.sort();
        self.deletes.dedup();
        let puts = &self.puts;
        self.deletes.retain(|key| !puts.contains_key(key));
        let deletes = self.deletes.into_iter().map(|key| TxnOp::delete(key, None::<DeleteOptions>));
        let puts = self.puts.into_iter().map(|(key, value)| TxnOp::put(key, value, None::<PutOptions>));
        let all: Vec<TxnOp> = deletes.chain(puts).collect();
        if all.len() <= AT_ONCE {
            return all;
        }
        all.chunks(AT_ONCE).map(|part| TxnOp::txn(Txn::new().and_then(part))).collect()
    }
}

/// A change as a transaction.
pub(super) struct Prepared {
    pub(super) transaction: Txn,
    /// The new names, in the order in which they are read where it fails.
    pub(super) names: Vec<MaintenanceId>,
    /// What `lock/…` holds afterwards.
    pub(super) head: Option<Arc<[u8]>>,
    /// The ends of the chains afterwards.
    pub(super) ends: Arc<Ends>,
    /// The seals afterwards, where the words are written.
    pub(super) seals: Option<Seals>,
}

/// The transaction of a change. It succeeds if nobody wrote since the change's lock was read and no
/// new name is taken; otherwise it reads, in this order: the lock, the approvals, each new name,
/// and `meta`, which must still hold `meta`.
pub(super) fn transaction(
    keys: &Keys,
    change: &CommitDelta<'_>,
    mut ends: Option<Ends>,
    now: Timestamp,
    meta: &[u8],
    faults: &ErrorMapper,
) -> Result<Prepared, StoreError> {
    let (before, after) = (&change.before.lock, change.after);
    let key = &after.key;
    let commit = change.commit;
    let mut writes = Writes { keys, faults, puts: HashMap::new(), deletes: Vec::new(), old: Vec::new() };
    for record in change.withdrawn() {
        writes.gone(record);
        writes.deletes.push(keys.uid(&record.uid));
    }
    for record in change.finished {
        writes.ended(record)?;
    }
    for record in change.written() {
        writes.active(record, change.is_new(record))?;
    }
    let told_only = change.told_only();
    writes.audit(&chain::lines(change, ends.as_mut()), commit, told_only)?;
    let (lock_end, words_end) = ends.clone().map(|ends| (ends.lock, ends.words)).unzip();
    if change.adds() {
        // What ends a record writes about as much again.
        let bytes = writes.puts.iter().map(|(key, value)| key.len() + value.len()).sum();
        capacity::check(faults, key, bytes, REQUEST, "bytes")?;
        capacity::check(faults, key, after.active.len(), capacity::RECORDS, "records")?;
    }
    let (same_claim, parts) = (change.same_claim(), change.parts());
    let mut written_seals = None;
    if parts.words {
        let claim = after.ownership.claim.as_ref().map(|claim| claim.uid.clone());
        let (approvals, commits) = (after.ownership.words(), change.commits_of_words());
        let (seals, created) = seals::next(change);
        for approval in created {
            writes.puts.insert(keys.used(key, &approval), seals::OPEN.to_owned());
        }
        let said = ApprovalSet { claim, approvals, seals: seals.clone(), commits, chain: words_end };
        written_seals = Some(seals);
        writes.puts.insert(keys.approvals(key), text(&key.0, &said, faults)?);
    }
    if !told_only {
        let head = Head {
            generation: after.generation,
            last_ticket: after.last_ticket,
            slot: StoredSlot::of(after),
            claim: after.ownership.claim.clone(),
            commits: change.commits(),
            chain: lock_end,
        };
        writes.puts.insert(keys.lock(key), text(&key.0, &head, faults)?);
        for approval in &after.ownership.approvals {
            let known = before.ownership.approval(&approval.uid).and_then(|old| old.used_by.clone());
            if let Some(run) = approval.used_by.as_ref().filter(|run| known.as_ref() != Some(*run)) {
                writes.puts.insert(keys.used(key, &approval.uid), text(&key.0, run, faults)?);
            }
        }
    }
    // All marks, also those of approvals that were replaced or withdrawn: whoever did that may not
    // write here.
    let marks = keys.used_all(key);
    let forget_marks = !told_only && !same_claim && !writes.puts.keys().any(|key| key.starts_with(&marks));
    let old = std::mem::take(&mut writes.old);
    if !old.is_empty() {
        writes.puts.insert(keys.old(now, commit), text(&key.0, &old, faults)?);
    }
    let new: Vec<MaintenanceId> =
        change.written().filter(|record| change.is_new(record)).map(|record| record.id.clone()).collect();
    // Those that this change itself makes free are ours.
    let freed = |id: &MaintenanceId| before.active.iter().any(|record| record.id == *id);
    let asked: Vec<MaintenanceId> = new.into_iter().filter(|id| !freed(id)).collect();
    let unmoved = |key: String| Compare::mod_revision(key, CompareOp::Less, change.before.revision.saturating_add(1));
    let mut conditions = vec![unmoved(keys.lock(key)), unmoved(keys.approvals(key))];
    // A revision is given out again by a cluster that was restored; what it held, with the name of
    // a commit, is not.
    conditions.extend(change.before.raw.as_ref().map(|raw| Compare::value(keys.lock(key), CompareOp::Equal, &**raw)));
    conditions.push(Compare::value(keys.meta(), CompareOp::Equal, meta));
    conditions.extend(asked.iter().map(|id| Compare::create_revision(keys.name(id), CompareOp::Equal, 0)));
    let head = match writes.puts.get(&keys.lock(key)) {
        Some(head) => Some(Arc::from(head.as_bytes())),
        None => change.before.raw.clone(),
    };
    let mut operations = writes.operations();
    if forget_marks {
        operations.push(TxnOp::delete(marks, Some(DeleteOptions::new().with_prefix())));
    }
    let mut otherwise = vec![TxnOp::get(keys.lock(key), None), TxnOp::get(keys.approvals(key), None)];
    otherwise.extend(asked.iter().map(|id| TxnOp::get(keys.name(id), None)));
    otherwise.push(TxnOp::get(keys.meta(), None));
    let transaction = Txn::new().when(conditions).and_then(operations).or_else(otherwise);
    Ok(Prepared { transaction, names: asked, head, ends: Arc::new(ends.unwrap_or_default()), seals: written_seals })
}
