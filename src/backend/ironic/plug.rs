//! The `ironic` block.

use std::{path::Path, sync::Arc, time::Duration};

use url::Url;

use crate::{
    backend::plug::{
        AttributeKind, BackendPlugin, Block, Connected, Problem, Setting, Variables, Warning, check_request_timeout,
        read_file,
    },
    clock::Clock,
};

use super::{
    IronicAccess, IronicBackend, IronicSettings, IronicTrust,
    clouds::{self, Cloud},
};

/// The `ironic` block's plugin.
#[derive(Debug)]
pub struct Plugin;

const ENDPOINT: Setting = Setting::new(
    "endpoint",
    AttributeKind::Name,
    "Ironic's address, for example `https://ironic.example:6385`. With `cloud` it replaces the catalog's address.",
)
.or_env("METAL_IRONIC_ENDPOINT", "");

const USERNAME: Setting = Setting::new(
    "username",
    AttributeKind::Name,
    "The account for HTTP basic (`auth_strategy = http_basic`). Without it and without a cloud, requests do not contain credentials (`noauth`).",
)
.or_env("METAL_IRONIC_USERNAME", "");

const PASSWORD: Setting = Setting::new("password", AttributeKind::Secret, "The account's password. Never stored.")
    .or_env("METAL_IRONIC_PASSWORD", "");

/// The environment variable with which all OpenStack programs select a cloud.
const OS_CLOUD: &str = "OS_CLOUD";

const SETTINGS: &[Setting] = &[
    ENDPOINT,
    Setting::new(
        "cloud",
        AttributeKind::Name,
        "A cloud in `clouds.yaml`: its Keystone, account (password or application credential), region and CA. Default without `endpoint`: `OS_CLOUD`.",
    ),
    Setting::new(
        "clouds_file",
        AttributeKind::Text,
        "The `clouds.yaml` file. A `secure.yaml` in the same folder overrides its values. Default: `OS_CLIENT_CONFIG_FILE`, `clouds.yaml`, `~/.config/openstack/clouds.yaml`, `/etc/openstack/clouds.yaml`.",
    ),
    USERNAME,
    PASSWORD,
    Setting::new(
        "ca_certificate_file",
        AttributeKind::Text,
        "The authority that signed Ironic's and Keystone's certificates, as PEM. Default: the cloud's authority, else this machine's authorities.",
    ),
    Setting::new("insecure", AttributeKind::Flag, "Trust any certificate of Ironic and Keystone. Default: `false`."),
    Setting::new(
        "plain_http",
        AttributeKind::Flag,
        "Send credentials and tokens to `http` addresses of other machines, including those of the catalog. Default: `false`.",
    ),
    Setting::new(
        "lock_keys",
        AttributeKind::Texts,
        "Lock keys (system UUIDs) by node name or UUID. Needed for a node whose inspection did not record its system UUID. The node's UUID in Ironic would not match the same machine's lock key under Redfish.",
    ),
    Setting::new(
        "soft_power_timeout",
        AttributeKind::Duration,
        "How long Ironic waits for an operating system to shut down. The node is locked during this time, so keep it below `graceful_shutdown_timeout`. Default: `\"2m\"`.",
    ),
    Setting::new(
        "image_download_source",
        AttributeKind::Name,
        "Where a BMC gets a virtual drive's image: `http`, from the image's address, or `local`, from Ironic's conductor. Ironic 39.0.0 ignores it. Default: `http`.",
    ),
    Setting::new(
        "protect",
        AttributeKind::Flag,
        "Protect active and rescued nodes during a maintenance (API 1.48): their owner then cannot undeploy, rebuild or delete them, which Ironic's maintenance flag alone allows. A node that is already protected is not changed. The role needs `baremetal:node:update`. Default: `false`.",
    ),
    Setting::new(
        "request_timeout",
        AttributeKind::Duration,
        "Time limit for a request that can change something. Default and maximum: `\"15s\"`.",
    ),
];

