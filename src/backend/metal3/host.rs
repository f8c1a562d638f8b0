//! What is read of a `BareMetalHost`, and our own marks on it. No I/O.
//!
//! Facts of metal3.io/v1alpha1 (baremetal-operator v0.11 to v0.14): annotations and their values
//! (`apis/metal3.io/v1alpha1/baremetalhost_types.go`), what the detached annotation's JSON means
//! (`internal/controller/metal3.io/annotations.go`).

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::{ApiResource, DynamicObject};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::backend::cluster::{MANAGER, OUR_STORE, OUR_UID, annotation, name, text};
use crate::maintenance::{gate::ExternalRequest, machine::PowerTarget};

/// The group of all kinds.
const GROUP: &str = "metal3.io";

/// Takes a host out of the operator's hands.
pub(super) const DETACHED: &str = "baremetalhost.metal3.io/detached";
/// Stops every reconciliation of a host.
const PAUSED: &str = "baremetalhost.metal3.io/paused";
/// Asks for one reboot; with a suffix after a slash: keeps the host off for as long as it is there.
pub(super) const REBOOT: &str = "reboot.metal3.io";
/// Label: the control plane or MachineDeployment of Cluster API that takes the host again.
/// cluster-api-provider-metal3 from v1.14.0-rc.0 on takes it whatever its consumer is
/// (`chooseHost`).
const REUSE: &str = "infrastructure.cluster.x-k8s.io/node-reuse";
/// Asks for an inspection, unless its value is `disabled`.
const INSPECT: &str = "inspect.metal3.io";

/// Our annotation: why.
pub(super) const REASON: &str = "terraform-provider-metal/reason";
/// Our annotation: by which hold the host was entered.
pub(super) const HOLD: &str = "terraform-provider-metal/hold";
/// Our annotation: what the host was like before, see [`Before`].
pub(super) const BEFORE: &str = "terraform-provider-metal/before";
/// Our annotation: the boot override of which we made `spec.image`, as records have it.
pub(super) const IMAGE: &str = "terraform-provider-metal/image";
/// Our annotation: when we released the host. Our other annotations stay until the operator manages
/// it again.
pub(super) const RELEASED: &str = "terraform-provider-metal/released";

/// A kind of the group, or with no group of its own a Secret or Namespace.
pub(super) fn resource(kind: &str) -> ApiResource {
    let plural = match kind {
        "HostUpdatePolicy" => "hostupdatepolicies".to_owned(),
        "HostFirmwareSettings" | "HostFirmwareComponents" => kind.to_lowercase(),
        kind => format!("{}s", kind.to_lowercase()),
    };
    let own = !matches!(kind, "Secret" | "Namespace");
    ApiResource {
        group: if own { GROUP } else { "" }.to_owned(),
        version: if own { "v1alpha1" } else { "v1" }.to_owned(),
        api_version: if own { format!("{GROUP}/v1alpha1") } else { "v1".to_owned() },
        kind: kind.to_owned(),
        plural,
    }
}

/// How a host is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// Detached: the operator neither reads nor changes it, and Redfish drives it.
    #[default]
    Detach,
    /// Kept off by our own reboot annotation; the operator goes on to manage it.
    PowerOff,
    /// An available host that is kept from consumers; the operator boots it from an image as it
    /// boots every host.
    Image,
}

impl Hold {
    /// The hold of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "detach" => Some(Self::Detach),
            "power_off" => Some(Self::PowerOff),
            "image" => Some(Self::Image),
            _ => None,
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Detach => "detach",
            Self::PowerOff => "power_off",
            Self::Image => "image",
        })
    }
}

/// What a host was like before it was entered, kept on the host itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Before {
    /// Its provisioning state.
    pub(super) state: String,
    /// The id of its node in Ironic. Detaching deletes the node (`ironic.go`, `Detach`), and what
    /// registers the host again makes another one (`register.go`, `enrollNode`): so another id
    /// proves that. Empty: nothing does.
    pub(super) id: String,
    /// The error that it had.
    pub(super) error: String,
    /// The power that its owner wanted, where a hold changes that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) online: Option<bool>,
    /// When the operator had last written its status as we released it, where it was not seen
    /// detached: another time proves that the operator read it without our annotation. Empty: none
    /// does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) unseen: Option<String>,
}

