//! The `kubernetes_node` part of the provider block.

use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::AttributeType,
    value::{Value, ValueBool},
};

use crate::settings::KubernetesNodeInput;

use crate::provider::{
    config::provider_block::flag,
    shared::schema::{object, optional, required},
    shared::values::{Text, Texts, duration, given, node_names, not_empty, texts_unknown},
};

/// `kubernetes_node`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct KubernetesNodeModel {
    nodes: Texts,
    kubeconfig: Text,
    context: Text,
    drain_timeout: Text,
    ready_timeout: Text,
    delete_emptydir_data: ValueBool,
    force: ValueBool,
}

/// Its attributes.
pub(in crate::provider) fn kubernetes_node_attributes() -> AttributeType {
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
            "kubeconfig",
            optional(
                String,
                "A kubeconfig file for the cluster of the Nodes. Default: `METAL_NODE_KUBECONFIG`, else that of `node_leases`, else `METAL_KUBECONFIG`, `KUBECONFIG`, `~/.kube/config`, and inside a pod its service account.",
            ),
        ),
        (
            "context",
            optional(
                String,
                "Which of its contexts. Default: `METAL_NODE_CONTEXT`, else as for `kubeconfig`, or the current one.",
            ),
        ),
        (
            "drain_timeout",
            optional(
                String,
                "How long evicting may take before the maintenance fails and the Node is uncordoned. Default: `\"10m\"`.",
            ),
        ),
        (
            "ready_timeout",
            optional(
                String,
                "How long a Node that was Ready before may take to be Ready again, before a destroy says that it is not. Default: `\"15m\"`.",
            ),
        ),
        (
            "delete_emptydir_data",
            optional(
                Bool,
                "Evict also Pods whose `emptyDir` volumes are lost with them. Default: `false`: a plan tells them, and an apply fails.",
            ),
        ),
        (
            "force",
            optional(
                Bool,
                "Evict also Pods that no controller starts again. Default: `false`: a plan tells them, and an apply fails.",
            ),
        ),
    ])
}

impl KubernetesNodeModel {
    pub(in crate::provider) fn has_unknown(&self) -> bool {
        let texts = [&self.kubeconfig, &self.context, &self.drain_timeout, &self.ready_timeout];
        texts_unknown(&self.nodes)
            || texts.into_iter().any(Value::is_unknown)
            || self.delete_emptydir_data.is_unknown()
            || self.force.is_unknown()
    }

    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics) -> KubernetesNodeInput {
        let at = || AttributePath::new("kubernetes_node");
        not_empty(diags, &self.kubeconfig, at().attribute("kubeconfig"));
        not_empty(diags, &self.context, at().attribute("context"));
        let nodes = node_names(diags, &self.nodes, &at().attribute("nodes"));
        KubernetesNodeInput {
            nodes,
            kubeconfig: given(&self.kubeconfig).map(str::to_owned),
            context: given(&self.context).map(str::to_owned),
            drain_timeout: duration(diags, &self.drain_timeout, at().attribute("drain_timeout")),
            ready_timeout: duration(diags, &self.ready_timeout, at().attribute("ready_timeout")),
            delete_emptydir_data: flag(self.delete_emptydir_data).unwrap_or(false),
            force: flag(self.force).unwrap_or(false),
        }
    }
}
