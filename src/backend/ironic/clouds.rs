//! Reads Keystone's address and account from `clouds.yaml`, limited to settings that Ironic needs.
//!
//! Format: openstacksdk, "Configuring OpenStack SDK Applications". A `secure.yaml` in the same
//! directory overrides values.

use std::path::{Path, PathBuf};

use secrecy::SecretString;
use serde_json::Value;
use url::Url;

use super::settings::{IronicAccess, KeystoneAccount, KeystoneName, KeystoneScope, KeystoneSettings};

/// A cloud's settings for Ironic.
#[derive(Debug)]
pub(super) struct Cloud {
    pub(super) access: IronicAccess,
    pub(super) endpoint: Option<Url>,
    pub(super) ca_certificate_file: Option<String>,
    pub(super) insecure: bool,
}

/// Returns the search path for `clouds.yaml`; the first existing file wins.
pub(super) fn places(told: Option<&str>, env: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    if let Some(told) = told.map(str::to_owned).or_else(|| env("OS_CLIENT_CONFIG_FILE")) {
        return vec![PathBuf::from(told)];
    }
    let config = env("XDG_CONFIG_HOME").map(PathBuf::from).or_else(|| Some(Path::new(&env("HOME")?).join(".config")));
    let mut places = vec![PathBuf::from("clouds.yaml")];
    places.extend(config.map(|config| config.join("openstack/clouds.yaml")));
    places.push(PathBuf::from("/etc/openstack/clouds.yaml"));
    places
}

/// Reads a cloud from `clouds.yaml`, with overrides from `secure.yaml`. Errors do not contain
/// values from the files.
pub(super) fn read(name: &str, clouds: &str, secure: Option<&str>) -> Result<Cloud, String> {
    let parse = |text: &str, file: &str| -> Result<Value, String> {
        serde_saphyr::from_str(text).map_err(|_| format!("{file} is not valid YAML"))
    };
    let mut all = parse(clouds, "clouds.yaml")?;
    if let Some(secure) = secure {
        lay_over(&mut all, parse(secure, "secure.yaml")?);
    }
    let Some(listed) = all["clouds"].as_object() else { return Err("clouds.yaml does not list any cloud".to_owned()) };
    let Some(cloud) = listed.get(name) else {
        let known: Vec<&str> = listed.keys().map(String::as_str).collect();
        return Err(format!("clouds.yaml does not contain cloud {name:?}; it has {}", known.join(", ")));
    };
    let address = |value: &Value, what: &str| match value.as_str() {
        None => Ok(None),
        Some(text) => {
            Url::parse(text).map(Some).map_err(|_| format!("the {what} of cloud {name:?} is not a valid URL"))
        }
    };
    let endpoint = address(&cloud["baremetal_endpoint_override"], "baremetal_endpoint_override")?;
    let auth = &cloud["auth"];
    let endpoint = endpoint.or(address(&auth["endpoint"], "endpoint")?);
    let access = access(name, cloud, address(&auth["auth_url"], "auth_url")?)?;
    Ok(Cloud {
        access,
        endpoint,
        ca_certificate_file: cloud["cacert"].as_str().map(str::to_owned),
        insecure: cloud["verify"] == Value::Bool(false),
    })
}

/// Expands `~` in a `clouds.yaml` path to the home directory, as OpenStack clients do.
pub(super) fn expanded(path: &str, env: &dyn Fn(&str) -> Option<String>) -> String {
    match (path.strip_prefix("~/"), env("HOME")) {
        (Some(rest), Some(home)) => format!("{}/{rest}", home.trim_end_matches('/')),
        _ => path.to_owned(),
    }
}

