//! Inventory files: servers by name, as YAML or JSON.

use std::collections::BTreeMap;

use serde::Deserialize;

/// One server as a file says it. Passwords are named, never held: a file that is committed must not hold one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InventoryServer {
    /// The BMC's address.
    pub endpoint: Option<String>,
    /// Which system behind it.
    pub system_id: Option<String>,
    /// The key to lock under.
    pub lock_key: Option<String>,
    /// Labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The account.
    pub username: Option<String>,
    /// A file that holds its password.
    pub password_file: Option<String>,
    /// An environment variable that holds its password.
    pub password_env: Option<String>,
    /// The authority that signed the certificate, as a PEM file.
    pub ca_certificate_file: Option<String>,
    /// The certificate's fingerprint.
    pub certificate_sha256: Option<String>,
    /// Trust any certificate.
    pub insecure: Option<bool>,
}

/// Reads an inventory. The error names the place in the text, never its content.
pub fn parse_inventory(text: &str) -> Result<BTreeMap<String, InventoryServer>, String> {
    // YAML 1.2 contains JSON.
    let parsed: Result<BTreeMap<String, InventoryServer>, _> = serde_saphyr::from_str(text);
    parsed.map_err(|error| {
        let text = error.to_string();
        if text.contains("`password`") {
            "a server has a field \"password\": name a password_file or a password_env instead, so that the file holds no \
             secret"
                .to_owned()
        } else {
            text.lines().next().unwrap_or("not readable").to_owned()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_and_json_are_read() {
        let yaml = "rack1-node7:\n  endpoint: https://10.0.0.7\n  labels: {rack: '1'}\nrack1-node9: {endpoint: https://10.0.0.9, system_id: 'b'}\n";
        let servers = parse_inventory(yaml).unwrap();
        assert_eq!(servers["rack1-node7"].labels["rack"], "1");
        assert_eq!(servers["rack1-node9"].system_id.as_deref(), Some("b"));
        let json = r#"{"a": {"endpoint": "https://10.0.0.7", "insecure": true}}"#;
        assert_eq!(parse_inventory(json).unwrap()["a"].insecure, Some(true));
    }

    #[test]
    fn a_password_in_the_file_is_refused_and_not_repeated() {
        let problem = parse_inventory("a: {endpoint: https://x, password: hunter2}").unwrap_err();
        assert!(problem.contains("password_file"), "{problem}");
        assert!(!problem.contains("hunter2"), "{problem}");
        assert!(parse_inventory("a: [1, 2]").is_err());
        assert!(parse_inventory("a: {endpiont: x}").is_err());
    }
}
