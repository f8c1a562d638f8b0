//! What makes a gate before the servers of any backend configurable: its block. The gate's folder
//! brings it; the one line outside is its entry in [`GATES`].

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
};

/// The gates that stand before the servers of any backend, and what minds their Nodes.
pub static GATES: &[&dyn GatePlugin] = &[&cluster_api::Plugin, &kubernetes_node::Drains, &kubernetes_node::Leases];

/// How long a Node may take to be Ready again when nothing else is said.
pub(super) const READY: Duration = Duration::from_mins(15);

/// A block of the provider configuration that stands before the servers of any backend.
pub trait GatePlugin: Sync + Debug {
    /// The name of its block.
    fn name(&self) -> &'static str;

    /// What the block is for, in Markdown.
    fn description(&self) -> &'static str;

    /// The attributes of the block.
    fn settings(&self) -> &'static [Setting];

    /// Everything that is wrong with a block as it is written: found without the environment, files
    /// or the network, so that `validate` reports it. A value that is not known yet is never wrong.
    fn check(&self, block: &Block) -> Vec<Problem>;

    /// The servers whose Node it drains, or has drained, with the attribute that names them.
    fn drains(&self, _block: &Block) -> Vec<(String, &'static str)> {
        Vec::new()
    }

    /// The gate that external systems open. Also where nothing configures it: the command line
    /// withdraws the requests of a hold. Nothing is read or asked before. `None`: it minds Nodes
    /// alone.
    fn connect(
        &self,
        _block: Option<&Block>,
        _env: Variables<'_>,
        _clock: &Arc<dyn Clock>,
    ) -> Option<Arc<dyn GateKind>> {
        None
    }
}

/// The servers that name what another server names too: the release of one would open it while the
/// other is held.
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
                format!("The {what} {} is that of {} already. A {what} runs on one server", known.key(), known.get());
            Some(Problem::of(&[attribute, &server], problem))
        }
    });
    twice.collect()
}

/// The cluster of the kubeconfig file that is used where nothing else names one.
pub(super) fn usual(env: Variables<'_>) -> ClusterSettings {
    cluster(cluster_block::KUBECONFIG.from_env(env), None)
}

/// A cluster by its kubeconfig file and a context of it.
pub(super) fn cluster(kubeconfig: Option<String>, context: Option<String>) -> ClusterSettings {
    ClusterSettings { kubeconfig: kubeconfig.map(PathBuf::from), context, ..ClusterSettings::default() }
}
