//! One server: a JSON file that is read before each answer and written by each change.

use std::{fs, path::PathBuf};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use terraform_provider_metal::{
    backend::{BackendError, BootControl, HardwareIdentity, Machine, MediaControl, PowerControl},
    maintenance::machine::{
        BootOverride, Capabilities, MachineDescription, MachineView, MediaSlot, PowerState, ResetType,
    },
};

use crate::plugin::SHELF;

/// What the file holds.
#[derive(Debug, Serialize, Deserialize)]
struct Server {
    uuid: String,
    power: PowerState,
    boot: BootOverride,
    drive: Option<String>,
    /// What was booted and switched, in order.
    history: Vec<String>,
}

/// The machine of one file.
#[derive(Debug)]
pub struct FileMachine {
    pub file: PathBuf,
}

impl FileMachine {
    fn read(&self) -> Result<Server, BackendError> {
        let text = fs::read_to_string(&self.file).map_err(|error| self.away(&error))?;
        serde_json::from_str(&text).map_err(|error| self.away(&error))
    }

    fn change(&self, change: impl FnOnce(&mut Server)) -> Result<(), BackendError> {
        let mut server = self.read()?;
        change(&mut server);
        let text = serde_json::to_string_pretty(&server).map_err(|error| self.away(&error))?;
        // In one step: a reader never sees half of it.
        let beside = self.file.with_extension("new");
        fs::write(&beside, text).and_then(|()| fs::rename(&beside, &self.file)).map_err(|error| self.away(&error))
    }

    fn away(&self, cause: &dyn std::error::Error) -> BackendError {
        BackendError::Unreachable { address: self.address(), cause: cause.to_string() }
    }
}

#[async_trait]
impl Machine for FileMachine {
    fn address(&self) -> String {
        format!("file://{}", self.file.display())
    }

    async fn identify(&self) -> Result<HardwareIdentity, BackendError> {
        Ok(HardwareIdentity { uuid: Some(self.read()?.uuid), ..HardwareIdentity::default() })
    }

    async fn observe(&self) -> Result<MachineView, BackendError> {
        let server = self.read()?;
        Ok(MachineView {
            power: server.power,
            boot_progress: None,
            last_reset: None,
            boot: Some(server.boot),
            boot_unclear: false,
            health: None,
            description: MachineDescription::default(),
        })
    }

    async fn late_answer(&self) -> Option<BackendError> {
        None
    }

    async fn capabilities(&self) -> Result<Capabilities, BackendError> {
        Ok(Capabilities {
            resets: vec![ResetType::On, ResetType::ForceOff],
            boot_targets: vec!["None".to_owned(), "Cd".to_owned(), SHELF.target()],
            ..Capabilities::default()
        })
    }
}

#[async_trait]
impl PowerControl for FileMachine {
    async fn reset(&self, reset: ResetType) -> Result<(), BackendError> {
        self.change(|server| {
            server.power = if reset == ResetType::On { PowerState::On } else { PowerState::Off };
            let target = server.boot.target.as_deref();
            let image = match target {
                Some("Cd") => server.drive.clone(),
                Some(target) if target == SHELF.target() => server.boot.http_boot_uri.clone(),
                _ => None,
            };
            server.history.push(match (reset, image) {
                (ResetType::On, Some(image)) => format!("boots {image}"),
                (ResetType::On, None) => "boots its disk".to_owned(),
                _ => "is switched off".to_owned(),
            });
            if reset == ResetType::On && server.boot.enabled.as_deref() == Some("Once") {
                server.boot.enabled = Some("Disabled".to_owned());
                server.boot.target = Some("None".to_owned());
            }
        })
    }
}

#[async_trait]
impl BootControl for FileMachine {
    async fn set_boot_override(&self, wanted: &BootOverride, _clear: bool) -> Result<(), BackendError> {
        self.change(|server| {
            if wanted.external || server.boot.external {
                server.boot = wanted.clone();
                return;
            }
            server.boot.enabled = wanted.enabled.clone().or(server.boot.enabled.take());
            server.boot.target = wanted.target.clone().or(server.boot.target.take());
        })
    }
}

#[async_trait]
impl MediaControl for FileMachine {
    async fn media(&self, _known: &[MediaSlot]) -> Result<Vec<MediaSlot>, BackendError> {
        let image = self.read()?.drive;
        let inserted = image.is_some();
        let media_types = vec!["CD".to_owned()];
        Ok(vec![MediaSlot { slot: "drive".to_owned(), media_types, image, inserted, write_protected: Some(true) }])
    }

    async fn insert_medium(&self, _slot: &str, image: &str, _write_protected: bool) -> Result<(), BackendError> {
        self.change(|server| server.drive = Some(image.to_owned()))
    }

    async fn eject_medium(&self, _slot: &str) -> Result<(), BackendError> {
        self.change(|server| server.drive = None)
    }
}
