//! Single calls to the outside, each recorded before and after.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{BackendError, Machine},
    clock::{never_beyond, within},
    maintenance::{
        ids::Generation,
        lock::Refusal,
        machine::ResetType,
        power::Need,
        spec::CompleteWhen,
        state::{Ending, Phase, PriorState, Progress},
        step::{Action, Attempt, Reply, Step},
    },
    store::{LockView, StoreError},
};

use super::{
    Control, EngineError,
    drive::Drive,
    native::{Asked, is_ours},
    node::note_taken,
};

/// How long a stop waits for the reply of a call under way. Afterwards the call counts as one without a reply.
const STOP_GRACE: Duration = Duration::from_millis(700);

impl Drive<'_> {
    pub(super) fn machine(&mut self) -> Result<Arc<dyn Machine>, EngineError> {
        if let Some(machine) = &self.machine {
            return Ok(Arc::clone(machine));
        }
        let machine = match self.native()? {
            Some((plain, wish)) if wish.enters => {
                plain.native().map_or_else(|| Arc::clone(&plain), |it| it.under(&wish))
            }
            _ => self.engine.machine(&self.server)?,
        };
        self.machine = Some(Arc::clone(&machine));
        Ok(machine)
    }

    /// Reads the facts that a rule asked for. A machine that does not answer is asked again until the time is over.
    pub(super) async fn look(
        &mut self,
        need: Need,
        view: &LockView,
        deadline: Duration,
        control: &Control,
    ) -> Result<(), EngineError> {
        let looked = tokio::select! {
            looked = self.look_once(need, view) => Some(looked?),
            () = control.stop.cancelled() => None,
        };
        match looked {
            None | Some(Ok(())) => Ok(()),
            Some(Err(error)) if error.is_transient() => {
                self.say(&format!("{error}; trying again"));
                self.wait(true, None, deadline, control).await;
                if self.engine.parts.clock.monotonic() >= deadline {
                    self.give_up(error, deadline, control).await?;
                }
                Ok(())
            }
            Some(Err(error)) => self.give_up(error, deadline, control).await,
        }
    }

    async fn look_once(&mut self, need: Need, view: &LockView) -> Result<Result<(), BackendError>, EngineError> {
        let spec = view.lock.get(&self.uid).map(|record| record.spec.clone());
        let boot = spec.as_ref().and_then(|spec| spec.boot.clone());
        let probe = Arc::clone(&self.engine.parts.probe);
        match need {
            Need::Machine | Need::Media | Need::Capabilities => {
                let machine = self.machine()?;
                let read = match need {
                    Need::Machine => machine.observe().await.map(|seen| self.facts.machine = Some(seen)),
                    Need::Media => machine.media().await.map(|seen| self.facts.media = Some(seen)),
                    _ => machine.capabilities().await.map(|seen| self.facts.capabilities = Some(seen)),
                };
                return Ok(read);
            }
            Need::Native => return self.look_native(false).await,
            Need::Node => return Ok(self.look_node().await),
            Need::Image => {
                let (image, digest) = boot.map_or((None, None), |boot| (boot.image, boot.image_sha256));
                let checked = match image {
                    Some(image) => probe.check_image(&image, digest.as_deref()).await,
                    None => Ok(()),
                };
                self.facts.image = Some(checked.map_err(|error| error.to_string()));
            }
            Need::Preparer => {
                let checked = match boot.and_then(|boot| boot.ready_when) {
                    Some(check) => probe.check_status(&check.url, check.status).await,
                    None => Ok(()),
                };
                self.facts.preparer = Some(checked.map_err(|error| error.to_string()));
            }
            Need::Completion => {
                let checked = match spec.and_then(|spec| spec.complete_when) {
                    Some(CompleteWhen::Url(check)) => probe.check_status(&check.url, check.status).await,
                    _ => Ok(()),
                };
                self.facts.completion = Some(checked.map_err(|error| error.to_string()));
            }
        }
        Ok(Ok(()))
    }

    /// The machine cannot be read: preparing fails and is undone, giving back is stuck until the next destroy, and who waits
    /// for nothing that time would mend leaves the queue. What is held stays held.
    async fn give_up(&mut self, error: BackendError, deadline: Duration, control: &Control) -> Result<(), EngineError> {
        let cause = error.to_string();
        let (uid, generation) = (&self.uid, self.generation);
        let (mut held_only, mut waits) = (false, false);
        let result = self
            .engine
            .store()
            .transact(&self.key, &mut |lock, leases, now| {
                (held_only, waits) = (false, false);
                let Some(record) = lock.get(uid).cloned() else { return Err(Refusal::Gone) };
                match record.phase {
                    Phase::Preparing(ref progress) => {
                        let at = progress.step().map(|step| format!("{step}: ")).unwrap_or_default();
                        let steps = crate::maintenance::restore::steps(&record);
                        let ending = Ending::Failed(format!("{at}{cause}"));
                        lock.begin_release(uid, generation, ending, Progress::new(steps, now), now)
                    }
                    Phase::Releasing { .. } => lock.update(uid, generation, |record| {
                        if let Phase::Releasing { stuck, progress, .. } = &mut record.phase {
                            *stuck = Some(cause.clone());
                            progress.begin_afresh(now);
                        }
                    }),
                    _ => {
                        held_only = true;
                        waits = matches!(record.phase, Phase::Pending) && is_ours(&record, generation, leases, now);
                        Ok(())
                    }
                }
            })
            .await;
        match result {
            Ok(()) if waits && !error.is_transient() => Err(self.leave_queue(error, deadline, control).await),
            Ok(()) if held_only => Err(error.into()),
            Ok(()) => {
                let stuck = matches!(self.phase().await?, Some(Phase::Releasing { stuck: Some(_), .. }));
                if stuck { Err(error.into()) } else { Ok(()) }
            }
            Err(StoreError::Refused(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn phase(&self) -> Result<Option<Phase>, EngineError> {
        let view = self.engine.store().view(&self.key).await?;
        Ok(view.lock.get(&self.uid).map(|record| record.phase.clone()))
    }

    /// Makes one call: intent first, then the call, then what came of it.
    pub(super) async fn act(
        &mut self,
        action: Action,
        deadline: Duration,
        control: &Control,
    ) -> Result<(), EngineError> {
        if action == Action::Record {
            return self.record_prior(deadline, control).await;
        }
        if self.waits() {
            return self.ask_native(action, deadline, control).await;
        }
        // Both clocks must agree that we may act: the store's in the transaction that records the intent, ours right
        // before the call.
        if let Err(error) = self.engine.lease.keep().await {
            return self.outlast(error, deadline, control).await;
        }
        // One renewal for both: a heartbeat that succeeds after the store was asked says nothing about the right to act,
        // which somebody may have taken over meanwhile.
        let renewal = self.engine.lease.renewal();
        if !self.intend(&action).await? {
            return Ok(());
        }
        if !self.engine.lease.is_safe_with(renewal) {
            return Err(EngineError::LeaseLost("the intent was recorded too late".to_owned()));
        }
        self.say(&format!("{action}"));
        let machine = self.machine()?;
        let native = self.native()?;
        // A call ends before anybody else can believe that this process is gone. One that is cut off sends nothing more,
        // and counts as one without a reply.
        let left = self.engine.lease.left_of(renewal);
        let call = never_beyond(left, async {
            match action {
                Action::TakeNode | Action::ReturnNode => self.call_node(&action).await,
                _ => perform(machine, native, action.clone()).await,
            }
        });
        tokio::pin!(call);
        let result = tokio::select! {
            result = &mut call => result,
            () = control.stop.cancelled() => within(STOP_GRACE, &mut call).await.flatten(),
        };
        let reply = match result {
            None => Reply::Unknown,
            Some(Ok(())) => Reply::Accepted,
            Some(Err(error)) if error.outcome_unknown() => Reply::Unknown,
            Some(Err(error)) => Reply::Refused { message: error.to_string(), transient: error.is_transient() },
        };
        if let Reply::Refused { message, .. } = &reply {
            tracing::warn!("{action} on {}: {message}", self.server);
        }
        self.note(reply).await
    }

    /// Records the intent, in the transaction that checks that we may act. `false` when we may not.
    async fn intend(&self, action: &Action) -> Result<bool, EngineError> {
        let (uid, generation) = (&self.uid, self.generation);
        let mut allowed = false;
        let result = self
            .engine
            .store()
            .transact(&self.key, &mut |lock, leases, now| {
                allowed = lock.intend(uid, generation, leases, now, |record| {
                    let preparing = matches!(record.phase, Phase::Preparing(_));
                    let boots = matches!(action, Action::Reset(ResetType::On));
                    let changed = record.spec.boot.is_some();
                    record.booted |= preparing && boots && changed;
                    note_taken(record, action);
                    if let Some(native) = record.native.as_mut().filter(|_| *action == Action::EnterNative) {
                        native.asked = true;
                    }
                    if let Some(progress) = progress(&mut record.phase) {
                        progress.attempts.push(Attempt { action: action.clone(), at: now, reply: Reply::Unknown });
                    }
                })?;
                Ok(())
            })
            .await;
        match result {
            Ok(()) => Ok(allowed),
            // The next round finds out who has it now.
            Err(StoreError::Refused(_)) => Ok(false),
            Err(error @ StoreError::Unavailable { .. }) => {
                tracing::warn!(%error, "nothing is done to the machine while the store cannot be reached");
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn note(&self, reply: Reply) -> Result<(), EngineError> {
        let (uid, generation): (_, Generation) = (&self.uid, self.generation);
        let result = self
            .engine
            .store()
            .transact(&self.key, &mut |lock, _, _| {
                lock.update(uid, generation, |record| {
                    if let Some(attempt) = progress(&mut record.phase).and_then(|progress| progress.attempts.last_mut())
                    {
                        attempt.reply = reply.clone();
                    }
                })
            })
            .await;
        match result {
            Ok(()) | Err(StoreError::Refused(_)) => Ok(()),
            // Without this note the call counts as one without a reply, and is answered by observing.
            Err(error @ StoreError::Unavailable { .. }) => {
                tracing::warn!(%error, "what came of the call could not be recorded");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads how the server is and stores it, before anything is changed.
    async fn record_prior(&mut self, deadline: Duration, control: &Control) -> Result<(), EngineError> {
        let machine = self.machine()?;
        let needs_media = self.needs_media().await?;
        let read = async {
            let seen = machine.observe().await?;
            let media = match machine.media().await {
                Ok(media) => media,
                Err(error) if needs_media || error.is_transient() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "virtual drives cannot be read; they are left alone");
                    Vec::new()
                }
            };
            Ok((seen, media))
        };
        let read = tokio::select! {
            read = read => read,
            () = control.stop.cancelled() => return Ok(()),
        };
        let (seen, media) = match read {
            Ok(read) => read,
            Err(error) if error.is_transient() => {
                self.say(&format!("{error}; trying again"));
                self.wait(true, None, deadline, control).await;
                return if self.engine.parts.clock.monotonic() >= deadline {
                    self.give_up(error, deadline, control).await
                } else {
                    Ok(())
                };
            }
            Err(error) => return self.give_up(error, deadline, control).await,
        };
        let (uid, generation) = (&self.uid, self.generation);
        let result = self
            .engine
            .store()
            .transact(&self.key, &mut |lock, _, now| {
                lock.update(uid, generation, |record| {
                    record.last_power = Some(seen.power);
                    record.prior.get_or_insert_with(|| PriorState {
                        power: seen.power,
                        boot: seen.boot.clone(),
                        media: media.clone(),
                        last_reset: seen.last_reset.clone(),
                        recorded_at: now,
                    });
                })
            })
            .await;
        match result {
            Ok(()) | Err(StoreError::Refused(_) | StoreError::Unavailable { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn needs_media(&self) -> Result<bool, EngineError> {
        let view = self.engine.store().view(&self.key).await?;
        Ok(view.lock.get(&self.uid).is_some_and(|record| {
            matches!(&record.phase, Phase::Preparing(progress) if progress.steps.contains(&Step::InsertMedium))
        }))
    }
}

fn progress(phase: &mut Phase) -> Option<&mut Progress> {
    match phase {
        Phase::Preparing(progress) | Phase::Releasing { progress, .. } => Some(progress),
        _ => None,
    }
}

async fn perform(machine: Arc<dyn Machine>, native: Option<Asked>, action: Action) -> Result<(), BackendError> {
    match action {
        Action::EnterNative | Action::LeaveNative => {
            let Some((plain, wish)) = native else { return Ok(()) };
            match plain.native() {
                Some(system) if action == Action::EnterNative => system.enter(&wish).await,
                Some(system) => system.leave(&wish).await,
                None => Ok(()),
            }
        }
        Action::Record | Action::CheckImage | Action::AskPreparer | Action::TakeNode | Action::ReturnNode => Ok(()),
        Action::Reset(reset) => machine.reset(reset).await,
        Action::SetBoot { wanted, clear_http_boot_uri } => {
            machine.set_boot_override(&wanted, clear_http_boot_uri).await
        }
        Action::Insert { slot, image, write_protected } => machine.insert_medium(&slot, &image, write_protected).await,
        Action::Eject { slot } => machine.eject_medium(&slot).await,
    }
}
