//! Maintains a copy per kind: a list, then consecutive watches, and a new list after a failure.
//!
//! A copy is current only while a watch is open. A watch that resumes after a failure reports
//! nothing until the next change, so missing events would stay unnoticed. Each failure therefore
//! leads to a new list.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt as _, stream::BoxStream};
use kube::{
    api::{ListParams, WatchEvent, WatchParams},
    core::{ApiResource, DynamicObject},
};
use tokio::sync::{Notify, watch};

use super::{
    Cluster, ClusterError, RequestInfo,
    kind::{ResourceRef, named},
};

/// The first and the longest pause after a failure.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// A watch's duration, in seconds. A silently broken connection is noticed after this time.
const WATCH: u32 = 60;

const PAGE: u32 = 500;

/// Namespace and name.
pub(super) type Key = (Option<String>, String);

pub(super) type Objects = BTreeMap<Key, Arc<DynamicObject>>;

type Events = BoxStream<'static, kube::Result<WatchEvent<DynamicObject>>>;

#[derive(Debug, Default)]
pub(super) enum WatchState {
    /// The copy is being requested.
    #[default]
    Asking,
    /// A watch is open.
    Watching,
    Failed(ClusterError),
}

/// A kind's last read objects.
#[derive(Debug, Default)]
pub(super) struct KindCache {
    pub(super) state: WatchState,
    pub(super) failures: u64,
    pub(super) objects: Objects,
    /// Objects by their text at the pointer.
    index: HashMap<String, BTreeSet<Key>>,
    /// The JSON pointer of the index.
    pub(super) pointer: Option<&'static str>,
}

/// A kind's copy, shared by its readers and its update task.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) cluster: Cluster,
    kind: ApiResource,
    /// The kind with its group, for messages.
    name: String,
    namespace: Option<String>,
    /// A field selector; `None` selects all objects.
    fields: Option<String>,
    known: Mutex<KindCache>,
    /// The number of changes to objects or state.
    pub(super) changes: watch::Sender<u64>,
    /// Wakes the update task during a pause, because a reader is waiting.
    pub(super) again: Notify,
}

impl Replica {
    pub(super) fn new(cluster: Cluster, kind: ApiResource, namespace: Option<String>, fields: Option<String>) -> Self {
        let (changes, _) = watch::channel(0);
        let name = named(&kind);
        Self { cluster, kind, name, namespace, fields, known: Mutex::default(), changes, again: Notify::new() }
    }

    pub(super) fn known(&self) -> MutexGuard<'_, KindCache> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a request for the whole kind.
    pub(super) fn request(&self, verb: &'static str) -> RequestInfo<'_> {
        RequestInfo { verb, resource: &self.name, namespace: self.namespace.as_deref(), name: None }
    }

    fn all(&self) -> ResourceRef<'_> {
        ResourceRef { kind: &self.kind, namespace: self.namespace.as_deref(), name: None }
    }

    fn change(&self, change: impl FnOnce(&mut KindCache)) {
        change(&mut self.known());
        self.changes.send_modify(|count| *count += 1);
    }

