//! Queue attributes: policy, window, priority. Operations and boot configurations queue separately
//! unless `maintenance_id` names the maintenance under which they act.

use tf_provider::{
    AttributePath, Diagnostics,
    schema::AttributeType,
    value::{Value, ValueBool, ValueNumber},
};

use crate::{
    engine::Engine,
    maintenance::{
        ids::MaintenanceId,
        limits,
        spec::{Policy, Spec},
        window::OnClose,
    },
    shown::OneLine,
};

use crate::provider::{
    shared::schema::{Attributes, attributes, defaulted, optional},
    shared::values::{Text, bad, check_priority, duration, given, is_given, one_of, read_id, short},
    shared::window::{self, WindowModel, window_attribute},
};

/// How long a queue position is kept by default.
pub(in crate::provider) const HOLD_PLACE_FOR: &str = "15m";

/// Builds the attributes except `policy`, whose default differs.
pub(in crate::provider) fn turn_attributes() -> Attributes {
    use AttributeType::{Bool, Number, String};
    let mut all = attributes([
        (
            "require_claim",
            optional(
                Bool,
                "With `OwnerApproval`: wait until the server is claimed and its owner approves. Default: `false`.",
            ),
        ),
        (
            "escalate_after",
            optional(
                String,
                "With `OwnerApproval`: time without an answer after which approval is not required any more. Default: never.",
            ),
        ),
        ("reason", optional(String, "The reason, shown to other users. At most 1024 characters.")),
        ("ticket", optional(String, "The ticket, for example its URL. At most 2048 characters.")),
        ("priority", defaulted(Number, "Queue priority from `-100` to `100`; higher goes first. Default: `0`.")),
        (
            "hold_place_for",
            defaulted(String, "How long a disconnected run keeps its queue position. Default: `\"15m\"`."),
        ),
    ]);
    all.insert("window".to_owned(), window_attribute());
    all
}

/// The configured queue attributes.
#[derive(Clone, Copy, Debug)]
pub(in crate::provider) struct OwnTurn<'a> {
    pub(in crate::provider) maintenance_id: &'a Text,
    pub(in crate::provider) policy: &'a Text,
    /// The default policy outside a maintenance; `None` if a policy is required.
    pub(in crate::provider) default_policy: Option<Policy>,
    pub(in crate::provider) require_claim: &'a ValueBool,
    pub(in crate::provider) escalate_after: &'a Text,
    pub(in crate::provider) reason: &'a Text,
    pub(in crate::provider) ticket: &'a Text,
    pub(in crate::provider) priority: &'a ValueNumber,
    pub(in crate::provider) window: &'a Value<WindowModel>,
    pub(in crate::provider) hold_place_for: &'a Text,
}

impl OwnTurn<'_> {
    /// Checks the known values, and fills `base` with them if they are valid and complete.
    ///
    /// Under a maintenance, windows do not apply, because the server is out of service. A
    /// configured policy does apply: the maintenance's approval does not cover every action
    /// under it.
    pub(in crate::provider) fn check(
        &self,
        diags: &mut Diagnostics,
        engine: Option<&Engine>,
        base: Spec,
    ) -> Option<Spec> {
        let path = AttributePath::new;
        short(diags, self.reason, path("reason"), limits::REASON);
        short(diags, self.ticket, path("ticket"), limits::TICKET);
        check_priority(diags, self.priority, path("priority"));
        hold_named(diags, self.maintenance_id);
        if is_given(self.maintenance_id) && is_given(self.window) {
            let detail = "With maintenance_id the server is already locked: only that maintenance's window applies.";
            bad(diags, path("window"), "Not under a maintenance", detail);
        }
        let policy = self.policy(diags);
        let escalate_after = duration(diags, self.escalate_after, path("escalate_after"));
        let window = window::asked(diags, self.window, OnClose::Finish, engine);
        let hold_place_for = duration(diags, self.hold_place_for, path("hold_place_for"));
        if !diags.errors.is_empty() {
            return None;
        }
        Some(Spec {
            policy: policy?,
            require_claim: *self.require_claim == Value::Value(true),
            escalate_after,
            reason: given(self.reason).map(OneLine::from),
            ticket: given(self.ticket).map(OneLine::from),
            priority: if let Value::Value(priority) = *self.priority { priority } else { 0 },
            window: window?,
            hold_place_for: hold_place_for.unwrap_or(base.hold_place_for),
            ..base
        })
    }

    fn policy(&self, diags: &mut Diagnostics) -> Option<Policy> {
        let path = AttributePath::new;
        let under = !self.maintenance_id.is_null();
        let default = if under { Some(Policy::Enforced) } else { self.default_policy };
        let policy = match (self.policy.is_null(), default) {
            (true, Some(default)) => Some(default),
            (true, None) => {
                let detail = "Set policy to \"OwnerApproval\" or \"Enforced\", or set maintenance_id to act under an \
                              existing lock.";
                bad(diags, path("policy"), "A policy is needed", detail);
                None
            }
            (false, _) => one_of(diags, self.policy, path("policy"), &Policy::NAMES, Policy::from_name),
        };
        // Without a maintenance, the default policy can differ.
        let is_certain = is_given(self.policy) || is_given(self.maintenance_id);
        if policy == Some(Policy::Enforced) && is_certain {
            let detail = if under && self.policy.is_null() {
                "Under a maintenance, approval is not required by default. Set policy = \"OwnerApproval\"."
            } else {
                "policy = \"Enforced\" does not require approval. Remove this attribute, or set policy = \
                 \"OwnerApproval\"."
            };
            let require_claim = *self.require_claim == Value::Value(true);
            for (name, counts) in [("require_claim", require_claim), ("escalate_after", is_given(self.escalate_after))]
            {
                if counts {
                    bad(diags, path(name), "Only with OwnerApproval", detail);
                }
            }
        }
        policy
    }
}

/// Returns the maintenance in `maintenance_id`.
pub(in crate::provider) fn hold_named(diags: &mut Diagnostics, maintenance_id: &Text) -> Option<MaintenanceId> {
    let (at, hint) = (AttributePath::new("maintenance_id"), " Set it to a metal_server_maintenance's id.");
    read_id(diags, given(maintenance_id)?, at, "a maintenance", hint)
}

/// Returns the text for the maintenance in `maintenance_id`, including one that is unknown because
/// the same plan creates it. `None`: not set.
pub(in crate::provider) fn under(maintenance_id: &Text) -> Option<&str> {
    (!maintenance_id.is_null()).then(|| given(maintenance_id).unwrap_or("the maintenance of maintenance_id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maintenance_that_is_not_known_yet_is_one() {
        assert_eq!(under(&Value::Null), None);
        assert_eq!(under(&Value::Unknown), Some("the maintenance of maintenance_id"));
        assert_eq!(under(&Value::Value("ops/m".to_owned())), Some("ops/m"));
    }
}
