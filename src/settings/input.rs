//! What was written, and what it means once the environment and files are read.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use secrecy::SecretString;

use crate::backend::redfish::{
    Authentication, InventoryServer, MediaSettings, RedfishSettings, ServerSettings, Trust, parse_fingerprint,
    parse_inventory,
};

use crate::{
    backend::metal_operator::MetalOperatorSettings,
    clock::Clock,
    kubernetes::{Cluster, ClusterSettings},
    maintenance::window::WindowSpec,
    store::is_loopback,
};

use super::{
    Environment, SettingsError,
    secrets::{InventoryLimits, read_file, read_password},
    written,
};

/// Everything that can be configured, as it was written.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Where records live.
    pub coordination_url: Option<String>,
    /// Whether that store is opened to be migrated, also with a schema that is too old for this version.
    pub migrating: bool,
    /// Whether an embedded store that is not there yet stays so: what would be written is forgotten with the process.
    pub makes_no_store: bool,
    /// Whose maintenances these are.
    pub owner: Option<String>,
    /// How this run is called.
    pub run: Option<String>,
    /// After how long a waiter gains one step of priority.
    pub aging: Option<Duration>,
    /// For how many days the store keeps what is over; 0: forever.
    pub history_days: Option<u32>,
    /// Windows by name.
    pub windows: BTreeMap<String, WindowSpec>,
    /// Whether owners are not asked.
    pub always_perform_maintenance: bool,
    /// How long an operating system may take to shut down.
    pub graceful_shutdown_timeout: Option<Duration>,
    /// How long a forced power change may take.
    pub power_timeout: Option<Duration>,
    /// An authority trusted for images and readiness URLs.
    pub image_ca_certificate_file: Option<String>,
    /// BMCs that speak Redfish.
    pub redfish: Option<RedfishInput>,
    /// Servers that metal-operator manages.
    pub metal_operator: Option<MetalOperatorInput>,
    /// The Kubernetes Nodes that run on the servers.
    pub node_leases: Option<NodeLeasesInput>,
}

/// Which Kubernetes Nodes run on which servers, as it was written.
#[derive(Clone, Debug, Default)]
pub struct NodeLeasesInput {
    /// The Node of a server, by the server's name.
    pub nodes: BTreeMap<String, String>,
    /// Whether a maintenance takes the Lease, and does not only wait until no other component holds it.
    pub take: bool,
    /// The namespace of the Leases.
    pub namespace: Option<String>,
}

/// The metal-operator backend, as it was written.
#[derive(Clone, Debug, Default)]
pub struct MetalOperatorInput {
    /// A kubeconfig file.
    pub kubeconfig: Option<String>,
    /// Which of its contexts.
    pub context: Option<String>,
    /// The API server's address, instead of a kubeconfig.
    pub host: Option<String>,
    /// With `host`: a file with a bearer token.
    pub token_file: Option<String>,
    /// With `host`: the authority that signed the API server's certificate.
    pub ca_certificate_file: Option<String>,
    /// A kubeconfig file of the cluster whose Nodes run on the servers.
    pub node_kubeconfig: Option<String>,
    /// Which of its contexts.
    pub node_context: Option<String>,
    /// The namespace of our own objects.
    pub namespace: Option<String>,
    /// Time limit of one request to the API server.
    pub request_timeout: Option<Duration>,
    /// The authority that signed the BMCs' certificates.
    pub bmc_ca_certificate_file: Option<String>,
    /// Trust any certificate of any BMC.
    pub bmc_insecure: Option<bool>,
}