/// Our part of the value of the detached annotation and of our reboot annotations; the operator
/// ignores fields that it does not know.
#[derive(Debug, Deserialize)]
struct OurValue {
    #[serde(rename = "terraform-provider-metal")]
    ours: Author,
}

/// The maintenance that an annotation names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Author {
    /// Its incarnation.
    pub(super) uid: String,
    /// The coordination store that knows it; empty where that is not said.
    pub(super) store: String,
}

impl Author {
    pub(super) fn of(wish: &ExternalRequest) -> Self {
        Self { uid: wish.uid.clone(), store: wish.store.clone() }
    }
}

/// The value of our detached annotation: deletion is delayed, and we are named.
pub(super) fn detached_value(wish: &ExternalRequest) -> String {
    json!({ "deleteAction": "delay", MANAGER: Author::of(wish) }).to_string()
}

/// The value of our own reboot annotation: how the host is switched off, and whose key it is; the
/// operator ignores fields that it does not know.
pub(super) fn reboot_value(wish: &ExternalRequest, mode: &str) -> String {
    json!({ "mode": mode, MANAGER: Author::of(wish) }).to_string()
}

/// The key of our own reboot annotation. The part after the slash has at most 63 characters.
pub(super) fn reboot_key(uid: &str) -> String {
    let end: String = format!("{MANAGER}.{uid}").chars().take(63).collect();
    format!("{REBOOT}/{}", end.trim_end_matches(['.', '-', '_']))
}

/// `spec.consumerRef` of a host that has no consumer: others then do not choose it while it is
/// held.
pub(super) fn consumer(wish: &ExternalRequest, namespace: &str) -> Value {
    json!({ "apiVersion": format!("{MANAGER}/v1"), "kind": "Maintenance", "name": wish.uid, "namespace": namespace })
}

/// One `BareMetalHost`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host<'a>(pub(super) &'a DynamicObject);

impl<'a> Host<'a> {
    /// `namespace/name`, with its kind.
    pub(super) fn shown(self) -> String {
        format!("BareMetalHost {}/{}", self.0.metadata.namespace.as_deref().unwrap_or_default(), name(self.0))
    }

    /// Whether a provider ID is that of this host: `metal3://NAMESPACE/HOST/METAL3MACHINE`, or
    /// `metal3://UID` of its object (cluster-api-provider-metal3, `metal3machine_manager.go`,
    /// `getProviderID`; the second form before v1.3). `None`: it has another form.
    pub(super) fn has_provider_id(self, id: &str) -> Option<bool> {
        let parts: Vec<&str> = id.strip_prefix("metal3://")?.split('/').collect();
        match parts[..] {
            [namespace, host, _] => {
                Some(self.0.metadata.namespace.as_deref() == Some(namespace) && name(self.0) == host)
            }
            [uid] => self.0.metadata.uid.as_deref().map(|own| own == uid),
            _ => None,
        }
    }

