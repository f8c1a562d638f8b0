//! Schema and model of `metal_server_operation`.

use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::{AttributeType, Schema},
    value::{Value, ValueBool, ValueNumber},
};

use crate::{
    engine::Engine,
    maintenance::{
        ids::MaintenanceId,
        limits,
        machine::ResetType,
        operate::{CompletionProof, OperationSpec, WhenOff},
        service::ServiceSpec,
        spec::{MaintenanceKind, Spec},
        state::{Maintenance, Phase},
    },
};

use crate::provider::{
    maintenance::model::triggers,
    operation::service_model::{ServiceModel, service_attribute},
    shared::outputs::outputs,
    shared::own_turn::{HOLD_PLACE_FOR, OwnTurn, turn_attributes, under},
    shared::private::{Mark, Remembered},
    shared::schema::{attributes, defaulted, optional, required, schema, timeouts},
    shared::values::{
        Text, Texts, Timeouts, bad, check_names, check_timeouts, check_triggers, given, is_given, known, one_of,
        or_default, same_texts, short,
    },
    shared::window::WindowModel,
};

/// Explains how replacing a maintenance affects an operation under it; part of the text of
/// `maintenance_id`.
pub(in crate::provider) const WITH_ITS_HOLD: &str = " Replacing that maintenance also replaces the operation, which runs again under the new lock. `ignore_changes = [maintenance_id]` prevents this.";

/// A `metal_server_operation` in configuration, plan and state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct OperationModel {
    pub(in crate::provider) id: Text,
    pub(in crate::provider) server: Text,
    pub(in crate::provider) namespace: Text,
    pub(in crate::provider) name: Text,
    #[serde(default)]
    pub(in crate::provider) operation: Text,
    #[serde(default)]
    pub(in crate::provider) service: Value<ServiceModel>,
    pub(in crate::provider) maintenance_id: Text,
    pub(in crate::provider) when_off: Text,
    pub(in crate::provider) proof: Text,
    pub(in crate::provider) policy: Text,
    pub(in crate::provider) require_claim: ValueBool,
    pub(in crate::provider) escalate_after: Text,
    pub(in crate::provider) reason: Text,
    pub(in crate::provider) ticket: Text,
    pub(in crate::provider) priority: ValueNumber,
    pub(in crate::provider) window: Value<WindowModel>,
    pub(in crate::provider) hold_place_for: Text,
    pub(in crate::provider) triggers: Texts,
    pub(in crate::provider) timeouts: Value<Timeouts>,
    pub(in crate::provider) effect: Text,
    pub(in crate::provider) state: Text,
    pub(in crate::provider) outcome: Text,
    pub(in crate::provider) requested_at: Text,
    pub(in crate::provider) completed_at: Text,
    pub(in crate::provider) lock_key: Text,
    pub(in crate::provider) previous_power_state: Text,
}

outputs!(OperationModel {
    at_plan {
        effect: String, "The effect of apply on the server, shown in the plan. An update that does not change the effect does not touch the server.";
    }
    after_apply {
        id: String, "`namespace/name`.";
        state: String, "`Pending`, `Preparing` (running) or `Completed`. Unknown in a plan that resumes after an interruption.";
        outcome: String, "`Proven`, `Accepted`, `Skipped` (the server was off, or already in the requested state) or `Unproven`; null until the operation has run.";
        requested_at: String, "When it was requested (RFC 3339, UTC).";
        completed_at: String, "When the operation ran (RFC 3339, UTC).";
        lock_key: String, "The server's hardware identity, which is the lock key.";
        previous_power_state: String, "The server's prior power. It is not restored.";
    }
});

