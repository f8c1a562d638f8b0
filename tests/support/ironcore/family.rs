//! The families of versions that behave alike, and what sets them apart.

use serde_json::{Value, json};

/// Where a family writes and reads what a claim's owner and the operator tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Label,
    Annotation,
}

/// Versions of metal-operator that behave alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// v0.1 and v0.2: everything on the claim is an annotation.
    V0_1,
    /// v0.3: label and annotation, no priority.
    V0_3,
    /// v0.4 and v0.5: priority.
    V0_5,
    /// v0.6: nobody evicts, the approval holds until the last request ends, locator light.
    V0_6,
    /// v0.7: parking, `unclaimable`, healing of references to nothing.
    V0_7,
    /// The maintenance operator beside a metal-operator of early August 2026, the newest one that
    /// it works with: its group is the only one with `ServerMaintenance`.
    MaintenanceGroup,
    /// After v0.7: neither `ServerMaintenance` nor a reference to one; only parking.
    Parked,
}

pub const NEEDED: &str = "metal.ironcore.dev/maintenance-needed";
pub const REASON: &str = "metal.ironcore.dev/maintenance-reason";
pub const APPROVAL: &str = "metal.ironcore.dev/maintenance-approval";
pub const APPROVED: &str = "metal.ironcore.dev/maintenance-approved";
pub const OPERATION: &str = "metal.ironcore.dev/operation";
pub const PARKED: &str = "metal.ironcore.dev/parked";

/// The fields of a server that refer to objects with a namespace.
const REFERENCES: [&str; 4] =
    ["serverClaimRef", "serverMaintenanceRef", "bootConfigurationRef", "maintenanceBootConfigurationRef"];

/// The group of servers, claims and, once, maintenances.
pub const METAL: &str = "metal.ironcore.dev";
/// The group of the maintenance operator.
pub const MAINTENANCE: &str = "maintenance.metal.ironcore.dev";

impl Family {
    pub const ALL: [Self; 7] =
        [Self::V0_1, Self::V0_3, Self::V0_5, Self::V0_6, Self::V0_7, Self::MaintenanceGroup, Self::Parked];

