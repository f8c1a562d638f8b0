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
