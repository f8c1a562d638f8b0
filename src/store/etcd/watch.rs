//! Notices what other processes commit: one stream for all keys of a process.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use etcd_client::{Txn, TxnOp, WatchFilterType, WatchOptions, WatchStream};
use tokio_util::sync::CancellationToken;

use super::{keys::Keys, link::StoreClient, rows::Reads};
use crate::{
    maintenance::ids::LockKey,
    store::{StoreError, watchers::Watchers},
};

/// How long to leave a cluster alone that could not be watched.
const PAUSE_AFTER_FAULT: Duration = Duration::from_millis(500);

/// Looked for this often although etcd tells, because nobody else would notice a stream that fell
/// silent.
const LOOK: Duration = Duration::from_secs(15);

/// How many keys are read in one transaction: two operations each, of at most 128.
const KEYS_AT_ONCE: usize = 60;

/// What the watch of one store handle needs.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) link: Arc<StoreClient>,
    pub(super) watchers: Watchers,
    pub(super) stop: CancellationToken,
}

/// Watches until nobody is interested any more or the store is closed.
pub(super) async fn run(watch: Weak<Watch>) {
    let mut stream: Option<WatchStream> = None;
    while let Some(this) = watch.upgrade() {
        if this.watchers.nobody_left() {
            break;
        }
        let (clock, stop) = (Arc::clone(&this.link.clock), this.stop.clone());
        // Whoever asks for it anew has seen everything up to there: what was compacted away
        // meanwhile, too.
        if stream.is_none() {
            stream = match open(&this).await {
                Ok(opened) => Some(opened),
                Err(error) => {
                    tracing::debug!(%error, "the coordination store cannot be watched");
                    this.watchers.wake_all();
                    drop(this);
                    tokio::select! {
                        () = clock.sleep(PAUSE_AFTER_FAULT) => continue,
                        () = stop.cancelled() => break,
                    }
                }
            };
        }
        drop(this);
        let Some(open) = stream.as_mut() else { continue };
        tokio::select! {
            message = open.message() => {
                let Some(this) = watch.upgrade() else { break };
                if !matches!(&message, Ok(Some(reply)) if heard(&this, reply)) {
                    // Compacted, cancelled or cut: begins anew from what there is now.
                    stream = None;
                }
            }
            () = clock.sleep(LOOK) => {
                let Some(this) = watch.upgrade() else { break };
                if look(&this).await.is_err() {
                    this.watchers.wake_all();
                    stream = None;
                }
            }
            () = stop.cancelled() => break,
        }
    }
}

/// Begins right after what a look has found.
async fn open(watch: &Watch) -> Result<WatchStream, StoreError> {
    let link = &watch.link;
    link.patience
        .once(async {
            let revision = look(watch).await?;
            let fault = |error: etcd_client::Error| link.faults.etcd(&error);
            let from = || WatchOptions::new().with_prefix().with_start_revision(revision.saturating_add(1));
            let mut client = link.watches().await?;
            let mut stream = client.watch(link.keys.all("lock"), Some(from())).await.map_err(fault)?;
            stream.watch(link.keys.all("approvals"), Some(from())).await.map_err(fault)?;
            // A process that is gone makes room: those behind it need not wait for the longest that
            // it could have lived.
            let ends = from().with_filters([WatchFilterType::NoPut]);
            stream.watch(link.keys.all("alive"), Some(ends)).await.map_err(fault)?;
            Ok(stream)
        })
        .await
}

/// Tells the watchers. `false` when the stream is of no use any more.
fn heard(watch: &Watch, reply: &etcd_client::WatchResponse) -> bool {
    if reply.canceled() || reply.compact_revision() > 0 {
        return false;
    }
    let leases = watch.link.keys.all("alive");
    for event in reply.events() {
        let Some(pair) = event.kv() else { continue };
        if pair.key().starts_with(leases.as_bytes()) {
            watch.watchers.wake_all();
        } else if let Some(key) = Keys::last(pair.key()) {
            watch.watchers.moved(&LockKey(key), pair.mod_revision());
        }
    }
    true
}

/// Reads at which revision each watched key is, and returns the revision of the whole store before
/// that.
async fn look(watch: &Watch) -> Result<i64, StoreError> {
    let link = &watch.link;
    let keys = watch.watchers.keys();
    let mut first = None;
    for some in keys.chunks(KEYS_AT_ONCE) {
        let reads: Vec<TxnOp> = some
            .iter()
            .flat_map(|key| [TxnOp::get(link.keys.lock(key), None), TxnOp::get(link.keys.approvals(key), None)])
            .collect();
        let reply = link.txn(Txn::new().and_then(reads)).await?;
        first = first.or_else(|| reply.header().map(etcd_client::ResponseHeader::revision));
        let mut found = Reads::of(reply.op_responses());
        for key in some {
            let (lock, words) = (found.next(&link.faults)?, found.next(&link.faults)?);
            let moved = lock.kvs().iter().chain(words.kvs()).map(etcd_client::KeyValue::mod_revision).max();
            watch.watchers.moved(key, moved.unwrap_or(0));
        }
    }
    first.ok_or_else(|| link.faults.unavailable("no watch is open"))
}
