//! The requested content of a maintenance.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub use super::boot_method::BootMethod;
use super::{
    drain::DrainWish,
    hand_over::HandOver,
    ids::Uid,
    machine::{BootMode, Ignition, PowerState, PowerTarget, shown_url},
    node::NodeWish,
    operation::OperationSpec,
    service::ServiceSpec,
    window::WindowSpec,
};
use shown_text::{AsRaw, OneLine};

/// Policy for claimed servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// The server's owner must approve.
    OwnerApproval,
    /// No approval is needed.
    Enforced,
}

impl Policy {
    /// All names, as spelled in the configuration.
    pub const NAMES: [&'static str; 2] = ["OwnerApproval", "Enforced"];

    /// Parses a configured name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "OwnerApproval" => Self::OwnerApproval,
            "Enforced" => Self::Enforced,
            _ => return None,
        })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OwnerApproval => "OwnerApproval",
            Self::Enforced => "Enforced",
        })
    }
}

/// Kind of a maintenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MaintenanceKind {
    /// `metal_server_maintenance`: locks the server until it is released.
    Maintenance,
    /// `metal_server_boot_configuration`: locks the server only during the change.
    BootConfiguration,
    /// `metal_server_operation`: locks the server only during the operation, and restores nothing.
    Operation,
}

/// A URL with its expected response status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UrlCheck {
    /// URL of the GET request. Its query can contain a token, so only origin and path are
    /// displayed.
    pub url: OneLine,
    /// The expected status.
    pub status: u16,
}

/// The boot configuration of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootSpec {
    /// The booted system's configuration, if the external system delivers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignition: Option<Ignition>,
    /// The boot method.
    pub method: BootMethod,
    /// The image's address, for `http` and `virtual_media`.
    pub image: Option<OneLine>,
    /// The image's expected SHA-256, in lower case hexadecimal digits.
    pub image_sha256: Option<String>,
    /// True if the override applies to one boot only.
    pub once: bool,
    /// Firmware interface; `None` keeps the current mode.
    pub boot_mode: Option<BootMode>,
    /// URL of an external preparer that reports when the boot environment is ready.
    pub ready_when: Option<UrlCheck>,
}

impl BootSpec {
    /// Creates a one-time boot without image and conditions.
    #[must_use]
    pub fn new(method: BootMethod) -> Self {
        Self { ignition: None, method, image: None, image_sha256: None, once: true, boot_mode: None, ready_when: None }
    }
}

/// Returns the first hexadecimal digits of the value's SHA-256, to distinguish values.
fn shown_digest(value: &str) -> String {
    Sha256::digest(value)[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The condition that completes a maintenance automatically.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompleteWhen {
    /// The server reaches this power state.
    PowerState(PowerTarget),
    /// A URL returns the expected status.
    Url(UrlCheck),
}

/// The point at which a create returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitFor {
    /// The request is in the queue.
    Enqueued,
    /// The server is locked and prepared.
    InMaintenance,
    /// The maintenance has ended and the server is released.
    Completed,
}

/// One request to lock or change a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Kind of the maintenance.
    pub kind: MaintenanceKind,
    /// The server's name in the configuration.
    pub server: OneLine,
    /// The maintenance whose lock this request uses, without its own queue position.
    pub parent: Option<Uid>,
    /// Policy for the owner's approval.
    pub policy: Policy,
    /// With `OwnerApproval`: true if an unclaimed server must first be claimed and approved.
    pub require_claim: bool,
    /// With `OwnerApproval`: the wait for an answer, after which the maintenance starts without
    /// approval. The limit is announced to the owner from the start.
    pub escalate_after: Option<Duration>,
    /// The provider's `always_perform_maintenance`, which overrides the policy and skips approvals.
    pub always_perform: bool,
    /// The server's Kubernetes Node, from the provider's `node_leases`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeWish>,
    /// How the server's Node is drained, from the provider's `kubernetes_node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Box<DrainWish>>,
    /// The reason, for people.
    pub reason: Option<OneLine>,
    /// Link to its discussion.
    pub ticket: Option<OneLine>,
    /// Higher priorities start first.
    pub priority: i64,
    /// Allowed start times; `None` allows any time.
    pub window: Option<WindowSpec>,
    /// Power during the maintenance; `None` keeps the current power.
    pub server_power: Option<PowerTarget>,
    /// The power operation; `None` for other kinds.
    pub operation: Option<OperationSpec>,
    /// The external system's service, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Box<ServiceSpec>>,
    /// The boot configuration; `None` keeps the current one.
    pub boot: Option<BootSpec>,
    /// The condition that completes it automatically.
    pub complete_when: Option<CompleteWhen>,
    /// Maximum time to own the lock, from the admission. After that the maintenance is overdue.
    pub expires_after: Option<Duration>,
    /// Time for which the queue position is reserved after the process disconnects.
    pub hold_place_for: Duration,
    /// Other owners whose operations and boot configurations are allowed under this maintenance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_under: Vec<OneLine>,
    /// State in which the server is handed to the next waiter.
    #[serde(default, skip_serializing_if = "HandOver::is_restore")]
    pub hand_over: HandOver,
    /// Values whose change requests a new run.
    pub triggers: BTreeMap<OneLine, OneLine>,
}

