//! An API server that one test after the other has for itself (`support/lent.rs`). Starting one
//! costs a core several seconds.
//!
//! What a test left in it is taken away behind its back, in its etcd: no finalizer, no right and no
//! controller has a say.

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
};

use etcd_client::{Client, GetOptions, KvClient, Txn, TxnOp};

use super::{
    super::{
        kubernetes::{self, Kubernetes},
        lent::{Lendable, Lent, Shelf},
    },
    crds,
    family::Family,
    patience,
};

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

/// Which definitions are in it: a family's, and whether the maintenance operator's beside them.
type Definitions = (Family, bool);

/// An API server with what was in it at first.
pub struct Shelved {
    kubernetes: Kubernetes,
    definitions: Definitions,
    /// What was in its etcd before the first test, by key.
    new: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Lendable for Shelved {
    fn shelf() -> &'static Shelf<Self> {
        // Each takes a quarter of a GiB.
        static SHELF: Shelf<Shelved> = Shelf::of(6);
        &SHELF
    }
}

impl Deref for Shelved {
    type Target = Kubernetes;

    fn deref(&self) -> &Kubernetes {
        &self.kubernetes
    }
}

impl DerefMut for Shelved {
    fn deref_mut(&mut self) -> &mut Kubernetes {
        &mut self.kubernetes
    }
}

/// A lent API server.
pub type LentKubernetes = Lent<Shelved>;

impl LentKubernetes {
    /// One with these definitions and nothing else.
    pub async fn with(definitions: Definitions) -> Self {
        let Some(it) = Shelved::shelf().take(|it| it.definitions == definitions) else {
            return Self::new(Shelved::start(definitions).await);
        };
        // What the last test still had under way may come after the first look.
        patience::until("an API server is as new", async || (!it.clean().await).then_some(())).await;
        Self::new(it)
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