/// Parses and validates the endpoint.
fn address(text: &str) -> Result<Url, Problem> {
    let wrong = |what: &str| Problem::of(&[ENDPOINT.name], format!("{what}. Write it as https://host:6385"));
    let url = Url::parse(text).map_err(|_| wrong("it is not a valid URL"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(wrong("it is not a valid address of a web service"));
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return Err(wrong("it must not contain an account or a query"));
    }
    Ok(url)
}

fn cloud(name: &str, block: &Block, env: Variables<'_>) -> Result<Cloud, Problem> {
    let at = if block.has("clouds_file") { "clouds_file" } else { "cloud" };
    let places = clouds::places(block.text("clouds_file").as_deref(), &|name| env(name));
    let found = match places.as_slice() {
        [only] => Some(only),
        several => several.iter().find(|place| place.exists()),
    };
    let Some(path) = found else {
        return Err(Problem::of(&["cloud"], "no clouds.yaml was found; set clouds_file"));
    };
    let text = read_file(&path.to_string_lossy(), &[at], env)?;
    let beside = path.parent().unwrap_or_else(|| Path::new("")).join("secure.yaml");
    let secure = if beside.exists() { Some(read_file(&beside.to_string_lossy(), &[at], env)?) } else { None };
    let cloud = clouds::read(name, &text, secure.as_deref()).map_err(|problem| Problem::of(&["cloud"], problem))?;
    let ca_certificate_file = cloud.ca_certificate_file.map(|path| clouds::expanded(&path, &|name| env(name)));
    Ok(Cloud { ca_certificate_file, ..cloud })
}

/// Returns credentials and the other connection settings.
fn access(block: &Block, env: Variables<'_>) -> Result<Cloud, Problem> {
    let told = ENDPOINT.value(block, env);
    let endpoint = told.as_deref().map(address).transpose()?;
    let named = block.text("cloud").or_else(|| env(OS_CLOUD).filter(|_| endpoint.is_none()));
    if let Some(name) = named {
        let cloud = cloud(&name, block, env)?;
        // An endpoint from the environment applies only if the block does not name a cloud.
        let endpoint = endpoint.filter(|_| block.has(ENDPOINT.name)).or_else(|| cloud.endpoint.clone());
        return Ok(Cloud { endpoint, ..cloud });
    }
    let Some(endpoint) = endpoint else {
        let problem = format!("set endpoint or cloud (or {} or {OS_CLOUD})", ENDPOINT.variable());
        return Err(Problem::of(&[], problem));
    };
    let access = match USERNAME.value(block, env) {
        None => IronicAccess::Open,
        Some(username) => {
            let password = PASSWORD.secret(block, env).ok_or_else(|| {
                let problem = format!("a username requires a password (or {})", PASSWORD.variable());
                Problem::of(&[PASSWORD.name], problem)
            })?;
            IronicAccess::Basic { username, password }
        }
    };
    Ok(Cloud { access, endpoint: Some(endpoint), ca_certificate_file: None, insecure: false })
}

impl BackendPlugin for Plugin {
    fn name(&self) -> &'static str {
        "ironic"
    }

    fn description(&self) -> &'static str {
        "Nodes that OpenStack Ironic manages, standalone or in a cloud; see the guide about Ironic. A server's name is its node's name or UUID. Exactly one backend per provider configuration."
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn check(&self, block: &Block) -> Vec<Problem> {
        let mut problems: Vec<Problem> = check_request_timeout(block).into_iter().collect();
        problems.extend(block.text(ENDPOINT.name).and_then(|text| address(&text).err()));
        // An unknown value can still turn out to be null.
        let account = [USERNAME.name, PASSWORD.name].into_iter().filter(|name| block.is_known(name));
        for name in account.filter(|_| block.is_known("cloud")) {
            problems
                .push(Problem::of(&[name], "it is for HTTP basic only; a cloud in clouds.yaml has its own account"));
        }
        if block.is_known("clouds_file") && !block.has("cloud") && block.is_known(ENDPOINT.name) {
            problems.push(Problem::of(&["clouds_file"], "it is used only with a cloud; set cloud too"));
        }
        if block.flag("insecure") == Some(true) && block.is_known("ca_certificate_file") {
            problems.push(Problem::of(&["insecure"], "set either insecure or ca_certificate_file"));
        }
        if block.text("image_download_source").is_some_and(|it| it != "http" && it != "local") {
            problems.push(Problem::of(&["image_download_source"], "it must be http or local"));
        }
        if block.duration("soft_power_timeout").is_some_and(|limit| limit < Duration::from_secs(1)) {
            problems.push(Problem::of(&["soft_power_timeout"], "it must be at least 1s"));
        }
        for (node, key) in block.texts("lock_keys") {
            if key.trim().is_empty() {
                problems.push(Problem::of(&["lock_keys", &node], "a lock key must not be empty"));
            }
        }
        problems
    }

    fn connect(&self, block: &Block, env: Variables<'_>, clock: &Arc<dyn Clock>) -> Result<Connected, Problem> {
        let Cloud { access, endpoint, ca_certificate_file, insecure } = access(block, env)?;
        let mut warnings = Vec::new();
        let clear = endpoint.as_ref().is_some_and(|url| url.scheme() == "http");
        let plain_http = block.flag("plain_http") == Some(true);
        if plain_http && clear && !matches!(access, IronicAccess::Open) {
            warnings.push(Warning {
                summary: "Ironic is reached without TLS",
                detail: "Ironic's credentials are sent unencrypted: use an https endpoint.".to_owned(),
            });
        }
        if let IronicAccess::Keystone(keystone) = &access
            && plain_http
            && keystone.auth_url.scheme() == "http"
        {
            warnings.push(Warning {
                summary: "Keystone is reached without TLS",
                detail: "The cloud's password or secret is sent unencrypted: use an https auth_url.".to_owned(),
            });
        }
        let authority = block.text("ca_certificate_file").or(ca_certificate_file);
        let trust = if block.flag("insecure").unwrap_or(insecure && !block.has("ca_certificate_file")) {
            IronicTrust::Anything
        } else {
            match authority {
                Some(path) => IronicTrust::Authority(read_file(&path, &["ca_certificate_file"], env)?),
                None => IronicTrust::System,
            }
        };
        let mut settings = IronicSettings::new(endpoint, access);
        settings.trust = trust;
        settings.plain_http = block.flag("plain_http").unwrap_or(settings.plain_http);
        settings.lock_keys = block.texts("lock_keys");
        settings.soft_power_timeout = block.duration("soft_power_timeout").unwrap_or(settings.soft_power_timeout);
        settings.image_download_source = block.text("image_download_source").unwrap_or(settings.image_download_source);
        settings.protect = block.flag("protect").unwrap_or(settings.protect);
        settings.request_timeout = block.duration("request_timeout").unwrap_or(settings.request_timeout);
        let backend = IronicBackend::new(settings, clock).map_err(|problem| Problem::of(&[], problem))?;
        Ok(Connected { warnings, ..Connected::quiet(backend) })
    }

    fn by_hand(&self, server: &str) -> Option<String> {
        Some(format!(
            "openstack baremetal node show {server} -f value -c maintenance_reason shows it; openstack baremetal node maintenance \
             unset {server} clears the flag"
        ))
    }

    fn reach(&self) -> String {
        let [endpoint, username, password] = [ENDPOINT, USERNAME, PASSWORD].map(|setting| setting.variable());
        format!("--backend ironic, and {endpoint} (with {username} and {password}) or {OS_CLOUD}")
    }
}

