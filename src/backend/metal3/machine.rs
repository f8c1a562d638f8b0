//! A host as a machine: the operator's view, and changes under a hold mode.

use std::sync::Arc;

use async_trait::async_trait;
use kube::core::DynamicObject;
use serde_json::json;

use crate::{
    backend::{
        BackendError, BootControl, Consumer, HardwareIdentity, Machine, MaintenanceSystem, MediaControl, PowerControl,
        cluster::{not_now, text},
        cluster_block::BOOT_OPERATOR,
    },
    maintenance::{
        gate::{ExternalRequest, ExternalState},
        machine::{
            BootOption, BootOverride, Capabilities, MachineDescription, MachineView, MediaSlot, PowerState, ResetType,
        },
    },
    shown::{AsRaw, OneLine},
};

use super::{
    address::BmcAddress,
    change,
    host::{Author, Hold, Host, REBOOT, reboot_key, reboot_value},
    hosts::Hosts,
    link::{BmcLink, instead_of_boot, no_redfish},
    reboot,
    standing::standing,
};

#[derive(Debug)]
pub(super) struct HostMachine {
    pub(super) hosts: Arc<Hosts>,
    pub(super) name: String,
    /// The maintenance that changes the host; `None` for operations without a maintenance.
    pub(super) held: Option<ExternalRequest>,
    /// True if observations must not be older than the call.
    pub(super) fresh: bool,
    pub(super) link: Arc<BmcLink>,
}

impl HostMachine {
    pub(super) async fn host(&self, fresh: bool) -> Result<Arc<DynamicObject>, BackendError> {
        self.hosts.known(&self.name, fresh).await
    }

    /// Returns the current or prospective hold mode.
    pub(super) fn hold(&self, host: Host<'_>) -> Hold {
        self.held.as_ref().map_or(self.hosts.hold, |wish| self.hold_of(host, wish))
    }

    /// Returns the current or prospective hold mode of a maintenance.
    pub(super) fn hold_of(&self, host: Host<'_>, wish: &ExternalRequest) -> Hold {
        let ours = host.marked().is_some_and(|author| author.uid == wish.uid);
        host.hold().filter(|_| ours).unwrap_or(self.hosts.hold)
    }

    /// Returns the host if a granted `image` maintenance allows changes, otherwise an error.
    async fn imaged(&self) -> Result<Arc<DynamicObject>, BackendError> {
        let object = self.host(true).await?;
        let host = Host(&object);
        let Some(wish) = &self.held else {
            return Err(self.unsupported("a host's boot image can change only in a maintenance"));
        };
        match standing(host, wish, self.hosts.hold, self.hosts.now()) {
            ExternalState::Granted => Ok(object),
            standing => {
                let why = format!("this maintenance cannot change {}: {standing}", host.shown());
                Err(not_now(self.hosts.cluster.address(), format!("change {}", self.name), why))
            }
        }
    }

    /// Returns a host's view in hold mode `image`. Its power is unstable while the operator
    /// provisions or deprovisions it.
    fn shown_by_image(&self, host: Host<'_>, wish: &ExternalRequest) -> Result<MachineView, BackendError> {
        let mut view = self.shown(host);
        let ours = host.marked().is_some_and(|author| author.uid == wish.uid);
        if !ours {
            // Before entry, the operator enforces spec.online, so that is the state to restore.
            view.power = if host.online() { PowerState::On } else { PowerState::Off };
        } else if matches!(host.state(), "preparing" | "provisioning" | "deprovisioning") {
            if host.error().is_empty() {
                let why = format!("{} is {}", host.shown(), host.state());
                return Err(not_now(self.hosts.cluster.address(), format!("read the power of {}", self.name), why));
            }
            // The operator ignores spec.online until it has removed the image.
            view.power = if host.online() { PowerState::PoweringOn } else { PowerState::Off };
        } else {
            // The operator is applying spec.online.
            view.power = match (host.online(), host.powered_on()) {
                (true, true) => PowerState::On,
                (true, false) => PowerState::PoweringOn,
                (false, true) => PowerState::PoweringOff,
                (false, false) => PowerState::Off,
            };
        }
        let none =
            BootOverride { enabled: Some("Disabled".into()), target: Some("None".into()), ..BootOverride::default() };
        view.boot = Some(host.made_image().unwrap_or(none));
        Ok(view)
    }

