//! Requests to a server's gates, and their withdrawal.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::future::select_all;

use crate::{
    backend::{BackendError, Gate, Machine, Outlook, Rejection},
    clock::{strict_timeout, within},
    maintenance::{
        change::{Applied, LockChange, RecordChange},
        gate::{self, Asks, ExternalRequest, ExternalState, ExternalSystem, GateRecord, GateView},
        spec::{MaintenanceKind, Policy, Spec},
        state::{Maintenance, Progress},
        step::Step,
    },
    shown::OneLine,
    store::StoreError,
};

use super::{Control, Engine, EngineError, act::LookError, drive::Reconciler, stops_node};

/// How long a stop waits for a withdrawal.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Interval between searches for orphaned requests.
const PRUNE: Duration = Duration::from_mins(1);

/// Time limit for a withdrawal that precedes an error message.
const TAKE_BACK: Duration = Duration::from_secs(30);

/// Requests of a drive to a server's gates.
#[derive(Debug, Default)]
pub(super) struct ExternalProgress {
    /// Indexes of gates with a recorded request.
    asked: BTreeSet<usize>,
    /// When orphaned requests were last searched for, on our monotonic clock.
    pruned: Option<Duration>,
    /// True after a check found no new gate. Checked for each admission, and before the first
    /// change of the server.
    pub(super) no_late_gate: bool,
}

/// A machine with its own maintenance system, and the request to that system.
pub(super) type ExternalTarget = (Arc<dyn Machine>, ExternalRequest);

/// One of a server's gates.
pub(super) enum GateRef {
    /// Its own maintenance system.
    Own(Arc<dyn Machine>),
    /// A gate in front of that system.
    Before(Arc<dyn Gate>),
}

impl GateRef {
    pub(super) fn gate(&self) -> Option<&dyn Gate> {
        match self {
            Self::Own(machine) => machine.maintenance_system().map(|own| own as &dyn Gate),
            Self::Before(gate) => Some(gate.as_ref()),
        }
    }
}

/// Returns the request that marks objects of a record's server.
#[must_use]
pub fn wish_of(record: &Maintenance, store: &str) -> ExternalRequest {
    wish_to(record, gate::own(&record.gates), store)
}

/// Returns a record's request to a gate.
pub(super) fn wish_to(record: &Maintenance, gate: Option<&GateRecord>, store: &str) -> ExternalRequest {
    ExternalRequest {
        uid: record.uid.to_string(),
        id: record.id.to_string(),
        run: record.requester.to_string().into(),
        asked: gate.is_some_and(|gate| gate.asked),
        memory: gate.map(|gate| gate.memory.clone()).unwrap_or_default(),
        enters: gate.is_some_and(|gate| gate.system.enters),
        entered: gate.is_some_and(|gate| gate.entered),
        leaving: record.phase.progress().and_then(Progress::step) == Some(Step::LeaveGate),
        namespace: record.location.as_ref().and_then(|location| location.namespace.clone().map(OneLine::into_raw)),
        outer: gate::outer(&record.gates),
        ..wish_for(&record.spec, record.owner.shown(), store)
    }
}

pub(super) fn wish_for(spec: &Spec, owner: &str, store: &str) -> ExternalRequest {
    ExternalRequest {
        store: store.to_owned(),
        uid: String::new(),
        id: String::new(),
        owner: owner.into(),
        run: String::new().into(),
        asks: match spec.policy {
            Policy::OwnerApproval if !spec.always_perform && spec.require_claim => Asks::OwnerItMustHave,
            Policy::OwnerApproval if !spec.always_perform => Asks::Owner,
            Policy::OwnerApproval | Policy::Enforced => Asks::Nobody,
        },
        priority: spec.priority,
        reason: spec.reason.clone(),
        ticket: spec.ticket.clone(),
        asked: false,
        entered: false,
        enters: spec.kind != MaintenanceKind::Operation && spec.parent.is_none(),
        leaving: false,
        namespace: None,
        memory: BTreeMap::new(),
        outer: Vec::new(),
    }
}

impl Engine {
    /// Returns true if the server belongs to an external maintenance system.
    #[must_use]
    pub fn is_external(&self, server: &str) -> bool {
        self.machine(server).is_ok_and(|machine| machine.maintenance_system().is_some())
    }

