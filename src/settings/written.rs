//! What is wrong with a configuration as it was written: found without the environment, files or the network, so that
//! `validate` tells it.

use std::time::Duration;

use url::Url;

use crate::backend::redfish::{Trust, parse_fingerprint};

use super::{
    Input, MetalOperatorInput, RedfishInput, ServerInput, SettingsError,
    input::{refuses_plain, several_trusts},
    store::check_url,
};

/// The longest request to a BMC: half of a lease, which is what is left of it when a call begins in time
/// (`engine/lease.rs`), so that the call ends before anybody can believe that its process is gone.
const LONGEST_REQUEST: Duration = Duration::from_secs(15);

/// The longest a BMC may take for a read: slow ones need half a minute for a system.
const LONGEST_READ: Duration = Duration::from_mins(2);

/// Everything that is wrong with a configuration as it was written.
#[must_use]
pub fn check(input: &Input) -> Vec<SettingsError> {
    let mut problems = Vec::new();
    problems.extend(input.coordination_url.as_deref().and_then(|url| check_url(url).err()));
    if let Some(redfish) = &input.redfish {
        check_redfish(redfish, &mut problems);
    }
    if let Some(operator) = &input.metal_operator {
        check_operator(operator, &mut problems);
    }
    problems
}

fn wrong(path: &[&str], problem: impl Into<String>) -> SettingsError {
    SettingsError::Value { attribute: path.iter().map(|step| (*step).to_owned()).collect(), problem: problem.into() }
}

fn too_long(limit: Option<Duration>, most: Duration) -> bool {
    limit.is_some_and(|limit| limit > most)
}

const REQUEST: &str = "a request may take at most 15s: longer ones could outlive the right to make them";

fn check_redfish(input: &RedfishInput, problems: &mut Vec<SettingsError>) {
    if too_long(input.request_timeout, LONGEST_REQUEST) {
        problems.push(wrong(&["redfish", "request_timeout"], REQUEST));
    }
    if too_long(input.read_timeout, LONGEST_READ) {
        problems.push(wrong(&["redfish", "read_timeout"], "a read may take at most 120s"));
    }
    if let Some(other) = input.authentication.as_deref().filter(|word| !matches!(*word, "session" | "basic")) {
        let problem = format!("{other:?} is not one of \"session\", \"basic\"");
        problems.push(wrong(&["redfish", "authentication"], problem));
    }
    problems.extend(several_trusts(input.insecure, None, input.ca_certificate_file.as_deref(), &at_redfish()).err());
    let common = if input.insecure == Some(true) { Trust::Anything } else { Trust::System };
    for (name, server) in &input.servers {
        check_server(name, server, &common, problems);
    }
}

fn at_redfish() -> Vec<String> {
    ["redfish", "ca_certificate_file"].map(str::to_owned).to_vec()
}

fn check_server(name: &str, server: &ServerInput, common: &Trust, problems: &mut Vec<SettingsError>) {
    let at = |field: &str| ["redfish", "servers", name, field].map(str::to_owned).to_vec();
    let endpoint = endpoint(name, server.endpoint.as_deref());
    if let Err(problem) = several_trusts(
        server.insecure,
        server.certificate_sha256.as_deref(),
        server.ca_certificate_file.as_deref(),
        &at("certificate_sha256"),
    ) {
        problems.push(problem);
        return;
    }
    let trust = match (&server.certificate_sha256, &server.ca_certificate_file) {
        (Some(text), _) => {
            let parsed = parse_fingerprint(text).map(Trust::Fingerprint);
            if parsed.is_none() {
                problems.push(wrong(&["redfish", "servers", name, "certificate_sha256"], FINGERPRINT));
            }
            parsed.unwrap_or_default()
        }
        (None, Some(_)) => Trust::Authority(String::new()),
        (None, None) if server.insecure == Some(true) => Trust::Anything,
        (None, None) => common.clone(),
    };
    match endpoint {
        Err(problem) => problems.push(problem),
        Ok(endpoint) => {
            if let Some(problem) = refuses_plain(&endpoint, &trust) {
                let problem = format!("the endpoint of server {name:?} is an http address: {problem}");
                problems.push(wrong(&["redfish", "servers", name, "endpoint"], problem));
            }
        }
    }
}

/// How a fingerprint is written.
pub(super) const FINGERPRINT: &str = "certificate_sha256 has 64 hexadecimal digits, with or without colons";

/// The address of a BMC.
pub(super) fn endpoint(name: &str, text: Option<&str>) -> Result<Url, SettingsError> {
    let wrong = |problem: String| wrong(&["redfish", "servers", name, "endpoint"], problem);
    if name.trim().is_empty() {
        return Err(wrong("a server has an empty name".to_owned()));
    }
    let text = text.ok_or_else(|| wrong(format!("server {name:?} has no endpoint")))?;
    let endpoint =
        Url::parse(text).map_err(|error| wrong(format!("the endpoint of server {name:?} is no URL: {error}")))?;
    if !matches!(endpoint.scheme(), "http" | "https") || endpoint.host_str().is_none() {
        return Err(wrong(format!("the endpoint of server {name:?} must be an http or https address")));
    }
    if !endpoint.username().is_empty() || endpoint.password().is_some() {
        return Err(wrong(format!(
            "the endpoint of server {name:?} holds credentials; give username and password instead"
        )));
    }
    Ok(endpoint)
}

fn check_operator(input: &MetalOperatorInput, problems: &mut Vec<SettingsError>) {
    if too_long(input.request_timeout, LONGEST_REQUEST) {
        problems.push(wrong(&["metal_operator", "request_timeout"], REQUEST));
    }
    if input.host.is_some() && (input.kubeconfig.is_some() || input.context.is_some()) {
        let problem = "host is instead of a kubeconfig: leave out kubeconfig and context, or host";
        problems.push(wrong(&["metal_operator", "host"], problem));
    }
    if input.host.is_none() {
        let of_host = [("token_file", &input.token_file), ("ca_certificate_file", &input.ca_certificate_file)];
        for (name, _) in of_host.into_iter().filter(|(_, given)| given.is_some()) {
            problems.push(wrong(&["metal_operator", name], "it belongs to host; a kubeconfig names its own"));
        }
    }
    let at = ["metal_operator", "bmc_ca_certificate_file"].map(str::to_owned);
    problems.extend(several_trusts(input.bmc_insecure, None, input.bmc_ca_certificate_file.as_deref(), &at).err());
}
