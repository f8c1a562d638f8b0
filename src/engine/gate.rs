//! The gates before a server: requests to them, and withdrawing those.

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
    store::StoreError,
};

use super::{Control, Engine, EngineError, act::LookError, drive::Reconciler, stops_node};

/// How long a stop waits until a request is taken back.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// How often requests are looked for that nobody drives.
const TIDY: Duration = Duration::from_mins(1);

/// How long a request may take to be gone where what failed is told afterwards.
const TAKE_BACK: Duration = Duration::from_secs(30);

/// What a drive said to the gates before a server.
#[derive(Debug, Default)]
pub(super) struct ExternalProgress {
    /// The gates, by their places, for which it noted that a request may be there.
    asked: BTreeSet<usize>,
    /// On our own clock: requests that nobody drives are looked for again a while after this.
    tidied: Option<Duration>,
    /// Whether no gate came up that the record does not have: looked at once for each admission,
    /// and once for the first change of the server.
    pub(super) no_late_gate: bool,
}

/// A machine with a maintenance system of its own, and what is said to that about a hold.
pub(super) type ExternalTarget = (Arc<dyn Machine>, ExternalRequest);

/// A gate before a server.
pub(super) enum GateRef {
    /// Its own maintenance system.
    Own(Arc<dyn Machine>),
    /// One that stands before that.
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

/// What a mark on something of a record's server tells.
#[must_use]
pub fn wish_of(record: &Maintenance, store: &str) -> ExternalRequest {
    wish_to(record, gate::own(&record.gates), store)
}

/// What a request to a gate tells about a record.
pub(super) fn wish_to(record: &Maintenance, gate: Option<&GateRecord>, store: &str) -> ExternalRequest {
    ExternalRequest {
        uid: record.uid.to_string(),
        id: record.id.to_string(),
        run: record.requester.to_string(),
        asked: gate.is_some_and(|gate| gate.asked),
        memory: gate.map(|gate| gate.memory.clone()).unwrap_or_default(),
        enters: gate.is_some_and(|gate| gate.system.enters),
        entered: gate.is_some_and(|gate| gate.entered),
        leaving: record.phase.progress().and_then(Progress::step) == Some(Step::LeaveGate),
        namespace: record.location.as_ref().and_then(|location| location.namespace.clone()),
        outer: gate::outer(&record.gates),
        ..wish_for(&record.spec, &record.owner, store)
    }
}

pub(super) fn wish_for(spec: &Spec, owner: &str, store: &str) -> ExternalRequest {
    ExternalRequest {
        store: store.to_owned(),
        uid: String::new(),
        id: String::new(),
        owner: owner.to_owned(),
        run: String::new(),
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
    /// Whether a server is part of an external maintenance system.
    #[must_use]
    pub fn is_external(&self, server: &str) -> bool {
        self.machine(server).is_ok_and(|machine| machine.maintenance_system().is_some())
    }

    /// The gates before a server, as a wish meets them, the outermost first.
    pub async fn systems(&self, spec: &Spec) -> Result<Vec<ExternalSystem>, EngineError> {
        let machine = self.machine(&spec.server)?;
        let mut systems = Vec::new();
        // What acts under a hold was granted with it, and what stops nothing needs no gate.
        for kind in self.parts.gates.iter().filter(|_| spec.parent.is_none() && stops_node(spec)) {
            systems.extend(kind.of(&spec.server, Some(Arc::clone(&machine))).system(false).await?);
        }
        if let Some(own) = machine.maintenance_system()
            && let Some(system) = own.system(spec.kind == MaintenanceKind::Operation).await?
        {
            systems.push(ExternalSystem { enters: system.enters && spec.parent.is_none(), ..system });
        }
        Ok(systems)
    }

    /// A gate of a record. `None`: this configuration does not have it.
    pub(super) fn link(&self, server: &str, gate: &GateRecord) -> Result<Option<GateRef>, BackendError> {
        let Some(id) = &gate.system.gate else {
            let machine = self.parts.backend.machine(server)?;
            return Ok(machine.maintenance_system().is_some().then(|| GateRef::Own(machine)));
        };
        // What the record remembers is enough for one whose server is not configured here.
        let machine = self.parts.backend.machine(server).ok();
        let kind = self.parts.gates.iter().find(|kind| kind.id() == id);
        Ok(kind.map(|kind| GateRef::Before(kind.of(server, machine))))
    }

    /// What the gates tell a reviewer about a wish; nothing where there is none.
    pub async fn outlook(&self, spec: &Spec, id: Option<&str>) -> Result<Outlook, EngineError> {
        let machine = self.machine(&spec.server)?;
        let spec = self.as_asked_here(spec);
        let wish = ExternalRequest {
            id: id.unwrap_or_default().to_owned(),
            ..wish_for(&spec, self.owner(), self.store().id())
        };
        let mut outlook = Outlook::default();
        for kind in self.parts.gates.iter().filter(|_| spec.parent.is_none() && stops_node(&spec)) {
            let gate = kind.of(&spec.server, Some(Arc::clone(&machine)));
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
        // What stops nothing disturbs no consumer, and a gate before the server asks it.
        let disturbs = spec.parent.is_none() && stops_node(&spec);
        let has_gate = |systems: Vec<ExternalSystem>| systems.iter().any(|system| system.gate.is_some());
        if outlook.unasked.is_some() && (!disturbs || self.systems(&spec).await.is_ok_and(has_gate)) {
            outlook.unasked = None;
        }
        Ok(outlook)
    }

    /// How a server is at the gates before it, by their names; those that do not answer are left
    /// out.
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

    /// The machine of a record, for reading it.
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
    /// The machine and what is said about the hold, where the server has a maintenance system of
    /// its own.
    pub(super) fn own_gate(&self) -> Result<Option<ExternalTarget>, EngineError> {
        let Some(holder) = self.holder().filter(|holder| gate::own(&holder.gates).is_some()) else {
            return Ok(None);
        };
        Ok(Some((self.engine.machine(&self.server)?, wish_of(holder, self.engine.store().id()))))
    }

    /// A gate by its place, and the request to it for the hold.
    pub(super) fn link(&self, place: usize) -> Result<Option<(GateRef, ExternalRequest)>, BackendError> {
        let Some(holder) = self.holder() else { return Ok(None) };
        let Some(gate) = holder.gates.get(place) else { return Ok(None) };
        let link = self.engine.link(&self.server, gate)?.ok_or_else(|| BackendError::Unsupported {
            address: self.server.clone(),
            what: format!("this configuration does not reach {}, which the maintenance asked", gate.system.name),
        })?;
        Ok(Some((link, wish_to(holder, Some(gate), self.engine.store().id()))))
    }

    /// All of them, the innermost first.
    fn links(&self) -> Vec<(usize, GateRef, ExternalRequest)> {
        let places = self.holder().map_or(0, |holder| holder.gates.len());
        let link = |place: usize| self.link(place).ok().flatten().map(|(link, wish)| (place, link, wish));
        (0..places).rev().filter_map(link).collect()
    }

    pub(super) fn asked_at_gates(&self) -> bool {
        !self.talk.asked.is_empty() || self.record().is_some_and(gate::is_asked)
    }

    /// Whether the step is to enter or to leave a gate, and that was asked.
    fn passes_gate(&self) -> bool {
        let Some(progress) = self.record().and_then(|record| record.phase.progress()) else { return false };
        matches!(progress.step(), Some(Step::EnterGate | Step::LeaveGate)) && !progress.attempts.is_empty()
    }

    /// Reads how a gate stands.
    pub(super) async fn look_gate(&mut self, place: usize, fresh: bool) -> Result<(), LookError> {
        if self.is_outer_elsewhere(place)? {
            self.facts.gates.insert(place, GateView::of(ExternalState::Granted));
            return Ok(());
        }
        let Some((link, wish)) = self.link(place)? else { return Ok(()) };
        let Some(gate) = link.gate() else { return Ok(()) };
        // A waiter is woken by changes; before an action the state has to be fresh.
        let fresh = fresh || !self.waits() || self.looks_first();
        // While the system does what it was asked, nothing is done here, and its change wakes us:
        // what is known of it is enough.
        let passes = fresh && self.passes_gate();
        let mut view = gate.look(&wish, fresh && !passes).await?;
        if passes && !matches!(view.standing, ExternalState::Entering(_) | ExternalState::Returning(_)) {
            view = gate.look(&wish, true).await?;
        }
        self.facts.gates.insert(place, view);
        Ok(())
    }

    /// Whether a gate is one of the hold under which the record acts, and this configuration does
    /// not have it. What acts under the hold of another configuration need not reach that; what is
    /// not seen stops nothing.
    fn is_outer_elsewhere(&self, place: usize) -> Result<bool, BackendError> {
        let under = self.record().is_some_and(|record| record.spec.parent.is_some());
        let gate = self.holder().and_then(|holder| holder.gates.get(place));
        let Some(gate) = gate.filter(|_| under && place < self.facts.outer_gates) else { return Ok(false) };
        Ok(self.engine.link(&self.server, gate)?.is_none())
    }

    /// Returns when something about a gate may have changed; never where there is none.
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

    /// Enters or leaves the gate whose turn it is in the steps of a record.
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

    /// Makes or withdraws the request to a gate of a record that is still in the queue.
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
        // First the note that it may be there: whoever finds the record later knows what to take
        // back.
        match self.apply(&RecordChange::AskExternal(place)).await {
            Ok(Applied::Done) => drop(self.talk.asked.insert(place)),
            // The next round finds out who has it now.
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

    /// Nothing that waiting would mend: the request is taken back, the record leaves the queue, and
    /// the error tells why.
    pub(super) async fn leave_queue(
        &mut self,
        error: BackendError,
        deadline: Duration,
        control: &Control,
    ) -> EngineError {
        let soon = self.engine.parts.clock.monotonic() + TAKE_BACK;
        match self.withdraw_from_gates(deadline.min(soon), control).await {
            Ok(true) => {}
            // Whoever waits next for the server looks for such requests too.
            Ok(false) => tracing::warn!("the external request may still exist"),
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

    /// Takes the requests back before their record goes, the innermost first. `false`: one could
    /// not be seen to be gone in time.
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
                // What was noted since the record was seen counts too.
                if !wish.asked && !self.talk.asked.contains(&place) {
                    continue;
                }
                let Some(gate) = link.gate() else { continue };
                // Who leaves waits for no owner any more.
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

    /// Takes back requests of ours whose maintenance is no more: somebody died between the two, or
    /// did not come back in time. Whoever waits for the same server does it, because such a request
    /// may be the one it waits for.
    pub(super) async fn tidy_gate(&mut self) {
        let now = self.engine.parts.clock.monotonic();
        // Also one that is not asked yet may wait behind a request whose maintenance is over.
        let waits = self.waits() && self.record().is_some_and(|record| record.gates.iter().any(|it| it.said.is_some()));
        let asks = self.asked_at_gates() || waits;
        if !asks || self.talk.tidied.is_some_and(|at| now.saturating_sub(at) < TIDY) {
            return;
        }
        self.talk.tidied = Some(now);
        if let Err(error) = self.engine.apply(&self.key, &LockChange::DropAbsent).await {
            tracing::debug!(%error, "absent waiters could not be dropped");
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
