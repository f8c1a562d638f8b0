//! Which configurations may continue a record or act under it: the state that manages it, and the owners that it names.
//!
//! A process that ends leaves nothing attached. So that nothing is attached does not tell whether the record is left
//! over from a killed apply, which the next one has to find, or managed by a state that another one must not destroy
//! under it. The state itself tells: each has a random number, and the first refresh marks the record with it.

use jiff::Timestamp;

use super::{
    ids::Uid,
    lock::{AuditEvent, Refusal, ServerLock},
    spec::Spec,
    state::{KnownTo, Maintenance},
};

impl Maintenance {
    /// Why a state may not continue this record; `None`: it may.
    ///
    /// A state without a number is one of version 0.1.0, or no state at all (the command line).
    #[must_use]
    pub fn refuses_state(&self, state: &str) -> Option<Refusal> {
        let known = self.known_to.as_ref().filter(|known| !state.is_empty() && known.state != state)?;
        Some(Refusal::KnownToAnother { id: self.id.clone(), known: Box::new(known.clone()) })
    }

    /// Why a configuration or a person of this owner may not continue, change, take over or end this record; `None`: they may.
    #[must_use]
    pub fn refuses_owner(&self, owner: &str) -> Option<Refusal> {
        (self.owner != owner).then(|| Refusal::OtherOwner {
            id: self.id.clone(),
            existing: self.owner.clone(),
            asked: owner.to_owned(),
        })
    }

    /// Why another request of this name is not this record's; `None`: it is, and continues it.
    #[must_use]
    pub fn refuses_request(&self, owner: &str, spec: &Spec) -> Option<Refusal> {
        let other = || Refusal::OtherSpec { id: self.id.clone(), existing: self.spec.summary(), asked: spec.summary() };
        let same = self.digest == spec.digest() || self.asks_for(spec);
        self.refuses_owner(owner).or_else(|| (!same).then(other))
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
            let mark = || KnownTo { state: state.to_owned(), since: now, by: by.to_owned() };
            record.known_to.get_or_insert_with(mark);
        }
        Ok(())
    }

    /// Refuses what an owner may not do to the record of another one. Without an owner a process acts by the protocol alone:
    /// it releases an overdue holder for the next waiter.
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
