//! `data.metal_servers`: the inventory, and its use on the command line.

use bmc_simulator::{Availability, JournalQuery};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::support::{simulator::Fleet, workspace::Workspace};

/// Servers written in HCL, two of them with a label.
fn configuration(fleet: &Fleet, extra: &str) -> String {
    let inventory: Value = serde_json::from_str(&as_json(&fleet.simulator.inventory())).unwrap();
    let servers: String = inventory
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, server)| {
            let role = if name == "node3" { "compute" } else { "storage" };
            let endpoint = server["endpoint"].as_str().unwrap();
            format!("{name} = {{ endpoint = \"{endpoint}\", labels = {{ role = \"{role}\" }} }}\n")
        })
        .collect();
    let account = fleet.simulator.credentials();
    format!(
        "provider \"metal\" {{\n  redfish = {{\n    username = \"{}\"\n    password = \"{}\"\n    ca_certificate_file = \
         abspath(\"${{path.module}}/bmc-ca.pem\")\n    servers = {{\n{servers}    }}\n  }}\n}}\n{extra}",
        account.username,
        account.password.expose_secret(),
    )
}

/// Converts the simulator's inventory, which always has the same form.
fn as_json(yaml: &str) -> String {
    let mut servers = serde_json::Map::new();
    let mut name = String::new();
    for line in yaml.lines() {
        let (key, value) = line.trim().split_once(':').unwrap();
        if line.starts_with(' ') {
            servers[&name][key] = serde_json::from_str(value.trim()).unwrap();
        } else {
            name = serde_json::from_str(key).unwrap();
            servers.insert(name.clone(), json!({}));
        }
    }
    Value::Object(servers).to_string()
}

const SELECTED: &str = r#"
data "metal_servers" "storage" {
  name_pattern = "node?"
  labels       = { role = "storage" }
}
data "metal_servers" "none" {
  backend = "metal_operator"
}
output "names" {
  value = data.metal_servers.storage.names
}
output "none" {
  value = data.metal_servers.none.names
}
output "servers" {
  value = data.metal_servers.storage.servers
}
output "inventory" {
  value = data.metal_servers.storage.inventory
}
"#;

for_each_host! {
    async fn it_selects_servers_without_a_request_and_feeds_the_command_line(host) {
        let (fleet, mut workspace) = (Fleet::new(3).await, Workspace::new(host));
        workspace.write("bmc-ca.pem", &fleet.simulator.trust().unwrap().ca_pem);
        workspace.configure(&configuration(&fleet, SELECTED));
        for node in ["node1", "node2", "node3"] {
            let bmc = fleet.simulator.bmc_of(node).unwrap();
            fleet.simulator.set_availability(&bmc, Availability::Refusing).await.unwrap();
        }
        let plan = workspace.plan().await;
        workspace.apply().await.succeeded();
        assert!(fleet.simulator.journal(&JournalQuery::default()).is_empty(), "a BMC received a request");
        assert_eq!(workspace.json(&["output", "-json", "names"]).await, json!(["node1", "node2"]));
        assert_eq!(workspace.json(&["output", "-json", "none"]).await, json!([]));
        let servers = workspace.json(&["output", "-json", "servers"]).await;
        assert_eq!((&servers["node1"]["labels"]["role"], &servers["node1"]["backend"]), (&json!("storage"), &json!("redfish")));
        assert!(servers["node1"]["endpoint"].as_str().unwrap().starts_with("https://127.0.0.1:"), "{servers}");

        // The command line reads the same servers, from an exported inventory, a saved plan and a
        // state.
        for node in ["node1", "node2", "node3"] {
            let bmc = fleet.simulator.bmc_of(node).unwrap();
            fleet.simulator.set_availability(&bmc, Availability::Up).await.unwrap();
        }
        let account = fleet.simulator.credentials();
        workspace.set("METAL_REDFISH_USERNAME", account.username.clone());
        workspace.set("METAL_REDFISH_PASSWORD", account.password.expose_secret());
        let inventory = workspace.run(&["output", "-raw", "inventory"]).await.succeeded().stdout;
        let planned = workspace.run(&["show", "-json", &plan.file.to_string_lossy()]).await.succeeded().stdout;
        let state = workspace.run(&["show", "-json"]).await.succeeded().stdout;
        assert!(!inventory.contains(account.password.expose_secret()), "{inventory}");
        for (name, text) in [("servers.json", inventory), ("plan.json", planned), ("state.json", state)] {
            workspace.write(name, &text);
            let checked = workspace.metal(&["--inventory", name, "check"]).await.succeeded();
            checked.says("node1: usable").says("node2: usable").is_silent_about("node3");
        }
        workspace.write("plan.bin", "PK\u{3}\u{4}");
        workspace.metal(&["--inventory", "plan.bin", "check"]).await.failed().says("use its show -json output instead");
    }
}
