//! The `kubernetes_node` and `node_leases` blocks, which map servers to Kubernetes Nodes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    backend::{
        block::{AttributeKind, Block, Problem, Setting, Variables},
        gate_plug::{self, GatePlugin, READY, named_twice, usual},
    },
    clock::Clock,
    kubernetes::{Cluster, ClusterSettings, NODE_LEASES},
    maintenance::{drain::DrainWish, node::NodeLease},
};

use super::KubernetesNodes;

const DRAIN: Duration = Duration::from_mins(10);

const NODES: Setting = Setting::new(
    "nodes",
    AttributeKind::Texts,
    "The Node that runs on each server, by server name. An omitted server does not have a Node.",
)
.required();

/// Returns the kubeconfig attribute of either block.
const fn kubeconfig(otherwise: &'static str) -> Setting {
    Setting::new("kubeconfig", AttributeKind::Name, "A kubeconfig file for the Nodes' cluster.")
        .or_env("METAL_NODE_KUBECONFIG", otherwise)
}

const CONTEXT: Setting = Setting::new("context", AttributeKind::Name, "The kubeconfig's context.")
    .or_env("METAL_NODE_CONTEXT", ", else as for `kubeconfig`, or the current context");

const DRAIN_TIMEOUT: Setting = Setting::new(
    "drain_timeout",
    AttributeKind::Duration,
    "How long the evictions can take before the maintenance fails and the Node is uncordoned. Default: `\"10m\"`.",
);

const READY_TIMEOUT: Setting = Setting::new(
    "ready_timeout",
    AttributeKind::Duration,
    "How long a Node that was Ready before can take to become Ready again. After this time, a destroy reports that it is not Ready. Default: `\"15m\"`.",
);

const DELETE_EMPTYDIR_DATA: Setting = Setting::new(
    "delete_emptydir_data",
    AttributeKind::Flag,
    "Also evict Pods that lose their `emptyDir` volumes. Default: `false`: a plan lists them, and an apply fails.",
);

const FORCE: Setting = Setting::new(
    "force",
    AttributeKind::Flag,
    "Also evict Pods that no controller restarts. Default: `false`: a plan lists them, and an apply fails.",
);

const TAKE: Setting = Setting::new(
    "take",
    AttributeKind::Flag,
    "Also take the Lease while the server is locked by a `metal_server_maintenance`. Default: `false`: only wait until no other component holds it.",
);

const NAMESPACE: Setting =
    Setting::new("namespace", AttributeKind::Name, "The Leases' namespace. Default: `medik8s-leases`.");

/// The `kubernetes_node` block.
#[derive(Debug)]
pub struct Drains;

/// The `node_leases` block.
#[derive(Debug)]
pub struct Leases;

impl GatePlugin for Drains {
    fn name(&self) -> &'static str {
        "kubernetes_node"
    }

    fn description(&self) -> &'static str {
        "Kubernetes Nodes that run on the servers. Before a server is taken out of service or restarted, its Node is cordoned, and its Pods are evicted as disruption budgets allow. The Node is uncordoned when it is Ready again. A Node that was cordoned before stays cordoned."
    }

    fn settings(&self) -> &'static [Setting] {
        const KUBECONFIG: Setting = kubeconfig(
            ", else that of `node_leases`, else `METAL_KUBECONFIG`, `KUBECONFIG`, `~/.kube/config`, and inside a pod its service account",
        );
        &[NODES, KUBECONFIG, CONTEXT, DRAIN_TIMEOUT, READY_TIMEOUT, DELETE_EMPTYDIR_DATA, FORCE]
    }

    fn check(&self, block: &Block) -> Vec<Problem> {
        let mut problems = nameless(block);
        problems.extend(named_twice(block, NODES.name, "Node"));
        problems
    }

    fn drains(&self, block: &Block) -> Vec<(String, &'static str)> {
        block.texts(NODES.name).into_keys().map(|server| (server, NODES.name)).collect()
    }
}