    pub(super) async fn redfish(&self, object: &DynamicObject) -> Result<Arc<dyn Machine>, BackendError> {
        self.link.machine(&self.hosts, object, &self.name).await
    }

    /// Returns the Redfish machine of a host that is detached for us, otherwise an error.
    async fn ours(&self) -> Result<Arc<dyn Machine>, BackendError> {
        let object = self.host(true).await?;
        let host = Host(&object);
        if let Some(wish) = &self.held {
            let standing = standing(host, wish, self.hosts.hold, self.hosts.now());
            if standing != ExternalState::Granted {
                let why = format!("this maintenance cannot change {}: {standing}", host.shown());
                return Err(not_now(self.hosts.cluster.address(), format!("change {}", self.name), why));
            }
        }
        self.redfish(&object).await
    }

    fn unsupported(&self, what: &str) -> BackendError {
        BackendError::Unsupported { address: self.address().into(), what: what.into() }
    }

    /// Returns true if Redfish controls the host: its address uses Redfish and the mode is
    /// `detach`.
    fn by_redfish(&self, host: Host<'_>) -> bool {
        self.hold(host) == Hold::Detach && matches!(BmcAddress::read(host.bmc_address()), BmcAddress::Redfish { .. })
    }

    /// Returns true if the operator should reboot the host for this operation. It removes the
    /// annotation after power-off and then powers the host on.
    fn reboots(&self, host: Host<'_>) -> bool {
        let Some(wish) = self.held.as_ref().filter(|wish| !wish.enters) else { return false };
        host.rebooted_by() == Some(Author::of(wish)) || (!host.powered_on() && host.online())
    }

    /// Returns the operator's view.
    fn shown(&self, host: Host<'_>) -> MachineView {
        let said = |field: &str| text(host.0, &format!("/status/hardware/systemVendor/{field}")).map(str::to_owned);
        let off = self.hold(host) == Hold::PowerOff;
        let known = match self.held.as_ref().filter(|wish| wish.enters) {
            // This is the prior power. The operator restores it when the annotation is removed.
            Some(wish) if off || self.hold(host) == Hold::Image => {
                host.marked().is_some_and(|author| author.uid == wish.uid)
            }
            // The operator does not observe power while the host is detached.
            Some(_) => false,
            None => host.status() != "detached" && !host.is_paused() && !host.state().is_empty(),
        };
        MachineView {
            power: match (known, host.powered_on()) {
                (false, _) => PowerState::Unknown,
                (true, on) if self.reboots(host) => {
                    if on {
                        PowerState::PoweringOff
                    } else {
                        PowerState::PoweringOn
                    }
                }
                (true, true) => PowerState::On,
                (true, false) => PowerState::Off,
            },
            boot_progress: None,
            last_reset: None,
            boot: None,
            boot_unclear: false,
            health: None,
            description: MachineDescription {
                manufacturer: said("manufacturer").map(OneLine::from),
                model: said("productName").map(OneLine::from),
                serial_number: said("serialNumber").map(OneLine::from),
                host_name: text(host.0, "/status/hardware/hostname").map(OneLine::from),
            },
        }
    }
}

#[async_trait]
impl Machine for HostMachine {
    fn address(&self) -> String {
        format!("{}, BareMetalHost {}/{}", self.hosts.cluster.address(), self.hosts.namespace, self.name)
    }

    async fn identify(&self) -> Result<HardwareIdentity, BackendError> {
        let object = self.host(false).await?;
        let host = Host(&object);
        match BmcAddress::read(host.bmc_address()) {
            // A host object lacks the system UUID; its BMC reports it.
            BmcAddress::Redfish { .. } => {
                let machine = self.redfish(&object).await?;
                self.link.judged(machine.identify().await).await
            }
            other => match self.hosts.settings.lock_keys.get(&self.name) {
                Some(key) => Ok(HardwareIdentity {
                    lock_key: Some(key.clone()),
                    authority: self.hosts.cluster.address(),
                    path: format!("/namespaces/{}/baremetalhosts/{}", self.hosts.namespace, self.name),
                    ..HardwareIdentity::default()
                }),
                None => Err(self.unsupported(&format!(
                    "{}. A BareMetalHost does not have a system UUID: set its lock key in metal3.lock_keys",
                    no_redfish(&other)
                ))),
            },
        }
    }

