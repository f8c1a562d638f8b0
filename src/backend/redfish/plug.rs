//! The `redfish` block: its attributes and their validation.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::plug::{
        BackendFlag, BackendPlugin, Block, Connected, Problem, Setting, Variables, Warning, check_request_timeout,
    },
    clock::Clock,
};

use super::{
    RedfishBackend, RedfishSettings,
    attributes::{CA_CERTIFICATE_FILE, INVENTORY_FILE, SETTINGS},
    configured::{self, ServerInput, endpoint, is_here, refuses_plain, several_trusts},
    passwords,
    settings::Trust,
    trust::parse_fingerprint,
};

/// The `redfish` block's plugin.
#[derive(Debug)]
pub struct Plugin;

const FLAGS: &[BackendFlag] = &[BackendFlag::file(
    "inventory",
    &INVENTORY_FILE,
    "The inventory file with the servers, for commands that touch one; credentials come from METAL_REDFISH_USERNAME and \
     METAL_REDFISH_PASSWORD or METAL_REDFISH_PASSWORD_FILE",
)];

/// The maximum read timeout: slow BMCs need half a minute for a system.
const LONGEST_READ: Duration = Duration::from_mins(2);

impl BackendPlugin for Plugin {
    fn name(&self) -> &'static str {
        "redfish"
    }

    fn description(&self) -> &'static str {
        "BMCs that support Redfish. Exactly one backend per provider configuration; use aliases for more."
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn flags(&self) -> &'static [BackendFlag] {
        FLAGS
    }

    fn check(&self, block: &Block) -> Vec<Problem> {
        let mut problems: Vec<Problem> = check_request_timeout(block).into_iter().collect();
        if block.duration("read_timeout").is_some_and(|limit| limit > LONGEST_READ) {
            problems.push(Problem::of(&["read_timeout"], "it must be at most 120s"));
        }
        if let Some(other) = block.text("authentication").filter(|word| !matches!(word.as_str(), "session" | "basic")) {
            problems.push(Problem::of(&["authentication"], format!("{other:?} is not one of \"session\", \"basic\"")));
        }
        let (insecure, authority) = (block.flag("insecure"), block.text(CA_CERTIFICATE_FILE.name));
        problems.extend(several_trusts(insecure, None, authority.as_deref(), &[CA_CERTIFICATE_FILE.name]).err());
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

    fn reach(&self) -> String {
        format!("--backend redfish, and --inventory or {} with its servers", INVENTORY_FILE.variable())
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

/// Warns of BMCs that receive unencrypted passwords by configuration.
fn in_clear(settings: &RedfishSettings) -> Option<Warning> {
    let plain = settings.servers.iter().filter(|(_, server)| server.endpoint.scheme() == "http");
    let names: Vec<&str> =
        plain.filter(|(_, server)| !is_here(&server.endpoint)).map(|(name, _)| name.as_str()).collect();
    (!names.is_empty()).then(|| Warning {
        summary: "BMC passwords are sent unencrypted",
        detail: format!(
            "These servers have an http address: {}. Anyone on the network path can read their passwords and switch \
             them. Write https.",
            names.join(", ")
        ),
    })
}
