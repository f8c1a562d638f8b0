//! Accessors for a `BareMetalHost`, including our own annotations. No I/O.
//!
//! Sources for metal3.io/v1alpha1 (baremetal-operator v0.11 to v0.14): annotations and their values
//! are in `apis/metal3.io/v1alpha1/baremetalhost_types.go`, and the detached annotation's JSON is
//! in `internal/controller/metal3.io/annotations.go`.

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::{ApiResource, DynamicObject};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::backend::cluster::{MANAGER, OUR_STORE, OUR_UID, annotation, name, text};
use crate::maintenance::{gate::ExternalRequest, machine::PowerTarget};

const GROUP: &str = "metal3.io";

/// Detaches a host from the operator.
pub(super) const DETACHED: &str = "baremetalhost.metal3.io/detached";
/// Pauses all reconciliation of a host.
const PAUSED: &str = "baremetalhost.metal3.io/paused";
/// Requests one reboot. With a suffix after a slash, keeps the host off while it exists.
pub(super) const REBOOT: &str = "reboot.metal3.io";
/// Label with the Cluster API control plane or MachineDeployment that reuses the host.
/// cluster-api-provider-metal3 from v1.14.0-rc.0 on reuses it whatever its consumer (`chooseHost`).
const REUSE: &str = "infrastructure.cluster.x-k8s.io/node-reuse";
/// Requests an inspection, unless the value is `disabled`.
const INSPECT: &str = "inspect.metal3.io";

/// Our annotation with the reason.
pub(super) const REASON: &str = "terraform-provider-metal/reason";
/// Our annotation with the hold mode at entry.
pub(super) const HOLD: &str = "terraform-provider-metal/hold";
/// Our annotation with the host's prior state, see [`Before`].
pub(super) const BEFORE: &str = "terraform-provider-metal/before";
/// Our annotation with the boot override behind our `spec.image`, in the form that records store.
pub(super) const IMAGE: &str = "terraform-provider-metal/image";
/// Our annotation with the release time. Our other annotations stay until the operator manages the
/// host again.
pub(super) const RELEASED: &str = "terraform-provider-metal/released";

/// Returns one of this group's kinds; Secret and Namespace belong to the core group.
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

/// The method by which a maintenance keeps its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// Detached: the operator ignores the host, and Redfish controls it.
    #[default]
    Detach,
    /// Kept off by our reboot annotation; the operator continues to manage the host.
    PowerOff,
    /// An available host without a consumer. The operator boots it from an image, as it boots any
    /// host.
    Image,
}

impl Hold {
    /// Returns the mode with this name.
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

/// A host's state before entry, stored on the host itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Before {
    pub(super) state: String,
    /// The ID of the host's Ironic node. Detaching deletes the node (`ironic.go`, `Detach`), and
    /// registration creates another (`register.go`, `enrollNode`). So a different ID proves the
    /// registration. Empty if an ID cannot prove it.
    pub(super) id: String,
    pub(super) error: String,
    /// The owner's desired power, if the hold mode changes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) online: Option<bool>,
    /// The operator's last status write before our release, if the host was not seen detached. A
    /// later time proves that the operator has read the host without our annotation. Empty if a
    /// time cannot prove it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) unseen: Option<String>,
}

/// Our part of the detached annotation's and reboot annotations' values. The operator ignores
/// unknown fields.
#[derive(Debug, Deserialize)]
struct OurValue {
    #[serde(rename = "terraform-provider-metal")]
    ours: Author,
}

/// The maintenance that an annotation identifies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Author {
    pub(super) uid: String,
    /// The ID of its coordination store; empty if unknown.
    pub(super) store: String,
}

impl Author {
    pub(super) fn of(wish: &ExternalRequest) -> Self {
        Self { uid: wish.uid.clone(), store: wish.store.clone() }
    }
}

/// Returns our detached annotation's value: it delays deletion and identifies the maintenance.
pub(super) fn detached_value(wish: &ExternalRequest) -> String {
    json!({ "deleteAction": "delay", MANAGER: Author::of(wish) }).to_string()
}

/// Returns our reboot annotation's value: the power-off mode and the maintenance. The operator
/// ignores unknown fields.
pub(super) fn reboot_value(wish: &ExternalRequest, mode: &str) -> String {
    json!({ "mode": mode, MANAGER: Author::of(wish) }).to_string()
}

/// Returns our reboot annotation's key. The part after the slash is limited to 63 characters.
pub(super) fn reboot_key(uid: &str) -> String {
    let end: String = format!("{MANAGER}.{uid}").chars().take(63).collect();
    format!("{REBOOT}/{}", end.trim_end_matches(['.', '-', '_']))
}

/// Returns the `spec.consumerRef` for a host without a consumer, so that others do not choose it
/// during the maintenance.
pub(super) fn consumer(wish: &ExternalRequest, namespace: &str) -> Value {
    json!({ "apiVersion": format!("{MANAGER}/v1"), "kind": "Maintenance", "name": wish.uid, "namespace": namespace })
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Host<'a>(pub(super) &'a DynamicObject);

