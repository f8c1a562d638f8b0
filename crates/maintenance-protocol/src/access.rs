//! Access to a record: the state that manages it, and the owners that it allows under it.
//!
//! A process that ends detaches. A detached record is therefore either managed by a state, or
//! orphaned by a killed apply, and the next apply must find it. The last commit of a create writes
//! the state's random number into the record. Afterwards only an import or `adopt = true` moves it
//! to another state. Plans and refreshes do not write.

use jiff::Timestamp;

use super::{
    ids::{Fence, Uid},
    model::lock::{AuditEvent, EnqueueRequest, Leases, Refusal, ServerLock},
    spec::Spec,
    state::{KnownTo, Maintenance, Phase},
    update::needs_preparing,
};

impl Maintenance {
    /// Returns the refusal for a state that does not manage this record.
    ///
    /// An empty `state` means the command line, which does not have a state.
    #[must_use]
    pub fn refuses_state(&self, state: &str) -> Option<Refusal> {
        let known = self.known_to.as_ref().filter(|known| !state.is_empty() && known.state != state)?;
        Some(Refusal::KnownToAnother { id: self.id.clone(), known: Box::new(known.clone()) })
    }

    /// Returns the refusal for an owner that is not allowed to continue, change or end this record.
    #[must_use]
    pub fn refuses_owner(&self, owner: &str) -> Option<Refusal> {
        (self.owner != owner).then(|| Refusal::OtherOwner {
            id: self.id.clone(),
            existing: self.owner.clone(),
            asked: owner.to_owned(),
        })
    }

    /// Returns true if the request replaces this record and the record is not being released. The
    /// request would then wait for its own predecessor.
    ///
    /// A replacement normally releases first. With `create_before_destroy` the predecessor still
    /// owns the lock.
    #[must_use]
    pub fn is_replaced_by(&self, request: &EnqueueRequest) -> bool {
        let replaced = request.asking.replaces.as_ref() == Some(&self.uid);
        replaced && self.owner == request.owner && !matches!(self.phase, Phase::Releasing { .. })
    }

    /// Returns true if the resource stays in its state when its create ends in this phase. After an
    /// error (`failed`) only a changed server stays, because a destroy must restore it.
    #[must_use]
    pub fn stays_in_state(&self, failed: bool) -> bool {
        match self.phase {
            Phase::Pending => self.keeps_place && !failed,
            _ => !failed || self.prior.is_some(),
        }
    }

    /// Returns the refusal for a request that has the same name but does not continue this record.
    #[must_use]
    pub fn refuses_request(&self, owner: &str, spec: &Spec) -> Option<Refusal> {
        let other = || Refusal::OtherSpec { id: self.id.clone(), existing: self.spec.summary(), asked: spec.summary() };
        self.refuses_owner(owner).or_else(|| (!self.asks_for(spec)).then(other))
    }

    /// Returns the refusal for an owner that is not allowed to act under this maintenance.
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
    /// Ends a create: marks the record as managed by the state and detaches the process.
    pub(super) fn conclude(
        &mut self,
        uid: &Uid,
        fence: Fence,
        state: &str,
        failed: bool,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let record = self.ours(uid, fence)?;
        if record.stays_in_state(failed) {
            let by = record.requester.to_string();
            self.mark_known(uid, state, &by, now)?;
        }
        self.detach(uid, fence, now)
    }

    /// Marks a record as managed by a state. Fails if another state manages it.
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

    /// Stores a new specification that does not change the prepared server. Returns `false` and
    /// changes nothing if the new one requires server changes. Fails while a connected process
    /// works on the record.
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

    /// Rejects changes by other owners. Without an owner, a process follows the protocol only: it
    /// releases an overdue holder for the next waiter.
    pub(super) fn guard_owner(&self, uid: &Uid, owner: Option<&str>) -> Result<(), Refusal> {
        let refused = owner.and_then(|owner| self.get(uid)?.refuses_owner(owner));
        refused.map_or(Ok(()), Err)
    }

