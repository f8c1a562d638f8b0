//! Wakes waiters: one watch per process for all locks.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{StreamExt as _, future::join_all, stream::BoxStream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    api::{ListParams, WatchEvent, WatchParams},
    core::PartialObjectMeta,
};
use tokio_util::sync::CancellationToken;

use super::{
    link::{StoreClient, revision},
    objects,
};
use crate::{
    maintenance::ids::LockKey,
    store::{StoreError, watchers::Watchers},
};

/// The first and the longest pause after a failure.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// The poll interval while the watch works, because a silent watch looks like one without events.
const LOOK: Duration = Duration::from_secs(15);

/// How long one watch lasts, in seconds. The server then ends it, and the next watch continues.
const ROUND: u32 = 240;

/// Up to this many locks are read individually.
const ONE_BY_ONE: usize = 8;

type Events = BoxStream<'static, kube::Result<WatchEvent<PartialObjectMeta<ConfigMap>>>>;

/// A store handle's watch.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) link: Arc<StoreClient>,
    pub(super) watchers: Watchers,
    pub(super) stop: CancellationToken,
}

/// How an event affects the watch.
enum WatchOutcome {
    Fine,
    /// The watch ended; the next watch continues after this revision.
    Over,
    /// Events were lost (410): poll all locks.
    TooOld,
}

/// Watches until the last watcher or the store is closed.
pub(super) async fn run(watch: Weak<Watch>) {
    let mut events: Option<Events> = None;
    // The watch's position, or `None` if all locks must be polled.
    let mut from: Option<String> = None;
    let mut pause = PAUSE.0;
    while let Some(this) = watch.upgrade() {
        if this.watchers.nobody_left() {
            break;
        }
        let (clock, stop) = (Arc::clone(&this.link.clock), this.stop.clone());
        if events.is_none() {
            match open(&this, &mut from).await {
                Ok(opened) => events = Some(opened),
                Err(error) => {
                    tracing::debug!(%error, "the coordination store cannot be watched");
                    this.watchers.wake_all();
                    from = None;
                    drop(this);
                    tokio::select! {
                        () = clock.sleep(pause) => {}
                        () = stop.cancelled() => break,
                    }
                    pause = (pause * 2).min(PAUSE.1);
                    continue;
                }
            }
        }
        drop(this);
        let Some(open) = events.as_mut() else { continue };
        tokio::select! {
            event = open.next() => {
                let Some(this) = watch.upgrade() else { break };
                let heard = heard(&this, event, &mut from);
                if matches!(heard, WatchOutcome::Fine) {
                    pause = PAUSE.0;
                    continue;
                }
                if matches!(heard, WatchOutcome::TooOld) {
                    from = None;
                }
                events = None;
                drop(this);
                // Do not loop on a server that ends every watch immediately.
                tokio::select! {
                    () = clock.sleep(pause) => {}
                    () = stop.cancelled() => break,
                }
                pause = (pause * 2).min(PAUSE.1);
            }
            () = clock.sleep(LOOK) => {
                let Some(this) = watch.upgrade() else { break };
                if look(&this).await.is_err() {
                    this.watchers.wake_all();
                    (events, from) = (None, None);
                }
            }
            () = stop.cancelled() => break,
        }
    }
}

/// Opens a watch after the last event or the last poll.
async fn open(watch: &Watch, from: &mut Option<String>) -> Result<Events, StoreError> {
    let link = &watch.link;
    let start = if let Some(start) = from.clone() {
        start
    } else {
        let one = &ListParams::default().labels(&objects::all("lock")).limit(1);
        let listed = link.maps("list", None, |all| async move { all.list_metadata(one).await }).await;
        let listed = listed.map_err(|error| link.faults.cluster(&error))?;
        let start = listed.metadata.resource_version.unwrap_or_default();
        look(watch).await?;
        from.insert(start).clone()
    };
    let how = WatchParams { bookmarks: true, ..WatchParams::default() };
    let (how, start) = (&how.labels(&objects::all("lock")).timeout(ROUND), start.as_str());
    let opened = link.maps("watch", None, |all| async move { Ok(all.watch_metadata(how, start).await?.boxed()) }).await;
    opened.map_err(|error| link.faults.cluster(&error))
}

/// Wakes an event's watchers.
fn heard(
    watch: &Watch,
    event: Option<kube::Result<WatchEvent<PartialObjectMeta<ConfigMap>>>>,
    from: &mut Option<String>,
) -> WatchOutcome {
    match event {
        Some(Ok(WatchEvent::Added(map) | WatchEvent::Modified(map) | WatchEvent::Deleted(map))) => {
            let (name, version) = (map.metadata.name.as_deref(), map.metadata.resource_version.clone());
            if let Ok(revision) = revision(&map.metadata, &watch.link.faults) {
                let keys = watch.watchers.keys();
                for key in keys.iter().filter(|key| name == Some(objects::lock(key).as_str())) {
                    watch.watchers.moved(key, revision);
                }
            }
            *from = version;
            WatchOutcome::Fine
        }
        Some(Ok(WatchEvent::Bookmark(mark))) => {
            *from = Some(mark.metadata.resource_version);
            WatchOutcome::Fine
        }
        Some(Ok(WatchEvent::Error(status))) if status.code == 410 => WatchOutcome::TooOld,
        Some(Ok(WatchEvent::Error(_)) | Err(_)) | None => WatchOutcome::Over,
    }
}

/// Polls the revisions of all watched locks.
async fn look(watch: &Watch) -> Result<(), StoreError> {
    let (link, keys) = (&watch.link, watch.watchers.keys());
    let found = if keys.len() <= ONE_BY_ONE {
        let names: Vec<String> = keys.iter().map(objects::lock).collect();
        let found = join_all(names.iter().map(|name| link.get_metadata(name))).await;
        found.into_iter().filter_map(Result::transpose).collect::<Result<Vec<_>, _>>()?
    } else {
        link.list_metadata(&objects::all("lock")).await?
    };
    let named: std::collections::HashMap<String, LockKey> =
        keys.into_iter().map(|key| (objects::lock(&key), key)).collect();
    for metadata in &found {
        if let Some(key) = metadata.name.as_ref().and_then(|name| named.get(name)) {
            watch.watchers.moved(key, revision(metadata, &link.faults)?);
        }
    }
    Ok(())
}
