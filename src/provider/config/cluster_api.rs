//! The `cluster_api` part of the provider block.

use std::collections::BTreeMap;

use tf_provider::{AttributePath, Diagnostics};

use crate::{backend::cluster_api::MachineName, settings::ClusterApiInput};

use crate::provider::{
    shared::block::block,
    shared::schema::optional,
    shared::values::{Text, Texts, bad, duration, given, not_empty, texts},
};

block! {
    /// `cluster_api`.
    pub(in crate::provider) struct ClusterApiModel {
        machines: Texts => optional(
            Map(Box::new(String)),
            "The Machine that each server is, as `namespace/name`, by the server's name. The Machine of a BareMetalHost (`metal3`) is found through its consumer and need not be named. A server without a Machine is taken without asking.",
        );
        kubeconfig: Text => optional(
            String,
            "A kubeconfig file for the management cluster, which has the Machines. Default: `METAL_CLUSTER_API_KUBECONFIG`, `METAL_KUBECONFIG`, `KUBECONFIG`, `~/.kube/config`, and inside a pod its service account.",
        );
        context: Text => optional(String, "Which of its contexts. Default: `METAL_CLUSTER_API_CONTEXT`, else the current one.");
        workload_kubeconfig: Text => optional(
            String,
            "A kubeconfig file for the workload cluster, which has the Nodes. Default: `METAL_WORKLOAD_KUBECONFIG`, else that of the management cluster.",
        );
        workload_context: Text => optional(
            String,
            "Which of its contexts. Default: `METAL_WORKLOAD_CONTEXT`; else the current one of `workload_kubeconfig`, or `context` where that is not set.",
        );
        ready_timeout: Text => optional(
            String,
            "How long a Node that was Ready before may take to be Ready again, before a destroy says that it is not and the label stays. Default: `\"15m\"`.",
        );
    }
}

impl ClusterApiModel {
    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics) -> ClusterApiInput {
        let Self { machines, kubeconfig, context, workload_kubeconfig, workload_context, ready_timeout } = self;
        let at = || AttributePath::new("cluster_api");
        let mut text = |name: &'static str, value: &Text| {
            not_empty(diags, value, at().attribute(name));
            given(value).map(str::to_owned)
        };
        let mut input = ClusterApiInput {
            machines: BTreeMap::new(),
            kubeconfig: text("kubeconfig", kubeconfig),
            context: text("context", context),
            workload_kubeconfig: text("workload_kubeconfig", workload_kubeconfig),
            workload_context: text("workload_context", workload_context),
            ready_timeout: duration(diags, ready_timeout, at().attribute("ready_timeout")),
        };
        for (server, text) in texts(machines) {
            match MachineName::read(&text) {
                Some(machine) => drop(input.machines.insert(server, machine)),
                None => bad(
                    diags,
                    at().attribute("machines").key(server),
                    "No name of a Machine",
                    format!("{text:?} is not namespace/name. Leave out a server without a Machine."),
                ),
            }
        }
        input
    }
}