/// Builds the schema.
#[allow(clippy::too_many_lines, reason = "a table: one line an attribute")]
pub(in crate::provider) fn operation_schema() -> Schema {
    use AttributeType::{Map, String};
    let mut all = OperationModel::with_outputs(attributes([
        (
            "server",
            required(String, "The server's name in the provider's configuration. Changing it replaces the resource."),
        ),
        (
            "namespace",
            required(
                String,
                "First part of the name. After a crash the provider finds the operation by `namespace/name`. Changing it replaces the resource.",
            ),
        ),
        ("name", required(String, "Second part of the name, after `namespace`. Changing it replaces the resource.")),
        (
            "operation",
            optional(
                String,
                "`On`, `ForceOff`, `GracefulShutdown`, `GracefulRestart`, `ForceRestart`, `PowerCycle` or `Nmi`, performed once. Set exactly one of `operation` and `service`. Changing it replaces the resource and runs the new operation.",
            ),
        ),
        ("service", service_attribute()),
        (
            "maintenance_id",
            optional(
                String,
                &format!(
                    "The `id` of a `metal_server_maintenance` that holds this server: the operation runs under that lock. Without it, the operation waits in the queue and takes its own lock. Changing it replaces the resource.{WITH_ITS_HOLD}"
                ),
            ),
        ),
        (
            "when_off",
            defaulted(
                String,
                "Effect of a restart, a power cycle or an NMI on a server that is off: `skip` (the default) does nothing, `power_on` switches it on instead, and `error` fails.",
            ),
        ),
        (
            "proof",
            defaulted(
                String,
                "Evidence that the operation took effect. `accepted`: the BMC accepted it. `power` (the default): the server has the resulting power state, and a new last-reset time if the BMC reports one. `boot`: as `power`, and the operating system runs again; requires a BMC that reports boot progress. Without the evidence in time, the outcome is `Unproven`, with a warning, and the operation is not repeated.",
            ),
        ),
        (
            "policy",
            optional(
                String,
                "`Enforced` or `OwnerApproval`, as for `metal_server_maintenance`. Required without `maintenance_id`. With `maintenance_id`, no approval is needed by default; `OwnerApproval` requires the owner's approval even under that maintenance.",
            ),
        ),
        (
            "triggers",
            optional(
                Map(Box::new(String)),
                "Any values. A change replaces the resource and runs the operation again. At most 32 entries, with names of 128 and values of 1024 characters. The coordination store, states and plans contain the values, so do not put secrets here. Messages, `show` and the audit log show a short digest of each value.",
            ),
        ),
        (
            "timeouts",
            timeouts([
                (
                    "create",
                    "Limit for waiting and for the operation. Default: `\"1h\"`. If it ends during the wait, the queue position stays reserved for `hold_place_for`.",
                ),
                ("update", "Limit for resuming after an interruption. Default: `\"1h\"`."),
                ("delete", "Limit for leaving the queue. Default: `\"30m\"`."),
            ]),
        ),
    ]));
    all.extend(turn_attributes());
    schema(
        "Runs one power operation on a server, or one service in its external system, once per set of `triggers`. It waits \
         in the same queue as every maintenance and locks the server. Destroy does not touch the server.",
        all,
    )
}

