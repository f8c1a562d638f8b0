//! Entry into the queue.

use jiff::Timestamp;

use super::{
    gate,
    ids::Uid,
    lock::reaches,
    model::{
        gate::GateRecord,
        lock::{EnqueueRequest, Enqueued, Leases, Refusal, ServerLock},
        node::NodeRecord,
    },
    spec::MaintenanceKind,
    state::{KnownTo, Maintenance, Phase},
};

impl ServerLock {
    /// Enqueues a request, or adopts an earlier run's record.
    ///
    /// The operation is idempotent by `namespace/name`. Adoption requires the same owner and digest
    /// and no connected process.
    pub fn enqueue(&mut self, request: EnqueueRequest, leases: &Leases, now: Timestamp) -> Result<Enqueued, Refusal> {
        self.refuse_unreadable(&request.id)?;
        let digest = request.spec.digest();
        if let Some(existing) = self.active.iter().find(|record| record.id == request.id) {
            let existing = existing.uid.clone();
            return self.continue_existing(&existing, request, leases, now);
        }
        if let Some(released) = self.released(&request.id, &request.spec.triggers) {
            return Err(Refusal::ReleasedBefore { released: Box::new(released.clone()) });
        }
        if let Some(holder) = self.holder().filter(|holder| holder.is_replaced_by(&request)) {
            return Err(Refusal::OwnPredecessor { holder: holder.id.clone(), id: request.id });
        }
        if let Some(parent) = &request.spec.parent {
            let found = self.get(parent);
            if let Some(refusal) = found.and_then(|hold| hold.refuses_under(&request.owner)) {
                return Err(refusal);
            }
            let held = self.slot.as_ref().is_some_and(|slot| slot.uid == *parent);
            // A record that frees the server after its change is no lock to work under.
            if !held || !found.is_none_or(Maintenance::keeps_server) {
                return Err(Refusal::ParentNotHolding);
            }
            found.map_or(Ok(()), |hold| reaches(hold, request.location.as_ref()))?;
        } else if request.spec.kind != MaintenanceKind::Maintenance {
            let ours = self
                .holder()
                .filter(|holder| holder.owner == request.owner && holder.spec.kind == MaintenanceKind::Maintenance);
            if let Some(holder) = ours {
                return Err(Refusal::HeldByOurselves { holder: holder.id.clone() });
            }
        }
        // Existing records are adopted regardless of their gate order.
        if !gate::is_in_order(&request.gates) {
            return Err(Refusal::WrongPhase("a gate for the queue follows a gate that is entered under the lock"));
        }
        self.last_ticket = self.last_ticket.checked_add(1).ok_or(Refusal::NoNumberLeft("ticket number"))?;
        self.accept_name(&request.id, now);
        let record = Maintenance {
            uid: request.uid.clone(),
            id: request.id,
            lock_key: self.key.clone(),
            owner: request.owner.into(),
            digest: digest.into(),
            allowed: None,
            location: request.location,
            update: None,
            known_to: None,
            gates: request.gates.into_iter().map(GateRecord::new).collect(),
            spec: request.spec,
            ticket_number: self.last_ticket,
            requested_at: now,
            requester: request.runner,
            admitted_at: None,
            closes_at: None,
            started_at: None,
            phase: Phase::Pending,
            prior: None,
            node: NodeRecord::default(),
            drained: None,
            took_over: None,
            handed_to: None,
            booted: false,
            drives: Vec::new(),
            boot_writes: None,
            tolerated: Vec::new(),
            outcome: None,
            unproven_message: None,
            last_power: None,
            attachment: None,
            generation: 0,
            calls_until: None,
            detached_at: Some(now),
            keeps_place: request.keeps_place,
        };
        let detail = record.spec.summary();
        self.active.push(record.into());
        self.audit_uid(now, &request.uid, "enqueued", detail);
        Ok(Enqueued::New(request.uid))
    }

