//! All objects of one kind, as a list followed by one watch: however many ask, the API server is asked once.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt as _;
use kube::{
    Api,
    core::{ApiResource, DynamicObject},
    runtime::{
        WatchStreamExt as _,
        utils::Backoff,
        watcher::{self, Event},
    },
};
use tokio::{
    sync::{OnceCell, watch},
    task::AbortHandle,
};

use super::{Cluster, ClusterError, Request};
use crate::clock::within;

/// The pauses after a failure: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// How long one watch lasts, in seconds: one that is cut without a word is noticed that late.
const WATCH: u32 = 60;

/// How long a reader waits for the first list.
const FIRST_LIST: Duration = Duration::from_secs(15);

/// Namespace and name.
type Key = (Option<String>, String);

type Objects = BTreeMap<Key, Arc<DynamicObject>>;

/// What is known of a kind.
#[derive(Debug, Default)]
struct Known {
    /// The objects; `None` before the first list.
    objects: Option<Objects>,
    /// A list that is being read.
    filling: Objects,
    /// Which objects have a text at the mirror's pointer.
    index: HashMap<String, BTreeSet<Key>>,
    /// Where that text is.
    pointer: Option<&'static str>,
    /// What went wrong since the last word from the server.
    problem: Option<ClusterError>,
}

/// A local copy of all objects of one kind. Nothing is asked before the first reader.
pub struct Mirror {
    cluster: Cluster,
    resource: ApiResource,
    /// With its group, for messages.
    name: String,
    namespace: Option<String>,
    known: Arc<Mutex<Known>>,
    changes: watch::Sender<u64>,
    task: OnceCell<AbortHandle>,
    asking: tokio::sync::Mutex<()>,
    /// Counts answers, so that whoever waited for one takes it.
    asked: AtomicU64,
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror").field("resource", &self.resource.plural).finish_non_exhaustive()
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.close();
    }
}

impl Mirror {
    /// All objects of that kind, in one namespace or in all of them.
    #[must_use]
    pub fn new(cluster: Cluster, resource: ApiResource, namespace: Option<String>) -> Self {
        let (changes, _) = watch::channel(0);
        Self {
            cluster,
            name: named(&resource),
            resource,
            namespace,
            known: Arc::default(),
            changes,
            task: OnceCell::new(),
            asking: tokio::sync::Mutex::default(),
            asked: AtomicU64::new(0),
        }
    }

    /// The same, found by the text at a JSON pointer too: see [`Self::by`].
    #[must_use]
    pub fn indexed(self, pointer: &'static str) -> Self {
        self.known().pointer = Some(pointer);
        self
    }

    /// Those with this text at the pointer of [`Self::indexed`]. As quick with thousands of others as without.
    pub async fn by(&self, text: &str) -> Result<Vec<Arc<DynamicObject>>, ClusterError> {
        self.look(|known| {
            let objects = known.objects.as_ref();
            let keys = known.index.get(text).into_iter().flatten();
            keys.filter_map(|key| objects?.get(key).cloned()).collect()
        })
        .await
    }

    /// Counts changes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Ends the watch.
    pub fn close(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    /// All of them. An error when they cannot be read now; what was known before is not passed off as what is.
    pub async fn all(&self) -> Result<Vec<Arc<DynamicObject>>, ClusterError> {
        self.read(|objects| objects.values().cloned().collect()).await
    }

    /// One of them.
    pub async fn get(&self, namespace: Option<&str>, name: &str) -> Result<Option<Arc<DynamicObject>>, ClusterError> {
        let key = (namespace.map(str::to_owned), name.to_owned());
        self.read(|objects| objects.get(&key).cloned()).await
    }

    async fn read<T>(&self, pick: impl Fn(&Objects) -> T) -> Result<T, ClusterError> {
        self.look(|known| pick(known.objects.as_ref().unwrap_or(&Objects::new()))).await
    }

    async fn look<T>(&self, pick: impl Fn(&Known) -> T) -> Result<T, ClusterError> {
        self.task.get_or_try_init(|| self.start()).await?;
        let mut changes = self.changes.subscribe();
        let first = async {
            loop {
                changes.borrow_and_update();
                let (has, problem) = {
                    let known = self.known();
                    (known.objects.is_some(), known.problem.clone())
                };
                match (has, problem) {
                    (true, None) => return Ok(()),
                    (true, Some(_)) => return self.ask_again().await,
                    (false, Some(problem)) => return Err(problem),
                    (false, None) => {
                        if changes.changed().await.is_err() {
                            return Ok(());
                        }
                    }
                }
            }
        };
        match within(FIRST_LIST, first).await {
            Some(result) => result?,
            None => return Err(ClusterError::silence(self.listing(), &self.cluster.address(), FIRST_LIST)),
        }
        Ok(pick(&self.known()))
    }

    /// The watch broke, and says nothing when it goes on without a change: one small request tells whether the server is
    /// there again.
    async fn ask_again(&self) -> Result<(), ClusterError> {
        let before = self.asked.load(Ordering::SeqCst);
        let _one_at_a_time = self.asking.lock().await;
        let known = self.known().problem.clone();
        // Hundreds may wait for the same answer, and each would wait as long as a silent server takes.
        if known.is_none() || self.asked.load(Ordering::SeqCst) != before {
            return known.map_or(Ok(()), Err);
        }
        let asked = self
            .cluster
            .call(self.listing(), |client| {
                let api: Api<DynamicObject> = self.api(client);
                async move { api.list_metadata(&kube::api::ListParams::default().limit(1)).await }
            })
            .await;
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut known = self.known();
        known.problem = asked.err();
        known.problem.clone().map_or(Ok(()), Err)
    }

    fn listing(&self) -> Request<'_> {
        Request { verb: "list", resource: &self.name, namespace: self.namespace.as_deref(), name: None }
    }