impl Spec {
    /// Creates the smallest request: a lock without changes and approval.
    #[must_use]
    pub fn new(kind: MaintenanceKind, server: &str) -> Self {
        Self {
            kind,
            server: server.into(),
            parent: None,
            policy: Policy::Enforced,
            require_claim: false,
            escalate_after: None,
            always_perform: false,
            node: None,
            drain: None,
            reason: None,
            ticket: None,
            priority: 0,
            window: None,
            server_power: None,
            operation: None,
            service: None,
            boot: None,
            complete_when: None,
            expires_after: None,
            hold_place_for: Duration::from_mins(15),
            allow_under: Vec::new(),
            hand_over: HandOver::Restore,
            triggers: BTreeMap::new(),
        }
    }

    /// Describes the effect on a running server, to follow the server's name. Empty for a lock
    /// without changes.
    #[must_use]
    pub fn effect(&self) -> String {
        self.effect_on(None)
    }

    /// The same for a server whose power is known.
    #[must_use]
    pub fn effect_on(&self, power: Option<PowerState>) -> String {
        if let Some(operation) = &self.operation {
            return operation.effect();
        }
        if let Some(service) = &self.service {
            return service.effect();
        }
        let boots = self.boot.as_ref().map(|boot| {
            // Image names of an external system are not URLs.
            let shown = |image: &str| match boot.method {
                BootMethod::External(_) => image.to_owned(),
                _ => shown_url(image),
            };
            let image = boot.image.as_raw().map(|image| format!(" from {}", shown(image))).unwrap_or_default();
            format!("{}{image}", boot.method.name())
        });
        let is_off = power == Some(PowerState::Off);
        match (boots, self.server_power) {
            (Some(boots), Some(PowerTarget::On)) if is_off => format!("boots by {boots}."),
            (Some(boots), Some(PowerTarget::On)) if power.is_none() => {
                format!("boots by {boots}; if it runs, it is switched off first.")
            }
            (Some(boots), Some(PowerTarget::On)) => format!("is switched off and boots by {boots}."),
            (Some(boots), Some(PowerTarget::Off)) if is_off => format!("stays off; its next start is by {boots}."),
            (Some(boots), Some(PowerTarget::Off)) => format!("is switched off; its next start is by {boots}."),
            (Some(boots), None) => format!("keeps its power; its next start is by {boots}."),
            (None, Some(PowerTarget::Off)) if is_off => "stays off.".to_owned(),
            (None, Some(PowerTarget::On)) if power == Some(PowerState::On) => "stays on.".to_owned(),
            (None, Some(target)) => format!("is switched {}.", target.to_string().to_lowercase()),
            (None, None) => String::new(),
        }
    }

