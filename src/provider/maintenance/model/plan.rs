//! Model methods for plans of `metal_server_maintenance`.

use tf_provider::{AttributePath, value::Value};

use super::MaintenanceModel;
use crate::provider::{
    shared::private::{Mark, Remembered},
    shared::values::{given, same_texts},
};

impl MaintenanceModel {
    /// Returns the attributes that identify its record.
    pub(in crate::provider) fn remembered(&self) -> Remembered<'_> {
        Remembered { id: &self.id, lock_key: &self.lock_key, mark: Mark::Number(&self.managed_by) }
    }

    /// Returns true if it adopts a maintenance that another state manages.
    pub(in crate::provider) fn adopts(&self) -> bool {
        self.adopt == Value::Value(true)
    }

    /// Returns true if a drifted server is prepared again.
    pub(in crate::provider) fn restores_drift(&self) -> bool {
        given(&self.on_drift) == Some("restore")
    }

    /// Returns true if the server's power state ends the maintenance.
    pub(in crate::provider) fn ends_by_power(&self) -> bool {
        matches!(&self.complete_when, Value::Value(complete) if !complete.power_state.is_null())
    }

    /// Returns true if an ended maintenance stays in the state.
    pub(in crate::provider) fn keeps_ended(&self) -> bool {
        given(&self.on_end) == Some("keep")
    }

    /// Returns changed attributes that require another server or a new run.
    pub(in crate::provider) fn replacing(&self, prior: &Self) -> Vec<AttributePath> {
        let mut paths = Vec::new();
        for (name, now, before) in [
            ("server", &self.server, &prior.server),
            ("namespace", &self.namespace, &prior.namespace),
            ("name", &self.name, &prior.name),
        ] {
            if now != before {
                paths.push(AttributePath::new(name));
            }
        }
        if !same_texts(&self.triggers, &prior.triggers) {
            paths.push(AttributePath::new("triggers"));
        }
        paths
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn triggers_that_say_nothing_replace_nothing() {
        let prior = MaintenanceModel::default();
        let empty = MaintenanceModel { triggers: Value::Value(BTreeMap::new()), ..MaintenanceModel::default() };
        assert!(empty.replacing(&prior).is_empty());
        let run = Value::Value(BTreeMap::from([("run".to_owned(), Value::Value("2".to_owned()))]));
        let again = MaintenanceModel { triggers: run, ..MaintenanceModel::default() };
        assert_eq!(again.replacing(&empty), [AttributePath::new("triggers")]);
    }
}
