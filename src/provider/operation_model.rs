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
        operate::{OperationSpec, Proof, WhenOff},
        spec::{Kind, Policy, Spec},
        state::{Maintenance, Phase},
        window::OnClose,
    },
};

use super::{
    schema::{attributes, computed, defaulted, optional, required, schema, timeouts},
    values::{
        Text, Texts, Timeouts, bad, check_names, check_priority, check_timeouts, check_triggers, duration, given,
        known, one_of, or_default, short, texts,
    },
    window::{self, WindowModel, window_attribute},
};

/// How long a place is kept when nothing is said.
const HOLD_PLACE_FOR: &str = "15m";

/// A `metal_server_operation` in configuration, plan and state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct OperationModel {
    pub(super) id: Text,
    pub(super) server: Text,
    pub(super) namespace: Text,
    pub(super) name: Text,
    pub(super) operation: Text,
    pub(super) maintenance_id: Text,
    pub(super) when_off: Text,
    pub(super) proof: Text,
    pub(super) policy: Text,
    pub(super) require_claim: ValueBool,
    pub(super) escalate_after: Text,
    pub(super) reason: Text,
    pub(super) ticket: Text,
    pub(super) priority: ValueNumber,
    pub(super) window: Value<WindowModel>,
    pub(super) hold_place_for: Text,
    pub(super) triggers: Texts,
    pub(super) timeouts: Value<Timeouts>,
    pub(super) effect: Text,
    pub(super) state: Text,
    pub(super) outcome: Text,
    pub(super) requested_at: Text,
    pub(super) completed_at: Text,
    pub(super) lock_key: Text,
    pub(super) previous_power_state: Text,
}

/// The schema.
#[allow(clippy::too_many_lines, reason = "a table: one line an attribute")]
pub(super) fn operation_schema() -> Schema {
    use AttributeType::{Bool, Map, Number, String};
    let mut all = attributes([
        ("server", required(String, "The server's name in the provider's configuration. Changing it replaces.")),
        (
            "namespace",
            required(
                String,
                "First part of the name under which the operation is found again after a crash. Changing it replaces.",
            ),
        ),
        ("name", required(String, "Second part of that name. Changing it replaces.")),
        (
            "operation",
            required(
                String,
                "`On`, `ForceOff`, `GracefulShutdown`, `GracefulRestart`, `ForceRestart`, `PowerCycle` or `Nmi`: made once. Changing it replaces, and so makes the new one.",
            ),
        ),
        (
            "maintenance_id",
            optional(
                String,
                "The `id` of a `metal_server_maintenance` that holds this server: the operation is made under that hold. Without it the operation takes its own turn in the same queue. Changing it replaces.",
            ),
        ),
        (
            "when_off",
            defaulted(
                String,
                "What a restart, a power cycle or an NMI does to a server that is off: `skip` (nothing; the default), `power_on` (switches it on instead) or `error`.",
            ),
        ),
        (
            "proof",
            defaulted(
                String,
                "What has to be seen: `accepted` (the BMC took it), `power` (the power it leads to, and a new time of the last reset where the BMC tells one; the default) or `boot` (that, and that the operating system runs again; needs a BMC that shows boot progress). What is not seen in time is `Unproven`, with a warning, and is not repeated.",
            ),
        ),
        (
            "policy",
            optional(
                String,
                "`Enforced` or `OwnerApproval`, as for `metal_server_maintenance`. Needed unless `maintenance_id` is given: then no approval is needed by default, and `OwnerApproval` asks the owner also under that maintenance.",
            ),
        ),
        (
            "require_claim",
            optional(
                Bool,
                "With `OwnerApproval`: wait until somebody claims the server and approves. Default: `false`.",
            ),
        ),
        (
            "escalate_after",
            optional(
                String,
                "With `OwnerApproval`: after how long without an answer it is made all the same. Default: never.",
            ),
        ),
        ("reason", optional(String, "Why, for people.")),
        ("ticket", optional(String, "Where it is discussed.")),
        ("priority", defaulted(Number, "Higher goes first in the queue, from `-100` to `100`. Default: `0`.")),
        (
            "hold_place_for",
            defaulted(String, "How long the place in the queue is kept for a run that went away. Default: `\"15m\"`."),
        ),
        (
            "triggers",
            optional(Map(Box::new(String)), "Any values; a change replaces, so that the operation is made again."),
        ),
        ("id", computed(String, "`namespace/name`.")),
        (
            "effect",
            computed(
                String,
                "What apply does to the server, known at plan. An update that leaves it as it is does not touch the server.",
            ),
        ),
        (
            "state",
            computed(
                String,
                "`Pending`, `Preparing` (being made) or `Completed`. Unknown in a plan that goes on with an interrupted one.",
            ),
        ),
        (
            "outcome",
            computed(
                String,
                "`Proven`, `Accepted`, `Skipped` (the server was as wanted, or off) or `Unproven`; null until it is made.",
            ),
        ),
        ("requested_at", computed(String, "When it was asked for (RFC 3339, UTC).")),
        ("completed_at", computed(String, "When it was made (RFC 3339, UTC).")),
        ("lock_key", computed(String, "The server's hardware identity, under which it is locked.")),
        ("previous_power_state", computed(String, "The server's power before. Nothing is put back.")),
        (
            "timeouts",
            timeouts([
                (
                    "create",
                    "For waiting and for the operation. Default: `\"1h\"`. When it ends while waiting, the place in the queue is kept for `hold_place_for`.",
                ),
                ("update", "For going on with an interrupted one. Default: `\"1h\"`."),
                ("delete", "For leaving the queue. Default: `\"30m\"`."),
            ]),
        ),
    ]);
    all.insert("window".to_owned(), window_attribute());
    schema(
        "Makes one power operation on a server, once per set of `triggers`, under the same lock and in the same queue as every \
         maintenance. Destroy touches nothing: the server stays as the operation left it.",
        all,
    )
}

