//! Schema and model of `metal_server_maintenance`.

mod checks;
mod plan;

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::{AttributeType, Schema},
    value::{Value, ValueBool, ValueList, ValueNumber},
};

use crate::{
    engine::Engine,
    maintenance::{
        hand_over::HandOver,
        ids::MaintenanceId,
        limits,
        spec::{CompleteWhen, MaintenanceKind, Policy, Spec, WaitFor},
    },
};

use crate::provider::{
    shared::boot::{self, BootModel},
    shared::outputs::outputs,
    shared::schema::{attributes, defaulted, object, optional, required, schema, timeouts},
    shared::values::{
        Text, Texts, Timeouts, bad, check_names, check_priority, check_timeouts, check_triggers, duration, given,
        one_of, or_default, power, short, texts,
    },
    shared::window::{self, WindowModel, on_close, window_attribute},
    shared::write_only,
};

/// The object `complete_when`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct CompleteModel {
    #[serde(default)]
    power_state: Text,
    #[serde(default)]
    url: Text,
    #[serde(default)]
    status: ValueNumber,
}

/// A `metal_server_maintenance` in configuration, plan and state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct MaintenanceModel {
    pub(in crate::provider) id: Text,
    pub(in crate::provider) server: Text,
    pub(in crate::provider) namespace: Text,
    pub(in crate::provider) name: Text,
    pub(in crate::provider) policy: Text,
    pub(in crate::provider) require_claim: ValueBool,
    pub(in crate::provider) escalate_after: Text,
    pub(in crate::provider) reason: Text,
    pub(in crate::provider) ticket: Text,
    pub(in crate::provider) priority: ValueNumber,
    pub(in crate::provider) server_power: Text,
    pub(in crate::provider) boot_configuration: Value<BootModel>,
    pub(in crate::provider) window: Value<WindowModel>,
    pub(in crate::provider) on_window_close: Text,
    pub(in crate::provider) on_end: Text,
    pub(in crate::provider) on_drift: Text,
    pub(in crate::provider) hand_over: Text,
    pub(in crate::provider) wait_for: Text,
    pub(in crate::provider) complete_when: Value<CompleteModel>,
    pub(in crate::provider) expires_after: Text,
    pub(in crate::provider) hold_place_for: Text,
    pub(in crate::provider) allow_under: ValueList<Text>,
    pub(in crate::provider) adopt: ValueBool,
    pub(in crate::provider) triggers: Texts,
    pub(in crate::provider) timeouts: Value<Timeouts>,
    pub(in crate::provider) effect: Text,
    pub(in crate::provider) state: Text,
    pub(in crate::provider) waiting_for: Text,
    pub(in crate::provider) queue_position: ValueNumber,
    pub(in crate::provider) requested_at: Text,
    pub(in crate::provider) started_at: Text,
    pub(in crate::provider) generation: ValueNumber,
    pub(in crate::provider) managed_by: Text,
    pub(in crate::provider) lock_key: Text,
    pub(in crate::provider) power_state: Text,
    pub(in crate::provider) previous_power_state: Text,
}

/// The default of `wait_for`.
const WAIT_FOR: &str = "InMaintenance";
/// The default of `hold_place_for`.
const HOLD_PLACE_FOR: &str = "15m";

outputs!(MaintenanceModel {
    at_plan {
        effect: String, "What apply does to the server, known at plan. An update that leaves it as it is does not touch the server.";
    }
    after_apply {
        id: String, "`namespace/name`.";
        state: String, "`Pending`, `Preparing`, `InMaintenance`, `Revoked`, `Releasing`, `Completed` or `Failed`. `Revoked`: another author ended what the maintenance relies on. Unknown in a plan that resumes or ends a maintenance.";
        waiting_for: String, "What a pending maintenance waits for; null once the server is locked.";
        queue_position: Number, "How many maintenances are before it; null once the server is locked.";
        requested_at: String, "When it was requested (RFC 3339, UTC).";
        started_at: String, "When the server was prepared (RFC 3339, UTC).";
        generation: Number, "The generation, raised each time a process attaches; `release` on the command line asks for it.";
        managed_by: String, "The random number of the state that manages the maintenance; null after an import until apply takes the maintenance over.";
        lock_key: String, "The server's hardware identity, under which it is locked.";
        power_state: String, "The server's power when it was last looked at.";
        previous_power_state: String, "The server's power before; restored at destroy.";
    }
});

