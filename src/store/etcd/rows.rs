//! Between keys and a [`ServerLock`].

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use etcd_client::{Compare, CompareOp, GetOptions, GetResponse, KeyValue, Txn, TxnOp, TxnOpResponse};
use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{fault::ErrorMapper, keys::Keys, leases::until, seals};
use crate::{
    maintenance::{
        approval::{Approval, Claim},
        ids::{Generation, LockKey, RunnerId, Uid},
        lock::{Leases, ServerLock},
        quarantine::{Records, Unreadable},
        shared::Shared,
        state::Maintenance,
    },
    store::{
        ChainEnd, StoreError,
        chain::Ends,
        extended::StoredSlot,
        optimistic::{Commits, Loaded},
        seals::Seals,
        views::Stored,
    },
};

/// What `lock/…` holds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) generation: Generation,
    pub(super) last_ticket: u64,
    pub(super) slot: Option<StoredSlot>,
    pub(super) claim: Option<Claim>,
    pub(super) commits: String,
    /// The end of the chain of the lines of this lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) chain: Option<ChainEnd>,
}

/// What `approvals/…` holds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ApprovalSet {
    /// The claim they were given for; they end with it.
    pub(super) claim: Option<Uid>,
    pub(super) approvals: Vec<Approval>,
    /// What makes their use last.
    #[serde(default, skip_serializing_if = "Seals::is_empty")]
    pub(super) seals: Seals,
    pub(super) commits: String,
    /// The end of the chain of the lines of these words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) chain: Option<ChainEnd>,
}

/// What `name/…` and `uid/…` hold.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RecordPointer {
    /// The machine.
    pub(super) lock_key: LockKey,
    /// The incarnation.
    pub(super) uid: Uid,
    /// The key of the record.
    pub(super) record: String,
}

pub(super) fn json<T: DeserializeOwned>(pair: &KeyValue, faults: &ErrorMapper) -> Result<T, StoreError> {
    serde_json::from_slice(pair.value()).map_err(|error| faults.record(String::from_utf8_lossy(pair.key()), &error))
}

/// The owner's words. Those that cannot be read count for nothing: an approver could freeze the
/// server with them.
pub(super) fn words_of(pair: Option<&KeyValue>) -> ApprovalSet {
    pair.and_then(|pair| serde_json::from_slice(pair.value()).ok()).unwrap_or_default()
}

pub(super) fn text<T: Serialize>(what: &str, value: &T, faults: &ErrorMapper) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| faults.record(what, &error))
}

/// The reads of one transaction, in the order in which they were asked for.
pub(super) struct Reads(std::vec::IntoIter<TxnOpResponse>);

impl Reads {
    pub(super) fn of(responses: Vec<TxnOpResponse>) -> Self {
        Self(responses.into_iter())
    }

    pub(super) fn next(&mut self, faults: &ErrorMapper) -> Result<GetResponse, StoreError> {
        match self.0.next() {
            Some(TxnOpResponse::Get(found)) => Ok(found),
            _ => Err(faults.unreadable("it returned an unexpected response")),
        }
    }
}

fn all(prefix: String) -> TxnOp {
    TxnOp::get(prefix, Some(GetOptions::new().with_prefix()))
}

/// Reads the processes that are alive: once for all locks that are read together.
pub(super) fn alive_read(keys: &Keys) -> TxnOp {
    all(keys.all("alive"))
}

/// How a read finds out which known records are there no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// By the names of all that are there. etcd reads their values for it.
    Listed,
    /// By how many are there, which etcd knows without reading them: enough where none has left.
    Counted,
}

/// Reads one lock: all of it, or only what moved since the revision that is known. The records are
/// not looked at when nothing moved: etcd goes through all of them, whatever part of them is asked
/// for.
pub(super) fn reads(keys: &Keys, key: &LockKey, known: Option<&Stored>, left: Left) -> Txn {
    let mut reads =
        vec![TxnOp::get(keys.lock(key), None), TxnOp::get(keys.approvals(key), None), all(keys.used_all(key))];
    let Some(known) = known else {
        reads.push(all(keys.active_all(key)));
        return Txn::new().and_then(reads);
    };
    let moved = GetOptions::new().with_prefix().with_min_mod_revision(known.revision.saturating_add(1));
    let there = match left {
        Left::Listed => GetOptions::new().with_keys_only(),
        Left::Counted => GetOptions::new().with_count_only(),
    };
    let more =
        [TxnOp::get(keys.active_all(key), Some(moved)), TxnOp::get(keys.active_all(key), Some(there.with_prefix()))];
    let unmoved = [keys.lock(key), keys.approvals(key)]
        .map(|key| Compare::mod_revision(key, CompareOp::Less, known.revision.saturating_add(1)));
    Txn::new().when(unmoved).and_then(reads.clone()).or_else([reads, more.into()].concat())
}

/// A lock without the leases of those who are gone.
pub(super) struct Read {
    pub(super) stored: Stored,
    pub(super) leases: Leases,
    /// Attached processes without a lease.
    pub(super) gone: Vec<RunnerId>,
    /// Whether records have left that were known.
    pub(super) some_left: bool,
}

