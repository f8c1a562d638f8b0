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

/// Where a drive ended.
#[derive(Clone, Debug)]
pub struct ReconcileResult {
    /// The record as it is now.
    pub record: Maintenance,
    /// Why the drive ended.
    pub finish: Finish,
    /// How long it took.
    pub waited: Duration,
}

/// Another process records the end within this many reads.
const LOOKS: u8 = 6;
/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(500);

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
    /// When the server was seen to be that of the lock, on our monotonic clock.
    pub(super) identified_at: Option<Duration>,
    /// When the machine was seen last, on our own clock.
    pub(super) seen_at: Duration,
    /// When its drives were.
    pub(super) media_at: Duration,
    /// When the Node was looked at, on our monotonic clock.
    pub(super) drain_at: Duration,
    /// The Node that is drained or uncordoned, while that is waited for.
    pub(super) followed: Option<FollowedDrain>,
    changes: watch::Receiver<u64>,
    pub(super) last: Option<Maintenance>,
    /// The hold under which the record acts: itself, or the one that it names.
    holder: Option<Maintenance>,
    /// What this drive said to the server's own maintenance system.
    pub(super) talk: ExternalProgress,
    pub(super) status: Status,
    /// On our own clock: an overdue hold that could not be given back is not tried again before.
    pub(super) reclaim_after: Duration,
    /// When the time limit of the drive ends, on our monotonic clock.
    pub(super) deadline: Duration,
    /// The last change failed in the store. The next round waits first.
    pub(super) unrecorded: Option<StoreError>,
    /// How many requests to the store failed since it took a change.
    pub(super) store_failures: u32,
    looks: u32,
    /// Whether a wait ended because of a stop. A stop ends one wait, whenever it came: also one
    /// that begins after it.
    stop_seen: bool,
}

/// For how long what the machine showed counts as seen now, while nothing is done to it.
const JUST_SEEN: Duration = Duration::from_secs(1);

/// For how long drives to which nothing was done count as seen: while a system shuts down they are
/// not read at every look.
const MEDIA_STAY: Duration = Duration::from_mins(1);

/// What may be different after something was done or waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MayChange {
    /// Only what the step itself read.
    Nothing,
    /// Power, boot and whatever is asked for by polling; not what is in the drives.
    Watched,
    /// The drives as well: a system that starts can eject what it booted from, and what another
    /// party inserted during a release is found by the last look.
    Everything,
}

impl MayChange {
    /// After an action.
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

    /// The record, as it was seen last.
    pub(super) fn record(&self) -> Option<&Maintenance> {
        self.last.as_ref()
    }

    /// The hold under which the record acts, as it was seen last.
    pub(super) fn holder(&self) -> Option<&Maintenance> {
        self.holder.as_ref()
    }

    /// Whether the record is still in the queue.
    pub(super) fn waits(&self) -> bool {
        self.record().is_some_and(|record| matches!(record.phase, Phase::Pending))
    }

    /// Whether nothing was waited for since the last change.
    pub(super) fn looks_first(&self) -> bool {
        self.looks == 0
    }

    /// Drives until the goal is reached, the time is over, somebody stops us, or the record is
    /// lost.
    ///
    /// On every way out the right to act is given back; the record, the slot and the place stay as
    /// they are.
    pub(super) async fn run(&mut self, goal: Goal, control: &Control) -> Result<ReconcileResult, EngineError> {
        let ending = if let Goal::Release(ending) = &goal { Some(ending.clone()) } else { None };
        let began = self.engine.parts.clock.monotonic();
        // Boxed: it is as large as everything that a step may wait for.
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
        let (mut patience, mut looks) = (Patience::new(self.engine, &control), 0);
        loop {
            let record = self.record_now().await;
            if !patience.again(silence(&record)).await {
                let record = record.map_err(|error| self.under_way(error))?;
                // A person's release records its reason a moment after it fenced a waiter.
                if given_up && record.phase == Phase::Pending && looks < LOOKS {
                    looks += 1;
                    self.engine.parts.clock.sleep(LOOK).await;
                    continue;
                }
                // The reply of the last change was lost: it is over, as it was to be.
                let as_asked = |its: &Ending| given_up && Some(its) == ending.as_ref();
                let is_over = matches!(&record.phase, Phase::Completed { ending, .. } if as_asked(ending));
                let finish = if is_over { Finish::Over } else { finish };
                let waited = self.engine.parts.clock.monotonic().saturating_sub(began);
                return Ok(ReconcileResult { record, finish, waited });
            }
        }
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
            // Without its lease the process decides nothing but to wait for it.
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
                    // Giving back or undoing after a failure has a time limit of its own.
                    releasing = true;
                    deadline = self.engine.parts.clock.monotonic() + control.release_timeout;
                    self.deadline = deadline;
                }
            }
            let now = self.engine.parts.clock.monotonic();
            // Other looks may have taken long since, and a Node is uncordoned by a word.
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
                    self.tidy_gate().await;
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

    /// Ends a record that waits and will never be granted its server.
    pub(super) async fn refuse(
        &mut self,
        why: String,
        deadline: Duration,
        control: &Control,
    ) -> Result<Finish, EngineError> {
        self.withdraw_from_gates(deadline, control).await?;
        self.change(RecordChange::Withdraw).await?;
        Ok(Finish::Refused(why))
    }

    /// Whether the current step is about power, so that only the power is polled.
    fn switches(&self, view: &LockView) -> bool {
        self.record().is_some_and(|record| view.lock.only_power_changes(record, view.now))
    }

    /// Forgets what may have changed.
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

    /// Waits for whatever comes first: a change in the store, the clock, a stop, or the next look
    /// at the machine.
    pub(super) async fn wait(&mut self, poll: bool, wake: Option<Duration>, deadline: Duration, control: &Control) {
        self.note_wait().await;
        self.pause(poll, wake, deadline, control).await;
    }

    /// Waits without a word to the store.
    async fn pause(&mut self, poll: bool, wake: Option<Duration>, deadline: Duration, control: &Control) {
        let clock = Arc::clone(&self.engine.parts.clock);
        let longest = self.engine.tuning().poll;
        // Looks come quickly at first, because most changes do, and then settle.
        let pause = (Duration::from_millis(100) * 2u32.saturating_pow(self.looks.min(16))).min(longest);
        self.looks = self.looks.saturating_add(1);
        let mut limit = deadline.saturating_sub(clock.monotonic()).min(SAY_AGAIN);
        if poll {
            limit = limit.min(pause);
        }
        if let Some(wake) = wake {
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
                    // The watch ended with the store; time goes on by itself.
                    clock.sleep(Duration::from_millis(100)).await;
                }
            }
            () = stopped => self.stop_seen = true,
        }
    }

    /// Applies a change that was decided on. Why the drive ends with it, if it does.
    pub(super) async fn change(&mut self, change: RecordChange) -> Result<Option<Finish>, EngineError> {
        match self.apply(&change).await {
            Ok(Applied::Outdated) => Ok(None),
            Ok(applied) => {
                let kind = self.record().map_or(MaintenanceKind::Maintenance, |record| record.spec.kind);
                if let Some(said) = change.told(kind) {
                    self.log_status(&said);
                }
                // The server was another one's until it was admitted.
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

    /// Says of an error of the store that the server may have been changed before it.
    fn under_way(&self, error: EngineError) -> EngineError {
        match self.record().filter(|_| !self.waits()) {
            Some(record) => error.under_way(record),
            None => error,
        }
    }
}
