//! All of a prefix at once: to look it over, to move it, and to forget what is old.

use std::collections::{HashMap, HashSet};

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp};
use jiff::{SignedDuration, Timestamp};

use super::{
    EtcdStore, Meta, SCHEMA,
    keys::Keys,
    leases,
    rows::{self, Head, Place, Read, Reads, Words, json, text},
};
use crate::{
    maintenance::{
        approval::Approval,
        ids::{LockKey, RunnerId},
        lock::{AuditEvent, ServerLock},
        state::Maintenance,
    },
    store::{Contents, StoreError, Usage, extended::StoredSlot},
};

/// How many keys are read, written or deleted at once.
const PAGE: usize = 100;

/// All keys below a prefix, of one revision, page by page.
async fn pages(store: &EtcdStore, prefix: &str, revision: i64) -> Result<Vec<KeyValue>, StoreError> {
    let link = &store.link;
    let end = format!("{}0", prefix.trim_end_matches('/'));
    let mut from = prefix.to_owned().into_bytes();
    let mut all = Vec::new();
    loop {
        let page = GetOptions::new().with_range(end.clone()).with_revision(revision).with_limit(1000);
        let page = page.with_sort(SortTarget::Key, SortOrder::Ascend);
        let found = link.patience.repeat(|| link.get(from.clone(), page.clone())).await?;
        all.extend_from_slice(found.kvs());
        match found.kvs().last() {
            Some(last) if found.more() => {
                from = last.key().to_vec();
                from.push(0);
            }
            _ => return Ok(all),
        }
    }
}

/// Reads everything, of one revision.
pub(super) async fn read(store: &EtcdStore) -> Result<Contents, StoreError> {
    let (link, keys, faults) = (&store.link, &store.link.keys, &store.link.faults);
    let reply = link.patience.repeat(|| link.txn(Txn::new().and_then(rows::all_reads(keys)))).await?;
    let revision = reply.header().map(etcd_client::ResponseHeader::revision).unwrap_or_default();
    let mut reads = Reads::of(reply.op_responses());
    let found: Vec<Read> = rows::read_every(&mut reads, store.time.now().await?, faults)?;
    let locks: Vec<ServerLock> = found.into_iter().map(|read| (*read.stored.lock).clone()).collect();
    let (history, unread) = rows::in_order(&pages(store, &keys.all("past"), revision).await?);
    let bound = pages(store, &keys.all("bound"), revision).await?;
    let bindings = bound.iter().filter_map(|pair| Some((Keys::last(pair.key())?, pair)));
    let bindings = bindings.map(|(name, pair)| Ok((name, json::<LockKey>(pair, faults)?)));
    let mut bindings = bindings.collect::<Result<Vec<_>, StoreError>>()?;
    bindings.sort();
    let mut lines = pages(store, &keys.all("audit"), revision).await?;
    lines.sort_by_key(KeyValue::create_revision);
    let mut audit = Vec::new();
    for pair in &lines {
        audit.extend(json::<Vec<AuditEvent>>(pair, faults)?);
    }
    let names = pages(store, &keys.all("name"), revision).await?;
    let uids = pages(store, &keys.all("uid"), revision).await?;
    let mut oddities = oddities(store, &locks, &history, &names, &uids)?;
    oddities.extend(unread.into_iter().map(|record| record.why));
    Ok(Contents { store_id: store.id.clone(), locks, history, bindings, audit, oddities })
}

