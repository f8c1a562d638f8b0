//! A Server as a machine, both outside a maintenance and under a granted one.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use kube::core::DynamicObject;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{
    backend::{
        Backend as _, BackendError, BootControl, HardwareIdentity, Machine, MaintenanceSystem, MediaControl,
        PowerControl, cluster_block::BOOT_OPERATOR, redfish::RedfishBackend,
    },
    maintenance::{
        gate::ExternalRequest,
        machine::{
            BootOption, BootOverride, Capabilities, Ignition, MachineDescription, MachineView, MediaSlot, PowerState,
            ResetType,
        },
    },
    shown::OneLine,
};

use super::{
    discovery::Way,
    errors::not_now,
    fleet::ClusterObjects,
    link,
    objects::{METAL, OPERATION, OUR_BOOT, OUR_LOOK, PARKED, annotation, name, namespace, resource, text},
    operation,
    request::ServerMaintenanceRequest,
    template::Template,
};

/// How long a power-on or forced power-off is observed.
const SWITCHES: Duration = Duration::from_secs(5);

/// The pause between observations.
const PAUSE: Duration = Duration::from_millis(500);

/// A Redfish machine and the backend that owns its session.
type BmcSession = (Arc<dyn Machine>, RedfishBackend);

#[derive(Debug)]
pub(super) struct OperatorMachine {
    pub(super) fleet: Arc<ClusterObjects>,
    pub(super) name: String,
    /// The maintenance that changes the server; `None` for operations without a maintenance.
    pub(super) held: Option<ExternalRequest>,
    /// True if observations must not be older than the call.
    pub(super) fresh: bool,
    /// The BMC session, opened on first use.
    pub(super) link: Arc<OnceCell<BmcSession>>,
}

impl OperatorMachine {
    pub(super) async fn server(&self, fresh: bool) -> Result<Arc<DynamicObject>, BackendError> {
        self.fleet.known(&self.name, fresh).await
    }

    async fn redfish(&self) -> Result<&Arc<dyn Machine>, BackendError> {
        let link = self.link.get_or_try_init(|| async {
            let server = self.server(true).await?;
            link::machine(&self.fleet, &server, &self.name).await
        });
        Ok(&link.await?.0)
    }

    pub(super) async fn close(&self) {
        if let Some((_, backend)) = self.link.get() {
            backend.close().await;
        }
    }

    /// Returns true if a maintenance controls power and boot over Redfish.
    async fn by_redfish(&self) -> Result<bool, BackendError> {
        Ok(self.fleet.found().await?.way != Way::Legacy)
    }

    /// Returns the Redfish machine under a maintenance; `None` if the operator controls power and
    /// boot.
    async fn driven(&self) -> Result<Option<&Arc<dyn Machine>>, BackendError> {
        if self.held.is_some() && self.by_redfish().await? { self.redfish().await.map(Some) } else { Ok(None) }
    }

    /// Returns true if the operator is shutting the server down to park it.
    async fn is_being_parked(&self) -> Result<bool, BackendError> {
        let server = self.server(true).await?;
        Ok(annotation(&server, OPERATION) == Some("park") && annotation(&server, PARKED).is_none())
    }

    /// Forces off a server that is being parked, and triggers the operator. The operator checks
    /// such a server every two minutes (`parkServer`, `RequeueAfter`), and immediately after an
    /// annotation changes.
    async fn force_off_to_park(&self, machine: &Arc<dyn Machine>) -> Result<(), BackendError> {
        if machine.observe().await?.power != PowerState::Off {
            machine.reset(ResetType::ForceOff).await?;
            self.becomes(machine, true).await;
        }
        let server = self.server(true).await?;
        let seen = json!({ "metadata": { "annotations": { OUR_LOOK: self.fleet.clock.now().to_string() } } });
        match self.fleet.patch(&resource(METAL, "Server"), &server, seen).await {
            // The operator has just written, so it will check the server anyway.
            Err(BackendError::Rejected { status: 409, .. }) => Ok(()),
            patched => patched,
        }
    }

    /// Waits briefly for a power change. Returns false if it has not happened.
    async fn becomes(&self, machine: &Arc<dyn Machine>, off: bool) -> bool {
        let until = self.fleet.clock.monotonic() + SWITCHES;
        loop {
            match machine.observe().await {
                Ok(view) if (view.power == PowerState::Off) == off => return true,
                Ok(_) if self.fleet.clock.monotonic() < until => self.fleet.clock.sleep(PAUSE).await,
                Ok(_) | Err(_) => return false,
            }
        }
    }

