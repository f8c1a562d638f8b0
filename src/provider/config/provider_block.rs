//! The provider block: schema, model, checks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::{AttributeType, Schema},
    value::{Value, ValueAny, ValueBool, ValueNumber},
};

use crate::{
    backend::plug::{BackendPlugin, Block, plugins},
    maintenance::window::OnClose,
    settings::{BackendInput, Input},
};

use crate::provider::{
    config::backend_block::{block_attribute, has_unknown, read},
    config::cluster_api::{ClusterApiModel, cluster_api_attributes},
    config::kubernetes_node::{KubernetesNodeModel, kubernetes_node_attributes},
    config::node_leases::{NodeLeasesModel, node_leases_attributes},
    shared::schema::{attributes, optional, schema},
    shared::values::{Text, bad, duration, given, not_empty, unknown_within},
    shared::window::{WindowModel, windows_attribute},
};

/// The provider block.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProviderModel {
    coordination_url: Text,
    owner: Text,
    run: Text,
    aging: Text,
    history_days: ValueNumber,
    always_perform_maintenance: ValueBool,
    windows: Value<BTreeMap<String, WindowModel>>,
    graceful_shutdown_timeout: Text,
    power_timeout: Text,
    image_ca_certificate_file: Text,
    node_leases: Value<NodeLeasesModel>,
    kubernetes_node: Value<KubernetesNodeModel>,
    cluster_api: Value<ClusterApiModel>,
    /// The blocks of the backends, by name.
    #[serde(flatten)]
    backends: BTreeMap<String, ValueAny>,
}

/// The schema.
#[allow(clippy::too_many_lines, reason = "a table: one line an attribute")]
pub(in crate::provider) fn provider_schema() -> Schema {
    use AttributeType::{Bool, Number, String};
    let mut known = attributes([
        (
            "coordination_url",
            optional(
                String,
                "Where records, queue and locks live: `postgres://user@host/database`, `etcd://host1:2379,host2:2379/prefix`, `kubernetes://namespace` or `sqlite:///path/to/file` (with `?shared=true` also a file that other users of the machine may write); everybody who may touch the same servers shares one. Default: `METAL_COORDINATION_URL`, else a file in the user's state directory, which reaches this machine only. See the guide about many runners.",
            ),
        ),
        (
            "owner",
            optional(
                String,
                "Whose maintenances these are, for example a team. A maintenance is found again only under the owner that asked for it. Default: `METAL_OWNER`, else `default`.",
            ),
        ),
        ("run", optional(String, "How this run is called in the queue. Default: the detected CI job.")),
        (
            "always_perform_maintenance",
            optional(
                Bool,
                "Owners are not asked: `policy = \"OwnerApproval\"` counts as approved in every maintenance of this provider configuration. The plan says so. Default: `false`.",
            ),
        ),
        ("windows", windows_attribute()),
        ("aging", optional(String, "After how long a waiter gains one step of priority. Default: `\"24h\"`.")),
        (
            "history_days",
            optional(
                Number,
                "For how many days the store keeps maintenances that are over and its audit; older entries are pruned in the background. `0`: forever. Default: `365`.",
            ),
        ),
        (
            "graceful_shutdown_timeout",
            optional(
                String,
                "How long an operating system may take to shut down before the power is cut. Default: `\"150s\"`.",
            ),
        ),
        (
            "power_timeout",
            optional(String, "How long a forced power change may take before it counts as failed. Default: `\"2m\"`."),
        ),
        (
            "image_ca_certificate_file",
            optional(
                String,
                "An authority trusted besides the usual ones when images and readiness URLs are asked, as PEM.",
            ),
        ),
        (
            "cluster_api",
            optional(
                cluster_api_attributes(),
                "Cluster API with SAP's maintenance controller, before the servers of any backend: the Machine that a server is, is labelled `requested`, and the server is taken once the maintenance controller has drained its Node and the runtime extension says `approved`. The label is removed when the server is back. Power operations that stop what runs ask too. Without the controller's labels use `kubernetes_node`.",
            ),
        ),
        (
            "kubernetes_node",
            optional(
                kubernetes_node_attributes(),
                "Kubernetes Nodes that run on the servers and are drained before a server is taken out of service or restarted: cordoned, and their Pods evicted as disruption budgets allow. Afterwards a Node is uncordoned once it is Ready again. A Node that was cordoned before stays cordoned.",
            ),
        ),
        (
            "node_leases",
            optional(
                node_leases_attributes(),
                "Kubernetes Nodes that run on the servers: the Lease that medik8s's operators share for a Node (`node-<name>`) is honoured, and taken when asked. For any coordination store.",
            ),
        ),
    ]);
    known.extend(plugins().iter().map(|plugin| (plugin.name().to_owned(), block_attribute(*plugin))));
    schema(
        "Takes physical servers out of service under a durable lock, boots them as a maintenance needs, and gives them back \
         exactly as they were.",
        known,
    )
}

