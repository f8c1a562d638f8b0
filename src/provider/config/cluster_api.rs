//! The `cluster_api` part of the provider block.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tf_provider::{AttributePath, Diagnostics, schema::AttributeType, value::Value};

use crate::{backend::cluster_api::MachineName, settings::ClusterApiInput};

use crate::provider::{
    shared::schema::{object, optional},
    shared::values::{Text, Texts, bad, given, not_empty, texts, texts_unknown},
};

/// `cluster_api`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct ClusterApiModel {
    machines: Texts,
    kubeconfig: Text,
    context: Text,
    workload_kubeconfig: Text,
    workload_context: Text,
}

/// Its attributes.
pub(in crate::provider) fn cluster_api_attributes() -> AttributeType {
    use AttributeType::{Map, String};
    object([
        (
            "machines",
            optional(
                Map(Box::new(String)),
                "The Machine that each server is, as `namespace/name`, by the server's name. The Machine of a BareMetalHost (`metal3`) is found through its consumer and need not be named. A server without a Machine is taken without asking.",
            ),
        ),
        (
            "kubeconfig",
            optional(
                String,
                "A kubeconfig file for the management cluster, which has the Machines. Default: `METAL_CLUSTER_API_KUBECONFIG`, `METAL_KUBECONFIG`, `KUBECONFIG`, `~/.kube/config`, and inside a pod its service account.",
            ),
        ),
        (
            "context",
            optional(String, "Which of its contexts. Default: `METAL_CLUSTER_API_CONTEXT`, else the current one."),
        ),
        (
            "workload_kubeconfig",
            optional(
                String,
                "A kubeconfig file for the workload cluster, which has the Nodes. Default: `METAL_WORKLOAD_KUBECONFIG`, else that of the management cluster.",
            ),
        ),
        (
            "workload_context",
            optional(
                String,
                "Which of its contexts. Default: `METAL_WORKLOAD_CONTEXT`; else the current one of `workload_kubeconfig`, or `context` where that is not set.",
            ),
        ),
    ])
}

impl ClusterApiModel {
    pub(in crate::provider) fn has_unknown(&self) -> bool {
        let texts = [&self.kubeconfig, &self.context, &self.workload_kubeconfig, &self.workload_context];
        texts_unknown(&self.machines) || texts.into_iter().any(Value::is_unknown)
    }

    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics) -> ClusterApiInput {
        let at = || AttributePath::new("cluster_api");
        for (name, value) in [
            ("kubeconfig", &self.kubeconfig),
            ("context", &self.context),
            ("workload_kubeconfig", &self.workload_kubeconfig),
            ("workload_context", &self.workload_context),
        ] {
            not_empty(diags, value, at().attribute(name));
        }
        let mut machines = BTreeMap::new();
        for (server, text) in texts(&self.machines) {
            match MachineName::read(&text) {
                Some(machine) => drop(machines.insert(server, machine)),
                None => bad(
                    diags,
                    at().attribute("machines").key(server),
                    "No name of a Machine",
                    format!("{text:?} is not namespace/name. Leave out a server without a Machine."),
                ),
            }
        }
        let text = |value: &Text| given(value).map(str::to_owned);
        ClusterApiInput {
            machines,
            kubeconfig: text(&self.kubeconfig),
            context: text(&self.context),
            workload_kubeconfig: text(&self.workload_kubeconfig),
            workload_context: text(&self.workload_context),
        }
    }
}
