//! The server list that the provider reads: name, endpoint and system.

use std::fmt::Write as _;

use crate::simulator::Simulator;

impl Simulator {
    /// Returns the servers as YAML: a map from name to `endpoint` and `system_id`.
    #[must_use]
    pub fn inventory(&self) -> String {
        let mut yaml = String::new();
        for machine in self.world.machines() {
            let url = self.world.bmc(&machine.bmc).map(|bmc| bmc.url()).unwrap_or_default();
            // Writing into a String cannot fail.
            let _ = writeln!(
                yaml,
                "{}:\n  endpoint: {}\n  system_id: {}",
                quoted(&machine.name),
                quoted(&url),
                quoted(&machine.id),
            );
        }
        yaml
    }
}

/// Returns a double-quoted YAML scalar; JSON strings are valid in it.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
