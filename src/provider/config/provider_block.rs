//! The provider block: schema, model, checks.

use std::collections::BTreeMap;

use tf_provider::{
    AttributePath, Diagnostics,
    schema::Schema,
    value::{Value, ValueAny, ValueBool, ValueNumber},
};

use crate::{
    backend::plug::{BackendPlugin, Block, plugins},
    maintenance::window::OnClose,
    settings::{BackendInput, Input},
};

use crate::provider::{
    config::backend_block::{block_attribute, read},
    config::cluster_api::ClusterApiModel,
    config::kubernetes_node::KubernetesNodeModel,
    config::node_leases::NodeLeasesModel,
    shared::block::block,
    shared::schema::{optional, schema},
    shared::values::{Text, bad, duration, given, not_empty, value_of},
    shared::window::{WindowModel, windows_attribute},
};

block! {
    /// The provider block.
    pub struct ProviderModel {
        coordination_url: Text => optional(
            String,
            "Where records, queue and locks live: `postgres://user@host/database`, `etcd://host1:2379,host2:2379/prefix`, `kubernetes://namespace` or `sqlite:///path/to/file` (with `?shared=true` also a file that other users of the machine may write); all users and jobs that change the same servers must share one. Default: `METAL_COORDINATION_URL`, else a file in the user's state directory, which reaches this machine only. See the guide about many runners.",
        );
        owner: Text => optional(
            String,
            "Whose maintenances these are, for example a team. A maintenance is found again only under the owner that asked for it. Default: `METAL_OWNER`, else `default`.",
        );
        run: Text => optional(String, "How this run is called in the queue. Default: the detected CI job.");
        always_perform_maintenance: ValueBool => optional(
            Bool,
            "No approval is required: `policy = \"OwnerApproval\"` counts as approved in every maintenance of this provider configuration. The plan says so. Default: `false`.",
        );
        windows: Value<BTreeMap<String, WindowModel>> => windows_attribute();
        aging: Text => optional(String, "After how long a waiter gains one step of priority. Default: `\"24h\"`.");
        history_days: ValueNumber => optional(
            Number,
            "For how many days the store keeps ended maintenances and its audit log; older entries are pruned in the background. `0`: forever. Default: `365`.",
        );
        graceful_shutdown_timeout: Text => optional(
            String,
            "How long an operating system may take to shut down before the power is cut. Default: `\"150s\"`.",
        );
        power_timeout: Text => optional(String, "How long a forced power change may take before it counts as failed. Default: `\"2m\"`.");
        image_ca_certificate_file: Text => optional(
            String,
            "An additional trusted authority for image and readiness URLs, as PEM.",
        );
        cluster_api: Value<ClusterApiModel> => optional(
            AttributeSingle(ClusterApiModel::settings()),
            "Cluster API with SAP's maintenance controller, before the servers of any backend: the Machine that a server is, is labelled `requested`, and the server is taken once the maintenance controller has drained its Node and the runtime extension says `approved`. The label is removed when the server is back and its Node is Ready again. Power operations that stop what runs ask too. Without the controller's labels use `kubernetes_node`.",
        );
        kubernetes_node: Value<KubernetesNodeModel> => optional(
            AttributeSingle(KubernetesNodeModel::settings()),
            "Kubernetes Nodes that run on the servers and are drained before a server is taken out of service or restarted: cordoned, and their Pods evicted as disruption budgets allow. Afterwards a Node is uncordoned once it is Ready again. A Node that was cordoned before stays cordoned.",
        );
        node_leases: Value<NodeLeasesModel> => optional(
            AttributeSingle(NodeLeasesModel::settings()),
            "Kubernetes Nodes that run on the servers: the Lease that medik8s's operators share for a Node (`node-<name>`) is honoured, and taken when asked. For any coordination store.",
        );
        ;
        /// The blocks of the backends, by name.
        #[serde(flatten)]
        backends: BTreeMap<String, ValueAny>;
    }
}

