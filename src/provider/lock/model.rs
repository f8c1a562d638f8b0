//! Schema and model of `ephemeral "metal_server_lock"`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::{AttributeConstraint, AttributeType, Schema},
    value::{Value, ValueBool, ValueNumber},
};

use crate::{
    engine::Engine,
    maintenance::{
        ids::MaintenanceId,
        limits,
        spec::{MaintenanceKind, Spec},
        state::Maintenance,
    },
};

use crate::provider::{
    shared::own_turn::{OwnTurn, turn_attributes},
    shared::schema::{attributes, computed, optional, required, schema, timeouts},
    shared::values::{Text, bad, check_names, duration, given, known, parse_duration, power, short},
    shared::window::WindowModel,
};

/// Distinguishes ephemeral records from a resource with the same name, so that closing never
/// releases a record that a state manages.
const MARK: (&str, &str) = ("ephemeral", "metal_server_lock");

/// When a dead run's lock becomes overdue by default.
const EXPIRES_AFTER: Duration = Duration::from_mins(15);
const OPEN: Duration = Duration::from_hours(1);
const CLOSE: Duration = Duration::from_mins(30);

/// A `metal_server_lock` in configuration and result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct LockModel {
    pub(in crate::provider) server: Text,
    namespace: Text,
    name: Text,
    pub(in crate::provider) applying: ValueBool,
    policy: Text,
    require_claim: ValueBool,
    escalate_after: Text,
    reason: Text,
    ticket: Text,
    priority: ValueNumber,
    window: Value<WindowModel>,
    hold_place_for: Text,
    server_power: Text,
    expires_after: Text,
    timeouts: Value<LockTimeouts>,
    id: Text,
    lock_key: Text,
    generation: ValueNumber,
    started_at: Text,
    power_state: Text,
    previous_power_state: Text,
    endpoint: Text,
    system_id: Text,
}

/// The block `timeouts`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct LockTimeouts {
    open: Text,
    close: Text,
}

/// Builds the schema.
pub(in crate::provider) fn lock_schema() -> Schema {
    use AttributeType::{Bool, Number, String};
    let mut all = turn_attributes();
    for attribute in all.values_mut() {
        // A result contains the configured values without defaults.
        if attribute.constraint == AttributeConstraint::OptionalComputed {
            attribute.constraint = AttributeConstraint::Optional;
        }
    }
    all.extend(attributes([
        ("server", required(String, "The server's name in the provider's configuration.")),
        (
            "namespace",
            required(String, "First part of the name. The next run finds a killed run's lock by `namespace/name`."),
        ),
        ("name", required(String, "Second part of the name, after `namespace`.")),
        (
            "applying",
            required(
                Bool,
                "Set it to `terraform.applying`. Hosts open ephemeral resources in a plan, too: the provider locks the server only if this is `true`. If it is `false`, the provider shows the queue, approvals and the window, and changes nothing.",
            ),
        ),
        ("policy", required(String, "`Enforced` or `OwnerApproval`, as for `metal_server_maintenance`.")),
        (
            "server_power",
            optional(
                String,
                "The power state while the server is locked: `On` or `Off`. The release restores the prior power. Default: the power is not changed.",
            ),
        ),
        (
            "expires_after",
            optional(
                String,
                "How long after its start a dead run's lock becomes overdue. The next waiter then restores and releases the server. A live run keeps its lock. Default: `\"15m\"`.",
            ),
        ),
        (
            "timeouts",
            timeouts([
                ("open", "Limit for waiting and for `server_power`. Default: `\"1h\"`."),
                ("close", "Limit for restoring and releasing the server. Default: `\"30m\"`."),
            ]),
        ),
        ("id", computed(String, "`namespace/name`, for `maintenance_id` of actions that act under this lock.")),
        ("lock_key", computed(String, "The server's hardware identity, which is the lock key. Null in a plan.")),
        ("generation", computed(Number, "The lock's fencing token. Null in a plan.")),
        ("started_at", computed(String, "When the server was locked (RFC 3339, UTC). Null in a plan.")),
        ("power_state", computed(String, "The server's power. Null in a plan.")),
        (
            "previous_power_state",
            computed(String, "The power before `server_power` was applied. Null without `server_power`, and in a plan."),
        ),
        (
            "endpoint",
            computed(
                String,
                "The BMC's address, for other Redfish providers; null if the configuration does not contain it (`metal_operator`, `metal3`, `ironic`).",
            ),
        ),
        ("system_id", computed(String, "Its system behind that BMC, if the configuration names one; otherwise null.")),
    ]));
    schema(
        "Locks a server for one run. The host opens it before its first use and closes it after its last. It waits in the same \
         queue as every maintenance. Closing restores the power and releases the lock. Plan and state do not contain it.",
        all,
    )
}

