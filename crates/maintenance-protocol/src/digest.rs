//! Digests of specifications. They identify a request, and approvals are bound to them.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use shown_text::OneLine;

use super::{
    machine::PowerTarget,
    model::{operation::OperationSpec, service::ServiceSpec},
    spec::{BootSpec, CompleteWhen, MaintenanceKind, Policy, Spec},
    state::Maintenance,
    window::WindowSpec,
};

/// The fields that determine the effect on the server.
#[derive(Serialize)]
struct Digested<'a> {
    kind: MaintenanceKind,
    server: &'a str,
    policy: Policy,
    require_claim: bool,
    escalate_after: Option<Duration>,
    always_perform: bool,
    reason: Option<&'a str>,
    ticket: Option<&'a str>,
    priority: i64,
    window: Option<&'a WindowSpec>,
    server_power: Option<PowerTarget>,
    operation: Option<&'a OperationSpec>,
    service: Option<&'a ServiceSpec>,
    boot: Option<&'a BootSpec>,
    complete_when: Option<&'a CompleteWhen>,
    expires_after: Option<Duration>,
    allow_under: &'a [OneLine],
    triggers: &'a BTreeMap<OneLine, OneLine>,
}

impl Spec {
    /// Returns the digest of all fields that determine the effect on the server. An equal digest
    /// identifies the same request. Time limits of a process are excluded, so a run with a longer
    /// limit finds its queue position.
    #[must_use]
    pub fn digest(&self) -> String {
        // Destructured without `..`, so a new field does not compile until it is handled here.
        let Self {
            kind,
            server,
            // The parent's UID locates the record and is not part of the request.
            parent: _,
            policy,
            require_claim,
            escalate_after,
            always_perform,
            // The Node identifies the server's workload, not a change to the server.
            node: _,
            drain: _,
            reason,
            ticket,
            priority,
            window,
            server_power,
            operation,
            service,
            boot,
            complete_when,
            expires_after,
            hold_place_for: _,
            // It applies after the maintenance, so approvals do not depend on it.
            hand_over: _,
            allow_under,
            triggers,
        } = self;
        // Without signatures and tokens: each run can create new ones.
        let boot = boot.as_ref().map(BootSpec::sealed);
        let complete_when = complete_when.as_ref().map(CompleteWhen::sealed);
        let digested = Digested {
            kind: *kind,
            server: server.raw(),
            policy: *policy,
            require_claim: *require_claim,
            escalate_after: *escalate_after,
            always_perform: *always_perform,
            reason: reason.as_ref().map(OneLine::raw),
            ticket: ticket.as_ref().map(OneLine::raw),
            priority: *priority,
            window: window.as_ref(),
            server_power: *server_power,
            operation: operation.as_ref(),
            service: service.as_deref(),
            boot: boot.as_ref(),
            complete_when: complete_when.as_ref(),
            expires_after: *expires_after,
            allow_under,
            triggers,
        };
        hex(&digested)
    }
}

/// Returns half of a value's SHA-256 in hexadecimal digits.
fn hex(value: &impl Serialize) -> String {
    let text = serde_json::to_vec(value).unwrap_or_default();
    Sha256::digest(text)[..16].iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// The actions in a specification.
#[derive(Serialize)]
struct Actions<'a> {
    server_power: Option<PowerTarget>,
    operation: Option<&'a OperationSpec>,
    service: Option<&'a ServiceSpec>,
    boot: Option<&'a BootSpec>,
}

impl Spec {
    /// Digests the actions alone. Two specifications with equal digests change the server equally.
    #[must_use]
    pub fn actions(&self) -> String {
        let boot = self.boot.as_ref().map(BootSpec::sealed);
        hex(&Actions {
            server_power: self.server_power,
            operation: self.operation.as_ref(),
            service: self.service.as_deref(),
            boot: boot.as_ref(),
        })
    }
}

impl Maintenance {
    /// Returns true if the current specification is the wanted one.
    #[must_use]
    pub fn asks_for(&self, wanted: &Spec) -> bool {
        self.spec.digest() == wanted.digest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_digested_field_changes_the_digest() {
        let plain = Spec::new(MaintenanceKind::Maintenance, "node-1");
        assert_eq!(plain.digest().len(), 32);
        let listed = Spec { allow_under: vec!["others".into()], ..plain.clone() };
        let more = Spec { allow_under: vec!["others".into(), "more".into()], ..plain.clone() };
        let patient = Spec { hold_place_for: Duration::from_hours(9), ..plain.clone() };
        assert_ne!(listed.digest(), plain.digest());
        assert_ne!(more.digest(), listed.digest());
        assert_eq!(patient.digest(), plain.digest());
    }
}