#[cfg(test)]
mod tests {
    use crate::{backend::plug::Given, clock::SystemClock};

    use super::*;

    fn block(values: &[(&str, &str)]) -> Block {
        let mut block = Block::default();
        for (name, value) in values {
            let value = (*value).to_owned();
            block.set(name, if *name == "password" { Given::Secret(value.into()) } else { Given::Text(value) });
        }
        block
    }

    fn connect(block: &Block, env: &[(&str, &str)]) -> Result<Connected, Problem> {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let env: Vec<(String, String)> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let variable = move |name: &str| env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        Plugin.connect(block, &variable, &(Arc::new(SystemClock::default()) as _))
    }

    #[test]
    fn what_is_wrong_as_written_is_told_by_attribute() {
        for (values, attribute) in [
            (&[("endpoint", "ironic:6385")][..], "endpoint"),
            (&[("endpoint", "https://u:p@ironic")], "endpoint"),
            (&[("cloud", "prod"), ("username", "u")], "username"),
            (&[("endpoint", "https://i"), ("clouds_file", "c")], "clouds_file"),
            (&[("endpoint", "https://i"), ("image_download_source", "swift")], "image_download_source"),
        ] {
            let problems = Plugin.check(&block(values));
            assert_eq!(problems[0].at, [attribute], "{problems:?}");
        }
        assert!(Plugin.check(&block(&[("endpoint", "https://ironic:6385/")])).is_empty());
    }

