//! Which Kubernetes Nodes run on the servers, and what is done about them.

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::{
    backend::kubernetes_node::KubernetesNodes,
    clock::Clock,
    engine::Nodes,
    kubernetes::{Cluster, ClusterSettings, NODE_LEASES},
    maintenance::{drain::DrainWish, node::NodeLease},
};

use super::{Environment, KubernetesNodeInput, NodeLeasesInput, variables};

/// How long evicting may take when nothing else is said.
const DRAIN: Duration = Duration::from_mins(10);
/// How long a Node may take to be Ready again when nothing else is said.
pub(super) const READY: Duration = Duration::from_mins(15);

/// Which Nodes are minded, by their Leases and by draining them. `of_store`: the cluster of the
/// coordination store, where it is in one.
pub(super) fn nodes(
    leases: Option<NodeLeasesInput>,
    drains: Option<KubernetesNodeInput>,
    of_store: Option<ClusterSettings>,
    env: &Environment,
    clock: &Arc<dyn Clock>,
) -> Nodes {
    let (leases, drains) = (leases.unwrap_or_default(), drains.unwrap_or_default());
    let wish = |node: &String| DrainWish {
        node: node.clone(),
        timeout: drains.drain_timeout.unwrap_or(DRAIN),
        ready_timeout: drains.ready_timeout.unwrap_or(READY),
        delete_emptydir_data: drains.delete_emptydir_data,
        force: drains.force,
    };
    let namespace = leases.namespace.unwrap_or_else(|| NODE_LEASES.to_owned());
    let lease = |node: &String| NodeLease { namespace: namespace.clone(), node: node.clone() };
    let nodes_of = |settings| Arc::new(KubernetesNodes::new(Cluster::new(settings, Arc::clone(clock))));
    let of_leases = of_nodes(leases.kubeconfig, leases.context, env);
    let of_drains = of_nodes(drains.kubeconfig, drains.context, env);
    let (of_leases, of_drains) = clusters(of_leases, of_drains, of_store, env);
    // Both also without a configuration: the command line gives back what a hold took. Nothing is
    // read or asked before.
    Nodes {
        leases: leases.nodes.iter().map(|(server, node)| (server.clone(), lease(node))).collect(),
        take: leases.take,
        leasing: Some(nodes_of(of_leases)),
        drains: drains.nodes.iter().map(|(server, node)| (server.clone(), wish(node))).collect(),
        drainer: Some(nodes_of(of_drains)),
    }
}

/// The cluster of the Leases and that of the drains. Both are about the Nodes of the servers: where
/// only one is named, it is meant for both.
fn clusters(
    of_leases: Option<ClusterSettings>,
    of_drains: Option<ClusterSettings>,
    of_store: Option<ClusterSettings>,
    env: &Environment,
) -> (ClusterSettings, ClusterSettings) {
    let leases = of_leases.clone().or_else(|| of_drains.clone()).or(of_store);
    (leases.unwrap_or_else(|| usual(env)), of_drains.or(of_leases).unwrap_or_else(|| usual(env)))
}

/// The cluster of the Nodes, where the configuration or the environment names it.
fn of_nodes(kubeconfig: Option<String>, context: Option<String>, env: &Environment) -> Option<ClusterSettings> {
    let from = |name: &str| env.get(name).map(str::to_owned);
    let kubeconfig = kubeconfig.or_else(|| from(variables::NODE_KUBECONFIG));
    let context = context.or_else(|| from(variables::NODE_CONTEXT));
    if kubeconfig.is_none() && context.is_none() {
        return None;
    }
    let usual = usual(env);
    let kubeconfig = kubeconfig.map(PathBuf::from).or(usual.kubeconfig);
    Some(ClusterSettings { kubeconfig, context, ..ClusterSettings::default() })
}

/// The cluster of the usual kubeconfig.
fn usual(env: &Environment) -> ClusterSettings {
    ClusterSettings { kubeconfig: env.get(variables::KUBECONFIG).map(PathBuf::from), ..ClusterSettings::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_and_drains_are_in_one_cluster_unless_each_names_its_own() {
        let env = |named: &[(&str, &str)]| Environment {
            variables: named.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        };
        let of_store = || Some(ClusterSettings { kubeconfig: Some("store".into()), ..ClusterSettings::default() });
        let found = |leases: Option<&str>, drains: Option<&str>, store, env: &Environment| {
            let of = |named: Option<&str>| of_nodes(named.map(str::to_owned), None, env);
            let (leases, drains) = clusters(of(leases), of(drains), store, env);
            [leases, drains]
                .map(|cluster| cluster.kubeconfig.map_or_else(String::new, |file| file.display().to_string()))
        };
        let usual = env(&[("METAL_KUBECONFIG", "usual")]);
        let nodes = env(&[("METAL_KUBECONFIG", "usual"), ("METAL_NODE_KUBECONFIG", "nodes")]);
        assert_eq!(found(None, None, None, &usual), ["usual", "usual"]);
        assert_eq!(found(None, None, of_store(), &usual), ["store", "usual"]);
        assert_eq!(found(None, None, of_store(), &nodes), ["nodes", "nodes"]);
        assert_eq!(found(None, Some("drains"), of_store(), &usual), ["drains", "drains"]);
        assert_eq!(found(Some("leases"), None, None, &usual), ["leases", "leases"]);
        assert_eq!(found(Some("leases"), Some("drains"), None, &nodes), ["leases", "drains"]);
        assert_eq!(found(None, Some("drains"), None, &nodes), ["nodes", "drains"]);
    }
}
