//! The project's own BMC simulator, started in this process, with a matching provider block.

use std::time::Duration;

use bmc_simulator::{Behaviour, JournalQuery, PowerState, Simulator, SimulatorConfig, SystemStatus};
use secrecy::ExposeSecret as _;

use super::workspace::Workspace;

/// Limit for any single change of a simulated machine.
pub const SOON: Duration = Duration::from_secs(30);

/// A fleet of simulated machines named `node1`, `node2` and so on.
#[derive(Debug)]
pub struct Fleet {
    pub simulator: Simulator,
}

impl Fleet {
    /// Starts machines with one BMC each, over TLS.
    pub async fn new(systems: usize) -> Self {
        Self::with(SimulatorConfig::with_systems(systems)).await
    }

    /// Starts machines as configured.
    pub async fn with(config: SimulatorConfig) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        Self { simulator: Simulator::start(config).await.expect("the simulator starts") }
    }

    /// Returns fast machines: power changes take well under a second.
    pub fn quick() -> Behaviour {
        Behaviour::default()
    }

    /// Writes the inventory, the authority and a configuration: the provider block with `extra`
    /// arguments, then `body`.
    pub fn configure_with(&self, workspace: &Workspace, extra: &str, body: &str) {
        workspace.write("servers.yaml", &self.simulator.inventory());
        let authority = self.simulator.trust().map(|trust| {
            workspace.write("bmc-ca.pem", &trust.ca_pem);
            "ca_certificate_file = \"${path.module}/bmc-ca.pem\""
        });
        let account = self.simulator.credentials();
        workspace.configure(&format!(
            r#"
provider "metal" {{
  graceful_shutdown_timeout = "4s"
  power_timeout             = "4s"
  {extra}
  redfish = {{
    inventory_file  = "${{path.module}}/servers.yaml"
    username        = "{username}"
    password        = "{password}"
    request_timeout = "3s"
    {authority}
  }}
}}
{body}
"#,
            username = account.username,
            password = account.password.expose_secret(),
            authority = authority.unwrap_or_default(),
        ));
    }

    /// Writes a configuration with the default provider block.
    pub fn configure(&self, workspace: &Workspace, body: &str) {
        self.configure_with(workspace, "", body);
    }

    /// Sets the environment with which the command line can reach the machines.
    pub fn command_line(&self, workspace: &mut Workspace) {
        let account = self.simulator.credentials();
        let file = |name: &str| workspace.folder().join(name).display().to_string();
        let (inventory, authority) = (file("servers.yaml"), file("bmc-ca.pem"));
        workspace.set("METAL_REDFISH_INVENTORY_FILE", inventory);
        workspace.set("METAL_REDFISH_CA_CERTIFICATE_FILE", authority);
        workspace.set("METAL_REDFISH_USERNAME", account.username.clone());
        workspace.set("METAL_REDFISH_PASSWORD", account.password.expose_secret());
    }

    /// Returns a machine's actual state.
    pub fn system(&self, name: &str) -> SystemStatus {
        self.simulator.system(name).expect("a known machine")
    }

    /// Returns the requested changes in order, as `METHOD path`.
    pub fn changes(&self, name: &str) -> Vec<String> {
        self.simulator
            .journal(&JournalQuery::system(name))
            .into_iter()
            .filter(|entry| entry.method != "GET" && !entry.path.contains("/Sessions"))
            .map(|entry| format!("{} {}", entry.method, entry.path))
            .collect()
    }

    /// Returns the requested resets in order.
    pub fn resets(&self, name: &str) -> Vec<String> {
        self.simulator
            .journal(&JournalQuery::system(name))
            .into_iter()
            .filter(|entry| entry.path.contains("ComputerSystem.Reset") && entry.method == "POST")
            .filter_map(|entry| Some(entry.body?["ResetType"].as_str()?.to_owned()))
            .collect()
    }

    /// Describes a machine's last boot source.
    pub fn runs(&self, name: &str) -> String {
        let boots = self.simulator.boots(name).expect("a known machine");
        boots.last().map_or_else(|| "nothing".to_owned(), |boot| format!("{:?}", boot.booted_from))
    }

    /// Waits for a power state.
    pub async fn until(&self, name: &str, power: PowerState) {
        self.simulator.wait_power(name, power, SOON).await.expect("in time");
    }
}

/// Returns a `metal_server_maintenance` resource named `held`, with more arguments.
pub fn maintenance(server: &str, name: &str, more: &str) -> String {
    format!(
        r#"
resource "metal_server_maintenance" "held" {{
  server    = "{server}"
  namespace = "tests"
  name      = "{name}"
  policy    = "Enforced"
  {more}
}}
"#
    )
}