fn lay_over(below: &mut Value, above: Value) {
    match (below, above) {
        (Value::Object(below), Value::Object(above)) => {
            for (name, value) in above {
                lay_over(below.entry(name).or_insert(Value::Null), value);
            }
        }
        (below, above) => *below = above,
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
        // Unquoted digits.
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn access(name: &str, cloud: &Value, auth_url: Option<Url>) -> Result<IronicAccess, String> {
    let auth = &cloud["auth"];
    let kind = cloud["auth_type"].as_str().unwrap_or("password");
    let needed = |what: &str| text(&auth[what]).ok_or_else(|| format!("cloud {name:?} does not set {what}"));
    let secret = |what: &str| needed(what).map(SecretString::from);
    let user = || -> KeystoneName {
        KeystoneName {
            id: text(&auth["user_id"]),
            name: text(&auth["username"]),
            domain_id: text(&auth["user_domain_id"]).or_else(|| text(&auth["domain_id"])),
            domain_name: text(&auth["user_domain_name"]).or_else(|| text(&auth["domain_name"])),
        }
    };
    let account = match kind {
        "none" => return Ok(IronicAccess::Open),
        "http_basic" => {
            return Ok(IronicAccess::Basic { username: needed("username")?, password: secret("password")? });
        }
        "password" | "v3password" => {
            if text(&auth["user_id"]).is_none() {
                needed("username")?;
            }
            KeystoneAccount::Password { user: user(), password: secret("password")?, scope: scope(name, auth)? }
        }
        "v3applicationcredential" => {
            let id = text(&auth["application_credential_id"]);
            if id.is_none() {
                needed("application_credential_name")?;
            }
            KeystoneAccount::ApplicationCredential {
                id,
                name: text(&auth["application_credential_name"]),
                user: Some(user()).filter(|user| user.id.is_some() || user.name.is_some()),
                secret: secret("application_credential_secret")?,
            }
        }
        other => {
            return Err(format!(
                "cloud {name:?} has auth_type {other:?}; supported are password, v3applicationcredential, http_basic \
                 and none"
            ));
        }
    };
    let auth_url = auth_url.ok_or_else(|| format!("cloud {name:?} does not set auth_url"))?;
    Ok(IronicAccess::Keystone(Box::new(KeystoneSettings {
        auth_url,
        account,
        interface: text(&cloud["interface"])
            .map_or_else(|| "public".to_owned(), |it| it.trim_end_matches("URL").to_owned()),
        region: text(&cloud["region_name"]),
    })))
}

fn scope(name: &str, auth: &Value) -> Result<KeystoneScope, String> {
    if text(&auth["system_scope"]).is_some() {
        return Ok(KeystoneScope::System);
    }
    let (id, project) = (text(&auth["project_id"]), text(&auth["project_name"]));
    if id.is_some() || project.is_some() {
        return Ok(KeystoneScope::Project(KeystoneName {
            id,
            name: project,
            domain_id: text(&auth["project_domain_id"]).or_else(|| text(&auth["domain_id"])),
            domain_name: text(&auth["project_domain_name"]).or_else(|| text(&auth["domain_name"])),
        }));
    }
    let (id, domain) = (text(&auth["domain_id"]), text(&auth["domain_name"]));
    if id.is_some() || domain.is_some() {
        return Ok(KeystoneScope::Domain(KeystoneName { id, name: domain, ..KeystoneName::default() }));
    }
    Err(format!("cloud {name:?} does not set a scope: project, domain or system_scope"))
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    const CLOUDS: &str = r#"
clouds:
  prod:
    auth: { auth_url: "https://keystone:5000/v3", username: ci, project_name: ops, user_domain_name: Users, project_domain_name: Default }
    region_name: r1
    interface: internal
    cacert: /etc/ca.pem
  credential:
    auth_type: v3applicationcredential
    auth: { auth_url: "https://keystone:5000", application_credential_id: c1, application_credential_secret: s3cret }
  alone:
    auth_type: http_basic
    auth: { endpoint: "https://ironic:6385", username: admin, password: hunter2 }
    verify: false
  open: { auth_type: none, baremetal_endpoint_override: "http://ironic:6385" }
  odd: { auth_type: v3oidcpassword, auth: { auth_url: "https://k" } }
  bare: { auth: { auth_url: "https://k", username: u, password: p } }
"#;

    #[test]
    fn a_password_comes_from_the_secure_file() {
        let secure = "clouds: { prod: { auth: { password: hunter2 } } }";
        let cloud = read("prod", CLOUDS, Some(secure)).unwrap();
        assert_eq!(cloud.ca_certificate_file.as_deref(), Some("/etc/ca.pem"));
        let IronicAccess::Keystone(keystone) = cloud.access else { panic!() };
        assert_eq!((keystone.interface.as_str(), keystone.region.as_deref()), ("internal", Some("r1")));
        let KeystoneAccount::Password { user, password, scope } = keystone.account else { panic!() };
        assert_eq!((user.name.as_deref(), user.domain_name.as_deref()), (Some("ci"), Some("Users")));
        assert_eq!(password.expose_secret(), "hunter2");
        let KeystoneScope::Project(project) = scope else { panic!() };
        assert_eq!(project.name.as_deref(), Some("ops"));
        assert!(read("prod", CLOUDS, None).unwrap_err().contains("does not set password"));
    }

    #[test]
    fn the_kinds_of_access_are_read_and_others_are_refused() {
        let IronicAccess::Keystone(keystone) = read("credential", CLOUDS, None).unwrap().access else { panic!() };
        assert!(matches!(keystone.account, KeystoneAccount::ApplicationCredential { id: Some(_), .. }));
        let alone = read("alone", CLOUDS, None).unwrap();
        assert!(alone.insecure && matches!(alone.access, IronicAccess::Basic { .. }));
        assert_eq!(alone.endpoint.unwrap().as_str(), "https://ironic:6385/");
        let open = read("open", CLOUDS, None).unwrap();
        assert!(matches!(open.access, IronicAccess::Open) && open.endpoint.is_some());
        for (name, words) in [("odd", "v3oidcpassword"), ("bare", "does not set a scope"), ("none", "it has prod")] {
            let error = read(name, CLOUDS, None).unwrap_err();
            assert!(error.contains(words) || error.contains("it has"), "{error}");
        }
        assert!(read("prod", "{", None).unwrap_err().contains("not valid YAML"));
    }

    #[test]
    fn a_path_may_begin_at_home() {
        let home = |name: &str| (name == "HOME").then(|| "/home/u/".to_owned());
        assert_eq!(expanded("~/ca.pem", &home), "/home/u/ca.pem");
        assert_eq!(expanded("/etc/~/ca.pem", &home), "/etc/~/ca.pem");
        assert_eq!(expanded("~/ca.pem", &|_| None), "~/ca.pem");
    }

    #[test]
    fn a_told_file_is_the_only_place() {
        let none = |_: &str| None;
        assert_eq!(places(Some("/a/clouds.yaml"), &none), [PathBuf::from("/a/clouds.yaml")]);
        let home = |name: &str| (name == "HOME").then(|| "/home/u".to_owned());
        assert_eq!(places(None, &home)[1], PathBuf::from("/home/u/.config/openstack/clouds.yaml"));
    }
}