impl OperationModel {
    /// Fills what has a default.
    pub(super) fn set_defaults(&mut self) {
        or_default(&mut self.priority, 0);
        or_default(&mut self.when_off, "skip".to_owned());
        or_default(&mut self.proof, "power".to_owned());
        or_default(&mut self.hold_place_for, HOLD_PLACE_FOR.to_owned());
    }

    /// Its name, once its parts are known.
    pub(super) fn name_id(&self) -> Option<MaintenanceId> {
        MaintenanceId::new(given(&self.namespace)?, given(&self.name)?).ok()
    }

    /// The hold that is named.
    pub(super) fn hold(&self, diags: &mut Diagnostics) -> Option<MaintenanceId> {
        let text = given(&self.maintenance_id)?;
        match text.parse() {
            Ok(id) => Some(id),
            Err(problem) => {
                let detail = format!("{text:?}: it {problem}. Use the id of a metal_server_maintenance.");
                bad(diags, AttributePath::new("maintenance_id"), "Not an id of a maintenance", detail);
                None
            }
        }
    }

    /// The parts that act on the server; `None` while one of them is not known.
    pub(super) fn acting(&self) -> Option<Spec> {
        let (reset, when_off) = (ResetType::from_name(given(&self.operation)?)?, WhenOff::Skip);
        let operation = Some(OperationSpec { reset, when_off, proof: Proof::Power });
        Some(Spec { operation, ..Spec::new(Kind::Operation, given(&self.server)?) })
    }