    async fn observe(&self) -> Result<MachineView, BackendError> {
        let object = self.host(self.fresh).await?;
        let host = Host(&object);
        if let Some(wish) = self.held.as_ref().filter(|wish| wish.enters && self.hold(host) == Hold::Image) {
            return self.shown_by_image(host, wish);
        }
        let Some(wish) = self.held.as_ref().filter(|_| self.by_redfish(host)) else { return Ok(self.shown(host)) };
        let machine = self.redfish(&object).await?;
        let mut view = self.link.judged(machine.observe().await).await?;
        // Before entry, the operator enforces spec.online, so that is the state to restore.
        let ours = host.marked().is_some_and(|author| author.uid == wish.uid) && host.status() == "detached";
        if !ours && !wish.entered && !host.disables_power_off() {
            view.power = if host.online() { PowerState::On } else { PowerState::Off };
        }
        Ok(view)
    }

    async fn late_answer(&self) -> Option<BackendError> {
        let object = self.host(false).await.ok()?;
        if !self.by_redfish(Host(&object)) {
            return None;
        }
        self.redfish(&object).await.ok()?.late_answer().await
    }

    async fn capabilities(&self) -> Result<Capabilities, BackendError> {
        let object = self.host(false).await?;
        let host = Host(&object);
        if self.by_redfish(host) {
            let machine = self.redfish(&object).await?;
            return self.link.judged(machine.capabilities().await).await;
        }
        // Without a maintenance, the operator can only reboot the host.
        let held = self.held.as_ref().is_some_and(|wish| wish.enters);
        let reboots = if held { &[][..] } else { &reboot::RESETS[..] };
        let resets = match self.hold(host) {
            Hold::PowerOff => [&[ResetType::GracefulShutdown, ResetType::ForceOff], reboots].concat(),
            Hold::Image => {
                let kinds = [ResetType::On, ResetType::GracefulShutdown, ResetType::ForceOff];
                return Ok(Capabilities {
                    resets: [&kinds, reboots].concat(),
                    boot_targets: vec![BOOT_OPERATOR.target().into()],
                    http_boot_uri: true,
                    live_iso: true,
                    ..Capabilities::default()
                });
            }
            Hold::Detach => Vec::new(),
        };
        let instead_of_boot = Some(instead_of_boot(&BmcAddress::read(host.bmc_address())));
        Ok(Capabilities { resets, instead_of_boot: instead_of_boot.map(OneLine::from), ..Capabilities::default() })
    }

    fn maintenance_system(&self) -> Option<&dyn MaintenanceSystem> {
        Some(self)
    }

    async fn consumer(&self) -> Result<Option<Consumer>, BackendError> {
        let object = self.host(self.fresh).await?;
        let part = |field: &str| text(&object, &format!("/spec/consumerRef/{field}")).map(str::to_owned);
        Ok(part("kind").zip(part("name")).map(|(kind, name)| Consumer {
            kind,
            name,
            namespace: part("namespace").unwrap_or_else(|| self.hosts.namespace.clone()),
        }))
    }

    async fn has_provider_id(&self, id: &str) -> Result<Option<bool>, BackendError> {
        let Some(object) = self.hosts.host(&self.name, self.fresh).await? else { return Ok(None) };
        Ok(Host(&object).has_provider_id(id))
    }

    async fn stays_off(&self) -> Result<bool, BackendError> {
        let Some(object) = self.hosts.host(&self.name, self.fresh).await? else { return Ok(true) };
        let host = Host(&object);
        // The plain annotation requests a reboot, which ends powered on. A host that is being
        // deleted is deprovisioned.
        Ok(!host.online() || !host.reboots(REBOOT).is_empty() || host.is_deleting())
    }
}