    /// Returns the gates that a request must pass, outermost first.
    pub async fn systems(&self, spec: &Spec) -> Result<Vec<ExternalSystem>, EngineError> {
        let machine = self.machine(spec.server.shown())?;
        let mut systems = Vec::new();
        // The parent's grants cover child requests. Changes that stop nothing skip these gates.
        for kind in self.parts.gates.iter().filter(|_| spec.parent.is_none() && stops_node(spec)) {
            systems.extend(kind.of(spec.server.shown(), Some(Arc::clone(&machine))).system(false).await?);
        }
        if let Some(own) = machine.maintenance_system()
            && let Some(system) = own.system(spec.kind == MaintenanceKind::Operation).await?
        {
            systems.push(ExternalSystem { enters: system.enters && spec.parent.is_none(), ..system });
        }
        Ok(systems)
    }

    /// Returns a record's gate; `None` if this configuration does not have it.
    pub(super) fn link(&self, server: &str, gate: &GateRecord) -> Result<Option<GateRef>, BackendError> {
        let Some(id) = &gate.system.gate else {
            let machine = self.parts.backend.machine(server)?;
            return Ok(machine.maintenance_system().is_some().then(|| GateRef::Own(machine)));
        };
        // The record contains enough data for a server that is not configured here.
        let machine = self.parts.backend.machine(server).ok();
        let kind = self.parts.gates.iter().find(|kind| kind.id() == id);
        Ok(kind.map(|kind| GateRef::Before(kind.of(server, machine))))
    }

    /// Returns the gates' notes on a request for a reviewer; empty without gates.
    pub async fn outlook(&self, spec: &Spec, id: Option<&str>) -> Result<Outlook, EngineError> {
        let machine = self.machine(spec.server.shown())?;
        let spec = self.as_asked_here(spec);
        let wish = ExternalRequest {
            id: id.unwrap_or_default().to_owned(),
            ..wish_for(&spec, self.owner(), self.store().id())
        };
        let mut outlook = Outlook::default();
        for kind in self.parts.gates.iter().filter(|_| spec.parent.is_none() && stops_node(&spec)) {
            let gate = kind.of(spec.server.shown(), Some(Arc::clone(&machine)));
            let wish = ExternalRequest { enters: true, ..wish.clone() };
            outlook.add(match gate.outlook(&wish).await {
                Ok(told) => told,
                Err(error) if error.is_transient() => Outlook::of_line(format!("{}: not checked: {error}.", kind.id())),
                Err(error) => Outlook {
                    rejection: Some(Rejection::for_now(format!("{}: {error}", kind.id()))),
                    ..Outlook::default()
                },
            });
        }
        if let Some(own) = machine.maintenance_system() {
            outlook.add(own.outlook(&wish).await?);
        }
        // A change that stops nothing disturbs no consumer, and a gate queries its consumers
        // itself.
        let disturbs = spec.parent.is_none() && stops_node(&spec);
        let has_gate = |systems: Vec<ExternalSystem>| systems.iter().any(|system| system.gate.is_some());
        if outlook.unasked.is_some() && (!disturbs || self.systems(&spec).await.is_ok_and(has_gate)) {
            outlook.unasked = None;
        }
        Ok(outlook)
    }

    /// Returns the server's state at each gate, by gate name. Gates that do not answer are omitted.
    pub async fn gate_states(&self, server: &str) -> BTreeMap<String, String> {
        let mut states = BTreeMap::new();
        for kind in &self.parts.gates {
            let gate = kind.of(server, self.parts.backend.machine(server).ok());
            match gate.state().await {
                Ok(Some(state)) => drop(states.insert(kind.id().to_owned(), state)),
                Ok(None) => {}
                Err(error) => tracing::warn!("{server}: {}: {error}", kind.id()),
            }
        }
        states
    }

    /// Returns a record's machine for reading.
    pub(super) fn machine_of(&self, holder: &Maintenance) -> Result<Arc<dyn Machine>, EngineError> {
        let plain = self.machine(holder.server())?;
        let entered = gate::own(&holder.gates).is_some_and(|gate| gate.system.enters);
        Ok(match plain.maintenance_system().filter(|_| entered) {
            Some(own) => own.shown(&wish_of(holder, self.store().id())),
            None => plain,
        })
    }
}

