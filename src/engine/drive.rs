//! The loop: load → decide → act → record, until the goal is reached.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

use crate::{
    backend::Machine,
    maintenance::{
        change::{Applied, RecordChange},
        decide::{Decision, DecisionInput, Finish, Goal, Objective, decide},
        gate_chain::outer_gates,
        ids::{Fence, LockKey, Uid},
        lock::Refusal,
        machine::ResetType,
        prepare::Facts,
        spec::MaintenanceKind,
        state::{Ending, Maintenance, Phase},
        step::Action,
    },
    shown::OneLine,
    store::{LockView, StoreError},
};

use super::{
    Control, Engine, EngineError,
    drain::FollowedDrain,
    driven::Driving,
    gate::ExternalProgress,
    patience::{Patience, silence},
    same_server::{FOR_A_CHANGE, changes_server},
    status::{SAY_AGAIN, Status},
};

/// Result of a drive.
#[derive(Clone, Debug)]
pub struct ReconcileResult {
    /// The record's current state.
    pub record: Maintenance,
    /// Why the drive ended.
    pub finish: Finish,
    /// How long it took.
    pub waited: Duration,
}

/// One process driving one record.
#[derive(Debug)]
pub(super) struct Reconciler<'a> {
    pub(super) engine: &'a Engine,
    pub(super) key: LockKey,
    pub(super) server: String,
    pub(super) uid: Uid,
    pub(super) fence: Fence,
    driving: Driving,
    /// The state's number, which a create writes into the record with its last commit.
    pub(super) concludes: Option<String>,
    pub(super) machine: Option<Arc<dyn Machine>>,
    pub(super) facts: Facts,
    /// When the server was last identified as the lock's server, on our monotonic clock.
    pub(super) identified_at: Option<Duration>,
    /// When the machine was last read, on our monotonic clock.
    pub(super) seen_at: Duration,
    /// When its virtual drives were last read.
    pub(super) media_at: Duration,
    /// When the Node was last read, on our monotonic clock.
    pub(super) drain_at: Duration,
    /// The Node whose drain or uncordon is awaited.
    pub(super) followed: Option<FollowedDrain>,
    changes: watch::Receiver<u64>,
    pub(super) last: Option<Maintenance>,
    /// The holder under which the record acts: itself or its parent.
    holder: Option<Maintenance>,
    /// Requests to gates in this drive.
    pub(super) talk: ExternalProgress,
    pub(super) status: Status,
    /// Earliest next try to release an overdue holder, on our monotonic clock.
    pub(super) reclaim_after: Duration,
    /// End of the time limit, on our monotonic clock.
    pub(super) deadline: Duration,
    /// Store error of the last change. The next round waits first.
    pub(super) unrecorded: Option<StoreError>,
    /// Failed requests to the store since the last successful change.
    pub(super) store_failures: u32,
    looks: u32,
    /// True if a stop has ended a wait. A stop ends one wait, even a wait that begins after it.
    stop_seen: bool,
}

/// How long a machine reading counts as current without an action.
const JUST_SEEN: Duration = Duration::from_secs(1);

/// How long a reading of untouched drives counts as current. During a shutdown, not every poll
/// reads the drives.
const MEDIA_STAY: Duration = Duration::from_mins(1);

/// Facts that an action or a wait can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MayChange {
    /// Only the facts that the step itself read.
    Nothing,
    /// Power, boot settings and other polled facts, but not the drives.
    Watched,
    /// The drives too: a booting system can eject its medium, and the last read of a release finds
    /// media that others inserted.
    Everything,
}

impl MayChange {
    /// Returns the facts that an action can change.
    fn by(action: &Action) -> Self {
        match action {
            Action::Record => Self::Nothing,
            Action::SetBoot { .. } | Action::Reset(ResetType::ForceOff | ResetType::GracefulShutdown) => Self::Watched,
            _ => Self::Everything,
        }
    }
}

