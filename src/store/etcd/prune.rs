//! Forgetting what is old.
//!
//! What is below `old/` says where to look, in the order of time, and nothing else: more roles than
//! those that delete have been able to write there. So a key is deleted when it is one of history
//! by its form, when what it holds says that it is over and old, and in a transaction on the
//! condition that it still holds that.

use std::{collections::HashSet, time::Duration};

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, SortOrder, SortTarget, Txn, TxnOp};
use jiff::{SignedDuration, Timestamp};

use super::{
    EtcdStore,
    chain::{self, Further},
    fault::is_full,
    rows::{self, Reads, RecordPointer, json, text},
    whole::{PAGE, pages},
};
use crate::{
    maintenance::{ids::RunnerId, state::Maintenance},
    store::{
        StoreError,
        chain::{AuditLine, ChainName},
        lease_end,
    },
};

/// A process that has been gone for less is remembered: a place in the queue may be kept for it.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(24);

/// What may become of one key.
enum Fate {
    /// It is deleted, with the pointer that leads to it, if it still is as it was seen.
    Old(Vec<(String, i64)>),
    /// Lines of the audit, which are deleted if their chain may begin behind them.
    Lines((String, i64), Vec<AuditLine>),
    /// It is left alone until it is old enough.
    Young,
    /// It is not there, or does not belong to history.
    Nothing,
}

/// Forgets what became history before a moment, and when those were last seen who are gone for
/// longer.
pub(super) async fn prune(store: &EtcdStore, before: Timestamp, now: Timestamp, most: u32) -> Result<u64, StoreError> {
    let (link, keys) = (&store.link, &store.link.keys);
    let oldest = GetOptions::new().with_range(keys.old_before(before)).with_limit(i64::from(most));
    let oldest = oldest.with_sort(SortTarget::Key, SortOrder::Ascend);
    let found = link.get(keys.all("old"), oldest).await?;
    let mut entries = Vec::with_capacity(found.kvs().len());
    for pair in found.kvs() {
        entries.push(entry(store, pair, before).await?);
    }
    entries.extend(told(store, before, most).await?);
    // Of one moment they are in no order, and a chain begins later line by line.
    entries.sort_by_key(|entry| chain::first(&entry.lines));
    let (mut gone, mut blocked) = (0, HashSet::new());
    for entry in entries {
        match chain::further(store, &entry.lines, false).await? {
            Ok(further) => match delete(store, &entry.all(), &further).await {
                // A chain cannot be told to begin later: its lines stay until there is space.
                Err(error) if is_full(&error) && !further.is_empty() => {
                    gone += delete(store, &entry.records, &[]).await?;
                }
                done => gone += done?,
            },
            Err(name) => {
                blocked.insert(name);
                gone += delete(store, &entry.records, &[]).await?;
            }
        }
    }
    if gone == 0 && !blocked.is_empty() {
        gone = from_the_front(store, &blocked, before, most).await?;
    }
    if gone == 0 {
        gone = forget_processes(store, before.min(now.checked_sub(REMEMBERED).unwrap_or(Timestamp::MIN)), most).await?;
    }
    Ok(gone)
}

/// What goes together: lines of the audit go only when their chain may begin behind them.
#[derive(Default)]
struct Entry {
    records: Vec<(String, i64)>,
    audit: Vec<(String, i64)>,
    lines: Vec<AuditLine>,
    /// The key below `old/`, when nothing that it leads to stays.
    itself: Option<(String, i64)>,
}

impl Entry {
    fn all(&self) -> Vec<(String, i64)> {
        [&self.audit[..], &self.records, self.itself.as_slice()].concat()
    }
}

