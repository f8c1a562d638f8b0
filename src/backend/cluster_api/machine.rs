//! Accessors for a Cluster API Machine and its Node. No I/O.
//!
//! Keys of the maintenance controller: sapcc/runtime-extension-maintenance-controller at 39b2933
//! (`state/state.go`, `constants/constants.go`). Keys of Cluster API: v1.11
//! (`api/core/v1beta2/common_types.go`, `machine_types.go`).

use std::fmt;

use kube::core::DynamicObject;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    backend::cluster::{OUR_ID, OUR_STORE, OUR_UID, annotation, name, text},
    maintenance::gate::ExternalRequest,
};

/// Machine label that enables the maintenance controller.
pub(super) const ENABLED: &str = "runtime-extension-maintenance-controller.cloud.sap/enabled";
/// Machine label: we set `requested`, the runtime extension sets `approved`, we remove it.
pub(super) const MAINTENANCE: &str = "runtime-extension-maintenance-controller.cloud.sap/maintenance";
/// Node label: the Machine requests maintenance.
const ASKED: &str = "runtime-extension-maintenance-controller.cloud.sap/machine-maintenance";
/// Node label: the maintenance controller approves.
const APPROVED: &str = "runtime-extension-maintenance-controller.cloud.sap/approve-maintenance";
/// Node label with the maintenance controller's state. A Node without it is not managed.
const STATE: &str = "cloud.sap/maintenance-state";
/// Machine annotation: health checks skip the Machine.
pub(super) const SKIP_REMEDIATION: &str = "cluster.x-k8s.io/skip-remediation";
/// Machine annotation: a health check creates a remediation request instead of remediating.
const REMEDIATE: &str = "cluster.x-k8s.io/remediate-machine";
/// Machine annotation that delays its deletion before the server is deleted.
pub(super) const HOOK: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/terraform-provider-metal";
/// Machine annotation during an in-place update.
const UPDATING: &str = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";
/// Machine annotation with the hooks that Cluster API still has to call.
const PENDING_HOOKS: &str = "runtime.cluster.x-k8s.io/pending-hooks";
/// Machine label with its MachineDeployment.
const DEPLOYMENT: &str = "cluster.x-k8s.io/deployment-name";
/// Our annotation with the guards that we added and that already existed.
pub(super) const GUARDS: &str = "terraform-provider-metal/guards";
/// Our annotation with the withdrawal time.
pub(super) const RELEASED: &str = "terraform-provider-metal/released";
/// Our annotation with the requested server.
pub(super) const OUR_SERVER: &str = "terraform-provider-metal/server";

/// The value of [`MAINTENANCE`] for a request.
pub(super) const REQUESTED: &str = "requested";
/// The value of [`MAINTENANCE`] after the Node was drained.
const IS_APPROVED: &str = "approved";

fn label<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// The author of a Machine's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Author {
    pub(super) store: String,
    pub(super) uid: String,
}

impl Author {
    pub(super) fn of(wish: &ExternalRequest) -> Self {
        Self { store: wish.store.clone(), uid: wish.uid.clone() }
    }
}

/// The value of [`HOOK`], our second mark. It has the data that release and `prune` need if a
/// person removes our annotations. Otherwise the remaining hook would block the Machine's deletion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HookValue {
    /// The maintenance, for display.
    pub(super) maintenance: String,
    pub(super) uid: String,
    pub(super) store: String,
    /// See [`OUR_SERVER`].
    pub(super) server: String,
    /// See [`GUARDS`].
    pub(super) guards: String,
}

/// The value of a Machine's maintenance label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LabelValue<'a> {
    /// The label does not exist.
    No,
    /// The Node is being drained.
    Requested,
    /// The Node is drained.
    Approved,
    /// A value that the extension does not support.
    Other(&'a str),
}

#[derive(Clone, Copy)]
pub(super) struct Machine<'a>(pub(super) &'a DynamicObject);

impl fmt::Display for Machine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Machine {}", self.place())
    }
}

impl<'a> Machine<'a> {
    /// Returns `namespace/name`.
    pub(super) fn place(self) -> String {
        format!("{}/{}", self.0.metadata.namespace.as_deref().unwrap_or_default(), name(self.0))
    }

    pub(super) fn is_enabled(self) -> bool {
        label(self.0, ENABLED) == Some("true")
    }

