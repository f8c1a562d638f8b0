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
use crate::{
    engine::Engine,
    maintenance::{
        hand_over::HandOver,
        ids::MaintenanceId,
        limits,
        spec::{CompleteWhen, MaintenanceKind, Policy, Spec, WaitFor},
    },
    shown::OneLine,
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
        effect: String, "The effect of apply on the server, shown in the plan. An update that does not change the effect does not touch the server.";
    }
    after_apply {
        id: String, "`namespace/name`.";
        state: String, "`Pending`, `Preparing`, `InMaintenance`, `Revoked`, `Releasing`, `Completed` or `Failed`. `Revoked`: another author ended an object on which the maintenance depends. Unknown in a plan that resumes or ends a maintenance.";
        waiting_for: String, "The reason for a pending maintenance's wait; null after the server is locked.";
        queue_position: Number, "Number of maintenances ahead; null after the server is locked.";
        requested_at: String, "When it was requested (RFC 3339, UTC).";
        started_at: String, "When the server was prepared (RFC 3339, UTC).";
        generation: Number, "The generation, which increases each time a process attaches. The command `release` requires it.";
        managed_by: String, "The managing state's random number; null after an import until apply takes the maintenance over.";
        lock_key: String, "The server's hardware identity, which is the lock key.";
        power_state: String, "The server's power at the last read.";
        previous_power_state: String, "The server's prior power; restored at destroy.";
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
                "The server's name in the provider's configuration. Changing it replaces the resource: it releases this server and requests the other.",
            ),
        ),
        (
            "namespace",
            required(
                String,
                "First part of the name. The provider finds the maintenance by `namespace/name`, even without a state file. Changing it replaces the resource.",
            ),
        ),
        ("name", required(String, "Second part of the name, after `namespace`. Changing it replaces the resource.")),
        (
            "policy",
            required(
                String,
                "`Enforced` does not need approval. With `OwnerApproval`, a claimed server (`metal_server_claim`) needs the owner's approval (`metal_maintenance_approval`); an unclaimed server does not. The claim shows both kinds.",
            ),
        ),
        (
            "require_claim",
            optional(
                Bool,
                "With `OwnerApproval`: do not lock an unclaimed server; wait for a claim and its approval. Default: `false`.",
            ),
        ),
        (
            "escalate_after",
            optional(
                String,
                "With `OwnerApproval`: time after the request when the maintenance can start without approval, for example `\"72h\"`. Queue and window still apply, and the owner is notified from the start. Default: never.",
            ),
        ),
        ("reason", optional(String, "The reason, shown wherever the holder is named. At most 1024 characters.")),
        ("ticket", optional(String, "The ticket, for example its URL. At most 2048 characters.")),
        (
            "priority",
            defaulted(
                Number,
                "Queue priority from `-100` to `100`; higher goes first. Default: `0`. A holder is never evicted. Waiting raises the priority: see the provider's `aging`.",
            ),
        ),
        (
            "server_power",
            optional(
                String,
                "The power state that the maintenance sets: `On` or `Off`. With a `boot_configuration`, the server is switched off, configured, and then brought to this power. Default: the power is not changed, and a boot configuration takes effect at the server's next start.",
            ),
        ),
        (
            "wait_for",
            defaulted(
                String,
                "How far create proceeds: `Enqueued` (in the queue, without waiting), `InMaintenance` (locked and prepared; the default) or `Completed` (until `complete_when` is true and the server is released).",
            ),
        ),
        (
            "on_window_close",
            optional(
                String,
                "Effect of the window's end on a running maintenance. `finish` (the default): none. `release`: the maintenance becomes overdue, as after `expires_after`, and unfinished preparation is undone.",
            ),
        ),
        (
            "hand_over",
            optional(
                String,
                "How the maintenance ends if another maintenance waits for the server. `restore` (the default) restores the server first. `direct` passes it on unchanged if the next maintenance also has `direct` and nothing else is served before it. The last of these maintenances then restores the state from before the first. The server is always restored if an external system manages it (`metal_operator`, `metal3`, `ironic`). The same applies if it has a Machine in `cluster_api`, a Node in `kubernetes_node`, or a Node in `node_leases` with `take`.",
            ),
        ),
        (
            "on_drift",
            optional(
                String,
                "The plan's reaction if a held server's power differs from `server_power`: `warn` (the default) leaves it, `restore` prepares the server again and boots any `boot_configuration` again.",
            ),
        ),
        (
            "on_end",
            optional(
                String,
                "The next plan's reaction if the maintenance ended outside this configuration: by hand, by `complete_when`, after `expires_after`, or because another author revoked it. `replace` (the default) requests it again; `keep` leaves the resource in the state, without a lock. With `wait_for = \"Completed\"`, the end is the goal, and nothing is replaced.",
            ),
        ),
        (
            "expires_after",
            optional(
                String,
                "The longest lock time, for example `\"12h\"`. Afterwards the maintenance is overdue: plans warn, and the next waiter in the same store that can start releases it and takes the lock. This also applies with `metal_operator`, but another author's ServerMaintenance in the cluster does not end it. Default: never.",
            ),
        ),
        (
            "hold_place_for",
            defaulted(String, "How long a disconnected run keeps its queue position. Default: `\"15m\"`."),
        ),
        (
            "allow_under",
            optional(
                List(Box::new(String)),
                "Other owners (the provider's `owner`) whose operations and boot configurations can name this maintenance in `maintenance_id`. Default: only its own owner.",
            ),
        ),
        (
            "adopt",
            optional(
                Bool,
                "Take over a maintenance with this name from another state, which then loses it. Without `adopt`, only an import takes it over. A maintenance whose create was killed always continues. Default: `false`.",
            ),
        ),
        (
            "triggers",
            optional(
                Map(Box::new(String)),
                "Any values. A change replaces the resource and runs the maintenance again. At most 32 entries, with names of 128 and values of 1024 characters. The coordination store, states and plans contain the values, so do not put secrets here. Messages, `show` and the audit log show a short digest of each value.",
            ),
        ),
        (
            "timeouts",
            timeouts([
                (
                    "create",
                    "Limit for waiting and preparing. Default: `\"1h\"`. If it ends during the wait, the queue position stays reserved for `hold_place_for`. If it ends during the preparation, the server is restored and released.",
                ),
                ("update", "Limit for changes and for resuming an interrupted maintenance. Default: `\"1h\"`."),
                (
                    "delete",
                    "Limit for restoring and releasing the server. Default: `\"30m\"`. If it ends, the server stays locked and the next destroy resumes.",
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
            "The server's boot for the maintenance. Destroy restores the prior state.",
        ),
    );
    all.insert("window".to_owned(), window_attribute());
    all.insert(
        "complete_when".to_owned(),
        optional(
            object([
                ("power_state", optional(String, "`On` or `Off`: the maintenance ends when the server has this power state.")),
                ("url", optional(String, "The maintenance ends when this URL answers with `status`.")),
                ("status", defaulted(Number, "The expected status of `url`. Default: `200`.")),
            ]),
            "The condition that ends the maintenance automatically. With `wait_for = \"Completed\"`, one apply runs the whole maintenance and releases the server.",
        ),
    );
    schema(
        "Takes a server out of service: waits in the queue, locks the server durably and boots it as configured. Destroy \
         restores the prior state and releases the server.",
        all,
    )
}

impl MaintenanceModel {
    /// Marks the outputs as unknown that an update can change.
    pub(in crate::provider) fn unknown_after_update(&mut self) {
        let kept = self.clone();
        self.unknown_outputs();
        (self.id, self.lock_key) = (kept.id, kept.lock_key);
        (self.requested_at, self.managed_by) = (kept.requested_at, kept.managed_by);
    }

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
                    let detail = "policy = \"Enforced\" does not require approval. Remove this attribute, or set \
                                  policy = \"OwnerApproval\".";
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
            allow_under: allow_under.into_iter().map(OneLine::from).collect(),
            window: window?,
            policy: policy?,
            require_claim,
            escalate_after,
            reason: given(&self.reason).map(OneLine::from),
            ticket: given(&self.ticket).map(OneLine::from),
            priority: if let Value::Value(priority) = self.priority { priority } else { 0 },
            server_power,
            boot,
            complete_when,
            expires_after,
            hold_place_for: hold_place_for.unwrap_or(Duration::from_mins(15)),
            hand_over: hand_over.unwrap_or_default(),
            triggers: triggers(&self.triggers),
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

/// Converts values that a configuration states to values of a record.
pub(in crate::provider) fn triggers(stated: &Texts) -> BTreeMap<OneLine, OneLine> {
    texts(stated).into_iter().map(|(name, value)| (name.into(), value.into())).collect()
}

/// Converts a map for the state.
pub(in crate::provider) fn shown_texts(map: &BTreeMap<OneLine, OneLine>) -> Texts {
    if map.is_empty() {
        return Value::Null;
    }
    Value::Value(map.iter().map(|(name, text)| (name.raw().to_owned(), Value::Value(text.raw().to_owned()))).collect())
}

impl From<&CompleteWhen> for CompleteModel {
    fn from(when: &CompleteWhen) -> Self {
        match when {
            CompleteWhen::PowerState(power) => {
                Self { power_state: Value::Value(power.to_string()), url: Value::Null, status: Value::Null }
            }
            CompleteWhen::Url(check) => Self {
                power_state: Value::Null,
                url: Value::Value(check.url.clone().into_raw()),
                status: Value::Value(i64::from(check.status)),
            },
        }
    }
}