/// Builds the schema.
#[allow(clippy::too_many_lines, reason = "a table: one line an attribute")]
pub(in crate::provider) fn maintenance_schema() -> Schema {
    use AttributeType::{Bool, List, Map, Number, String};
    let mut all = MaintenanceModel::with_outputs(attributes([
        (
            "server",
            required(
                String,
                "The server's name in the provider's configuration. Changing it replaces: this server is released and the other one is requested.",
            ),
        ),
        (
            "namespace",
            required(
                String,
                "First part of the name under which the maintenance is found again without a state file. Changing it replaces.",
            ),
        ),
        ("name", required(String, "Second part of that name. Changing it replaces.")),
        (
            "policy",
            required(
                String,
                "`Enforced` needs no approval. `OwnerApproval` locks a claimed server (`metal_server_claim`) only with the owner's approval (`metal_maintenance_approval`); an unclaimed server needs none. The owner sees both kinds.",
            ),
        ),
        (
            "require_claim",
            optional(
                Bool,
                "With `OwnerApproval`: an unclaimed server is not locked either; the maintenance waits for a claim and its approval. Default: `false`.",
            ),
        ),
        (
            "escalate_after",
            optional(
                String,
                "With `OwnerApproval`: no approval is needed any more this long after the request, for example `\"72h\"`; queue and window still apply, and the owner is notified from the start. Default: never.",
            ),
        ),
        ("reason", optional(String, "Why, for people. Shown wherever the holder is named. At most 1024 characters.")),
        ("ticket", optional(String, "Where it is discussed. At most 2048 characters.")),
        (
            "priority",
            defaulted(
                Number,
                "Higher goes first in the queue, from `-100` to `100`. Default: `0`. A maintenance that holds its server is never evicted. Age counts: see the provider's `aging`.",
            ),
        ),
        (
            "server_power",
            optional(
                String,
                "Power wanted while in maintenance: `On` or `Off`. With a `boot_configuration` the server is switched off, configured, and then brought to this power. Default: the power is left as it is, and a boot configuration takes effect whenever the server is next started.",
            ),
        ),
        (
            "wait_for",
            defaulted(
                String,
                "How far create goes: `Enqueued` (a place in the queue, without waiting), `InMaintenance` (held and prepared; the default) or `Completed` (until `complete_when` comes true and the server is released).",
            ),
        ),
        (
            "on_window_close",
            optional(
                String,
                "What the closing of the window means for a maintenance that runs. `finish` (the default): nothing. `release`: it is overdue, as after `expires_after`, and preparing that has not ended is undone.",
            ),
        ),
        (
            "hand_over",
            optional(
                String,
                "What becomes of the server when another maintenance waits for it at the end of this one: `restore` (the default) restores it first; `direct` leaves it as it is to the next one, if that says `direct` too and nothing else is served before it. The state before the first of them is restored at the end of the last one. The server is always restored where an external system manages it (`metal_operator`, `metal3`, `ironic`), and where it has a Machine in `cluster_api`, a Node in `kubernetes_node`, or a Node in `node_leases` with `take`.",
            ),
        ),
        (
            "on_drift",
            optional(
                String,
                "What a plan does about a held server whose power is not `server_power` any more: `warn` (the default) leaves it, `restore` prepares the server again; with a `boot_configuration` it boots that again.",
            ),
        ),
        (
            "on_end",
            optional(
                String,
                "What the next plan does about a maintenance that ended outside this configuration: by hand, by `complete_when`, after `expires_after`, or because another author revoked it. `replace` (the default) requests it again; `keep` leaves the resource in the state, without a lock. With `wait_for = \"Completed\"` its end is the goal, and nothing is replaced.",
            ),
        ),
        (
            "expires_after",
            optional(
                String,
                "How long the server may be held, for example `\"12h\"`. Afterwards the maintenance is overdue: plans warn, and the next waiter of the same store that may start releases it and takes the lock. With `metal_operator` that holds too, but another author's ServerMaintenance in the cluster does not end it. Default: never.",
            ),
        ),
        (
            "hold_place_for",
            defaulted(
                String,
                "How long the queue position is reserved for a run that disconnected. Default: `\"15m\"`.",
            ),
        ),
        (
            "allow_under",
            optional(
                List(Box::new(String)),
                "Further owners (the provider's `owner`) whose operations and boot configurations may name this maintenance in `maintenance_id`. Default: only its own.",
            ),
        ),
        (
            "adopt",
            optional(
                Bool,
                "Take over a maintenance with this name from another state, which then loses it. Without `adopt` only an import takes it over. A maintenance whose create was killed is always continued. Default: `false`.",
            ),
        ),
        (
            "triggers",
            optional(
                Map(Box::new(String)),
                "Any values; a change replaces the resource and runs the maintenance again. At most 32 entries, with names of 128 and values of 1024 characters. The coordination store keeps the values, and states and plans show them, so do not put secrets here; messages, `show` and the audit log show a short digest of each value.",
            ),
        ),
        (
            "timeouts",
            timeouts([
                (
                    "create",
                    "For waiting and preparing. Default: `\"1h\"`. When it ends while waiting, the queue position is reserved for `hold_place_for`; when it ends while preparing, the server is restored and released.",
                ),
                ("update", "For resuming an interrupted maintenance and for changes. Default: `\"1h\"`."),
                (
                    "delete",
                    "For restoring and releasing the server. Default: `\"30m\"`. When it ends, the server stays held and the next destroy resumes.",
                ),
            ]),
        ),
    ]));
    let mut boot = attributes(boot::attributes());
    boot.extend(attributes(write_only::attributes()));
    boot.insert("method".to_owned(), required(String, &boot::method_text()));
    all.insert(
        "boot_configuration".to_owned(),
        optional(
            AttributeType::AttributeSingle(boot),
            "What the server boots for the maintenance. The prior state is restored at destroy.",
        ),
    );
    all.insert("window".to_owned(), window_attribute());
    all.insert(
        "complete_when".to_owned(),
        optional(
            object([
                ("power_state", optional(String, "`On` or `Off`: ends when the server is seen so.")),
                ("url", optional(String, "Ends when this URL answers with `status`.")),
                ("status", defaulted(Number, "The status that counts for `url`. Default: `200`.")),
            ]),
            "When the maintenance ends by itself; with `wait_for = \"Completed\"` one apply runs all of it and releases the server.",
        ),
    );
    schema(
        "Takes a server out of service: waits in the queue, holds the server under a durable lock and boots it as \
         configured. Destroy restores the prior state and releases the server.",
        all,
    )
}