    pub(super) fn asked(self) -> LabelValue<'a> {
        match label(self.0, MAINTENANCE) {
            None => LabelValue::No,
            Some(REQUESTED) => LabelValue::Requested,
            Some(IS_APPROVED) => LabelValue::Approved,
            Some(other) => LabelValue::Other(other),
        }
    }

    /// Returns the marks' author. Ours are written with the label and stay until the Node is
    /// free.
    pub(super) fn marked(self) -> Option<Author> {
        let (store, uid) = (annotation(self.0, OUR_STORE)?, annotation(self.0, OUR_UID)?);
        Some(Author { store: store.to_owned(), uid: uid.to_owned() })
    }

    pub(super) fn hook(self) -> Option<HookValue> {
        serde_json::from_str(annotation(self.0, HOOK)?).ok()
    }

    /// Returns the author of the marks, or of a hook that remained without marks.
    pub(super) fn author(self) -> Option<Author> {
        self.marked().or_else(|| self.hook().map(|hook| Author { store: hook.store, uid: hook.uid }))
    }

    /// Returns true if this maintenance's hook exists without its marks.
    pub(super) fn is_left_by(self, wish: &ExternalRequest) -> bool {
        self.marked().is_none() && self.author() == Some(Author::of(wish))
    }

    /// Returns the maintenance in the marks, for display.
    pub(super) fn marked_by(self) -> Option<&'a str> {
        annotation(self.0, OUR_ID)
    }

    pub(super) fn released(self) -> Option<jiff::Timestamp> {
        annotation(self.0, RELEASED)?.parse().ok()
    }

    pub(super) fn is_deleting(self) -> bool {
        self.0.metadata.deletion_timestamp.is_some()
    }

    pub(super) fn node(self) -> Option<&'a str> {
        text(self.0, "/status/nodeRef/name")
    }

    pub(super) fn provider_id(self) -> Option<&'a str> {
        text(self.0, "/spec/providerID")
    }

    pub(super) fn phase(self) -> &'a str {
        text(self.0, "/status/phase").unwrap_or("without a phase")
    }

    pub(super) fn skips_remediation(self) -> bool {
        annotation(self.0, SKIP_REMEDIATION).is_some()
    }

    pub(super) fn deployment(self) -> Option<&'a str> {
        label(self.0, DEPLOYMENT)
    }

    /// Returns true if the spec differs from its owner's current template.
    pub(super) fn is_outdated(self) -> bool {
        self.is_false("UpToDate")
    }

    /// Returns Cluster API's pending operation, as words after "waiting for"; `None` if there is
    /// none. With `stays`, an outdated Machine is not replaced until a person acts.
    pub(super) fn under_way(self, stays: bool) -> Option<String> {
        let hooks = annotation(self.0, PENDING_HOOKS).unwrap_or_default();
        if annotation(self.0, UPDATING).is_some() || hooks.split(',').any(|hook| hook.trim() == "UpdateMachine") {
            return Some(format!("the in-place update of {self} to finish"));
        }
        if annotation(self.0, REMEDIATE).is_some() || self.is_false("OwnerRemediated") {
            return Some(format!("the remediation of {self} to finish"));
        }
        // A health check with a template leaves remediation to another controller. It stops
        // updating these conditions on a Machine that health checks skip.
        let external = self.is_false("HealthCheckSucceeded") && self.is_false("ExternallyRemediated");
        if external && !self.skips_remediation() {
            return Some(format!("the external remediation of {self} to finish (its health check fails)"));
        }
        (self.is_outdated() && !stays).then(|| format!("the rollout that replaces {self} (it is not up to date)"))
    }

    /// Returns true if a condition is `False`. v1beta2 conditions are in `status.conditions`, or in
    /// `status.v1beta2.conditions` of v1beta1.
    fn is_false(self, condition: &str) -> bool {
        let lists = ["/status/conditions", "/status/v1beta2/conditions"];
        let all = lists.into_iter().filter_map(|at| self.0.data.pointer(at)).filter_map(Value::as_array).flatten();
        { all }.any(|it| it["type"] == condition && it["status"] == "False")
    }
}

/// Returns true if a MachineDeployment does not replace outdated Machines automatically. It is
/// paused, or its strategy is `OnDelete` (v1beta1 `spec.strategy.type`, v1beta2
/// `spec.rollout.strategy.type`).
pub(super) fn replaces_by_hand(deployment: &DynamicObject) -> bool {
    let strategy = ["/spec/rollout/strategy/type", "/spec/strategy/type"].iter().find_map(|at| text(deployment, at));
    strategy == Some("OnDelete") || deployment.data.pointer("/spec/paused") == Some(&Value::Bool(true))
}

/// A workload cluster's Node.
#[derive(Clone, Copy)]
pub(super) struct Node<'a>(pub(super) &'a DynamicObject);

impl fmt::Display for Node<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node {}", name(self.0))
    }
}

impl<'a> Node<'a> {
    pub(super) fn is_asked(self) -> bool {
        label(self.0, ASKED).is_some()
    }

    pub(super) fn is_approved(self) -> bool {
        label(self.0, APPROVED).is_some()
    }

    /// Returns true if the maintenance controller has drained the Node.
    pub(super) fn is_in_maintenance(self) -> bool {
        self.state() == Some("in-maintenance")
    }

    /// Returns the maintenance controller's state.
    pub(super) fn state(self) -> Option<&'a str> {
        label(self.0, STATE)
    }

    pub(super) fn provider_id(self) -> Option<&'a str> {
        text(self.0, "/spec/providerID")
    }

    /// Returns the remaining maintenance labels, for display; `None` without any.
    pub(super) fn labels_left(self) -> Option<String> {
        let left = [(self.is_asked(), "machine-maintenance"), (self.is_approved(), "approve-maintenance")];
        let left: Vec<&str> = left.into_iter().filter(|(there, _)| *there).map(|(_, name)| name).collect();
        (!left.is_empty()).then(|| left.join(" and "))
    }

    fn is_cordoned(self) -> bool {
        self.0.data.pointer("/spec/unschedulable") == Some(&Value::Bool(true))
    }

    /// Returns true if the Node accepts workloads again.
    pub(super) fn is_back(self) -> bool {
        self.state() == Some("operational") && !self.is_cordoned()
    }

    pub(super) fn shown(self) -> String {
        let cordoned = self.is_cordoned();
        let state = self.state().unwrap_or("unknown to the maintenance controller");
        format!("{self}: {state}{}", if cordoned { ", cordoned" } else { "" })
    }
}
