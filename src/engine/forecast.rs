//! Forecasts of runs, for plans.

use uuid::Uuid;

use crate::{
    maintenance::{
        forecast::{Forecast, Outlook, Run, SeenServer, Start, forecast},
        ids::{MaintenanceId, Uid},
        lock::{AskingState, EnqueueRequest, Leases, ServerLock},
        queue::{self, QueueEntry},
        spec::{Spec, WaitFor},
        state::Maintenance,
    },
    store::LockView,
};

use super::Engine;

/// A planned request.
#[derive(Clone, Copy, Debug)]
pub struct Intended<'a> {
    /// The specification.
    pub spec: &'a Spec,
    /// Its name; `None`: unknown at plan.
    pub id: Option<&'a MaintenanceId>,
    /// The maintenance that the run releases first.
    pub replaces: Option<&'a MaintenanceId>,
    /// Whether it takes a record from another state.
    pub adopt: bool,
}

/// One forecast run.
#[derive(Clone, Debug)]
pub struct PlannedRun {
    /// Its effects and its end.
    pub forecast: Forecast,
    lock: ServerLock,
    leases: Leases,
    uid: Uid,
}

impl PlannedRun {
    /// The record before the first call.
    #[must_use]
    pub fn record(&self) -> Option<&Maintenance> {
        self.lock.get(&self.uid)
    }

    /// The lock with that record.
    #[must_use]
    pub fn lock(&self) -> &ServerLock {
        &self.lock
    }

    /// Whether the run waits first.
    #[must_use]
    pub fn waits(&self) -> bool {
        matches!(self.forecast.outlook, Outlook::Waits(_))
    }
}

impl Engine {
    /// Forecasts a request.
    pub async fn forecast_request(&self, view: &LockView, asked: &Intended<'_>, server: SeenServer) -> PlannedRun {
        let spec = self.as_asked_here(asked.spec);
        let mut lock = (*view.lock).clone();
        let before = asked.replaces.and_then(|id| lock.active.iter().find(|record| record.id == *id));
        if let Some(uid) = before.map(|record| record.uid.clone()) {
            lock.slot.take_if(|slot| slot.uid == uid);
            lock.active.retain(|record| record.uid != uid && record.spec.parent.as_ref() != Some(&uid));
        }
        let ours = |record: &&Maintenance| Some(&record.id) == asked.id && self.manages(&record.uid);
        let known = lock.active.iter().map(|record| &**record).find(ours).and_then(|record| record.known_to.as_ref());
        let state = known.map_or_else(|| "a plan".to_owned(), |known| known.state.raw().to_owned());
        let unnamed = || MaintenanceId::new("unknown", "unknown").ok();
        let gates = self.systems(&spec).await.unwrap_or_default();
        let request = asked.id.cloned().or_else(unnamed).map(|id| EnqueueRequest {
            uid: Uid::new(Uuid::now_v7().to_string()),
            id,
            owner: self.owner().to_owned(),
            spec,
            location: None,
            gates,
            runner: self.runner().clone(),
            keeps_place: false,
            asking: AskingState { state, adopt: asked.adopt, ..AskingState::default() },
        });
        let Some(request) = request else {
            let forecast = Forecast { steps: Vec::new(), outlook: Outlook::Open, entered: None };
            return PlannedRun { forecast, lock, leases: (*view.leases).clone(), uid: Uid::new(String::new()) };
        };
        let run = Run::Hold(&request, WaitFor::InMaintenance);
        let view = LockView::new(std::sync::Arc::new(lock), (*view.leases).clone(), view.now);
        let planned = self.forecast_run(&view, &run, &request.uid, server);
        if planned.record().is_some() {
            return planned;
        }
        // Refused: show owner and window as for an idle server.
        let mut alone =
            ServerLock { ownership: planned.lock.ownership.clone(), ..ServerLock::new(planned.lock.key.clone()) };
        let entered = alone.enqueue(request.clone(), &planned.leases, view.now).map(|entered| entered.uid().clone());
        let uid = entered.unwrap_or(request.uid);
        PlannedRun { lock: alone, uid, ..planned }
    }

    /// Forecasts an in-place change or a release.
    #[must_use]
    pub fn forecast_run(&self, view: &LockView, run: &Run<'_>, uid: &Uid, server: SeenServer) -> PlannedRun {
        let tuning = self.tuning();
        let start = Start {
            lock: &view.lock,
            leases: &view.leases,
            now: view.now,
            aging: tuning.aging,
            limits: &tuning.limits,
        };
        let mut forecast = forecast(&start, run, self.runner(), server);
        match forecast.entered.take() {
            Some((lock, leases, uid)) => PlannedRun { forecast, lock, leases, uid },
            None => {
                PlannedRun { forecast, lock: (*view.lock).clone(), leases: (*view.leases).clone(), uid: uid.clone() }
            }
        }
    }

    /// The queue ahead of a planned run, and the disconnected waiters that it passes.
    #[must_use]
    pub fn ahead_of(&self, planned: &PlannedRun, now: jiff::Timestamp) -> (Vec<QueueEntry>, Vec<QueueEntry>) {
        queue::ahead(&planned.lock, &planned.leases, &planned.uid, self.tuning().aging, now)
    }
}
