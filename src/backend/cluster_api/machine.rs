//! A Machine of Cluster API and its Node, as the rules of this gate read them. No I/O.
//!
//! Keys of the maintenance controller: sapcc/runtime-extension-maintenance-controller at 39b2933
//! (`state/state.go`, `constants/constants.go`); those of Cluster API: v1.11
//! (`api/core/v1beta2/common_types.go`, `machine_types.go`).

use std::fmt;

use kube::core::DynamicObject;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    backend::cluster::{OUR_ID, OUR_STORE, OUR_UID, annotation, name, text},
    maintenance::gate::ExternalRequest,
};

/// Label of a Machine: the maintenance controller works on it.
pub(super) const ENABLED: &str = "runtime-extension-maintenance-controller.cloud.sap/enabled";
/// Label of a Machine: `requested` by us, `approved` by the runtime extension, removed by us.
pub(super) const MAINTENANCE: &str = "runtime-extension-maintenance-controller.cloud.sap/maintenance";
/// Label of a Node: its Machine asks for maintenance.
const ASKED: &str = "runtime-extension-maintenance-controller.cloud.sap/machine-maintenance";
/// Label of a Node: the maintenance controller allows it.
const APPROVED: &str = "runtime-extension-maintenance-controller.cloud.sap/approve-maintenance";
/// Label of a Node: its state in the maintenance controller; without it that does not know the
/// Node.
const STATE: &str = "cloud.sap/maintenance-state";
/// Annotation of a Machine: health checks leave it alone.
pub(super) const SKIP_REMEDIATION: &str = "cluster.x-k8s.io/skip-remediation";
/// Annotation of a Machine: a health check is replaced by a request for remediation.
const REMEDIATE: &str = "cluster.x-k8s.io/remediate-machine";
/// Annotation of a Machine: its deletion waits with the server until this is gone.
pub(super) const HOOK: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/terraform-provider-metal";
/// Annotation of a Machine that is updated in place.
const UPDATING: &str = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";
/// Annotation of a Machine: hooks that Cluster API still has to call.
const PENDING_HOOKS: &str = "runtime.cluster.x-k8s.io/pending-hooks";
/// Label of a Machine: the MachineDeployment that made it.
const DEPLOYMENT: &str = "cluster.x-k8s.io/deployment-name";
/// Our annotation: which guards we added, and which were there.
pub(super) const GUARDS: &str = "terraform-provider-metal/guards";
/// Our annotation: when we withdrew the request.
pub(super) const RELEASED: &str = "terraform-provider-metal/released";
/// Our annotation: the server that was asked for.
pub(super) const OUR_SERVER: &str = "terraform-provider-metal/server";

/// The value of [`MAINTENANCE`] that asks.
pub(super) const REQUESTED: &str = "requested";
/// The value of [`MAINTENANCE`] once the Node is drained.
const IS_APPROVED: &str = "approved";

fn label<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Whose request a Machine has.
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

/// The value of [`HOOK`]: our second mark. It keeps what the release and `tidy` need when a person
/// removed our annotations, because the hook alone would keep the Machine from being deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HookValue {
    /// The maintenance, for people.
    pub(super) maintenance: String,
    pub(super) uid: String,
    pub(super) store: String,
    /// See [`OUR_SERVER`].
    pub(super) server: String,
    /// See [`GUARDS`].
    pub(super) guards: String,
}

/// What the label of a Machine says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LabelValue<'a> {
    /// It is not there.
    No,
    /// The Node is being drained.
    Requested,
    /// The Node is drained.
    Approved,
    /// Something that the extension does not know.
    Other(&'a str),
}

/// A Machine.
#[derive(Clone, Copy)]
pub(super) struct Machine<'a>(pub(super) &'a DynamicObject);

impl fmt::Display for Machine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Machine {}", self.place())
    }
}

impl<'a> Machine<'a> {
    /// Its namespace and name, as `namespace/name`.
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

    /// Whose marks it has; ours are written with the label and stay until the Node is free again.
    pub(super) fn marked(self) -> Option<Author> {
        let (store, uid) = (annotation(self.0, OUR_STORE)?, annotation(self.0, OUR_UID)?);
        Some(Author { store: store.to_owned(), uid: uid.to_owned() })
    }

    /// Returns the value of our hook.
    pub(super) fn hook(self) -> Option<HookValue> {
        serde_json::from_str(annotation(self.0, HOOK)?).ok()
    }

    /// Whose marks it has, or had: a hook without marks counts.
    pub(super) fn author(self) -> Option<Author> {
        self.marked().or_else(|| self.hook().map(|hook| Author { store: hook.store, uid: hook.uid }))
    }

    /// Whether the hook of a maintenance is on it whose marks were removed.
    pub(super) fn is_left_by(self, wish: &ExternalRequest) -> bool {
        self.marked().is_none() && self.author() == Some(Author::of(wish))
    }

