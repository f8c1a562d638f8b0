//! Attributes of the `redfish` block, each with its environment variable.

use crate::backend::plug::{AttributeKind, Setting};

const SERVER: &[Setting] = &[
    Setting::new("endpoint", AttributeKind::Text, "The BMC's address, for example `https://10.0.0.9`."),
    Setting::new(
        "system_id",
        AttributeKind::Text,
        "The system's id behind the BMC. Default: the only system that supports reset.",
    ),
    Setting::new(
        "boot_target",
        AttributeKind::Text,
        "The `BootSourceOverrideTarget` that boots a filled virtual drive, for example `UsbCd`. Default: chosen by what the BMC lists.",
    ),
    Setting::new(
        "media_slot",
        AttributeKind::Text,
        "The virtual drive to fill, by its id, for example `1`. Default: the first free one that takes the image.",
    ),
    Setting::new(
        "lock_key",
        AttributeKind::Text,
        "The lock key, instead of the system UUID. Needed for a server that reports no UUID or that of another machine; the same in every configuration of that server.",
    ),
    Setting::new("labels", AttributeKind::Texts, "Labels, by which `metal_servers` selects."),
    Setting::new("username", AttributeKind::Text, "The account, when it differs from the common one."),
    Setting::new(
        "password",
        AttributeKind::Secret,
        "Its password. Better: an ephemeral value, a file or the environment.",
    ),
    Setting::new("password_file", AttributeKind::Text, "A file that holds the password."),
    Setting::new(
        "ca_certificate_file",
        AttributeKind::Text,
        "The authority that signed the BMC's certificate, as PEM.",
    ),
    Setting::new(
        "certificate_sha256",
        AttributeKind::Text,
        "The certificate's SHA-256 fingerprint: exactly this certificate is trusted.",
    ),
    Setting::new("insecure", AttributeKind::Flag, "Trust any certificate. Default: `false`."),
];

pub(super) const INVENTORY_FILE: Setting =
    Setting::new("inventory_file", AttributeKind::Text, "A YAML or JSON file with servers by name.")
        .or_env("METAL_REDFISH_INVENTORY_FILE", "");

pub(super) const INVENTORY_PASSWORD_ENV_PREFIX: Setting = Setting::new(
    "inventory_password_env_prefix",
    AttributeKind::Text,
    "How the environment variables begin that the inventory file may name as `password_env`.",
)
.or_env("METAL_REDFISH_INVENTORY_PASSWORD_ENV_PREFIX", ", else `METAL_`");

pub(super) const INVENTORY_PASSWORD_FOLDER: Setting = Setting::new(
    "inventory_password_folder",
    AttributeKind::Text,
    "The folder of the files that the inventory file may name as `password_file`.",
)
.or_env("METAL_REDFISH_INVENTORY_PASSWORD_FOLDER", ", else the folder of the inventory file");

pub(super) const USERNAME: Setting =
    Setting::new("username", AttributeKind::Text, "The account on the BMCs.").or_env("METAL_REDFISH_USERNAME", "");

pub(super) const PASSWORD: Setting =
    Setting::new("password", AttributeKind::Secret, "Its password. Never stored.").or_env("METAL_REDFISH_PASSWORD", "");

pub(super) const PASSWORD_FILE: Setting =
    Setting::new("password_file", AttributeKind::Text, "A file that holds the password.")
        .or_env("METAL_REDFISH_PASSWORD_FILE", "");

pub(super) const CA_CERTIFICATE_FILE: Setting = Setting::new(
    "ca_certificate_file",
    AttributeKind::Text,
    "The authority that signed the BMCs' certificates, as PEM.",
)
.or_env("METAL_REDFISH_CA_CERTIFICATE_FILE", "");

pub(super) const SETTINGS: &[Setting] = &[
    INVENTORY_FILE,
    INVENTORY_PASSWORD_ENV_PREFIX,
    INVENTORY_PASSWORD_FOLDER,
    Setting::new(
        "servers",
        AttributeKind::Objects(SERVER),
        "Servers by name, besides or instead of the inventory file.",
    ),
    USERNAME,
    PASSWORD,
    PASSWORD_FILE,
    CA_CERTIFICATE_FILE,
    Setting::new("insecure", AttributeKind::Flag, "Trust any certificate of any BMC. Default: `false`."),
    Setting::new(
        "request_timeout",
        AttributeKind::Duration,
        "Time limit of one request to a BMC that may change something. Default: `\"10s\"`; at most `\"15s\"`.",
    ),
    Setting::new(
        "read_timeout",
        AttributeKind::Duration,
        "Time limit of one read; in a plan, all reads of one server take at most twice as long. Default: `request_timeout` where that is set, otherwise `\"30s\"`; at most `\"2m\"`.",
    ),
    Setting::new(
        "authentication",
        AttributeKind::Text,
        "`session` (the default; falls back to basic where a BMC has no sessions) or `basic`.",
    ),
];