    /// By its name, as a person writes it.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| format!("{family:?}").eq_ignore_ascii_case(name))
    }

    /// The group whose `ServerMaintenance` it serves.
    pub const fn group(self) -> Option<&'static str> {
        match self {
            Self::MaintenanceGroup => Some(MAINTENANCE),
            Self::Parked => None,
            _ => Some(METAL),
        }
    }

    pub const fn has_priority(self) -> bool {
        !matches!(self, Self::V0_1 | Self::V0_3 | Self::Parked)
    }

    /// v0.6 and later: one request leaves another's lock, approval and claim alone.
    pub const fn respects_others(self) -> bool {
        matches!(self, Self::V0_6 | Self::V0_7 | Self::MaintenanceGroup)
    }

    pub const fn can_park(self) -> bool {
        matches!(self, Self::V0_7 | Self::Parked)
    }

    /// Whether the server controller clears a reference to a `ServerMaintenance` of its own group
    /// that is not there.
    pub const fn heals(self) -> bool {
        matches!(self, Self::V0_7)
    }

    pub const fn has_unclaimable(self) -> bool {
        matches!(self, Self::V0_7 | Self::MaintenanceGroup | Self::Parked)
    }

    /// References name kind and UID too.
    pub const fn refers_by_uid(self) -> bool {
        matches!(self, Self::V0_1 | Self::V0_3)
    }

    /// Whether the power is taken from the claim; before that it went through `Server.spec.power`.
    pub const fn power_from_claim(self) -> bool {
        matches!(self, Self::Parked)
    }

    /// Where "maintenance needed" is written on the claim.
    pub const fn needed(self) -> &'static [Place] {
        match self {
            Self::V0_1 => &[Place::Annotation],
            Self::V0_3 | Self::V0_5 => &[Place::Label, Place::Annotation],
            _ => &[Place::Label],
        }
    }

    /// What counts as an approval on the claim; the first is what an owner of this family writes.
    pub const fn approvals(self) -> &'static [(Place, &'static str)] {
        match self {
            Self::V0_1 => &[(Place::Annotation, APPROVAL)],
            Self::V0_3 => &[(Place::Label, APPROVAL), (Place::Annotation, APPROVAL)],
            Self::V0_5 => &[
                (Place::Label, APPROVED),
                (Place::Annotation, APPROVED),
                (Place::Label, APPROVAL),
                (Place::Annotation, APPROVAL),
            ],
            _ => &[(Place::Label, APPROVED)],
        }
    }

    /// The values of the operation annotation that make every controller look away.
    pub const fn ignores(self) -> &'static [&'static str] {
        match self {
            Self::V0_1 | Self::V0_7 | Self::MaintenanceGroup => &["ignore", "ignore-child-and-self"],
            Self::V0_3 | Self::V0_5 | Self::V0_6 => &["ignore-reconciliation", "ignore-child-and-self-reconciliation"],
            Self::Parked => &["ignore"],
        }
    }

    /// The kind of reset that a value of the operation annotation asks for; the words are those of
    /// v0.2 and later.
    pub fn reset(operation: &str) -> Option<&'static str> {
        match operation {
            // The same table serves BMCs, so servers take their word too.
            "graceful-restart-server" | "graceful-restart-bmc" => Some("GracefulRestart"),
            "hard-restart-server" => Some("ForceRestart"),
            "power-cycle-server" => Some("PowerCycle"),
            "force-off-server" => Some("ForceOff"),
            "force-on-server" => Some("ForceOn"),
            _ => None,
        }
    }

    /// Takes from the definitions what this family does not have.
    pub(super) fn trim(self, kind: &str, schema: &mut Value) {
        let mut drop = |part: &str, fields: &[&str]| {
            for field in fields {
                schema[part]["properties"].as_object_mut().unwrap().remove(*field).expect(field);
            }
        };
        match kind {
            "Server" => {
                if !matches!(self, Self::V0_1 | Self::V0_3) {
                    drop("spec", &["uuid"]);
                }
                if matches!(self, Self::V0_1 | Self::V0_3 | Self::V0_5) {
                    drop("spec", &["reclaimPolicy", "taints"]);
                }
                if !self.has_unclaimable() {
                    drop("spec", &["unclaimable"]);
                }
                if self == Self::Parked {
                    drop("spec", &["serverMaintenanceRef", "maintenanceBootConfigurationRef", "biosSettingsRef"]);
                }
                let spec = &mut schema["spec"];
                if self == Self::V0_1 {
                    spec["required"] = json!(["uuid"]);
                }
                for reference in REFERENCES {
                    let Some(reference) = spec["properties"].get_mut(reference) else { continue };
                    if !self.refers_by_uid() {
                        let fields = reference["properties"].as_object_mut().unwrap();
                        for field in ["apiVersion", "kind", "uid"] {
                            fields.remove(field).expect(field);
                        }
                    } else if self == Self::V0_1 {
                        // Kubernetes' own reference, in which nothing is required.
                        reference.as_object_mut().unwrap().remove("required");
                    } else {
                        reference["required"] = json!(["apiVersion", "kind", "name", "namespace", "uid"]);
                    }
                }
            }
            "ServerClaim" if !matches!(self, Self::V0_7 | Self::MaintenanceGroup | Self::Parked) => {
                drop("spec", &["userDataRef"]);
                if self != Self::V0_6 {
                    drop("spec", &["tolerations"]);
                }
            }
            "ServerMaintenance" if self.group() == Some(METAL) => {
                if !self.has_priority() {
                    drop("spec", &["priority"]);
                }
                if !self.respects_others() {
                    drop("spec", &["locatorLED"]);
                }
            }
            _ => {}
        }
    }
}
