//! Records changes to the marks of Machines, Nodes and hosts.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
    time::Instant,
};

use futures_util::StreamExt as _;
use kube::{
    ResourceExt as _,
    api::{Api, DynamicObject},
    runtime::{WatchStreamExt as _, watcher},
};

use super::{super::ironcore::patience, CLUSTER_NAMESPACE, DATA, MACHINE, WORLD, informer::Task};

/// Parts of an object that relate to maintenance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub cordoned: bool,
    pub deleting: bool,
}

impl Marks {
    fn of(object: &DynamicObject) -> Self {
        let mut annotations = object.annotations().clone();
        let mut labels = object.labels().clone();
        annotations.retain(|key, _| ![DATA, MACHINE, CLUSTER_NAMESPACE].contains(&key.as_str()));
        labels.remove(WORLD);
        Self {
            labels,
            annotations,
            cordoned: object.data["spec"]["unschedulable"] == true,
            deleting: object.metadata.deletion_timestamp.is_some(),
        }
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }
}

/// One object version.
#[derive(Clone, Debug)]
pub struct Change {
    pub revision: u64,
    /// Time of receipt.
    pub heard: Instant,
    /// `Machine`, `Node` or `BareMetalHost`.
    pub kind: &'static str,
    pub name: String,
    /// `None` after deletion.
    pub marks: Option<Marks>,
    /// Difference to the object before: `label maintenance=approved`, `-label maintenance`,
    /// `cordoned` …
    pub words: Vec<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}: {}", self.kind, self.words.join(", "))
    }
}

/// Marks of all objects at one time, by kind and name.
pub type Moment = BTreeMap<(&'static str, String), Marks>;

#[derive(Default)]
struct Kept {
    now: Moment,
    revisions: BTreeMap<(&'static str, String), u64>,
    changes: Vec<Change>,
    /// True if all revisions come from one API server and can be compared.
    comparable: bool,
}

/// Changes since the start, ordered by revision for one API server, or by receipt for two.
#[derive(Clone)]
pub struct Journal(Arc<Mutex<Kept>>);

impl Journal {
    /// Creates a journal. `comparable`: all objects come from one API server.
    pub fn new(comparable: bool) -> Self {
        Self(Arc::new(Mutex::new(Kept { comparable, ..Kept::default() })))
    }

    /// Records the changes to a kind's objects until the task is dropped.
    pub fn follow(&self, kind: &'static str, api: Api<DynamicObject>, selector: &str) -> Task {
        let (this, config) = (self.clone(), watcher::Config::default().labels(selector));
        Task::spawn(async move {
            let mut events = watcher(api, config).default_backoff().boxed();
            while let Some(event) = events.next().await {
                match event {
                    Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                        this.note(kind, &object, Some(Marks::of(&object)));
                    }
                    Ok(watcher::Event::Delete(object)) => this.note(kind, &object, None),
                    _ => {}
                }
            }
        })
    }

    fn note(&self, kind: &'static str, object: &DynamicObject, marks: Option<Marks>) {
        let key = (kind, object.name_any());
        let revision = object.resource_version().and_then(|text| text.parse().ok()).unwrap_or_default();
        let mut kept = self.0.lock().unwrap();
        let before = match &marks {
            Some(marks) => kept.now.insert(key.clone(), marks.clone()),
            None => kept.now.remove(&key),
        };
        let words = words(before.as_ref(), marks.as_ref());
        kept.revisions.insert(key.clone(), revision);
        if !words.is_empty() {
            kept.changes.push(Change { revision, heard: Instant::now(), kind, name: key.1, marks, words });
            if kept.comparable {
                kept.changes.sort_by_key(|change| change.revision);
            }
        }
    }

    /// All changes so far.
    pub fn changes(&self) -> Vec<Change> {
        self.0.lock().unwrap().changes.clone()
    }

    /// Last known marks of an object.
    pub fn now(&self, kind: &'static str, name: &str) -> Option<Marks> {
        self.0.lock().unwrap().now.get(&(kind, name.to_owned())).cloned()
    }

    /// Waits until the journal contains these object versions.
    pub async fn caught_up(&self, objects: &[(&'static str, DynamicObject)]) {
        for (kind, object) in objects {
            let wanted: u64 = object.resource_version().and_then(|text| text.parse().ok()).unwrap_or_default();
            let key = (*kind, object.name_any());
            patience::until(&format!("the journal has {key:?} at {wanted}"), async || {
                let kept = self.0.lock().unwrap();
                kept.revisions.get(&key).is_some_and(|seen| *seen >= wanted).then_some(())
            })
            .await;
        }
    }

    /// Checks a condition at every moment since the start. Returns the changes up to the first
    /// failure.
    pub fn first_against(&self, holds: impl Fn(&Moment) -> bool) -> Option<Vec<String>> {
        let mut moment = Moment::new();
        let mut said = Vec::new();
        for change in self.changes() {
            said.push(format!("{} {}: {}", change.kind, change.name, change.words.join(", ")));
            let key = (change.kind, change.name);
            match change.marks {
                Some(marks) => drop(moment.insert(key, marks)),
                None => drop(moment.remove(&key)),
            }
            if !holds(&moment) {
                return Some(said);
            }
        }
        None
    }
}

/// Returns the last part of a key, which is unique enough.
fn short(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or(key)
}

fn words(before: Option<&Marks>, now: Option<&Marks>) -> Vec<String> {
    let Some(now) = now else { return vec!["gone".to_owned()] };
    let none = Marks::default();
    let mut said = Vec::new();
    if before.is_none() {
        said.push("new".to_owned());
    }
    let before = before.unwrap_or(&none);
    let mut compare = |what: &str, old: &BTreeMap<String, String>, new: &BTreeMap<String, String>| {
        for (key, value) in new.iter().filter(|(key, value)| old.get(*key) != Some(value)) {
            let value = if value.is_empty() { String::new() } else { format!("={value}") };
            said.push(format!("{what} {}{value}", short(key)));
        }
        said.extend(old.keys().filter(|key| !new.contains_key(*key)).map(|key| format!("-{what} {}", short(key))));
    };
    compare("label", &before.labels, &now.labels);
    compare("annotation", &before.annotations, &now.annotations);
    for (word, old, new) in [("cordoned", before.cordoned, now.cordoned), ("deleting", before.deleting, now.deleting)] {
        if old != new {
            said.push(format!("{}{word}", if new { "" } else { "-" }));
        }
    }
    said
}
