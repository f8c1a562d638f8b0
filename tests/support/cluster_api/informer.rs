//! Counterpart of Go's controller runtime: a cache updated by a watch, and a queue of changed
//! names.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use kube::{
    ResourceExt as _,
    api::{Api, DynamicObject},
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender},
        watch,
    },
    task::JoinHandle,
};

use super::{
    super::{gate::Gate, ironcore::patience},
    objects::Failure,
};

/// A task that ends on drop.
pub struct Task(JoinHandle<()>);

impl Task {
    pub fn spawn(doing: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(doing))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Latest objects from a watch, by name.
#[derive(Clone, Default)]
pub struct Cache(Arc<Mutex<HashMap<String, DynamicObject>>>);

impl Cache {
    pub fn get(&self, name: &str) -> Option<DynamicObject> {
        self.0.lock().unwrap().get(name).cloned()
    }

    pub fn all(&self) -> Vec<DynamicObject> {
        self.0.lock().unwrap().values().cloned().collect()
    }
}

/// Updates a cache and notifies each listener of changed names. The receiver reports the initial
/// sync.
pub fn follow(
    api: Api<DynamicObject>,
    selector: &str,
    cache: Cache,
    listeners: Vec<UnboundedSender<String>>,
) -> (Task, watch::Receiver<bool>) {
    let config = watcher::Config::default().labels(selector);
    let (filled, is_filled) = watch::channel(false);
    let task = Task::spawn(async move {
        let mut events = watcher(api, config).default_backoff().boxed();
        let mut fresh = HashMap::new();
        let tell = |name: &str| listeners.iter().for_each(|one| drop(one.send(name.to_owned())));
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => fresh.clear(),
                Ok(watcher::Event::InitApply(object)) => drop(fresh.insert(object.name_any(), object)),
                Ok(watcher::Event::InitDone) => {
                    let all = std::mem::take(&mut fresh);
                    let names: Vec<String> = all.keys().cloned().collect();
                    *cache.0.lock().unwrap() = all;
                    let _ = filled.send(true);
                    for name in &names {
                        tell(name);
                    }
                }
                Ok(watcher::Event::Apply(object)) => {
                    let name = object.name_any();
                    cache.0.lock().unwrap().insert(name.clone(), object);
                    tell(&name);
                }
                Ok(watcher::Event::Delete(object)) => {
                    cache.0.lock().unwrap().remove(&object.name_any());
                    tell(&object.name_any());
                }
                Err(_) => {}
            }
        }
    });
    (task, is_filled)
}

/// A controller that reconciles one name at a time.
pub trait Turns: Send + Sync + 'static {
    fn turn(&self, name: &str) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Reconciles without an event.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Delay after a failed reconcile; `None` waits for the next event.
    pub retry: Option<Duration>,
    /// Delay after every reconcile.
    pub again: Option<Duration>,
    /// While closed, only events trigger reconciles.
    pub resyncs: Gate,
}

/// Number of reconciles per name.
#[derive(Clone, Default)]
pub struct Rounds(Arc<Mutex<HashMap<String, u64>>>);

impl Rounds {
    /// Removes all names, because no more reconciles follow.
    pub fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    /// Waits until each name had a full reconcile that started after this call, or until none can
    /// follow.
    pub async fn one_more(&self, none: impl Fn() -> bool) {
        let before = self.0.lock().unwrap().clone();
        patience::until("another reconcile of each name", async || {
            let now = self.0.lock().unwrap();
            let turned = now.iter().all(|(name, turns)| before.get(name).is_none_or(|before| *turns >= before + 2));
            (turned || none()).then_some(())
        })
        .await;
    }
}

/// Runs reconciles until the watch ends.
pub async fn work(controller: impl Turns, mut names: UnboundedReceiver<String>, pace: Pace, rounds: Rounds) {
    // Due time, and true if triggered by an event.
    let mut due: BTreeMap<String, (Instant, bool)> = BTreeMap::new();
    loop {
        let next = due.iter().min_by_key(|(_, at)| **at).map(|(name, at)| (name.clone(), *at));
        let pause =
            next.as_ref().map_or(Duration::from_hours(1), |(_, (at, _))| at.saturating_duration_since(Instant::now()));
        tokio::select! {
            name = names.recv() => {
                let Some(name) = name else { return };
                due.insert(name, (Instant::now(), true));
            }
            () = tokio::time::sleep(pause) => {
                let Some((name, (_, by_event))) = next else { continue };
                if !by_event && pace.resyncs.is_closed() {
                    due.insert(name, (Instant::now() + Duration::from_millis(20), false));
                    continue;
                }
                due.remove(&name);
                let turned = controller.turn(&name).await;
                if std::env::var_os("CLUSTER_API_LOG").is_some() {
                    eprintln!("{}: {name}: {turned:?}", std::any::type_name_of_val(&controller));
                }
                *rounds.0.lock().unwrap().entry(name.clone()).or_default() += 1;
                let after = if turned.is_err() { pace.retry.or(pace.again) } else { pace.again };
                if let Some(after) = after {
                    due.insert(name, (Instant::now() + after, false));
                }
            }
        }
    }
}
