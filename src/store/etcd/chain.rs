//! The chains of the audit log: one for each lock, whose end is in `lock/…`, and one for the words
//! of its owner, whose end is in `approvals/…`. Each end is written with its lines, on the
//! conditions that a change has anyway.

use std::collections::HashMap;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp};

use super::{
    CHAINED, EtcdStore, Meta, SCHEMA,
    fault::ErrorMapper,
    keys::{self, Keys},
    rows::{Head, json, text, words_of},
    whole::{PAGE, pages},
};
use crate::{
    maintenance::ids::LockKey,
    store::{
        AuditProof, ChainEnd, ChainEnds, StoreError,
        chain::{self, AuditLine, ChainName, Chains, Ends},
        optimistic::CommitDelta,
    },
};

/// How often lines that move are given their places again.
const ROUNDS: usize = 5;

/// The ends that a change goes on from; `None` where the store has no chains.
pub(super) fn ends(change: &CommitDelta<'_>, meta: &[u8], faults: &ErrorMapper) -> Result<Option<Ends>, StoreError> {
    let meta: Meta = serde_json::from_slice(meta).map_err(|error| faults.record("meta", &error))?;
    Ok((meta.schema >= CHAINED).then(|| (*change.before.ends).clone()))
}

impl Keys {
    /// Up to where a chain was pruned.
    pub(super) fn pruned(&self, name: &ChainName) -> String {
        let kind = if name.told { "told" } else { "lock" };
        let of =
            name.lock.as_ref().map_or_else(|| "store".to_owned(), |lock| format!("{kind}/{}", keys::part(&lock.0)));
        format!("{}{of}", self.pruned_all())
    }

    /// All of these; behind all times.
    pub(super) fn pruned_all(&self) -> String {
        format!("{}pruned/", self.all("old"))
    }

    fn chain_of(&self, key: &[u8]) -> Option<ChainName> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.pruned_all())?;
        let Some((kind, lock)) = rest.split_once('/') else { return Some(ChainName::default()) };
        Some(ChainName::of(&LockKey(keys::text(lock)?), kind == "told"))
    }
}

/// Verifies all of it, of one revision.
pub(super) async fn verify(store: &EtcdStore, earlier: &ChainEnds) -> Result<AuditProof, StoreError> {
    let (link, keys) = (&store.link, &store.link.keys);
    let meta = link.patience.repeat(|| link.get(keys.meta(), GetOptions::new())).await?;
    let revision = meta.header().map(etcd_client::ResponseHeader::revision).unwrap_or_default();
    let mut lines = pages(store, &keys.all("audit"), revision).await?;
    lines.extend(pages(store, &keys.all("told"), revision).await?);
    verify_at(store, revision, &lines, earlier).await
}

/// Verifies the lines of a revision.
pub(super) async fn verify_at(
    store: &EtcdStore,
    revision: i64,
    lines: &[KeyValue],
    earlier: &ChainEnds,
) -> Result<AuditProof, StoreError> {
    let (link, keys, faults) = (&store.link, &store.link.keys, &store.link.faults);
    let of_then = GetOptions::new().with_revision(revision);
    let meta = link.patience.repeat(|| link.get(keys.meta(), of_then.clone())).await?;
    let meta: Option<Meta> = meta.kvs().first().map(|pair| json(pair, faults)).transpose()?;
    let Some(meta) = meta.filter(|meta| meta.schema >= CHAINED) else {
        return Ok(AuditProof::None(chain::NO_CHAIN));
    };
    let mut chains = Chains::default();
    for pair in pages(store, &keys.all("lock"), revision).await? {
        let Some(key) = Keys::last(pair.key()).map(LockKey) else { continue };
        // One that cannot be read is told of as such.
        if let Ok(Head { chain: Some(end), .. }) = json(&pair, faults) {
            chains.ends(ChainName::of(&key, false), end);
        }
    }
    for pair in pages(store, &keys.all("approvals"), revision).await? {
        let Some(key) = Keys::last(pair.key()).map(LockKey) else { continue };
        if let Some(end) = words_of(Some(&pair)).chain {
            chains.ends(ChainName::of(&key, true), end);
        }
    }
    for pair in pages(store, &keys.pruned_all(), revision).await? {
        if let Some(name) = keys.chain_of(pair.key()) {
            chains.starts(name, json(&pair, faults)?);
        }
    }
    chains.ends(ChainName::default(), meta.before.clone().unwrap_or_default());
    for pair in lines {
        match json::<Vec<AuditLine>>(pair, faults) {
            Ok(lines) => lines.into_iter().for_each(|line| chains.line(line)),
            Err(error) => return Ok(chain::unreadable(None, &error)),
        }
    }
    Ok(chains.verify(earlier, meta.before.is_none()))
}