    /// Adopts an earlier run's record with the same name, or reports the difference.
    fn continue_existing(
        &mut self,
        uid: &Uid,
        request: EnqueueRequest,
        leases: &Leases,
        now: Timestamp,
    ) -> Result<Enqueued, Refusal> {
        let existing = self.get(uid).ok_or(Refusal::Gone)?;
        if let Some(refusal) = existing.refuses_request(&request.owner, &request.spec) {
            return Err(refusal);
        }
        reaches(existing, request.location.as_ref())?;
        let asking = &request.asking;
        if let Some(refusal) = existing.refuses_state(&asking.state).filter(|_| !asking.adopt) {
            return Err(refusal);
        }
        if existing.is_replaced_by(&request) {
            return Err(Refusal::OwnPredecessor { holder: existing.id.clone(), id: request.id });
        }
        self.refuse_if_in_use(&existing.uid, leases, now)?;
        let (uid, known) = (existing.uid.clone(), existing.known_to.clone());
        if known.is_some_and(|known| asking.adopt && known.state != asking.state) {
            let by = request.runner.to_string();
            self.take_over(&uid, KnownTo::new(&asking.state, now, &by), now)?;
        }
        let record = self.get_mut(&uid)?;
        record.requester = request.runner;
        // The BMC did not answer in the earlier run.
        if let Some((known, now)) = record.location.as_mut().zip(request.location) {
            known.system = known.system.take().or(now.system);
        }
        record.keeps_place = request.keeps_place;
        record.spec.hold_place_for = request.spec.hold_place_for;
        record.adopt_update();
        self.audit_uid(now, &uid, "adopted", String::new());
        Ok(Enqueued::Adopted(uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{LockKey, MaintenanceId, Runner, Token, Uid},
        model::lock::AskingState,
        spec::Spec,
    };

    impl EnqueueRequest {
        /// A sample request for tests that need only its name.
        pub(crate) fn sample(name: &str) -> Self {
            Self {
                uid: Uid::new(name),
                id: MaintenanceId::new("ops", name).unwrap(),
                owner: "o".to_owned(),
                spec: Spec::new(MaintenanceKind::Maintenance, "node"),
                location: None,
                gates: Vec::new(),
                runner: Runner::new("r", "ada", "desk", 1),
                keeps_place: false,
                asking: AskingState::default(),
            }
        }
    }

    #[test]
    fn a_gate_that_is_asked_before_the_lock_is_taken_stands_before_those_that_are_not() {
        use crate::gate::{
            ExternalSystem,
            QueueAuthority::{self, OnTurn, Ours, Theirs},
        };
        let (leases, now) = (Leases::default(), Timestamp::UNIX_EPOCH);
        let request = |orders: &[QueueAuthority]| EnqueueRequest {
            gates: orders.iter().map(|order| ExternalSystem::own("gate", *order, true)).collect(),
            ..EnqueueRequest::sample("a")
        };
        let empty = ServerLock::new(LockKey::new("k"));
        for orders in [&[Ours, Theirs][..], &[Ours, OnTurn], &[Theirs, Ours, OnTurn], &[OnTurn, Ours, Ours, Theirs]] {
            let mut lock = empty.clone();
            let refused = lock.enqueue(request(orders), &leases, now);
            assert!(matches!(refused, Err(Refusal::WrongPhase(_))), "{orders:?}: {refused:?}");
            assert_eq!(lock, empty, "{orders:?}");
        }
        for orders in [&[][..], &[Ours], &[Theirs], &[OnTurn, Theirs, Ours], &[Theirs, OnTurn, Ours, Ours]] {
            let mut lock = empty.clone();
            let asked = lock.enqueue(request(orders), &leases, now);
            assert!(matches!(asked, Ok(Enqueued::New(_))), "{orders:?}: {asked:?}");
            let adopted = lock.enqueue(request(orders), &leases, now);
            assert!(matches!(adopted, Ok(Enqueued::Adopted(_))), "{orders:?}: {adopted:?}");
        }
    }

    #[test]
    fn work_needs_a_parent_that_keeps_the_server() {
        let (leases, now) = (Leases::default(), Timestamp::UNIX_EPOCH);
        for kind in [MaintenanceKind::Maintenance, MaintenanceKind::BootConfiguration, MaintenanceKind::Operation] {
            let mut lock = ServerLock::new(LockKey::new("k"));
            let parent = EnqueueRequest { spec: Spec::new(kind, "node"), ..EnqueueRequest::sample("a") };
            let uid = lock.enqueue(parent, &leases, now).unwrap().uid().clone();
            lock.admit_record(&uid, Phase::InMaintenance { since: now }, now).unwrap();
            let spec = Spec { parent: Some(uid), ..Spec::new(MaintenanceKind::Operation, "node") };
            let asked = lock.enqueue(EnqueueRequest { spec, ..EnqueueRequest::sample("b") }, &leases, now);
            assert_eq!(asked.is_ok(), kind == MaintenanceKind::Maintenance, "{kind:?}: {asked:?}");
        }
    }

    #[test]
    fn a_number_that_cannot_grow_refuses_and_changes_nothing() {
        let (leases, now) = (Leases::default(), Timestamp::UNIX_EPOCH);
        let mut lock = ServerLock::new(LockKey::new("k"));
        lock.enqueue(EnqueueRequest::sample("a"), &leases, now).unwrap();

        lock.generation = u64::MAX;
        let before = lock.clone();
        let uid = Uid::new("a");
        let attached = lock.attach(&uid, Runner::new("r", "ada", "desk", 1), Token(uuid::Uuid::nil()), &leases, now);
        assert_eq!(attached, Err(Refusal::NoNumberLeft("generation")));
        lock.last_ticket = u64::MAX;
        let asked = lock.enqueue(EnqueueRequest::sample("b"), &leases, now);
        assert_eq!(asked, Err(Refusal::NoNumberLeft("ticket number")));
        assert_eq!(lock, ServerLock { last_ticket: u64::MAX, ..before });
    }
}