/// What the metal-operator backend was told, with all files read.
pub(super) fn metal_operator_settings(
    input: MetalOperatorInput,
    env: &Environment,
    clock: &Arc<dyn Clock>,
) -> Result<MetalOperatorSettings, SettingsError> {
    let at = |name: &str| vec!["metal_operator".to_owned(), name.to_owned()];
    let trust =
        trust(input.bmc_insecure, None, input.bmc_ca_certificate_file.as_deref(), &at("bmc_ca_certificate_file"))?;
    let path = |text: Option<String>| text.map(PathBuf::from);
    let cluster = ClusterSettings {
        kubeconfig: path(input.kubeconfig.or_else(|| env.get("METAL_KUBECONFIG").map(str::to_owned))),
        context: input.context.or_else(|| env.get("METAL_KUBE_CONTEXT").map(str::to_owned)),
        host: input.host,
        token_file: path(input.token_file),
        ca_certificate_file: path(input.ca_certificate_file),
        request_timeout: input.request_timeout,
    };
    let nodes = (input.node_kubeconfig.is_some() || input.node_context.is_some()).then(|| ClusterSettings {
        kubeconfig: path(input.node_kubeconfig),
        context: input.node_context,
        request_timeout: input.request_timeout,
        ..ClusterSettings::default()
    });
    let namespace = input.namespace.or_else(|| env.get("METAL_KUBE_NAMESPACE").map(str::to_owned));
    Ok(MetalOperatorSettings {
        cluster: Cluster::new(cluster, Arc::clone(clock)),
        namespace: namespace.unwrap_or_else(|| "default".to_owned()),
        trust,
        nodes: nodes.map(|nodes| Cluster::new(nodes, Arc::clone(clock))),
    })
}

/// The Redfish backend, as it was written.
#[derive(Clone, Debug, Default)]
pub struct RedfishInput {
    /// A file with servers by name.
    pub inventory_file: Option<String>,
    /// How the environment variables begin that the file may name.
    pub inventory_password_env_prefix: Option<String>,
    /// The folder of the password files that the file may name.
    pub inventory_password_folder: Option<String>,
    /// Servers by name, besides that file.
    pub servers: BTreeMap<String, ServerInput>,
    /// The common account.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<SecretString>,
    /// A file that holds its password.
    pub password_file: Option<String>,
    /// The common authority.
    pub ca_certificate_file: Option<String>,
    /// Trust any certificate.
    pub insecure: Option<bool>,
    /// Time limit of one request that may change something.
    pub request_timeout: Option<Duration>,
    /// Time limit of one read.
    pub read_timeout: Option<Duration>,
    /// `session` or `basic`.
    pub authentication: Option<String>,
}

/// One server, as it was written.
#[derive(Clone, Debug, Default)]
pub struct ServerInput {
    /// The BMC's address.
    pub endpoint: Option<String>,
    /// Which system behind it.
    pub system_id: Option<String>,
    /// The boot override target of a filled virtual drive.
    pub boot_target: Option<String>,
    /// The virtual drive to fill.
    pub media_slot: Option<String>,
    /// The key to lock under.
    pub lock_key: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// The account.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<SecretString>,
    /// A file that holds its password.
    pub password_file: Option<String>,
    /// An environment variable that holds its password.
    pub password_env: Option<String>,
    /// The authority that signed the certificate.
    pub ca_certificate_file: Option<String>,
    /// The certificate's fingerprint.
    pub certificate_sha256: Option<String>,
    /// Trust any certificate.
    pub insecure: Option<bool>,
}

impl From<InventoryServer> for ServerInput {
    fn from(server: InventoryServer) -> Self {
        Self {
            endpoint: server.endpoint,
            system_id: server.system_id,
            boot_target: server.boot_target,
            media_slot: server.media_slot,
            lock_key: server.lock_key,
            labels: server.labels,
            username: server.username,
            password: None,
            password_file: server.password_file,
            password_env: server.password_env,
            ca_certificate_file: server.ca_certificate_file,
            certificate_sha256: server.certificate_sha256,
            insecure: server.insecure,
        }
    }
}