    /// Updates the copy until the task ends.
    pub(super) async fn keep(self: Arc<Self>) {
        let clock = Arc::clone(self.cluster.clock());
        let mut pause = PAUSE.0;
        let mut from = None;
        loop {
            let began = clock.monotonic();
            let round = self.round(&mut from).await;
            let ended = round.is_ok();
            if let Err(problem) = round {
                from = None;
                self.change(|known| {
                    known.failures += 1;
                    known.state = WatchState::Failed(problem);
                });
            }
            if clock.monotonic().saturating_sub(began) >= PAUSE.1 {
                pause = PAUSE.0;
                if ended {
                    continue;
                }
            }
            // A pause protects a server that ends each watch immediately.
            tokio::select! {
                () = clock.sleep(pause) => {}
                () = self.again.notified() => {}
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Runs one watch. `from` is its start version; without it, everything is listed first.
    async fn round(&self, from: &mut Option<String>) -> Result<(), ClusterError> {
        self.known().state = WatchState::Asking;
        let start = match from.take() {
            Some(start) => start,
            None => self.read_all().await?,
        };
        let how = WatchParams::default().timeout(WATCH);
        let how = &WatchParams { field_selector: self.fields.clone(), ..how };
        let opened = self.cluster.ask("watch", self.all(), |all| {
            let start = &start;
            async move { Ok(all.watch(how, start).await?.boxed()) }
        });
        let mut events: Events = opened.await?;
        self.change(|known| known.state = WatchState::Watching);
        let failed = |error| self.cluster.failure(error, self.request("watch"));
        let mut at = start;
        let ended = loop {
            match events.next().await {
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    at = object.metadata.resource_version.clone().unwrap_or(at);
                    self.change(|known| known.put(key(&object), Some(Arc::new(object))));
                }
                Some(Ok(WatchEvent::Deleted(object))) => {
                    at = object.metadata.resource_version.clone().unwrap_or(at);
                    self.change(|known| known.put(key(&object), None));
                }
                Some(Ok(WatchEvent::Bookmark(mark))) => at = mark.metadata.resource_version,
                // The server discarded the history: this requires a new list but is not a failure.
                Some(Ok(WatchEvent::Error(status))) if status.code == 410 => break None,
                Some(Ok(WatchEvent::Error(status))) => return Err(failed(kube::Error::Api(status))),
                Some(Err(error)) => return Err(failed(error)),
                None => break Some(at),
            }
        };
        // Readers must wait, because changes before the next watch are not visible.
        self.known().state = WatchState::Asking;
        *from = ended;
        Ok(())
    }

    /// Lists all objects and returns the version at which a watch must start.
    async fn read_all(&self) -> Result<String, ClusterError> {
        let mut read = Objects::new();
        let mut how = ListParams { field_selector: self.fields.clone(), ..ListParams::default().limit(PAGE) };
        loop {
            let next = &how;
            let page = self.cluster.ask("list", self.all(), |all| async move { all.list(next).await }).await?;
            read.extend(page.items.into_iter().map(|object| (key(&object), Arc::new(object))));
            if let Some(next) = page.metadata.continue_.filter(|next| !next.is_empty()) {
                how = how.continue_token(&next);
                continue;
            }
            self.known().replace(read);
            return page.metadata.resource_version.filter(|version| !version.is_empty()).ok_or_else(|| {
                ClusterError::Protocol {
                    address: self.cluster.address().into(),
                    request: self.request("list").to_string().into(),
                    what: "the list lacks a resourceVersion".into(),
                }
            });
        }
    }
}

fn key(object: &DynamicObject) -> Key {
    (object.metadata.namespace.clone(), object.metadata.name.clone().unwrap_or_default())
}

impl KindCache {
    /// Returns the objects with this text at the pointer.
    pub(super) fn with(&self, text: &str) -> Vec<Arc<DynamicObject>> {
        let keys = self.index.get(text).into_iter().flatten();
        keys.filter_map(|key| self.objects.get(key).cloned()).collect()
    }

    /// Replaces the copy, which drops deleted objects.
    fn replace(&mut self, read: Objects) {
        self.objects.clear();
        self.index.clear();
        for (key, object) in read {
            self.put(key, Some(object));
        }
    }

    fn put(&mut self, key: Key, object: Option<Arc<DynamicObject>>) {
        let before = match &object {
            Some(object) => self.objects.insert(key.clone(), Arc::clone(object)),
            None => self.objects.remove(&key),
        };
        let Some(pointer) = self.pointer else { return };
        let text = |object: &DynamicObject| object.data.pointer(pointer)?.as_str().map(str::to_owned);
        let (before, now) = (before.and_then(|it| text(&it)), object.and_then(|it| text(&it)));
        if let Some(before) = before.filter(|before| Some(before) != now.as_ref())
            && let Some(keys) = self.index.get_mut(&before)
        {
            keys.remove(&key);
            if keys.is_empty() {
                self.index.remove(&before);
            }
        }
        if let Some(now) = now {
            self.index.entry(now).or_default().insert(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, server: &str) -> (Key, Arc<DynamicObject>) {
        let whole = json!({
            "apiVersion": "v1", "kind": "Thing", "metadata": { "name": name }, "spec": { "serverRef": { "name": server } },
        });
        let object: DynamicObject = serde_json::from_value(whole).unwrap();
        (key(&object), Arc::new(object))
    }

    #[test]
    fn the_index_follows_every_change() {
        let mut known = KindCache { pointer: Some("/spec/serverRef/name"), ..KindCache::default() };
        let mut seen = |change: &dyn Fn(&mut KindCache)| {
            change(&mut known);
            let mut found: Vec<String> = known
                .index
                .iter()
                .flat_map(|(text, keys)| keys.iter().map(move |key| format!("{text}:{}", key.1)))
                .collect();
            found.sort();
            (found.join(" "), known.objects.len())
        };
        let put = |known: &mut KindCache, (key, object): (Key, Arc<DynamicObject>)| known.put(key, Some(object));
        let read = |known: &mut KindCache| known.replace([object("a", "n1"), object("b", "n1")].into());
        assert_eq!(seen(&read), ("n1:a n1:b".to_owned(), 2));
        assert_eq!(seen(&|known| put(known, object("a", "n2"))), ("n1:b n2:a".to_owned(), 2));
        assert_eq!(seen(&|known| known.put(object("b", "n1").0, None)), ("n2:a".to_owned(), 1));
        // A new list replaces the copy and drops deleted objects.
        assert_eq!(seen(&|known| known.replace([object("c", "n3")].into())), ("n3:c".to_owned(), 1));
        assert_eq!(seen(&|known| known.replace(Objects::new())), (String::new(), 0));
    }
}