/// Looks at what one key below `old/` leads to.
async fn entry(store: &EtcdStore, pair: &KeyValue, before: Timestamp) -> Result<Entry, StoreError> {
    let keys = &store.link.keys;
    let named: Vec<String> = serde_json::from_slice(pair.value()).unwrap_or_default();
    let named: Vec<String> = named.into_iter().filter(|key| keys.is_history(key)).collect();
    let (mut entry, mut young) = (Entry::default(), false);
    for key in named {
        match fate(store, key, before).await? {
            Fate::Old(these) => entry.records.extend(these),
            Fate::Lines(this, its) => {
                entry.audit.push(this);
                entry.lines.extend(its);
            }
            Fate::Young => young = true,
            Fate::Nothing => {}
        }
    }
    entry.itself = (!young).then(|| seen(pair));
    Ok(entry)
}

fn seen(pair: &KeyValue) -> (String, i64) {
    (String::from_utf8_lossy(pair.key()).into_owned(), pair.mod_revision())
}

/// Forgets the first lines of chains from which others, which came before what is old by the clock,
/// are gone or still young.
async fn from_the_front(
    store: &EtcdStore,
    blocked: &HashSet<ChainName>,
    before: Timestamp,
    most: u32,
) -> Result<u64, StoreError> {
    let keys = &store.link.keys;
    let mut pairs = pages(store, &keys.all("audit"), 0).await?;
    pairs.extend(pages(store, &keys.all("told"), 0).await?);
    let mut entries = Vec::new();
    for pair in &pairs {
        let lines: Vec<AuditLine> = serde_json::from_slice(pair.value()).unwrap_or_default();
        if lines.iter().filter_map(|line| line.chain.as_ref()).any(|link| blocked.contains(&link.name)) {
            entries.push(Entry { audit: vec![seen(pair)], lines, ..Entry::default() });
        }
    }
    entries.sort_by_key(|entry| chain::first(&entry.lines));
    let (mut gone, mut stopped) = (0, HashSet::new());
    for entry in entries {
        let names: HashSet<ChainName> =
            entry.lines.iter().filter_map(|line| Some(line.chain.as_ref()?.name.clone())).collect();
        if gone >= u64::from(most) || !are_old(&entry.lines, before) || !stopped.is_disjoint(&names) {
            stopped.extend(names);
        } else if let Ok(further) = chain::further(store, &entry.lines, true).await? {
            match delete(store, &entry.all(), &further).await {
                Err(error) if is_full(&error) => break,
                done => gone += done?,
            }
        }
    }
    Ok(gone)
}

/// What a key of history holds decides.
async fn fate(store: &EtcdStore, key: String, before: Timestamp) -> Result<Fate, StoreError> {
    let (keys, faults) = (&store.link.keys, &store.link.faults);
    let Some(pair) = store.get(key.clone()).await? else { return Ok(Fate::Nothing) };
    let this = (key.clone(), pair.mod_revision());
    if key.starts_with(&keys.all("audit")) {
        let Ok(lines) = json::<Vec<AuditLine>>(&pair, faults) else { return Ok(Fate::Nothing) };
        return Ok(if are_old(&lines, before) { Fate::Lines(this, lines) } else { Fate::Young });
    }
    let Ok(record) = json::<Maintenance>(&pair, faults) else { return Ok(Fate::Nothing) };
    if keys.past(&record.id, &record.uid) != key {
        return Ok(Fate::Nothing);
    }
    if record.detached_at.is_some_and(|at| at >= before) {
        return Ok(Fate::Young);
    }
    let mut both = vec![this];
    let pointer = keys.uid(&record.uid);
    if let Some(pair) = store.get(pointer.clone()).await?
        && json::<RecordPointer>(&pair, faults).is_ok_and(|place| place.record == key)
    {
        both.push((pointer, pair.mod_revision()));
    }
    Ok(Fate::Old(both))
}

fn are_old(lines: &[AuditLine], before: Timestamp) -> bool {
    lines.iter().all(|line| line.event.at < before)
}