/// What points to nothing, and what nothing points to.
fn oddities(
    store: &EtcdStore,
    locks: &[ServerLock],
    history: &[Maintenance],
    names: &[KeyValue],
    uids: &[KeyValue],
) -> Result<Vec<String>, StoreError> {
    let (keys, faults) = (&store.link.keys, &store.link.faults);
    let mut odd = Vec::new();
    let active: HashMap<String, &Maintenance> = locks
        .iter()
        .flat_map(|lock| &lock.active)
        .map(|record| (keys.active(&record.lock_key, &record.uid), record))
        .collect();
    let past: HashSet<String> = history.iter().map(|record| keys.past(&record.id, &record.uid)).collect();
    let mut reached = HashSet::new();
    for pair in names {
        let place: Place = json(pair, faults)?;
        let key = String::from_utf8_lossy(pair.key()).into_owned();
        match active.get(&place.record) {
            Some(record) if keys.name(&record.id) == key => drop(reached.insert(place.record)),
            _ => odd.push(format!("{key} stands for {}, which is not active", place.uid)),
        }
    }
    for (key, record) in &active {
        if !reached.contains(key) {
            odd.push(format!("{} is active, but its name is free", record.id));
        }
    }
    let mut found = HashSet::new();
    for pair in uids {
        let place: Place = json(pair, faults)?;
        if !active.contains_key(&place.record) && !past.contains(&place.record) {
            odd.push(format!("{} leads to {}, where nothing is", place.uid, place.record));
        }
        found.insert(place.record);
    }
    let records = active.values().copied().map(|record| (keys.active(&record.lock_key, &record.uid), record));
    let records = records.chain(history.iter().map(|record| (keys.past(&record.id, &record.uid), record)));
    for (key, record) in records {
        if !found.contains(&key) {
            odd.push(format!("{} ({}) cannot be found by its incarnation", record.id, record.uid));
        }
    }
    Ok(odd)
}

/// Writes everything into a prefix that nobody has used. Not all at once: its id, which comes last, says that it is all
/// there.
pub(super) async fn write(store: &EtcdStore, contents: &Contents) -> Result<(), StoreError> {
    let (link, keys, faults) = (&store.link, &store.link.keys, &store.link.faults);
    let mut pairs: Vec<(String, String)> = Vec::new();
    for lock in &contents.locks {
        let head = Head {
            generation: lock.generation,
            last_ticket: lock.last_ticket,
            slot: StoredSlot::of(lock),
            claim: lock.ownership.claim.clone(),
            commits: String::new(),
        };
        pairs.push((keys.lock(&lock.key), text(&lock.key.0, &head, faults)?));
        if let Some(claim) = &lock.ownership.claim {
            let approvals = lock.ownership.approvals.iter();
            let approvals = approvals.map(|approval| Approval { used_by: None, ..approval.clone() }).collect();
            let words = Words { claim: Some(claim.uid.clone()), approvals, commits: String::new() };
            pairs.push((keys.approvals(&lock.key), text(&lock.key.0, &words, faults)?));
        }
        for approval in &lock.ownership.approvals {
            if let Some(run) = &approval.used_by {
                pairs.push((keys.used(&lock.key, &approval.uid), text(&lock.key.0, run, faults)?));
            }
        }
        for record in &lock.active {
            let key = keys.active(&record.lock_key, &record.uid);
            let place = place(record, &key, store)?;
            pairs.push((key, text(&record.uid.0, record, faults)?));
            pairs.push((keys.name(&record.id), place.clone()));
            pairs.push((keys.uid(&record.uid), place));
        }
    }
    for (number, record) in contents.history.iter().enumerate() {
        let key = keys.past(&record.id, &record.uid);
        pairs.push((keys.uid(&record.uid), place(record, &key, store)?));
        let old = [key.clone(), keys.uid(&record.uid)];
        let ended = record.detached_at.unwrap_or(Timestamp::MIN);
        pairs.push((keys.old(ended, &format!("moved-record-{number:010}")), text(&record.uid.0, &old, faults)?));
        pairs.push((key, text(&record.uid.0, record, faults)?));
    }
    for (name, key) in &contents.bindings {
        pairs.push((keys.bound(name), text(name, key, faults)?));
    }
    for (number, event) in contents.audit.iter().enumerate() {
        let key = format!("{}moved-{number:010}", keys.audit_all(&event.id));
        let old = keys.old(event.at, &format!("moved-line-{number:010}"));
        pairs.push((old, text(&event.uid.0, &[&key], faults)?));
        pairs.push((key, text(&event.uid.0, &[event], faults)?));
    }
    if !read(store).await?.is_empty() {
        return Err(faults.in_use());
    }
    for some in pairs.chunks(PAGE) {
        let unless_there = some.iter().map(|(key, _)| Compare::create_revision(key.clone(), CompareOp::Equal, 0));
        let puts = some.iter().map(|(key, value)| TxnOp::put(key.clone(), value.clone(), None::<PutOptions>));
        let txn = Txn::new().when(unless_there.collect::<Vec<_>>()).and_then(puts.collect::<Vec<_>>());
        if !link.patience.once(link.txn(txn)).await?.succeeded() {
            return Err(faults.in_use());
        }
    }
    let meta = Meta { store_id: contents.store_id.clone(), schema: SCHEMA };
    let put = TxnOp::put(keys.meta(), text("meta", &meta, faults)?, None::<PutOptions>);
    link.patience.once(link.txn(Txn::new().and_then([put]))).await?;
    Ok(())
}

