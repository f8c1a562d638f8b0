//! Gates that appeared after a maintenance was queued.
//!
//! A record keeps the gates from its enqueue, possibly days ago. The engine checks for new gates
//! when the record takes the lock, and right before its first change of the server. It does not
//! detect a gate that appears between the check and the change.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{BackendError, GateKind, Machine},
    maintenance::{
        change::RecordChange,
        decide::{Decision, Finish},
        machine::{PowerState, PowerTarget},
        restore,
        spec::Spec,
        state::{Ending, Maintenance, Phase, Progress},
        step::{Action, Step},
        update,
    },
};

use super::{Control, Engine, EngineError, act::LookError, drive::Reconciler, gate::wish_of, stops_node};

/// Next step if a gate appeared before any change.
const APPLY_AGAIN: &str = "Apply again: the maintenance then sends it a request first.";

/// Next step if a gate appeared after the server was changed.
const ACCEPT: &str = "Its workloads would stop without a drain. Remove the server from that system and run this \
                      again, or end the maintenance without a restore (release --force --accept-as-is).";

impl Engine {
    /// Rejects a change that newly stops the server's workload if the server has a gate that the
    /// record never requested.
    pub(super) async fn refuses_new_gates(&self, record: &Maintenance, wanted: &Spec) -> Result<(), EngineError> {
        let stopped = stops_node(&record.spec);
        let left = matches!(record.phase, Phase::InMaintenance { .. }) && !record.keeps_server();
        let stops_again = left && update::needs_preparing(&record.spec, wanted);
        if record.spec.parent.is_some() || !stops_node(wanted) || (stopped && !stops_again) {
            return Ok(());
        }
        let has = |gate: &String| record.gates.iter().any(|it| it.system.gate.as_ref() == Some(gate));
        let mut systems = self.systems(wanted).await?.into_iter();
        let new = systems.find(|system| system.gate.as_ref().is_some_and(|gate| !has(gate)));
        let Some(new) = new else { return Ok(()) };
        let (name, id) = (&new.name, &record.id);
        let what = if stopped {
            format!("{name} has the server now and did not receive a request for {id}. {ACCEPT}")
        } else {
            format!(
                "{name} did not receive a request for {id}, because the maintenance stopped no workloads; changing \
                 server_power would stop them. Replace the resource instead of changing it (-replace)"
            )
        };
        Err(BackendError::Unsupported { address: record.server().into(), what: what.into() }.into())
    }

    /// Returns the gate kinds that apply to a record and are missing from it.
    fn kinds_without_gate<'a>(&'a self, record: &'a Maintenance) -> impl Iterator<Item = &'a Arc<dyn GateKind>> {
        // The parent's grants cover child requests. Changes that stop nothing skip these gates.
        let stops = match record.phase {
            Phase::Releasing { .. } => restore_may_stop(record),
            _ => stops_node(record.checked_spec()),
        };
        let asks = record.spec.parent.is_none() && stops;
        let has = |kind: &str| record.gates.iter().any(|gate| gate.system.gate.as_deref() == Some(kind));
        self.parts.gates.iter().filter(move |kind| asks && !has(kind.id()))
    }

    /// Returns a record's machine, without cached state.
    fn fresh(&self, record: &Maintenance) -> Result<Arc<dyn Machine>, BackendError> {
        let machine = self.parts.backend.machine(record.server())?;
        let own = machine.maintenance_system().map(|own| own.under(&wish_of(record, self.store().id())));
        Ok(own.unwrap_or(machine))
    }

    /// Returns the reason not to admit a record or change its server: a gate that did not exist at
    /// enqueue.
    async fn late_gate(&self, record: &Maintenance) -> Result<Option<String>, BackendError> {
        for kind in self.kinds_without_gate(record) {
            let machine = self.fresh(record)?;
            let gate = kind.of(record.server(), Some(Arc::clone(&machine)));
            let Some(system) = gate.system(false).await? else { continue };
            let releases = matches!(record.phase, Phase::Releasing { .. });
            // The server is off, so the restore stops nothing.
            if releases && machine.observe().await?.power == PowerState::Off {
                continue;
            }
            let state = gate.state().await?.map(|state| format!(" ({state})")).unwrap_or_default();
            let next = if releases || record.update.is_some() { ACCEPT } else { APPLY_AGAIN };
            return Ok(Some(format!(
                "{} has {} now{state}. It did not receive a request, because it did not have the server when {} was \
                 queued. {next}",
                system.name,
                record.server(),
                record.id
            )));
        }
        Ok(None)
    }
}

/// Returns true if a restore can stop the server's workload.
fn restore_may_stop(record: &Maintenance) -> bool {
    let ends_off = record.restored_power() == Some(PowerTarget::Off);
    restore::verifies(record) && (record.booted || ends_off || !record.drives.is_empty())
}

/// Returns true if an action is the first change of the server, or the first after its Node's
/// drain, which can take long.
fn is_first_change(record: &Maintenance, action: &Action) -> bool {
    let Phase::Preparing(progress) = &record.phase else { return false };
    // While the server stays locked, the lock's gates cover a change.
    let began_alone = record.update.is_none() || !record.keeps_server();
    let reads =
        |step: &Step| matches!(step, Step::TakeNode | Step::RecordPriorState | Step::CheckImage | Step::DrainNode);
    let untouched = progress.steps.iter().take(progress.current).all(reads) && progress.attempts.is_empty();
    let changes = !matches!(action, Action::TakeNode | Action::Record | Action::CheckImage | Action::AskPreparer);
    untouched && changes && began_alone && record.undoing().is_none()
}

impl Reconciler<'_> {
    /// Returns true if a decision requires a check for new gates first.
    pub(super) fn checks_gates_before(&self, decision: &Decision) -> bool {
        let Some(record) = self.record().filter(|_| !self.talk.no_late_gate) else { return false };
        let checks = match decision {
            // Including a record that queued again, because its server was free in between.
            Decision::Change(RecordChange::Admit(_)) => true,
            Decision::Act(action) => is_first_change(record, action),
            _ => false,
        };
        checks && self.engine.kinds_without_gate(record).next().is_some()
    }

    /// Checks for new gates. A new gate stops the record.
    pub(super) async fn look_late_gate(
        &mut self,
        deadline: Duration,
        control: &Control,
    ) -> Result<Option<Finish>, EngineError> {
        let Some(record) = self.last.clone() else { return Ok(None) };
        let looked = tokio::select! {
            looked = self.engine.late_gate(&record) => looked,
            () = control.stop.cancelled() => return Ok(None),
        };
        let why = match looked {
            Ok(Some(why)) => why,
            Ok(None) => {
                self.talk.no_late_gate = true;
                return Ok(None);
            }
            Err(error) => {
                return self.after_look(Err(LookError::Machine(error)), deadline, control).await.map(|()| None);
            }
        };
        let step = record.phase.progress().and_then(Progress::step);
        let cause = step.map_or_else(|| why.clone(), |step| format!("{step}: {why}"));
        let change = match record.phase {
            Phase::Pending => return self.refuse(why.into(), deadline, control).await.map(Some),
            Phase::Preparing(_) if record.update.is_some() => RecordChange::Undo(cause),
            Phase::Preparing(_) => RecordChange::BeginRelease(Ending::Failed(cause.into())),
            Phase::InMaintenance { .. } => RecordChange::RefuseUpdate(why),
            Phase::Releasing { .. } => RecordChange::Stuck(cause),
            Phase::Completed { .. } | Phase::Failed { .. } => return Ok(None),
        };
        self.change(change).await
    }
}
