//! All of a prefix at once: to look it over, and to move it.

use std::collections::{BTreeSet, HashMap, HashSet};

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp};
use jiff::Timestamp;

use super::{
    EtcdStore, Meta, SCHEMA, chain,
    keys::Keys,
    leases, rights,
    rows::{self, ApprovalSet, Head, Read, Reads, RecordPointer, json, text},
    seals,
};
use crate::{
    maintenance::{
        approval::Approval,
        ids::{LockKey, MaintenanceId, RunnerId},
        lock::{AuditEvent, ServerLock},
        shared::Shared,
        state::Maintenance,
    },
    store::{
        AuditProof, ChainEnd, ChainEnds, Contents, StoreError, Usage,
        chain::{self as store_chain, ChainName},
        extended::StoredSlot,
    },
};

/// How many keys are read, written or deleted at once.
pub(super) const PAGE: usize = 100;

/// All keys below a prefix, of one revision, page by page.
pub(super) async fn pages(store: &EtcdStore, prefix: &str, revision: i64) -> Result<Vec<KeyValue>, StoreError> {
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
    lines.extend(pages(store, &keys.all("told"), revision).await?);
    lines.sort_by_key(KeyValue::create_revision);
    let (mut audit, mut odd) = (Vec::new(), Vec::new());
    for pair in &lines {
        match json::<Vec<AuditEvent>>(pair, faults) {
            Ok(lines) => audit.extend(lines),
            Err(error) => odd.push(error.to_string()),
        }
    }
    if let AuditProof::Broken(line) = chain::verify_at(store, revision, &lines, &ChainEnds::new()).await? {
        odd.push(format!("the audit log was changed: {line}"));
    }
    for pair in pages(store, &keys.all("approvals"), revision).await? {
        if let Err(error) = json::<ApprovalSet>(&pair, faults) {
            odd.push(format!("approvals that cannot be read count for nothing: {error}"));
        }
    }
    let history: Vec<Maintenance> = history.into_iter().map(Shared::into_inner).collect();
    odd.extend(misleading(store, &pages(store, &keys.all("old"), revision).await?));
    odd.extend(without_lock(&locks, &history, &pages(store, &keys.all("active"), revision).await?));
    odd.extend(locks.iter().flat_map(forged_marks));
    odd.extend(rights::wide(store).await?);
    let names = pages(store, &keys.all("name"), revision).await?;
    let uids = pages(store, &keys.all("uid"), revision).await?;
    let mut oddities = oddities(store, &locks, &history, &names, &uids)?;
    oddities.extend(unread.into_iter().map(|record| record.why));
    oddities.extend(odd);
    Ok(Contents { store_id: store.id.clone(), locks, history, bindings, audit, oddities })
}

/// The lines about one name, those that approvers wrote among them.
pub(super) async fn audit(store: &EtcdStore, id: &MaintenanceId, limit: usize) -> Result<Vec<AuditEvent>, StoreError> {
    let prefixes = [store.link.keys.audit_all(id), store.link.keys.told_all(id)];
    // Each key has at least one line.
    let most = i64::try_from(limit).unwrap_or(i64::MAX).max(1);
    let newest = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Descend).with_limit(most);
    let found = store
        .link
        .patience
        .repeat(|| async {
            let reads = prefixes.iter().map(|prefix| TxnOp::get(prefix.clone(), Some(newest.clone())));
            let reply = store.link.txn(Txn::new().and_then(reads.collect::<Vec<_>>())).await?;
            let mut found = Reads::of(reply.op_responses());
            Ok((found.next(&store.link.faults)?, found.next(&store.link.faults)?))
        })
        .await?;
    let mut pairs: Vec<&KeyValue> = found.0.kvs().iter().chain(found.1.kvs()).collect();
    pairs.sort_by_key(|pair| pair.create_revision());
    // A role may write a line that cannot be read: `store check` tells of it.
    let lines = pairs.iter().filter_map(|pair| serde_json::from_slice::<Vec<AuditEvent>>(pair.value()).ok());
    let mut lines: Vec<AuditEvent> = lines.flatten().collect();
    Ok(lines.split_off(lines.len().saturating_sub(limit)))
}

/// Keys that what is below `old/` names and that are none of history: earlier versions deleted
/// them.
fn misleading(store: &EtcdStore, old: &[KeyValue]) -> Vec<String> {
    let (keys, sweeper) = (&store.link.keys, store.link.keys.sweeper());
    let mut odd = Vec::new();
    let pruned = keys.pruned_all();
    let leads = |pair: &&KeyValue| pair.key() != sweeper.as_bytes() && !pair.key().starts_with(pruned.as_bytes());
    for pair in old.iter().filter(leads) {
        let at = String::from_utf8_lossy(pair.key()).into_owned();
        let Ok(named) = serde_json::from_slice::<Vec<String>>(pair.value()) else {
            odd.push(format!("{at} is not a list of keys"));
            continue;
        };
        let wrong: Vec<&str> = named.iter().map(String::as_str).collect();
        let wrong: Vec<&str> = wrong.into_iter().filter(|key| !keys.is_history(key) && !keys.is_pointer(key)).collect();
        if !wrong.is_empty() {
            odd.push(format!("{at} names {}, which does not belong to history and is not deleted", wrong.join(", ")));
        }
    }
    odd
}