    /// Powers a parked server on before the operator unparks it. The operator would boot a claimed
    /// server that is off from the network (v0.7, `handleReservedState`).
    pub(super) async fn start(&self) -> Result<(), BackendError> {
        let machine = self.redfish().await?;
        if machine.observe().await?.power == PowerState::Off {
            machine.reset(ResetType::On).await?;
        }
        if self.becomes(machine, false).await {
            return Ok(());
        }
        let why = format!("it was off {} s after it was switched on", SWITCHES.as_secs());
        Err(not_now(self.fleet.cluster.address(), format!("unpark Server {}", self.name), why))
    }

    pub(super) fn request<'a>(&'a self, wish: &'a ExternalRequest) -> ServerMaintenanceRequest<'a> {
        ServerMaintenanceRequest { fleet: &self.fleet, server: &self.name, wish }
    }

    fn held(&self) -> Result<&ExternalRequest, BackendError> {
        self.held.as_ref().ok_or_else(|| BackendError::Unsupported {
            address: self.address().into(),
            what: "the boot configuration can change only in a maintenance".into(),
        })
    }

    /// Returns the operator's boot template as a boot override.
    async fn template(&self, wish: &ExternalRequest) -> Result<BootOverride, BackendError> {
        let object = self.request(wish).object(self.fresh).await?;
        let none =
            BootOverride { enabled: Some("Disabled".into()), target: Some("None".into()), ..BootOverride::default() };
        let Some(object) = object else { return Ok(none) };
        let Some(image) = text(&object, "/spec/serverBootConfigurationTemplate/spec/image") else { return Ok(none) };
        let made_from: Option<BootOverride> =
            annotation(&object, OUR_BOOT).and_then(|text| serde_json::from_str(text).ok());
        let http_boot_uri = Some(image.to_owned());
        Ok(BootOverride {
            http_boot_uri: http_boot_uri.map(OneLine::from),
            external: true,
            ..made_from.unwrap_or_default()
        })
    }
}

#[async_trait]
impl Machine for OperatorMachine {
    fn address(&self) -> String {
        format!("{}, Server {}", self.fleet.cluster.address(), self.name)
    }

    async fn identify(&self) -> Result<HardwareIdentity, BackendError> {
        let server = self.server(false).await?;
        let said = |path: &str| text(&server, path).map(str::to_owned);
        Ok(HardwareIdentity {
            uuid: said("/spec/systemUUID").or_else(|| said("/spec/uuid")),
            manufacturer: said("/status/manufacturer"),
            serial_number: said("/status/serialNumber"),
            authority: self.fleet.cluster.address(),
            path: format!("/servers/{}", self.name),
            ..HardwareIdentity::default()
        })
    }

    async fn late_answer(&self) -> Option<BackendError> {
        self.driven().await.ok()??.late_answer().await
    }

    async fn observe(&self) -> Result<MachineView, BackendError> {
        // The operator does not observe a parked server, so its status is outdated.
        if let Some(machine) = self.driven().await? {
            return machine.observe().await;
        }
        let server = self.server(self.fresh).await?;
        let boot = match &self.held {
            Some(wish) => Some(self.template(wish).await?),
            None => None,
        };
        Ok(MachineView {
            power: match text(&server, "/status/powerState") {
                Some("On") => PowerState::On,
                Some("Off") => PowerState::Off,
                Some("PoweringOn") => PowerState::PoweringOn,
                Some("PoweringOff") => PowerState::PoweringOff,
                Some("Paused") => PowerState::Paused,
                _ => PowerState::Unknown,
            },
            boot_progress: None,
            last_reset: None,
            boot,
            boot_unclear: false,
            health: None,
            description: MachineDescription {
                manufacturer: text(&server, "/status/manufacturer").map(OneLine::from),
                model: text(&server, "/status/model").map(OneLine::from),
                serial_number: text(&server, "/status/serialNumber").map(OneLine::from),
                host_name: None,
            },
        })
    }

    async fn capabilities(&self) -> Result<Capabilities, BackendError> {
        if self.by_redfish().await? {
            self.server(false).await?;
            let listed = self.redfish().await?.capabilities().await?;
            // Without a maintenance, the operator performs the changes.
            return Ok(match self.held {
                Some(_) => listed,
                None => Capabilities { resets: union(listed.resets), resets_by: Some(OPERATOR.into()), ..listed },
            });
        }
        self.server(false).await?;
        Ok(Capabilities {
            resets: union(vec![ResetType::GracefulShutdown]),
            resets_by: Some(OPERATOR.into()),
            boot_targets: vec![BOOT_OPERATOR.target().into()],
            http_boot_uri: true,
            ..Capabilities::default()
        })
    }

