//! Plays scenario steps on a cluster with stand-ins or real operators, and records the objects'
//! states.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use kube::{
    ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::ironcore::{
    api::{Cluster, Key, Kind, Object, text},
    family::{Family, OPERATION, PARKED, Place},
    patience,
    world::marks,
};

/// Observed states of each object in order: `server`, `claim` and request names.
pub type Seen = BTreeMap<String, Vec<String>>;

/// Accepted state sequences of each object; several if two controllers race.
pub type Wanted = BTreeMap<String, Vec<Vec<String>>>;

/// End condition of a step.
#[derive(Clone)]
pub enum End {
    /// No change for this long; used to record a table.
    Quiet(Duration),
    /// The states listed in a table, and no others.
    Table(Arc<BTreeMap<String, Wanted>>),
}

pub struct Stage {
    pub cluster: Cluster,
    pub family: Family,
    pub server: String,
    pub end: End,
    /// Steps so far with their observed states.
    pub played: Vec<(String, Seen)>,
    notes: Arc<Mutex<Notes>>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Notes {
    seen: Seen,
    last: BTreeMap<String, String>,
    moved: Option<Instant>,
}

impl Notes {
    fn note(&mut self, object: &str, line: String) {
        if self.last.get(object) != Some(&line) {
            self.last.insert(object.to_owned(), line.clone());
            self.seen.entry(object.to_owned()).or_default().push(line);
            self.moved = Some(Instant::now());
        }
    }
}

fn describe(kind: Kind, object: &Object) -> String {
    let or_new = |state: &str| if state.is_empty() { "new".to_owned() } else { state.to_owned() };
    match kind {
        Kind::Server => {
            let mut line = or_new(text(object, "/status/state"));
            if let Some(reference) = Key::referred(object, "/spec/serverMaintenanceRef") {
                let _ = write!(line, " by {}", reference.name);
            }
            if Key::referred(object, "/spec/serverClaimRef").is_some() {
                line += " claimed";
            }
            if object.annotations().contains_key(PARKED) {
                line += " parked";
            }
            if let Some(operation) = object.annotations().get(OPERATION) {
                let _ = write!(line, " {operation}");
            }
            line
        }
        Kind::Claim => {
            let mut words = vec![or_new(text(object, "/status/phase"))];
            words.extend(marks(object));
            words.join(", ")
        }
        _ => or_new(text(object, "/status/state")),
    }
}

impl Stage {
    /// Creates a stage. `server` can be created later.
    pub fn new(cluster: Cluster, family: Family, server: &str, end: End) -> Self {
        let mut this = Self {
            cluster,
            family,
            server: server.to_owned(),
            end,
            played: Vec::new(),
            notes: Arc::default(),
            tasks: Vec::new(),
        };
        this.watch(Kind::Server);
        this.watch(Kind::Claim);
        if let Some(group) = family.group() {
            this.watch(Kind::maintenance(group));
        }
        this.boot();
        this
    }

    fn watch(&mut self, kind: Kind) {
        let (notes, server) = (Arc::clone(&self.notes), self.server.clone());
        let api = self.cluster.all(kind);
        self.tasks.push(tokio::spawn(async move {
            let mut changes = watcher(api, watcher::Config::default()).default_backoff().boxed();
            while let Some(change) = changes.next().await {
                let (object, gone) = match change {
                    Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => (object, false),
                    Ok(watcher::Event::Delete(object)) => (object, true),
                    _ => continue,
                };
                let name = match kind {
                    Kind::Server if object.name_any() != server => continue,
                    Kind::Server => "server".to_owned(),
                    _ => object.name_any(),
                };
                let line = if gone { "gone".to_owned() } else { describe(kind, &object) };
                notes.lock().unwrap().note(&name, line);
            }
        }));
    }