    fn api(&self, client: kube::Client) -> Api<DynamicObject> {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &self.resource),
            None => Api::all_with(client, &self.resource),
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn start(&self) -> Result<AbortHandle, ClusterError> {
        let api = self.api(self.cluster.client().await?);
        let (known, changes) = (Arc::clone(&self.known), self.changes.clone());
        let (cluster, resource) = (self.cluster.clone(), self.resource.clone());
        let task = tokio::spawn(async move {
            let events =
                watcher::watcher(api, watcher::Config::default().timeout(WATCH)).backoff(Pauses { next: PAUSE.0 });
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.next().await {
                {
                    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                    match event {
                        Ok(event) => known.take(event),
                        Err(error) => known.problem = problem(error, &resource, &cluster.address()),
                    }
                }
                changes.send_modify(|count| *count += 1);
            }
        });
        Ok(task.abort_handle())
    }
}

impl Known {
    fn put(&mut self, key: Key, object: Option<Arc<DynamicObject>>) {
        let objects = self.objects.get_or_insert_default();
        let before = match &object {
            Some(object) => objects.insert(key.clone(), Arc::clone(object)),
            None => objects.remove(&key),
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

    fn take(&mut self, event: Event<DynamicObject>) {
        let key = |object: &DynamicObject| {
            (object.metadata.namespace.clone(), object.metadata.name.clone().unwrap_or_default())
        };
        match event {
            // Asked for, not yet answered.
            Event::Init => return self.filling.clear(),
            Event::InitApply(object) => drop(self.filling.insert(key(&object), Arc::new(object))),
            Event::InitDone => {
                self.objects = None;
                self.index.clear();
                for (key, object) in std::mem::take(&mut self.filling) {
                    self.put(key, Some(object));
                }
                self.objects.get_or_insert_default();
            }
            Event::Apply(object) => self.put(key(&object), Some(Arc::new(object))),
            Event::Delete(object) => self.put(key(&object), None),
        }
        self.problem = None;
    }
}

/// What a failed list or watch means; `None` when it goes on by itself at once.
fn problem(error: watcher::Error, resource: &ApiResource, address: &str) -> Option<ClusterError> {
    let name = named(resource);
    let request = |verb| Request { verb, resource: &name, namespace: None, name: None };
    Some(match error {
        watcher::Error::InitialListFailed(error) => ClusterError::classify(error, request("list"), address),
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
            ClusterError::classify(error, request("watch"), address)
        }
        // The watch is too old; the next event is a new list.
        watcher::Error::WatchError(status) if status.code == 410 => return None,
        watcher::Error::WatchError(status) => {
            ClusterError::classify(kube::Error::Api(status), request("watch"), address)
        }
        watcher::Error::NoResourceVersion => ClusterError::Protocol {
            address: address.to_owned(),
            request: request("list").to_string(),
            what: "the list has no resourceVersion".to_owned(),
        },
    })
}

/// A kind as a role names it.
fn named(resource: &ApiResource) -> String {
    if resource.group.is_empty() { resource.plural.clone() } else { format!("{}.{}", resource.plural, resource.group) }
}

/// Pauses that double.
struct Pauses {
    next: Duration,
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.next;
        self.next = (pause * 2).min(PAUSE.1);
        Some(pause)
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.next = PAUSE.0;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, server: &str) -> DynamicObject {
        let whole = json!({
            "apiVersion": "v1", "kind": "Thing", "metadata": { "name": name }, "spec": { "serverRef": { "name": server } },
        });
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn the_index_follows_every_change() {
        let mut known = Known { pointer: Some("/spec/serverRef/name"), ..Known::default() };
        let mut seen = |events: Vec<Event<DynamicObject>>| {
            for event in events {
                known.take(event);
            }
            let mut found: Vec<String> = known
                .index
                .iter()
                .flat_map(|(text, keys)| keys.iter().map(move |key| format!("{text}:{}", key.1)))
                .collect();
            found.sort();
            (found.join(" "), known.objects.as_ref().map_or(0, BTreeMap::len))
        };
        let listed = vec![
            Event::Init,
            Event::InitApply(object("a", "n1")),
            Event::InitApply(object("b", "n1")),
            Event::InitDone,
        ];
        assert_eq!(seen(listed), ("n1:a n1:b".to_owned(), 2));
        assert_eq!(seen(vec![Event::Apply(object("a", "n2"))]), ("n1:b n2:a".to_owned(), 2));
        assert_eq!(seen(vec![Event::Delete(object("b", "n1"))]), ("n2:a".to_owned(), 1));
        // A list that is read anew replaces what was known, also what is gone since.
        let again = vec![Event::Init, Event::InitApply(object("c", "n3")), Event::InitDone];
        assert_eq!(seen(again), ("n3:c".to_owned(), 1));
        assert_eq!(seen(vec![Event::Init, Event::InitDone]), (String::new(), 0));
    }
}
