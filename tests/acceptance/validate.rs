//! `validate` finds all errors that do not depend on the network, each with the exact attribute.

use serde_json::Value;

use crate::support::{host::Host, simulator::maintenance, workspace::Workspace};

/// Returns invalid configurations, each with the attribute in the error.
fn table() -> Vec<(String, &'static str)> {
    let held = |more: &str| maintenance("node1", "m", more);
    let boot = |more: &str| held(&format!("server_power = \"On\"\n  boot_configuration = {{ {more} }}"));
    // Hosts skip unused providers.
    let provider = |more: &str| format!("provider \"metal\" {{\n  {more}\n}}\n{}", maintenance("node1", "m", ""));
    let redfish = |more: &str| provider(&format!("redfish = {{ {more} }}"));
    let server = |more: &str| redfish(&format!("servers = {{ node1 = {{ {more} }} }}"));
    let typed = |kind: &str, more: &str| format!("resource \"{kind}\" \"x\" {{\n  {more}\n}}\n");
    let claim = |more: &str| {
        typed("metal_server_claim", &format!("server = \"node1\"\n namespace = \"a\"\n name = \"b\"\n {more}"))
    };
    let operation = |more: &str| {
        typed(
            "metal_server_operation",
            &format!("server = \"node1\"\n namespace = \"a\"\n name = \"b\"\n operation = \"ForceRestart\"\n {more}"),
        )
    };
    let boots = |more: &str| {
        typed("metal_server_boot_configuration", &format!("server = \"node1\"\n method = \"pxe\"\n {more}"))
    };
    let https = "endpoint = \"https://10.0.0.1\"";
    vec![
        (held("priority = 1.5"), "priority"),
        (held("priority = 1e30"), "priority"),
        (held("priority = 101"), "priority"),
        (held("expires_after = \"soon\""), "expires_after"),
        (held("timeouts = { create = \"-5m\" }"), "timeouts.create"),
        (held("timeouts = { delete = \"1\" }"), "timeouts.delete"),
        (held("reason = \"\""), "reason"),
        (held("server_power = \"Sideways\""), "server_power"),
        (held("wait_for = \"Completed\""), "wait_for"),
        (held("complete_when = { power_state = \"Up\" }"), "complete_when.power_state"),
        (held("complete_when = { url = \"ftp://x\" }"), "complete_when.url"),
        (held("complete_when = { url = \"http://x\", status = 1.5 }"), "complete_when.status"),
        (held("allow_under = [\"a\", \"\"]"), "allow_under[1]"),
        (held(&format!("triggers = {{ a = \"{}\" }}", "x".repeat(1025))), "triggers[\"a\"]"),
        (held("window = { schedule = \"nonsense\", duration = \"1h\" }"), "window.schedule"),
        (held("window = { schedule = \"0 22 * * SAT\", duration = \"x\" }"), "window.duration"),
        (held("window = { schedule = \"0 22 * * SAT\", duration = \"1h\", time_zone = \"Mars\" }"), "window.time_zone"),
        (
            held("window = { schedule = \"0 22 * * SAT\", duration = \"1h\", exclude = [\"2026-12-24\", \"x\"] }"),
            "window.exclude[1]",
        ),
        (boot("method = \"floppy\""), "boot_configuration.method"),
        (boot("method = \"http\""), "boot_configuration.image"),
        (boot("method = \"http\", image = \"nonsense\""), "boot_configuration.image"),
        (boot("method = \"http\", image = \"http://x/y\", image_sha256 = \"abc\""), "boot_configuration.image_sha256"),
        (boot("method = \"pxe\", boot_mode = \"BIOS\""), "boot_configuration.boot_mode"),
        (boot("method = \"pxe\", ready_when = { url = \"x\" }"), "boot_configuration.ready_when.url"),
        (held("hand_over = \"sometimes\""), "hand_over"),
        (boots("policy = \"Nobody\""), "policy"),
        (boots("policy = \"Enforced\"\n require_claim = true"), "require_claim"),
        (boots("escalate_after = \"soon\""), "escalate_after"),
        (boots("priority = 101"), "priority"),
        (boots("window = { schedule = \"nonsense\", duration = \"1h\" }"), "window.schedule"),
        (boots("maintenance_id = \"a/b\"\n window = { schedule = \"0 22 * * SAT\", duration = \"1h\" }"), "window"),
        (boots("maintenance_id = \"nonsense\""), "maintenance_id"),
        (operation("maintenance_id = \"nonsense\""), "maintenance_id"),
        (operation("priority = 0.5"), "priority"),
        (operation("").replace("ForceRestart", "Explode"), "operation"),
        (claim("server_power = \"Up\""), "server_power"),
        (provider("owner = \"\""), "owner"),
        (provider("aging = \"x\""), "aging"),
        (provider("history_days = 1.5"), "history_days"),
        (provider("history_days = -1"), "history_days"),
        (provider("coordination_url = \"ftp://x\""), "coordination_url"),
        (provider("coordination_url = \"sqlite://x\""), "coordination_url"),
        (provider("windows = { night = { schedule = \"x\", duration = \"1h\" } }"), "windows[\"night\"].schedule"),
        (redfish("request_timeout = \"16s\""), "redfish.request_timeout"),
        (redfish("request_timeout = \"x\""), "redfish.request_timeout"),
        (redfish("read_timeout = \"3m\""), "redfish.read_timeout"),
        (redfish("authentication = \"none\""), "redfish.authentication"),
        (redfish("insecure = true, ca_certificate_file = \"ca.pem\""), "redfish.ca_certificate_file"),
        (server("endpoint = \"nonsense\""), "redfish.servers[\"node1\"].endpoint"),
        (server("endpoint = \"https://u:p@10.0.0.1\""), "redfish.servers[\"node1\"].endpoint"),
        (server("endpoint = \"http://10.0.0.1\""), "redfish.servers[\"node1\"].endpoint"),
        (server("system_id = \"1\""), "redfish.servers[\"node1\"].endpoint"),
        (server(&format!("{https}, certificate_sha256 = \"zz\"")), "redfish.servers[\"node1\"].certificate_sha256"),
        (
            server(&format!("{https}, insecure = true, ca_certificate_file = \"x\"")),
            "redfish.servers[\"node1\"].certificate_sha256",
        ),
        (provider("metal_operator = { request_timeout = \"1m\" }"), "metal_operator.request_timeout"),
        (provider("metal_operator = { host = \"https://x\", context = \"y\" }"), "metal_operator.host"),
        (provider("metal_operator = { token_file = \"t\" }"), "metal_operator.token_file"),
        (provider("metal_operator = {}\n  node_leases = { nodes = { node1 = \"\" } }"), "node_leases.nodes[\"node1\"]"),
        ("data \"metal_server\" \"x\" {\n  name = \"\"\n}\n".to_owned(), "name"),
        (
            "data \"metal_maintenance_window\" \"x\" {\n  window = { schedule = \"x\", duration = \"1h\" }\n}\n"
                .to_owned(),
            "window.schedule",
        ),
    ]
}

