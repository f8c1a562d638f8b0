//! Vendor-specific BMC behaviour.
//!
//! A personality is data plus one hook. Choices are fields, so that a test can change one of them;
//! everything else implements [`Quirks`]. By default, every field follows the Redfish specification
//! ([`Personality::generic`]).

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::{millis, optional_millis};
use crate::redfish::{Reply, RequestView};
use crate::words::{BootMode, BootTarget, OverrideEnabled, ResetType};

/// The behaviour of one BMC and its systems.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Personality {
    /// A name for people.
    pub name: String,
    /// The source of each rule, by the rule's name.
    pub sources: std::collections::BTreeMap<String, String>,
    /// `Manufacturer` of systems, managers and chassis.
    pub manufacturer: String,
    /// The systems' `Model`.
    pub model: String,
    /// Power and reset.
    pub power: PowerRules,
    /// The boot override.
    pub boot: BootRules,
    /// Virtual media.
    pub media: MediaRules,
    /// Entity tags and other HTTP behaviour.
    pub http: HttpRules,
    /// Sessions, basic authentication and lock-out.
    pub sessions: SessionRules,
    /// Behaviour that no field covers.
    #[serde(skip)]
    pub quirks: Option<Arc<dyn Quirks>>,
}

/// A hook around the normal answer.
pub trait Quirks: Debug + Send + Sync {
    /// Called after authentication. A returned answer replaces the normal answer, and the request
    /// is not executed.
    fn before(&self, request: &RequestView<'_>) -> Option<Reply> {
        let _ = request;
        None
    }

    /// Called with the normal answer; can change it.
    fn after(&self, request: &RequestView<'_>, reply: &mut Reply) {
        let _ = (request, reply);
    }
}

/// Rules of power and reset.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "BMCs differ in each of these separately")]
pub struct PowerRules {
    /// The accepted reset types.
    pub reset_types: Vec<ResetType>,
    /// Where the accepted reset types are listed.
    pub reset_types_told_by: ToldBy,
    /// The answer to a reset if the machine is already in the requested state.
    pub already_there: AlreadyThere,
    /// True if a restart or power cycle switches on a machine that is off; otherwise 409.
    pub restart_powers_on: bool,
    /// How an accepted reset is answered.
    pub accepted: Accepted,
    /// True if `PoweringOn` and `PoweringOff` are shown; otherwise only `On` and `Off`.
    pub shows_transitions: bool,
    /// True if a machine is `Paused` instead of `Off` after a shutdown, as on Arm.
    pub shutdown_pauses: bool,
    /// True if `BootProgress` is shown.
    pub shows_boot_progress: bool,
    /// True if `LastResetTime` is shown.
    pub shows_last_reset_time: bool,
    /// How long every reset is refused with 409 after a power change.
    #[serde(rename = "busy_after_ms", with = "millis")]
    pub busy_after: Duration,
}

/// Where allowable values are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToldBy {
    /// `ResetType@Redfish.AllowableValues` in the action.
    AllowableValues,
    /// A resource behind `@Redfish.ActionInfo`.
    ActionInfo,
    /// Nowhere.
    Nothing,
}

/// The answer to a reset if the machine is already in the requested state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AlreadyThere {
    /// 204, without an effect.
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

/// Boot override rules.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BootRules {
    /// The resource that accepts writes to `Boot`.
    pub writable_on: BootResource,
    /// When a write to the Settings object takes effect.
    pub settings_apply: SettingsApply,
    /// Accepted values of `BootSourceOverrideTarget`; empty hides the boot override.
    pub targets: Vec<BootTarget>,
    /// Accepted values of `BootSourceOverrideEnabled`.
    pub enabled: Vec<OverrideEnabled>,
    /// Accepted values of `BootSourceOverrideMode`; empty hides the property.
    pub modes: Vec<BootMode>,
    /// True if `HttpBootUri` exists.
    pub http_boot_uri: bool,
    /// Properties of `Boot` that every write must contain.
    pub required: Vec<String>,
    /// True if the firmware's boot menu is listed, with an entry for each filled virtual drive.
    pub menu: bool,
    /// True if the Settings object lists allowable values.
    pub settings_list_values: bool,
}