/// What the Redfish backend was told, with the environment and all files read.
pub(super) fn redfish_settings(input: RedfishInput, env: &Environment) -> Result<RedfishSettings, SettingsError> {
    let variable = |name: &str| env.get(name).map(str::to_owned);
    let at = |name: &str| vec!["redfish".to_owned(), name.to_owned()];
    let inventory_file = input.inventory_file.or_else(|| variable("METAL_REDFISH_INVENTORY_FILE"));
    let mut servers: BTreeMap<String, ServerInput> = BTreeMap::new();
    if let Some(path) = &inventory_file {
        let listed = parse_inventory(&read_file(path, at("inventory_file"))?).map_err(|problem| {
            SettingsError::Value { attribute: at("inventory_file"), problem: format!("{path}: {problem}") }
        })?;
        let limits = InventoryLimits::new(
            path,
            input.inventory_password_env_prefix.or_else(|| variable("METAL_REDFISH_INVENTORY_PASSWORD_ENV_PREFIX")),
            input.inventory_password_folder.or_else(|| variable("METAL_REDFISH_INVENTORY_PASSWORD_FOLDER")),
        );
        listed.iter().try_for_each(|(name, server)| limits.check(name, server))?;
        servers.extend(listed.into_iter().map(|(name, server)| (name, server.into())));
    }
    for (name, server) in input.servers {
        if servers.insert(name.clone(), server).is_some() {
            return Err(SettingsError::Value {
                attribute: vec!["redfish".to_owned(), "servers".to_owned(), name.clone()],
                problem: format!("server {name:?} is in the inventory file too; say it in one place"),
            });
        }
    }
    let authority = input.ca_certificate_file.or_else(|| variable("METAL_REDFISH_CA_CERTIFICATE_FILE"));
    let common = Common {
        username: input.username.or_else(|| variable("METAL_REDFISH_USERNAME")),
        password: match input.password {
            Some(password) => Some(password),
            None => match input.password_file {
                Some(path) => Some(read_password(&path, at("password_file"))?),
                None => match (variable("METAL_REDFISH_PASSWORD"), variable("METAL_REDFISH_PASSWORD_FILE")) {
                    (Some(password), _) => Some(SecretString::from(password)),
                    (None, Some(path)) => Some(read_password(&path, at("password_file"))?),
                    (None, None) => None,
                },
            },
        },
        trust: trust(input.insecure, None, authority.as_deref(), &at("ca_certificate_file"))?,
    };
    let authentication = match input.authentication.as_deref() {
        None | Some("session") => Authentication::Session,
        // `basic`: another word was refused as it was written.
        Some(_) => Authentication::Basic,
    };
    let (mut checked, mut inventory) = (BTreeMap::new(), BTreeMap::new());
    for (name, server) in servers {
        inventory.insert(name.clone(), entry(&server, authority.as_deref()));
        let server = server_settings(&name, server, &common, env)?;
        checked.insert(name, server);
    }
    let mut settings = RedfishSettings { servers: checked, inventory, authentication, ..RedfishSettings::default() };
    settings.request_timeout = input.request_timeout.unwrap_or(settings.request_timeout);
    // A limit that was set is meant for all requests, unless reads have their own.
    settings.read_timeout = input.read_timeout.or(input.request_timeout).unwrap_or(settings.read_timeout);
    Ok(settings)
}

/// A server as an inventory file holds it. `authority`: the common one, for a server without a way of its own to trust.
fn entry(server: &ServerInput, authority: Option<&str>) -> InventoryServer {
    let own = server.certificate_sha256.is_some() || server.ca_certificate_file.is_some() || server.insecure.is_some();
    let common = authority.filter(|_| !own).map(str::to_owned);
    InventoryServer {
        endpoint: server.endpoint.clone(),
        system_id: server.system_id.clone(),
        boot_target: server.boot_target.clone(),
        media_slot: server.media_slot.clone(),
        lock_key: server.lock_key.clone(),
        labels: server.labels.clone(),
        username: server.username.clone(),
        password_file: server.password_file.clone(),
        password_env: server.password_env.clone(),
        ca_certificate_file: server.ca_certificate_file.clone().or(common),
        certificate_sha256: server.certificate_sha256.clone(),
        insecure: server.insecure,
    }
}

/// What is said once for all servers.
struct Common {
    username: Option<String>,
    password: Option<SecretString>,
    trust: Trust,
}

