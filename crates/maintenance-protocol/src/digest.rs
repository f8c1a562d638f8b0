//! Digests of specifications: which request is which, and what an approval is bound to.
//!
//! A digest outlives the version that made it, in records, in approvals and in configurations that
//! approve in advance. So it has a form: form 1, without a number, covers what version 0.1.0 could
//! ask; later forms begin with their number. A request has the lowest form that covers it, so that
//! each version gives the same digest to what it can express.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::{
    ids::Uid,
    machine::PowerTarget,
    model::{operation::OperationSpec, service::ServiceSpec},
    spec::{BootSpec, CompleteWhen, MaintenanceKind, Policy, Spec},
    state::Maintenance,
    window::WindowSpec,
};

/// The fields of form 1 in the order in which version 0.1.0 wrote them. It never changes.
#[derive(Serialize)]
struct Form1<'a> {
    kind: MaintenanceKind,
    server: &'a str,
    parent: Option<&'a Uid>,
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
    boot: Option<&'a BootSpec>,
    complete_when: Option<&'a CompleteWhen>,
    expires_after: Option<Duration>,
    hold_place_for: Duration,
    triggers: &'a BTreeMap<String, String>,
}

/// The further fields of form 2. A field that a later version adds belongs here, left out where it
/// has its default: then the digest of a request that does not use the field stays.
#[derive(Serialize)]
struct Form2<'a> {
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    allow_under: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<&'a ServiceSpec>,
}

fn text<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

fn hex(text: &[u8]) -> String {
    Sha256::digest(text)[..16].iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

impl Spec {
    /// Makes the digest of everything that changes what happens to the server. A request that comes
    /// back with the same digest is the same request. What only tells how long a process waits is
    /// left out, so that a run with a longer time limit finds its place again.
    #[must_use]
    pub fn digest(&self) -> String {
        // Without `..`: a new field does not compile until it has its place here.
        let Self {
            kind,
            server,
            // The parent's UID is part of where a record lives, not of what is asked.
            parent: _,
            policy,
            require_claim,
            escalate_after,
            always_perform,
            // The Node says where the server runs, not what happens to it.
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
            // It says what happens afterwards, to what was approved as well.
            hand_over: _,
            allow_under,
            triggers,
        } = self;
        // As the boot below: without a token that each run may renew.
        let complete_when = complete_when.as_ref().map(CompleteWhen::sealed);
        let first = text(&Form1 {
            kind: *kind,
            server,
            parent: None,
            policy: *policy,
            require_claim: *require_claim,
            escalate_after: *escalate_after,
            always_perform: *always_perform,
            reason: reason.as_deref(),
            ticket: ticket.as_deref(),
            priority: *priority,
            window: window.as_ref(),
            server_power: *server_power,
            operation: operation.as_ref(),
            // Without the signature of an image's address: each run may sign it again.
            boot: boot.as_ref().map(BootSpec::sealed).as_ref(),
            complete_when: complete_when.as_ref(),
            expires_after: *expires_after,
            hold_place_for: Duration::ZERO,
            triggers,
        });
        let further = text(&Form2 { allow_under, service: service.as_deref() });
        if further == b"{}" { hex(&first) } else { format!("2:{}", hex(&[first, further].concat())) }
    }
}

impl Maintenance {
    /// Whether the specification in force is the wanted one. The specifications decide, not the
    /// stored digest: another version may have given another digest to the same specification.
    #[must_use]
    pub fn asks_for(&self, wanted: &Spec) -> bool {
        self.spec.digest() == wanted.digest()
    }

    /// The digest that the record has under a wanted specification: the stored one as long as the
    /// specification is the same, because approvals are bound to it.
    pub(super) fn digest_under(&self, wanted: &Spec) -> String {
        let digest = wanted.digest();
        let update = self.update.iter();
        let stored = update
            .flat_map(|update| [(&update.previous, &update.previous_digest), (&update.wanted, &update.wanted_digest)]);
        let mut stored = stored.chain([(&self.spec, &self.digest)]);
        let found = stored.find(|(spec, _)| spec.digest() == digest).map(|(_, stored)| stored.clone());
        found.unwrap_or(digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_has_the_lowest_form_that_covers_the_request() {
        let plain = Spec::new(MaintenanceKind::Maintenance, "node-1");
        assert_eq!(plain.digest().len(), 32);
        let listed = Spec { allow_under: vec!["others".into()], ..plain.clone() };
        assert!(listed.digest().starts_with("2:"), "{}", listed.digest());
        assert_ne!(listed.digest()[2..], plain.digest());
        let more = Spec { allow_under: vec!["others".into(), "more".into()], ..plain };
        assert_ne!(more.digest(), listed.digest());
    }
}
