//! The chains of the audit log: one for each lock, whose end is in `head`, and one for the words of
//! its owner, whose end is in `approvals`. A role that may not write the one writes no end of its
//! chain either.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

use super::{
    CHAINED, KubernetesStore, Meta, SCHEMA,
    fault::ErrorMapper,
    journal::{self, Entry},
    link::{StoreClient, WriteResult},
    lock::{Head, Next, Row, data, text},
    objects::{self, KIND},
    whole::kind,
};
use crate::{
    maintenance::ids::LockKey,
    store::{
        AuditProof, ChainEnd, ChainEnds, StoreError,
        chain::{self, AuditLine, ChainName, ChainPlace, Chains},
    },
};

/// How often objects that move are written again.
const ROUNDS: usize = 10;

/// Verifies all of it, of one revision.
pub(super) async fn verify(store: &KubernetesStore, earlier: &ChainEnds) -> Result<AuditProof, StoreError> {
    let maps = store.link.patience.repeat(|| store.link.list(KIND)).await?;
    verify_objects(&maps, earlier, &store.link.faults)
}

/// Verifies what these objects hold.
pub(super) fn verify_objects(
    maps: &[ConfigMap],
    earlier: &ChainEnds,
    faults: &ErrorMapper,
) -> Result<AuditProof, StoreError> {
    let meta = maps.iter().find(|map| map.metadata.name.as_deref() == Some(objects::STORE));
    let meta: Option<Meta> = meta.map(|map| data(map, "meta", faults)).transpose()?.flatten();
    let before = meta.and_then(|meta| meta.before);
    let mut chains = Chains::default();
    for map in maps {
        if let ("lock" | "store", Ok(pruned)) = (kind(map), data::<Vec<ChainPlace>>(map, "pruned", faults)) {
            for ChainPlace { name, number, hash } in pruned {
                chains.starts(name, ChainEnd { number, hash });
            }
        }
        match (kind(map), journal::entries(map, faults)) {
            ("lock" | "journal", Err(StoreError::Unreadable { cause, .. })) => {
                return Ok(chain::unreadable(None, &cause));
            }
            (_, entries) => entries?.into_iter().flat_map(|entry| entry.events).for_each(|line| chains.line(line)),
        }
        if kind(map) == "lock"
            && let Ok(row) = Row::of(map, faults)
            && let Some(ends) = row.ends
        {
            chains.ends(ChainName::of(&row.lock.key, false), ends.lock);
            chains.ends(ChainName::of(&row.lock.key, true), ends.words);
        }
    }
    chains.ends(ChainName::default(), before.unwrap_or_default());
    Ok(chains.verify(earlier, false))
}

/// The objects that have lines, in the order of their commits, which is that of each chain.
pub(super) fn in_order(maps: &[ConfigMap], faults: &ErrorMapper) -> Vec<String> {
    let first = |map: &ConfigMap| {
        let entries = journal::entries(map, faults).unwrap_or_default();
        entries.into_iter().filter(|entry| !entry.events.is_empty()).map(|entry| entry.order).min()
    };
    let ordered = maps.iter().filter_map(|map| Some((first(map)?, map.metadata.name.clone()?)));
    let mut ordered: Vec<(Option<i64>, String)> = ordered.collect();
    ordered.sort();
    ordered.into_iter().map(|(_, name)| name).collect()
}

/// Where the chains begin that an object has lines of: in the object of the lock, and in
/// `metal-store`.
#[derive(Debug)]
pub(super) struct Starts {
    lock: Option<LockKey>,
    /// The object of the store, as it was read.
    version: Option<String>,
    known: BTreeMap<ChainName, ChainEnd>,
    moved: BTreeSet<ChainName>,
    /// Those that have a line which stays.
    pub(super) stopped: BTreeSet<ChainName>,
    /// Whether lines may go of which others that come before are gone already.
    gaps: bool,
}

impl Starts {
    /// Reads them, for the lines of a lock that is there.
    pub(super) async fn read(
        link: &StoreClient,
        lock: Option<(&ConfigMap, &LockKey)>,
        gaps: bool,
    ) -> Result<Self, StoreError> {
        let store = link.get(objects::STORE).await?;
        let mut known = BTreeMap::new();
        for map in store.iter().chain(lock.map(|(map, _)| map)) {
            for ChainPlace { name, number, hash } in data::<Vec<ChainPlace>>(map, "pruned", &link.faults)? {
                known.insert(name, ChainEnd { number, hash });
            }
        }
        let version = store.and_then(|map| map.metadata.resource_version);
        let lock = lock.map(|(_, key)| key.clone());
        Ok(Self { lock, version, known, moved: BTreeSet::new(), stopped: BTreeSet::new(), gaps })
    }

    /// Whether a line may go now that is `old` or not; then its chain begins behind it.
    pub(super) fn pass(&mut self, line: &AuditLine, old: bool) -> bool {
        let Some(ChainPlace { name, .. }) = &line.chain else { return old };
        let start = self.known.entry(name.clone()).or_default();
        let further = chain::forget(start, std::slice::from_ref(line), self.gaps);
        let goes = further.filter(|_| old && !self.stopped.contains(name));
        if let Some(further) = &goes {
            *start = further.clone();
            self.moved.insert(name.clone());
        } else {
            self.stopped.insert(name.clone());
        }
        goes.is_some()
    }

    fn places(&self, of_lock: bool) -> Option<Vec<ChainPlace>> {
        let ours = |name: &ChainName| name.lock.is_some() == of_lock;
        self.moved.iter().any(ours).then(|| {
            let known = self.known.iter().filter(|(name, _)| ours(name));
            known
                .map(|(name, end)| ChainPlace { name: name.clone(), number: end.number, hash: end.hash.clone() })
                .collect()
        })
    }

    /// What the object of the lock has to hold, if that moved.
    pub(super) fn of_lock(&self) -> Option<Vec<ChainPlace>> {
        self.places(true)
    }

    /// Writes those of the store. `false`: something moved meanwhile, and nothing may go.
    pub(super) async fn write_store(&self, link: &StoreClient) -> Result<bool, StoreError> {
        let Some(places) = self.places(false) else { return Ok(true) };
        let patch = json!({
            "metadata": {"resourceVersion": self.version},
            "data": {"pruned": text(objects::STORE, &places, &link.faults)?},
        });
        Ok(matches!(link.patch(objects::STORE, &patch).await?, WriteResult::Done(_)))
    }

    /// Writes those of the lock.
    pub(super) async fn write_lock(&self, link: &StoreClient, map: Option<&ConfigMap>) -> Result<bool, StoreError> {
        let (Some(places), Some(map), Some(key)) = (self.places(true), map, &self.lock) else { return Ok(true) };
        let name = objects::lock(key);
        let patch = json!({
            "metadata": {"resourceVersion": map.metadata.resource_version},
            "data": {"pruned": text(&name, &places, &link.faults)?},
        });
        Ok(matches!(link.patch(&name, &patch).await?, WriteResult::Done(_)))
    }
}
