//! Conversions between a ConfigMap and a [`ServerLock`].
//!
//! The API server changes one object at a time, so one ConfigMap contains everything about a
//! server. Its parts have separate keys, so that roles can be restricted to some of them. An
//! approver can change only `approvals`, `said` and `order`.
//!
//! | in `data` | contents |
//! |---|---|
//! | `head` | key, generation, tickets, slot, claim |
//! | `used-<approval>` | the run that started with an approval; the policy keeps it while the approval exists |
//! | `active` | the active records; many records are compressed in `binaryData` |
//! | `approvals` | the approvals that the claim's owner wrote |
//! | `outbox` | history that is not in a journal yet |
//! | `said` | history of approvals that is not in a journal yet |
//! | `order` | commit revisions in `outbox` and `said` |

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{Read as _, Write as _},
    sync::Arc,
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use k8s_openapi::{ByteString, api::core::v1::ConfigMap};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::{
    fault::ErrorMapper,
    journal,
    link::revision,
    objects::{self, BUSY, FENCED, KIND, OLDEST},
};
use crate::{
    maintenance::{
        approval::{Approval, Claim},
        ids::{Generation, LockKey, Uid},
        lock::ServerLock,
        quarantine::Records,
        shared::Shared,
        state::Maintenance,
    },
    shown::OneLine,
    store::{
        StoreError,
        extended::StoredSlot,
        history::{self, Entry},
        optimistic::Commits,
        records,
        views::Stored,
    },
};

/// Longer records are compressed, in bytes of JSON. Shorter records stay readable for people.
const READABLE: usize = 64 * 1024;

/// An upper limit for unpacked records; no queue that fits into an object is larger.
const LARGEST: u64 = 64 * 1024 * 1024;

/// Key for compressed records.
const PACKED: &str = "active.gz";

/// Returns the key that marks an approval as used. ConfigMap keys consist of letters, digits, `-`,
/// `_` and `.`. The policy derives the approval from the key's suffix, which is our approvals'
/// complete uid.
fn mark(approval: &Uid) -> String {
    let safe = |byte: u8| match byte {
        byte if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.' => char::from(byte).to_string(),
        byte => format!("_{byte:02X}"),
    };
    format!("{MARK}{}", approval.raw().bytes().map(safe).collect::<String>())
}

/// The prefix of all mark keys.
const MARK: &str = "used-";

/// The contents of `head`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) key: LockKey,
    pub(super) generation: Generation,
    pub(super) last_ticket: u64,
    pub(super) slot: Option<StoredSlot>,
    pub(super) claim: Option<Claim>,
    pub(super) commits: String,
}

impl Head {
    pub(super) fn of(lock: &ServerLock, commits: String) -> Self {
        Self {
            key: lock.key.clone(),
            generation: lock.generation,
            last_ticket: lock.last_ticket,
            slot: StoredSlot::of(lock),
            claim: lock.ownership.claim.clone(),
            commits,
        }
    }
}

/// The contents of `approvals`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ApprovalSet {
    /// The claim that they apply to; they expire with it.
    pub(super) claim: Option<Uid>,
    pub(super) approvals: Vec<Approval>,
    pub(super) commits: String,
}

/// Parses one data key. Returns the default if it is missing.
pub(super) fn data<T: DeserializeOwned + Default>(
    map: &ConfigMap,
    key: &str,
    faults: &ErrorMapper,
) -> Result<T, StoreError> {
    let Some(text) = map.data.as_ref().and_then(|data| data.get(key)) else { return Ok(T::default()) };
    serde_json::from_str(text).map_err(|error| misread(map, key, faults, error))
}

fn misread(map: &ConfigMap, part: &str, faults: &ErrorMapper, error: impl std::fmt::Display) -> StoreError {
    let name = map.metadata.name.as_deref().unwrap_or_default();
    faults.record(format!("{part:?} of the ConfigMap {name} ({})", key(map)), error)
}

