//! Changing a maintenance while it owns the lock. The change is checked before the server changes,
//! and rolled back after a failure. The lock stays held in any case.
//!
//! Until the change is complete, the record contains both specifications. A process that continues
//! after a crash can therefore complete the change or roll it back.

use shown_text::AsRaw;

pub use super::model::update::{Stage, Undone, Update};

use std::borrow::Cow;

use jiff::Timestamp;

use super::{
    blocker,
    change::Applied,
    drain, gate,
    ids::{Fence, Uid},
    media,
    model::{
        facts::Facts,
        lock::{Refusal, ServerLock},
        verdict::{Limits, Need, Verdict},
    },
    power, prepare, restore,
    spec::{BootMethod, MaintenanceKind, Spec},
    state::{Maintenance, Phase, PriorState, Progress},
    step::{Action, Step},
};

/// Returns true if the specification change requires changes on the prepared server.
#[must_use]
pub fn needs_preparing(before: &Spec, wanted: &Spec) -> bool {
    before.server_power != wanted.server_power || before.sealed().boot != wanted.sealed().boot
}

/// Returns true if applying `wanted` includes a drain that has not been completed.
#[must_use]
pub fn has_drain_ahead(record: &Maintenance, wanted: &Spec) -> bool {
    match &record.phase {
        Phase::Preparing(progress) if !needs_preparing(&record.spec, wanted) => {
            progress.steps.iter().skip(progress.current).any(|step| *step == Step::DrainNode)
        }
        Phase::Pending | Phase::Preparing(_) | Phase::InMaintenance { .. } => drain::wanted(wanted).is_some(),
        Phase::Releasing { .. } | Phase::Completed { .. } | Phase::Failed { .. } => false,
    }
}

impl Maintenance {
    /// Returns the specification for checks: the requested one, even before it is current.
    #[must_use]
    pub fn checked_spec(&self) -> &Spec {
        match &self.update {
            Some(Update { stage: Stage::Checking, wanted, .. }) => wanted,
            _ => &self.spec,
        }
    }

    /// Returns true if it owns the lock for its whole lifetime.
    ///
    /// A boot configuration without a parent usually owns the lock only during a change. If an
    /// external system boots servers only in maintenance, the request stays, and with it the lock.
    #[must_use]
    pub fn keeps_server(&self) -> bool {
        match self.spec.kind {
            MaintenanceKind::Maintenance => true,
            MaintenanceKind::Operation => false,
            MaintenanceKind::BootConfiguration => {
                self.spec.parent.is_none() && self.gates.iter().any(|gate| gate.system.enters)
            }
        }
    }

