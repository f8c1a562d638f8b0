//! Hosts managed by Metal3: a real API server, a stand-in for baremetal-operator, and the
//! project's BMC simulator.

mod crashes;
mod detached;
pub mod economy;
mod flows;
mod guide;
mod images;
mod lifecycle;
mod others;
mod reboots;
mod wishes;

use std::path::Path;

use crate::{servers::metal3::world::World, support::workspace::Workspace};

/// Address of [`maintenance`] in a state.
pub const HELD: &str = "metal_server_maintenance.held";

/// Writes a configuration whose provider block uses a world's hosts. `block` is added to its
/// `metal3` block.
pub fn configure_with(world: &World, workspace: &Workspace, block: &str, body: &str) {
    let kubeconfig = world.kubernetes.user("ci", &["system:masters"]);
    configure_as(&kubeconfig, world, workspace, block, body);
}

/// Same as `configure_with`, with a kubeconfig.
pub fn configure_as(kubeconfig: &Path, world: &World, workspace: &Workspace, block: &str, body: &str) {
    workspace.configure(&format!(
        r#"
provider "metal" {{
  graceful_shutdown_timeout = "4s"
  power_timeout             = "4s"
  metal3 = {{
    kubeconfig = "{}"
    namespace  = "{}"
    {block}
  }}
}}
{body}
"#,
        kubeconfig.display(),
        world.namespace
    ));
}

/// Same as `configure_with`, with an empty `block`.
pub fn configure(world: &World, workspace: &Workspace, body: &str) {
    configure_with(world, workspace, "", body);
}

/// Returns a maintenance of `node1`.
pub fn maintenance(name: &str, more: &str) -> String {
    format!(
        r#"
resource "metal_server_maintenance" "held" {{
  server    = "node1"
  namespace = "ops"
  name      = "{name}"
  policy    = "OwnerApproval"
  reason    = "BIOS 2.19"
  {more}
}}
"#
    )
}