/// What became of a read.
pub(super) enum Looked {
    Lock(Box<Read>),
    /// Records have left, and were only counted: they have to be listed. `None` where the store is
    /// behind the known lock, as after a backup was restored: then all of it is read.
    Again(Option<Stored>),
}

impl Read {
    pub(super) fn loaded(self, now: Timestamp) -> Loaded {
        Loaded { stored: self.stored, leases: self.leases, now }
    }
}

/// The answer to [`reads`], and that to [`alive_read`] of the same moment.
pub(super) fn read(
    mut found: Reads,
    alive: &[KeyValue],
    key: &LockKey,
    known: Option<Stored>,
    now: Timestamp,
    faults: &ErrorMapper,
) -> Result<Looked, StoreError> {
    let head = found.next(faults)?;
    let words = found.next(faults)?;
    let used = found.next(faults)?;
    let alive = self::alive(alive, now, faults)?;
    let revision = revision(&[head.kvs(), words.kvs()]);
    let commits = commits(head.kvs().first(), words.kvs().first(), faults)?;
    let mut some_left = false;
    let (records, unreadable) = match known {
        Some(known) if known.revision > revision || !commits.go_on_from(&known.commits) => {
            return Ok(Looked::Again(None));
        }
        Some(known) if known.revision == revision => (known.lock.active.clone(), known.lock.unreadable.clone()),
        Some(known) => {
            let (moved, there) = (found.next(faults)?, found.next(faults)?);
            let new = moved.kvs().iter().filter(|pair| pair.create_revision() > known.revision).count();
            let before = known.lock.active.len() + known.lock.unreadable.len();
            some_left = usize::try_from(there.count()) != Ok(before + new);
            if some_left && there.kvs().is_empty() && there.count() > 0 {
                return Ok(Looked::Again(Some(known)));
            }
            let names = there.kvs().iter().filter(|_| some_left).filter_map(|pair| Keys::last(pair.key()));
            let listed: HashSet<Uid> = names.map(Uid).collect();
            merged(&known.lock, moved.kvs(), |uid| !some_left || listed.contains(uid))
        }
        None => in_order(found.next(faults)?.kvs()),
    };
    let records = (records, unreadable);
    let read = assemble(key, head.kvs().first(), words.kvs().first(), used.kvs(), records, &alive, revision, faults)?;
    Ok(Looked::Lock(Box::new(Read { some_left, ..read })))
}

/// Known records that are still there, with those that moved since.
fn merged(known: &ServerLock, moved: &[KeyValue], there: impl Fn(&Uid) -> bool) -> Records {
    let again: HashSet<Uid> = moved.iter().filter_map(|pair| Keys::last(pair.key())).map(Uid).collect();
    let (moved, mut unreadable) = in_order(moved);
    let kept = known.unreadable.iter().filter(|old| there(&old.uid) && !again.contains(&old.uid));
    unreadable.extend(kept.cloned());
    let kept = known.active.iter().filter(|record| there(&record.uid));
    let mut records: Vec<Shared<Maintenance>> =
        kept.filter(|record| unreadable.iter().all(|other| other.uid != record.uid)).cloned().collect();
    let places: HashMap<Uid, usize> = records
        .iter()
        .enumerate()
        .map(|(at, record)| (record.uid.clone(), at))
        .filter(|(uid, _)| again.contains(uid))
        .collect();
    for record in moved {
        match places.get(&record.uid) {
            Some(at) => records[*at] = record,
            None => records.push(record),
        }
    }
    (records, unreadable)
}

/// The last commits of both.
fn commits(head: Option<&KeyValue>, words: Option<&KeyValue>, faults: &ErrorMapper) -> Result<Commits, StoreError> {
    let head: Head = head.map(|pair| json(pair, faults)).transpose()?.unwrap_or_default();
    let words = words_of(words);
    Ok(Commits::parse(&head.commits, &words.commits))
}

/// The highest of the revisions at which these were written.
fn revision(pairs: &[&[KeyValue]]) -> i64 {
    pairs.iter().flat_map(|pairs| pairs.iter()).map(KeyValue::mod_revision).max().unwrap_or(0)
}

/// In the order in which they came.
pub(super) fn in_order(pairs: &[KeyValue]) -> Records {
    let mut pairs: Vec<&KeyValue> = pairs.iter().collect();
    pairs.sort_by_key(|pair| pair.create_revision());
    Unreadable::part(pairs.into_iter().map(|pair| {
        let uid = Keys::last(pair.key()).unwrap_or_default();
        Unreadable::or_record(&uid, &String::from_utf8_lossy(pair.value()))
    }))
}

/// Which processes have a lease, and until when at most.
pub(super) fn alive(
    pairs: &[KeyValue],
    now: Timestamp,
    faults: &ErrorMapper,
) -> Result<HashMap<RunnerId, Timestamp>, StoreError> {
    let leases = pairs.iter().filter_map(|pair| Some((RunnerId(Keys::last(pair.key())?), pair)));
    leases.map(|(runner, pair)| Ok((runner, until(pair, now, faults)?))).collect()
}