impl<'a> Host<'a> {
    /// Returns the kind with `namespace/name`.
    pub(super) fn shown(self) -> String {
        format!("BareMetalHost {}/{}", self.0.metadata.namespace.as_deref().unwrap_or_default(), name(self.0))
    }

    /// Returns true if a provider ID names this host: `metal3://NAMESPACE/HOST/METAL3MACHINE`, or
    /// `metal3://UID` with the object's UID (cluster-api-provider-metal3,
    /// `metal3machine_manager.go`, `getProviderID`; the second form before v1.3). `None` for any
    /// other form.
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

    /// Returns the provisioning state; empty before the operator has processed the host.
    pub(super) fn state(self) -> &'a str {
        text(self.0, "/status/provisioning/state").unwrap_or_default()
    }

    /// Returns true if the provisioning state is stable.
    pub(super) fn is_settled(self) -> bool {
        matches!(self.state(), "provisioned" | "externally provisioned" | "ready" | "available")
    }

    /// Returns true if the host runs an image for its consumer. Otherwise reboot annotations have
    /// no effect.
    pub(super) fn is_provisioned(self) -> bool {
        matches!(self.state(), "provisioned" | "externally provisioned")
    }

    pub(super) fn status(self) -> &'a str {
        text(self.0, "/status/operationalStatus").unwrap_or_default()
    }

    /// Returns the error type; empty without an error.
    pub(super) fn error(self) -> &'a str {
        text(self.0, "/status/errorType").unwrap_or_default()
    }

    /// Returns the error type with its message.
    pub(super) fn error_text(self) -> String {
        match text(self.0, "/status/errorMessage") {
            Some(message) => format!("{}: {message}", self.error()),
            None => self.error().to_owned(),
        }
    }

    /// Returns the operator's reported time of its last status write. It writes only differences,
    /// and only to the host version that it read (`saveHostStatus`).
    pub(super) fn written(self) -> &'a str {
        text(self.0, "/status/lastUpdated").unwrap_or_default()
    }

    /// Returns the ID of the host's Ironic node.
    pub(super) fn node(self) -> &'a str {
        text(self.0, "/status/provisioning/ID").unwrap_or_default()
    }

    fn flag(self, pointer: &str) -> bool {
        self.0.data.pointer(pointer).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Returns the owner's desired power.
    pub(super) fn online(self) -> bool {
        self.flag("/spec/online")
    }

    /// Returns the `spec.online` value from before our change; `None` if it is unchanged or another
    /// author has set it since. The API server records each field's last writer
    /// (`metadata.managedFields`).
    pub(super) fn online_to_restore(self) -> Option<bool> {
        let before = self.before().online.filter(|before| *before != self.online())?;
        let mut setters = self.0.metadata.managed_fields.iter().flatten().filter(|entry| {
            let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
            fields.is_some_and(|fields| fields.pointer("/f:spec/f:online").is_some())
        });
        let ours = |entry: &ManagedFieldsEntry| entry.manager.as_deref() == Some(MANAGER);
        (setters.next().is_some_and(ours) && setters.all(ours)).then_some(before)
    }

    /// Returns the power that the operator last observed; outdated while the host is detached or
    /// paused.
    pub(super) fn powered_on(self) -> bool {
        self.flag("/status/poweredOn")
    }

    /// Returns true if the operator never powers the host off: a power-off becomes a reboot.
    pub(super) fn disables_power_off(self) -> bool {
        self.flag("/spec/disablePowerOff")
    }

    /// Returns the power that the operator enforces; `None` if it does not or cannot enforce any.
    pub(super) fn kept_power(self) -> Option<PowerTarget> {
        let (wanted, free) = (self.online(), self.reboots("").is_empty() && !self.is_paused() && !self.is_deleting());
        let able = self.status() == "OK" && (wanted || !self.disables_power_off()) && !self.detaches();
        (able && free).then_some(if wanted { PowerTarget::On } else { PowerTarget::Off })
    }

    pub(super) fn is_deleting(self) -> bool {
        self.0.metadata.deletion_timestamp.is_some()
    }

    /// Returns true if the operator does not manage a BMC for the host.
    pub(super) fn is_unmanaged(self) -> bool {
        self.state() == "unmanaged" || self.bmc_address().is_empty()
    }

    pub(super) fn bmc_address(self) -> &'a str {
        text(self.0, "/spec/bmc/address").unwrap_or_default()
    }

    /// Returns the Secret with the BMC's credentials.
    pub(super) fn credentials(self) -> &'a str {
        text(self.0, "/spec/bmc/credentialsName").unwrap_or_default()
    }

    /// Returns a warning if the operator has not logged in with the host's Secret.
    pub(super) fn unproven_credentials(self) -> Option<String> {
        let (wanted, proven) = (self.credentials(), text(self.0, "/status/goodCredentials/credentials/name"));
        (proven != Some(wanted)).then(|| {
            format!(
                "BMC: the operator has not logged in with Secret {wanted} (status.goodCredentials); check who names it."
            )
        })
    }

    /// Returns true if the BMC's certificate is not verified.
    pub(super) fn is_insecure(self) -> bool {
        self.flag("/spec/bmc/disableCertificateVerification")
    }

    pub(super) fn consumer(self) -> Option<String> {
        let found = self.0.data.pointer("/spec/consumerRef").filter(|found| found.is_object())?;
        let part = |key: &str| found.get(key).and_then(Value::as_str).unwrap_or_default();
        Some(format!("{} {}/{}", part("kind"), part("namespace"), part("name")))
    }

    /// Returns the owner for which Cluster API reserves the host between two Machines.
    pub(super) fn reuse(self) -> Option<&'a str> {
        self.0.metadata.labels.as_ref()?.get(REUSE).map(String::as_str)
    }

    /// Returns true if this maintenance is the consumer.
    pub(super) fn consumer_is(self, uid: &str) -> bool {
        text(self.0, "/spec/consumerRef/kind") == Some("Maintenance")
            && text(self.0, "/spec/consumerRef/apiVersion") == Some("terraform-provider-metal/v1")
            && text(self.0, "/spec/consumerRef/name") == Some(uid)
    }

    /// Returns true if this maintenance's key or consumer is on the host. Our other annotations can
    /// be missing.
    pub(super) fn is_left_by(self, uid: &str) -> bool {
        self.consumer_is(uid)
            || annotation(self.0, &reboot_key(uid)).is_some()
            || self.rebooted_by().is_some_and(|author| author.uid == uid)
    }

    /// Returns the maintenance whose key or consumer is on the host. Both stay effective after a
    /// person removed our other annotations. Consumers do not contain the store.
    pub(super) fn left_by(self) -> Option<Author> {
        let own = format!("{REBOOT}/{MANAGER}.");
        let key = self.0.metadata.annotations.iter().flatten().find_map(|(key, value)| {
            key.strip_prefix(&own)?;
            serde_json::from_str(value).ok().map(|value: OurValue| value.ours)
        });
        let consumer = || text(self.0, "/spec/consumerRef/name").filter(|uid| self.consumer_is(uid));
        key.or_else(|| Some(Author { uid: consumer()?.to_owned(), store: String::new() }))
    }

    /// Returns the maintenance in our annotations.
    pub(super) fn marked(self) -> Option<Author> {
        let uid = annotation(self.0, OUR_UID)?.to_owned();
        Some(Author { uid, store: annotation(self.0, OUR_STORE)?.to_owned() })
    }

    /// Returns true if the host has the detached annotation.
    pub(super) fn detaches(self) -> bool {
        annotation(self.0, DETACHED).is_some()
    }

    /// Returns the maintenance in the detached annotation; `None` if another author wrote it.
    pub(super) fn detached_by(self) -> Option<Author> {
        serde_json::from_str(annotation(self.0, DETACHED)?).ok().map(|value: OurValue| value.ours)
    }

    /// Returns the operation in the plain reboot annotation; `None` if another author wrote it.
    pub(super) fn rebooted_by(self) -> Option<Author> {
        serde_json::from_str(annotation(self.0, REBOOT)?).ok().map(|value: OurValue| value.ours)
    }

    pub(super) fn is_paused(self) -> bool {
        annotation(self.0, PAUSED).is_some()
    }

    /// Returns the reboot annotations except this key.
    pub(super) fn reboots(self, except: &str) -> Vec<&'a str> {
        let all = self.0.metadata.annotations.iter().flatten().map(|(key, _)| key.as_str());
        all.filter(|key| *key == REBOOT || key.strip_prefix(REBOOT).is_some_and(|rest| rest.starts_with('/')))
            .filter(|key| *key != except)
            .collect()
    }

    /// Returns true if an inspection was requested.
    pub(super) fn inspects(self) -> bool {
        annotation(self.0, INSPECT).is_some_and(|value| value != "disabled")
    }

    /// Returns the hold mode in our annotations.
    pub(super) fn hold(self) -> Option<Hold> {
        Hold::named(annotation(self.0, HOLD)?)
    }

    /// Returns the recorded state from before entry.
    pub(super) fn before(self) -> Before {
        annotation(self.0, BEFORE).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Returns the current state in the form to record.
    pub(super) fn as_before(self) -> Before {
        Before {
            state: self.state().to_owned(),
            id: self.node().to_owned(),
            error: self.error().to_owned(),
            online: None,
            unseen: None,
        }
    }

    pub(super) fn released(self) -> Option<Timestamp> {
        annotation(self.0, RELEASED).map(|text| text.parse().unwrap_or(Timestamp::UNIX_EPOCH))
    }
}
