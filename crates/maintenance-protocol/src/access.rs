//! Which configurations may continue a record or act under it: the state that manages it, and the
//! owners that it names.
//!
//! A process that ends leaves nothing attached. So that nothing is attached does not tell whether
//! the record is left over from a killed apply, which the next one has to find, or managed by a
//! state that another one must not destroy under it. The state itself tells: each has a random
//! number, and the first refresh marks the record with it.

use jiff::Timestamp;

use super::{
    ids::{MaintenanceId, Uid},
    model::lock::{AuditEvent, EnqueueRequest, Leases, Refusal, ServerLock},
    spec::Spec,
    state::{KnownTo, Maintenance, Phase},
    update::needs_preparing,
};

impl Maintenance {
    /// Why a state may not continue this record; `None`: it may.
    ///
    /// An empty `state` is the command line, which has no state.
    #[must_use]
    pub fn refuses_state(&self, state: &str) -> Option<Refusal> {
        let known = self.known_to.as_ref().filter(|known| !state.is_empty() && known.state != state)?;
        Some(Refusal::KnownToAnother { id: self.id.clone(), known: Box::new(known.clone()) })
    }

    /// Why a configuration or a person of this owner may not continue, change, take over or end
    /// this record; `None`: they may.
    #[must_use]
    pub fn refuses_owner(&self, owner: &str) -> Option<Refusal> {
        (self.owner != owner).then(|| Refusal::OtherOwner {
            id: self.id.clone(),
            existing: self.owner.clone(),
            asked: owner.to_owned(),
        })
    }

    /// Whether a request is the announced successor of this maintenance, which is held: it would
    /// wait for its own predecessor.
    ///
    /// A replacement releases first. Only with `create_before_destroy` its creation meets a
    /// predecessor that is still held.
    #[must_use]
    pub fn is_replaced_by(&self, request: &EnqueueRequest) -> bool {
        let announced = self.known_to.as_ref().and_then(|known| known.successor.as_ref()) == Some(&request.id);
        announced && self.owner == request.owner && !matches!(self.phase, Phase::Releasing { .. })
    }

    /// Why another request of this name is not this record's; `None`: it is, and continues it.
    #[must_use]
    pub fn refuses_request(&self, owner: &str, spec: &Spec) -> Option<Refusal> {
        let other = || Refusal::OtherSpec { id: self.id.clone(), existing: self.spec.summary(), asked: spec.summary() };
        self.refuses_owner(owner).or_else(|| (!self.asks_for(spec)).then(other))
    }

    /// Why a configuration of this owner may not act under this maintenance; `None`: it may.
    #[must_use]
    pub fn refuses_under(&self, owner: &str) -> Option<Refusal> {
        let allowed = self.owner == owner || self.spec.allow_under.iter().any(|other| other == owner);
        (!allowed).then(|| Refusal::NotAllowedUnder {
            holder: self.id.clone(),
            existing: self.owner.clone(),
            asked: owner.to_owned(),
        })
    }
}

impl ServerLock {
    /// Marks a record as managed by a state. Refused when another state manages it.
    pub fn mark_known(&mut self, uid: &Uid, state: &str, by: &str, now: Timestamp) -> Result<(), Refusal> {
        let record = self.active.iter_mut().find(|record| record.uid == *uid).ok_or(Refusal::Gone)?;
        if let Some(refusal) = record.refuses_state(state) {
            return Err(refusal);
        }
        if !state.is_empty() {
            let mark = || KnownTo::new(state, now, by);
            record.known_to.get_or_insert_with(mark);
        }
        Ok(())
    }

    /// Notes the name under which the state that manages a record requests the same server next.
    /// Refused when another state manages the record.
    pub fn announce(
        &mut self,
        uid: &Uid,
        state: &str,
        successor: Option<&MaintenanceId>,
        by: &str,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        self.mark_known(uid, state, by, now)?;
        if let Some(known) = self.get_mut(uid)?.known_to.as_mut() {
            known.successor = successor.cloned();
        }
        Ok(())
    }