impl Reconciler<'_> {
    /// Returns the machine and the request to its own maintenance system, if it has such a system.
    pub(super) fn own_gate(&self) -> Result<Option<ExternalTarget>, EngineError> {
        let Some(holder) = self.holder().filter(|holder| gate::own(&holder.gates).is_some()) else {
            return Ok(None);
        };
        Ok(Some((self.engine.machine(&self.server)?, wish_of(holder, self.engine.store().id()))))
    }

    /// Returns a gate by index, with the request to it.
    pub(super) fn link(&self, place: usize) -> Result<Option<(GateRef, ExternalRequest)>, BackendError> {
        let Some(holder) = self.holder() else { return Ok(None) };
        let Some(gate) = holder.gates.get(place) else { return Ok(None) };
        let link = self.engine.link(&self.server, gate)?.ok_or_else(|| BackendError::Unsupported {
            address: self.server.clone().into(),
            what: format!(
                "this configuration does not reach {}, which received the maintenance's request",
                gate.system.name
            )
            .into(),
        })?;
        Ok(Some((link, wish_to(holder, Some(gate), self.engine.store().id()))))
    }

    /// Returns all gates with their requests, innermost first.
    fn links(&self) -> Vec<(usize, GateRef, ExternalRequest)> {
        let places = self.holder().map_or(0, |holder| holder.gates.len());
        let link = |place: usize| self.link(place).ok().flatten().map(|(link, wish)| (place, link, wish));
        (0..places).rev().filter_map(link).collect()
    }

    pub(super) fn asked_at_gates(&self) -> bool {
        !self.talk.asked.is_empty() || self.record().is_some_and(gate::is_asked)
    }

    /// Returns true if the current step enters or leaves a gate and the request was sent.
    fn passes_gate(&self) -> bool {
        let Some(progress) = self.record().and_then(|record| record.phase.progress()) else { return false };
        matches!(progress.step(), Some(Step::EnterGate | Step::LeaveGate)) && !progress.attempts.is_empty()
    }

    /// Reads a gate's state.
    pub(super) async fn look_gate(&mut self, place: usize, fresh: bool) -> Result<(), LookError> {
        if self.is_outer_elsewhere(place)? {
            self.facts.gates.insert(place, GateView::of(ExternalState::Granted));
            return Ok(());
        }
        let Some((link, wish)) = self.link(place)? else { return Ok(()) };
        let Some(gate) = link.gate() else { return Ok(()) };
        // Changes wake a waiter; before an action the state must be fresh.
        let fresh = fresh || !self.waits() || self.looks_first();
        // While the system enters or returns the server, its change wakes this process, so a cached
        // state is enough.
        let passes = fresh && self.passes_gate();
        let mut view = gate.look(&wish, fresh && !passes).await?;
        if passes && !matches!(view.standing, ExternalState::Entering(_) | ExternalState::Returning(_)) {
            view = gate.look(&wish, true).await?;
        }
        self.facts.gates.insert(place, view);
        Ok(())
    }

    /// Returns true if the gate belongs to the parent maintenance and this configuration does not
    /// have it. A child record does not need access to its parent's gate, so an unread gate blocks
    /// nothing.
    fn is_outer_elsewhere(&self, place: usize) -> Result<bool, BackendError> {
        let under = self.record().is_some_and(|record| record.spec.parent.is_some());
        let gate = self.holder().and_then(|holder| holder.gates.get(place));
        let Some(gate) = gate.filter(|_| under && place < self.facts.outer_gates) else { return Ok(false) };
        Ok(self.engine.link(&self.server, gate)?.is_none())
    }

    /// Returns when a gate can have changed; never without gates.
    pub(super) fn gates_changed(&self) -> impl Future<Output = ()> + use<> {
        let links = self.links();
        async move {
            let changed = links.iter().filter_map(|(_, link, _)| link.gate()).map(Gate::changed);
            let changed: Vec<_> = changed.collect();
            if changed.is_empty() {
                return std::future::pending().await;
            }
            select_all(changed).await;
        }
    }

    /// Enters or leaves the next gate in the record's steps.
    pub(super) async fn pass_gate(&self, enter: bool) -> Result<(), BackendError> {
        let Some(record) = self.record() else { return Ok(()) };
        let place = if enter { gate::entering(record) } else { gate::leaving(record) };
        let Some((link, wish)) = place.map(|place| self.link(place)).transpose()?.flatten() else { return Ok(()) };
        match link.gate() {
            Some(gate) if enter => gate.enter(&wish).await,
            Some(gate) => gate.leave(&wish).await,
            None => Ok(()),
        }
    }

    /// Sends or withdraws a queued record's request to a gate.
    pub(super) async fn ask_gate(
        &mut self,
        place: usize,
        enter: bool,
        deadline: Duration,
        control: &Control,
    ) -> Result<(), EngineError> {
        if let Err(error) = self.engine.lease.keep().await {
            return self.wait_for_store(error, deadline, control).await;
        }
        let renewal = self.engine.lease.renewal();
        // Record the request before sending it, so that later processes can withdraw it.
        match self.apply(&RecordChange::AskExternal(place)).await {
            Ok(Applied::Done) => drop(self.talk.asked.insert(place)),
            // The next round finds the current holder.
            Ok(_) | Err(StoreError::Refused(_)) => return Ok(()),
            Err(error) => return self.wait_for_store(error, deadline, control).await,
        }
        let Some((link, wish)) = self.link(place)? else { return Ok(()) };
        let Some(gate) = link.gate() else { return Ok(()) };
        if !self.engine.lease.is_safe_with(renewal) {
            return Ok(());
        }
        let name = self.holder().and_then(|holder| holder.gates.get(place)).map(|gate| gate.system.shown().to_owned());
        let name = name.unwrap_or_default();
        self.log_status(&if enter {
            format!("request it from {name}")
        } else {
            format!("withdraw the request to {name}")
        });
        let left = self.engine.lease.left_of(renewal);
        let call =
            strict_timeout(left, async { if enter { gate.enter(&wish).await } else { gate.leave(&wish).await } });
        match call.await {
            None | Some(Ok(())) => Ok(()),
            Some(Err(error)) if error.is_transient() => {
                self.log_status(&format!("{error}; trying again"));
                self.wait(true, None, deadline, control).await;
                Ok(())
            }
            Some(Err(error)) => Err(self.leave_queue(error, deadline, control).await),
        }
    }

    /// Handles an error that waiting cannot fix: withdraws the requests, leaves the queue and
    /// returns the error.
    pub(super) async fn leave_queue(
        &mut self,
        error: BackendError,
        deadline: Duration,
        control: &Control,
    ) -> EngineError {
        let soon = self.engine.parts.clock.monotonic() + TAKE_BACK;
        match self.withdraw_from_gates(deadline.min(soon), control).await {
            Ok(true) => {}
            // The next waiter for the server also searches for such requests.
            Ok(false) => tracing::warn!("the external request could still exist"),
            Err(error) => {
                tracing::warn!(%error, "the external request was not deleted");
            }
        }
        self.withdraw().await;
        error.into()
    }

    async fn withdraw(&mut self) {
        let left = self.apply(&RecordChange::Withdraw).await;
        if let Err(error) = left {
            tracing::warn!(%error, "could not leave the queue; the queue position stays until its reservation ends");
        }
    }

    /// Withdraws the requests before their record ends, innermost first. Returns false if a
    /// withdrawal was not confirmed in time.
    pub(super) async fn withdraw_from_gates(
        &mut self,
        deadline: Duration,
        control: &Control,
    ) -> Result<bool, EngineError> {
        let limit = if control.stop.is_cancelled() {
            STOP_GRACE
        } else {
            deadline.saturating_sub(self.engine.parts.clock.monotonic()).max(STOP_GRACE)
        };
        let taken_back = async {
            for (place, link, wish) in self.links() {
                // Include requests that were recorded after the last read.
                if !wish.asked && !self.talk.asked.contains(&place) {
                    continue;
                }
                let Some(gate) = link.gate() else { continue };
                // A withdrawal does not wait for an owner's approval.
                let wish = ExternalRequest { asks: Asks::Nobody, asked: true, ..wish };
                self.engine.wait_deleted(gate, &wish).await?;
            }
            Ok::<_, BackendError>(())
        };
        let gone = within(limit, taken_back).await;
        if let Some(Err(error)) = &gone {
            tracing::warn!(%error, "the external request could not be deleted");
        }
        Ok(matches!(gone, Some(Ok(()))))
    }

    /// Withdraws orphaned requests: their process died before the withdrawal or did not return in
    /// time. Every waiter for the server does this, because such a request can block it.
    pub(super) async fn prune_gate(&mut self) {
        let now = self.engine.parts.clock.monotonic();
        // A record without a request can wait behind an orphaned request too.
        let waits = self.waits() && self.record().is_some_and(|record| record.gates.iter().any(|it| it.said.is_some()));
        let asks = self.asked_at_gates() || waits;
        if !asks || self.talk.pruned.is_some_and(|at| now.saturating_sub(at) < PRUNE) {
            return;
        }
        self.talk.pruned = Some(now);
        if let Err(error) = self.engine.apply(&self.key, &LockChange::DropAbsent).await {
            tracing::debug!(%error, "disconnected waiters could not be removed from the queue");
        }
        if let Err(error) = self.discard_orphans().await {
            tracing::warn!(%error, "orphaned external requests could not be listed");
        }
    }

    async fn discard_orphans(&self) -> Result<(), EngineError> {
        for (_, link, _) in self.links() {
            let Some(gate) = link.gate() else { continue };
            for request in gate.requests().await? {
                self.engine.discard_orphan(&request).await?;
            }
        }
        Ok(())
    }
}
