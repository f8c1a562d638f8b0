//! Resolves the `redfish` block with the environment and files.

use std::collections::BTreeMap;

use secrecy::SecretString;
use url::Url;

use crate::{
    backend::plug::{Block, Problem, Variables, path_trust, read_file},
    files,
    loopback::is_loopback,
};

use super::{
    attributes::{
        CA_CERTIFICATE_FILE, INVENTORY_FILE, INVENTORY_PASSWORD_ENV_PREFIX, INVENTORY_PASSWORD_FOLDER, PASSWORD,
        PASSWORD_FILE, USERNAME,
    },
    inventory::{InventoryServer, parse_inventory},
    passwords::{InventoryLimits, read_password},
    settings::{Authentication, MediaSettings, RedfishSettings, ServerSettings, Trust},
    trust::parse_fingerprint,
};

/// The fingerprint format.
pub(super) const FINGERPRINT: &str = "certificate_sha256 has 64 hexadecimal digits, with or without colons";

/// A server from the inventory file or the block. Only the block can contain a password.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerInput {
    /// All attributes except the password.
    pub(super) listed: InventoryServer,
    password: Option<SecretString>,
}

impl ServerInput {
    pub(super) fn of(block: &Block) -> Self {
        let listed = InventoryServer {
            endpoint: block.text("endpoint"),
            system_id: block.text("system_id"),
            boot_target: block.text("boot_target"),
            media_slot: block.text("media_slot"),
            lock_key: block.text("lock_key"),
            labels: block.texts("labels"),
            username: block.text("username"),
            password_file: block.text("password_file"),
            password_env: None,
            ca_certificate_file: block.text("ca_certificate_file"),
            certificate_sha256: block.text("certificate_sha256"),
            insecure: block.flag("insecure"),
        };
        Self { listed, password: block.secret("password") }
    }
}

/// Returns the backend's settings after reading the environment and all files.
pub(super) fn settings(block: &Block, env: Variables<'_>) -> Result<RedfishSettings, Problem> {
    let authority = CA_CERTIFICATE_FILE.value(block, env);
    let common = RedfishDefaults {
        username: USERNAME.value(block, env),
        password: common_password(block, env)?,
        trust: certificate_trust(block.flag("insecure"), None, authority.as_deref(), &[CA_CERTIFICATE_FILE.name], env)?,
    };
    let authentication = match block.text("authentication").as_deref() {
        None | Some("session") => Authentication::Session,
        // `basic`: validation rejected any other value.
        Some(_) => Authentication::Basic,
    };
    let (mut checked, mut inventory) = (BTreeMap::new(), BTreeMap::new());
    for (name, server) in servers(block, env)? {
        inventory.insert(name.clone(), entry(&server.listed, authority.as_deref()));
        let server = server_settings(&name, server, &common, env)?;
        checked.insert(name, server);
    }
    let mut settings = RedfishSettings { servers: checked, inventory, authentication, ..RedfishSettings::default() };
    let request_timeout = block.duration("request_timeout");
    settings.request_timeout = request_timeout.unwrap_or(settings.request_timeout);
    // A configured limit applies to all requests, unless reads have a separate limit.
    settings.read_timeout = block.duration("read_timeout").or(request_timeout).unwrap_or(settings.read_timeout);
    Ok(settings)
}

/// Returns the servers from the inventory file and the block.
fn servers(block: &Block, env: Variables<'_>) -> Result<BTreeMap<String, ServerInput>, Problem> {
    let mut servers: BTreeMap<String, ServerInput> = BTreeMap::new();
    if let Some(path) = INVENTORY_FILE.value(block, env) {
        let at = [INVENTORY_FILE.name];
        let text = files::read(&path, files::INVENTORY, path_trust(env))
            .map_err(|error| Problem::of(&at, error.to_string()))?;
        let listed = parse_inventory(&text).map_err(|problem| Problem::of(&at, format!("{path}: {problem}")))?;
        let limits = InventoryLimits::new(
            &path,
            INVENTORY_PASSWORD_ENV_PREFIX.value(block, env),
            INVENTORY_PASSWORD_FOLDER.value(block, env),
        );
        listed.iter().try_for_each(|(name, server)| limits.check(name, server))?;
        servers.extend(listed.into_iter().map(|(name, listed)| (name, ServerInput { listed, password: None })));
    }
    for (name, server) in block.objects("servers") {
        if servers.insert(name.clone(), ServerInput::of(server)).is_some() {
            let problem = format!("server {name:?} is also in the inventory file; define it in one place");
            return Err(Problem::of(&["servers", name], problem));
        }
    }
    Ok(servers)
}