/// Returns a lock's key even if the lock is unreadable; falls back to the object's name.
fn key(map: &ConfigMap) -> LockKey {
    let head = map.data.as_ref().and_then(|data| data.get("head"));
    let head: Value = head.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let name = map.metadata.name.as_deref().unwrap_or_default();
    LockKey::new(head["key"].as_str().unwrap_or(name).to_owned())
}

pub(super) fn text<T: Serialize + ?Sized>(what: &str, value: &T, faults: &ErrorMapper) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| faults.record(what, &error))
}

/// A lock as read.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// 0 if the object does not exist.
    pub(super) revision: i64,
    pub(super) lock: Arc<ServerLock>,
    /// Mark keys and their runs.
    pub(super) marks: BTreeMap<String, Uid>,
    /// Mark keys whose approvals were withdrawn.
    pub(super) unneeded: Vec<String>,
    /// See [`print`].
    pub(super) print: u64,
    pub(super) commits: Arc<Commits>,
    pub(super) outbox: Vec<Entry>,
    pub(super) said: Vec<Entry>,
    /// True if the store had a supported schema when this version was written, or later.
    pub(super) checked: bool,
}

impl Row {
    /// Returns an unused key's row.
    pub(super) fn empty(key: &LockKey) -> Self {
        let lock = Arc::new(ServerLock::new(key.clone()));
        Self {
            revision: 0,
            lock,
            marks: BTreeMap::new(),
            unneeded: Vec::new(),
            print: 0,
            commits: Arc::default(),
            outbox: Vec::new(),
            said: Vec::new(),
            checked: false,
        }
    }

    pub(super) fn of(map: &ConfigMap, faults: &ErrorMapper) -> Result<Self, StoreError> {
        let revision = revision(&map.metadata, faults)?;
        if objects::kind(&map.metadata) != Some("lock") {
            return Err(misread(map, KIND, faults, "this label does not mark a lock"));
        }
        let head: Option<Head> = data(map, "head", faults)?;
        let head = head.ok_or_else(|| misread(map, "head", faults, "it is missing"))?;
        if map.metadata.name.as_deref() != Some(objects::lock(&head.key).as_str()) {
            return Err(misread(map, "head", faults, format!("it is about {:?}", head.key.raw())));
        }
        // An approver writes this, `said` and `order`. Unreadable parts are ignored, because an
        // approver could otherwise freeze the server; [`oddities`] reports them.
        let words: ApprovalSet = data(map, "approvals", faults).unwrap_or_default();
        let mut lock = ServerLock::new(head.key);
        lock.generation = head.generation;
        lock.last_ticket = head.last_ticket;
        StoredSlot::into_lock(head.slot, &mut lock);
        (lock.active, lock.unreadable) = active(map, faults)?;
        let (marks, unneeded) = marks(map);
        let claim = head.claim.as_ref().map(|claim| &claim.uid);
        if claim.is_some() && claim == words.claim.as_ref() {
            let run = |approval: &Uid| marks.get(&mark(approval)).cloned();
            let given = words.approvals.into_iter();
            lock.ownership.approvals =
                given.map(|approval| Approval { used_by: run(&approval.uid), ..approval }).collect();
        }
        lock.ownership.claim = head.claim;
        let order: BTreeMap<String, i64> = data(map, "order", faults).unwrap_or_default();
        let ordered = |mut entries: Vec<Entry>| {
            for entry in &mut entries {
                // An entry without a recorded revision belongs to the newest commit.
                entry.order = Some(order.get(&entry.commit).copied().unwrap_or(revision));
            }
            entries
        };
        let (outbox, said) =
            (ordered(data(map, "outbox", faults)?), ordered(data(map, "said", faults).unwrap_or_default()));
        Ok(Self {
            revision,
            lock: Arc::new(lock),
            marks,
            unneeded,
            print: print(map),
            commits: Arc::new(Commits::parse(&head.commits, &words.commits)),
            outbox,
            said,
            checked: false,
        })
    }