/// Returns configurations with an unknown variable, which would be valid if it were null.
fn not_known_yet() -> Vec<String> {
    let held = |more: &str| maintenance("node1", "m", more);
    let typed = |kind: &str, more: &str| format!("resource \"{kind}\" \"x\" {{\n  server = \"node1\"\n  {more}\n}}\n");
    let named = "namespace = \"a\"\n  name = \"b\"\n  policy = \"Enforced\"";
    let boots = |more: &str| typed("metal_server_boot_configuration", more);
    let provider = |more: &str| format!("provider \"metal\" {{\n  {more}\n}}\n{}", held(""));
    let window = "window = { schedule = \"0 22 * * SAT\", duration = \"1h\" }";
    vec![
        held("complete_when = { power_state = var.x, url = \"http://x/\" }"),
        held("window = { name = \"night\", schedule = var.x }"),
        held("boot_configuration = { method = \"pxe\", image = var.x, image_sha256 = var.x, ignition_wo = var.x }"),
        boots(&format!("method = \"pxe\"\n  maintenance_id = var.x\n  {window}")),
        boots("method = \"pxe\"\n  maintenance_id = var.x\n  require_claim = true"),
        boots("method = \"pxe\"\n  policy = \"Enforced\"\n  require_claim = false\n  escalate_after = var.x"),
        typed(
            "metal_server_operation",
            &format!("{named}\n  operation = \"On\"\n  service = var.x == null ? null : {{ steps = [] }}"),
        ),
        typed(
            "metal_server_claim",
            "namespace = \"a\"\n  name = \"b\"\n  ignition = { secret_name = \"s\" }\n  ignition_wo = var.x",
        ),
        provider("redfish = var.x == null ? null : { insecure = true }\n  ironic = { endpoint = \"https://i\" }"),
        provider(
            "ironic = { cloud = var.x, endpoint = \"https://i\", username = \"u\", insecure = true, ca_certificate_file = var.x }",
        ),
        provider("metal_operator = { host = var.x, context = \"c\", token_file = var.x }"),
    ]
}