impl<'a> Reconciler<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        key: &LockKey,
        server: &str,
        uid: &Uid,
        fence: Fence,
        driving: Driving,
    ) -> Self {
        Self {
            engine,
            key: key.clone(),
            server: server.to_owned(),
            uid: uid.clone(),
            fence,
            driving,
            concludes: None,
            machine: None,
            facts: Facts::default(),
            identified_at: None,
            seen_at: Duration::ZERO,
            media_at: Duration::ZERO,
            drain_at: Duration::ZERO,
            followed: None,
            changes: engine.store().changes(key),
            last: None,
            holder: None,
            talk: ExternalProgress::default(),
            status: Status::default(),
            reclaim_after: Duration::ZERO,
            deadline: Duration::MAX,
            unrecorded: None,
            store_failures: 0,
            looks: 0,
            stop_seen: false,
        }
    }

    /// Returns the record as last read.
    pub(super) fn record(&self) -> Option<&Maintenance> {
        self.last.as_ref()
    }

    /// Returns the holder under which the record acts, as last read.
    pub(super) fn holder(&self) -> Option<&Maintenance> {
        self.holder.as_ref()
    }

    /// Returns true if the record is still queued.
    pub(super) fn waits(&self) -> bool {
        self.record().is_some_and(|record| matches!(record.phase, Phase::Pending))
    }

    /// Returns true if no wait has happened since the last change.
    pub(super) fn looks_first(&self) -> bool {
        self.looks == 0
    }

    /// Drives until the goal is reached, the time limit ends, the process must stop, or the record
    /// is lost.
    ///
    /// Detaches on every exit. The record, the lock and the queue position stay unchanged.
    pub(super) async fn run(&mut self, goal: Goal, control: &Control) -> Result<ReconcileResult, EngineError> {
        let ending = if let Goal::Release(ending) = &goal { Some(ending.clone()) } else { None };
        let began = self.engine.parts.clock.monotonic();
        // Boxed, because this future is large.
        let result = Box::pin(self.drive(goal, control)).await;
        if let Err(error) = &result {
            self.note_end(error).await;
        }
        let given_up = matches!(&result, Ok(finish) if *finish == Finish::Lost);
        let detached = if given_up { true } else { self.detach(result.is_err()).await };
        if detached {
            self.driving.over();
        }
        let finish = result.map_err(|error| self.under_way(error))?;
        let left = self.deadline.saturating_sub(self.engine.parts.clock.monotonic());
        let control = Control { timeout: left, ..control.clone() };
        let mut patience = Patience::new(self.engine, &control);
        loop {
            let record = self.record_now().await;
            if !patience.again(silence(&record)).await {
                let mut record = record.map_err(|error| self.under_way(error))?;
                if given_up && record.phase == Phase::Pending {
                    record = self.with_release(record).await;
                }
                // The reply to the last change was lost: the record has ended as requested.
                let as_asked = |its: &Ending| given_up && Some(its) == ending.as_ref();
                let is_over = matches!(&record.phase, Phase::Completed { ending, .. } if as_asked(ending));
                let finish = if is_over { Finish::Over } else { finish };
                let waited = self.engine.parts.clock.monotonic().saturating_sub(began);
                return Ok(ReconcileResult { record, finish, waited });
            }
        }
    }

    /// Returns a waiter as ended if a person released it. Its record is deleted then, and the lock
    /// keeps the refused name with the reason.
    async fn with_release(&self, mut record: Maintenance) -> Maintenance {
        let Ok(view) = self.in_time(self.engine.store().view(&self.key)).await else { return record };
        if let Some(released) = view.lock.release_of(&record.id).filter(|released| released.uid == record.uid) {
            let (by, reason, seen) = (released.by.clone(), released.reason.clone(), released.generation);
            record.phase = Phase::Completed { at: released.at, ending: Ending::Released { by, reason, seen } };
        }
        record
    }

    async fn drive(&mut self, goal: Goal, control: &Control) -> Result<Finish, EngineError> {
        let began = self.engine.parts.clock.monotonic();
        let mut deadline = began + control.timeout;
        self.deadline = deadline;
        let (mut releasing, mut waited) = (matches!(goal, Goal::Release(_)), None);
        loop {
            if let Some(error) = self.unrecorded.take() {
                self.wait_for_store(error, deadline, control).await?;
            }
            // Without a lease, the process only waits for it.
            if self.engine.lease.is_over()
                && let Err(error) = self.in_time(self.engine.lease.keep()).await
            {
                self.wait_for_store(error, deadline, control).await?;
                continue;
            }
            self.changes.borrow_and_update();
            let view = match self.in_time(self.engine.store().view(&self.key)).await {
                Ok(view) => view,
                Err(error) => {
                    self.wait_for_store(error, deadline, control).await?;
                    continue;
                }
            };
            if let Some(record) = view.lock.get(&self.uid) {
                self.last = Some(record.clone());
                let holder = record.spec.parent.as_ref().map_or(Some(record), |parent| view.lock.get(parent));
                self.facts.outer_gates = holder.map_or(0, |holder| outer_gates(holder, record));
                self.holder = holder.cloned();
                if !releasing && (matches!(record.phase, Phase::Releasing { .. }) || record.undoing().is_some()) {
                    // A restore or undo after a failure has its own time limit.
                    releasing = true;
                    deadline = self.engine.parts.clock.monotonic() + control.release_timeout;
                    self.deadline = deadline;
                }
            }
            let now = self.engine.parts.clock.monotonic();
            // Other reads can have taken long, and a person can uncordon a Node at any time.
            self.facts.drain.take_if(|_| now.saturating_sub(self.drain_at) > JUST_SEEN);
            let timed_out = now >= deadline;
            let stop = control.stop.is_cancelled();
            let intent = Objective { goal: goal.clone(), stop, timed_out, waited: waited.clone() };
            match self.decide(&view, &intent) {
                decision if self.checks_gates_before(&decision) => {
                    if let Some(finish) = self.look_late_gate(deadline, control).await? {
                        return Ok(finish);
                    }
                }
                Decision::Finished(Finish::Refused(why)) => return self.refuse(why, deadline, control).await,
                Decision::Finished(finish) => return Ok(finish),
                Decision::Change(RecordChange::Withdraw) if self.asked_at_gates() => {
                    if !self.withdraw_from_gates(deadline, control).await? {
                        return Ok(Finish::Interrupted);
                    }
                    if let Some(finish) = self.change(RecordChange::Withdraw).await? {
                        return Ok(finish);
                    }
                }
                Decision::Wait { reason, poll, wake } => {
                    self.log_status(&reason);
                    waited = Some(reason);
                    let wake = wake.and_then(|at| Duration::try_from(at.duration_since(view.now)).ok());
                    self.prune_gate().await;
                    self.talk.no_late_gate = false;
                    self.wait(poll, wake, deadline, control).await;
                    self.forget(if self.switches(&view) { MayChange::Watched } else { MayChange::Everything });
                }
                Decision::Ask { place, enter } => {
                    self.looks = 0;
                    self.ask_gate(place, enter, deadline, control).await?;
                    self.forget(MayChange::Everything);
                }
                Decision::Look(need) => self.look(need, &view, deadline, control).await?,
                Decision::Act(action) => {
                    if changes_server(&action)
                        && let wrong @ Err(_) = self.checks_server(FOR_A_CHANGE).await
                    {
                        self.after_look(wrong, deadline, control).await?;
                        continue;
                    }
                    self.looks = 0;
                    let may_change = MayChange::by(&action);
                    self.act(action, deadline, control).await?;
                    self.forget(may_change);
                }
                Decision::Change(RecordChange::Reclaim(uid)) => self.reclaim(&uid, deadline, control).await?,
                Decision::Change(change) => {
                    self.looks = 0;
                    self.talk.no_late_gate = false;
                    if let Some(finish) = self.change(change).await? {
                        return Ok(finish);
                    }
                }
            }
        }
    }

    /// Ends a waiting record that can never receive its server.
    pub(super) async fn refuse(
        &mut self,
        why: OneLine,
        deadline: Duration,
        control: &Control,
    ) -> Result<Finish, EngineError> {
        self.withdraw_from_gates(deadline, control).await?;
        self.change(RecordChange::Withdraw).await?;
        Ok(Finish::Refused(why))
    }

    /// Returns true if the current step changes the power, so that only the power is polled.
    fn switches(&self, view: &LockView) -> bool {
        self.record().is_some_and(|record| view.lock.only_power_changes(record, view.now))
    }

    /// Drops facts that can have changed.
    fn forget(&mut self, may_change: MayChange) {
        let Facts { menu_before, capabilities, media, machine, .. } = std::mem::take(&mut self.facts);
        let age = self.engine.parts.clock.monotonic().saturating_sub(self.media_at);
        let media = media.filter(|_| may_change != MayChange::Everything && age <= MEDIA_STAY && !self.waits());
        let machine = machine.filter(|_| may_change == MayChange::Nothing);
        self.facts = Facts { machine, media, menu_before, capabilities, ..Facts::default() };
    }

    fn decide(&self, view: &LockView, intent: &Objective) -> Decision {
        let tuning = self.engine.tuning();
        decide(&DecisionInput {
            lock: &view.lock,
            leases: &view.leases,
            now: view.now,
            queue: &view.queue,
            uid: &self.uid,
            fence: self.fence,
            intent,
            facts: &self.facts,
            limits: &tuning.limits,
            aging: tuning.aging,
        })
    }

    /// Records the wait, then waits for a store change, the clock, a stop or the next poll.
    pub(super) async fn wait(&mut self, poll: bool, wake: Option<Duration>, deadline: Duration, control: &Control) {
        self.note_wait().await;
        self.pause(poll, wake, deadline, control).await;
    }

    /// Waits without writing to the store.
    async fn pause(&mut self, poll: bool, wake: Option<Duration>, deadline: Duration, control: &Control) {
        let clock = Arc::clone(&self.engine.parts.clock);
        let longest = self.engine.tuning().poll;
        // Poll often at first, because most changes finish quickly.
        let pause = (Duration::from_millis(100) * 2u32.saturating_pow(self.looks.min(16))).min(longest);
        self.looks = self.looks.saturating_add(1);
        let mut limit = deadline.saturating_sub(clock.monotonic()).min(SAY_AGAIN);
        if poll {
            limit = limit.min(pause);
        }
        // The heartbeat renews the lease. If it cannot, the next round stops.
        if let Some(wake) = wake.into_iter().chain(self.engine.lease.ends_in()).min() {
            limit = limit.min(wake.max(Duration::from_millis(10)));
        }
        let stop_seen = self.stop_seen;
        let stopped = async {
            if stop_seen {
                std::future::pending::<()>().await;
            }
            control.stop.cancelled().await;
        };
        let gates_changed = self.gates_changed();
        let drain_ended = self.drain_ended();
        tokio::select! {
            () = clock.sleep(limit.max(Duration::from_millis(1))) => {}
            () = gates_changed => {}
            () = drain_ended => {}
            changed = self.changes.changed() => {
                if changed.is_err() {
                    // The watch ended with the store; a pause replaces it.
                    clock.sleep(Duration::from_millis(100)).await;
                }
            }
            () = stopped => self.stop_seen = true,
        }
    }

    /// Applies a decided change. Returns the reason if the drive ends with it.
    pub(super) async fn change(&mut self, change: RecordChange) -> Result<Option<Finish>, EngineError> {
        match self.apply(&change).await {
            Ok(Applied::Outdated) => Ok(None),
            Ok(applied) => {
                let kind = self.record().map_or(MaintenanceKind::Maintenance, |record| record.spec.kind);
                if let Some(said) = change.told(kind) {
                    self.log_status(&said);
                }
                // Before the admission, another maintenance held the server.
                let ours = !matches!(change, RecordChange::Admit(_) | RecordChange::Reclaim(_));
                let now = self.engine.parts.clock.monotonic();
                let is_old = |seen: Duration| !ours || now.saturating_sub(seen) > JUST_SEEN;
                let (machine_at, media_at) = (self.seen_at, self.media_at);
                self.facts.machine.take_if(|_| is_old(machine_at));
                self.facts.media.take_if(|_| is_old(media_at));
                Ok(match applied {
                    Applied::Finished(finish) => Some(finish),
                    _ => None,
                })
            }
            Err(StoreError::Refused(Refusal::Fenced { .. } | Refusal::Gone)) => Ok(Some(Finish::Lost)),
            // The next round waits for the store and decides again.
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, "a step could not be recorded");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Marks a store error if the server can have been changed before.
    fn under_way(&self, error: EngineError) -> EngineError {
        match self.record().filter(|_| !self.waits()) {
            Some(record) => error.under_way(record),
            None => error,
        }
    }
}
