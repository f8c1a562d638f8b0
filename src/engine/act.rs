//! Single calls to a machine, each recorded before and after.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{BackendError, Machine, guarded},
    clock::{strict_timeout, within},
    maintenance::{
        change::{Applied, RecordChange, Unreadable},
        power::{Need, asked_pause_text},
        prior::is_unrecordable,
        spec::CompleteWhen,
        state::{Phase, PriorState},
        step::{Action, Reply, Step},
    },
    store::{LockView, StoreError},
};

use super::{Control, EngineError, addresses::said, drive::Reconciler, ours::Ours, same_server::FOR_A_LOOK};

/// How long a stop waits for a pending call's reply. After that, the call has an unknown outcome.
const STOP_GRACE: Duration = Duration::from_millis(700);

impl Reconciler<'_> {
    pub(super) fn machine(&mut self) -> Result<Arc<dyn Machine>, EngineError> {
        if let Some(machine) = &self.machine {
            return Ok(Arc::clone(machine));
        }
        let machine = match self.own_gate()? {
            Some((plain, wish)) => {
                let system = plain.maintenance_system();
                let of = system.and_then(|it| if wish.enters { Some(it.under(&wish)) } else { it.operating(&wish) });
                of.unwrap_or_else(|| Arc::clone(&plain))
            }
            None => self.engine.machine(&self.server)?,
        };
        self.machine = Some(Arc::clone(&machine));
        Ok(machine)
    }

    /// Reads the facts that a rule needs. Retries a machine that does not answer until the
    /// deadline.
    pub(super) async fn look(
        &mut self,
        need: Need,
        view: &LockView,
        deadline: Duration,
        control: &Control,
    ) -> Result<(), EngineError> {
        let clock = Arc::clone(&self.engine.parts.clock);
        // A slow image host can stall the download while the server is locked, so the deadline ends
        // the read.
        let over = async {
            match need {
                Need::Image => clock.sleep(deadline.saturating_sub(clock.monotonic())).await,
                _ => std::future::pending().await,
            }
        };
        let looked = tokio::select! {
            looked = self.look_once(need, view) => looked,
            () = control.stop.cancelled() => Ok(()),
            () = over => Ok(()),
        };
        self.after_look(looked, deadline, control).await
    }

    /// Waits after a transient error and gives up after any other error.
    pub(super) async fn after_look(
        &mut self,
        looked: Result<(), LookError>,
        deadline: Duration,
        control: &Control,
    ) -> Result<(), EngineError> {
        match looked {
            Ok(()) => Ok(()),
            Err(LookError::Engine(error)) => Err(error),
            Err(LookError::Machine(error)) if error.is_transient() => {
                self.log_status(&format!("{error}; trying again"));
                self.wait(true, None, deadline, control).await;
                if self.engine.parts.clock.monotonic() >= deadline {
                    self.give_up(error, deadline, control).await?;
                }
                Ok(())
            }
            Err(LookError::Machine(error)) => self.give_up(error, deadline, control).await,
        }
    }

    async fn look_once(&mut self, need: Need, view: &LockView) -> Result<(), LookError> {
        let spec = view.lock.get(&self.uid).map(|record| record.checked_spec().clone());
        let boot = spec.as_ref().and_then(|spec| spec.boot.clone());
        let probe = Arc::clone(&self.engine.parts.probe);
        match need {
            Need::Machine | Need::Media | Need::Capabilities | Need::MenuBefore | Need::Menu => {
                // Reading the machine also identifies it.
                if need != Need::Machine {
                    self.checks_server(FOR_A_LOOK).await?;
                }
                let machine = self.machine()?;
                // Collect a late answer first. The read then shows the finished change.
                if matches!(need, Need::Machine | Need::Media)
                    && let Some(error) = machine.late_answer().await
                {
                    tracing::warn!("{}: {error}", self.server);
                    let operation = spec.as_ref().and_then(|spec| spec.operation.as_ref());
                    let restarts = operation.is_some_and(|operation| operation.target().is_none());
                    self.note(late_reply(&error, restarts)).await?;
                }
                match need {
                    Need::Machine => {
                        self.facts.machine = Some(self.observes().await?);
                        self.seen_at = self.engine.parts.clock.monotonic();
                    }
                    Need::Media => {
                        let known = self.record().and_then(|record| record.prior.as_ref());
                        let known = known.map(|prior| prior.media.clone()).unwrap_or_default();
                        self.facts.media = Some(machine.media(&known).await?);
                        self.media_at = self.engine.parts.clock.monotonic();
                    }
                    Need::MenuBefore => self.facts.menu_before = Some(machine.boot_menu().await?),
                    Need::Menu => self.facts.menu = Some(machine.boot_menu().await?),
                    _ => self.facts.capabilities = Some(machine.capabilities().await?),
                }
            }
            Need::Gate(place) => self.look_gate(place, false).await?,
            Need::Node => self.look_node().await?,
            Need::Drain => Box::pin(self.look_drain()).await?,
            Need::Service => Box::pin(self.look_service()).await?,
            Need::Image => {
                let (image, digest) = boot.map_or((None, None), |boot| (boot.image, boot.image_sha256));
                let checked = match image {
                    Some(image) => {
                        probe.check_image(&self.engine.addresses.open(image.raw())?, digest.as_deref()).await
                    }
                    None => Ok(()),
                };
                self.facts.image = Some(checked.map_err(|error| error.to_string().into()));
            }
            Need::Preparer => {
                let checked = match boot.and_then(|boot| boot.ready_when) {
                    Some(check) => {
                        probe.check_status(&self.engine.addresses.open(check.url.raw())?, check.status).await
                    }
                    None => Ok(()),
                };
                self.facts.preparer = Some(checked.map_err(|error| error.to_string().into()));
            }
            Need::Completion => {
                let checked = match spec.and_then(|spec| spec.complete_when) {
                    Some(CompleteWhen::Url(check)) => {
                        probe.check_status(&self.engine.addresses.open(check.url.raw())?, check.status).await
                    }
                    _ => Ok(()),
                };
                self.facts.completion = Some(checked.map_err(|error| error.to_string().into()));
            }
        }
        Ok(())
    }

    /// Handles a machine that cannot be read, as [`Unreadable`] requires.
    async fn give_up(&mut self, error: BackendError, deadline: Duration, control: &Control) -> Result<(), EngineError> {
        let change = RecordChange::Unreadable { cause: error.to_string().into(), transient: error.is_transient() };
        match self.apply(&change).await {
            Ok(Applied::Unreadable(Unreadable::Stuck | Unreadable::Kept)) => Err(error.into()),
            Ok(Applied::Unreadable(Unreadable::LeavesQueue)) => Err(self.leave_queue(error, deadline, control).await),
            // The next round restores, or finds the new holder.
            Ok(_) | Err(StoreError::Refused(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends one call: records the intent, sends, then records the outcome.
    pub(super) async fn act(
        &mut self,
        action: Action,
        deadline: Duration,
        control: &Control,
    ) -> Result<(), EngineError> {
        if action == Action::Record {
            return self.record_prior(deadline, control).await;
        }
        let opened = self.engine.addresses.open_action(&action)?;
        // Both clocks must confirm the lease: the store's clock in the transaction that records the
        // intent, our clock right before the call.
        if let Err(error) = self.engine.lease.keep().await {
            return self.wait_for_store(error, deadline, control).await;
        }
        // Both checks use the same renewal. A later heartbeat can succeed even after another
        // process took over the record.
        let renewal = self.engine.lease.renewal();
        if !self.intend(&action).await? {
            return Ok(());
        }
        if !self.engine.lease.is_safe_with(renewal) {
            return Err(EngineError::LeaseLost("the intent was recorded too late".to_owned()));
        }
        self.log_status(&format!("{action}"));
        let machine = self.machine()?;
        // The call ends before another process can treat this process as disconnected. A call that
        // is cut off sends nothing more and has an unknown outcome.
        let left = self.engine.lease.left_of(renewal);
        let ours = Arc::new(Ours {
            store: Arc::clone(self.engine.store()),
            key: self.key.clone(),
            uid: self.uid.clone(),
            fence: self.fence,
        });
        let mut call = Box::pin(strict_timeout(left, async {
            match action {
                Action::TakeNode | Action::ReturnNode => self.call_node(&action).await,
                Action::CordonNode { .. } | Action::EvictPods | Action::UncordonNode => {
                    guarded(ours, Box::pin(self.call_drain(&action))).await
                }
                Action::EnterGate | Action::LeaveGate => {
                    guarded(ours, self.pass_gate(action == Action::EnterGate)).await
                }
                Action::BeginService { ref stamp } => {
                    guarded(ours, self.begin_service(machine.as_ref(), stamp.raw())).await
                }
                _ => guarded(ours, perform(machine, opened.clone())).await,
            }
        }));
        let result = tokio::select! {
            result = &mut call => result,
            () = control.stop.cancelled() => within(STOP_GRACE, &mut call).await.flatten(),
        };
        drop(call);
        let reply = match result {
            None => Reply::Unknown,
            Some(Ok(())) => Reply::Accepted,
            Some(Err(error)) if error.outcome_unknown() => Reply::Unclear { message: said(&error, &opened).into() },
            Some(Err(error)) => Reply::Refused {
                message: with_pause(&error, said(&error, &opened)).into(),
                transient: error.is_transient(),
            },
        };
        if let Some(message) = reply.message() {
            self.log_failure(&format!("{action} on {}: {message}", self.server));
        }
        self.note(reply).await
    }

    /// Records the intent in the transaction that checks the fence. Returns false if that failed.
    async fn intend(&mut self, action: &Action) -> Result<bool, EngineError> {
        let last_reset = self.facts.machine.as_ref().and_then(|machine| machine.last_reset.clone());
        match self.apply(&RecordChange::Intend { action: action.clone(), last_reset }).await {
            Ok(applied) => Ok(applied == Applied::Done),
            // The next round finds the current holder.
            Err(StoreError::Refused(_)) => Ok(false),
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, "the server is not changed while the store does not record it");
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn note(&mut self, reply: Reply) -> Result<(), EngineError> {
        match self.apply(&RecordChange::Replied(reply)).await {
            Ok(_) | Err(StoreError::Refused(_)) => Ok(()),
            // Without this note, the outcome is unknown until the next read.
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, "the call's outcome could not be recorded");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads and stores the server's state before any change.
    async fn record_prior(&mut self, deadline: Duration, control: &Control) -> Result<(), EngineError> {
        let machine = self.machine()?;
        let needs_media = self.needs_media().await?;
        let read = async {
            let seen = machine.observe().await?;
            let media = match machine.media(&[]).await {
                Ok(media) => Some(media),
                Err(error) if needs_media || error.is_transient() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "virtual drives cannot be read and stay unchanged");
                    None
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
                self.log_status(&format!("{error}; trying again"));
                self.wait(true, None, deadline, control).await;
                return if self.engine.parts.clock.monotonic() >= deadline {
                    self.give_up(error, deadline, control).await
                } else {
                    Ok(())
                };
            }
            Err(error) => return self.give_up(error, deadline, control).await,
        };
        self.seen_at = self.engine.parts.clock.monotonic();
        self.media_at = self.seen_at;
        let prior = PriorState {
            power: seen.power,
            boot: seen.boot.clone(),
            media: media.clone().unwrap_or_default(),
            // The store sets the time.
            recorded_at: jiff::Timestamp::UNIX_EPOCH,
        };
        let incomplete = self.record().is_some_and(|record| is_unrecordable(record, &seen));
        (self.facts.machine, self.facts.media) = (Some(seen), media);
        if incomplete {
            return Ok(());
        }
        match self.apply(&RecordChange::Prior(Box::new(prior))).await {
            Ok(_) | Err(StoreError::Refused(_)) => Ok(()),
            // The next round waits for the store.
            Err(error) if error.is_transient() => Ok(()),
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

/// Why a fact could not be read.
pub(super) enum LookError {
    /// The machine or its gate did not report it.
    Machine(BackendError),
    /// The read was not sent.
    Engine(EngineError),
}

impl From<BackendError> for LookError {
    fn from(error: BackendError) -> Self {
        Self::Machine(error)
    }
}

impl From<EngineError> for LookError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

/// Appends the machine's requested pause, which the rules honor.
fn with_pause(error: &BackendError, said: String) -> String {
    match error.retry_after() {
        Some(pause) => format!("{said}{}", asked_pause_text(pause)),
        None => said,
    }
}

/// Returns the reply for a call that failed after it was accepted. A restart of unknown outcome is
/// observed and never sent again, so that it is not reported as failed after it was carried out.
/// Other calls of unknown outcome fail immediately and are not sent again either.
fn late_reply(error: &BackendError, restarts: bool) -> Reply {
    if restarts && error.outcome_unknown() {
        return Reply::Unclear { message: error.to_string().into() };
    }
    let transient = error.is_transient() && !error.outcome_unknown();
    Reply::Refused { message: with_pause(error, error.to_string()).into(), transient }
}

async fn perform(machine: Arc<dyn Machine>, action: Action) -> Result<(), BackendError> {
    match action {
        Action::EnterGate
        | Action::LeaveGate
        | Action::Record
        | Action::CheckImage
        | Action::AskPreparer
        | Action::TakeNode
        | Action::ReturnNode
        | Action::CordonNode { .. }
        | Action::EvictPods
        | Action::UncordonNode
        | Action::BeginService { .. } => Ok(()),
        Action::Reset(reset) => machine.reset(reset).await,
        Action::SetBoot { wanted, clear_http_boot_uri } => {
            machine.set_boot_override(&wanted, clear_http_boot_uri).await
        }
        Action::Insert { slot, image, write_protected } => {
            machine.insert_medium(slot.raw(), image.raw(), write_protected).await
        }
        Action::Eject { slot } => machine.eject_medium(slot.raw()).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_that_may_have_been_carried_out_is_not_called_refused() {
        let failed = |nothing_changed| BackendError::TaskFailed {
            address: "fake".into(),
            request: "POST reset".into(),
            message: "the fan tray is missing".into(),
            nothing_changed,
        };
        assert!(
            matches!(late_reply(&failed(false), true), Reply::Unclear { message } if message.shown().contains("fan tray"))
        );
        assert!(matches!(late_reply(&failed(false), false), Reply::Refused { transient: false, .. }));
        for restarts in [false, true] {
            assert!(matches!(late_reply(&failed(true), restarts), Reply::Refused { transient: true, .. }));
        }
    }
}
