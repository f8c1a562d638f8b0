//! Schema and model of `metal_maintenance_approval`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::{AttributeType, Schema},
    value::{Value, ValueBool},
};

use crate::{
    engine::ApprovalWish,
    maintenance::{
        approval::{Approval, ApprovalState, Scope},
        ids::MaintenanceId,
        state::Maintenance,
    },
    store::LockView,
};

use crate::provider::{
    shared::outputs::outputs,
    shared::schema::{attributes, defaulted, optional, required, schema},
    shared::values::{Text, bad, given, known, moment, not_empty},
};

/// A `metal_maintenance_approval` in configuration, plan and state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct ApprovalModel {
    pub(in crate::provider) id: Text,
    pub(in crate::provider) server: Text,
    pub(in crate::provider) maintenance: Text,
    pub(in crate::provider) all: ValueBool,
    pub(in crate::provider) digest: Text,
    pub(in crate::provider) not_before: Text,
    pub(in crate::provider) expires: Text,
    pub(in crate::provider) state: Text,
    pub(in crate::provider) approved_by: Text,
    pub(in crate::provider) approved_at: Text,
    pub(in crate::provider) lock_key: Text,
    pub(in crate::provider) node: Text,
    pub(in crate::provider) claim: Text,
}

outputs!(ApprovalModel {
    at_plan {}
    after_apply {
        claim: String, "With `metal_operator`: `namespace/name` of the approved ServerClaim. Null if claims are in the coordination store.";
        id: String, "The approval's id.";
        state: String, "`InForce`, `NotBefore` (its validity has not started), `Expired`, `Void` (the request changed) or `Used` (its maintenance has started). With `metal_operator`: `InForce` while the ServerClaim has the approval mark, then `Used`. The operator removes the mark when the last ServerMaintenance ends; a person can also remove it.";
        approved_by: String, "The user and machine that approved it.";
        approved_at: String, "When it was approved (RFC 3339, UTC).";
        lock_key: String, "The server's hardware identity, under which the approval is stored.";
    }
});

/// Builds the schema.
pub(in crate::provider) fn approval_schema() -> Schema {
    use AttributeType::{Bool, String};
    schema(
        "The owner's approval for one pending maintenance, or for all maintenance of the claim. It does not change the \
         server. Destroy withdraws the approval: maintenance that has not started does not start, and started \
         maintenance continues. Every change replaces it.",
        ApprovalModel::with_outputs(attributes([
            ("server", required(String, "The server's name in the provider's configuration.")),
            ("maintenance", optional(String, "`namespace/name` of the approved maintenance.")),
            (
                "all",
                optional(
                    Bool,
                    "`true` approves all present and future maintenance of the claim; the plan warns. Set either this or `maintenance`.",
                ),
            ),
            (
                "digest",
                defaulted(
                    String,
                    "The approved request's digest, from the claim's `pending`. Default: the request's digest at apply. Set it to approve a maintenance in advance, before it is pending. If the request changes, the approval is void.",
                ),
            ),
            ("not_before", optional(String, "Start of validity (RFC 3339). Default: immediately.")),
            (
                "expires",
                optional(
                    String,
                    "End of validity (RFC 3339). Maintenance that has started by then continues. Default: as long as the claim exists.",
                ),
            ),
            (
                "node",
                optional(
                    String,
                    "With `metal_operator`: the name of the Node that runs on the server. The provider labels it instead of the ServerClaim, for a controller (cloud-provider-metal) that copies the Node's label to the claim and removes labels that it did not copy.",
                ),
            ),
        ])),
    )
}