    /// Returns a lock for display; an unreadable lock is [quarantined](ServerLock::quarantined).
    pub(super) fn shown(map: &ConfigMap, faults: &ErrorMapper) -> Result<Arc<ServerLock>, StoreError> {
        let cause = match Self::of(map, faults) {
            Err(StoreError::Unreadable { cause, .. }) => cause,
            row => return Ok(row?.lock),
        };
        Ok(Arc::new(Self::quarantined(map, cause.raw(), faults)))
    }

    /// Returns an unreadable lock for display.
    pub(super) fn quarantined(map: &ConfigMap, cause: &str, faults: &ErrorMapper) -> ServerLock {
        let (records, unreadable) = active(map, faults).unwrap_or_default();
        ServerLock::quarantined(key(map), cause, &records, unreadable)
    }

    pub(super) fn stored(&self) -> Stored {
        let (lock, commits) = (Arc::clone(&self.lock), Arc::clone(&self.commits));
        Stored { revision: self.revision, lock, commits }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.outbox.iter().chain(&self.said)
    }
}

/// Returns unreadable parts that approvers can write.
pub(super) fn oddities(map: &ConfigMap, faults: &ErrorMapper) -> Vec<OneLine> {
    let parts = [
        data::<ApprovalSet>(map, "approvals", faults).err(),
        data::<Vec<Entry>>(map, "said", faults).err(),
        data::<BTreeMap<String, i64>>(map, "order", faults).err(),
    ];
    let problems = parts.into_iter().flatten().map(|error| format!("an unreadable part is ignored: {error}"));
    problems.map(OneLine::from).collect()
}

/// Returns a hash that distinguishes two objects with one resourceVersion, as after a restore of
/// etcd. A commit writes its name into `head` or `approvals`.
pub(super) fn print(map: &ConfigMap) -> u64 {
    let mut hasher = DefaultHasher::new();
    map.metadata.uid.hash(&mut hasher);
    for part in ["head", "approvals"] {
        map.data.as_ref().and_then(|data| data.get(part)).hash(&mut hasher);
    }
    hasher.finish()
}

/// Returns an object's marks, and the marks that the policy allows to be removed because
/// `approvals` does not contain their approvals.
fn marks(map: &ConfigMap) -> (BTreeMap<String, Uid>, Vec<String>) {
    let data = || map.data.iter().flatten();
    let marks: BTreeMap<String, Uid> = data()
        .filter(|(key, _)| key.starts_with(MARK))
        .map(|(key, run)| (key.clone(), Uid::new(run.clone())))
        .collect();
    let words = map.data.as_ref().and_then(|data| data.get("approvals")).map_or("", String::as_str);
    let named = |key: &str| words.contains(&format!("\"{}\"", key.strip_prefix(MARK).unwrap_or(key)));
    let unneeded = marks.keys().filter(|key| !named(key)).cloned().collect();
    (marks, unneeded)
}

fn active(map: &ConfigMap, faults: &ErrorMapper) -> Result<Records, StoreError> {
    let Some(ByteString(packed)) = map.binary_data.as_ref().and_then(|data| data.get(PACKED)) else {
        let plain = map.data.as_ref().and_then(|data| data.get("active")).map_or("[]", String::as_str);
        return records::parse(plain).map_err(|error| misread(map, "active", faults, error));
    };
    let mut plain = Vec::new();
    let unpacked = GzDecoder::new(packed.as_slice()).take(LARGEST).read_to_end(&mut plain);
    unpacked.map_err(|error| misread(map, PACKED, faults, error))?;
    let plain = String::from_utf8(plain).map_err(|error| misread(map, PACKED, faults, error))?;
    records::parse(&plain).map_err(|error| misread(map, "active", faults, error))
}

/// Lock parts to write. Unset parts stay unchanged.
#[derive(Default)]
pub(super) struct Next<'a> {
    pub(super) head: Option<Head>,
    /// Used approvals and their runs; written with the head.
    pub(super) used: Vec<(Uid, Uid)>,
    pub(super) active: Option<&'a [Shared<Maintenance>]>,
    pub(super) approvals: Option<ApprovalSet>,
    pub(super) outbox: Option<Vec<Entry>>,
    pub(super) said: Option<Vec<Entry>>,
    /// True if the lock has a record or an owner.
    pub(super) busy: Option<bool>,
    /// A token that changes the object if no other part does.
    pub(super) fence: Option<&'a str>,
}

