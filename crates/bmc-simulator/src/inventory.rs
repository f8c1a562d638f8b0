//! The list of servers that the provider reads: a name, an endpoint and a system each.

use std::fmt::Write as _;

use crate::simulator::Simulator;

impl Simulator {
    /// The servers as YAML: a map from the name to `endpoint` and `system_id`.
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

/// A YAML scalar in double quotes; JSON strings are a subset of these.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
