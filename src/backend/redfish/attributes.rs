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
        "The `BootSourceOverrideTarget` that boots a filled virtual drive, for example `UsbCd`. Default: chosen from the BMC's list.",
    ),
    Setting::new(
        "media_slot",
        AttributeKind::Text,
        "Id of the virtual drive to fill, for example `1`. Default: the first free drive that accepts the image.",
    ),
    Setting::new(
        "lock_key",
        AttributeKind::Text,
        "The lock key, instead of the system UUID. Needed for a server that does not report a UUID, or reports another machine's UUID. Use the same key in every configuration of that server.",
    ),
    Setting::new("labels", AttributeKind::Texts, "Labels for selection by `metal_servers`."),
    Setting::new("username", AttributeKind::Text, "The account, if it differs from the block's `username`."),
    Setting::new(
        "password",
        AttributeKind::Secret,
        "The account's password. Prefer an ephemeral value, a file or the environment.",
    ),
    Setting::new("password_file", AttributeKind::Text, "A file with the password."),
    Setting::new(
        "ca_certificate_file",
        AttributeKind::Text,
        "The authority that signed the BMC's certificate, as PEM.",
    ),
    Setting::new(
        "certificate_sha256",
        AttributeKind::Text,
        "The certificate's SHA-256 fingerprint. Only this certificate is trusted.",
    ),
    Setting::new("insecure", AttributeKind::Flag, "Trust any certificate. Default: `false`."),
];

pub(super) const INVENTORY_FILE: Setting =
    Setting::new("inventory_file", AttributeKind::Text, "A YAML or JSON file with servers by name.")
        .or_env("METAL_REDFISH_INVENTORY_FILE", "");

pub(super) const INVENTORY_PASSWORD_ENV_PREFIX: Setting = Setting::new(
    "inventory_password_env_prefix",
    AttributeKind::Text,
    "Prefix of the environment variables that the inventory file can name as `password_env`.",
)
.or_env("METAL_REDFISH_INVENTORY_PASSWORD_ENV_PREFIX", ", else `METAL_`");

pub(super) const INVENTORY_PASSWORD_FOLDER: Setting = Setting::new(
    "inventory_password_folder",
    AttributeKind::Text,
    "Folder of the files that the inventory file can name as `password_file`.",
)
.or_env("METAL_REDFISH_INVENTORY_PASSWORD_FOLDER", ", else the inventory file's folder");

pub(super) const USERNAME: Setting =
    Setting::new("username", AttributeKind::Text, "The account on the BMCs.").or_env("METAL_REDFISH_USERNAME", "");

pub(super) const PASSWORD: Setting =
    Setting::new("password", AttributeKind::Secret, "The account's password. Never stored.")
        .or_env("METAL_REDFISH_PASSWORD", "");

pub(super) const PASSWORD_FILE: Setting =
    Setting::new("password_file", AttributeKind::Text, "A file with the password.")
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
        "Servers by name, in addition to the inventory file or without it.",
    ),
    USERNAME,
    PASSWORD,
    PASSWORD_FILE,
    CA_CERTIFICATE_FILE,
    Setting::new("insecure", AttributeKind::Flag, "Trust any certificate of any BMC. Default: `false`."),
    Setting::new(
        "request_timeout",
        AttributeKind::Duration,
        "Time limit for a BMC request that can change something. Default: `\"10s\"`; at most `\"15s\"`.",
    ),
    Setting::new(
        "read_timeout",
        AttributeKind::Duration,
        "Time limit for a read. In a plan, all reads of one server take at most twice as long. Default: `request_timeout` if it is set, otherwise `\"30s\"`; at most `\"2m\"`.",
    ),
    Setting::new(
        "authentication",
        AttributeKind::Text,
        "`session` (the default; falls back to basic if a BMC does not support sessions) or `basic`.",
    ),
];
