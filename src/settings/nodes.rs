//! Which Kubernetes Nodes run on the servers, and what is done about them.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use crate::{
    backend::kubernetes_node::KubernetesNodes,
    clock::Clock,
    engine::Nodes,
    kubernetes::{Cluster, ClusterSettings, NODE_LEASES},
    maintenance::{drain::DrainWish, node::NodeLease},
};

use super::{Environment, KubernetesNodeInput, NodeLeasesInput, SettingsError};

/// How long evicting may take when nothing else is said.
const DRAIN: Duration = Duration::from_mins(10);
/// How long a Node may take to be Ready again when nothing else is said.
const READY: Duration = Duration::from_mins(15);

/// Which Nodes are minded, by their Leases and by draining them.
pub(super) fn nodes(
    leases: Option<NodeLeasesInput>,
    drains: Option<KubernetesNodeInput>,
    store: &str,
    env: &Environment,
    clock: &Arc<dyn Clock>,
) -> Result<Nodes, SettingsError> {
    let (leases, take) = match leases {
        Some(input) => (minded(&input, store)?, input.take),
        None => (BTreeMap::new(), false),
    };
    let drains = drains.unwrap_or_default();
    let wish = |node: &String| DrainWish {
        node: node.clone(),
        timeout: drains.drain_timeout.unwrap_or(DRAIN),
        ready_timeout: drains.ready_timeout.unwrap_or(READY),
        delete_emptydir_data: drains.delete_emptydir_data,
        force: drains.force,
    };
    let from = |name: &str| env.get(name).map(str::to_owned);
    let kubeconfig = drains.kubeconfig.clone().or_else(|| from("METAL_NODE_KUBECONFIG"));
    let cluster = ClusterSettings {
        kubeconfig: kubeconfig.or_else(|| from("METAL_KUBECONFIG")).map(PathBuf::from),
        context: drains.context.clone().or_else(|| from("METAL_NODE_CONTEXT")),
        ..ClusterSettings::default()
    };
    // Also without a configuration: the command line uncordons what a hold drained. Nothing is read or asked before.
    let drainer = Arc::new(KubernetesNodes::new(Cluster::new(cluster, Arc::clone(clock))));
    Ok(Nodes {
        leases,
        take,
        drains: drains.nodes.iter().map(|(server, node)| (server.clone(), wish(node))).collect(),
        drainer: Some(drainer),
    })
}

/// The Leases that are minded. They lie in the store's cluster.
fn minded(input: &NodeLeasesInput, store: &str) -> Result<BTreeMap<String, NodeLease>, SettingsError> {
    if !store.starts_with("kubernetes://") {
        let problem = format!(
            "the Leases of Nodes lie in the cluster of the coordination store, and {store} is in none; use a \
             coordination_url of the form kubernetes://namespace, or leave node_leases out"
        );
        return Err(SettingsError::Value { attribute: vec!["node_leases".to_owned()], problem });
    }
    let namespace = input.namespace.clone().unwrap_or_else(|| NODE_LEASES.to_owned());
    let lease = |node: &String| NodeLease { namespace: namespace.clone(), node: node.clone() };
    Ok(input.nodes.iter().map(|(server, node)| (server.clone(), lease(node))).collect())
}