impl GatePlugin for Leases {
    fn name(&self) -> &'static str {
        "node_leases"
    }

    fn description(&self) -> &'static str {
        "Kubernetes Nodes that run on the servers. The provider honours the Lease that medik8s's operators share for a Node (`node-<name>`), and takes it with `take = true`. For any coordination store."
    }

    fn settings(&self) -> &'static [Setting] {
        const KUBECONFIG: Setting = kubeconfig(
            ", else that of `kubernetes_node`, else the cluster of a `kubernetes://` store, else `METAL_KUBECONFIG`, `KUBECONFIG`, `~/.kube/config`, and inside a pod its service account",
        );
        &[NODES, TAKE, NAMESPACE, KUBECONFIG, CONTEXT]
    }

    fn check(&self, block: &Block) -> Vec<Problem> {
        let mut problems = nameless(block);
        problems.extend(named_twice(block, NODES.name, "Node"));
        problems
    }
}

/// Reports the servers whose Node name is empty.
fn nameless(block: &Block) -> Vec<Problem> {
    let nodes = block.texts(NODES.name).into_iter().filter(|(_, node)| node.is_empty());
    let problem = "A Node's name must not be empty. Leave out a server without a Node";
    nodes.map(|(server, _)| Problem::of(&[NODES.name, &server], problem)).collect()
}

/// The servers' Nodes, their Leases and their drains.
#[derive(Debug)]
pub struct Minded {
    /// Each server's Node Lease, by server name.
    pub leases: BTreeMap<String, NodeLease>,
    /// True if a maintenance acquires the Lease.
    pub take: bool,
    /// Access to the Leases.
    pub leasing: Arc<KubernetesNodes>,
    /// Each server's drain settings, by server name.
    pub drains: BTreeMap<String, DrainWish>,
    /// Access to the drained Nodes.
    pub drainer: Arc<KubernetesNodes>,
}

/// Connects Leases and drains without sending a request. Works without any block too, because the
/// command line releases a maintenance's Leases and cordons. `of_store` is the coordination store's
/// cluster, if it uses Kubernetes.
pub fn connect(
    leases: Option<&Block>,
    drains: Option<&Block>,
    of_store: Option<ClusterSettings>,
    env: Variables<'_>,
    clock: &Arc<dyn Clock>,
) -> Minded {
    let nothing = Block::default();
    let (leases, drains) = (leases.unwrap_or(&nothing), drains.unwrap_or(&nothing));
    let wish = |node| DrainWish {
        node,
        timeout: drains.duration(DRAIN_TIMEOUT.name).unwrap_or(DRAIN),
        ready_timeout: drains.duration(READY_TIMEOUT.name).unwrap_or(READY),
        delete_emptydir_data: drains.flag(DELETE_EMPTYDIR_DATA.name).unwrap_or(false),
        force: drains.flag(FORCE.name).unwrap_or(false),
    };
    let namespace = leases.text(NAMESPACE.name).unwrap_or_else(|| NODE_LEASES.to_owned());
    let lease = |node| NodeLease { namespace: namespace.clone().into(), node };
    let nodes_of =
        |settings| Arc::new(KubernetesNodes::new(Cluster::new(settings, Arc::clone(clock)), Arc::clone(clock)));
    let (of_leases, of_drains) = clusters(leases, drains, of_store, env);
    let nodes = |block: &Block| block.texts(NODES.name).into_iter();
    Minded {
        leases: nodes(leases).map(|(server, node)| (server, lease(node.into()))).collect(),
        take: leases.flag(TAKE.name).unwrap_or(false),
        leasing: nodes_of(of_leases),
        drains: nodes(drains).map(|(server, node)| (server, wish(node.into()))).collect(),
        drainer: nodes_of(of_drains),
    }
}