    fn maintenance_system(&self) -> Option<&dyn MaintenanceSystem> {
        Some(self)
    }
}

/// Returns the Secret name for a request's ignition.
fn ignition_secret(object: &DynamicObject, sha256: &str) -> String {
    format!("{}-ignition-{}", name(object), sha256.get(..8).unwrap_or(sha256))
}

/// The system that changes a server's power outside a maintenance.
const OPERATOR: &str = "metal-operator";

/// Adds the operator annotation's operations to the listed resets.
fn union(mut resets: Vec<ResetType>) -> Vec<ResetType> {
    for (reset, _) in operation::NAMES {
        if !resets.contains(&reset) {
            resets.push(reset);
        }
    }
    resets
}

#[async_trait]
impl PowerControl for OperatorMachine {
    async fn reset(&self, reset: ResetType) -> Result<(), BackendError> {
        if let Some(machine) = self.driven().await? {
            if reset == ResetType::ForceOff && self.is_being_parked().await? {
                return self.force_off_to_park(machine).await;
            }
            return machine.reset(reset).await;
        }
        match (&self.held, reset) {
            (Some(wish), ResetType::On) => self.request(wish).set_power("On").await,
            (Some(wish), ResetType::GracefulShutdown) => self.request(wish).set_power("Off").await,
            (Some(wish), ResetType::ForceOff) => {
                let request = self.request(wish);
                // Otherwise the operator would enforce its previous target and power the server on
                // again.
                request.release_power().await?;
                operation::ask(&self.fleet, &self.name, reset).await?;
                request.set_power("Off").await
            }
            (None, ResetType::On | ResetType::ForceOff) => {
                operation::would_last(&self.fleet, &self.name, reset).await?;
                operation::ask(&self.fleet, &self.name, reset).await
            }
            _ => operation::ask(&self.fleet, &self.name, reset).await,
        }
    }
}

#[async_trait]
impl BootControl for OperatorMachine {
    async fn set_boot_override(&self, wanted: &BootOverride, clear_http_boot_uri: bool) -> Result<(), BackendError> {
        if let Some(machine) = self.driven().await? {
            return machine.set_boot_override(wanted, clear_http_boot_uri).await;
        }
        let wish = self.held()?;
        let request = self.request(wish);
        let Some(image) = wanted.http_boot_uri.as_ref().filter(|_| !wanted.is_disabled()) else {
            return request.set_template(None).await;
        };
        let mut spec = json!({ "serverRef": { "name": self.name }, "image": image });
        match &wanted.ignition {
            None => {}
            Some(Ignition::Secret(name)) => spec["ignitionSecretRef"] = json!({ "name": name }),
            Some(Ignition::Content(sha256)) => {
                let Some(object) = request.object(true).await? else {
                    return Err(BackendError::Missing {
                        address: self.address().into(),
                        what: "our ServerMaintenance was deleted".into(),
                    });
                };
                let name = ignition_secret(&object, sha256);
                self.fleet.ignition_secret(namespace(&object), &name, sha256, Some(&object)).await?;
                spec["ignitionSecretRef"] = json!({ "name": name });
            }
        }
        let made_from = BootOverride { http_boot_uri: None, ..wanted.clone() };
        let made_from = serde_json::to_value(&made_from).unwrap_or(Value::Null).to_string();
        request.set_template(Some(Template { spec, made_from })).await
    }

    async fn boot_menu(&self) -> Result<Vec<BootOption>, BackendError> {
        match self.driven().await? {
            Some(machine) => machine.boot_menu().await,
            None => Ok(Vec::new()),
        }
    }
}

#[async_trait]
impl MediaControl for OperatorMachine {
    async fn media(&self, known: &[MediaSlot]) -> Result<Vec<MediaSlot>, BackendError> {
        // The drives are listed before a maintenance too, because plans show their features.
        if self.by_redfish().await? { self.redfish().await?.media(known).await } else { Ok(Vec::new()) }
    }

    async fn insert_medium(&self, slot: &str, image: &str, write_protected: bool) -> Result<(), BackendError> {
        match self.driven().await? {
            Some(machine) => machine.insert_medium(slot, image, write_protected).await,
            None => Err(self.no_media()),
        }
    }

    async fn eject_medium(&self, slot: &str) -> Result<(), BackendError> {
        match self.driven().await? {
            Some(machine) => machine.eject_medium(slot).await,
            None => Err(self.no_media()),
        }
    }
}

impl OperatorMachine {
    fn no_media(&self) -> BackendError {
        BackendError::Unsupported {
            address: self.address().into(),
            what: "metal-operator inserts no virtual media".into(),
        }
    }
}
