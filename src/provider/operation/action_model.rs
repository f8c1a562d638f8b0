//! Schema and model of the action `metal_server_operation`: those of the resource without state
//! attributes.

use serde::{Deserialize, Serialize};
use tf_provider::{
    Diagnostics,
    schema::{AttributeConstraint, AttributeType, Schema},
    value::{Value, ValueBool, ValueNumber},
};

use crate::provider::{
    operation::model::{OperationModel, WITH_ITS_HOLD, operation_schema},
    operation::service_model::ServiceModel,
    shared::renamed_timeouts::rename_timeouts,
    shared::schema::{optional, timeouts},
    shared::values::{Text, Texts, Timeouts},
    shared::window::WindowModel,
};

/// A `metal_server_operation` as an action.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct ActionModel {
    server: Text,
    namespace: Text,
    name: Text,
    operation: Text,
    service: Value<ServiceModel>,
    maintenance_id: Text,
    when_off: Text,
    proof: Text,
    policy: Text,
    require_claim: ValueBool,
    escalate_after: Text,
    reason: Text,
    ticket: Text,
    priority: ValueNumber,
    window: Value<WindowModel>,
    hold_place_for: Text,
    triggers: Texts,
    timeouts: Value<ActionTimeouts>,
}

/// The block `timeouts`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct ActionTimeouts {
    invoke: Text,
}

impl ActionModel {
    /// Converts the action to the resource's model with defaults.
    pub(in crate::provider) fn operation(self) -> OperationModel {
        let timeouts = match self.timeouts {
            Value::Value(timeouts) => Value::Value(Timeouts { create: timeouts.invoke, ..Timeouts::default() }),
            Value::Unknown => Value::Unknown,
            Value::Null => Value::Null,
        };
        let mut model = OperationModel {
            server: self.server,
            namespace: self.namespace,
            name: self.name,
            operation: self.operation,
            service: self.service,
            maintenance_id: self.maintenance_id,
            when_off: self.when_off,
            proof: self.proof,
            policy: self.policy,
            require_claim: self.require_claim,
            escalate_after: self.escalate_after,
            reason: self.reason,
            ticket: self.ticket,
            priority: self.priority,
            window: self.window,
            hold_place_for: self.hold_place_for,
            triggers: self.triggers,
            timeouts,
            ..OperationModel::default()
        };
        model.set_defaults();
        model
    }
}

/// Renames the time limit in diagnostics from [`ActionModel::operation`] to the action's name.
pub(in crate::provider) fn in_its_words(diags: &mut Diagnostics) {
    rename_timeouts(diags, &[("create", "invoke")]);
}

/// Builds the schema: the resource's without computed attributes.
pub(in crate::provider) fn action_schema() -> Schema {
    let mut schema = operation_schema();
    schema.block.attributes.retain(|_, attribute| attribute.constraint != AttributeConstraint::Computed);
    for attribute in schema.block.attributes.values_mut() {
        if attribute.constraint == AttributeConstraint::OptionalComputed {
            attribute.constraint = AttributeConstraint::Optional;
        }
        let text = &mut attribute.description.content;
        for of_resource in [
            WITH_ITS_HOLD,
            " Changing it replaces the resource and runs the new operation.",
            " Changing it replaces the resource.",
        ] {
            *text = text.replace(of_resource, "");
        }
    }
    let triggers = "Any values. The operation runs once for each set of values, regardless of how often the action is invoked. Without `triggers` each invocation runs it, except the first after a killed run: that invocation continues or reports the killed run's operation. At most 32 entries, with names of 128 and values of 1024 characters. The coordination store contains the values, so do not put secrets here. Messages, `show` and the audit log show a short digest of each value.";
    let texts = AttributeType::Map(Box::new(AttributeType::String));
    schema.block.attributes.insert("triggers".to_owned(), optional(texts, triggers));
    let limit = "Limit for waiting and for the operation. Default: `\"1h\"`. If it ends during the wait, the queue position stays reserved for `hold_place_for`.";
    schema.block.attributes.insert("timeouts".to_owned(), timeouts([("invoke", limit)]));
    "Runs one power operation on a server, or one service in its external system, when the action is invoked. It waits in \
     the same queue as every maintenance and locks the server. The state does not contain it, and the provider does not \
     restore the server."
        .clone_into(&mut schema.block.description.content);
    schema
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Hosts send every attribute in the schema, so each needs a field.
    #[test]
    fn the_model_has_the_attributes_of_the_schema() {
        let model = serde_json::to_value(ActionModel::default()).unwrap();
        let fields: BTreeSet<_> = model.as_object().unwrap().keys().cloned().collect();
        let schema = action_schema();
        assert_eq!(fields, schema.block.attributes.keys().cloned().collect());
        for (name, attribute) in &schema.block.attributes {
            let text = &attribute.description.content;
            assert!(!text.contains("replace"), "{name} is not part of a resource: {text}");
        }
    }
}
