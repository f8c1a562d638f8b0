//! The `node_leases` part of the provider block.

use tf_provider::{AttributePath, Diagnostics, value::ValueBool};

use crate::settings::NodeLeasesInput;

use crate::provider::{
    config::provider_block::flag,
    shared::block::block,
    shared::schema::{optional, required},
    shared::values::{Text, Texts, given, node_names, not_empty},
};

block! {
    /// `node_leases`.
    pub(in crate::provider) struct NodeLeasesModel {
        nodes: Texts => required(
            Map(Box::new(String)),
            "The Node that runs on each server, by the server's name. A server that is not named has none.",
        );
        take: ValueBool => optional(
            Bool,
            "Also take the Lease for as long as a `metal_server_maintenance` holds the server. Default: `false`: only wait until no other component holds it.",
        );
        namespace: Text => optional(String, "The namespace of the Leases. Default: `medik8s-leases`.");
        kubeconfig: Text => optional(
            String,
            "A kubeconfig file for the cluster of the Nodes. Default: `METAL_NODE_KUBECONFIG`, else that of `kubernetes_node`, else the cluster of a `kubernetes://` store, else `METAL_KUBECONFIG`, `KUBECONFIG`, `~/.kube/config`, and inside a pod its service account.",
        );
        context: Text => optional(
            String,
            "Which of its contexts. Default: `METAL_NODE_CONTEXT`, else as for `kubeconfig`, or the current one.",
        );
    }
}

impl NodeLeasesModel {
    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics) -> NodeLeasesInput {
        let Self { nodes, take, namespace, kubeconfig, context } = self;
        let at = AttributePath::new("node_leases");
        for (name, text) in [("namespace", namespace), ("kubeconfig", kubeconfig), ("context", context)] {
            not_empty(diags, text, at.clone().attribute(name));
        }
        NodeLeasesInput {
            nodes: node_names(diags, nodes, &at.attribute("nodes")),
            take: flag(*take).unwrap_or(false),
            namespace: given(namespace).map(str::to_owned),
            kubeconfig: given(kubeconfig).map(str::to_owned),
            context: given(context).map(str::to_owned),
        }
    }
}