impl OperationModel {
    /// Returns the attributes that identify its record.
    pub(in crate::provider) fn remembered(&self) -> Remembered<'_> {
        Remembered { id: &self.id, lock_key: &self.lock_key, mark: Mark::RequestedAt(&self.requested_at) }
    }

    /// Fills in default values.
    pub(in crate::provider) fn set_defaults(&mut self) {
        or_default(&mut self.priority, 0);
        or_default(&mut self.when_off, "skip".to_owned());
        or_default(&mut self.proof, "power".to_owned());
        or_default(&mut self.hold_place_for, HOLD_PLACE_FOR.to_owned());
    }

    /// Returns the name if both parts are known.
    pub(in crate::provider) fn name_id(&self) -> Option<MaintenanceId> {
        MaintenanceId::new(given(&self.namespace)?, given(&self.name)?).ok()
    }

    /// Returns the maintenance under which it runs, if known; `None` if it queues separately.
    pub(in crate::provider) fn under(&self) -> Option<&str> {
        under(&self.maintenance_id)
    }

    /// Returns the queue attributes.
    fn turn(&self) -> OwnTurn<'_> {
        OwnTurn {
            maintenance_id: &self.maintenance_id,
            policy: &self.policy,
            default_policy: None,
            require_claim: &self.require_claim,
            escalate_after: &self.escalate_after,
            reason: &self.reason,
            ticket: &self.ticket,
            priority: &self.priority,
            window: &self.window,
            hold_place_for: &self.hold_place_for,
        }
    }

    /// Returns the parts that affect the server; `None` while one is unknown.
    pub(in crate::provider) fn acting(&self) -> Option<Spec> {
        if let Value::Value(service) = &self.service {
            let service = Some(Box::new(service.check(&mut Diagnostics::default())?));
            return Some(Spec { service, ..Spec::new(MaintenanceKind::Operation, given(&self.server)?) });
        }
        let (reset, when_off) = (ResetType::from_name(given(&self.operation)?)?, WhenOff::Skip);
        let operation = Some(OperationSpec { reset, when_off, proof: CompletionProof::Power });
        Some(Spec { operation, ..Spec::new(MaintenanceKind::Operation, given(&self.server)?) })
    }

    /// Checks the known values; returns the specification, without the maintenance's uid, if it is
    /// valid and complete.
    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics, engine: Option<&Engine>) -> Option<Spec> {
        let path = AttributePath::new;
        check_names(diags, &self.namespace, &self.name);
        short(diags, &self.server, path("server"), limits::SERVER);
        check_triggers(diags, &self.triggers);
        let service = self.check_service(diags);
        let reset = one_of(diags, &self.operation, path("operation"), &ResetType::NAMES, ResetType::from_name);
        let when_off = one_of(diags, &self.when_off, path("when_off"), &WhenOff::NAMES, WhenOff::from_name);
        let proof = one_of(diags, &self.proof, path("proof"), &CompletionProof::NAMES, CompletionProof::from_name);
        if reset == Some(ResetType::Nmi) && proof == Some(CompletionProof::Boot) {
            let detail = "An NMI does not necessarily restart the server. Set proof = \"accepted\".";
            bad(diags, path("proof"), "Not for this operation", detail);
        }
        check_timeouts(diags, &self.timeouts);
        let base = Spec::new(MaintenanceKind::Operation, given(&self.server).unwrap_or_default());
        let spec = self.turn().check(diags, engine, base)?;
        Some(Spec {
            server: given(&self.server)?.into(),
            operation: match &service {
                Some(_) => None,
                None if !self.service.is_null() => return None,
                None => Some(OperationSpec { reset: reset?, when_off: when_off?, proof: proof? }),
            },
            service: service.map(Box::new),
            triggers: triggers(&self.triggers),
            ..spec
        })
    }

    /// Checks that exactly one of `operation` and `service` is set, and checks the service.
    fn check_service(&self, diags: &mut Diagnostics) -> Option<ServiceSpec> {
        let both = is_given(&self.service) && is_given(&self.operation);
        if both || (self.service.is_null() && self.operation.is_null()) {
            let detail =
                "Set operation for a power operation, or service for work of the external system, but not both.";
            bad(diags, AttributePath::new("operation"), "Exactly one of operation and service", detail);
        }
        match &self.service {
            Value::Value(service) => service.check(diags),
            _ => None,
        }
    }

    /// Returns changed attributes that repeat the operation.
    pub(in crate::provider) fn replacing(&self, prior: &Self) -> Vec<AttributePath> {
        let mut paths = Vec::new();
        for (name, now, before) in [
            ("server", &self.server, &prior.server),
            ("namespace", &self.namespace, &prior.namespace),
            ("name", &self.name, &prior.name),
            ("operation", &self.operation, &prior.operation),
            ("maintenance_id", &self.maintenance_id, &prior.maintenance_id),
        ] {
            if now != before {
                paths.push(AttributePath::new(name));
            }
        }
        if self.service != prior.service {
            paths.push(AttributePath::new("service"));
        }
        if !same_texts(&self.triggers, &prior.triggers) {
            paths.push(AttributePath::new("triggers"));
        }
        paths
    }

    /// Copies the record into the computed attributes.
    pub(in crate::provider) fn show(&mut self, record: &Maintenance) {
        let state = match &record.phase {
            Phase::InMaintenance { .. } => "Completed",
            phase => phase.name(),
        };
        self.id = Value::Value(record.id.to_string());
        self.state = Value::Value(state.to_owned());
        self.outcome = known(record.outcome.map(|outcome| outcome.to_string()));
        self.requested_at = Value::Value(record.requested_at.to_string());
        self.completed_at = known(record.started_at.map(|at| at.to_string()));
        self.lock_key = Value::Value(record.lock_key.to_string());
        self.previous_power_state = known(record.prior.as_ref().map(|prior| prior.power.to_string()));
    }
}
