//! Inventory files: servers by name, as YAML or JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A server in an inventory file. Passwords are only referenced, because such files are committed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct InventoryServer {
    /// The BMC's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The system's ID behind the BMC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_id: Option<String>,
    /// The boot override target for a filled virtual drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_target: Option<String>,
    /// The virtual drive to fill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_slot: Option<String>,
    /// The lock key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_key: Option<String>,
    /// The labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The user name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// The password file's path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<String>,
    /// The environment variable with the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_env: Option<String>,
    /// The PEM file with the certificate's authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_certificate_file: Option<String>,
    /// The certificate's fingerprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_sha256: Option<String>,
    /// True to trust any certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insecure: Option<bool>,
}

/// Parses an inventory, or `show -json` output for a plan or state with a `metal_servers`. Errors
/// name the position, never the content.
pub fn parse_inventory(text: &str) -> Result<BTreeMap<String, InventoryServer>, String> {
    if let Some(shown) = serde_json::from_str(text).ok().filter(|shown: &Value| shown["format_version"].is_string()) {
        return of_show(&shown);
    }
    if text.starts_with("PK\u{3}\u{4}") {
        return Err("a saved plan: use its show -json output instead".to_owned());
    }
    // YAML 1.2 contains JSON.
    let parsed: Result<BTreeMap<String, InventoryServer>, _> = serde_saphyr::from_str(text);
    parsed.map_err(|error| unreadable(&error))
}

/// Describes a parse error by position and kind only, because a password can appear anywhere in
/// such a file, even as a field name.
fn unreadable(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    let place = error.location().map(|at| format!("line {}, column {}: ", at.line(), at.column())).unwrap_or_default();
    let problem = match error.without_snippet() {
        Error::SerdeUnknownField { field, .. } if field == "password" => {
            "a server has a field \"password\": use password_file or password_env instead, so that the file does not \
             contain a secret"
                .to_owned()
        }
        Error::SerdeUnknownField { expected, .. } => {
            format!("an unknown field; a server has {}", expected.join(", "))
        }
        Error::DuplicateMappingKey { .. } => "a duplicate key".to_owned(),
        Error::SerdeInvalidType { expected, .. } => format!("the wrong type, expected {expected}"),
        Error::Eof { .. } => "the text ends too early".to_owned(),
        Error::MultipleDocuments { .. } => "more than one YAML document".to_owned(),
        _ => "not valid as YAML, or of the wrong type".to_owned(),
    };
    format!("{place}{problem}")
}

/// Extracts the inventories of every `metal_servers` from `show -json` output.
fn of_show(shown: &Value) -> Result<BTreeMap<String, InventoryServer>, String> {
    let mut texts = Vec::new();
    for values in [&shown["prior_state"]["values"], &shown["planned_values"], &shown["values"]] {
        collect(&values["root_module"], &mut texts);
    }
    if texts.is_empty() {
        return Err("it is show -json output without a metal_servers data source".to_owned());
    }
    let mut servers = BTreeMap::new();
    for text in texts {
        servers.extend(parse_inventory(text)?);
    }
    Ok(servers)
}

fn collect<'a>(module: &'a Value, texts: &mut Vec<&'a str>) {
    let resources = module["resources"].as_array().into_iter().flatten();
    let ours = resources.filter(|resource| resource["mode"] == "data" && resource["type"] == "metal_servers");
    texts.extend(ours.filter_map(|resource| resource["values"]["inventory"].as_str()));
    for child in module["child_modules"].as_array().into_iter().flatten() {
        collect(child, texts);
    }
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
    fn the_inventory_of_a_plan_is_read_wherever_it_is() {
        let inner = r#"{"a": {"endpoint": "https://10.0.0.7", "labels": {"rack": "1"}}}"#;
        let resource = serde_json::json!({ "mode": "data", "type": "metal_servers", "values": { "inventory": inner } });
        let module = serde_json::json!({ "child_modules": [{ "resources": [resource] }] });
        let plan =
            serde_json::json!({ "format_version": "1.2", "prior_state": { "values": { "root_module": module } } });
        assert_eq!(parse_inventory(&plan.to_string()).unwrap()["a"].labels["rack"], "1");
        let problem = parse_inventory(r#"{"format_version": "1.2"}"#).unwrap_err();
        assert!(problem.contains("metal_servers"), "{problem}");
        assert!(parse_inventory("PK\u{3}\u{4}...").unwrap_err().contains("show -json"));
    }

    #[test]
    fn a_password_in_the_file_is_refused_and_not_repeated() {
        let problem = parse_inventory("a: {endpoint: https://x, password: hunter2}").unwrap_err();
        assert!(problem.contains("password_file"), "{problem}");
        assert!(!problem.contains("hunter2"), "{problem}");
        assert!(parse_inventory("a: [1, 2]").is_err());
        let problem = parse_inventory("a:\n  endpiont: x").unwrap_err();
        assert!(problem.starts_with("line 2, column 3: ") && problem.contains("endpoint"), "{problem}");
        for misplaced in [
            "a: {endpoint: https://x, hunter2: }",
            "a: {labels: hunter2}",
            "a: {x: !hunter2 y}",
            "hunter2",
            "a: *hunter2",
        ] {
            let problem = parse_inventory(misplaced).unwrap_err();
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }
}
