//! The `redfish` block: its attributes, and what is wrong with them as they are written.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::plug::{
        BackendPlugin, Block, Connected, Kind, Problem, Setting, Variables, Warning, check_request_timeout,
    },
    clock::Clock,
};

use super::{
    RedfishBackend, RedfishSettings,
    configured::{self, ServerInput, endpoint, is_here, refuses_plain, several_trusts},
    passwords,
    settings::Trust,
    trust::parse_fingerprint,
};

/// BMCs that speak Redfish.
#[derive(Debug)]
pub struct Plugin;

/// The longest a BMC may take for a read: slow ones need half a minute for a system.
const LONGEST_READ: Duration = Duration::from_mins(2);

const SERVER: &[Setting] = &[
    Setting { name: "endpoint", kind: Kind::Text, text: "The BMC's address, for example `https://10.0.0.9`." },
    Setting { name: "system_id", kind: Kind::Text, text: "Which system behind it, when there are several." },
    Setting {
        name: "boot_target",
        kind: Kind::Text,
        text: "The `BootSourceOverrideTarget` that boots a filled virtual drive, for example `UsbCd`. Default: chosen by what the BMC lists.",
    },
    Setting {
        name: "media_slot",
        kind: Kind::Text,
        text: "The virtual drive to fill, by its id, for example `1`. Default: the first free one that takes the image.",
    },
    Setting {
        name: "lock_key",
        kind: Kind::Text,
        text: "The hardware identity to lock under, instead of the system's own UUID.",
    },
    Setting { name: "labels", kind: Kind::Texts, text: "Labels, by which `metal_servers` selects." },
    Setting { name: "username", kind: Kind::Text, text: "The account, when it differs from the common one." },
    Setting {
        name: "password",
        kind: Kind::Secret,
        text: "Its password. Better: an ephemeral value, a file or the environment.",
    },
    Setting { name: "password_file", kind: Kind::Text, text: "A file that holds the password." },
    Setting {
        name: "ca_certificate_file",
        kind: Kind::Text,
        text: "The authority that signed the BMC's certificate, as PEM.",
    },
    Setting {
        name: "certificate_sha256",
        kind: Kind::Text,
        text: "The certificate's SHA-256 fingerprint: exactly this certificate is trusted.",
    },
    Setting { name: "insecure", kind: Kind::Flag, text: "Trust any certificate. Default: `false`." },
];

const SETTINGS: &[Setting] = &[
    Setting {
        name: "inventory_file",
        kind: Kind::Text,
        text: "A YAML or JSON file with servers by name. Default: `METAL_REDFISH_INVENTORY_FILE`.",
    },
    Setting {
        name: "inventory_password_env_prefix",
        kind: Kind::Text,
        text: "How the environment variables begin that the inventory file may name as `password_env`. Default: `METAL_REDFISH_INVENTORY_PASSWORD_ENV_PREFIX`, else `METAL_`.",
    },
    Setting {
        name: "inventory_password_folder",
        kind: Kind::Text,
        text: "The folder of the files that the inventory file may name as `password_file`. Default: `METAL_REDFISH_INVENTORY_PASSWORD_FOLDER`, else the folder of the inventory file.",
    },
    Setting {
        name: "servers",
        kind: Kind::Objects(SERVER),
        text: "Servers by name, besides or instead of the inventory file.",
    },
    Setting { name: "username", kind: Kind::Text, text: "The account on the BMCs. Default: `METAL_REDFISH_USERNAME`." },
    Setting {
        name: "password",
        kind: Kind::Secret,
        text: "Its password. Never stored. Default: `METAL_REDFISH_PASSWORD`.",
    },
    Setting {
        name: "password_file",
        kind: Kind::Text,
        text: "A file that holds the password. Default: `METAL_REDFISH_PASSWORD_FILE`.",
    },
    Setting {
        name: "ca_certificate_file",
        kind: Kind::Text,
        text: "The authority that signed the BMCs' certificates, as PEM. Default: `METAL_REDFISH_CA_CERTIFICATE_FILE`.",
    },
    Setting { name: "insecure", kind: Kind::Flag, text: "Trust any certificate of any BMC. Default: `false`." },
    Setting {
        name: "request_timeout",
        kind: Kind::Duration,
        text: "Time limit of one request to a BMC that may change something. Default: `\"10s\"`; at most `\"15s\"`.",
    },
    Setting {
        name: "read_timeout",
        kind: Kind::Duration,
        text: "Time limit of one read. Default: `request_timeout` where that is set, otherwise `\"30s\"`; at most `\"2m\"`.",
    },
    Setting {
        name: "authentication",
        kind: Kind::Text,
        text: "`session` (the default; falls back to basic where a BMC has no sessions) or `basic`.",
    },
];

