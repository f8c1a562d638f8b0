//! An API server that one test after the other has for itself. Starting one costs a core several
//! seconds, which is more than most tests take; so it is left as it was and lent again.
//!
//! What a test left in it is taken away behind its back, in its etcd: no finalizer, no right and no
//! controller has a say. A server that was killed, or whose test failed, is lent to nobody any
//! more.

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
    sync::{Mutex, PoisonError},
};

use etcd_client::{Client, GetOptions, KvClient, Txn, TxnOp};

use super::{
    super::kubernetes::{self, Kubernetes},
    crds,
    family::Family,
    patience,
};

/// So many wait for the next test; each takes a quarter of a GiB.
const IDLE: usize = 6;

/// How much etcd changes at once (its `--max-txn-ops`).
const AT_ONCE: usize = 128;

/// What belongs to the server, or comes and goes by itself.
const ITS_OWN: [&str; 14] = [
    "apiextensions.k8s.io/customresourcedefinitions/",
    "apiregistration.k8s.io/",
    "configmaps/kube-",
    "endpointslices/",
    "events/",
    "flowschemas/",
    "ipaddresses/",
    "leases/kube-system/",
    "masterleases/",
    "namespaces/kube-",
    "prioritylevelconfigurations/",
    "ranges/",
    "servicecidrs/",
    "services/",
];

static IDLING: Mutex<Vec<Shelved>> = Mutex::new(Vec::new());

/// Which definitions are in it: a family's, and whether the maintenance operator's beside them.
type Definitions = (Family, bool);

struct Shelved {
    kubernetes: Kubernetes,
    definitions: Definitions,
    /// What was in its etcd before the first test, by key.
    new: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A lent API server. Who changes it itself gives back what nobody else wants.
pub struct Lent {
    // There until it is dropped.
    it: Option<Shelved>,
    whole: bool,
}

impl Lent {
    /// One with these definitions and nothing else.
    pub async fn with(definitions: Definitions) -> Self {
        let it = match take(definitions) {
            Some(it) => {
                // What the last test still had under way may come after the first look.
                patience::until("an API server is as new", async || (!it.clean().await).then_some(())).await;
                it
            }
            None => Shelved::start(definitions).await,
        };
        Self { it: Some(it), whole: true }
    }
}

fn take(definitions: Definitions) -> Option<Shelved> {
    let mut idling = IDLING.lock().unwrap_or_else(PoisonError::into_inner);
    let at = idling.iter().position(|it| it.definitions == definitions)?;
    Some(idling.remove(at))
}

impl Deref for Lent {
    type Target = Kubernetes;

    fn deref(&self) -> &Kubernetes {
        &self.it.as_ref().unwrap().kubernetes
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Kubernetes {
        self.whole = false;
        &mut self.it.as_mut().unwrap().kubernetes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let it = self.it.take().unwrap();
        if !self.whole || std::thread::panicking() {
            return;
        }
        let mut idling = IDLING.lock().unwrap_or_else(PoisonError::into_inner);
        idling.push(it);
        // Those that nobody wanted for the longest time are the first.
        let surplus = idling.len().saturating_sub(IDLE);
        let gone: Vec<Shelved> = idling.drain(..surplus).collect();
        drop(idling);
        drop(gone);
    }
}

impl Shelved {
    async fn start(definitions: Definitions) -> Self {
        let kubernetes = Kubernetes::audited();
        let client = Kubernetes::client(&kubernetes.kubeconfig()).await;
        crds::install(&client, definitions.0, definitions.1).await;
        let mut etcd = connect(&kubernetes).await;
        let all = etcd.get(kubernetes::REGISTRY, Some(GetOptions::new().with_prefix())).await.unwrap();
        let new = all.kvs().iter().map(|one| (one.key().to_vec(), one.value().to_vec())).collect();
        Self { kubernetes, definitions, new }
    }

    /// Makes it what it was before the first test. Whether there was anything to do.
    async fn clean(&self) -> bool {
        let mut etcd = connect(&self.kubernetes).await;
        let all = etcd.get(kubernetes::REGISTRY, Some(GetOptions::new().with_prefix())).await.unwrap();
        let found: BTreeMap<&[u8], &[u8]> = all.kvs().iter().map(|one| (one.key(), one.value())).collect();
        let gone = found.keys().filter(|key| !self.new.contains_key(**key));
        let changed = self.new.iter().filter(|(key, value)| found.get(&***key) != Some(&&***value));
        let delete = gone.filter(|key| !is_its_own(key)).map(|key| TxnOp::delete(*key, None));
        let put = changed.filter(|(key, _)| !is_its_own(key));
        let put = put.map(|(key, value)| TxnOp::put(key.clone(), value.clone(), None));
        let all: Vec<TxnOp> = delete.chain(put).collect();
        for some in all.chunks(AT_ONCE) {
            etcd.txn(Txn::new().and_then(some)).await.unwrap();
        }
        !all.is_empty()
    }
}

fn is_its_own(key: &[u8]) -> bool {
    let name = key.strip_prefix(kubernetes::REGISTRY.as_bytes()).unwrap_or(key);
    ITS_OWN.iter().any(|own| name.starts_with(own.as_bytes()))
}

async fn connect(kubernetes: &Kubernetes) -> KvClient {
    Client::connect([kubernetes.etcd_host()], None).await.unwrap().kv_client()
}
