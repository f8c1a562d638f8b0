//! The provider block: schema, model, checks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::{AttributeType, Schema},
    value::{Value, ValueBool, ValueNumber},
};

use crate::{maintenance::window::OnClose, settings::Input};

use super::{
    metal_operator::{MetalOperatorModel, metal_operator_attributes},
    node_leases::{NodeLeasesModel, node_leases_attributes},
    redfish::{RedfishModel, redfish_attribute},
    schema::{attributes, object, optional, schema},
    values::{Text, bad, duration, given, not_empty},
    window::{WindowModel, windows_attribute},
};

/// A backend of which this version knows only the name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct LaterModel {
    endpoint: Text,
}

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
    redfish: Value<RedfishModel>,
    metal_operator: Value<MetalOperatorModel>,
    node_leases: Value<NodeLeasesModel>,
    metal3: Value<LaterModel>,
    ironic: Value<LaterModel>,
    cluster_api: Value<LaterModel>,
}

/// The schema.
#[allow(clippy::too_many_lines, reason = "a table: one line an attribute")]
pub(super) fn provider_schema() -> Schema {
    use AttributeType::{Bool, Number, String};
    let redfish = redfish_attribute();
    let later = |name: &str| {
        optional(
            object([("endpoint", optional(String, "Where it is reached."))]),
            &format!("The {name} backend. This version has none and refuses it."),
        )
    };
    schema(
        "Takes physical servers out of service under a durable lock, boots them as a maintenance needs, and gives them back \
         exactly as they were.",
        attributes([
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
                optional(
                    String,
                    "How long a forced power change may take before it counts as failed. Default: `\"2m\"`.",
                ),
            ),
            (
                "image_ca_certificate_file",
                optional(
                    String,
                    "An authority trusted besides the usual ones when images and readiness URLs are asked, as PEM.",
                ),
            ),
            (
                "redfish",
                optional(
                    redfish,
                    "BMCs that speak Redfish. Exactly one backend per provider configuration; use aliases for more.",
                ),
            ),
            (
                "metal_operator",
                optional(
                    metal_operator_attributes(),
                    "Servers that IronCore's metal-operator manages in a Kubernetes cluster. What the cluster has is discovered; see the guide about metal-operator. Exactly one backend per provider configuration.",
                ),
            ),
            (
                "node_leases",
                optional(
                    node_leases_attributes(),
                    "Kubernetes Nodes that run on the servers: the Lease that medik8s's operators share for a Node (`node-<name>`) is honoured, and taken when asked. They are those of the cluster of `coordination_url`, which has to be a `kubernetes://` one.",
                ),
            ),
            ("metal3", later("Metal3")),
            ("ironic", later("OpenStack Ironic")),
            ("cluster_api", later("Cluster API")),
        ]),
    )
}

impl ProviderModel {
    /// Whether some of it is only known after apply.
    pub(super) fn has_unknown(&self) -> bool {
        let texts = [
            &self.coordination_url,
            &self.owner,
            &self.run,
            &self.aging,
            &self.graceful_shutdown_timeout,
            &self.power_timeout,
            &self.image_ca_certificate_file,
        ];
        let redfish = match &self.redfish {
            Value::Unknown => true,
            Value::Null => false,
            Value::Value(redfish) => redfish.has_unknown(),
        };
        let windows = match &self.windows {
            Value::Unknown => true,
            Value::Null => false,
            Value::Value(windows) => windows.values().any(WindowModel::has_unknown),
        };
        let metal_operator = match &self.metal_operator {
            Value::Unknown => true,
            Value::Null => false,
            Value::Value(operator) => operator.has_unknown(),
        };
        let node_leases = match &self.node_leases {
            Value::Unknown => true,
            Value::Null => false,
            Value::Value(leases) => leases.has_unknown(),
        };
        redfish
            || metal_operator
            || node_leases
            || windows
            || self.history_days.is_unknown()
            || self.always_perform_maintenance.is_unknown()
            || texts.iter().any(|text| text.is_unknown())
    }

    /// Leaves out the servers of which something is only known after apply: they are checked then.
    pub(super) fn leave_out_unknown(&self, input: &mut Input) {
        let Some(redfish) = &mut input.redfish else { return };
        if let Value::Value(RedfishModel { servers: Value::Value(servers), insecure, .. }) = &self.redfish {
            let known =
                |name: &String| !insecure.is_unknown() && servers.get(name).is_some_and(|one| !one.has_unknown());
            redfish.servers.retain(|name, _| known(name));
        }
    }

    /// Checks what is known and turns it into settings' terms.
    pub(super) fn check(&self, diags: &mut Diagnostics) -> Option<Input> {
        let path = AttributePath::new;
        let backends = [
            ("redfish", !self.redfish.is_null()),
            ("metal_operator", !self.metal_operator.is_null()),
            ("metal3", !self.metal3.is_null()),
            ("ironic", !self.ironic.is_null()),
            ("cluster_api", !self.cluster_api.is_null()),
        ];
        let named: Vec<&'static str> = backends.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
        if named.len() > 1 {
            bad(
                diags,
                path(named[1]),
                "Two backends in one provider configuration",
                format!("{} are given; use one provider configuration with an alias for each.", named.join(" and ")),
            );
        }
        if let Some(name) = named.iter().find(|name| !matches!(**name, "redfish" | "metal_operator")) {
            let detail = "This version has the backends redfish and metal_operator.";
            bad(diags, path(name), "This backend is not available yet", detail);
        }
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
        let redfish = match &self.redfish {
            Value::Value(redfish) => Some(redfish.check(diags)),
            _ => None,
        };
        let metal_operator = match &self.metal_operator {
            Value::Value(operator) => Some(operator.check(diags)),
            _ => None,
        };
        let node_leases = match &self.node_leases {
            Value::Value(leases) => Some(leases.check(diags)),
            _ => None,
        };
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
            redfish,
            metal_operator,
            node_leases,
        })
    }
}

pub(super) fn flag(value: ValueBool) -> Option<bool> {
    match value {
        Value::Value(flag) => Some(flag),
        _ => None,
    }
}