    /// Returns the record as it competes for the lock; `None` if it does not need admission.
    ///
    /// Either it is a request that has not started, or a change without the lock. A change is
    /// checked by owner, window and queue again, for its new actions.
    #[must_use]
    pub fn awaiting_turn(&self) -> Option<Cow<'_, Self>> {
        if matches!(self.phase, Phase::Pending) {
            return Some(Cow::Borrowed(self));
        }
        let update = self.update.as_ref().filter(|update| update.stage == Stage::Checking)?;
        if self.spec.parent.is_some() || self.keeps_server() {
            return None;
        }
        Some(Cow::Owned(self.as_wanted(update)))
    }

    /// Returns the record with actions that owner and window have not allowed; `None` if all are
    /// allowed.
    ///
    /// An approval and a window cover the admitted actions. Changed actions need both again, even
    /// in maintenance.
    #[must_use]
    pub fn awaiting_consent(&self) -> Option<Cow<'_, Self>> {
        let is_new = |spec: &Spec| self.allowed.as_ref().is_none_or(|allowed| *allowed != spec.actions());
        match (&self.phase, &self.update) {
            (Phase::Pending, _) => Some(Cow::Borrowed(self)),
            (Phase::InMaintenance { .. }, Some(update)) if update.stage == Stage::Checking => {
                is_new(&update.wanted).then(|| Cow::Owned(self.as_wanted(update)))
            }
            (Phase::Preparing(_), _) if self.undoing().is_none() && self.allowed.is_some() => {
                is_new(&self.spec).then_some(Cow::Borrowed(self))
            }
            _ => None,
        }
    }

    /// Returns the record in its state after the change starts.
    fn as_wanted(&self, update: &Update) -> Self {
        Self {
            spec: update.wanted.clone(),
            digest: update.wanted.digest().into(),
            requested_at: update.asked_at.unwrap_or(self.requested_at),
            ..self.clone()
        }
    }

    /// Returns the change that is being rolled back, if any.
    #[must_use]
    pub fn undoing(&self) -> Option<&Update> {
        self.update.as_ref().filter(|update| matches!(update.stage, Stage::Undoing { .. }))
    }

    /// Stores a new specification. If a prepared server must change for it, it is stored as the
    /// requested change: see [`check`].
    pub(super) fn revise(&mut self, wanted: &Spec, now: Timestamp) {
        let wanted = Spec { parent: self.spec.parent.clone(), ..wanted.clone() };
        let digest = wanted.digest();
        let other = needs_preparing(&self.spec, &wanted);
        match (&self.phase, self.update.take()) {
            (Phase::InMaintenance { since }, _) if other => {
                self.update = Some(Update {
                    previous: self.spec.clone(),
                    wanted,
                    since: *since,
                    before: None,
                    touched: false,
                    booted_before: self.booted,
                    stage: Stage::Checking,
                    asked_at: Some(now),
                });
                return;
            }
            // An interrupted change: the server is between both specifications.
            (Phase::Preparing(progress), Some(mut update)) => {
                let back = !needs_preparing(&update.previous, &wanted);
                let continues = !other && back == matches!(update.stage, Stage::Undoing { .. });
                let mut progress = progress.clone();
                if back {
                    update.previous = wanted.clone();
                    update.stage = Stage::Undoing { cause: None, stuck: None };
                } else {
                    update.wanted = wanted.clone();
                    update.stage = Stage::Applying;
                    self.tolerated.clear();
                }
                self.spec = wanted;
                if !continues {
                    let steps = if back { undo_steps(self, &update) } else { prepare::steps(&self.spec, &self.gates) };
                    progress = Progress::new(steps, now);
                }
                self.update = Some(update);
                self.phase = Phase::Preparing(progress);
            }
            // The current steps belong to the old specification, and a prepared state to return to
            // does not exist yet.
            (Phase::Preparing(_), None) if other => {
                self.phase = Phase::Preparing(Progress::new(prepare::steps(&wanted, &self.gates), now));
                self.spec = wanted;
            }
            _ => self.spec = wanted,
        }
        self.digest = digest.into();
    }

    /// Requests the current specification again, because the server has drifted from it.
    pub(super) fn prepare_again(&mut self) {
        let (Phase::InMaintenance { since }, None) = (&self.phase, &self.update) else { return };
        self.update = Some(Update {
            previous: self.spec.clone(),
            wanted: self.spec.clone(),
            since: *since,
            before: None,
            touched: false,
            booted_before: self.booted,
            stage: Stage::Checking,
            asked_at: None,
        });
    }

    /// Adopts the record for another run of the current specification: drops an unstarted change,
    /// and accepts a rollback as requested.
    pub(super) fn adopt_update(&mut self) {
        self.update.take_if(|update| update.stage == Stage::Checking);
        if let Some(Update { stage: Stage::Undoing { cause, stuck }, .. }) = &mut self.update {
            (*cause, *stuck) = (None, None);
        }
    }

    /// Starts the change after all checks passed.
    pub(super) fn begin_update(&mut self, now: Timestamp) {
        let Some(update) = self.update.as_mut().filter(|update| update.stage == Stage::Checking) else { return };
        update.stage = Stage::Applying;
        self.tolerated.clear();
        (self.spec, self.digest) = (update.wanted.clone(), update.wanted.digest().into());
        self.phase = Phase::Preparing(Progress::new(prepare::steps(&self.spec, &self.gates), now));
    }

    /// Restores the previous specification after a failed change, and starts the rollback.
    pub(super) fn undo(&mut self, cause: &str, now: Timestamp) {
        let Some(mut update) = self.update.take() else { return };
        update.stage = Stage::Undoing { cause: Some(cause.into()), stuck: None };
        (self.spec, self.digest) = (update.previous.clone(), update.previous.digest().into());
        self.allowed = Some(self.spec.actions().into());
        let steps = undo_steps(self, &update);
        self.update = Some(update);
        self.phase = Phase::Preparing(Progress::new(steps, now));
    }

    /// Stops a rollback. The next attempt restarts the failed step.
    pub(super) fn stop_undoing(&mut self, why: &str, now: Timestamp) {
        if let Some(Update { stage: Stage::Undoing { stuck, .. }, .. }) = &mut self.update {
            *stuck = Some(why.into());
        }
        if let Phase::Preparing(progress) = &mut self.phase {
            progress.begin_afresh(now);
        }
    }

    /// Ends a change and returns since when the server has matched its specification.
    pub(super) fn end_update(&mut self, now: Timestamp) -> Timestamp {
        match self.update.take() {
            Some(Update { stage: Stage::Undoing { .. }, since, booted_before, previous, .. }) => {
                // The rollback replaced the system that the change booted.
                self.booted = booted_before || (self.booted && previous.boot.is_some());
                since
            }
            _ => now,
        }
    }

    /// Records that a call will change the server.
    pub(super) fn note_update_call(&mut self, action: &Action) {
        if let Some(update) = &mut self.update {
            update.touched |= action.is_mutation();
        }
    }

    /// Records the server's state before the change.
    pub(super) fn record_before_update(&mut self, state: PriorState) {
        if let Some(update) = &mut self.update {
            update.before.get_or_insert(state);
        }
    }

    /// Returns true if the state before the change is not recorded yet.
    #[must_use]
    pub fn records_before_update(&self) -> bool {
        self.prior.is_some()
            && self.update.as_ref().is_some_and(|update| update.stage == Stage::Applying && update.before.is_none())
    }
}