fn common_password(block: &Block, env: Variables<'_>) -> Result<Option<SecretString>, Problem> {
    if let Some(password) = block.secret(PASSWORD.name) {
        return Ok(Some(password));
    }
    let path = match (block.text(PASSWORD_FILE.name), PASSWORD.from_env(env)) {
        (Some(path), _) => Some(path),
        (None, Some(password)) => return Ok(Some(SecretString::from(password))),
        (None, None) => PASSWORD_FILE.from_env(env),
    };
    path.map(|path| read_password(&path, &[PASSWORD_FILE.name], env)).transpose()
}

/// Returns a server's inventory file entry. `authority` is the shared authority for servers without
/// their own trust setting.
fn entry(server: &InventoryServer, authority: Option<&str>) -> InventoryServer {
    let own = server.certificate_sha256.is_some() || server.ca_certificate_file.is_some() || server.insecure.is_some();
    let common = authority.filter(|_| !own).map(str::to_owned);
    let ca_certificate_file = server.ca_certificate_file.clone().or(common);
    InventoryServer { ca_certificate_file, ..server.clone() }
}

/// The settings shared by all servers.
struct RedfishDefaults {
    username: Option<String>,
    password: Option<SecretString>,
    trust: Trust,
}

fn server_settings(
    name: &str,
    server: ServerInput,
    common: &RedfishDefaults,
    env: Variables<'_>,
) -> Result<ServerSettings, Problem> {
    let wrong = |field: &str, problem: String| Problem::of(&["servers", name, field], problem);
    let ServerInput { listed: server, password } = server;
    let endpoint = endpoint(name, server.endpoint.as_deref())?;
    let username = server.username.or_else(|| common.username.clone());
    let password = match (password, server.password_file, server.password_env) {
        (Some(password), _, _) => Some(password),
        (None, Some(path), _) => Some(read_password(&path, &["servers", name, "password_file"], env)?),
        (None, None, Some(variable)) => match env(&variable) {
            Some(password) => Some(SecretString::from(password)),
            None => return Err(wrong("password_env", format!("server {name:?}: {variable} is not set"))),
        },
        (None, None, None) => common.password.clone(),
    };
    let (Some(username), Some(password)) = (username, password) else {
        return Err(wrong(
            "username",
            format!(
                "server {name:?} does not have credentials; set username and password in redfish, or {} and {}",
                USERNAME.variable(),
                PASSWORD.variable()
            ),
        ));
    };
    let own = certificate_trust(
        server.insecure,
        server.certificate_sha256.as_deref(),
        server.ca_certificate_file.as_deref(),
        &["servers", name, "certificate_sha256"],
        env,
    )?;
    let trust = if own == Trust::System && server.insecure != Some(false) { common.trust.clone() } else { own };
    if let Some(problem) = refuses_plain(&endpoint, &trust) {
        return Err(wrong("endpoint", format!("the endpoint of server {name:?} is an http address: {problem}")));
    }
    Ok(ServerSettings {
        endpoint,
        system_id: server.system_id.filter(|id| !id.is_empty()),
        lock_key: server.lock_key.as_deref().map(plain_key).filter(|key| !key.is_empty()),
        labels: server.labels,
        username,
        password,
        media: MediaSettings {
            boot_target: server.boot_target.filter(|target| !target.is_empty()),
            media_slot: server.media_slot.filter(|slot| !slot.is_empty()),
        },
        trust,
    })
}

/// Parses and validates a BMC's address.
pub(super) fn endpoint(name: &str, text: Option<&str>) -> Result<Url, Problem> {
    let wrong = |problem: String| Problem::of(&["servers", name, "endpoint"], problem);
    if name.trim().is_empty() {
        return Err(wrong("a server has an empty name".to_owned()));
    }
    let text = text.ok_or_else(|| wrong(format!("server {name:?} does not have an endpoint")))?;
    let endpoint =
        Url::parse(text).map_err(|error| wrong(format!("the endpoint of server {name:?} is not a URL: {error}")))?;
    if !matches!(endpoint.scheme(), "http" | "https") || endpoint.host_str().is_none() {
        return Err(wrong(format!("the endpoint of server {name:?} must be an http or https address")));
    }
    if !endpoint.username().is_empty() || endpoint.password().is_some() {
        return Err(wrong(format!(
            "the endpoint of server {name:?} contains credentials; set username and password instead"
        )));
    }
    if !is_root(endpoint.path()) {
        return Err(wrong(format!(
            "the endpoint of server {name:?} has the path {:?}; the provider reads /redfish/v1 at the address itself, \
             which could be another BMC: write only scheme, host and port, and system_id for one of several systems",
            endpoint.path()
        )));
    }
    Ok(endpoint)
}

/// Returns true if an endpoint's path is Redfish's standard root (DSP0266, "Resource URI
/// requirements").
fn is_root(path: &str) -> bool {
    matches!(path.strip_suffix('/').unwrap_or(path), "" | "/redfish" | "/redfish/v1")
}

