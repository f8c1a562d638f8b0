//! The `cluster_api` block.

use std::sync::Arc;

use crate::{
    backend::{
        GateKind,
        block::{AttributeKind, Block, Problem, Setting, Variables},
        cluster_block,
        gate_plug::{self, GatePlugin, READY, named_twice},
    },
    clock::Clock,
    kubernetes::Cluster,
};

use super::{ClusterApi, ClusterApiSettings, ID, MachineName};

/// The block.
#[derive(Debug)]
pub struct Plugin;

/// The environment variable with the Machines' namespace, for a command line whose role is limited
/// to one namespace.
pub const NAMESPACE: &str = "METAL_CLUSTER_API_NAMESPACE";

const MACHINES: Setting = Setting::new(
    "machines",
    AttributeKind::Texts,
    "Each server's Machine as `namespace/name`, by server name. A BareMetalHost's Machine (`metal3`) is found through its consumer, so you can omit it. A server without a Machine does not wait for this gate.",
);

const KUBECONFIG: Setting = Setting::new(
    "kubeconfig",
    AttributeKind::Name,
    "A kubeconfig file for the management cluster, which contains the Machines.",
)
.or_env(
    "METAL_CLUSTER_API_KUBECONFIG",
    ", `METAL_KUBECONFIG`, `KUBECONFIG`, `~/.kube/config`, and inside a pod its service account",
);

const CONTEXT: Setting = Setting::new("context", AttributeKind::Name, "The kubeconfig's context.")
    .or_env("METAL_CLUSTER_API_CONTEXT", ", else the current context");

const WORKLOAD_KUBECONFIG: Setting = Setting::new(
    "workload_kubeconfig",
    AttributeKind::Name,
    "A kubeconfig file for the workload cluster, which contains the Nodes.",
)
.or_env("METAL_WORKLOAD_KUBECONFIG", ", else the management cluster");

const WORKLOAD_CONTEXT: Setting = Setting::new("workload_context", AttributeKind::Name, "The kubeconfig's context.")
    .or_env(
        "METAL_WORKLOAD_CONTEXT",
        "; else the current context of `workload_kubeconfig`, or `context` if that is not set",
    );

const READY_TIMEOUT: Setting = Setting::new(
    "ready_timeout",
    AttributeKind::Duration,
    "How long a Node that was Ready before can take to become Ready again. After this time, a destroy reports that it is not Ready, and the label stays. Default: `\"15m\"`.",
);

impl GatePlugin for Plugin {
    fn name(&self) -> &'static str {
        ID
    }

    fn description(&self) -> &'static str {
        "Cluster API with SAP's maintenance controller, for servers of any backend. The provider labels the server's Machine `requested`. It locks the server after the maintenance controller has drained the Node and the runtime extension shows `approved`. It removes the label after the server is restored and its Node is Ready again. Power operations that stop workloads wait for the same approval. Without the controller's labels, use `kubernetes_node`."
    }

    fn settings(&self) -> &'static [Setting] {
        &[MACHINES, KUBECONFIG, CONTEXT, WORKLOAD_KUBECONFIG, WORKLOAD_CONTEXT, READY_TIMEOUT]
    }

    fn check(&self, block: &Block) -> Vec<Problem> {
        let machines = block.texts(MACHINES.name);
        let wrong = machines.into_iter().filter(|(_, machine)| MachineName::read(machine).is_none());
        let wrong = wrong.map(|(server, text)| {
            let problem =
                format!("{text:?} is not the namespace/name of a Machine. Leave out a server without a Machine");
            Problem::of(&[MACHINES.name, &server], problem)
        });
        wrong.chain(named_twice(block, MACHINES.name, "Machine")).collect()
    }

    fn drains(&self, block: &Block) -> Vec<(String, &'static str)> {
        block.texts(MACHINES.name).into_keys().map(|server| (server, MACHINES.name)).collect()
    }

    fn connect(&self, block: Option<&Block>, env: Variables<'_>, clock: &Arc<dyn Clock>) -> Option<Arc<dyn GateKind>> {
        let follows = block.is_some();
        let nothing = Block::default();
        let block = block.unwrap_or(&nothing);
        let lists = follows || [KUBECONFIG, CONTEXT].iter().any(|it| it.from_env(env).is_some());
        let kubeconfig = KUBECONFIG.value(block, env).or_else(|| cluster_block::KUBECONFIG.from_env(env));
        let context = CONTEXT.value(block, env);
        let workload_kubeconfig = WORKLOAD_KUBECONFIG.value(block, env);
        // A self-managed cluster contains both kinds, so the Machines' cluster is the default for
        // Nodes.
        let same = workload_kubeconfig.is_none();
        let workload_context = WORKLOAD_CONTEXT.value(block, env).or_else(|| context.clone().filter(|_| same));
        let cluster =
            |kubeconfig, context| Cluster::new(gate_plug::cluster(kubeconfig, context, env), Arc::clone(clock));
        let machines = block.texts(MACHINES.name).into_iter();
        let settings = ClusterApiSettings {
            workload: cluster(workload_kubeconfig.or_else(|| kubeconfig.clone()), workload_context),
            management: cluster(kubeconfig, context),
            machines: machines.filter_map(|(server, text)| Some((server, MachineName::read(&text)?))).collect(),
            follows,
            lists,
            namespace: env(NAMESPACE),
            ready_timeout: block.duration(READY_TIMEOUT.name).unwrap_or(READY),
        };
        Some(Arc::new(ClusterApi::new(settings, Arc::clone(clock))))
    }
}
