//! How a BMC behaves where vendors differ.
//!
//! A personality is data plus one hook. Whatever can be said as a choice is a field, so that a test
//! can turn one thing and leave the rest; what cannot be said so implements [`Quirks`]. Every field
//! follows the Redfish specification by default ([`Personality::generic`]).

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::{millis, optional_millis};
use crate::redfish::{Reply, RequestView};
use crate::words::{BootMode, BootTarget, OverrideEnabled, ResetType};

/// The behaviour of one BMC and of the systems behind it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Personality {
    /// A name for people.
    pub name: String,
    /// Where what is told here is known from: by the name of a rule.
    pub sources: std::collections::BTreeMap<String, String>,
    /// `Manufacturer` of systems, managers and chassis.
    pub manufacturer: String,
    /// `Model` of the systems.
    pub model: String,
    /// Power and reset.
    pub power: PowerRules,
    /// The boot override.
    pub boot: BootRules,
    /// Virtual media.
    pub media: MediaRules,
    /// Entity tags and other matters of HTTP.
    pub http: HttpRules,
    /// Sessions, basic authentication and lock-out.
    pub sessions: SessionRules,
    /// What no field can say.
    #[serde(skip)]
    pub quirks: Option<Arc<dyn Quirks>>,
}

/// A hook around the ordinary answer.
pub trait Quirks: Debug + Send + Sync {
    /// Called after authentication; an answer given here replaces the ordinary one, and nothing is
    /// applied.
    fn before(&self, request: &RequestView<'_>) -> Option<Reply> {
        let _ = request;
        None
    }

    /// Called with the ordinary answer, which it may change.
    fn after(&self, request: &RequestView<'_>, reply: &mut Reply) {
        let _ = (request, reply);
    }
}

/// Rules of power and reset.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "each is a way of its own in which BMCs differ")]
pub struct PowerRules {
    /// The accepted reset types.
    pub reset_types: Vec<ResetType>,
    /// Where the accepted reset types are told.
    pub reset_types_told_by: ToldBy,
    /// The answer to a reset towards a state that is already reached.
    pub already_there: AlreadyThere,
    /// Whether a restart or power cycle of a machine that is off switches it on; otherwise 409.
    pub restart_powers_on: bool,
    /// How an accepted reset is answered.
    pub accepted: Accepted,
    /// Whether `PoweringOn` and `PoweringOff` are shown, or only `On` and `Off`.
    pub shows_transitions: bool,
    /// Whether a machine whose operating system shuts down is `Paused` and not `Off`, as on Arm.
    pub shutdown_pauses: bool,
    /// Whether `BootProgress` is shown.
    pub shows_boot_progress: bool,
    /// Whether `LastResetTime` is shown.
    pub shows_last_reset_time: bool,
    /// How long every reset is refused with 409 after a change of the power.
    #[serde(rename = "busy_after_ms", with = "millis")]
    pub busy_after: Duration,
}

/// Where allowable values are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToldBy {
    /// `ResetType@Redfish.AllowableValues` in the action.
    AllowableValues,
    /// A resource behind `@Redfish.ActionInfo`.
    ActionInfo,
    /// Nowhere.
    Nothing,
}

/// The answer to a reset towards a state that is already reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AlreadyThere {
    /// 204, nothing done.
    NoContent,
    /// 409 with extended information.
    Conflict,
    /// 400 with extended information.
    BadRequest,
}

/// How an accepted reset is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Accepted {
    /// 204 without a body.
    NoContent,
    /// 200 with a `Success` message.
    Ok,
    /// 202 with the `Location` of a task monitor.
    Task,
}

/// Rules of the boot override.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BootRules {
    /// Which resource takes writes to `Boot`.
    pub writable_on: BootResource,
    /// When a write to the Settings object takes effect.
    pub settings_apply: SettingsApply,
    /// Accepted values of `BootSourceOverrideTarget`; empty hides the boot override altogether.
    pub targets: Vec<BootTarget>,
    /// Accepted values of `BootSourceOverrideEnabled`.
    pub enabled: Vec<OverrideEnabled>,
    /// Accepted values of `BootSourceOverrideMode`; empty hides the property.
    pub modes: Vec<BootMode>,
    /// Whether `HttpBootUri` exists.
    pub http_boot_uri: bool,
    /// Properties of `Boot` that every write must carry.
    pub required: Vec<String>,
    /// Whether the firmware's boot menu is listed, with an entry for each filled virtual drive.
    pub menu: bool,
    /// Whether the Settings object lists allowable values.
    pub settings_list_values: bool,
}

/// Which resource takes writes to `Boot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BootResource {
    /// The `ComputerSystem`; there is no Settings object.
    System,
    /// The object behind `@Redfish.Settings`; the system refuses writes.
    Settings,
    /// Either.
    Both,
}

/// When a write to the Settings object takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SettingsApply {
    /// At once.
    Immediate,
    /// At the next boot, for which it already counts.
    OnReset,
}

/// Rules of virtual media.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "each is a way of its own in which BMCs differ")]
pub struct MediaRules {
    /// The collections that show the devices; empty offers no virtual media.
    pub offered_under: Vec<MediaPath>,
    /// The devices.
    pub devices: Vec<MediaDevice>,
    /// Parameters of `InsertMedia` that are refused.
    pub refused_parameters: Vec<String>,
    /// Parameters of `InsertMedia` that must be there besides `Image`.
    pub required_parameters: Vec<String>,
    /// Whether inserting into a device that holds an image is refused; otherwise it replaces.
    pub insert_needs_eject: bool,
    /// Whether ejecting an empty device is refused; otherwise it is 204.
    pub eject_empty_refused: bool,
    /// Whether `EjectMedia` without a JSON body is refused.
    pub eject_needs_body: bool,
    /// Whether `Image` and `ImageName` stay readable after an eject.
    pub image_stays_after_eject: bool,
    /// Whether devices show `Image`.
    pub shows_image: bool,
    /// How long an inserted image takes to be shown.
    #[serde(rename = "shown_after_ms", with = "millis")]
    pub shown_after: Duration,
    /// Whether devices list no actions and take PATCH of `Image` and `Inserted` instead.
    pub by_patch: bool,
    /// Whether the manager of a BMC has one set of devices for all of its systems.
    pub shared: bool,
}

