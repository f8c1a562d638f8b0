//! The `node_leases` part of the provider block.

use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::AttributeType,
    value::{Value, ValueBool},
};

use crate::settings::NodeLeasesInput;

use super::{
    config::flag,
    schema::{object, optional, required},
    values::{Text, Texts, bad, given, not_empty, texts},
};

/// `node_leases`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct NodeLeasesModel {
    nodes: Texts,
    take: ValueBool,
    namespace: Text,
}

/// Its attributes.
pub(super) fn node_leases_attributes() -> AttributeType {
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
    ])
}

impl NodeLeasesModel {
    pub(super) fn has_unknown(&self) -> bool {
        let values = match &self.nodes {
            Value::Value(nodes) => nodes.values().any(Value::is_unknown),
            nodes => nodes.is_unknown(),
        };
        values || self.take.is_unknown() || self.namespace.is_unknown()
    }

    pub(super) fn check(&self, diags: &mut Diagnostics) -> NodeLeasesInput {
        let at = AttributePath::new("node_leases");
        not_empty(diags, &self.namespace, at.clone().attribute("namespace"));
        let nodes = texts(&self.nodes);
        for (server, _) in nodes.iter().filter(|(_, node)| node.is_empty()) {
            let at = at.clone().attribute("nodes").key(server.clone());
            bad(diags, at, "No name of a Node", "Leave out a server on which no Node runs.");
        }
        NodeLeasesInput {
            nodes,
            take: flag(self.take).unwrap_or(false),
            namespace: given(&self.namespace).map(str::to_owned),
        }
    }
}