/// The resource that accepts writes to `Boot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BootResource {
    /// The `ComputerSystem`; without a Settings object.
    System,
    /// The object behind `@Redfish.Settings`; the system refuses writes.
    Settings,
    /// Either.
    Both,
}

/// When a write to the Settings object takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SettingsApply {
    /// Immediately.
    Immediate,
    /// At the next boot, which already uses it.
    OnReset,
}

/// Virtual media rules.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "BMCs differ in each of these separately")]
pub struct MediaRules {
    /// The collections that show the devices; empty disables virtual media.
    pub offered_under: Vec<MediaPath>,
    /// The devices.
    pub devices: Vec<MediaDevice>,
    /// Rejected parameters of `InsertMedia`.
    pub refused_parameters: Vec<String>,
    /// Required parameters of `InsertMedia` in addition to `Image`.
    pub required_parameters: Vec<String>,
    /// True if inserting into a filled device is rejected; otherwise it replaces the image.
    pub insert_needs_eject: bool,
    /// True if ejecting an empty device is rejected; otherwise it returns 204.
    pub eject_empty_refused: bool,
    /// True if `EjectMedia` without a JSON body is rejected.
    pub eject_needs_body: bool,
    /// True if `Image` and `ImageName` stay readable after an eject.
    pub image_stays_after_eject: bool,
    /// True if devices show `Image`.
    pub shows_image: bool,
    /// The delay before an inserted image is shown.
    #[serde(rename = "shown_after_ms", with = "millis")]
    pub shown_after: Duration,
    /// True if devices do not list actions and accept PATCH of `Image` and `Inserted` instead.
    pub by_patch: bool,
    /// True if the BMC's manager has one set of devices for all its systems.
    pub shared: bool,
}

/// A collection of virtual media devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MediaPath {
    /// `Systems/{id}/VirtualMedia`.
    System,
    /// `Managers/{id}/VirtualMedia`.
    Manager,
}

/// A virtual media device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MediaDevice {
    /// Its `Id`.
    pub id: String,
    /// Its `MediaTypes`.
    pub media_types: Vec<String>,
    /// The boot targets that use this device.
    pub boots_as: Vec<BootTarget>,
}

/// HTTP rules.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpRules {
    /// The entity tags that are sent.
    pub etags: Etags,
    /// The effect of `If-Match` on a PATCH.
    pub if_match: IfMatch,
    /// True if every answer closes its connection.
    pub closes_connections: bool,
    /// The status with which paths without a trailing slash are redirected; `None` disables it.
    pub redirects_without_slash: Option<u16>,
    /// True if systems link to their managers.
    pub links_managers: bool,
}

/// The entity tags that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Etags {
    /// None, neither header nor property.
    None,
    /// Strong tags.
    Strong,
    /// Weak tags, `W/"…"`.
    Weak,
}

/// The effect of `If-Match` on a PATCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IfMatch {
    /// No effect.
    Ignored,
    /// 412 if it does not match.
    Honoured,
    /// Like `Honoured`, and 428 if it is missing.
    Required,
}

/// Session and account rules.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionRules {
    /// True if the session service exists.
    pub offered: bool,
    /// The most open sessions; the next log-in is answered with 503.
    pub limit: usize,
    /// A session's lifetime without requests.
    #[serde(rename = "timeout_ms", with = "millis")]
    pub timeout: Duration,
    /// True if basic authentication works.
    pub basic_auth: bool,
    /// Failed log-ins before an account is locked; zero never locks.
    pub lockout_after: u32,
    /// How long an account stays locked; `None` until the simulator unlocks it.
    #[serde(rename = "lockout_ms", with = "optional_millis")]
    pub lockout: Option<Duration>,
}

impl Personality {
    /// Returns the specification's behaviour with every feature.
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