    /// Takes another specification over for a server that is prepared and need not change, without
    /// acting on it. `false`: it is not such a change; then nothing is changed. Refused while a
    /// living process is attached.
    pub fn amend(
        &mut self,
        uid: &Uid,
        wanted: &Spec,
        by: &str,
        leases: &Leases,
        now: Timestamp,
    ) -> Result<bool, Refusal> {
        self.refuse_if_in_use(uid, leases, now)?;
        self.refuse_before_inspection(uid)?;
        let record = self.get_mut(uid)?;
        let rests = matches!(record.phase, Phase::InMaintenance { .. }) && record.update.is_none();
        if !rests || needs_preparing(&record.spec, wanted) {
            return Ok(false);
        }
        record.revise(wanted, now);
        let (record, detail) = (record.clone(), wanted.summary());
        self.audit(now, &record, by, "changed", detail);
        Ok(true)
    }

    /// Refuses what an owner may not do to the record of another one. Without an owner a process
    /// acts by the protocol alone: it releases an overdue holder for the next waiter.
    pub(super) fn guard_owner(&self, uid: &Uid, owner: Option<&str>) -> Result<(), Refusal> {
        let refused = owner.and_then(|owner| self.get(uid)?.refuses_owner(owner));
        refused.map_or(Ok(()), Err)
    }

    /// Gives a record to a state, whichever had it before.
    pub fn take_over(&mut self, uid: &Uid, known: KnownTo, now: Timestamp) -> Result<(), Refusal> {
        let record = self.active.iter_mut().find(|record| record.uid == *uid).ok_or(Refusal::Gone)?;
        let before = record.known_to.replace(known.clone());
        let detail = before.map_or_else(String::new, |before| format!("from the state that {} marked", before.by));
        let event = AuditEvent {
            at: now,
            id: record.id.clone(),
            uid: uid.clone(),
            generation: record.generation,
            by: known.by,
            what: "taken over".to_owned(),
            detail,
        };
        self.events.push(event);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        change::{Applied, LockChange, Moment},
        ids::{LockKey, Runner, Token},
        machine::PowerTarget,
        model::{
            approval::Claim,
            lock::{AskingState, LockHolder},
            verdict::Limits,
        },
        spec::MaintenanceKind,
        state::{Ending, Progress},
    };

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn spec(reason: &str) -> Spec {
        Spec { reason: Some(reason.to_owned()), ..Spec::new(MaintenanceKind::Maintenance, "node-1") }
    }

    fn request(name: &str) -> EnqueueRequest {
        EnqueueRequest {
            uid: Uid(name.to_owned()),
            id: MaintenanceId::new("ops", name).unwrap(),
            owner: "team".to_owned(),
            spec: spec("one"),
            gates: Vec::new(),
            runner: Runner::new("ada", "ada", "desk", 1),
            keeps_place: false,
            location: None,
            asking: AskingState::default(),
        }
    }

    /// A lock with one record of the owner `team`, which is prepared and at rest.
    fn held() -> (ServerLock, Uid) {
        let mut lock = ServerLock::new(LockKey("k".to_owned()));
        let uid = lock.enqueue(request("a"), &Leases::default(), NOW).unwrap().uid().clone();
        lock.active[0].phase = Phase::InMaintenance { since: NOW };
        lock.slot = Some(LockHolder { uid: uid.clone(), since: NOW, acting: None });
        (lock, uid)
    }

    #[test]
    fn a_successor_does_not_wait_for_its_own_predecessor() {
        let enqueue =
            |lock: &ServerLock, request: EnqueueRequest| lock.clone().enqueue(request, &Leases::default(), NOW);
        let (mut lock, uid) = held();
        let next = MaintenanceId::new("ops", "b").unwrap();
        assert!(enqueue(&lock, request("b")).is_ok(), "another configuration of the owner waits");
        lock.announce(&uid, "s", Some(&next), "ada", NOW).unwrap();
        assert!(matches!(enqueue(&lock, request("b")), Err(Refusal::OwnPredecessor { .. })));
        assert!(enqueue(&lock, request("c")).is_ok());
        assert!(enqueue(&lock, EnqueueRequest { owner: "others".to_owned(), ..request("b") }).is_ok());
        assert!(matches!(lock.announce(&uid, "t", None, "bob", NOW), Err(Refusal::KnownToAnother { .. })));
        let mut withdrawn = lock.clone();
        withdrawn.announce(&uid, "s", None, "ada", NOW).unwrap();
        assert!(enqueue(&withdrawn, request("b")).is_ok());
        lock.active[0].phase =
            Phase::Releasing { ending: Ending::Completed, progress: Progress::new(Vec::new(), NOW), stuck: None };
        assert!(enqueue(&lock, request("b")).is_ok(), "one that is being released ends by itself");
    }