/// Deletes keys that still are as they were seen, all of one entry at once, so that chains begin
/// behind them. How many of them.
async fn delete(store: &EtcdStore, doomed: &[(String, i64)], further: &[Further]) -> Result<u64, StoreError> {
    let (keys, faults) = (&store.link.keys, &store.link.faults);
    let mut gone = 0;
    for (number, some) in doomed.chunks(PAGE).enumerate() {
        // Many of one entry are of one change, whose lines are few; what is more of it are records.
        let further = if number == 0 { further } else { &[] };
        let same = some.iter().map(|(key, seen)| Compare::mod_revision(key.clone(), CompareOp::Equal, *seen));
        let deletes = some.iter().map(|(key, _)| TxnOp::delete(key.clone(), None));
        let conditions: Vec<Compare> = same.chain(further.iter().map(|one| one.condition(keys))).collect();
        let mut operations: Vec<TxnOp> = deletes.collect();
        for one in further {
            operations.push(one.put(keys, faults)?);
        }
        if store.link.txn(Txn::new().when(conditions).and_then(operations)).await?.succeeded() {
            gone += some.len() as u64;
        }
    }
    Ok(gone)
}

/// Old lines of the owners' words, those first that came first. Keys there that cannot be read go,
/// too.
async fn told(store: &EtcdStore, before: Timestamp, most: u32) -> Result<Vec<Entry>, StoreError> {
    let first = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
    let found = store.link.get(store.link.keys.all("told"), first.with_limit(i64::from(most))).await?;
    let entries = found.kvs().iter().filter_map(|pair| {
        let lines: Vec<AuditLine> = serde_json::from_slice(pair.value()).unwrap_or_default();
        are_old(&lines, before).then(|| Entry { audit: vec![seen(pair)], lines, ..Entry::default() })
    });
    Ok(entries.collect())
}

/// Claims the right to forget history for `length` from now.
pub(super) async fn claim(
    store: &EtcdStore,
    runner: &RunnerId,
    now: Timestamp,
    length: Duration,
) -> Result<bool, StoreError> {
    let (link, key) = (&store.link, store.link.keys.sweeper());
    let claim = text(&runner.0, &lease_end(now, length), &link.faults)?;
    let found = link.patience.once(store.get(key.clone())).await?;
    let until = found.as_ref().map(|pair| json::<Timestamp>(pair, &link.faults)).transpose()?;
    if until.is_some_and(|until| until > now) {
        return Ok(false);
    }
    let same = found.map_or(0, |pair| pair.mod_revision());
    let unmoved = Compare::mod_revision(key.clone(), CompareOp::Equal, same);
    let put = TxnOp::put(key, claim, None);
    Ok(link.patience.once(link.txn(Txn::new().when([unmoved]).and_then([put]))).await?.succeeded())
}

/// Forgets processes that ended before a moment and that no active record names.
async fn forget_processes(store: &EtcdStore, before: Timestamp, most: u32) -> Result<u64, StoreError> {
    let (link, keys, faults) = (&store.link, &store.link.keys, &store.link.faults);
    let reply = link.txn(Txn::new().and_then(rows::all_reads(keys))).await?;
    let revision = reply.header().map(etcd_client::ResponseHeader::revision).unwrap_or_default();
    let locks = rows::read_every(&mut Reads::of(reply.op_responses()), before, faults)?;
    let records = locks.iter().flat_map(|read| &read.stored.lock.active);
    let attached: HashSet<String> = records
        .filter_map(|record| record.attachment.as_ref())
        .map(|attachment| keys.seen(&attachment.runner.id))
        .collect();
    let mut doomed = Vec::new();
    for pair in pages(store, &keys.all("seen"), revision).await? {
        let key = String::from_utf8_lossy(pair.key()).into_owned();
        if json::<Timestamp>(&pair, faults)? < before && !attached.contains(&key) {
            doomed.push((key, pair.mod_revision()));
        }
    }
    let mut gone = 0;
    for one in doomed.into_iter().take(most as usize) {
        // Each for itself: one that came back, or was noted again, is left alone, and no other with
        // it.
        gone += delete(store, &[one], &[]).await?;
    }
    Ok(gone)
}