    /// Returns [`Self::effect`], or a sentence for a lock without changes.
    #[must_use]
    pub fn stated_effect(&self, power: Option<PowerState>) -> String {
        let effect = self.effect_on(power);
        if effect.is_empty() { "is locked; power and boot do not change.".to_owned() } else { effect }
    }

    /// Returns one line that distinguishes two requests. Values of `triggers` can be sensitive, so
    /// it shows their digest.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut parts = vec![format!("server {}", self.server)];
        if let Some(reason) = &self.reason {
            parts.push(format!("reason {reason:?}"));
        }
        if let Some(ticket) = &self.ticket {
            parts.push(format!("ticket {ticket}"));
        }
        parts.push(format!("policy {}", self.policy));
        parts.push(format!("priority {}", self.priority));
        if let Some(window) = &self.window {
            parts.push(format!("window {}", window.summary()));
        }
        if let Some(power) = self.server_power {
            parts.push(format!("power {power}"));
        }
        if let Some(operation) = &self.operation {
            parts.push(format!("operation {}", operation.reset));
        }
        if let Some(service) = &self.service {
            parts.push(format!("service by {service}"));
        }
        if let Some(boot) = &self.boot {
            parts.push(format!("boot {}", boot.method.name()));
        }
        if !self.allow_under.is_empty() {
            parts.push(format!(
                "allow_under {}",
                self.allow_under.iter().map(OneLine::shown).collect::<Vec<_>>().join(",")
            ));
        }
        parts.extend(
            self.triggers.iter().map(|(name, value)| format!("triggers.{name}=sha256:{}", shown_digest(value.raw()))),
        );
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec::new(MaintenanceKind::Maintenance, "node-1")
    }

    #[test]
    fn a_summary_tells_values_of_triggers_apart_without_showing_them() {
        let of = |value: &str| {
            let triggers = [("password".into(), value.into()), ("run".into(), "1".into())].into();
            Spec { triggers, ..spec() }.summary()
        };
        let (one, other) = (of("hunter2"), of("hunter3"));
        assert!(one.ends_with(", triggers.password=sha256:f52fbd32, triggers.run=sha256:6b86b273"), "{one}");
        assert!(other.contains("triggers.password=sha256:") && other != one, "{other}");
        assert!(!format!("{one}{other}").contains("hunter"), "{one} {other}");
    }

    #[test]
    fn an_effect_is_stated_only_for_the_power_that_it_starts_from() {
        use PowerTarget::{Off, On};
        let pxe = Some(BootSpec::new(BootMethod::Pxe));
        for (boot, target, power, effect) in [
            (&pxe, On, Some(PowerState::On), "is switched off and boots by pxe."),
            (&pxe, On, Some(PowerState::Off), "boots by pxe."),
            (&pxe, On, None, "boots by pxe; if it runs, it is switched off first."),
            (&pxe, Off, Some(PowerState::On), "is switched off; its next start is by pxe."),
            (&pxe, Off, Some(PowerState::Off), "stays off; its next start is by pxe."),
            (&None, Off, Some(PowerState::Off), "stays off."),
            (&None, Off, Some(PowerState::On), "is switched off."),
            (&None, On, Some(PowerState::On), "stays on."),
            (&None, On, None, "is switched on."),
        ] {
            let spec = Spec { boot: boot.clone(), server_power: Some(target), ..spec() };
            assert_eq!(spec.effect_on(power), effect);
        }
    }

    #[test]
    fn a_longer_patience_is_the_same_request_and_another_wish_is_not() {
        let patient = Spec { hold_place_for: Duration::from_hours(2), ..spec() };
        assert_eq!(patient.digest(), spec().digest());
        let other = Spec { server_power: Some(PowerTarget::Off), ..spec() };
        assert_ne!(other.digest(), spec().digest());
        let again = Spec { triggers: [("run".into(), "2".into())].into(), ..spec() };
        assert_ne!(again.digest(), spec().digest());
    }
}