/// Returns invalid configurations for features of newer hosts.
fn newer() -> Vec<(String, &'static str)> {
    let names = "server = \"node1\"\n namespace = \"a\"\n name = \"b\"\n";
    let action = |more: &str| {
        format!(
            "action \"metal_server_operation\" \"x\" {{\n  config {{\n  {names} operation = \"ForceRestart\"\n {more}\n  }}\n}}\n"
        )
    };
    let lock = |more: &str| {
        let policy = if more.contains("policy") { "" } else { "policy = \"Enforced\"\n" };
        let applying = if more.contains("applying") { "" } else { "applying = terraform.applying\n" };
        format!("ephemeral \"metal_server_lock\" \"x\" {{\n  {names} {policy} {applying} {more}\n}}\n")
    };
    vec![
        (action("policy = \"Nobody\""), "policy"),
        (action(""), "config"),
        (action("policy = \"Enforced\"\n priority = 0.5"), "priority"),
        (action("policy = \"Enforced\"\n timeouts = { invoke = \"soon\" }"), "timeouts.invoke"),
        (action("maintenance_id = \"nonsense\""), "maintenance_id"),
        (action("policy = \"Enforced\"").replace("ForceRestart", "Explode"), "operation"),
        (action("policy = \"Enforced\"\n window = { schedule = \"x\", duration = \"1h\" }"), "window.schedule"),
        (lock("policy = \"Nobody\""), "policy"),
        (lock("applying = true"), "applying"),
        (lock("applying = null"), "applying"),
        (lock("server_power = \"Up\""), "server_power"),
        (lock("expires_after = \"soon\""), "expires_after"),
        (lock("timeouts = { close = \"x\" }"), "timeouts.close"),
        (lock("reason = \"\""), "reason"),
    ]
}

/// Returns a diagnostic's attribute, from its text or from the line that the host shows.
fn named(diagnostic: &Value) -> String {
    let detail = diagnostic["detail"].as_str().unwrap_or_default();
    if let Some((path, _)) = detail.strip_prefix("Attribute ").and_then(|rest| rest.split_once(": ")) {
        return path.to_owned();
    }
    let code = diagnostic["snippet"]["code"].as_str().unwrap_or_default().trim_start();
    code.split(|c: char| c.is_whitespace() || c == '=').next().unwrap_or_default().to_owned()
}

for_each_host! {
    async fn validate_names_the_attribute_of_everything_that_is_wrong(host) {
        let mut workspace = Workspace::new(host);
        // `validate` does not depend on credentials or files.
        workspace.set("METAL_COORDINATION_URL", "sqlite:///nowhere/x.sqlite");
        let mut wrong = Vec::new();
        let newer = if host == Host::Terraform { newer() } else { Vec::new() };
        for (configuration, path) in table().into_iter().chain(newer) {
            workspace.configure(&configuration);
            let run = workspace.run(&["validate", "-json"]).await;
            let said: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {}", run.output));
            let errors: Vec<&Value> = said["diagnostics"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|one| one["severity"] == "error")
                .collect();
            let names: Vec<String> = errors.iter().map(|error| named(error)).collect();
            let is_ours = errors.iter().all(|error| !error["detail"].as_str().unwrap_or_default().contains("bug"));
            if names.first().map(String::as_str) != Some(path) || !is_ours {
                wrong.push(format!("{path}: named {names:?}\n{configuration}{errors:#?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let right = "provider \"metal\" {\n  redfish = { servers = { a = { endpoint = \"https://10.0.0.1\" } } }\n}\n";
        workspace.configure(&format!("{right}{}", maintenance("a", "m", "")));
        workspace.run(&["validate", "-no-color"]).await.succeeded();
        for late in not_known_yet() {
            workspace.configure(&format!("variable \"x\" {{\n  type    = string\n  default = null\n}}\n{late}"));
            workspace.run(&["validate", "-no-color"]).await.succeeded();
        }
    }
}