    fn applied(lock: &mut ServerLock, change: &LockChange<'_>) -> Result<Applied, Refusal> {
        let (leases, limits) = (Leases::default(), Limits::default());
        lock.apply(change, &Moment { leases: &leases, now: NOW, aging: Duration::from_hours(24), limits: &limits })
    }

    #[test]
    fn only_its_owner_acts_on_a_record_and_the_protocol_does() {
        let (runner, token) = (Runner::new("bob", "ada", "desk", 1), Token(uuid::Uuid::nil()));
        for (owner, allowed) in [(Some("team"), true), (None, true), (Some("others"), false), (Some(""), false)] {
            let (mut lock, uid) = held();
            let attach = LockChange::Attach { uid: &uid, runner: &runner, token, state: "", owner };
            let seize = LockChange::Seize {
                uid: &uid,
                seen: 0,
                runner: &runner,
                owner,
                token,
                ending: None,
                reason: "",
                block: None,
            };
            for change in [seize, attach] {
                let refused = matches!(applied(&mut lock.clone(), &change), Err(Refusal::OtherOwner { .. }));
                assert_eq!(refused, !allowed, "{owner:?} {change:?}");
            }
            let Some(owner) = owner else { continue };
            let (wanted, state, by) = (spec("two"), "s", "bob");
            let amend = LockChange::Amend { uid: &uid, state, owner, spec: &wanted, by };
            for change in [LockChange::TakeOver { uid: &uid, state, owner, by }, amend] {
                let before = lock.clone();
                assert_eq!(applied(&mut lock, &change).is_ok(), allowed, "{owner:?} {change:?}");
                assert_eq!(lock == before, !allowed, "what is refused changes nothing");
            }
        }
    }

    #[test]
    fn a_change_of_words_needs_no_right_to_act_and_a_change_of_power_does() {
        let (mut lock, uid) = held();
        let change = |lock: &mut ServerLock, spec: &Spec| {
            applied(lock, &LockChange::Amend { uid: &uid, state: "", owner: "team", spec, by: "ada" })
        };
        assert_eq!(change(&mut lock, &spec("two")), Ok(Applied::Done));
        let record = lock.get(&uid).unwrap();
        assert_eq!((record.spec.reason.as_deref(), record.generation), (Some("two"), 0));
        assert_eq!(record.digest, spec("two").digest());
        let before = lock.clone();
        let switched = Spec { server_power: Some(PowerTarget::Off), ..spec("two") };
        assert_eq!(change(&mut lock, &switched), Ok(Applied::Outdated));
        assert_eq!(lock, before);
        lock.active[0].phase = Phase::Pending;
        assert_eq!(change(&mut lock, &spec("three")), Ok(Applied::Outdated));
    }

    #[test]
    fn only_its_owner_gives_a_claim_up() {
        let mut lock = ServerLock::new(LockKey("k".to_owned()));
        let claim = Claim {
            uid: Uid("c".to_owned()),
            id: MaintenanceId::new("db", "a").unwrap(),
            owner: "team".to_owned(),
            contact: None,
            server: "node-1".to_owned(),
            since: NOW,
            by: "ada".to_owned(),
        };
        let uid = lock.claim(claim, NOW).unwrap();
        assert!(matches!(lock.unclaim_for(&uid, "others", "bob", NOW), Err(Refusal::NotTheOwner { .. })));
        assert_eq!(lock.unclaim_for(&Uid("gone".to_owned()), "others", "bob", NOW), Ok(false));
        assert_eq!(lock.unclaim_for(&uid, "team", "ada", NOW), Ok(true));
    }
}