impl Next<'_> {
    /// Returns the change as a patch that requires the row's revision.
    pub(super) fn patch(self, row: &Row, faults: &ErrorMapper) -> Result<Value, StoreError> {
        let name = objects::lock(&row.lock.key);
        let json = |value| Value::String(value);
        let mut kept: Map<String, Value> = Map::new();
        let mut packed = Map::new();
        if let Some(head) = &self.head {
            kept.insert("head".into(), json(text(&name, head, faults)?));
            kept.extend(row.unneeded.iter().map(|key| (key.clone(), Value::Null)));
            let new = self.used.iter().map(|(approval, run)| (mark(approval), run));
            let new = new.filter(|(key, _)| !row.marks.contains_key(key));
            kept.extend(new.map(|(key, run)| (key, json(run.raw().to_owned()))));
        }
        if let Some(words) = &self.approvals {
            kept.insert("approvals".into(), json(text(&name, words, faults)?));
        }
        if let Some(records) = self.active {
            let plain = records::text(records, &row.lock.unreadable).map_err(|error| faults.record(&name, error))?;
            let large = plain.len() > READABLE;
            packed.insert(PACKED.into(), if large { pack(&plain, &name, faults)? } else { Value::Null });
            kept.insert("active".into(), if large { Value::Null } else { json(plain) });
        }
        let mut labels = Map::from_iter([(KIND.to_owned(), json!("lock"))]);
        if let Some(busy) = self.busy {
            labels.insert(BUSY.to_owned(), json(busy.to_string()));
        }
        let (outbox, said) = (self.outbox.as_ref().unwrap_or(&row.outbox), self.said.as_ref().unwrap_or(&row.said));
        let all = || outbox.iter().chain(said);
        labels.extend(journal::labels(row.entries()).into_iter().map(|label| (label, Value::Null)));
        labels.extend(journal::labels(all()).into_iter().map(|label| (label, json!(""))));
        // New entries are omitted, because this change's revision is not known before it is
        // written.
        let order: BTreeMap<&str, i64> =
            all().filter_map(|entry| Some((entry.commit.as_str(), entry.order?))).collect();
        kept.insert("order".into(), json(text(&name, &order, faults)?));
        for (key, entries) in [("outbox", self.outbox.as_ref()), ("said", self.said.as_ref())] {
            if let Some(entries) = entries {
                let bare: Vec<Entry> = entries.iter().map(|entry| Entry { order: None, ..entry.clone() }).collect();
                kept.insert(key.into(), json(text(&name, &bare, faults)?));
            }
        }
        let mut annotations = json!({OLDEST: history::oldest(all()).map(|at| at.to_string())});
        if let Some(fence) = self.fence {
            annotations[FENCED] = json!(fence);
        }
        let mut patch = json!({
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
            "data": kept,
        });
        if !packed.is_empty() {
            patch["binaryData"] = packed.into();
        }
        if row.revision > 0 {
            patch["metadata"]["resourceVersion"] = json!(row.revision.to_string());
        }
        Ok(patch)
    }
}

fn pack(plain: &str, name: &str, faults: &ErrorMapper) -> Result<Value, StoreError> {
    let mut packing = GzEncoder::new(Vec::new(), Compression::fast());
    let packed = packing.write_all(plain.as_bytes()).and_then(|()| packing.finish());
    let packed = packed.map_err(|error| faults.record(name, error))?;
    serde_json::to_value(ByteString(packed)).map_err(|error| faults.record(name, error))
}

/// Converts a patch into a complete object by dropping its deletions.
pub(super) fn whole(mut patch: Value) -> Value {
    fn strip(value: &mut Value) {
        if let Value::Object(map) = value {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(strip);
        }
    }
    strip(&mut patch);
    patch
}
