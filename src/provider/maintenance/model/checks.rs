//! Checks of single attributes of `metal_server_maintenance`.

use std::collections::BTreeSet;

use tf_provider::{AttributePath, Diagnostics, value::Value};

use super::MaintenanceModel;
use crate::{
    maintenance::spec::{CompleteWhen, WaitFor},
    provider::{
        shared::boot::{UrlModel, check_url},
        shared::values::{bad, given, is_given, not_empty, power},
    },
};

impl MaintenanceModel {
    pub(super) fn check_allow_under(&self, diags: &mut Diagnostics) -> Vec<String> {
        let Value::Value(owners) = &self.allow_under else { return Vec::new() };
        for (n, owner) in owners.iter().enumerate() {
            not_empty(diags, owner, AttributePath::new("allow_under").index(i64::try_from(n).unwrap_or(i64::MAX)));
        }
        // The order does not matter, so sort the owners to ignore reordering.
        let named: BTreeSet<&str> = owners.iter().filter_map(given).collect();
        named.into_iter().map(str::to_owned).collect()
    }

    pub(super) fn check_completion(&self, diags: &mut Diagnostics) -> Option<CompleteWhen> {
        let at = AttributePath::new("complete_when");
        let Value::Value(complete) = &self.complete_when else {
            if self.complete_when.is_null() && self.wait_for() == WaitFor::Completed {
                bad(
                    diags,
                    AttributePath::new("wait_for"),
                    "complete_when is missing",
                    "wait_for = \"Completed\" waits until complete_when is true: add complete_when.",
                );
            }
            return None;
        };
        if complete.power_state.is_null() && complete.url.is_null() {
            bad(diags, at.clone(), "complete_when is empty", "Set power_state or url.");
        } else if is_given(&complete.power_state) && is_given(&complete.url) {
            bad(diags, at.clone(), "Only one condition is allowed", "Set power_state or url, not both.");
        }
        let wanted = power(diags, &complete.power_state, at.clone().attribute("power_state"));
        if wanted.is_some() && given(&self.server_power) == given(&complete.power_state) {
            bad(
                diags,
                at.clone().attribute("power_state"),
                "Maintenance would end immediately",
                "server_power already sets the power state that ends the maintenance.",
            );
        }
        if let Some(wanted) = wanted {
            return Some(CompleteWhen::PowerState(wanted));
        }
        if complete.url.is_null() {
            return None;
        }
        let check = UrlModel { url: complete.url.clone(), status: complete.status };
        check_url(diags, &Value::Value(check), &at).map(CompleteWhen::Url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::maintenance::model::CompleteModel;

    #[test]
    fn a_status_that_is_not_known_yet_is_planned_as_it_is() {
        let url = Value::Value("https://node1/done".to_owned());
        for (url, status, planned) in [
            (url.clone(), Value::Unknown, Value::Unknown),
            (Value::Null, Value::Unknown, Value::Unknown),
            (url, Value::Null, Value::Value(200)),
            (Value::Null, Value::Null, Value::Null),
        ] {
            let complete = CompleteModel { url, status, ..CompleteModel::default() };
            let mut model = MaintenanceModel { complete_when: Value::Value(complete), ..MaintenanceModel::default() };
            model.set_defaults();
            assert_eq!(model.complete_when.as_ref_option().map(|complete| complete.status), Some(planned));
        }
    }
}
