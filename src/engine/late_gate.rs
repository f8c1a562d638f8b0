//! Gates that came up after a maintenance was queued without them.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{BackendError, GateKind},
    maintenance::{change::RecordChange, spec::Spec, state::Maintenance},
};

use super::{Control, Engine, EngineError, act::LookError, drive::Reconciler, stops_node};

impl Engine {
    /// Refuses a change that stops what runs on a server, where what is in force did not and so
    /// asked no gate.
    pub(super) async fn refuses_new_gates(&self, record: &Maintenance, wanted: &Spec) -> Result<(), EngineError> {
        if stops_node(&record.spec) || !stops_node(wanted) || record.spec.parent.is_some() {
            return Ok(());
        }
        let systems = self.systems(wanted).await?;
        let Some(new) = systems.into_iter().find(|system| system.gate.is_some()) else { return Ok(()) };
        Err(BackendError::Unsupported {
            address: record.server().to_owned(),
            what: format!(
                "{} was not asked for {}, because nothing was stopped, and server_power stops what runs. Replace the resource \
                 instead of changing it (-replace)",
                new.name, record.id
            ),
        }
        .into())
    }

    /// The kinds of gates that a record would be asked for and does not have.
    fn kinds_without_gate<'a>(&'a self, record: &'a Maintenance) -> impl Iterator<Item = &'a Arc<dyn GateKind>> {
        // What acts under a hold was granted with it, and what stops nothing needs no gate.
        let asks = record.spec.parent.is_none() && stops_node(&record.spec);
        let has = |kind: &str| record.gates.iter().any(|gate| gate.system.gate.as_deref() == Some(kind));
        self.parts.gates.iter().filter(move |kind| asks && !has(kind.id()))
    }

    /// Why a record may not take its server: a gate stands before it now that did not when the
    /// record was queued.
    async fn late_gate(&self, record: &Maintenance) -> Result<Option<String>, BackendError> {
        for kind in self.kinds_without_gate(record) {
            let gate = kind.of(record.server(), Some(self.parts.backend.machine(record.server())?));
            let Some(system) = gate.system(false).await? else { continue };
            let state = gate.state().await?.map(|state| format!(" ({state})")).unwrap_or_default();
            return Ok(Some(format!(
                "{} has {} now{state} and was not asked, because it did not have the server when {} was queued. Apply again: the \
                 maintenance then asks it first.",
                system.name,
                record.server(),
                record.id
            )));
        }
        Ok(None)
    }
}

impl Reconciler<'_> {
    /// Whether the gates before the server are to be looked at before it is taken. A record keeps
    /// the gates that were there when it was queued, and it may have waited for days since.
    pub(super) fn checks_gates_before(&self, change: &RecordChange) -> bool {
        let record = self.record().filter(|_| matches!(change, RecordChange::Admit(_)) && self.waits());
        !self.talk.no_late_gate && record.is_some_and(|record| self.engine.kinds_without_gate(record).next().is_some())
    }

    /// Looks at the gates before the server; why it may not be taken, where one came up.
    pub(super) async fn look_late_gate(
        &mut self,
        deadline: Duration,
        control: &Control,
    ) -> Result<Option<String>, EngineError> {
        let Some(record) = self.last.clone() else { return Ok(None) };
        let looked = tokio::select! {
            looked = self.engine.late_gate(&record) => looked,
            () = control.stop.cancelled() => return Ok(None),
        };
        match looked {
            Ok(found) => {
                self.talk.no_late_gate = found.is_none();
                Ok(found)
            }
            Err(error) => self.after_look(Err(LookError::Machine(error)), deadline, control).await.map(|()| None),
        }
    }
}