impl LockModel {
    /// Returns the name if both parts are known.
    pub(in crate::provider) fn name_id(&self) -> Option<MaintenanceId> {
        MaintenanceId::new(given(&self.namespace)?, given(&self.name)?).ok()
    }

    /// Returns true if this run applies, so the server must be locked.
    pub(in crate::provider) fn is_applying(&self) -> bool {
        self.applying == Value::Value(true)
    }

    /// Returns the time limits for opening and for closing.
    pub(in crate::provider) fn time_limits(&self) -> (Duration, Duration) {
        let Value::Value(timeouts) = &self.timeouts else { return (OPEN, CLOSE) };
        let limit = |text, default| given(text).and_then(|text| parse_duration(text).ok()).unwrap_or(default);
        (limit(&timeouts.open, OPEN), limit(&timeouts.close, CLOSE))
    }

    /// Checks every known value; returns the specification if it is valid and complete.
    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics, engine: Option<&Engine>) -> Option<Spec> {
        let path = AttributePath::new;
        check_names(diags, &self.namespace, &self.name);
        short(diags, &self.server, path("server"), limits::SERVER);
        if self.applying.is_null() {
            let detail = "Write applying = terraform.applying, so that a plan does not lock the server.";
            bad(diags, path("applying"), "Must not be null", detail);
        }
        if let Value::Value(timeouts) = &self.timeouts {
            for (name, value) in [("open", &timeouts.open), ("close", &timeouts.close)] {
                duration(diags, value, path("timeouts").attribute(name));
            }
        }
        let server_power = power(diags, &self.server_power, path("server_power"));
        let expires_after = duration(diags, &self.expires_after, path("expires_after"));
        let turn = OwnTurn {
            maintenance_id: &Value::Null,
            policy: &self.policy,
            default_policy: None,
            require_claim: &self.require_claim,
            escalate_after: &self.escalate_after,
            reason: &self.reason,
            ticket: &self.ticket,
            priority: &self.priority,
            window: &self.window,
            hold_place_for: &self.hold_place_for,
        };
        let base = Spec::new(MaintenanceKind::Maintenance, given(&self.server).unwrap_or_default());
        let spec = turn.check(diags, engine, base)?;
        let unknown = self.server_power.is_unknown() || self.expires_after.is_unknown();
        (!unknown && given(&self.server).is_some()).then(|| Spec {
            triggers: [(MARK.0.into(), MARK.1.into())].into(),
            server_power,
            expires_after: Some(expires_after.unwrap_or(EXPIRES_AFTER)),
            ..spec
        })
    }

    /// Shows the attributes that do not require a lock. The rest is null, because OpenTofu rejects
    /// an ephemeral result with unknown values (seen with 1.12.6).
    pub(in crate::provider) fn show_planned(&mut self, engine: Option<&Engine>) {
        self.id = known(self.name_id().map(|id| id.to_string()));
        let listed = given(&self.server).zip(engine).map(|(server, engine)| engine.backend().listed(server));
        (self.endpoint, self.system_id) = match listed {
            Some(listed) => (known(listed.endpoint), known(listed.system_id)),
            None => (Value::Null, Value::Null),
        };
        self.generation = Value::Null;
        for text in [&mut self.lock_key, &mut self.started_at, &mut self.power_state, &mut self.previous_power_state] {
            *text = Value::Null;
        }
    }

    /// Copies a lock's record into the attributes.
    pub(in crate::provider) fn show(&mut self, engine: &Engine, record: &Maintenance, power: Option<String>) {
        self.show_planned(Some(engine));
        self.id = Value::Value(record.id.to_string());
        self.lock_key = Value::Value(record.lock_key.to_string());
        self.generation = Value::Value(i64::try_from(record.generation).unwrap_or(i64::MAX));
        self.started_at = known(record.started_at.map(|at| at.to_string()));
        self.power_state = known(power);
        self.previous_power_state = known(record.prior.as_ref().map(|prior| prior.power.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_model_has_the_attributes_of_the_schema() {
        let model = serde_json::to_value(LockModel::default()).unwrap();
        let fields: BTreeSet<_> = model.as_object().unwrap().keys().cloned().collect();
        assert_eq!(fields, lock_schema().block.attributes.keys().cloned().collect());
    }

    #[test]
    fn what_is_open_in_a_plan_is_wholly_known() {
        let mut model = LockModel::default();
        model.show_planned(None);
        let texts = [&model.id, &model.lock_key, &model.started_at, &model.power_state, &model.previous_power_state];
        let unknown = texts.into_iter().chain([&model.endpoint, &model.system_id]).filter(|text| text.is_unknown());
        assert_eq!((unknown.count(), model.generation.is_unknown()), (0, false));
    }
}
