//! Maps paths to resources with their methods.

use std::sync::Arc;

use hyper::Method;

use crate::bmc::{Bmc, Privilege};
use crate::machine::Machine;
use crate::personality::{Accepted, BootResource, MediaPath, ToldBy};

/// A path's target.
#[derive(Debug)]
pub(crate) enum Route {
    Versions,
    Root,
    OData,
    Metadata,
    SessionService,
    Sessions,
    Session(String),
    AccountService,
    Accounts,
    Account(String),
    Roles,
    Role(String),
    Systems,
    System(Arc<Machine>),
    Settings(Arc<Machine>),
    BootOptions(Arc<Machine>),
    BootOption(Arc<Machine>, String),
    EthernetInterfaces(Arc<Machine>),
    EthernetInterface(Arc<Machine>),
    Processors(Arc<Machine>),
    Processor(Arc<Machine>),
    ResetInfo(Arc<Machine>),
    Reset(Arc<Machine>),
    MediaList(MediaPath, Arc<Machine>),
    Media(MediaPath, Arc<Machine>, usize),
    InsertMedia(Arc<Machine>, usize),
    EjectMedia(Arc<Machine>, usize),
    Managers,
    /// The BMC's own manager.
    Manager,
    /// A machine's manager behind a shared BMC.
    NodeManager(Arc<Machine>),
    NetworkProtocol,
    Chassis,
    Enclosure(Arc<Machine>),
    TaskService,
    Tasks,
    Task(String),
    TaskMonitor(String),
    Registries,
    Registry,
    RegistryFile,
}

/// The `Id` of the BMC's own manager.
pub(crate) const BMC_MANAGER: &str = "BMC";