#[expect(clippy::too_many_arguments, reason = "each is one read")]
fn assemble(
    key: &LockKey,
    head: Option<&KeyValue>,
    words: Option<&KeyValue>,
    used: &[KeyValue],
    (active, unreadable): Records,
    alive: &HashMap<RunnerId, Timestamp>,
    revision: i64,
    faults: &ErrorMapper,
) -> Result<Read, StoreError> {
    let raw = head.map(|pair| Arc::from(pair.value()));
    let head: Head = head.map(|pair| json(pair, faults)).transpose()?.unwrap_or_default();
    let written = words.map(KeyValue::mod_revision).unwrap_or_default();
    let words = words_of(words);
    let seals = seals::written_at(written, words.seals);
    let mut lock = ServerLock::new(key.clone());
    lock.generation = head.generation;
    lock.last_ticket = head.last_ticket;
    StoredSlot::into_lock(head.slot, &mut lock);
    let claim = head.claim.as_ref().map(|claim| &claim.uid);
    if claim.is_some() && claim == words.claim.as_ref() {
        let mut runs = seals::uses(&seals, used);
        let given = words.approvals.into_iter();
        lock.ownership.approvals =
            given.map(|approval| Approval { used_by: runs.remove(&approval.uid), ..approval }).collect();
    }
    lock.ownership.claim = head.claim;
    (lock.active, lock.unreadable) = (active, unreadable);
    let mut leases = Leases::default();
    let mut gone = Vec::new();
    for attachment in lock.active.iter().filter_map(|record| record.attachment.as_ref()) {
        let runner = &attachment.runner.id;
        match alive.get(runner) {
            Some(until) => drop(leases.0.insert(runner.clone(), *until)),
            None => gone.push(runner.clone()),
        }
    }
    gone.sort();
    gone.dedup();
    let commits = Arc::new(Commits::parse(&head.commits, &words.commits));
    let ends = Arc::new(Ends { lock: head.chain.unwrap_or_default(), words: words.chain.unwrap_or_default() });
    let stored = Stored { revision, lock: Arc::new(lock), commits, raw, ends, seals };
    Ok(Read { stored, leases, gone, some_left: false })
}

/// The locks that [`all_reads`] found which have an active record or an owner, sorted by key.
pub(super) fn read_all(mut found: Reads, now: Timestamp, faults: &ErrorMapper) -> Result<Vec<Read>, StoreError> {
    let mut reads = read_every(&mut found, now, faults)?;
    reads.retain(|read| !read.stored.lock.is_idle());
    Ok(reads)
}

/// Everything that [`all_reads`] found, sorted by key.
pub(super) fn read_every(found: &mut Reads, now: Timestamp, faults: &ErrorMapper) -> Result<Vec<Read>, StoreError> {
    let (heads, words, used) = (found.next(faults)?, found.next(faults)?, found.next(faults)?);
    let alive = alive(found.next(faults)?.kvs(), now, faults)?;
    let active = found.next(faults)?;
    let mut records: HashMap<LockKey, Vec<KeyValue>> = HashMap::new();
    for pair in active.kvs() {
        if let Some(key) = Keys::server(pair.key()) {
            records.entry(key).or_default().push(pair.clone());
        }
    }
    let mut marks: HashMap<LockKey, Vec<KeyValue>> = HashMap::new();
    for pair in used.kvs() {
        if let Some(key) = Keys::server(pair.key()) {
            marks.entry(key).or_default().push(pair.clone());
        }
    }
    let words: HashMap<String, &KeyValue> =
        words.kvs().iter().filter_map(|pair| Some((Keys::last(pair.key())?, pair))).collect();
    let mut reads = Vec::new();
    for head in heads.kvs() {
        let Some(key) = Keys::last(head.key()).map(LockKey) else { continue };
        let active = in_order(records.get(&key).map_or(&[], Vec::as_slice));
        let words = words.get(&key.0).copied();
        let marks = marks.get(&key).map_or(&[][..], Vec::as_slice);
        let revision = revision(&[std::slice::from_ref(head), words.map_or(&[], std::slice::from_ref)]);
        let quarantined = |cause: &str, (records, unreadable): Records| {
            let lock = ServerLock::quarantined(key.clone(), cause, &records, unreadable);
            let stored = Stored { revision, lock: Arc::new(lock), ..Stored::none(&key) };
            Read { stored, leases: Leases::default(), gone: Vec::new(), some_left: false }
        };
        reads.push(match assemble(&key, Some(head), words, marks, active.clone(), &alive, revision, faults) {
            Err(StoreError::Unreadable { cause, .. }) => quarantined(&cause, active),
            read => read?,
        });
    }
    reads.sort_by(|one, other| one.stored.lock.key.cmp(&other.stored.lock.key));
    Ok(reads)
}

/// What to read for the whole queue, in the order that [`read_all`] wants.
pub(super) fn all_reads(keys: &Keys) -> Vec<TxnOp> {
    ["lock", "approvals", "used", "alive", "active"].into_iter().map(|kind| all(keys.all(kind))).collect()
}
