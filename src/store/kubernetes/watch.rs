//! Waking up who waits: one watch for all locks of a process.

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

/// The pauses after a failure: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Looked for this often although the server tells, because nobody else would notice a watch that
/// fell silent.
const LOOK: Duration = Duration::from_secs(15);

/// For how long one watch goes on, in seconds; the server ends it then, and the next one goes on
/// where it was.
const ROUND: u32 = 240;

/// Locks are looked at one by one up to so many.
const ONE_BY_ONE: usize = 8;

type Events = BoxStream<'static, kube::Result<WatchEvent<PartialObjectMeta<ConfigMap>>>>;

/// What the watch of one store handle needs.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) link: Arc<StoreClient>,
    pub(super) watchers: Watchers,
    pub(super) stop: CancellationToken,
}

/// What one event means for the watch.
enum WatchOutcome {
    Fine,
    /// It ended; the next one begins after this revision.
    Over,
    /// What is between is forgotten (410): all has to be looked at again.
    TooOld,
}

/// Watches until nobody is interested any more or the store is closed.
pub(super) async fn run(watch: Weak<Watch>) {
    let mut events: Option<Events> = None;
    // Where the watch is; nothing when all has to be looked at.
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
                // A server that ends each watch at once is not asked without end.
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

/// Begins right after what was heard last, or after what a look has found.
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

/// Tells the watchers.
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

/// Looks at which revision each watched lock is.
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