impl Route {
    pub(crate) fn parse(bmc: &Bmc, path: &str) -> Option<Self> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let rest = path.strip_prefix("/redfish")?;
        let Some(rest) = rest.strip_prefix("/v1") else {
            return rest.is_empty().then_some(Self::Versions);
        };
        if rest.is_empty() {
            return Some(Self::Root);
        }
        let segments: Vec<&str> = rest.strip_prefix('/')?.split('/').collect();
        match segments.as_slice() {
            ["odata"] => Some(Self::OData),
            ["$metadata"] => Some(Self::Metadata),
            ["Systems"] => Some(Self::Systems),
            ["Systems", id, rest @ ..] => Self::system(bmc.system(id)?, rest),
            ["Managers"] => Some(Self::Managers),
            ["Managers", id, rest @ ..] => Self::manager(bmc, id, rest),
            ["Chassis"] => Some(Self::Chassis),
            ["Chassis", id] => Some(Self::Enclosure(bmc.system(id)?)),
            ["AccountService", rest @ ..] => match rest {
                [] => Some(Self::AccountService),
                ["Accounts"] => Some(Self::Accounts),
                ["Accounts", id] => Some(Self::Account((*id).to_owned())),
                ["Roles"] => Some(Self::Roles),
                ["Roles", id] => Some(Self::Role((*id).to_owned())),
                _ => None,
            },
            ["SessionService", rest @ ..] if bmc.personality.sessions.offered => match rest {
                [] => Some(Self::SessionService),
                // The specification also allows creation through `Members` of a collection.
                ["Sessions"] | ["Sessions", "Members"] => Some(Self::Sessions),
                ["Sessions", id] => Some(Self::Session((*id).to_owned())),
                _ => None,
            },
            ["TaskService", rest @ ..] if bmc.personality.power.accepted == Accepted::Task => match rest {
                [] => Some(Self::TaskService),
                ["Tasks"] => Some(Self::Tasks),
                ["Tasks", id] => Some(Self::Task((*id).to_owned())),
                ["TaskMonitors", id] => Some(Self::TaskMonitor((*id).to_owned())),
                _ => None,
            },
            ["Registries"] => Some(Self::Registries),
            ["Registries", "Base"] => Some(Self::Registry),
            ["Registries", "Base", "Base.json"] => Some(Self::RegistryFile),
            _ => None,
        }
    }

    fn system(machine: Arc<Machine>, rest: &[&str]) -> Option<Self> {
        let rules = &machine.personality;
        match rest {
            [] => Some(Self::System(machine)),
            ["Settings"] if rules.boot.writable_on != BootResource::System => Some(Self::Settings(machine)),
            ["BootOptions"] if rules.boot.menu => Some(Self::BootOptions(machine)),
            ["BootOptions", id] if rules.boot.menu => Some(Self::BootOption(machine, (*id).to_owned())),
            ["EthernetInterfaces"] => Some(Self::EthernetInterfaces(machine)),
            ["EthernetInterfaces", "1"] => Some(Self::EthernetInterface(machine)),
            ["Processors"] => Some(Self::Processors(machine)),
            ["Processors", "1"] => Some(Self::Processor(machine)),
            ["ResetActionInfo"] if rules.power.reset_types_told_by == ToldBy::ActionInfo => {
                Some(Self::ResetInfo(machine))
            }
            ["Actions", "ComputerSystem.Reset"] => Some(Self::Reset(machine)),
            ["VirtualMedia", rest @ ..] => Self::media(MediaPath::System, machine, rest),
            _ => None,
        }
    }

    fn manager(bmc: &Bmc, id: &str, rest: &[&str]) -> Option<Self> {
        if id == BMC_MANAGER {
            return match rest {
                [] => Some(Self::Manager),
                ["NetworkProtocol"] => Some(Self::NetworkProtocol),
                ["VirtualMedia", rest @ ..] => Self::media(MediaPath::Manager, bmc.drive_owner()?, rest),
                _ => None,
            };
        }
        let machine = bmc.has_node_managers().then(|| bmc.system(id)).flatten()?;
        match rest {
            [] => Some(Self::NodeManager(machine)),
            ["VirtualMedia", rest @ ..] => Self::media(MediaPath::Manager, machine, rest),
            _ => None,
        }
    }

    fn media(under: MediaPath, machine: Arc<Machine>, rest: &[&str]) -> Option<Self> {
        let rules = &machine.personality.media;
        if !rules.offered_under.contains(&under) {
            return None;
        }
        let [id, rest @ ..] = rest else {
            return Some(Self::MediaList(under, machine));
        };
        let device = rules.devices.iter().position(|device| device.id == *id)?;
        match rest {
            [] => Some(Self::Media(under, machine, device)),
            ["Actions", ..] if rules.by_patch => None,
            ["Actions", "VirtualMedia.InsertMedia"] => Some(Self::InsertMedia(machine, device)),
            ["Actions", "VirtualMedia.EjectMedia"] => Some(Self::EjectMedia(machine, device)),
            _ => None,
        }
    }

    /// Returns true for a service resource, and false for a document about the service.
    pub(crate) fn is_resource(&self) -> bool {
        !matches!(self, Self::Versions | Self::OData | Self::Metadata | Self::RegistryFile)
    }

    /// Returns the machine that a request concerns.
    pub(crate) fn machine(&self) -> Option<&Arc<Machine>> {
        match self {
            Self::System(machine)
            | Self::Settings(machine)
            | Self::BootOptions(machine)
            | Self::BootOption(machine, _)
            | Self::EthernetInterfaces(machine)
            | Self::EthernetInterface(machine)
            | Self::Processors(machine)
            | Self::Processor(machine)
            | Self::ResetInfo(machine)
            | Self::Reset(machine)
            | Self::MediaList(_, machine)
            | Self::Media(_, machine, _)
            | Self::InsertMedia(machine, _)
            | Self::EjectMedia(machine, _)
            | Self::NodeManager(machine)
            | Self::Enclosure(machine) => Some(machine),
            _ => None,
        }
    }

    /// Returns true if the request does not require authentication.
    pub(crate) fn is_public(&self, method: &Method) -> bool {
        let reads = method == Method::GET || method == Method::HEAD;
        match self {
            Self::Versions | Self::Root | Self::OData | Self::Metadata => reads,
            Self::Sessions => method == Method::POST,
            _ => false,
        }
    }

    /// Returns the value of `Allow`.
    pub(crate) fn allow(&self) -> &'static str {
        match self {
            Self::Media(_, machine, _) if machine.personality.media.by_patch => "GET, HEAD, PATCH",
            Self::Sessions | Self::Accounts => "GET, HEAD, POST",
            Self::Session(_) => "GET, HEAD, DELETE",
            Self::Account(_) => "GET, HEAD, PATCH, DELETE",
            Self::System(_) | Self::Settings(_) => "GET, HEAD, PATCH",
            Self::Reset(_) | Self::InsertMedia(..) | Self::EjectMedia(..) => "POST",
            _ => "GET, HEAD",
        }
    }

    /// Returns the required privilege, or `None` if the handler decides.
    pub(crate) fn privilege(&self, method: &Method) -> Option<Privilege> {
        let reads = method == Method::GET || method == Method::HEAD;
        match self {
            Self::Accounts if reads => Some(Privilege::ConfigureUsers),
            Self::Account(_) | Self::Session(_) => None,
            _ if reads => Some(Privilege::Login),
            Self::Accounts | Self::AccountService | Self::Role(_) | Self::Roles => Some(Privilege::ConfigureUsers),
            Self::System(_)
            | Self::Settings(_)
            | Self::Reset(_)
            | Self::Media(..)
            | Self::InsertMedia(..)
            | Self::EjectMedia(..)
            | Self::Enclosure(_) => Some(Privilege::ConfigureComponents),
            _ => Some(Privilege::ConfigureManager),
        }
    }
}
