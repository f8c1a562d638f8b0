//! The `node_leases` part of the provider block.

use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::AttributeType,
    value::{Value, ValueBool},
};

use crate::settings::NodeLeasesInput;

use crate::provider::{
    config::provider_block::flag,
    shared::schema::{object, optional, required},
    shared::values::{Text, Texts, given, node_names, not_empty, texts_unknown},
};

/// `node_leases`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct NodeLeasesModel {
    nodes: Texts,
    take: ValueBool,
    namespace: Text,
    kubeconfig: Text,
    context: Text,
}

/// Its attributes.
pub(in crate::provider) fn node_leases_attributes() -> AttributeType {
    use AttributeType::{Bool, Map, String};
    object([
        (
            "nodes",
            required(
                Map(Box::new(String)),
                "The Node that runs on each server, by the server's name. A server that is not named has none.",
            ),
        ),
        (
            "take",
            optional(
                Bool,
                "Also take the Lease for as long as a `metal_server_maintenance` holds the server. Default: `false`: only wait until no other component holds it.",
            ),
        ),
        ("namespace", optional(String, "The namespace of the Leases. Default: `medik8s-leases`.")),
        (
            "kubeconfig",
            optional(
                String,
                "A kubeconfig file for the cluster of the Nodes. Default: `METAL_NODE_KUBECONFIG`, else that of `kubernetes_node`, else the cluster of a `kubernetes://` store, else `METAL_KUBECONFIG`, `KUBECONFIG`, `~/.kube/config`, and inside a pod its service account.",
            ),
        ),
        (
            "context",
            optional(
                String,
                "Which of its contexts. Default: `METAL_NODE_CONTEXT`, else as for `kubeconfig`, or the current one.",
            ),
        ),
    ])
}

impl NodeLeasesModel {
    pub(in crate::provider) fn has_unknown(&self) -> bool {
        let texts = [&self.namespace, &self.kubeconfig, &self.context];
        texts_unknown(&self.nodes) || self.take.is_unknown() || texts.into_iter().any(Value::is_unknown)
    }

    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics) -> NodeLeasesInput {
        let at = AttributePath::new("node_leases");
        for (name, text) in
            [("namespace", &self.namespace), ("kubeconfig", &self.kubeconfig), ("context", &self.context)]
        {
            not_empty(diags, text, at.clone().attribute(name));
        }
        let nodes = node_names(diags, &self.nodes, &at.clone().attribute("nodes"));
        NodeLeasesInput {
            nodes,
            take: flag(self.take).unwrap_or(false),
            namespace: given(&self.namespace).map(str::to_owned),
            kubeconfig: given(&self.kubeconfig).map(str::to_owned),
            context: given(&self.context).map(str::to_owned),
        }
    }
}
