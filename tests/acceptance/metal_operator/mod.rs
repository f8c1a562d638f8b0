//! Servers managed by metal-operator: a real API server, stand-ins for the operators, and the
//! project's BMC simulator.

mod access;
mod answers;
pub mod approvals;
mod boot;
mod by_hand;
mod claims;
mod economy;
mod families;
mod flows;
pub mod guide;
mod inventory;
mod lists;
mod location;
mod lost;
mod migration;
mod moved;
mod operations;
mod outages;
mod races;
mod silence;
pub mod strangers;
mod tolerations;
mod unenforced;
mod write_only;

use std::path::Path;

use bmc_simulator::{Simulator, SimulatorConfig};

use crate::{
    servers::ironcore::{Options, family::Family, world::World},
    support::workspace::Workspace,
};

/// Address of [`maintenance`] in a state.
pub const HELD: &str = "metal_server_maintenance.held";

/// Starts a family's cluster with this number of servers.
pub async fn cluster(family: Family, servers: usize, options: Options) -> World {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let simulator = Simulator::start(SimulatorConfig::with_systems(servers)).await.expect("the simulator starts");
    World::start(family, options, &simulator).await
}

/// Starts a cluster without servers, next to this many simulated machines.
pub async fn cluster_without_servers(family: Family, machines: usize) -> World {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let simulator = Simulator::start(SimulatorConfig::with_systems(machines)).await.expect("the simulator starts");
    World::empty(family, Options::default(), &simulator).await
}

/// Writes a configuration whose provider block uses this cluster.
pub fn configure_with(world: &World, workspace: &Workspace, extra: &str, body: &str) {
    configure_as(&world.kubernetes.user("ci", &["system:masters"]), workspace, extra, body);
}

/// Same as `configure_with`, with a kubeconfig.
pub fn configure_as(kubeconfig: &Path, workspace: &Workspace, extra: &str, body: &str) {
    workspace.configure(&format!(
        r#"
provider "metal" {{
  graceful_shutdown_timeout = "4s"
  power_timeout             = "4s"
  {extra}
  metal_operator = {{
    kubeconfig   = "{}"
    bmc_insecure = true
  }}
}}
{body}
"#,
        kubeconfig.display()
    ));
}

/// Same as `configure_with`, with the default provider block.
pub fn configure(world: &World, workspace: &Workspace, body: &str) {
    configure_with(world, workspace, "", body);
}

/// Returns a maintenance of `node1`.
pub fn maintenance(policy: &str, more: &str) -> String {
    format!(
        r#"
resource "metal_server_maintenance" "held" {{
  server    = "node1"
  namespace = "ops"
  name      = "bios"
  policy    = "{policy}"
  reason    = "BIOS 2.19"
  {more}
}}
"#
    )
}