    /// Moves a record to a state, regardless of its previous state. Repeating this changes nothing.
    pub fn take_over(&mut self, uid: &Uid, known: KnownTo, now: Timestamp) -> Result<(), Refusal> {
        if self.get(uid).and_then(|record| record.known_to.as_ref()).is_some_and(|before| before.state == known.state) {
            return Ok(());
        }
        let record = self.active.iter_mut().find(|record| record.uid == *uid).ok_or(Refusal::Gone)?;
        let before = record.known_to.replace(known.clone());
        let detail = before.map_or_else(String::new, |before| format!("from the state that {} marked", before.by));
        let event = AuditEvent {
            at: now,
            id: record.id.clone(),
            uid: uid.clone(),
            generation: record.generation,
            by: known.by,
            what: "taken over".into(),
            detail: detail.into(),
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
        change::{Applied, LockChange, Moment, RecordChange},
        ids::{LockKey, MaintenanceId, Runner, Token},
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
        Spec { reason: Some(reason.into()), ..Spec::new(MaintenanceKind::Maintenance, "node-1") }
    }

    fn request(name: &str) -> EnqueueRequest {
        EnqueueRequest {
            uid: Uid::new(name),
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

    /// Returns a lock with one prepared record of owner `team`.
    fn held() -> (ServerLock, Uid) {
        let mut lock = ServerLock::new(LockKey::new("k"));
        let uid = lock.enqueue(request("a"), &Leases::default(), NOW).unwrap().uid().clone();
        lock.active[0].phase = Phase::InMaintenance { since: NOW };
        lock.slot = Some(LockHolder { uid: uid.clone(), since: NOW, acting: None });
        (lock, uid)
    }

    fn of_state(state: &str) -> AskingState {
        AskingState { state: state.to_owned(), ..AskingState::default() }
    }

    #[test]
    fn a_successor_does_not_wait_for_its_own_predecessor() {
        let enqueue =
            |lock: &ServerLock, request: EnqueueRequest| lock.clone().enqueue(request, &Leases::default(), NOW);
        let (mut lock, uid) = held();
        let asking = AskingState { replaces: Some(uid), ..of_state("s") };
        for name in ["a", "b"] {
            assert!(enqueue(&lock, request(name)).is_ok(), "{name}: another resource of the owner");
            let next = EnqueueRequest { asking: asking.clone(), ..request(name) };
            let refused = enqueue(&lock, next.clone());
            assert!(matches!(refused, Err(Refusal::OwnPredecessor { .. })), "{name}: {refused:?}");
            let stranger = enqueue(&lock, EnqueueRequest { owner: "others".to_owned(), ..next });
            assert!(!matches!(stranger, Err(Refusal::OwnPredecessor { .. })), "{name}: {stranger:?}");
        }
        lock.active[0].phase =
            Phase::Releasing { ending: Ending::Completed, progress: Progress::new(Vec::new(), NOW), stuck: None };
        let next = EnqueueRequest { asking, ..request("b") };
        assert!(enqueue(&lock, next).is_ok(), "a predecessor that is being released ends without help");
    }

    #[test]
    fn only_the_last_commit_of_a_create_marks_the_record() {
        let (runner, token) = (Runner::new("ada", "ada", "desk", 1), Token(uuid::Uuid::nil()));
        for (keeps_place, ephemeral) in [(true, false), (true, true), (false, false), (false, true)] {
            let mut lock = ServerLock::new(LockKey::new("k"));
            let asking = AskingState { ephemeral, ..of_state("s") };
            let asked = EnqueueRequest { keeps_place, asking, ..request("a") };
            let change = LockChange::Enqueue { request: &asked, claims: &[], token };
            let Ok(Applied::Enqueued { uid, fence, .. }) = applied(&mut lock, &change) else { panic!("not enqueued") };
            let marked = |lock: &ServerLock| lock.active[0].known_to.is_some();
            // Without a process, the enqueue is the last commit.
            assert_eq!(marked(&lock), keeps_place && !ephemeral, "{keeps_place} {ephemeral}");
            let Some(fence) = fence else { continue };
            lock.active[0].phase = Phase::InMaintenance { since: NOW };
            let last = RecordChange::Conclude { state: "s".into(), failed: false };
            applied(&mut lock, &LockChange::Driven { uid: &uid, fence, change: &last }).unwrap();
            assert!(marked(&lock));
            let attach = LockChange::Attach { uid: &uid, runner: &runner, token, state: "t", owner: None };
            assert!(matches!(applied(&mut lock, &attach), Err(Refusal::KnownToAnother { .. })));
        }
    }

    #[test]
    fn a_record_that_no_state_stores_is_not_marked() {
        let waiting = |keeps_place| {
            let (mut lock, _) = held();
            (lock.active[0].phase, lock.active[0].keeps_place) = (Phase::Pending, keeps_place);
            lock.active[0].clone()
        };
        assert!(!waiting(false).stays_in_state(false), "a waiter that left is found by its name");
        assert!(waiting(true).stays_in_state(false));
        let (lock, _) = held();
        assert!(lock.active[0].stays_in_state(false));
        assert!(!lock.active[0].stays_in_state(true), "nothing was changed, so a failed create stores nothing");
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
                assert_eq!(lock == before, !allowed, "a refused change changed the lock");
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
        assert_eq!((record.spec.reason.as_ref().map(shown_text::OneLine::raw), record.generation), (Some("two"), 0));
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
        let mut lock = ServerLock::new(LockKey::new("k"));
        let claim = Claim {
            uid: Uid::new("c"),
            id: MaintenanceId::new("db", "a").unwrap(),
            owner: "team".into(),
            contact: None,
            server: "node-1".into(),
            since: NOW,
            by: "ada".into(),
        };
        let uid = lock.claim(claim, NOW).unwrap();
        assert!(matches!(lock.unclaim_for(&uid, "others", "bob", NOW), Err(Refusal::NotTheOwner { .. })));
        assert_eq!(lock.unclaim_for(&Uid::new("gone"), "others", "bob", NOW), Ok(false));
        assert_eq!(lock.unclaim_for(&uid, "team", "ada", NOW), Ok(true));
    }
}
