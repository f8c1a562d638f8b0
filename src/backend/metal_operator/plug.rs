//! The `metal_operator` block.

use std::{path::PathBuf, sync::Arc};

use crate::{
    backend::{
        cluster_block,
        plug::{
            AttributeKind, BackendFlag, BackendPlugin, Block, Connected, ExternalBootMethod, Problem, Setting,
            Variables,
        },
    },
    clock::Clock,
    kubernetes::{Cluster, ClusterSettings},
};

use super::{
    MetalOperatorBackend, MetalOperatorSettings,
    objects::{MANAGER, OPERATION},
};

/// The `metal_operator` block's plugin.
#[derive(Debug)]
pub struct Plugin;

const SETTINGS: &[Setting] = &[
    cluster_block::KUBECONFIG,
    cluster_block::CONTEXT,
    cluster_block::HOST,
    cluster_block::TOKEN_FILE,
    cluster_block::CA_CERTIFICATE_FILE,
    Setting::new(
        "node_kubeconfig",
        AttributeKind::Text,
        "For `metal_maintenance_approval` with `node`: a kubeconfig file for the cluster whose Nodes run on the servers. Default: the servers' own cluster.",
    ),
    Setting::new(
        "node_context",
        AttributeKind::Text,
        "The context of `node_kubeconfig`. Default: the current context.",
    ),
    cluster_block::namespace_setting(
        "The namespace for the provider's ServerMaintenances and Secrets. An existing maintenance keeps its record's namespace.",
    ),
    cluster_block::REQUEST_TIMEOUT,
    cluster_block::BMC_NETWORKS,
    cluster_block::authority_setting(
        "The authority that signed the BMCs' certificates, as PEM. The provider contacts a BMC directly if the cluster does not control a server in maintenance.",
    ),
    cluster_block::BMC_INSECURE,
];

const FLAGS: &[BackendFlag] = &[BackendFlag::selects(
    "metal-operator",
    "The servers belong to metal-operator: METAL_KUBECONFIG or KUBECONFIG, METAL_KUBE_CONTEXT and METAL_KUBE_NAMESPACE \
     select its cluster; the same as --backend metal_operator",
)];

impl BackendPlugin for Plugin {
    fn name(&self) -> &'static str {
        "metal_operator"
    }

    fn description(&self) -> &'static str {
        "Servers that IronCore's metal-operator manages in a Kubernetes cluster. The provider detects the cluster's features; see the guide about metal-operator. Exactly one backend per provider configuration."
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn flags(&self) -> &'static [BackendFlag] {
        FLAGS
    }

    fn check(&self, block: &Block) -> Vec<Problem> {
        cluster_block::check(block)
    }

    fn connect(&self, block: &Block, env: Variables<'_>, clock: &Arc<dyn Clock>) -> Result<Connected, Problem> {
        let cluster = cluster_block::cluster(block, env);
        let (node_kubeconfig, node_context) = (block.text("node_kubeconfig"), block.text("node_context"));
        let nodes = (node_kubeconfig.is_some() || node_context.is_some()).then(|| ClusterSettings {
            kubeconfig: node_kubeconfig.map(PathBuf::from),
            context: node_context,
            request_timeout: cluster.request_timeout,
            trust: cluster.trust,
            ..ClusterSettings::default()
        });
        let settings = MetalOperatorSettings {
            cluster: Cluster::new(cluster, Arc::clone(clock)),
            namespace: cluster_block::namespace(block, env),
            trust: cluster_block::bmc_trust(block, env)?,
            bmc_networks: cluster_block::bmc_networks(block, env)?,
            nodes: nodes.map(|nodes| Cluster::new(nodes, Arc::clone(clock))),
        };
        Ok(Connected::quiet(MetalOperatorBackend::new(settings, clock)))
    }

    fn by_hand(&self, server: &str) -> Option<String> {
        Some(format!(
            "kubectl get servermaintenances -A -l app.kubernetes.io/managed-by={MANAGER} shows it; deleting it is safe. A Server \
             that is parked instead: kubectl annotate server {server} --overwrite {OPERATION}=unpark"
        ))
    }

    fn boot_methods(&self) -> &'static [&'static ExternalBootMethod] {
        &[&cluster_block::BOOT_OPERATOR]
    }

    fn reach(&self) -> String {
        format!("--metal-operator, and {} of that cluster", cluster_block::variables())
    }

    fn has_own_claims(&self) -> bool {
        true
    }
}