/// Servers with records and without a lock: its deletion ended a hold, and its generation would
/// start again.
fn without_lock(locks: &[ServerLock], history: &[Maintenance], active: &[KeyValue]) -> Vec<String> {
    let known: HashSet<&LockKey> = locks.iter().map(|lock| &lock.key).collect();
    let named = active.iter().filter_map(|pair| Keys::server(pair.key()));
    let lost: BTreeSet<LockKey> = named.chain(history.iter().map(|record| record.lock_key.clone())).collect();
    let lost = lost.into_iter().filter(|key| !known.contains(key));
    lost.map(|key| format!("the lock of {key} is gone, and there are records of it: its generation would start again"))
        .collect()
}

/// Marks of use that a runner removed or changed. Their approvals count as used.
fn forged_marks(lock: &ServerLock) -> impl Iterator<Item = String> {
    seals::forged(&lock.ownership.approvals).map(|approval| {
        format!("the mark of use of the approval {approval} at {} was removed or changed: it counts as used", lock.key)
    })
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
        .map(|record| (keys.active(&record.lock_key, &record.uid), &**record))
        .collect();
    let past: HashSet<String> = history.iter().map(|record| keys.past(&record.id, &record.uid)).collect();
    let mut reached = HashSet::new();
    for pair in names {
        let place: RecordPointer = json(pair, faults)?;
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
        let place: RecordPointer = json(pair, faults)?;
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

/// Writes everything into a prefix that nobody has used. Not all at once: its id, which comes last,
/// says that it is all there.
pub(super) async fn write(store: &EtcdStore, contents: &Contents) -> Result<(), StoreError> {
    let (link, keys, faults) = (&store.link, &store.link.keys, &store.link.faults);
    let mut pairs: Vec<(String, String)> = Vec::new();
    // What has to have one revision.
    let mut together: Vec<Vec<(String, String)>> = Vec::new();
    for lock in &contents.locks {
        let head = Head {
            generation: lock.generation,
            last_ticket: lock.last_ticket,
            slot: StoredSlot::of(lock),
            claim: lock.ownership.claim.clone(),
            commits: String::new(),
            chain: Some(ChainEnd::default()),
        };
        pairs.push((keys.lock(&lock.key), text(&lock.key.0, &head, faults)?));
        if let Some(claim) = &lock.ownership.claim {
            let approvals = lock.ownership.approvals.iter();
            let approvals = approvals.map(|approval| Approval { used_by: None, ..approval.clone() }).collect();
            let chain = Some(ChainEnd::default());
            let (seals, created) = seals::moved(&lock.ownership.approvals);
            // More than one request of etcd takes are judged by their marks until the owner's next
            // word.
            let (seals, created) = if created.len() < PAGE { (seals, created) } else { Default::default() };
            let words = ApprovalSet { claim: Some(claim.uid.clone()), approvals, seals, commits: String::new(), chain };
            let open = created.iter().map(|approval| (keys.used(&lock.key, approval), seals::OPEN.to_owned()));
            let words = (keys.approvals(&lock.key), text(&lock.key.0, &words, faults)?);
            together.push(std::iter::once(words).chain(open).collect());
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
    let mut before = ChainEnd::default();
    let lines = store_chain::add(&ChainName::default(), &mut before, &contents.audit);
    for (number, line) in lines.iter().enumerate() {
        let event = &line.event;
        let key = format!("{}moved-{number:010}", keys.audit_all(&event.id));
        let old = keys.old(event.at, &format!("moved-line-{number:010}"));
        pairs.push((old, text(&event.uid.0, &[&key], faults)?));
        pairs.push((key, text(&event.uid.0, &[line], faults)?));
    }
    if !read(store).await?.is_empty() {
        return Err(faults.in_use());
    }
    for some in together.iter().map(Vec::as_slice).chain(pairs.chunks(PAGE)) {
        let unless_there = some.iter().map(|(key, _)| Compare::create_revision(key.clone(), CompareOp::Equal, 0));
        let puts = some.iter().map(|(key, value)| TxnOp::put(key.clone(), value.clone(), None::<PutOptions>));
        let txn = Txn::new().when(unless_there.collect::<Vec<_>>()).and_then(puts.collect::<Vec<_>>());
        if !link.patience.once(link.txn(txn)).await?.succeeded() {
            return Err(faults.in_use());
        }
    }
    let meta = Meta { store_id: contents.store_id.clone(), schema: SCHEMA, before: Some(before) };
    let put = TxnOp::put(keys.meta(), text("meta", &meta, faults)?, None::<PutOptions>);
    link.patience.once(link.txn(Txn::new().and_then([put]))).await?;
    Ok(())
}

fn place(record: &Maintenance, key: &str, store: &EtcdStore) -> Result<String, StoreError> {
    let place = RecordPointer { lock_key: record.lock_key.clone(), uid: record.uid.clone(), record: key.to_owned() };
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
    // One whose older lines are not chained yet is migrated once more.
    let schema =
        meta.map_or(SCHEMA, |meta| if meta.before.is_some() { meta.schema } else { meta.schema.min(SCHEMA - 1) });
    Ok(Usage { schema, newest: SCHEMA, alive })
}
