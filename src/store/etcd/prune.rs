//! Forgetting what is old.
//!
//! What is below `old/` says where to look, in the order of time, and nothing else: more roles than those that delete have
//! been able to write there. So a key is deleted when it is one of history by its form, when what it holds says that it is
//! over and old, and in a transaction on the condition that it still holds that.

use std::collections::HashSet;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, SortOrder, SortTarget, Txn, TxnOp};
use jiff::{SignedDuration, Timestamp};

use super::{
    EtcdStore,
    rows::{self, Place, Reads, json},
    whole::{PAGE, pages},
};
use crate::{
    maintenance::{lock::AuditEvent, state::Maintenance},
    store::StoreError,
};

/// A process that has been gone for less is remembered: a place in the queue may be kept for it.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(24);

/// What may become of one key.
enum Fate {
    /// It is deleted, with the pointer that leads to it, if it still is as it was seen.
    Old(Vec<(String, i64)>),
    /// It is left alone until it is old enough.
    Young,
    /// It is not there, or does not belong to history.
    Nothing,
}

/// Forgets what became history before a moment, and when those were last seen who are gone for longer.
pub(super) async fn prune(store: &EtcdStore, before: Timestamp, now: Timestamp, most: u32) -> Result<u64, StoreError> {
    let (link, keys) = (&store.link, &store.link.keys);
    let oldest = GetOptions::new().with_range(keys.old_before(before)).with_limit(i64::from(most));
    let oldest = oldest.with_sort(SortTarget::Key, SortOrder::Ascend);
    let found = link.get(keys.all("old"), oldest).await?;
    let mut gone = 0;
    for pair in found.kvs() {
        gone += follow(store, pair, before).await?;
    }
    gone += told(store, before, most).await?;
    if gone == 0 {
        gone = forget_processes(store, before.min(now.checked_sub(REMEMBERED).unwrap_or(Timestamp::MIN)), most).await?;
    }
    Ok(gone)
}

/// Forgets what one key below `old/` leads to, and that key.
async fn follow(store: &EtcdStore, pair: &KeyValue, before: Timestamp) -> Result<u64, StoreError> {
    let keys = &store.link.keys;
    let named: Vec<String> = serde_json::from_slice(pair.value()).unwrap_or_default();
    let named: Vec<String> = named.into_iter().filter(|key| keys.is_history(key)).collect();
    let (mut doomed, mut young) = (Vec::new(), false);
    for key in named {
        match fate(store, key, before).await? {
            Fate::Old(these) => doomed.extend(these),
            Fate::Young => young = true,
            Fate::Nothing => {}
        }
    }
    let itself = (String::from_utf8_lossy(pair.key()).into_owned(), pair.mod_revision());
    if !young {
        doomed.push(itself);
    }
    delete(store, &doomed).await
}

/// What a key of history holds decides.
async fn fate(store: &EtcdStore, key: String, before: Timestamp) -> Result<Fate, StoreError> {
    let (keys, faults) = (&store.link.keys, &store.link.faults);
    let Some(pair) = store.get(key.clone()).await? else { return Ok(Fate::Nothing) };
    let this = (key.clone(), pair.mod_revision());
    if key.starts_with(&keys.all("audit")) {
        let Ok(lines) = json::<Vec<AuditEvent>>(&pair, faults) else { return Ok(Fate::Nothing) };
        return Ok(if are_old(&lines, before) { Fate::Old(vec![this]) } else { Fate::Young });
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
        && json::<Place>(&pair, faults).is_ok_and(|place| place.record == key)
    {
        both.push((pointer, pair.mod_revision()));
    }
    Ok(Fate::Old(both))
}

fn are_old(lines: &[AuditEvent], before: Timestamp) -> bool {
    lines.iter().all(|line| line.at < before)
}

/// Deletes keys that still are as they were seen. How many of them.
async fn delete(store: &EtcdStore, doomed: &[(String, i64)]) -> Result<u64, StoreError> {
    let mut gone = 0;
    for some in doomed.chunks(PAGE) {
        let same = some.iter().map(|(key, seen)| Compare::mod_revision(key.clone(), CompareOp::Equal, *seen));
        let deletes = some.iter().map(|(key, _)| TxnOp::delete(key.clone(), None));
        let txn = Txn::new().when(same.collect::<Vec<_>>()).and_then(deletes.collect::<Vec<_>>());
        if store.link.txn(txn).await?.succeeded() {
            gone += some.len() as u64;
        }
    }
    Ok(gone)
}

/// Forgets old lines of the owners' words, those first that came first. Keys there that cannot be read go, too.
async fn told(store: &EtcdStore, before: Timestamp, most: u32) -> Result<u64, StoreError> {
    let first = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
    let found = store.link.get(store.link.keys.all("told"), first.with_limit(i64::from(most))).await?;
    let old = found.kvs().iter().filter(|pair| {
        serde_json::from_slice::<Vec<AuditEvent>>(pair.value()).map_or(true, |lines| are_old(&lines, before))
    });
    let old = old.map(|pair| (String::from_utf8_lossy(pair.key()).into_owned(), pair.mod_revision()));
    delete(store, &old.collect::<Vec<_>>()).await
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
        // Each for itself: one that came back, or was noted again, is left alone, and no other with it.
        gone += delete(store, &[one]).await?;
    }
    Ok(gone)
}