impl ServerLock {
    /// Starts a change, or continues a preparation, if owner and window allow the actions. The
    /// owner can withdraw an approval between the decision and this transaction.
    pub(super) fn begin_allowed(
        &mut self,
        uid: &Uid,
        fence: Fence,
        begins: bool,
        now: Timestamp,
    ) -> Result<Applied, Refusal> {
        let record = self.get(uid).ok_or(Refusal::Gone)?;
        if !blocker::unallowed(self, record, now).is_empty() {
            return Ok(Applied::Outdated);
        }
        if begins {
            self.begin_update(uid, fence, now)?;
        } else {
            self.allow_actions(uid, fence, now)?;
        }
        Ok(Applied::Done)
    }

    /// Requests the current specification again, because the server has drifted from it.
    pub fn prepare_again(&mut self, uid: &Uid, fence: Fence) -> Result<(), Refusal> {
        self.ours(uid, fence)?.prepare_again();
        Ok(())
    }
}

/// Checks a requested change without changing the server. Returns the first problem, or the fact to
/// read first.
#[must_use]
pub fn check(record: &Maintenance, facts: &Facts) -> Verdict {
    let spec = record.checked_spec();
    // The external system checks and downloads its boot images itself.
    let boots_there = gate::prepares_boot(&record.gates);
    if let Some(boot) = spec.boot.as_ref().filter(|boot| !boots_there && !boot.method.is_external()) {
        if boot.image.is_some() {
            match &facts.image {
                None => return Verdict::Look(Need::Image),
                Some(Err(problem)) => return Verdict::Fail(format!("{}: {problem}", Step::CheckImage).into()),
                Some(Ok(())) => {}
            }
        }
        if let (BootMethod::VirtualMedia, Some(image)) = (&boot.method, &boot.image) {
            let Some(media) = &facts.media else { return Verdict::Look(Need::Media) };
            let Some(has) = &facts.capabilities else { return Verdict::Look(Need::Capabilities) };
            if media::choose_slot(media, image.raw(), has.media_slot.as_raw()).is_none() {
                return Verdict::Fail("the machine does not have a virtual drive for this image".into());
            }
        }
    }
    let Some(capabilities) = &facts.capabilities else { return Verdict::Look(Need::Capabilities) };
    let missing = prepare::missing_capabilities(spec, capabilities);
    if !missing.is_empty() {
        let missing: Vec<String> = missing.into_iter().map(|(_, problem)| problem).collect();
        return Verdict::Fail(missing.join(" ").into());
    }
    let Some(machine) = &facts.machine else { return Verdict::Look(Need::Machine) };
    let systems = record.gates.iter().map(|gate| &gate.system);
    match power::unreachable(spec, systems, machine.power, capabilities) {
        Some((_, problem)) => Verdict::Fail(problem.into()),
        None => Verdict::Done,
    }
}

/// Returns the rollback steps from any intermediate state; empty if the server is unchanged.
fn undo_steps(record: &Maintenance, update: &Update) -> Vec<Step> {
    let (Some(before), true) = (&update.before, update.touched) else { return Vec::new() };
    let previous = &update.previous;
    // The previous system must boot again, because a one-time boot was already used.
    if previous.boot.is_some() && previous.server_power.is_some() {
        let again = |step: &Step| {
            matches!(
                step,
                Step::SwitchOff | Step::InsertMedium | Step::ConfigureBoot | Step::AwaitReady | Step::ApplyPower
            )
        };
        return prepare::steps(previous, &record.gates).into_iter().filter(again).collect();
    }
    if update.wanted.sealed().boot == previous.sealed().boot {
        return vec![Step::RestorePower, Step::Verify];
    }
    restore::steps_to(before)
}

/// Judges a rollback step.
#[must_use]
pub fn judge(
    step: Step,
    record: &Maintenance,
    update: &Update,
    progress: &Progress,
    facts: &Facts,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    match step {
        Step::SwitchOff | Step::InsertMedium | Step::ConfigureBoot | Step::AwaitReady | Step::ApplyPower => {
            prepare::judge(step, record, progress, facts, limits, now)
        }
        _ => restore::judge(step, &as_before(record, update), progress, facts, limits, now),
    }
}

/// Returns the record with the state before the change as its prior state.
fn as_before(record: &Maintenance, update: &Update) -> Maintenance {
    let mut prior = update.before.clone();
    if let (Some(prior), Some(power)) = (&mut prior, update.previous.server_power) {
        prior.power = power.into();
    }
    Maintenance { prior, booted: record.booted && !update.booted_before, ..record.clone() }
}