impl MaintenanceModel {
    /// Fills in default values.
    pub(in crate::provider) fn set_defaults(&mut self) {
        or_default(&mut self.priority, 0);
        or_default(&mut self.wait_for, WAIT_FOR.to_owned());
        or_default(&mut self.hold_place_for, HOLD_PLACE_FOR.to_owned());
        if let Value::Value(boot) = &mut self.boot_configuration {
            boot.set_defaults();
        }
        if let Value::Value(complete) = &mut self.complete_when
            && !complete.url.is_null()
        {
            or_default(&mut complete.status, 200);
        }
    }

    /// Returns the name if both parts are known.
    pub(in crate::provider) fn name_id(&self) -> Option<MaintenanceId> {
        MaintenanceId::new(given(&self.namespace)?, given(&self.name)?).ok()
    }

    /// Returns the phase for which create waits.
    pub(in crate::provider) fn wait_for(&self) -> WaitFor {
        match given(&self.wait_for) {
            Some("Enqueued") => WaitFor::Enqueued,
            Some("Completed") => WaitFor::Completed,
            _ => WaitFor::InMaintenance,
        }
    }

    /// Checks every known value; returns the specification if it is valid and complete.
    ///
    /// Without the engine, named windows and opening times are not checked.
    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics, engine: Option<&Engine>) -> Option<Spec> {
        let path = |name: &'static str| AttributePath::new(name);
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
        let policy = one_of(diags, &self.policy, path("policy"), &Policy::NAMES, Policy::from_name);
        let require_claim = self.require_claim == Value::Value(true);
        let escalate_after = duration(diags, &self.escalate_after, path("escalate_after"));
        if policy == Some(Policy::Enforced) {
            for (name, given) in [("require_claim", require_claim), ("escalate_after", escalate_after.is_some())] {
                if given {
                    let detail =
                        "policy = \"Enforced\" needs no approval. Leave it out, or say policy = \"OwnerApproval\".";
                    bad(diags, path(name), "Only with OwnerApproval", detail);
                }
            }
        }
        let on_close = on_close(diags, &self.on_window_close, !self.window.is_null());
        let window = window::asked(diags, &self.window, on_close, engine);
        let server_power = power(diags, &self.server_power, path("server_power"));
        let boot = match &self.boot_configuration {
            Value::Value(boot) => boot.check(diags, &path("boot_configuration")),
            _ => None,
        };
        one_of(diags, &self.wait_for, path("wait_for"), &["Enqueued", "InMaintenance", "Completed"], |text| {
            matches!(text, "Enqueued" | "InMaintenance" | "Completed").then_some(())
        });
        let hand_over = one_of(diags, &self.hand_over, path("hand_over"), &HandOver::NAMES, HandOver::from_name);
        one_of(diags, &self.on_drift, path("on_drift"), &["warn", "restore"], |text| {
            matches!(text, "warn" | "restore").then_some(())
        });
        one_of(diags, &self.on_end, path("on_end"), &["replace", "keep"], |text| {
            matches!(text, "replace" | "keep").then_some(())
        });
        let complete_when = self.check_completion(diags);
        let expires_after = duration(diags, &self.expires_after, path("expires_after"));
        let hold_place_for = duration(diags, &self.hold_place_for, path("hold_place_for"));
        let allow_under = self.check_allow_under(diags);
        check_timeouts(diags, &self.timeouts);
        if !diags.errors.is_empty() {
            return None;
        }
        Some(Spec {
            allow_under,
            window: window?,
            policy: policy?,
            require_claim,
            escalate_after,
            reason: given(&self.reason).map(str::to_owned),
            ticket: given(&self.ticket).map(str::to_owned),
            priority: if let Value::Value(priority) = self.priority { priority } else { 0 },
            server_power,
            boot,
            complete_when,
            expires_after,
            hold_place_for: hold_place_for.unwrap_or(Duration::from_mins(15)),
            hand_over: hand_over.unwrap_or_default(),
            triggers: texts(&self.triggers),
            ..Spec::new(MaintenanceKind::Maintenance, given(&self.server)?)
        })
    }

    /// See [`BootModel::hand_over`].
    pub(in crate::provider) fn hand_over(&self, engine: &Engine) {
        if let Value::Value(boot) = &self.boot_configuration {
            boot.hand_over(engine);
        }
    }
}

/// Converts a map for the state.
pub(in crate::provider) fn shown_texts(map: &BTreeMap<String, String>) -> Texts {
    if map.is_empty() {
        return Value::Null;
    }
    Value::Value(map.iter().map(|(name, text)| (name.clone(), Value::Value(text.clone()))).collect())
}

impl From<&CompleteWhen> for CompleteModel {
    fn from(when: &CompleteWhen) -> Self {
        match when {
            CompleteWhen::PowerState(power) => {
                Self { power_state: Value::Value(power.to_string()), url: Value::Null, status: Value::Null }
            }
            CompleteWhen::Url(check) => Self {
                power_state: Value::Null,
                url: Value::Value(check.url.clone()),
                status: Value::Value(i64::from(check.status)),
            },
        }
    }
}
