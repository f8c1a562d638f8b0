//! Owner approval of maintenances.
//!
//! An owner's [`Claim`] declares that a server is in use. A maintenance with
//! [`Policy::OwnerApproval`] then needs the owner's [`Approval`] to start. An approval covers one
//! maintenance with its approved specification, or every maintenance on the claimed server.
//! Approvals are checked at the start only; withdrawing an approval later does not affect a held
//! lock.

pub use super::model::approval::{Approval, Claim, Scope};

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use shown_text::{OneLine, shell_word};

use super::{
    ids::{MaintenanceId, Uid},
    model::{lock::ServerLock, shown_time::shown_time},
    spec::Policy,
    state::Maintenance,
};

impl Approval {
    /// Returns true if it covers this maintenance, regardless of the current specification.
    #[must_use]
    pub fn concerns(&self, record: &Maintenance) -> bool {
        match &self.scope {
            Scope::Maintenance { id, .. } => *id == record.id,
            Scope::All => true,
        }
    }

    /// Returns the approval's state for a maintenance that it covers.
    #[must_use]
    pub fn standing(&self, record: &Maintenance, now: Timestamp) -> ApprovalState {
        if self.used_by.as_ref().is_some_and(|uid| *uid != record.uid) {
            return ApprovalState::Used;
        }
        match &self.scope {
            Scope::Maintenance { digest, .. } if *digest != record.digest => return ApprovalState::Void,
            _ => {}
        }
        self.in_time(now)
    }

    /// Returns the approval's state by its validity period alone.
    #[must_use]
    pub fn in_time(&self, now: Timestamp) -> ApprovalState {
        match (self.not_before, self.expires) {
            (_, Some(expires)) if expires <= now => ApprovalState::Expired(expires),
            (Some(from), _) if from > now => ApprovalState::NotBefore(from),
            _ => ApprovalState::InForce,
        }
    }
}

/// An approval's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalState {
    /// It is valid.
    InForce,
    /// It becomes valid at this time.
    NotBefore(Timestamp),
    /// It has expired.
    Expired(Timestamp),
    /// The specification was changed after it was approved.
    Void,
    /// An earlier run of the same name used it.
    Used,
}

/// The owner's consent to a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Consent {
    /// Not required: the policy does not request it, or the server is unclaimed.
    NotNeeded,
    /// The owner approved.
    Given {
        /// UID of the approval.
        approval: Uid,
        /// Author of the approval, for people.
        by: OneLine,
        /// True if the approval covers every maintenance.
        all: bool,
    },
    /// The owner did not answer within `escalate_after`.
    Escalated {
        /// When the escalation started.
        since: Timestamp,
    },
    /// Required and missing.
    Missing(Box<Missing>),
}

impl Consent {
    /// Returns true if the maintenance can start without further approval.
    #[must_use]
    pub fn allows(&self) -> bool {
        !matches!(self, Self::Missing(_))
    }
}

/// The missing approval and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The requesting maintenance.
    pub id: MaintenanceId,
    /// The claim whose owner must approve; `None` if the server is unclaimed but the request
    /// requires a claim.
    pub claim: Option<Claim>,
    /// State of the existing approval, if any.
    pub answer: Option<ApprovalState>,
    /// When the maintenance starts without an answer.
    pub escalates_at: Option<Timestamp>,
}