/// The schema.
pub(in crate::provider) fn provider_schema() -> Schema {
    let mut known = ProviderModel::settings();
    known.extend(plugins().iter().map(|plugin| (plugin.name().to_owned(), block_attribute(*plugin))));
    schema(
        "Takes physical servers out of service under a durable lock, boots them as a maintenance needs, restores their \
         prior state and releases them.",
        known,
    )
}

impl ProviderModel {
    /// Checks the known values and turns them into settings' terms.
    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics) -> Option<Input> {
        let Self {
            coordination_url,
            owner,
            run,
            always_perform_maintenance,
            windows,
            aging,
            history_days,
            graceful_shutdown_timeout,
            power_timeout,
            image_ca_certificate_file,
            cluster_api,
            kubernetes_node,
            node_leases,
            backends,
        } = self;
        let path = AttributePath::new;
        let backend = configured(backends, diags);
        for (name, value) in [("coordination_url", coordination_url), ("owner", owner), ("run", run)] {
            not_empty(diags, value, path(name));
        }
        let mut named_windows = BTreeMap::new();
        for (name, window) in value_of(windows).into_iter().flatten() {
            let at = path("windows").key(name.clone());
            let spec = window.check(diags, &at, OnClose::Finish, None, None);
            named_windows.extend(spec.map(|spec| (name.clone(), spec)));
        }
        let history_days = value_of(history_days).and_then(|days| {
            let days = u32::try_from(*days).ok();
            if days.is_none() {
                let problem = "It is a number of whole days from 0 (forever) on.";
                bad(diags, path("history_days"), "history_days is not a number of days", problem);
            }
            days
        });
        let text = |value: &Text| given(value).map(str::to_owned);
        let input = Input {
            coordination_url: text(coordination_url),
            migrating: false,
            makes_no_store: false,
            owner: text(owner),
            run: text(run),
            aging: duration(diags, aging, path("aging")),
            history_days,
            windows: named_windows,
            always_perform_maintenance: flag(*always_perform_maintenance).unwrap_or(false),
            graceful_shutdown_timeout: duration(diags, graceful_shutdown_timeout, path("graceful_shutdown_timeout")),
            power_timeout: duration(diags, power_timeout, path("power_timeout")),
            image_ca_certificate_file: text(image_ca_certificate_file),
            backend,
            node_leases: value_of(node_leases).map(|leases| leases.check(diags)),
            kubernetes_node: value_of(kubernetes_node).map(|nodes| nodes.check(diags)),
            cluster_api: value_of(cluster_api).map(|machines| machines.check(diags)),
        };
        let drained = input.kubernetes_node.iter().flat_map(|nodes| nodes.nodes.keys());
        let asked = |server: &&String| input.cluster_api.as_ref().is_some_and(|it| it.machines.contains_key(*server));
        for server in drained.filter(asked) {
            let at = path("cluster_api").attribute("machines").key(server.clone());
            let problem = "The maintenance controller drains the Node of a Machine. Name the server in one of the two.";
            bad(diags, at, "A server is in cluster_api and in kubernetes_node", problem);
        }
        diags.errors.is_empty().then_some(input)
    }
}

/// The one backend that is configured.
fn configured(backends: &BTreeMap<String, ValueAny>, diags: &mut Diagnostics) -> BackendInput {
    let is_given = |plugin: &&&'static dyn BackendPlugin| {
        backends.get(plugin.name()).is_some_and(|block| *block != ValueAny::Null)
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
    let values = &backends[plugin.name()];
    let block = read(diags, values, plugin.settings(), &AttributePath::new(plugin.name()));
    BackendInput { plugin, block }
}

pub(in crate::provider) fn flag(value: ValueBool) -> Option<bool> {
    match value {
        Value::Value(flag) => Some(flag),
        _ => None,
    }
}
