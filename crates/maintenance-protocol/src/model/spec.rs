//! What somebody asks for.

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
use shown_text as shown;

/// Whether the owner of a claimed server is asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// The server's owner must approve.
    OwnerApproval,
    /// Nobody is asked.
    Enforced,
}

impl Policy {
    /// Both in the spelling of the configuration.
    pub const NAMES: [&'static str; 2] = ["OwnerApproval", "Enforced"];

    /// The policy of that name.
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

/// What a record is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MaintenanceKind {
    /// `metal_server_maintenance`: holds the server until it is given back.
    Maintenance,
    /// `metal_server_boot_configuration`: needs the server only while it changes it.
    BootConfiguration,
    /// `metal_server_operation`: needs the server only while it is made, and puts nothing back.
    Operation,
}

/// A URL that must answer with a status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UrlCheck {
    /// The URL of the GET request. May carry a token in its query, so that only its origin and path
    /// are shown to people.
    pub url: String,
    /// The status that counts.
    pub status: u16,
}

/// What a server shall boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootSpec {
    /// What configures the booted system, where the server's own maintenance system delivers that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignition: Option<Ignition>,
    /// The boot method.
    pub method: BootMethod,
    /// The image's address, for `http` and `virtual_media`.
    pub image: Option<String>,
    /// The image's expected SHA-256, in lower case hexadecimal digits.
    pub image_sha256: Option<String>,
    /// Whether the override holds for one boot only.
    pub once: bool,
    /// Firmware interface; `None` leaves it as it is.
    pub boot_mode: Option<BootMode>,
    /// An external preparer's word that the boot environment is ready.
    pub ready_when: Option<UrlCheck>,
}

impl BootSpec {
    /// One boot by a method, without an image and conditions.
    #[must_use]
    pub fn new(method: BootMethod) -> Self {
        Self { ignition: None, method, image: None, image_sha256: None, once: true, boot_mode: None, ready_when: None }
    }
}

/// The first hexadecimal digits of a value's SHA-256: enough to tell two values apart.
fn shown_digest(value: &str) -> String {
    Sha256::digest(value)[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// When a maintenance is over by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompleteWhen {
    /// The server's power is seen in this state.
    PowerState(PowerTarget),
    /// A URL answers with a status.
    Url(UrlCheck),
}

/// How far a create goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitFor {
    /// The request is in the queue.
    Enqueued,
    /// The server is held and prepared.
    InMaintenance,
    /// The maintenance is over and the server given back.
    Completed,
}

/// One request to hold or change a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// What the record is kept for.
    pub kind: MaintenanceKind,
    /// The server's name in the configuration.
    pub server: String,
    /// The hold under which this acts, instead of a turn of its own.
    pub parent: Option<Uid>,
    /// Whether the owner is asked.
    pub policy: Policy,
    /// With `OwnerApproval`: whether a server that nobody claimed has to be claimed (and approved)
    /// first.
    pub require_claim: bool,
    /// With `OwnerApproval`: after how long without an answer it is taken all the same. Announced
    /// from the start.
    pub escalate_after: Option<Duration>,
    /// The provider's `always_perform_maintenance`: nobody is asked, whatever the policy.
    pub always_perform: bool,
    /// The Kubernetes Node that runs on the server, as the provider's `node_leases` names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeWish>,
    /// How the Node that runs on the server is drained, as the provider's `kubernetes_node` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Box<DrainWish>>,
    /// Why, for people.
    pub reason: Option<String>,
    /// Where it is discussed.
    pub ticket: Option<String>,
    /// Higher goes first.
    pub priority: i64,
    /// When it may start; `None`: at any time.
    pub window: Option<WindowSpec>,
    /// Power wanted while in maintenance; `None` leaves it as it is.
    pub server_power: Option<PowerTarget>,
    /// The one power operation; `None` for everything else.
    pub operation: Option<OperationSpec>,
    /// Work that the external system carries out; `None` for everything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Box<ServiceSpec>>,
    /// What to boot; `None` leaves boot as it is.
    pub boot: Option<BootSpec>,
    /// When it ends by itself.
    pub complete_when: Option<CompleteWhen>,
    /// How long the server may be held, from the moment it was taken. Afterwards the hold is
    /// overdue.
    pub expires_after: Option<Duration>,
    /// How long a place in the queue is kept for a process that went away.
    pub hold_place_for: Duration,
    /// Further owners whose operations and boot configurations may act under this maintenance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_under: Vec<String>,
    /// What becomes of the server when another maintenance waits at its end.
    #[serde(default, skip_serializing_if = "HandOver::is_restore")]
    pub hand_over: HandOver,
    /// Values whose change asks for a new run.
    pub triggers: BTreeMap<String, String>,
}

impl Spec {
    /// The least that can be asked: hold this server as it is, asking nobody.
    #[must_use]
    pub fn new(kind: MaintenanceKind, server: &str) -> Self {
        Self {
            kind,
            server: server.to_owned(),
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

    /// What it does to a running server, in words: after the server's name. Empty when it only
    /// takes it.
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
            // An external system's image is a name that it knows.
            let shown = |image: &str| match boot.method {
                BootMethod::External(_) => image.to_owned(),
                _ => shown_url(image),
            };
            let image = boot.image.as_deref().map(|image| format!(" from {}", shown(image))).unwrap_or_default();
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

    /// The same with a server that is only locked said to stay as it is.
    #[must_use]
    pub fn stated_effect(&self, power: Option<PowerState>) -> String {
        let effect = self.effect_on(power);
        if effect.is_empty() { "is locked; power and boot do not change.".to_owned() } else { effect }
    }

    /// One line that lets a person tell two requests apart. It holds no value of `triggers`, which
    /// may come from a sensitive variable: a digest shows which of them differ.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut parts = vec![format!("server {}", self.server)];
        if let Some(reason) = &self.reason {
            parts.push(format!("reason {reason:?}"));
        }
        if let Some(ticket) = &self.ticket {
            parts.push(format!("ticket {}", shown::line(ticket)));
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
            parts.push(format!("allow_under {}", self.allow_under.join(",")));
        }
        parts.extend(
            self.triggers
                .iter()
                .map(|(name, value)| format!("triggers.{}=sha256:{}", shown::line(name), shown_digest(value))),
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
            let triggers = [("password".to_owned(), value.to_owned()), ("run".to_owned(), "1".to_owned())].into();
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
        let again = Spec { triggers: [("run".to_owned(), "2".to_owned())].into(), ..spec() };
        assert_ne!(again.digest(), spec().digest());
    }
}