    /// The maintenance of its marks, for people.
    pub(super) fn marked_by(self) -> Option<&'a str> {
        annotation(self.0, OUR_ID)
    }

    pub(super) fn released(self) -> Option<jiff::Timestamp> {
        annotation(self.0, RELEASED)?.parse().ok()
    }

    pub(super) fn is_deleting(self) -> bool {
        self.0.metadata.deletion_timestamp.is_some()
    }

    /// The Node that runs on it.
    pub(super) fn node(self) -> Option<&'a str> {
        text(self.0, "/status/nodeRef/name")
    }

    pub(super) fn provider_id(self) -> Option<&'a str> {
        text(self.0, "/spec/providerID")
    }

    /// Its phase, for people.
    pub(super) fn phase(self) -> &'a str {
        text(self.0, "/status/phase").unwrap_or("without a phase")
    }

    /// Whether a health check skips it.
    pub(super) fn skips_remediation(self) -> bool {
        annotation(self.0, SKIP_REMEDIATION).is_some()
    }

    /// The MachineDeployment that made it.
    pub(super) fn deployment(self) -> Option<&'a str> {
        label(self.0, DEPLOYMENT)
    }

    /// Whether its spec differs from the one that its owner would give it now.
    pub(super) fn is_outdated(self) -> bool {
        self.is_false("UpToDate")
    }

    /// What Cluster API is about to do to it, in words after "waiting for"; `None`: nothing.
    /// `stays`: nothing replaces it until a person acts.
    pub(super) fn under_way(self, stays: bool) -> Option<String> {
        let hooks = annotation(self.0, PENDING_HOOKS).unwrap_or_default();
        if annotation(self.0, UPDATING).is_some() || hooks.split(',').any(|hook| hook.trim() == "UpdateMachine") {
            return Some(format!("the end of the in-place update of {self}"));
        }
        if annotation(self.0, REMEDIATE).is_some() || self.is_false("OwnerRemediated") {
            return Some(format!("the end of the remediation of {self}"));
        }
        // A health check that names a template leaves remediation to another controller. Where
        // health checks skip the Machine, they do not update these conditions any more.
        let external = self.is_false("HealthCheckSucceeded") && self.is_false("ExternallyRemediated");
        if external && !self.skips_remediation() {
            return Some(format!("the end of the external remediation of {self} (its health check fails)"));
        }
        (self.is_outdated() && !stays).then(|| format!("the rollout that replaces {self} (it is not up to date)"))
    }

    /// Whether a condition says no. Those of v1beta2 are in `status.conditions`, or in
    /// `status.v1beta2.conditions` of v1beta1.
    fn is_false(self, condition: &str) -> bool {
        let lists = ["/status/conditions", "/status/v1beta2/conditions"];
        let all = lists.into_iter().filter_map(|at| self.0.data.pointer(at)).filter_map(Value::as_array).flatten();
        { all }.any(|it| it["type"] == condition && it["status"] == "False")
    }
}

/// Whether a MachineDeployment replaces an outdated Machine only once a person acts: it is paused,
/// or its strategy is `OnDelete` (v1beta1 `spec.strategy.type`, v1beta2
/// `spec.rollout.strategy.type`).
pub(super) fn replaces_by_hand(deployment: &DynamicObject) -> bool {
    let strategy = ["/spec/rollout/strategy/type", "/spec/strategy/type"].iter().find_map(|at| text(deployment, at));
    strategy == Some("OnDelete") || deployment.data.pointer("/spec/paused") == Some(&Value::Bool(true))
}

/// A Node of the workload cluster.
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

    /// Whether the maintenance controller has drained it.
    pub(super) fn is_in_maintenance(self) -> bool {
        self.state() == Some("in-maintenance")
    }

    /// Its state in the maintenance controller.
    pub(super) fn state(self) -> Option<&'a str> {
        label(self.0, STATE)
    }

    pub(super) fn provider_id(self) -> Option<&'a str> {
        text(self.0, "/spec/providerID")
    }

    /// The labels of a maintenance that it still has, for people; `None`: none.
    pub(super) fn labels_left(self) -> Option<String> {
        let left = [(self.is_asked(), "machine-maintenance"), (self.is_approved(), "approve-maintenance")];
        let left: Vec<&str> = left.into_iter().filter(|(there, _)| *there).map(|(_, name)| name).collect();
        (!left.is_empty()).then(|| left.join(" and "))
    }

    fn is_cordoned(self) -> bool {
        self.0.data.pointer("/spec/unschedulable") == Some(&Value::Bool(true))
    }

    /// Whether it may run workloads as before its maintenance.
    pub(super) fn is_back(self) -> bool {
        self.state() == Some("operational") && !self.is_cordoned()
    }

    /// How it is, for people.
    pub(super) fn shown(self) -> String {
        let cordoned = self.is_cordoned();
        let state = self.state().unwrap_or("unknown to the maintenance controller");
        format!("{self}: {state}{}", if cordoned { ", cordoned" } else { "" })
    }
}