impl BackendPlugin for Plugin {
    fn name(&self) -> &'static str {
        "redfish"
    }

    fn description(&self) -> &'static str {
        "BMCs that speak Redfish. Exactly one backend per provider configuration; use aliases for more."
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn check(&self, block: &Block) -> Vec<Problem> {
        let mut problems: Vec<Problem> = check_request_timeout(block).into_iter().collect();
        if block.duration("read_timeout").is_some_and(|limit| limit > LONGEST_READ) {
            problems.push(Problem::of(&["read_timeout"], "a read may take at most 120s"));
        }
        if let Some(other) = block.text("authentication").filter(|word| !matches!(word.as_str(), "session" | "basic")) {
            problems.push(Problem::of(&["authentication"], format!("{other:?} is not one of \"session\", \"basic\"")));
        }
        let (insecure, authority) = (block.flag("insecure"), block.text("ca_certificate_file"));
        problems.extend(several_trusts(insecure, None, authority.as_deref(), &["ca_certificate_file"]).err());
        if block.is_unknown("insecure") {
            return problems;
        }
        let common = if insecure == Some(true) { Trust::Anything } else { Trust::System };
        for (name, server) in block.objects("servers").filter(|(_, server)| !server.has_unknown()) {
            check_server(name, &ServerInput::of(server), &common, &mut problems);
        }
        problems
    }

    fn connect(&self, block: &Block, env: Variables<'_>, clock: &Arc<dyn Clock>) -> Result<Connected, Problem> {
        let mut warnings: Vec<Warning> = passwords::readable(block, env).into_iter().collect();
        let settings = configured::settings(block, env)?;
        warnings.extend(in_clear(&settings));
        let backend = RedfishBackend::new(settings, clock).map_err(|problem| Problem::of(&[], problem))?;
        Ok(Connected { backend: Arc::new(backend), warnings })
    }

    fn reach(&self) -> &'static str {
        "--backend redfish, and --inventory or METAL_REDFISH_INVENTORY_FILE with its servers"
    }
}

fn check_server(name: &str, server: &ServerInput, common: &Trust, problems: &mut Vec<Problem>) {
    let endpoint = endpoint(name, server.listed.endpoint.as_deref());
    let fingerprint = server.listed.certificate_sha256.as_deref();
    let authority = server.listed.ca_certificate_file.as_deref();
    let at = ["servers", name, "certificate_sha256"];
    if let Err(problem) = several_trusts(server.listed.insecure, fingerprint, authority, &at) {
        problems.push(problem);
        return;
    }
    let trust = match (fingerprint, authority) {
        (Some(text), _) => {
            let parsed = parse_fingerprint(text).map(Trust::Fingerprint);
            if parsed.is_none() {
                problems.push(Problem::of(&at, configured::FINGERPRINT));
            }
            parsed.unwrap_or_default()
        }
        (None, Some(_)) => Trust::Authority(String::new()),
        (None, None) if server.listed.insecure == Some(true) => Trust::Anything,
        (None, None) => common.clone(),
    };
    match endpoint {
        Err(problem) => problems.push(problem),
        Ok(endpoint) => {
            if let Some(problem) = refuses_plain(&endpoint, &trust) {
                let problem = format!("the endpoint of server {name:?} is an http address: {problem}");
                problems.push(Problem::of(&["servers", name, "endpoint"], problem));
            }
        }
    }
}

/// The BMCs to which passwords go in clear, because the configuration asks for it.
fn in_clear(settings: &RedfishSettings) -> Option<Warning> {
    let plain = settings.servers.iter().filter(|(_, server)| server.endpoint.scheme() == "http");
    let names: Vec<&str> =
        plain.filter(|(_, server)| !is_here(&server.endpoint)).map(|(name, _)| name.as_str()).collect();
    (!names.is_empty()).then(|| Warning {
        summary: "Passwords of BMCs go in clear",
        detail: format!(
            "These servers have an http address: {}. Who is in between reads their passwords and may switch them. Write https.",
            names.join(", ")
        ),
    })
}