/// Returns the clusters of the Leases and the drains. If only one block names a cluster, it applies
/// to both.
fn clusters(
    leases: &Block,
    drains: &Block,
    of_store: Option<ClusterSettings>,
    env: Variables<'_>,
) -> (ClusterSettings, ClusterSettings) {
    let (of_leases, of_drains) = (named(leases, env), named(drains, env));
    let leases = of_leases.clone().or_else(|| of_drains.clone()).or(of_store);
    (leases.unwrap_or_else(|| usual(env)), of_drains.or(of_leases).unwrap_or_else(|| usual(env)))
}

/// Returns the Nodes' cluster if the block or the environment names it.
fn named(block: &Block, env: Variables<'_>) -> Option<ClusterSettings> {
    let (kubeconfig, context) = (kubeconfig("").value(block, env), CONTEXT.value(block, env));
    if kubeconfig.is_none() && context.is_none() {
        return None;
    }
    let of_kubeconfig = gate_plug::cluster(kubeconfig, context, env);
    Some(ClusterSettings { kubeconfig: of_kubeconfig.kubeconfig.or(usual(env).kubeconfig), ..of_kubeconfig })
}

#[cfg(test)]
mod tests {
    use crate::backend::block::Given;

    use super::*;

    #[test]
    fn a_node_runs_on_one_server() {
        let texts = |all: &[(&str, &str)]| {
            let text = |(server, node): &(&str, &str)| ((*server).to_owned(), (*node).to_owned());
            Given::Texts(all.iter().map(text).collect())
        };
        let mut block = Block::default();
        block.set("nodes", texts(&[("a", "n1"), ("b", "n2"), ("c", "n1"), ("d", "")]));
        for plugin in [&Drains as &dyn GatePlugin, &Leases] {
            let problems = plugin.check(&block);
            let at: Vec<_> = problems.iter().map(|problem| problem.at.join(".")).collect();
            assert_eq!(at, ["nodes.d", "nodes.c"], "{problems:?}");
            assert!(problems[1].problem.contains("n1 already belongs to a"), "{problems:?}");
        }
    }

    #[test]
    fn leases_and_drains_are_in_one_cluster_unless_each_names_its_own() {
        let of_store = || Some(gate_plug::cluster(Some("store".to_owned()), None, &|_| None));
        let found = |of_leases: Option<&str>, of_drains: Option<&str>, store, variables: &[(&str, &str)]| {
            let block = |file: Option<&str>| {
                let mut block = Block::default();
                if let Some(file) = file {
                    block.set("kubeconfig", Given::Text(file.to_owned()));
                }
                block
            };
            let env = |name: &str| {
                let found = variables.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let (leases, drains) = clusters(&block(of_leases), &block(of_drains), store, &env);
            [leases, drains]
                .map(|cluster| cluster.kubeconfig.map_or_else(String::new, |file| file.display().to_string()))
        };
        let usual = [("METAL_KUBECONFIG", "usual")];
        let nodes = [("METAL_KUBECONFIG", "usual"), ("METAL_NODE_KUBECONFIG", "nodes")];
        let context = [("METAL_KUBECONFIG", "usual"), ("METAL_NODE_CONTEXT", "nodes")];
        assert_eq!(found(None, None, None, &usual), ["usual", "usual"]);
        assert_eq!(found(None, None, of_store(), &usual), ["store", "usual"]);
        assert_eq!(found(None, None, of_store(), &nodes), ["nodes", "nodes"]);
        assert_eq!(found(None, None, of_store(), &context), ["usual", "usual"]);
        assert_eq!(found(None, Some("drains"), of_store(), &usual), ["drains", "drains"]);
        assert_eq!(found(Some("leases"), None, None, &usual), ["leases", "leases"]);
        assert_eq!(found(Some("leases"), Some("drains"), None, &nodes), ["leases", "drains"]);
        assert_eq!(found(None, Some("drains"), None, &nodes), ["nodes", "drains"]);
    }
}
