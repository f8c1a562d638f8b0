//! The gates that stand before the servers of any backend.

use std::{path::PathBuf, sync::Arc};

use crate::{
    backend::{
        GateKind,
        cluster_api::{ClusterApi, ClusterApiSettings},
    },
    clock::Clock,
    kubernetes::{Cluster, ClusterSettings},
};

use super::{ClusterApiInput, Environment, nodes::READY, variables};

/// All of them. Also those that nothing configures: the command line withdraws the requests of a
/// hold. Nothing is read or asked before.
pub(super) fn gates(
    cluster_api: Option<ClusterApiInput>,
    env: &Environment,
    clock: &Arc<dyn Clock>,
) -> Vec<Arc<dyn GateKind>> {
    let follows = cluster_api.is_some();
    let input = cluster_api.unwrap_or_default();
    let from = |name: &str| env.get(name).map(str::to_owned);
    let lists = follows
        || [variables::CLUSTER_API_KUBECONFIG, variables::CLUSTER_API_CONTEXT]
            .into_iter()
            .any(|it| env.get(it).is_some());
    let kubeconfig =
        input.kubeconfig.or_else(|| from(variables::CLUSTER_API_KUBECONFIG)).or_else(|| from(variables::KUBECONFIG));
    let context = input.context.or_else(|| from(variables::CLUSTER_API_CONTEXT));
    let workload_kubeconfig = input.workload_kubeconfig.or_else(|| from(variables::WORKLOAD_KUBECONFIG));
    let workload_context = input.workload_context.or_else(|| from(variables::WORKLOAD_CONTEXT));
    // A cluster that manages itself has both: what is not named is that of the Machines.
    let same = workload_kubeconfig.is_none();
    let cluster = |kubeconfig: Option<String>, context: Option<String>| {
        let kubeconfig = kubeconfig.map(PathBuf::from);
        Cluster::new(ClusterSettings { kubeconfig, context, ..ClusterSettings::default() }, Arc::clone(clock))
    };
    let workload = cluster(
        workload_kubeconfig.or_else(|| kubeconfig.clone()),
        workload_context.or_else(|| context.clone().filter(|_| same)),
    );
    let settings = ClusterApiSettings {
        management: cluster(kubeconfig, context),
        workload,
        machines: input.machines,
        follows,
        lists,
        namespace: from(variables::CLUSTER_API_NAMESPACE),
        ready_timeout: input.ready_timeout.unwrap_or(READY),
    };
    vec![Arc::new(ClusterApi::new(settings, Arc::clone(clock)))]
}