/// Returns why an address without TLS conflicts with its configuration, if it does. Loopback
/// traffic does not reach a network.
pub(super) fn refuses_plain(endpoint: &Url, trust: &Trust) -> Option<&'static str> {
    if endpoint.scheme() != "http" {
        return None;
    }
    match trust {
        Trust::Fingerprint(_) | Trust::Authority(_) => Some("certificate_sha256 and ca_certificate_file require https"),
        Trust::System if !is_here(endpoint) => {
            Some("the password would be sent unencrypted; write https, or insecure = true to accept this")
        }
        Trust::System | Trust::Anything => None,
    }
}

/// Returns a plan's warning for a BMC whose address comes from another system and sends passwords
/// unencrypted.
pub(in crate::backend) fn in_clear(endpoint: &Url) -> Option<String> {
    let host = endpoint.host_str().filter(|_| endpoint.scheme() == "http" && !is_here(endpoint))?;
    Some(format!("BMC: the password is sent unencrypted to {host}: its address begins with http."))
}

/// Returns true for a loopback address, whose traffic does not reach a network.
pub(super) fn is_here(endpoint: &Url) -> bool {
    endpoint.host_str().is_some_and(is_loopback)
}

/// Rejects more than one trust setting.
pub(in crate::backend) fn several_trusts(
    insecure: Option<bool>,
    fingerprint: Option<&str>,
    authority: Option<&str>,
    at: &[&str],
) -> Result<(), Problem> {
    let several =
        [insecure == Some(true), fingerprint.is_some(), authority.is_some()].iter().filter(|given| **given).count();
    if several > 1 {
        return Err(Problem::of(at, "set only one of insecure, certificate_sha256 and ca_certificate_file"));
    }
    Ok(())
}

/// Returns the certificate verification. `at` is the attribute to name in errors.
pub(in crate::backend) fn certificate_trust(
    insecure: Option<bool>,
    fingerprint: Option<&str>,
    authority: Option<&str>,
    at: &[&str],
    env: Variables<'_>,
) -> Result<Trust, Problem> {
    several_trusts(insecure, fingerprint, authority, at)?;
    if let Some(text) = fingerprint {
        return parse_fingerprint(text).map(Trust::Fingerprint).ok_or_else(|| Problem::of(at, FINGERPRINT));
    }
    if let Some(path) = authority {
        return Ok(Trust::Authority(read_file(path, at, env)?));
    }
    Ok(if insecure == Some(true) { Trust::Anything } else { Trust::System })
}

/// Normalises a configured lock key to the form of machines' own keys, so that both match.
fn plain_key(key: &str) -> String {
    let key = key.trim();
    uuid::Uuid::try_parse(key).map_or_else(|_| key.to_owned(), |uuid| uuid.hyphenated().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_with_a_path_that_is_not_asked_is_refused() {
        let of = |address: &str| endpoint("node", Some(address));
        for path in ["", "/", "/redfish", "/redfish/", "/redfish/v1", "/redfish/v1/"] {
            assert!(of(&format!("https://bmc1.example{path}")).is_ok(), "{path}");
        }
        for path in ["/bmc7", "/bmc7/redfish/v1", "/redfish/v1/Systems/1", "//"] {
            assert!(of(&format!("https://proxy.example{path}")).is_err(), "{path}");
        }
    }

    #[test]
    fn no_address_without_tls_voids_what_was_asked_or_sends_a_password_unasked() {
        let pinned = Trust::Fingerprint([0; 32]);
        let authority = Trust::Authority(String::new());
        for (address, trust, refused) in [
            ("http://bmc1.example", &Trust::System, true),
            ("http://bmc1.example", &pinned, true),
            ("http://bmc1.example", &authority, true),
            ("http://bmc1.example", &Trust::Anything, false),
            ("http://127.0.0.1:8000", &Trust::System, false),
            ("http://[::1]:8000", &Trust::System, false),
            ("http://127.0.0.1:8000", &pinned, true),
            ("http://localhost:8000", &authority, true),
            ("https://bmc1.example", &pinned, false),
        ] {
            let endpoint = Url::parse(address).unwrap();
            assert_eq!(refuses_plain(&endpoint, trust).is_some(), refused, "{address} {trust:?}");
        }
    }

    #[test]
    fn a_plan_tells_of_a_password_that_goes_in_clear_through_a_network() {
        for (address, told) in [
            ("http://bmc1.example:8000", true),
            ("http://192.0.2.1", true),
            ("http://127.0.0.1:8000", false),
            ("http://[::1]:8000", false),
            ("https://bmc1.example", false),
        ] {
            assert_eq!(in_clear(&Url::parse(address).unwrap()).is_some(), told, "{address}");
        }
    }
}