impl Missing {
    /// Describes the missing approval in a few words.
    #[must_use]
    pub fn brief(&self) -> String {
        match (&self.claim, self.answer) {
            (None, _) => "a claim on the server".to_owned(),
            (Some(_), Some(ApprovalState::NotBefore(from))) => format!("its approval to count at {}", shown_time(from)),
            (Some(claim), _) => format!("approval by {}", claim.owner),
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.claim {
            None => write!(f, "waiting for a claim and an approval of {} (require_claim)", self.id)?,
            Some(claim) => match self.answer {
                Some(ApprovalState::NotBefore(from)) => {
                    write!(f, "waiting until the approval by {} counts, {}", claim.owner, shown_time(from))?;
                }
                answer => {
                    let owner = shell_word(claim.owner.shown());
                    write!(
                        f,
                        "waiting for approval by {claim}: `terraform-provider-metal approve {} --owner {owner}`",
                        self.id
                    )?;
                    match answer {
                        Some(ApprovalState::Void) => write!(f, " (the request changed after the approval)")?,
                        Some(ApprovalState::Expired(at)) => write!(f, " (an approval expired {})", shown_time(at))?,
                        Some(ApprovalState::Used) => write!(f, " (the existing approval was for an earlier run)")?,
                        _ => {}
                    }
                }
            },
        }
        match self.escalates_at {
            Some(at) => write!(f, "; starts without approval at {}", shown_time(at)),
            None => Ok(()),
        }
    }
}

/// Returns when the request escalates, if `escalate_after` is set.
#[must_use]
pub fn escalates_at(record: &Maintenance) -> Option<Timestamp> {
    let after = SignedDuration::try_from(record.spec.escalate_after?).ok()?;
    record.requested_at.checked_add(after).ok()
}

/// Evaluates the owner's consent at this time.
#[must_use]
pub fn consent(lock: &ServerLock, record: &Maintenance, now: Timestamp) -> Consent {
    // An external system that stores owners requests their approval itself.
    let asked_there = record.gates.iter().any(|gate| gate.system.owners);
    if record.spec.policy == Policy::Enforced || record.spec.always_perform || asked_there {
        return Consent::NotNeeded;
    }
    let claim = lock.ownership.claim.as_ref();
    if claim.is_none() && !record.spec.require_claim {
        return Consent::NotNeeded;
    }
    let concerning = || lock.ownership.approvals.iter().filter(|approval| approval.concerns(record));
    let standing = |approval: &Approval| approval.standing(record, now);
    if claim.is_some()
        && let Some(approval) = concerning().find(|approval| standing(approval) == ApprovalState::InForce)
    {
        return Consent::Given {
            approval: approval.uid.clone(),
            by: approval.by.clone(),
            all: approval.scope == Scope::All,
        };
    }
    let escalates_at = escalates_at(record);
    if let Some(since) = escalates_at.filter(|at| *at <= now) {
        return Consent::Escalated { since };
    }
    // Several approvals: report the closest match.
    let answer = concerning().map(standing).min_by_key(|standing| match standing {
        ApprovalState::InForce | ApprovalState::NotBefore(_) => 0,
        ApprovalState::Void => 1,
        ApprovalState::Expired(_) => 2,
        ApprovalState::Used => 3,
    });
    Consent::Missing(Box::new(Missing { id: record.id.clone(), claim: claim.cloned(), answer, escalates_at }))
}

/// Returns when time alone can change the result of [`consent`]: an approval becomes valid or
/// expires, or the request escalates.
#[must_use]
pub fn changes_at(lock: &ServerLock, record: &Maintenance, now: Timestamp) -> Option<Timestamp> {
    let approvals = lock.ownership.approvals.iter().filter(|approval| approval.concerns(record));
    let times = approvals.flat_map(|approval| [approval.not_before, approval.expires]).flatten();
    times.chain(escalates_at(record)).filter(|at| *at > now).min()
}

/// A pending request, as shown to the server's owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PendingMaintenance {
    /// The maintenance.
    pub id: MaintenanceId,
    /// The policy: approval, or notice only.
    pub policy: Policy,
    /// The requesting process.
    pub by: OneLine,
    /// Time of the request.
    pub requested_at: Timestamp,
    /// The reason, for people.
    pub reason: Option<OneLine>,
    /// Link to its discussion.
    pub ticket: Option<OneLine>,
    /// Its priority.
    pub priority: i64,
    /// Digest of the specification, to which an approval is bound.
    pub digest: OneLine,
    /// True if the request does not need further approval.
    pub allowed: bool,
    /// When the maintenance starts without an answer.
    pub escalates_at: Option<Timestamp>,
    /// The effect on the server, as text.
    pub effect: OneLine,
    /// Allowed start times, as text; `None` allows any time.
    pub window: Option<OneLine>,
}

/// Returns the server's pending requests and in-place changes, by request time.
#[must_use]
pub fn asked(lock: &ServerLock, now: Timestamp) -> Vec<PendingMaintenance> {
    let mut waiting: Vec<_> = lock.active.iter().filter_map(|record| record.awaiting_consent()).collect();
    waiting.retain(|record| record.spec.parent.is_none() || record.spec.policy == Policy::OwnerApproval);
    waiting.sort_by_key(|record| record.ticket_number);
    let asked = waiting.iter().map(|record| {
        let record = record.as_ref();
        let consent = consent(lock, record, now);
        PendingMaintenance {
            id: record.id.clone(),
            policy: record.spec.policy,
            by: record.requester.to_string().into(),
            requested_at: record.requested_at,
            reason: record.spec.reason.clone(),
            ticket: record.spec.ticket.clone(),
            priority: record.spec.priority,
            digest: record.digest.clone(),
            allowed: consent.allows(),
            escalates_at: if consent.allows() { None } else { escalates_at(record) },
            effect: record.spec.effect().into(),
            window: record.spec.window.as_ref().map(|window| window.summary().into()),
        }
    });
    asked.collect()
}
