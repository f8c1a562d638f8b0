//! Nodes of a real Ironic: fake hardware, and redfish with the project's BMC simulator.

mod by_hand;
mod flows;
mod guide;
mod keystone;
mod lifecycle;
mod lists;
#[path = "../../ironic/proxy.rs"]
#[allow(dead_code, reason = "shared with the backend tests")]
mod proxy;
mod services;

use bmc_simulator::{Simulator, SimulatorConfig, TlsMode};
use reqwest::Method;
use secrecy::ExposeSecret as _;

use crate::{servers::ironic::Ironic, support::workspace::Workspace};

/// Address of [`maintenance`] in a state.
pub const HELD: &str = "metal_server_maintenance.held";

/// Unique identity of a machine.
pub const SYSTEM: &str = "6f9619ff-8b86-d011-b42d-00c04fc964ff";

/// Writes a configuration whose provider block uses this Ironic.
pub fn configure(ironic: &Ironic, workspace: &Workspace, body: &str) {
    configure_at(&ironic.url(), workspace, body);
}

/// Same as `configure`, with another URL.
pub fn configure_at(url: &str, workspace: &Workspace, body: &str) {
    configure_with(&format!("endpoint = \"{url}\""), workspace, body);
}

/// Writes a configuration with these lines in its `ironic` block.
pub fn configure_with(reach: &str, workspace: &Workspace, body: &str) {
    workspace.configure(&format!(
        r#"
provider "metal" {{
  graceful_shutdown_timeout = "20s"
  power_timeout             = "20s"
  ironic = {{
    {reach}
    soft_power_timeout = "5s"
    lock_keys          = {{ n1 = "{SYSTEM}" }}
  }}
}}
{body}
"#
    ));
}

/// Adds a powered redfish node `n1`. Returns its simulator and the machine's name there.
pub async fn simulated(ironic: &Ironic) -> (Simulator, String) {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let config = SimulatorConfig { tls: TlsMode::Off, ..SimulatorConfig::with_systems(1) };
    let simulator = Simulator::start(config).await.unwrap();
    let system = simulator.systems()[0].clone();
    let account = simulator.credentials();
    let account = (account.username.as_str(), account.password.expose_secret());
    let url = simulator.url(&system).unwrap();
    ironic.redfish_node("n1", url.trim_end_matches('/'), "/redfish/v1/Systems/1", account).await;
    ironic.power("n1", "power on").await;
    (simulator, system)
}

/// Returns true if the virtual CD drive of `n1` contains an image.
pub async fn drive_is_filled(ironic: &Ironic) -> bool {
    ironic.try_call(Method::GET, "/v1/nodes/n1/vmedia", None).await.1.to_string().contains("/cdrom-")
}

/// Returns a maintenance of `n1` that boots an image from a virtual drive.
pub fn rescue(image: &str) -> String {
    let boot = format!("boot_configuration = {{ method = \"virtual_media\", image = \"{image}\" }}");
    maintenance(&format!("server_power = \"On\"\n  {boot}"))
}

/// Returns a maintenance of `n1`.
pub fn maintenance(more: &str) -> String {
    format!(
        r#"
resource "metal_server_maintenance" "held" {{
  server    = "n1"
  namespace = "ops"
  name      = "bios"
  policy    = "Enforced"
  reason    = "BIOS 2.19"
  {more}
}}
"#
    )
}
