//! Matrix cells, generated from the recorded personalities: operation, BMC type and start state.

use bmc_simulator::{
    BootOverride, BootTarget, InsertChange, OverrideEnabled, Personality, PowerState, ResetType, SystemChange,
    SystemConfig,
};

use crate::support::images::Images;

/// Operation of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A maintenance with this power state.
    Power(PowerState),
    /// A boot method.
    Boot(&'static str),
    /// One power operation.
    Operation(ResetType),
}

/// Server state before the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// On, booted from its disk.
    On,
    /// Off.
    Off,
    /// On, with another user's boot override and medium.
    InUse,
}

/// One server in the matrix.
#[derive(Clone, Debug)]
pub struct Cell {
    pub personality: Personality,
    pub ask: Ask,
    pub start: Start,
}

/// Image that an earlier user left in a drive.
const THEIRS: &str = "http://images.example/theirs.iso";

/// Returns all cells of a BMC type.
pub fn of(personality: &Personality) -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut add = |ask, start| cells.push(Cell { personality: personality.clone(), ask, start });
    for start in [Start::On, Start::Off, Start::InUse] {
        add(Ask::Power(PowerState::On), start);
        add(Ask::Power(PowerState::Off), start);
        for method in ["http", "virtual_media", "pxe", "disk"] {
            add(Ask::Boot(method), start);
        }
    }
    for reset in [
        ResetType::On,
        ResetType::ForceOff,
        ResetType::GracefulShutdown,
        ResetType::GracefulRestart,
        ResetType::ForceRestart,
        ResetType::PowerCycle,
        ResetType::Nmi,
    ] {
        add(Ask::Operation(reset), Start::On);
    }
    add(Ask::Operation(ResetType::On), Start::Off);
    add(Ask::Operation(ResetType::ForceRestart), Start::Off);
    cells
}

impl Cell {
    /// Operation in one word.
    pub fn column(&self) -> String {
        match self.ask {
            Ask::Power(power) => format!("power_{}", power.as_str().to_lowercase()),
            Ask::Boot(method) => method.to_owned(),
            Ask::Operation(reset) => reset.as_str().to_owned(),
        }
    }

    /// Name of the server and of its resource.
    pub fn name(&self) -> String {
        format!("{}-{}-{:?}", self.personality.name, self.column(), self.start).to_lowercase()
    }

    /// Line of the cell in the table.
    pub fn line(&self) -> String {
        format!("{} ({:?})", self.personality.name, self.start)
    }

    /// Address of its resource.
    pub fn address(&self) -> String {
        let kind = match self.ask {
            // Boot methods are tested through both resource types.
            Ask::Power(_) => "metal_server_maintenance",
            Ask::Boot(_) if self.start == Start::Off => "metal_server_maintenance",
            Ask::Boot(_) => "metal_server_boot_configuration",
            Ask::Operation(_) => "metal_server_operation",
        };
        format!("{kind}.{}", self.name())
    }

    /// Returns the resource's configuration.
    pub fn resource(&self, images: &Images) -> String {
        let name = self.name();
        let (kind, _) = self.address().split_once('.').map(|(kind, rest)| (kind.to_owned(), rest.to_owned())).unwrap();
        let called = format!("namespace = \"matrix\"\n  name = \"{name}\"\n  policy = \"Enforced\"");
        let boot = |method: &str| {
            let image = match method {
                "http" => format!("image = \"{}\"", images.url("rescue.efi")),
                "virtual_media" => format!("image = \"{}\"", images.url("rescue.iso")),
                _ => String::new(),
            };
            format!("method = \"{method}\"\n  {image}")
        };
        let body = match self.ask {
            Ask::Power(power) => format!("{called}\n  server_power = \"{power}\""),
            Ask::Boot(method) if kind == "metal_server_maintenance" => {
                format!("{called}\n  server_power = \"On\"\n  boot_configuration = {{\n  {}\n  }}", boot(method))
            }
            Ask::Boot(method) => format!("{}\n  server_power = \"On\"", boot(method)),
            Ask::Operation(reset) => format!("{called}\n  operation = \"{reset}\"\n  when_off = \"power_on\""),
        };
        format!("resource \"{kind}\" \"{name}\" {{\n  server = \"{name}\"\n  {body}\n}}\n")
    }

    /// Returns the simulated server.
    pub fn system(&self) -> SystemConfig {
        let mut system = SystemConfig::named(self.name());
        system.personality = Some(self.personality.clone());
        system.power = if self.start == Start::Off { PowerState::Off } else { PowerState::On };
        system
    }

    /// Returns another user's leftovers, limited to the BMC's features.
    pub fn left_there(&self) -> Option<SystemChange> {
        if self.start != Start::InUse {
            return None;
        }
        let rules = &self.personality;
        let continuous =
            rules.boot.targets.contains(&BootTarget::Pxe) && rules.boot.enabled.contains(&OverrideEnabled::Continuous);
        let boot = continuous.then(|| BootOverride {
            enabled: OverrideEnabled::Continuous,
            target: BootTarget::Pxe,
            ..BootOverride::default()
        });
        let drive = rules.media.devices.first().filter(|_| !rules.media.offered_under.is_empty());
        let insert = drive.map(|drive| InsertChange { device: drive.id.clone(), image: THEIRS.to_owned() });
        Some(SystemChange { boot, insert, ..SystemChange::default() })
    }
}