/// The collection under which a device of virtual media is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MediaPath {
    /// `Systems/{id}/VirtualMedia`.
    System,
    /// `Managers/{id}/VirtualMedia`.
    Manager,
}

/// One device of virtual media.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MediaDevice {
    /// Its `Id`.
    pub id: String,
    /// Its `MediaTypes`.
    pub media_types: Vec<String>,
    /// The boot targets that read from this device.
    pub boots_as: Vec<BootTarget>,
}

/// Rules of HTTP.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpRules {
    /// Which entity tags are given out.
    pub etags: Etags,
    /// What `If-Match` means on a PATCH.
    pub if_match: IfMatch,
    /// Whether every answer closes its connection.
    pub closes_connections: bool,
    /// The status of the redirect that answers paths without a last slash; nothing redirects none.
    pub redirects_without_slash: Option<u16>,
    /// Whether systems link to their managers.
    pub links_managers: bool,
}

/// Which entity tags are given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Etags {
    /// None, neither header nor property.
    None,
    /// Strong ones.
    Strong,
    /// Weak ones, `W/"…"`.
    Weak,
}

/// What `If-Match` means on a PATCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IfMatch {
    /// Nothing.
    Ignored,
    /// 412 when it does not match.
    Honoured,
    /// As `Honoured`, and 428 when it is missing.
    Required,
}

/// Rules of sessions and accounts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionRules {
    /// Whether there is a session service.
    pub offered: bool,
    /// How many sessions may be open; the next log-in is answered with 503.
    pub limit: usize,
    /// How long a session lives without a request.
    #[serde(rename = "timeout_ms", with = "millis")]
    pub timeout: Duration,
    /// Whether basic authentication works.
    pub basic_auth: bool,
    /// After how many wrong passwords an account is locked; zero never locks.
    pub lockout_after: u32,
    /// How long an account stays locked; nothing means until the simulator unlocks it.
    #[serde(rename = "lockout_ms", with = "optional_millis")]
    pub lockout: Option<Duration>,
}

impl Personality {
    /// What the specification describes, with everything offered.
    #[must_use]
    pub fn generic() -> Self {
        Self::default()
    }
}

impl Default for Personality {
    fn default() -> Self {
        Self {
            name: "generic".into(),
            sources: std::collections::BTreeMap::new(),
            manufacturer: "Example Corporation".into(),
            model: "Simulated Server".into(),
            power: PowerRules::default(),
            boot: BootRules::default(),
            media: MediaRules::default(),
            http: HttpRules::default(),
            sessions: SessionRules::default(),
            quirks: None,
        }
    }
}

impl Default for PowerRules {
    fn default() -> Self {
        Self {
            reset_types: ResetType::ALL.to_vec(),
            reset_types_told_by: ToldBy::AllowableValues,
            already_there: AlreadyThere::NoContent,
            restart_powers_on: false,
            accepted: Accepted::NoContent,
            shows_transitions: true,
            shutdown_pauses: false,
            shows_boot_progress: true,
            shows_last_reset_time: true,
            busy_after: Duration::ZERO,
        }
    }
}

impl Default for BootRules {
    fn default() -> Self {
        use BootTarget::{BiosSetup, Cd, Hdd, None, Pxe, UefiHttp, Usb};
        Self {
            writable_on: BootResource::System,
            settings_apply: SettingsApply::Immediate,
            targets: vec![None, Pxe, Cd, Usb, Hdd, BiosSetup, UefiHttp],
            enabled: OverrideEnabled::ALL.to_vec(),
            modes: BootMode::ALL.to_vec(),
            http_boot_uri: true,
            required: Vec::new(),
            menu: false,
            settings_list_values: true,
        }
    }
}

impl Default for MediaRules {
    fn default() -> Self {
        Self {
            offered_under: vec![MediaPath::System, MediaPath::Manager],
            devices: vec![
                MediaDevice {
                    id: "Cd".into(),
                    media_types: vec!["CD".into(), "DVD".into()],
                    boots_as: vec![BootTarget::Cd],
                },
                MediaDevice {
                    id: "UsbStick".into(),
                    media_types: vec!["USBStick".into()],
                    boots_as: vec![BootTarget::Usb],
                },
            ],
            refused_parameters: Vec::new(),
            required_parameters: Vec::new(),
            insert_needs_eject: false,
            eject_empty_refused: false,
            eject_needs_body: false,
            image_stays_after_eject: false,
            shows_image: true,
            shown_after: Duration::ZERO,
            by_patch: false,
            shared: false,
        }
    }
}

impl Default for HttpRules {
    fn default() -> Self {
        Self {
            etags: Etags::Strong,
            if_match: IfMatch::Honoured,
            closes_connections: false,
            redirects_without_slash: None,
            links_managers: true,
        }
    }
}

impl Default for SessionRules {
    fn default() -> Self {
        Self {
            offered: true,
            limit: 16,
            timeout: Duration::from_mins(30),
            basic_auth: true,
            lockout_after: 0,
            lockout: None,
        }
    }
}