impl ApprovalModel {
    /// Checks the known values; returns the approval if it is valid and complete. `now` is this
    /// machine's time: an expired approval is rejected.
    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics, now: Option<Timestamp>) -> Option<ApprovalWish> {
        let path = AttributePath::new;
        not_empty(diags, &self.server, path("server"));
        not_empty(diags, &self.digest, path("digest"));
        not_empty(diags, &self.node, path("node"));
        let all = self.all == Value::Value(true);
        let unknown = self.maintenance.is_unknown() || self.all.is_unknown();
        if !unknown && all != self.maintenance.is_null() {
            let detail = "Set maintenance = \"NAMESPACE/NAME\" to approve one maintenance, or all = true to approve \
                          all maintenance of the claim.";
            bad(diags, path("maintenance"), "Exactly one of maintenance and all", detail);
        }
        if all && !self.digest.is_null() && !self.digest.is_unknown() {
            let detail = "A digest identifies one specification, but all = true approves every specification.";
            bad(diags, path("digest"), "Only for one maintenance", detail);
        }
        let maintenance = given(&self.maintenance).and_then(|text| match text.parse::<MaintenanceId>() {
            Ok(id) => Some(id),
            Err(problem) => {
                bad(diags, path("maintenance"), "Not a maintenance id", format!("{text:?}: it {problem}."));
                None
            }
        });
        let not_before = moment(diags, &self.not_before, path("not_before"));
        let expires = moment(diags, &self.expires, path("expires"));
        if let (Some(from), Some(until)) = (not_before, expires)
            && until <= from
        {
            bad(
                diags,
                path("expires"),
                "Approval would never take effect",
                format!("It expires at {until}, before it takes effect ({from})."),
            );
        } else if let (Some(until), Some(now)) = (expires, now)
            && until <= now
        {
            bad(
                diags,
                path("expires"),
                "Approval has already expired",
                format!("It expires at {until}; now it is {now}."),
            );
        }
        if !diags.errors.is_empty() || unknown {
            return None;
        }
        Some(ApprovalWish { maintenance, digest: given(&self.digest).map(str::to_owned), not_before, expires })
    }

    /// Fills in the computed attributes.
    pub(in crate::provider) fn show(&mut self, approval: &Approval, view: &LockView) {
        self.id = Value::Value(approval.uid.raw().to_owned());
        self.digest = match &approval.scope {
            Scope::Maintenance { digest, .. } => Value::Value(digest.raw().to_owned()),
            Scope::All => Value::Null,
        };
        self.approved_by = Value::Value(approval.by.to_string());
        self.approved_at = Value::Value(approval.at.to_string());
        self.lock_key = Value::Value(view.lock.key.raw().to_owned());
        self.state = Value::Value(standing(approval, view).to_owned());
        self.claim = Value::Null;
    }

    /// Builds the model from an approval, for import.
    pub(in crate::provider) fn of(approval: &Approval, server: &str) -> Self {
        let (maintenance, all) = match &approval.scope {
            Scope::Maintenance { id, .. } => (Value::Value(id.to_string()), Value::Null),
            Scope::All => (Value::Null, Value::Value(true)),
        };
        Self {
            server: Value::Value(server.to_owned()),
            maintenance,
            all,
            not_before: known(approval.not_before.map(|at| at.to_string())),
            expires: known(approval.expires.map(|at| at.to_string())),
            ..Self::default()
        }
    }

    /// Plans a missing digest as unknown; apply finds it.
    pub(in crate::provider) fn plan_digest(&mut self) {
        if self.digest.is_null() {
            self.digest = if self.all == Value::Value(true) { Value::Null } else { Value::Unknown };
        }
    }
}

/// Returns an approval's state.
fn standing(approval: &Approval, view: &LockView) -> &'static str {
    let about = |record: &Maintenance| matches!(&approval.scope, Scope::Maintenance { id, .. } if *id == record.id);
    let standing = match view.lock.active.iter().find(|record| about(record)) {
        Some(record) => match record.awaiting_consent() {
            Some(asks) => approval.standing(&asks, view.now),
            // The approved actions have begun.
            None if approval.used_by.as_ref() == Some(&record.uid) => ApprovalState::Used,
            // It approves a change in advance.
            None => approval.in_time(view.now),
        },
        None if approval.used_by.is_some() => ApprovalState::Used,
        None => approval.in_time(view.now),
    };
    match standing {
        // The approved maintenance has begun.
        ApprovalState::InForce if approval.used_by.is_some() => "Used",
        ApprovalState::InForce => "InForce",
        ApprovalState::NotBefore(_) => "NotBefore",
        ApprovalState::Expired(_) => "Expired",
        ApprovalState::Void => "Void",
        ApprovalState::Used => "Used",
    }
}