/// Chains the log. The schema first, so that each later change chains its lines and no older
/// version writes any more; then the lines that are there get their places; and `meta` says last
/// that they have them. One that dies in between is gone on from.
pub(super) async fn migrate(store: &EtcdStore) -> Result<(), StoreError> {
    let (link, keys, faults) = (&store.link, &store.link.keys, &store.link.faults);
    for _ in 0..ROUNDS {
        let found = link.patience.repeat(|| link.get(keys.meta(), GetOptions::new())).await?;
        let pair = found.kvs().first().ok_or_else(|| faults.unreadable("it has no id"))?;
        let meta: Meta = json(pair, faults)?;
        if meta.before.is_some() {
            *store.meta() = pair.value().to_vec();
            return Ok(());
        }
        let next = if meta.schema < CHAINED {
            Meta { schema: SCHEMA, ..meta }
        } else {
            Meta { before: Some(adopt(store).await?), ..meta }
        };
        let unmoved = Compare::mod_revision(keys.meta(), CompareOp::Equal, pair.mod_revision());
        let put = TxnOp::put(keys.meta(), text("meta", &next, faults)?, None::<PutOptions>);
        link.patience.once(link.txn(Txn::new().when([unmoved]).and_then([put]))).await?;
    }
    Err(faults.unavailable("other processes changed its schema meanwhile"))
}

/// Gives the older lines their places, in the order in which they were written. The end of their
/// chain.
async fn adopt(store: &EtcdStore) -> Result<ChainEnd, StoreError> {
    let (link, keys, faults) = (&store.link, &store.link.keys, &store.link.faults);
    for _ in 0..ROUNDS {
        let now = link.patience.repeat(|| link.get(keys.meta(), GetOptions::new())).await?;
        let revision = now.header().map(etcd_client::ResponseHeader::revision).unwrap_or_default();
        let mut pairs = pages(store, &keys.all("audit"), revision).await?;
        pairs.extend(pages(store, &keys.all("told"), revision).await?);
        pairs.sort_by_key(KeyValue::create_revision);
        let (mut end, mut moved) = (ChainEnd::default(), Vec::new());
        for pair in &pairs {
            // One that cannot be read stays outside, and `audit verify` names it.
            let Ok(lines) = json::<Vec<AuditLine>>(pair, faults) else { continue };
            if chain::are_older(&lines) {
                let placed = chain::add(&ChainName::default(), &mut end, lines.iter().map(|line| &line.event));
                if placed != lines {
                    moved.push((pair, text("audit", &placed, faults)?));
                }
            }
        }
        let mut all = true;
        for some in moved.chunks(PAGE) {
            let same =
                some.iter().map(|(pair, _)| Compare::mod_revision(pair.key(), CompareOp::Equal, pair.mod_revision()));
            let puts = some.iter().map(|(pair, value)| TxnOp::put(pair.key(), value.clone(), None::<PutOptions>));
            let txn = Txn::new().when(same.collect::<Vec<_>>()).and_then(puts.collect::<Vec<_>>());
            all &= link.patience.once(link.txn(txn)).await?.succeeded();
        }
        if all {
            return Ok(end);
        }
    }
    Err(faults.unavailable("its audit log changed while it was chained"))
}

/// A chain that begins later, with the deletion of the lines before.
pub(super) struct Further {
    name: ChainName,
    start: ChainEnd,
    /// The revision of what says so now; 0: there is nothing.
    seen: i64,
}

/// Where lines stand in their chains.
pub(super) fn first(lines: &[AuditLine]) -> Option<u64> {
    lines.iter().filter_map(|line| line.chain.as_ref()).map(|link| link.number).min()
}

/// What the deletion of these lines makes of their chains; or the chain that they are not the next
/// lines of. `gaps`: none of it that comes before is left. Lines without a chain may always go.
pub(super) async fn further(
    store: &EtcdStore,
    lines: &[AuditLine],
    gaps: bool,
) -> Result<Result<Vec<Further>, ChainName>, StoreError> {
    let mut by_chain: HashMap<&ChainName, Vec<AuditLine>> = HashMap::new();
    for line in lines {
        if let Some(link) = &line.chain {
            by_chain.entry(&link.name).or_default().push(line.clone());
        }
    }
    let mut further = Vec::new();
    for (name, going) in by_chain {
        let (start, seen) = match store.get(store.link.keys.pruned(name)).await? {
            Some(pair) => (json(&pair, &store.link.faults)?, pair.mod_revision()),
            None => (ChainEnd::default(), 0),
        };
        let Some(start) = chain::forget(&start, &going, gaps) else { return Ok(Err(name.clone())) };
        further.push(Further { name: name.clone(), start, seen });
    }
    Ok(Ok(further))
}

impl Further {
    pub(super) fn condition(&self, keys: &Keys) -> Compare {
        Compare::mod_revision(keys.pruned(&self.name), CompareOp::Equal, self.seen)
    }

    pub(super) fn put(&self, keys: &Keys, faults: &ErrorMapper) -> Result<TxnOp, StoreError> {
        Ok(TxnOp::put(keys.pruned(&self.name), text("old", &self.start, faults)?, None))
    }
}
