//! API servers lent to one test at a time (`support/lent.rs`), because starting one costs several
//! CPU seconds.
//!
//! Between tests, leftovers are deleted directly in etcd, bypassing finalizers, RBAC and
//! controllers.

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

/// Operations per etcd transaction (its `--max-txn-ops`).
const AT_ONCE: usize = 128;

/// Key prefixes that belong to the server or expire automatically.
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

/// Installed CRDs: a family's, and true if those of the maintenance operator are included.
type Definitions = (Family, bool);

/// An API server with its initial content.
pub struct Shelved {
    kubernetes: Kubernetes,
    definitions: Definitions,
    /// Initial content of its etcd, by key.
    new: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Lendable for Shelved {
    fn shelf() -> &'static Shelf<Self> {
        // Each uses a quarter of a GiB.
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
    /// Returns a server with only these CRDs.
    pub async fn with(definitions: Definitions) -> Self {
        let Some(it) = Shelved::shelf().take(|it| it.definitions == definitions) else {
            return Self::new(Shelved::start(definitions).await);
        };
        // Late writes of the last test can arrive after the first cleanup.
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

    /// Restores the initial content. Returns true if anything changed.
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