fn server_settings(
    name: &str,
    server: ServerInput,
    common: &Common,
    env: &Environment,
) -> Result<ServerSettings, SettingsError> {
    let at = |field: &str| vec!["redfish".to_owned(), "servers".to_owned(), name.to_owned(), field.to_owned()];
    let wrong = |field: &str, problem: String| SettingsError::Value { attribute: at(field), problem };
    let endpoint = written::endpoint(name, server.endpoint.as_deref())?;
    let username = server.username.or_else(|| common.username.clone());
    let password = match (server.password, server.password_file, server.password_env) {
        (Some(password), _, _) => Some(password),
        (None, Some(path), _) => Some(read_password(&path, at("password_file"))?),
        (None, None, Some(variable)) => match env.get(&variable) {
            Some(password) => Some(SecretString::from(password)),
            None => return Err(wrong("password_env", format!("server {name:?}: {variable} is not set"))),
        },
        (None, None, None) => common.password.clone(),
    };
    let (Some(username), Some(password)) = (username, password) else {
        return Err(wrong(
            "username",
            format!(
                "server {name:?} has no credentials; give username and password in redfish, or set METAL_REDFISH_USERNAME and \
                 METAL_REDFISH_PASSWORD"
            ),
        ));
    };
    let own = trust(
        server.insecure,
        server.certificate_sha256.as_deref(),
        server.ca_certificate_file.as_deref(),
        &at("certificate_sha256"),
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

/// Why an address without TLS is not used as its configuration asks, if it is not. On this machine nobody listens.
pub(super) fn refuses_plain(endpoint: &url::Url, trust: &Trust) -> Option<&'static str> {
    if endpoint.scheme() != "http" {
        return None;
    }
    match trust {
        Trust::Fingerprint(_) | Trust::Authority(_) => {
            Some("certificate_sha256 and ca_certificate_file have no effect there; write https")
        }
        Trust::System if !is_here(endpoint) => {
            Some("the password would go in clear; write https, or insecure = true where that is known")
        }
        Trust::System | Trust::Anything => None,
    }
}

/// Whether an address leads to this machine.
pub(super) fn is_here(endpoint: &url::Url) -> bool {
    endpoint.host_str().is_some_and(is_loopback)
}

/// Refuses more than one way to trust a certificate.
pub(super) fn several_trusts(
    insecure: Option<bool>,
    fingerprint: Option<&str>,
    authority: Option<&str>,
    at: &[String],
) -> Result<(), SettingsError> {
    let several =
        [insecure == Some(true), fingerprint.is_some(), authority.is_some()].iter().filter(|given| **given).count();
    if several > 1 {
        return Err(SettingsError::Value {
            attribute: at.to_vec(),
            problem: "insecure, certificate_sha256 and ca_certificate_file exclude each other".to_owned(),
        });
    }
    Ok(())
}

fn trust(
    insecure: Option<bool>,
    fingerprint: Option<&str>,
    authority: Option<&str>,
    at: &[String],
) -> Result<Trust, SettingsError> {
    several_trusts(insecure, fingerprint, authority, at)?;
    if let Some(text) = fingerprint {
        return parse_fingerprint(text)
            .map(Trust::Fingerprint)
            .ok_or_else(|| SettingsError::Value { attribute: at.to_vec(), problem: written::FINGERPRINT.to_owned() });
    }
    if let Some(path) = authority {
        return Ok(Trust::Authority(read_file(path, at.to_vec())?));
    }
    Ok(if insecure == Some(true) { Trust::Anything } else { Trust::System })
}

/// A configured lock key in the form in which machines' own are kept, so that both meet.
fn plain_key(key: &str) -> String {
    let key = key.trim();
    uuid::Uuid::try_parse(key).map_or_else(|_| key.to_owned(), |uuid| uuid.hyphenated().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let endpoint = url::Url::parse(address).unwrap();
            assert_eq!(refuses_plain(&endpoint, trust).is_some(), refused, "{address} {trust:?}");
        }
    }
}