    /// Acts as boot operator for stand-ins and real operators alike: a bad image is an error.
    fn boot(&mut self) {
        let cluster = self.cluster.clone();
        self.tasks.push(tokio::spawn(async move {
            loop {
                for configuration in cluster.list(Kind::Boot).await.unwrap_or_default() {
                    let bad = text(&configuration, "/spec/image").contains("bad");
                    let state = if bad { "Error" } else { "Ready" };
                    if text(&configuration, "/status/state") != state {
                        let key = Key::of(&configuration);
                        // The object can be deleted by now.
                        let _ = cluster.merge_status(Kind::Boot, &key, json!({"state": state})).await;
                    }
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }));
    }

    /// Plays one step and waits for its end.
    pub async fn step(&mut self, name: &str, act: impl AsyncFnOnce(&Self)) {
        self.notes.lock().unwrap().moved = Some(Instant::now());
        act(self).await;
        match self.end.clone() {
            End::Quiet(time) => {
                while self.notes.lock().unwrap().moved.is_some_and(|moved| moved.elapsed() < time) {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            End::Table(table) => self.until(name, table.get(name).unwrap_or(&Wanted::new())).await,
        }
        let seen = std::mem::take(&mut self.notes.lock().unwrap().seen);
        self.played.push((name.to_owned(), seen));
    }

    async fn until(&self, name: &str, wanted: &Wanted) {
        let end = Instant::now() + patience::PATIENCE;
        loop {
            let seen = self.notes.lock().unwrap().seen.clone();
            let as_wanted = |(object, lines)| wanted.get(object).is_some_and(|any| any.contains(lines));
            if seen.len() == wanted.len() && seen.iter().all(as_wanted) {
                return;
            }
            let context = || format!("{:?}, {name}:\nwanted {wanted:#?}\nseen {seen:#?}", self.family);
            assert!(Instant::now() < end, "{}", context());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Last observed state of an object.
    pub fn last(&self, object: &str) -> String {
        self.notes.lock().unwrap().last.get(object).cloned().unwrap_or_default()
    }

    pub fn kind(&self) -> Kind {
        Kind::maintenance(self.family.group().unwrap())
    }

    /// Creates a request for the server.
    pub async fn request(&self, name: &str, policy: &str, more: Value) {
        let mut spec = json!({"policy": policy, "serverRef": {"name": self.server}});
        for (field, value) in more.as_object().unwrap() {
            if field == "priority" && !self.family.has_priority() {
                continue;
            }
            spec[field] = value.clone();
        }
        let object = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
        self.cluster.create(self.kind(), object).await.unwrap();
    }

    pub async fn delete(&self, name: &str) {
        self.cluster.delete(self.kind(), &Key::within("default", name)).await.unwrap();
    }

    pub async fn merge_server(&self, change: Value) {
        self.cluster.merge(Kind::Server, &Key::cluster(&self.server), change).await.unwrap();
    }

    pub async fn until_on(&self) {
        patience::until("the server is on", async || {
            let server = self.cluster.get(Kind::Server, &Key::cluster(&self.server)).await.unwrap()?;
            (text(&server, "/status/powerState") == "On").then_some(())
        })
        .await;
    }

    pub async fn operate(&self, operation: &str) {
        self.merge_server(json!({"metadata": {"annotations": {OPERATION: operation}}})).await;
    }

    pub async fn approve(&self) {
        let (place, key) = self.family.approvals()[0];
        let field = if place == Place::Label { "labels" } else { "annotations" };
        let change = json!({"metadata": {field: {key: "true"}}});
        self.cluster.merge(Kind::Claim, &Key::within("default", "claim"), change).await.unwrap();
    }

    pub async fn claim(&self) {
        let spec = json!({"power": "On", "image": "os:1", "serverRef": {"name": self.server}});
        let object = json!({"metadata": {"name": "claim", "namespace": "default"}, "spec": spec});
        self.cluster.create(Kind::Claim, object).await.unwrap();
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Formats the steps as a table.
pub fn write(played: &[(String, Seen)]) -> String {
    let mut table = String::new();
    for (step, seen) in played {
        let _ = writeln!(table, "{step}");
        for (object, lines) in seen {
            let _ = writeln!(table, "    {object}: {}", lines.join(" -> "));
        }
    }
    table
}

/// Parses such a table; `|` separates accepted sequences.
pub fn read(table: &str) -> BTreeMap<String, Wanted> {
    let mut steps: BTreeMap<String, Wanted> = BTreeMap::new();
    let mut step = String::new();
    for line in table.lines() {
        if let Some(seen) = line.strip_prefix("    ") {
            let (object, any) = seen.split_once(": ").unwrap();
            let sequences = any.split(" | ").map(|lines| lines.split(" -> ").map(str::to_owned).collect());
            steps.get_mut(&step).unwrap().insert(object.to_owned(), sequences.collect());
        } else {
            line.clone_into(&mut step);
            steps.insert(step.clone(), Wanted::new());
        }
    }
    steps
}