    #[test]
    fn an_address_or_a_cloud_is_needed() {
        assert!(connect(&block(&[]), &[]).unwrap_err().problem.contains("OS_CLOUD"));
        assert!(connect(&block(&[]), &[("METAL_IRONIC_ENDPOINT", "http://ironic:6385")]).unwrap().warnings.is_empty());
        let account = block(&[("endpoint", "http://ironic:6385"), ("username", "u")]);
        assert_eq!(connect(&account, &[]).unwrap_err().at, ["password"]);
        let mut account = account;
        account.set("plain_http", Given::Flag(true));
        assert_eq!(connect(&account, &[("METAL_IRONIC_PASSWORD", "p")]).unwrap().warnings.len(), 1, "in clear");
    }

    #[test]
    fn a_cloud_whose_keystone_has_no_tls_is_warned_about_and_its_authority_is_read_from_home() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clouds.yaml");
        let home = folder.path().to_string_lossy().into_owned();
        let file = path.to_string_lossy().into_owned();
        let write = |scheme: &str, more: &str| {
            let auth = format!("auth_url: \"{scheme}://keystone:5000\", username: ci, password: p, project_name: ops");
            std::fs::write(&path, format!("clouds: {{ lab: {{ auth: {{ {auth} }}{more} }} }}")).unwrap();
        };
        let mut block = block(&[("cloud", "lab"), ("clouds_file", &file)]);
        block.set("plain_http", Given::Flag(true));
        write("http", "");
        let warned = connect(&block, &[]).unwrap().warnings;
        assert!(warned.iter().any(|warning| warning.summary.contains("Keystone")) && warned.len() == 1);
        write("https", "");
        assert!(connect(&block, &[]).unwrap().warnings.is_empty());
        write("https", ", cacert: \"~/absent.pem\"");
        let missing = connect(&block, &[("HOME", &home)]).unwrap_err();
        assert!(missing.problem.contains(&format!("{home}/absent.pem")), "{missing}");
    }

    #[test]
    fn a_cloud_is_read_from_the_file_that_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clouds.yaml");
        let clouds = "clouds: { lab: { auth_type: none, baremetal_endpoint_override: \"https://lab:6385\" } }";
        std::fs::write(&path, clouds).unwrap();
        let path = path.to_string_lossy().into_owned();
        connect(&block(&[("cloud", "lab"), ("clouds_file", &path)]), &[]).unwrap();
        connect(&block(&[("clouds_file", &path)]), &[("OS_CLOUD", "lab")]).unwrap();
        let other = connect(&block(&[("cloud", "prod"), ("clouds_file", &path)]), &[]).unwrap_err();
        assert!(other.problem.contains("lab"), "{other}");
    }
}
