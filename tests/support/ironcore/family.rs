//! Version families with the same behaviour, and their differences.

use serde_json::{Value, json};

/// Part of a claim's metadata through which the owner and the operator communicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Label,
    Annotation,
}

/// Versions of metal-operator with the same behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// v0.1 and v0.2: annotations only.
    V0_1,
    /// v0.3: label and annotation, no priority.
    V0_3,
    /// v0.4 and v0.5: priority.
    V0_5,
    /// v0.6: no preemption, approvals last until the last request ends, locator light.
    V0_6,
    /// v0.7: parking, `unclaimable`, repair of dangling references.
    V0_7,
    /// The separate maintenance operator with a metal-operator of early August 2026, the newest
    /// compatible version. Only its group serves `ServerMaintenance`.
    MaintenanceGroup,
    /// After v0.7: no `ServerMaintenance` and no reference to it, only parking.
    Parked,
}

pub const NEEDED: &str = "metal.ironcore.dev/maintenance-needed";
pub const REASON: &str = "metal.ironcore.dev/maintenance-reason";
pub const APPROVAL: &str = "metal.ironcore.dev/maintenance-approval";
pub const APPROVED: &str = "metal.ironcore.dev/maintenance-approved";
pub const OPERATION: &str = "metal.ironcore.dev/operation";
pub const PARKED: &str = "metal.ironcore.dev/parked";

/// Server fields that refer to namespaced objects.
const REFERENCES: [&str; 4] =
    ["serverClaimRef", "serverMaintenanceRef", "bootConfigurationRef", "maintenanceBootConfigurationRef"];

/// Group of servers and claims, and formerly of maintenances.
pub const METAL: &str = "metal.ironcore.dev";
/// Group of the maintenance operator.
pub const MAINTENANCE: &str = "maintenance.metal.ironcore.dev";

impl Family {
    pub const ALL: [Self; 7] =
        [Self::V0_1, Self::V0_3, Self::V0_5, Self::V0_6, Self::V0_7, Self::MaintenanceGroup, Self::Parked];

    /// Parses a family's name, ignoring case.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| format!("{family:?}").eq_ignore_ascii_case(name))
    }

    /// Group of the family's `ServerMaintenance`.
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

    /// Returns true from v0.6: a request does not affect another's lock, approval or claim.
    pub const fn respects_others(self) -> bool {
        matches!(self, Self::V0_6 | Self::V0_7 | Self::MaintenanceGroup)
    }

    pub const fn can_park(self) -> bool {
        matches!(self, Self::V0_7 | Self::Parked)
    }

    /// Returns true if the server controller clears dangling `ServerMaintenance` references of its
    /// group.
    pub const fn heals(self) -> bool {
        matches!(self, Self::V0_7)
    }

    pub const fn has_unclaimable(self) -> bool {
        matches!(self, Self::V0_7 | Self::MaintenanceGroup | Self::Parked)
    }

    /// Returns true if references include kind and UID.
    pub const fn refers_by_uid(self) -> bool {
        matches!(self, Self::V0_1 | Self::V0_3)
    }

    /// Returns true if power comes from the claim instead of `Server.spec.power`.
    pub const fn power_from_claim(self) -> bool {
        matches!(self, Self::Parked)
    }

    /// Returns the claim's metadata that marks needed maintenance.
    pub const fn needed(self) -> &'static [Place] {
        match self {
            Self::V0_1 => &[Place::Annotation],
            Self::V0_3 | Self::V0_5 => &[Place::Label, Place::Annotation],
            _ => &[Place::Label],
        }
    }

    /// Returns the accepted approvals on a claim; owners of this family write the first.
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

    /// Returns the operation annotation values that exclude an object from reconciles.
    pub const fn ignores(self) -> &'static [&'static str] {
        match self {
            Self::V0_1 | Self::V0_7 | Self::MaintenanceGroup => &["ignore", "ignore-child-and-self"],
            Self::V0_3 | Self::V0_5 | Self::V0_6 => &["ignore-reconciliation", "ignore-child-and-self-reconciliation"],
            Self::Parked => &["ignore"],
        }
    }

    /// Returns the reset type for an operation annotation value, as of v0.2.
    pub fn reset(operation: &str) -> Option<&'static str> {
        match operation {
            // The operator uses one table for servers and BMCs, so servers accept BMC values.
            "graceful-restart-server" | "graceful-restart-bmc" => Some("GracefulRestart"),
            "hard-restart-server" => Some("ForceRestart"),
            "power-cycle-server" => Some("PowerCycle"),
            "force-off-server" => Some("ForceOff"),
            "force-on-server" => Some("ForceOn"),
            _ => None,
        }
    }

    /// Removes fields that this family lacks from a CRD schema.
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
                        // Kubernetes' own reference type, without required fields.
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
