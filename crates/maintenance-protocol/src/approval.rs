//! Who is asked before a server is taken, and what the answer is.
//!
//! An owner's [`Claim`] says that a server is in use. A maintenance with [`Policy::OwnerApproval`]
//! takes a claimed server only with the owner's [`Approval`]: of this one maintenance as it was
//! specified, or of everything asked of the claim. Approvals count at the start only: one that is
//! withdrawn later changes nothing about a hold.

pub use super::model::approval::{Approval, Claim, Scope};

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use shown_text as shown;

use super::{
    ids::{MaintenanceId, Uid},
    model::{lock::ServerLock, shown_time::shown_time},
    spec::Policy,
    state::Maintenance,
    window::WindowSpec,
};

impl Approval {
    /// Whether it is about this maintenance, whatever its specification is now.
    #[must_use]
    pub fn concerns(&self, record: &Maintenance) -> bool {
        match &self.scope {
            Scope::Maintenance { id, .. } => *id == record.id,
            Scope::All => true,
        }
    }

    /// How it stands towards a request that it concerns.
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

    /// How it stands as far as only the time decides.
    #[must_use]
    pub fn in_time(&self, now: Timestamp) -> ApprovalState {
        match (self.not_before, self.expires) {
            (_, Some(expires)) if expires <= now => ApprovalState::Expired(expires),
            (Some(from), _) if from > now => ApprovalState::NotBefore(from),
            _ => ApprovalState::InForce,
        }
    }
}

/// How an approval stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalState {
    /// It counts.
    InForce,
    /// It counts from this moment on.
    NotBefore(Timestamp),
    /// It has expired.
    Expired(Timestamp),
    /// The specification was changed after it was approved.
    Void,
    /// It was for an earlier run of the same name.
    Used,
}

/// Whether the owner's approval allows a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Consent {
    /// Nobody has to be asked: the policy says so, or nobody claimed the server.
    NotNeeded,
    /// The owner said yes.
    Given {
        /// Which approval.
        approval: Uid,
        /// Who, for people.
        by: String,
        /// Whether by an approval of everything.
        all: bool,
    },
    /// Nobody answered in time, as was announced from the start.
    Escalated {
        /// When it began.
        since: Timestamp,
    },
    /// Not yet.
    Missing(Box<Missing>),
}

impl Consent {
    /// Whether the maintenance may start as far as the owner is concerned.
    #[must_use]
    pub fn allows(&self) -> bool {
        !matches!(self, Self::Missing(_))
    }
}

/// Whose word is missing, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The maintenance that asks.
    pub id: MaintenanceId,
    /// The claim whose owner is asked; `None`: nobody claimed the server, and the request insists
    /// on a claim.
    pub claim: Option<Claim>,
    /// The state of an answer.
    pub answer: Option<ApprovalState>,
    /// When it is taken without an answer.
    pub escalates_at: Option<Timestamp>,
}

impl Missing {
    /// In a few words.
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
                    let owner = shown::shell_word(&claim.owner);
                    write!(
                        f,
                        "waiting for approval by {claim}: `terraform-provider-metal approve {} --owner {owner}`",
                        self.id
                    )?;
                    match answer {
                        Some(ApprovalState::Void) => write!(f, " (the request changed after the approval)")?,
                        Some(ApprovalState::Expired(at)) => write!(f, " (an approval expired {})", shown_time(at))?,
                        Some(ApprovalState::Used) => write!(f, " (the approval there is was for an earlier run)")?,
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

/// When a request is taken although nobody answered, if it says so.
#[must_use]
pub fn escalates_at(record: &Maintenance) -> Option<Timestamp> {
    let after = SignedDuration::try_from(record.spec.escalate_after?).ok()?;
    record.requested_at.checked_add(after).ok()
}

/// Whether the owner's approval allows this maintenance to start now.
#[must_use]
pub fn consent(lock: &ServerLock, record: &Maintenance, now: Timestamp) -> Consent {
    // An external system that knows the owners of its servers asks them itself.
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
    // Of several answers, the one that comes nearest to an approval is told.
    let answer = concerning().map(standing).min_by_key(|standing| match standing {
        ApprovalState::InForce | ApprovalState::NotBefore(_) => 0,
        ApprovalState::Void => 1,
        ApprovalState::Expired(_) => 2,
        ApprovalState::Used => 3,
    });
    Consent::Missing(Box::new(Missing { id: record.id.clone(), claim: claim.cloned(), answer, escalates_at }))
}

/// When the answer of [`consent`] may change although nobody says anything: an approval begins to
/// count or expires, or the request escalates.
#[must_use]
pub fn changes_at(lock: &ServerLock, record: &Maintenance, now: Timestamp) -> Option<Timestamp> {
    let approvals = lock.ownership.approvals.iter().filter(|approval| approval.concerns(record));
    let times = approvals.flat_map(|approval| [approval.not_before, approval.expires]).flatten();
    times.chain(escalates_at(record)).filter(|at| *at > now).min()
}

/// A request to the owner of a server that has not started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PendingMaintenance {
    /// The maintenance.
    pub id: MaintenanceId,
    /// Whether the owner is asked or only told.
    pub policy: Policy,
    /// Who asks.
    pub by: String,
    /// When it was requested.
    pub requested_at: Timestamp,
    /// The reason, for people.
    pub reason: Option<String>,
    /// Where it is discussed.
    pub ticket: Option<String>,
    /// Its priority.
    pub priority: i64,
    /// The digest of the specification; an approval is bound to it.
    pub digest: String,
    /// Whether it may start as far as the owner is concerned.
    pub allowed: bool,
    /// When it is taken without an answer.
    pub escalates_at: Option<Timestamp>,
    /// What happens to the server, in words.
    pub effect: String,
    /// When it may start, in words; `None`: at any time.
    pub window: Option<String>,
}

/// The pending actions on a server by time of request: of waiters, and of in-place changes.
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
            by: record.requester.to_string(),
            requested_at: record.requested_at,
            reason: record.spec.reason.clone(),
            ticket: record.spec.ticket.clone(),
            priority: record.spec.priority,
            digest: record.digest.clone(),
            allowed: consent.allows(),
            escalates_at: if consent.allows() { None } else { escalates_at(record) },
            effect: record.spec.effect(),
            window: record.spec.window.as_ref().map(WindowSpec::summary),
        }
    });
    asked.collect()
}