    /// Checks everything that is known; tells what is asked, except the hold's incarnation, when nothing is wrong or
    /// missing.
    pub(super) fn check(&self, diags: &mut Diagnostics, engine: Option<&Engine>) -> Option<Spec> {
        let path = AttributePath::new;
        check_names(diags, &self.namespace, &self.name);
        for (name, value, most) in [
            ("server", &self.server, limits::SERVER),
            ("reason", &self.reason, limits::REASON),
            ("ticket", &self.ticket, limits::TICKET),
        ] {
            short(diags, value, path(name), most);
        }
        check_priority(diags, &self.priority, path("priority"));
        check_triggers(diags, &self.triggers);
        let reset = one_of(diags, &self.operation, path("operation"), &ResetType::NAMES, ResetType::from_name);
        let when_off = one_of(diags, &self.when_off, path("when_off"), &WhenOff::NAMES, WhenOff::from_name);
        let proof = one_of(diags, &self.proof, path("proof"), &Proof::NAMES, Proof::from_name);
        if reset == Some(ResetType::Nmi) && proof == Some(Proof::Boot) {
            let detail = "An interrupt need not restart anything. Say proof = \"accepted\".";
            bad(diags, path("proof"), "Not for this operation", detail);
        }
        self.hold(diags);
        let policy = self.check_policy(diags);
        let escalate_after = duration(diags, &self.escalate_after, path("escalate_after"));
        let window = window::asked(diags, &self.window, OnClose::Finish, engine);
        let hold_place_for = duration(diags, &self.hold_place_for, path("hold_place_for"));
        check_timeouts(diags, &self.timeouts);
        if !diags.errors.is_empty() {
            return None;
        }
        let base = Spec::new(Kind::Operation, given(&self.server)?);
        Some(Spec {
            operation: Some(OperationSpec { reset: reset?, when_off: when_off?, proof: proof? }),
            policy: policy?,
            require_claim: self.require_claim == Value::Value(true),
            escalate_after,
            reason: given(&self.reason).map(str::to_owned),
            ticket: given(&self.ticket).map(str::to_owned),
            priority: if let Value::Value(priority) = self.priority { priority } else { 0 },
            window: window?,
            hold_place_for: hold_place_for.unwrap_or(base.hold_place_for),
            triggers: texts(&self.triggers),
            ..base
        })
    }

    /// Under a maintenance no window counts: the server is out of service. The policy of the operation does, where it
    /// has one: what was approved is the maintenance, not everything that is done under it.
    fn check_policy(&self, diags: &mut Diagnostics) -> Option<Policy> {
        let path = AttributePath::new;
        if !self.maintenance_id.is_null() && !self.window.is_null() {
            let detail = "With maintenance_id the operation runs under that maintenance, whose window counted.";
            bad(diags, path("window"), "Not under a maintenance", detail);
        }
        if !self.maintenance_id.is_null() && self.policy.is_null() {
            for (name, given) in
                [("require_claim", !self.require_claim.is_null()), ("escalate_after", !self.escalate_after.is_null())]
            {
                if given {
                    let detail = "Without a policy of its own the operation needs no approval under a maintenance. Say policy = \"OwnerApproval\".";
                    bad(diags, path(name), "Only with OwnerApproval", detail);
                }
            }
            return Some(Policy::Enforced);
        }
        if self.policy.is_null() {
            let detail = "Say policy = \"OwnerApproval\" or \"Enforced\", or maintenance_id to act under a hold.";
            bad(diags, path("policy"), "A policy is needed", detail);
        }
        let policy = one_of(diags, &self.policy, path("policy"), &Policy::NAMES, Policy::from_name);
        if policy == Some(Policy::Enforced) {
            for (name, given) in
                [("require_claim", !self.require_claim.is_null()), ("escalate_after", !self.escalate_after.is_null())]
            {
                if given {
                    let detail =
                        "With policy = \"Enforced\" nobody is asked. Leave it out, or say policy = \"OwnerApproval\".";
                    bad(diags, path(name), "Only with OwnerApproval", detail);
                }
            }
        }
        policy
    }

    /// The attributes whose change makes it again.
    pub(super) fn replacing(&self, prior: &Self) -> Vec<AttributePath> {
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
        if self.triggers != prior.triggers {
            paths.push(AttributePath::new("triggers"));
        }
        paths
    }

    /// Everything the provider tells is not known yet.
    pub(super) fn unknown_outputs(&mut self) {
        for text in [
            &mut self.id,
            &mut self.state,
            &mut self.outcome,
            &mut self.requested_at,
            &mut self.completed_at,
            &mut self.lock_key,
            &mut self.previous_power_state,
        ] {
            *text = Value::Unknown;
        }
    }

    /// Fills what the record tells.
    pub(super) fn show(&mut self, record: &Maintenance) {
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
