//! Between an object and a [`ServerLock`].
//!
//! Everything of one server is in one ConfigMap, because the API server changes one object at a
//! time. Its parts are apart, so that a role may be kept from some of them: who approves changes
//! `approvals`, `said` and `order` and nothing else.
//!
//! | in `data` | holds |
//! |---|---|
//! | `head` | key, generation, tickets, slot, claim |
//! | `used-<approval>` | the run that started with an approval; the policy keeps it for as long as the approval is there |
//! | `active` | the records that are not over; compressed in `binaryData` when there are many |
//! | `approvals` | the words of the claim's owner |
//! | `outbox` | what became history and is in no journal yet |
//! | `said` | the same of the owner's words |
//! | `order` | the revisions of the commits in both |

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
    journal::{self, Entry},
    link::revision,
    objects::{self, BUSY, FENCED, KIND, OLDEST},
};
use crate::{
    maintenance::{
        approval::{Approval, Claim},
        ids::{Generation, LockKey, Uid},
        lock::ServerLock,
        quarantine::{Records, Unreadable},
        shared::Shared,
        state::Maintenance,
    },
    store::{StoreError, extended::StoredSlot, optimistic::Commits, views::Stored},
};

/// Records are compressed when they are longer than this, in bytes of JSON. Below it a person can
/// read them.
const READABLE: usize = 64 * 1024;

/// More than any queue that the API server can hold unpacks to.
const LARGEST: u64 = 64 * 1024 * 1024;

/// The key of the compressed records.
const PACKED: &str = "active.gz";

/// The key of the mark of an approval that was used. A ConfigMap takes letters, digits, `-`, `_`
/// and `.` in a key; the policy finds the approval by the rest of the name, which for ours is all
/// of its incarnation.
fn mark(approval: &Uid) -> String {
    let safe = |byte: u8| match byte {
        byte if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.' => char::from(byte).to_string(),
        byte => format!("_{byte:02X}"),
    };
    format!("{MARK}{}", approval.0.bytes().map(safe).collect::<String>())
}

/// What the key of each mark begins with.
const MARK: &str = "used-";

/// What `head` holds.
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

/// What `approvals` holds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ApprovalSet {
    /// The claim they were given for; they end with it.
    pub(super) claim: Option<Uid>,
    pub(super) approvals: Vec<Approval>,
    pub(super) commits: String,
}

/// One key of an object's data; nothing when it is not there.
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

/// The key of a lock, also of one that cannot be read; the name of its object where no key can be
/// read.
fn key(map: &ConfigMap) -> LockKey {
    let head = map.data.as_ref().and_then(|data| data.get("head"));
    let head: Value = head.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let name = map.metadata.name.as_deref().unwrap_or_default();
    LockKey(head["key"].as_str().unwrap_or(name).to_owned())
}

pub(super) fn text<T: Serialize + ?Sized>(what: &str, value: &T, faults: &ErrorMapper) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| faults.record(what, &error))
}

/// A lock as it was read.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// 0: there is none.
    pub(super) revision: i64,
    pub(super) lock: Arc<ServerLock>,
    /// The keys of the marks, and the runs that they hold.
    pub(super) marks: BTreeMap<String, Uid>,
    /// Those of them whose approvals are withdrawn.
    pub(super) unneeded: Vec<String>,
    /// See [`print`].
    pub(super) print: u64,
    pub(super) commits: Arc<Commits>,
    pub(super) outbox: Vec<Entry>,
    pub(super) said: Vec<Entry>,
    /// Whether the store had a schema that this version writes when this was written, or later.
    pub(super) checked: bool,
}

impl Row {
    /// Of a key that nobody asked for yet.
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
            return Err(misread(map, KIND, faults, "this label does not say that it is a lock"));
        }
        let head: Option<Head> = data(map, "head", faults)?;
        let head = head.ok_or_else(|| misread(map, "head", faults, "it is missing"))?;
        if map.metadata.name.as_deref() != Some(objects::lock(&head.key).as_str()) {
            return Err(misread(map, "head", faults, format!("it is about {:?}", head.key.0)));
        }
        // An approver writes this, `said` and `order`. What cannot be read of them counts for
        // nothing, or an approver could freeze the server with it: [`oddities`] tells of it.
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
                // The newest is the one that made this revision.
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

    /// A lock for people to look at: one that cannot be read is
    /// [quarantined](ServerLock::quarantined).
    pub(super) fn shown(map: &ConfigMap, faults: &ErrorMapper) -> Result<Arc<ServerLock>, StoreError> {
        let cause = match Self::of(map, faults) {
            Err(StoreError::Unreadable { cause, .. }) => cause,
            row => return Ok(row?.lock),
        };
        Ok(Arc::new(Self::quarantined(map, &cause, faults)))
    }

    /// What is shown of a lock that cannot be read.
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

/// What an approver wrote that cannot be read.
pub(super) fn oddities(map: &ConfigMap, faults: &ErrorMapper) -> Vec<String> {
    let parts = [
        data::<ApprovalSet>(map, "approvals", faults).err(),
        data::<Vec<Entry>>(map, "said", faults).err(),
        data::<BTreeMap<String, i64>>(map, "order", faults).err(),
    ];
    parts.into_iter().flatten().map(|error| format!("what cannot be read counts for nothing: {error}")).collect()
}

