//! Configuration of gates that apply to servers of any backend. Each gate lives in its own folder;
//! its entry in [`GATES`] registers it.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt::Debug,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use crate::{clock::Clock, kubernetes::ClusterSettings};

use super::{
    GateKind,
    block::{Block, Problem, Setting, Variables},
    cluster_api, cluster_block, kubernetes_node,
    plug::path_trust,
};

/// Every gate that applies to servers of any backend, and the Node helpers.
pub static GATES: &[&dyn GatePlugin] = &[&cluster_api::Plugin, &kubernetes_node::Drains, &kubernetes_node::Leases];

/// Default time in which a Node must become Ready again.
pub(super) const READY: Duration = Duration::from_mins(15);

/// A provider block that applies to servers of any backend.
pub trait GatePlugin: Sync + Debug {
    /// Returns the block's name.
    fn name(&self) -> &'static str;

    /// Returns the block's Markdown description.
    fn description(&self) -> &'static str;

    /// Returns the block's attributes.
    fn settings(&self) -> &'static [Setting];

    /// Validates a block without the environment, files or network, so that `validate` can report
    /// problems. Unknown values are never wrong.
    fn check(&self, block: &Block) -> Vec<Problem>;

    /// Returns the servers whose Nodes this gate drains or drained, each with the attribute that
    /// lists it.
    fn drains(&self, _block: &Block) -> Vec<(String, &'static str)> {
        Vec::new()
    }

    /// Returns the external systems' gate without reading or requesting anything. `None` if the
    /// block concerns only Nodes. The gate exists even without a block, because the command line
    /// withdraws a maintenance's requests.
    fn connect(
        &self,
        _block: Option<&Block>,
        _env: Variables<'_>,
        _clock: &Arc<dyn Clock>,
    ) -> Option<Arc<dyn GateKind>> {
        None
    }
}

/// Reports servers that map to the same name: releasing the first would open the gate while the
/// second is held.
pub(super) fn named_twice(block: &Block, attribute: &str, what: &str) -> Vec<Problem> {
    let mut first: BTreeMap<String, String> = BTreeMap::new();
    let named = block.texts(attribute).into_iter().filter(|(_, name)| !name.is_empty());
    let twice = named.filter_map(|(server, name)| match first.entry(name) {
        Entry::Vacant(free) => {
            free.insert(server);
            None
        }
        Entry::Occupied(known) => {
            let problem =
                format!("The {what} {} already belongs to {}. A {what} runs on one server", known.key(), known.get());
            Some(Problem::of(&[attribute, &server], problem))
        }
    });
    twice.collect()
}

/// Returns the default kubeconfig file's cluster.
pub(super) fn usual(env: Variables<'_>) -> ClusterSettings {
    cluster(cluster_block::KUBECONFIG.from_env(env), None, env)
}

/// Returns a cluster by kubeconfig file and context.
pub(super) fn cluster(kubeconfig: Option<String>, context: Option<String>, env: Variables<'_>) -> ClusterSettings {
    let (kubeconfig, trust) = (kubeconfig.map(PathBuf::from), path_trust(env));
    ClusterSettings { kubeconfig, context, trust, ..ClusterSettings::default() }
}
