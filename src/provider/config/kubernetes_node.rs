//! The `kubernetes_node` part of the provider block.

use tf_provider::{AttributePath, Diagnostics, value::ValueBool};

use crate::settings::KubernetesNodeInput;

use crate::provider::{
    config::provider_block::flag,
    shared::block::block,
    shared::schema::{optional, required},
    shared::values::{Text, Texts, duration, given, node_names, not_empty},
};

block! {
    /// `kubernetes_node`.
    pub(in crate::provider) struct KubernetesNodeModel {
        nodes: Texts => required(
            Map(Box::new(String)),
            "The Node that runs on each server, by the server's name. A server that is not named has none.",
        );
        kubeconfig: Text => optional(
            String,
            "A kubeconfig file for the cluster of the Nodes. Default: `METAL_NODE_KUBECONFIG`, else that of `node_leases`, else `METAL_KUBECONFIG`, `KUBECONFIG`, `~/.kube/config`, and inside a pod its service account.",
        );
        context: Text => optional(
            String,
            "Which of its contexts. Default: `METAL_NODE_CONTEXT`, else as for `kubeconfig`, or the current one.",
        );
        drain_timeout: Text => optional(
            String,
            "How long evicting may take before the maintenance fails and the Node is uncordoned. Default: `\"10m\"`.",
        );
        ready_timeout: Text => optional(
            String,
            "How long a Node that was Ready before may take to be Ready again, before a destroy says that it is not. Default: `\"15m\"`.",
        );
        delete_emptydir_data: ValueBool => optional(
            Bool,
            "Evict also Pods whose `emptyDir` volumes are lost with them. Default: `false`: a plan tells them, and an apply fails.",
        );
        force: ValueBool => optional(
            Bool,
            "Evict also Pods that no controller starts again. Default: `false`: a plan tells them, and an apply fails.",
        );
    }
}

impl KubernetesNodeModel {
    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics) -> KubernetesNodeInput {
        let Self { nodes, kubeconfig, context, drain_timeout, ready_timeout, delete_emptydir_data, force } = self;
        let at = || AttributePath::new("kubernetes_node");
        not_empty(diags, kubeconfig, at().attribute("kubeconfig"));
        not_empty(diags, context, at().attribute("context"));
        KubernetesNodeInput {
            nodes: node_names(diags, nodes, &at().attribute("nodes")),
            kubeconfig: given(kubeconfig).map(str::to_owned),
            context: given(context).map(str::to_owned),
            drain_timeout: duration(diags, drain_timeout, at().attribute("drain_timeout")),
            ready_timeout: duration(diags, ready_timeout, at().attribute("ready_timeout")),
            delete_emptydir_data: flag(*delete_emptydir_data).unwrap_or(false),
            force: flag(*force).unwrap_or(false),
        }
    }
}