    /// The provisioning state; empty when the operator has not seen the host.
    pub(super) fn state(self) -> &'a str {
        text(self.0, "/status/provisioning/state").unwrap_or_default()
    }

    /// Whether the provisioning state is one that a host stays in.
    pub(super) fn is_settled(self) -> bool {
        matches!(self.state(), "provisioned" | "externally provisioned" | "ready" | "available")
    }

    /// Whether a host runs an image for its consumer: reboot annotations act only then.
    pub(super) fn is_provisioned(self) -> bool {
        matches!(self.state(), "provisioned" | "externally provisioned")
    }

    /// The operational status.
    pub(super) fn status(self) -> &'a str {
        text(self.0, "/status/operationalStatus").unwrap_or_default()
    }

    /// The kind of its error; empty without one.
    pub(super) fn error(self) -> &'a str {
        text(self.0, "/status/errorType").unwrap_or_default()
    }

    /// The error with its message.
    pub(super) fn error_text(self) -> String {
        match text(self.0, "/status/errorMessage") {
            Some(message) => format!("{}: {message}", self.error()),
            None => self.error().to_owned(),
        }
    }

    /// When the operator last wrote the status, as it says. It writes on the condition that the
    /// host is the one that it read (`saveHostStatus`), and only what differs.
    pub(super) fn written(self) -> &'a str {
        text(self.0, "/status/lastUpdated").unwrap_or_default()
    }

    /// The id of its node in Ironic.
    pub(super) fn node(self) -> &'a str {
        text(self.0, "/status/provisioning/ID").unwrap_or_default()
    }

    fn flag(self, pointer: &str) -> bool {
        self.0.data.pointer(pointer).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The power that its owner wants.
    pub(super) fn online(self) -> bool {
        self.flag("/spec/online")
    }

    /// What `spec.online` was before we changed it; `None`: it is as before, or another author set
    /// it since. The API server knows who changed a field last (`metadata.managedFields`).
    pub(super) fn online_to_restore(self) -> Option<bool> {
        let before = self.before().online.filter(|before| *before != self.online())?;
        let mut setters = self.0.metadata.managed_fields.iter().flatten().filter(|entry| {
            let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
            fields.is_some_and(|fields| fields.pointer("/f:spec/f:online").is_some())
        });
        let ours = |entry: &ManagedFieldsEntry| entry.manager.as_deref() == Some(MANAGER);
        (setters.next().is_some_and(ours) && setters.all(ours)).then_some(before)
    }

    /// The power that the operator saw last; old while the host is detached or paused.
    pub(super) fn powered_on(self) -> bool {
        self.flag("/status/poweredOn")
    }

    /// Whether the operator never switches it off: a power-off becomes a reboot.
    pub(super) fn disables_power_off(self) -> bool {
        self.flag("/spec/disablePowerOff")
    }

    /// The power that the operator keeps it at; `None` where it does not, or cannot.
    pub(super) fn kept_power(self) -> Option<PowerTarget> {
        let (wanted, free) = (self.online(), self.reboots("").is_empty() && !self.is_paused() && !self.is_deleting());
        let able = self.status() == "OK" && (wanted || !self.disables_power_off()) && !self.detaches();
        (able && free).then_some(if wanted { PowerTarget::On } else { PowerTarget::Off })
    }

    /// Whether its deletion was requested.
    pub(super) fn is_deleting(self) -> bool {
        self.0.metadata.deletion_timestamp.is_some()
    }

    /// Whether the operator manages no BMC of it.
    pub(super) fn is_unmanaged(self) -> bool {
        self.state() == "unmanaged" || self.bmc_address().is_empty()
    }

    /// The address of its BMC.
    pub(super) fn bmc_address(self) -> &'a str {
        text(self.0, "/spec/bmc/address").unwrap_or_default()
    }

    /// The Secret with the credentials of its BMC.
    pub(super) fn credentials(self) -> &'a str {
        text(self.0, "/spec/bmc/credentialsName").unwrap_or_default()
    }

    /// Whether the certificate of its BMC is not verified.
    pub(super) fn is_insecure(self) -> bool {
        self.flag("/spec/bmc/disableCertificateVerification")
    }

    /// Its consumer, for people.
    pub(super) fn consumer(self) -> Option<String> {
        let found = self.0.data.pointer("/spec/consumerRef").filter(|found| found.is_object())?;
        let part = |key: &str| found.get(key).and_then(Value::as_str).unwrap_or_default();
        Some(format!("{} {}/{}", part("kind"), part("namespace"), part("name")))
    }

    /// For whom Cluster API keeps it between two Machines.
    pub(super) fn reuse(self) -> Option<&'a str> {
        self.0.metadata.labels.as_ref()?.get(REUSE).map(String::as_str)
    }

    /// Whether its consumer is ours: of this maintenance.
    pub(super) fn consumer_is(self, uid: &str) -> bool {
        text(self.0, "/spec/consumerRef/kind") == Some("Maintenance")
            && text(self.0, "/spec/consumerRef/apiVersion") == Some("terraform-provider-metal/v1")
            && text(self.0, "/spec/consumerRef/name") == Some(uid)
    }

    /// Whether something of a maintenance is on it that our other annotations need not name: its
    /// key, or its consumer.
    pub(super) fn is_left_by(self, uid: &str) -> bool {
        self.consumer_is(uid)
            || annotation(self.0, &reboot_key(uid)).is_some()
            || self.rebooted_by().is_some_and(|author| author.uid == uid)
    }

    /// The maintenance whose key or consumer is on it: what acts, and stays where a person removed
    /// our other annotations. Consumers name no store.
    pub(super) fn left_by(self) -> Option<Author> {
        let own = format!("{REBOOT}/{MANAGER}.");
        let key = self.0.metadata.annotations.iter().flatten().find_map(|(key, value)| {
            key.strip_prefix(&own)?;
            serde_json::from_str(value).ok().map(|value: OurValue| value.ours)
        });
        let consumer = || text(self.0, "/spec/consumerRef/name").filter(|uid| self.consumer_is(uid));
        key.or_else(|| Some(Author { uid: consumer()?.to_owned(), store: String::new() }))
    }

    /// The maintenance that our annotations name.
    pub(super) fn marked(self) -> Option<Author> {
        let uid = annotation(self.0, OUR_UID)?.to_owned();
        Some(Author { uid, store: annotation(self.0, OUR_STORE)?.to_owned() })
    }

    /// Whether it is marked to be detached.
    pub(super) fn detaches(self) -> bool {
        annotation(self.0, DETACHED).is_some()
    }

    /// The maintenance that the detached annotation names; `None` also where another author wrote
    /// it.
    pub(super) fn detached_by(self) -> Option<Author> {
        serde_json::from_str(annotation(self.0, DETACHED)?).ok().map(|value: OurValue| value.ours)
    }

    /// The operation that the plain reboot annotation names; `None` also where another author wrote
    /// it.
    pub(super) fn rebooted_by(self) -> Option<Author> {
        serde_json::from_str(annotation(self.0, REBOOT)?).ok().map(|value: OurValue| value.ours)
    }

    /// Whether its reconciliation is stopped.
    pub(super) fn is_paused(self) -> bool {
        annotation(self.0, PAUSED).is_some()
    }

    /// Reboot annotations, except the one of this key.
    pub(super) fn reboots(self, except: &str) -> Vec<&'a str> {
        let all = self.0.metadata.annotations.iter().flatten().map(|(key, _)| key.as_str());
        all.filter(|key| *key == REBOOT || key.strip_prefix(REBOOT).is_some_and(|rest| rest.starts_with('/')))
            .filter(|key| *key != except)
            .collect()
    }

    /// Whether an inspection was requested.
    pub(super) fn inspects(self) -> bool {
        annotation(self.0, INSPECT).is_some_and(|value| value != "disabled")
    }

    /// Which hold our annotations name.
    pub(super) fn hold(self) -> Option<Hold> {
        Hold::named(annotation(self.0, HOLD)?)
    }

    /// What it was like before it was entered.
    pub(super) fn before(self) -> Before {
        annotation(self.0, BEFORE).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// What it is like now, to be remembered.
    pub(super) fn as_before(self) -> Before {
        Before {
            state: self.state().to_owned(),
            id: self.node().to_owned(),
            error: self.error().to_owned(),
            online: None,
            unseen: None,
        }
    }

    /// When we released it.
    pub(super) fn released(self) -> Option<Timestamp> {
        annotation(self.0, RELEASED).map(|text| text.parse().unwrap_or(Timestamp::UNIX_EPOCH))
    }
}