/// Tells two objects apart that have one resourceVersion, as in a cluster whose etcd was restored:
/// both parts that a commit writes name it.
pub(super) fn print(map: &ConfigMap) -> u64 {
    let mut hasher = DefaultHasher::new();
    map.metadata.uid.hash(&mut hasher);
    for part in ["head", "approvals"] {
        map.data.as_ref().and_then(|data| data.get(part)).hash(&mut hasher);
    }
    hasher.finish()
}

/// The marks of an object, and which of them the policy lets go: `approvals` does not name theirs
/// any more.
fn marks(map: &ConfigMap) -> (BTreeMap<String, Uid>, Vec<String>) {
    let data = || map.data.iter().flatten();
    let marks: BTreeMap<String, Uid> =
        data().filter(|(key, _)| key.starts_with(MARK)).map(|(key, run)| (key.clone(), Uid(run.clone()))).collect();
    let words = map.data.as_ref().and_then(|data| data.get("approvals")).map_or("", String::as_str);
    let named = |key: &str| words.contains(&format!("\"{}\"", key.strip_prefix(MARK).unwrap_or(key)));
    let unneeded = marks.keys().filter(|key| !named(key)).cloned().collect();
    (marks, unneeded)
}

fn active(map: &ConfigMap, faults: &ErrorMapper) -> Result<Records, StoreError> {
    let Some(ByteString(packed)) = map.binary_data.as_ref().and_then(|data| data.get(PACKED)) else {
        return records(
            map.data.as_ref().and_then(|data| data.get("active")).map_or("[]", String::as_str),
            map,
            faults,
        );
    };
    let mut plain = Vec::new();
    let unpacked = GzDecoder::new(packed.as_slice()).take(LARGEST).read_to_end(&mut plain);
    unpacked.map_err(|error| misread(map, PACKED, faults, error))?;
    let plain = String::from_utf8(plain).map_err(|error| misread(map, PACKED, faults, error))?;
    records(&plain, map, faults)
}

/// Reads a list of records. Those that cannot be read stay as they are.
fn records(plain: &str, map: &ConfigMap, faults: &ErrorMapper) -> Result<Records, StoreError> {
    if let Ok(records) = serde_json::from_str(plain) {
        return Ok((records, Vec::new()));
    }
    let each: Vec<Value> = serde_json::from_str(plain).map_err(|error| misread(map, "active", faults, error))?;
    let uid = |value: &Value| value["uid"].as_str().unwrap_or_default().to_owned();
    Ok(Unreadable::part(each.iter().map(|value| Unreadable::or_record(&uid(value), &value.to_string()))))
}

/// Writes such a list.
fn listed(
    records: &[Shared<Maintenance>],
    unreadable: &[Unreadable],
    faults: &ErrorMapper,
) -> Result<String, StoreError> {
    let mut plain = text("active", records, faults)?;
    for record in unreadable {
        plain.pop();
        let comma = if plain.len() > 1 { "," } else { "" };
        plain.push_str(&format!("{comma}{}]", record.raw));
    }
    Ok(plain)
}

/// What is written of a lock; what is not given stays as it is.
#[derive(Default)]
pub(super) struct Next<'a> {
    pub(super) head: Option<Head>,
    /// The approvals that were used, and the runs that used them; written with the head.
    pub(super) used: Vec<(Uid, Uid)>,
    pub(super) active: Option<&'a [Shared<Maintenance>]>,
    pub(super) approvals: Option<ApprovalSet>,
    pub(super) outbox: Option<Vec<Entry>>,
    pub(super) said: Option<Vec<Entry>>,
    /// Whether the lock has a record or an owner.
    pub(super) busy: Option<bool>,
    /// Why it was written although nothing else is.
    pub(super) fence: Option<&'a str>,
}

impl Next<'_> {
    /// The change of a row, as a patch on the condition that it still is at its revision.
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
            kept.extend(new.map(|(key, run)| (key, json(run.0.clone()))));
        }
        if let Some(words) = &self.approvals {
            kept.insert("approvals".into(), json(text(&name, words, faults)?));
        }
        if let Some(records) = self.active {
            let plain = listed(records, &row.lock.unreadable, faults)?;
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
        // Those without one are made by this change, whose revision nobody knows yet.
        let order: BTreeMap<&str, i64> =
            all().filter_map(|entry| Some((entry.commit.as_str(), entry.order?))).collect();
        kept.insert("order".into(), json(text(&name, &order, faults)?));
        for (key, entries) in [("outbox", self.outbox.as_ref()), ("said", self.said.as_ref())] {
            if let Some(entries) = entries {
                let bare: Vec<Entry> = entries.iter().map(|entry| Entry { order: None, ..entry.clone() }).collect();
                kept.insert(key.into(), json(text(&name, &bare, faults)?));
            }
        }
        let mut annotations = json!({OLDEST: journal::oldest(all()).map(|at| at.to_string())});
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

/// A patch as a whole object: without what it takes away.
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