impl ProviderModel {
    /// Whether some of it is only known after apply.
    pub(in crate::provider) fn has_unknown(&self) -> bool {
        let texts = [
            &self.coordination_url,
            &self.owner,
            &self.run,
            &self.aging,
            &self.graceful_shutdown_timeout,
            &self.power_timeout,
            &self.image_ca_certificate_file,
        ];
        self.backends.values().any(has_unknown)
            || unknown_within(&self.kubernetes_node, KubernetesNodeModel::has_unknown)
            || unknown_within(&self.cluster_api, ClusterApiModel::has_unknown)
            || unknown_within(&self.node_leases, NodeLeasesModel::has_unknown)
            || unknown_within(&self.windows, |windows| windows.values().any(WindowModel::has_unknown))
            || self.history_days.is_unknown()
            || self.always_perform_maintenance.is_unknown()
            || texts.iter().any(|text| text.is_unknown())
    }

    /// Checks what is known and turns it into settings' terms.
    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics) -> Option<Input> {
        let path = AttributePath::new;
        let backend = self.backend(diags);
        for (name, value) in [("coordination_url", &self.coordination_url), ("owner", &self.owner), ("run", &self.run)]
        {
            not_empty(diags, value, path(name));
        }
        let aging = duration(diags, &self.aging, path("aging"));
        let graceful = duration(diags, &self.graceful_shutdown_timeout, path("graceful_shutdown_timeout"));
        let power = duration(diags, &self.power_timeout, path("power_timeout"));
        let mut windows = BTreeMap::new();
        if let Value::Value(named) = &self.windows {
            for (name, window) in named {
                let at = path("windows").key(name.clone());
                windows.extend(window.check(diags, &at, OnClose::Finish, None, None).map(|spec| (name.clone(), spec)));
            }
        }
        let history_days = match self.history_days {
            Value::Value(days) => {
                let days = u32::try_from(days).ok();
                if days.is_none() {
                    let problem = "It is a number of whole days from 0 (forever) on.".to_owned();
                    bad(diags, path("history_days"), "history_days is no number of days", problem);
                }
                days
            }
            _ => None,
        };
        let node_leases = match &self.node_leases {
            Value::Value(leases) => Some(leases.check(diags)),
            _ => None,
        };
        let kubernetes_node = match &self.kubernetes_node {
            Value::Value(nodes) => Some(nodes.check(diags)),
            _ => None,
        };
        let cluster_api = match &self.cluster_api {
            Value::Value(machines) => Some(machines.check(diags)),
            _ => None,
        };
        let drained = kubernetes_node.iter().flat_map(|nodes| nodes.nodes.keys());
        let asked = |server: &&String| cluster_api.as_ref().is_some_and(|it| it.machines.contains_key(*server));
        for server in drained.filter(asked) {
            let at = path("cluster_api").attribute("machines").key(server.clone());
            let problem = "The maintenance controller drains the Node of a Machine. Name the server in one of the two.";
            bad(diags, at, "A server is in cluster_api and in kubernetes_node", problem);
        }
        if !diags.errors.is_empty() {
            return None;
        }
        Some(Input {
            coordination_url: given(&self.coordination_url).map(str::to_owned),
            migrating: false,
            makes_no_store: false,
            owner: given(&self.owner).map(str::to_owned),
            run: given(&self.run).map(str::to_owned),
            aging,
            history_days,
            windows,
            always_perform_maintenance: self.always_perform_maintenance == Value::Value(true),
            graceful_shutdown_timeout: graceful,
            power_timeout: power,
            image_ca_certificate_file: given(&self.image_ca_certificate_file).map(str::to_owned),
            backend,
            node_leases,
            kubernetes_node,
            cluster_api,
        })
    }

    /// The one backend that is configured.
    fn backend(&self, diags: &mut Diagnostics) -> BackendInput {
        let is_given = |plugin: &&&'static dyn BackendPlugin| {
            self.backends.get(plugin.name()).is_some_and(|block| *block != ValueAny::Null)
        };
        let given: Vec<&'static dyn BackendPlugin> = plugins().iter().filter(is_given).copied().collect();
        if let [first, second, ..] = given[..] {
            let names: Vec<&str> = given.iter().map(|plugin| plugin.name()).collect();
            bad(
                diags,
                AttributePath::new(second.name()),
                "Two backends in one provider configuration",
                format!("{} are given; use one provider configuration with an alias for each.", names.join(" and ")),
            );
            return BackendInput { plugin: first, block: Block::default() };
        }
        let Some(plugin) = given.first().copied() else { return BackendInput::default() };
        let values = &self.backends[plugin.name()];
        let block = read(diags, values, plugin.settings(), &AttributePath::new(plugin.name()));
        BackendInput { plugin, block }
    }
}

pub(in crate::provider) fn flag(value: ValueBool) -> Option<bool> {
    match value {
        Value::Value(flag) => Some(flag),
        _ => None,
    }
}
