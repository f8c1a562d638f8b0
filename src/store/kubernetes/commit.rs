//! A commit as an update to one object.

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::Value;

use super::{
    fault::ErrorMapper,
    journal,
    link::{StoreClient, WriteResult},
    lock::{ApprovalSet, Head, Next, Row, text, whole},
    names::Names,
    objects,
};
use crate::store::{
    StoreError, capacity,
    history::{CARRIED, Entry},
    optimistic::CommitDelta,
};

/// The API server's limit for a ConfigMap, in bytes
/// (<https://kubernetes.io/docs/concepts/configuration/configmap/>).
const OBJECT: usize = 1024 * 1024;

/// The most pointers written concurrently.
pub(super) const AT_ONCE: usize = 16;

/// Writes a change if the lock is unchanged since the read. Returns its object, or `None` if
/// another process was first.
///
/// A process can die after any of these steps: copy history, take names, write the lock, delete
/// stale objects. Only the third step commits. Processes that find leftovers of the other steps
/// repair them.
pub(super) async fn commit(
    link: &StoreClient,
    names: &Names,
    row: &Row,
    change: &CommitDelta<'_>,
) -> Result<Option<Box<ConfigMap>>, StoreError> {
    let next = next(link, row, change).await?;
    let name = objects::lock(&change.after.key);
    let patch = next.patch(row, &link.faults)?;
    if change.adds() {
        let key = &change.after.key;
        capacity::check(&link.faults, key, size(&patch, row, &link.faults)?, OBJECT, "bytes")?;
        capacity::check(&link.faults, key, change.after.active.len(), capacity::RECORDS, "records")?;
    }
    let new = change.written().filter(|record| change.is_new(record)).map(|record| async {
        // Idempotent, so a lost reply does not repeat the whole change.
        let (name, pointer) = tokio::join!(
            link.patience.repeat(|| names.take(link, record, change.commit)),
            link.patience.repeat(|| names.point(link, record)),
        );
        name.and(pointer)
    });
    let mut taken = stream::iter(new.collect::<Vec<_>>()).buffer_unordered(AT_ONCE);
    while let Some(done) = taken.next().await {
        done?;
    }
    drop(taken);
    let written =
        if row.revision == 0 { link.create(&name, whole(patch)).await } else { link.patch(&name, &patch).await };
    match written? {
        WriteResult::Moved => Ok(None),
        WriteResult::Done(map) => {
            names.give_back(link, change).await;
            Ok(Some(map))
        }
    }
}

/// Returns a lock object's size with this patch. The API server counts the values in its
/// data.
fn size(patch: &Value, row: &Row, faults: &ErrorMapper) -> Result<usize, StoreError> {
    let lengths = |part: &str| -> usize {
        let values = patch[part].as_object().into_iter().flat_map(|data| data.values());
        values.filter_map(Value::as_str).map(str::len).sum()
    };
    let mut bytes = lengths("data") + lengths("binaryData") / 4 * 3;
    if patch["data"].get("approvals").is_none() {
        bytes += text("approvals", &row.lock.ownership.words(), faults)?.len();
    }
    for (part, entries) in [("outbox", &row.outbox), ("said", &row.said)] {
        if patch["data"].get(part).is_none() {
            bytes += text(part, entries, faults)?.len();
        }
    }
    Ok(bytes)
}

async fn next<'a>(link: &StoreClient, row: &Row, change: &'a CommitDelta<'_>) -> Result<Next<'a>, StoreError> {
    let after = change.after;
    let told_only = change.told_only();
    let entry = Entry {
        commit: change.commit.to_owned(),
        order: None,
        finished: change.finished.to_vec(),
        events: change.events.to_vec(),
    };
    let mut next = Next::default();
    if change.parts().words {
        let claim = after.ownership.claim.as_ref().map(|claim| claim.uid.clone());
        let (approvals, commits) = (after.ownership.words(), change.commits_of_words());
        next.approvals = Some(ApprovalSet { claim, approvals, commits });
    }
    let (mut outbox, mut said) = (row.outbox.clone(), row.said.clone());
    // A change to approvals only must not remove history, because an approver can only add. The
    // next other change moves it.
    let carried: Vec<Entry> = if told_only { Vec::new() } else { row.entries().cloned().collect() };
    if text("history", &carried, &link.faults)?.len() > CARRIED {
        let name = objects::journal(&after.key, row.revision);
        // Every process at the same revision writes the same journal.
        let object = journal::object(&name, &after.key, &carried, &link.faults)?;
        link.patience.repeat(|| link.create(&name, object.clone())).await?;
        said.clear();
        outbox.clear();
    }
    let moved = |old: &[Entry], new: &[Entry]| old.len() != new.len();
    let anything = !entry.finished.is_empty() || !entry.events.is_empty();
    if anything {
        if told_only { said.push(entry) } else { outbox.push(entry) }
    }
    if moved(&row.said, &said) {
        next.said = Some(said);
    }
    if !told_only {
        if anything || moved(&row.outbox, &outbox) {
            next.outbox = Some(outbox);
        }
        let records = change.written().next().is_some() || after.active.len() != row.lock.active.len();
        if records || row.revision == 0 {
            next.active = Some(&after.active);
        }
        next.head = Some(Head::of(after, change.commits()));
        next.used = after.ownership.uses();
        next.busy = Some(!after.is_idle());
    }
    Ok(next)
}
