//! What a plan of `metal_server_maintenance` asks its model.

use tf_provider::{AttributePath, value::Value};

use super::MaintenanceModel;
use crate::provider::{
    shared::private::{Mark, Remembered},
    shared::values::{given, same_texts},
};

impl MaintenanceModel {
    /// The attributes that identify its record.
    pub(in crate::provider) fn remembered(&self) -> Remembered<'_> {
        Remembered { id: &self.id, lock_key: &self.lock_key, mark: Mark::Number(&self.managed_by) }
    }

    /// Whether a maintenance that another state manages is taken over.
    pub(in crate::provider) fn adopts(&self) -> bool {
        self.adopt == Value::Value(true)
    }

    /// Whether a server that drifted is prepared once more.
    pub(in crate::provider) fn restores_drift(&self) -> bool {
        given(&self.on_drift) == Some("restore")
    }

    /// Whether a power of the server ends the maintenance.
    pub(in crate::provider) fn ends_by_power(&self) -> bool {
        matches!(&self.complete_when, Value::Value(complete) if !complete.power_state.is_null())
    }

    /// Whether a maintenance that has ended stays in the state.
    pub(in crate::provider) fn keeps_ended(&self) -> bool {
        given(&self.on_end) == Some("keep")
    }

    /// The attributes whose change takes another server, or runs the maintenance again.
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