#[async_trait]
impl PowerControl for HostMachine {
    async fn reset(&self, reset: ResetType) -> Result<(), BackendError> {
        let object = self.host(true).await?;
        let host = Host(&object);
        match (&self.held, self.hold(host)) {
            (_, Hold::Detach) => {
                let machine = self.ours().await?;
                self.link.judged(machine.reset(reset).await).await
            }
            (Some(wish), hold) if !wish.enters => {
                let object = self.host(true).await?;
                let host = Host(&object);
                if let Some(what) = reboot::refusal(host, reset, hold) {
                    return Err(self.unsupported(&what));
                }
                match reboot::change(host, wish, reset) {
                    Ok(change) => self.hosts.patch(&object, change).await,
                    Err(why) => {
                        let what = format!("reboot BareMetalHost {}", self.name);
                        Err(not_now(self.hosts.cluster.address(), what, why))
                    }
                }
            }
            (Some(wish), Hold::Image)
                if matches!(reset, ResetType::On | ResetType::GracefulShutdown | ResetType::ForceOff) =>
            {
                let object = self.imaged().await?;
                // Unless our key requests otherwise, the operator shuts the operating system down
                // first.
                let key = reboot_key(&wish.uid);
                let hard = reset == ResetType::ForceOff && Host(&object).is_provisioned();
                let hard = hard.then(|| reboot_value(wish, "hard"));
                let change = json!({
                    "metadata": { "annotations": { key: hard } },
                    "spec": { "online": reset == ResetType::On },
                });
                self.hosts.patch(&object, change).await
            }
            // The annotation requested this at entry.
            (Some(_), Hold::PowerOff) if reset == ResetType::GracefulShutdown => Ok(()),
            (Some(wish), Hold::PowerOff) if reset == ResetType::ForceOff => {
                let hard = reboot_value(wish, "hard");
                let change = json!({ "metadata": { "annotations": { reboot_key(&wish.uid): hard } } });
                self.hosts.patch(&object, change).await
            }
            _ => Err(self.unsupported("hold = \"power_off\" only keeps the host off; use hold = \"detach\"")),
        }
    }
}

#[async_trait]
impl BootControl for HostMachine {
    async fn set_boot_override(&self, wanted: &BootOverride, clear_http_boot_uri: bool) -> Result<(), BackendError> {
        if self.held.is_none() {
            return Err(self.unsupported("a host's boot configuration can change only in a maintenance"));
        }
        let read = self.host(false).await?;
        if self.hold(Host(&read)) == Hold::Image {
            let object = self.imaged().await?;
            let image = wanted.http_boot_uri.as_raw().filter(|_| !wanted.is_disabled()).map(|url| (url, wanted));
            if image.is_none() && Host(&object).has_our_image() && !Host(&object).keeps_disks() {
                return Err(self.unsupported(
                    "removing the image would clean the host's disks: set its spec.automatedCleaningMode to \
                     \"disabled\" again",
                ));
            }
            let Some(wish) = &self.held else {
                return Err(self.unsupported("an image can change only in a maintenance"));
            };
            return self.hosts.patch(&object, change::boot(image, wish)).await;
        }
        let machine = self.ours().await?;
        self.link.judged(machine.set_boot_override(wanted, clear_http_boot_uri).await).await
    }

    async fn boot_menu(&self) -> Result<Vec<BootOption>, BackendError> {
        let object = self.host(false).await?;
        if !self.by_redfish(Host(&object)) {
            return Ok(Vec::new());
        }
        let machine = self.redfish(&object).await?;
        self.link.judged(machine.boot_menu().await).await
    }
}

#[async_trait]
impl MediaControl for HostMachine {
    async fn media(&self, known: &[MediaSlot]) -> Result<Vec<MediaSlot>, BackendError> {
        let object = self.host(false).await?;
        if !self.by_redfish(Host(&object)) {
            return Ok(Vec::new());
        }
        let machine = self.redfish(&object).await?;
        self.link.judged(machine.media(known).await).await
    }

    async fn insert_medium(&self, slot: &str, image: &str, write_protected: bool) -> Result<(), BackendError> {
        if self.held.is_none() {
            return Err(self.unsupported("a host's virtual media can change only in a maintenance"));
        }
        let machine = self.ours().await?;
        self.link.judged(machine.insert_medium(slot, image, write_protected).await).await
    }

    async fn eject_medium(&self, slot: &str) -> Result<(), BackendError> {
        if self.held.is_none() {
            return Err(self.unsupported("a host's virtual media can change only in a maintenance"));
        }
        let machine = self.ours().await?;
        self.link.judged(machine.eject_medium(slot).await).await
    }
}
