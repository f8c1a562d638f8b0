//! A watch that is cut off while its next revisions are compacted.

use std::time::Duration;

use terraform_provider_metal::store::Store;

use crate::{
    bench::{join, soon},
    records::{id, key, request},
    support::toxiproxy::Toxiproxy,
    talk::enqueue,
};

/// Asserts that a watcher behind `way` is woken for changes that the API server compacted during
/// an outage. The watch itself must recover within `patience`, which is shorter than its poll
/// interval.
pub async fn outlives(
    direct: &dyn Store,
    watching: &dyn Store,
    way: &Toxiproxy,
    etcd: &mut etcd_client::Client,
    patience: Duration,
) {
    let mut changes = watching.changes(&key("k"));
    join(direct, &key("k"), &request("before", 1)).await.unwrap();
    soon("the first change", changes.changed()).await.unwrap();
    for round in 0..3 {
        way.cut();
        // Two changes, so that the revision after the last received one is compacted.
        let missed = format!("missed{round}");
        for name in [format!("also{round}"), missed.clone()] {
            enqueue(direct, &key("k"), &request(&name, 2)).await.unwrap();
        }
        let revision = etcd.get("nothing", None).await.unwrap().header().unwrap().revision();
        etcd.compact(revision, None).await.unwrap();
        way.mend();
        // Like a waiter: reads, and reads again after each notification.
        loop {
            changes.mark_unchanged();
            let view = watching.view(&key("k")).await.unwrap();
            if view.lock.active.iter().any(|record| record.id == id(&missed)) {
                break;
            }
            soon("the change that was missed", changes.changed()).await.unwrap();
        }
        let mut fence = watching.changes(&key("fence"));
        enqueue(direct, &key("fence"), &request(&format!("fence{round}"), 3)).await.unwrap();
        tokio::time::timeout(patience, fence.changed()).await.expect("the watch reconnects").unwrap();
    }
}