fn place(record: &Maintenance, key: &str, store: &EtcdStore) -> Result<String, StoreError> {
    let place = Place { lock_key: record.lock_key.clone(), uid: record.uid.clone(), record: key.to_owned() };
    text(&record.uid.0, &place, &store.link.faults)
}

/// Reads the schema, and the processes that are alive.
pub(super) async fn usage(store: &EtcdStore) -> Result<Usage, StoreError> {
    let (link, keys, faults) = (&store.link, &store.link.keys, &store.link.faults);
    let found = link.get(keys.all("alive"), GetOptions::new().with_prefix()).await?;
    let leases = found.kvs().iter().filter_map(|pair| Some((RunnerId(Keys::last(pair.key())?), pair)));
    let alive = leases.map(|(runner, pair)| leases::process(&runner, pair, faults)).collect::<Result<_, _>>()?;
    let meta = link.get(keys.meta(), GetOptions::new()).await?;
    let meta = meta.kvs().first().map(|pair| json::<Meta>(pair, faults)).transpose()?;
    let schema = meta.map_or(SCHEMA, |meta| meta.schema);
    Ok(Usage { schema, newest: SCHEMA, alive })
}

/// A process that has been gone for less is remembered: a place in the queue may be kept for it.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(24);

/// Forgets what became history before a moment, and when those were last seen who are gone for longer.
pub(super) async fn prune(store: &EtcdStore, before: Timestamp, now: Timestamp, most: u32) -> Result<u64, StoreError> {
    let (link, keys, faults) = (&store.link, &store.link.keys, &store.link.faults);
    let oldest = GetOptions::new().with_range(keys.old_before(before)).with_limit(i64::from(most));
    let oldest = oldest.with_sort(SortTarget::Key, SortOrder::Ascend);
    let found = link.get(keys.all("old"), oldest).await?;
    let mut gone = 0;
    for pair in found.kvs() {
        let mut doomed: Vec<String> = json(pair, faults)?;
        gone += doomed.len() as u64;
        doomed.push(String::from_utf8_lossy(pair.key()).into_owned());
        for some in doomed.chunks(PAGE) {
            let deletes: Vec<TxnOp> = some.iter().map(|key| TxnOp::delete(key.clone(), None)).collect();
            link.txn(Txn::new().and_then(deletes)).await?;
        }
    }
    if gone == 0 {
        gone = forget_processes(store, before.min(now.checked_sub(REMEMBERED).unwrap_or(Timestamp::MIN)), most).await?;
    }
    Ok(gone)
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
    for (key, revision) in doomed.into_iter().take(most as usize) {
        // One that came back, or was noted anew, is left alone.
        let same = Compare::mod_revision(key.clone(), CompareOp::Equal, revision);
        let delete = TxnOp::delete(key, None);
        gone += u64::from(link.txn(Txn::new().when([same]).and_then([delete])).await?.succeeded());
    }
    Ok(gone)
}
