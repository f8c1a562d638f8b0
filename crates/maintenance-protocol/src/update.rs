//! A change of a maintenance that holds its server already: checked before the server is touched,
//! and undone when it fails. The lock stays held whatever comes of it.
//!
//! The record keeps the specification that the server was prepared for until the change is through.
//! So a process that continues after a crash knows both: where the change leads, and where it leads
//! back to.

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

/// Whether a change of the specification must be brought to a server that is held already.
#[must_use]
pub fn needs_preparing(before: &Spec, wanted: &Spec) -> bool {
    before.server_power != wanted.server_power || before.sealed().boot != wanted.sealed().boot
}

/// Whether bringing a maintenance to a wanted specification begins with a drain of the Node on its
/// server, or still has one before it.
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
    /// The specification that checks are about: what is wanted, also before it is in force.
    #[must_use]
    pub fn checked_spec(&self) -> &Spec {
        match &self.update {
            Some(Update { stage: Stage::Checking, wanted, .. }) => wanted,
            _ => &self.spec,
        }
    }

    /// Whether it has the server for as long as it is in force.
    ///
    /// A boot configuration in its own turn has it only while it changes something, unless an
    /// external system boots servers in a maintenance only: there the request stays, and with it
    /// our turn.
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

    /// What waits for a turn as if it were asked for the first time; `None`: nothing does.
    ///
    /// A request that has not started, or the change of what is in force without having the server:
    /// owner, window and queue are asked again, about what the change would bring.
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

    /// The record with actions that owner and window did not allow. `None`: they allowed all.
    ///
    /// An approval and a window cover the admitted actions. Changed actions need both again, even
    /// in maintenance.
    #[must_use]
    pub fn awaiting_consent(&self) -> Option<Cow<'_, Self>> {
        let is_new = |spec: &Spec| self.allowed.as_deref() != Some(spec.actions().as_str());
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

    /// The record after its change began.
    fn as_wanted(&self, update: &Update) -> Self {
        Self {
            spec: update.wanted.clone(),
            digest: update.wanted_digest.clone(),
            requested_at: update.asked_at.unwrap_or(self.requested_at),
            ..self.clone()
        }
    }

    /// The update that is being undone. `None`: none is.
    #[must_use]
    pub fn undoing(&self) -> Option<&Update> {
        self.update.as_ref().filter(|update| matches!(update.stage, Stage::Undoing { .. }))
    }

    /// Takes another specification over. Of a prepared server it is only noted what is wanted when
    /// the server has to change: see [`check`].
    pub(super) fn revise(&mut self, wanted: &Spec, now: Timestamp) {
        let wanted = Spec { parent: self.spec.parent.clone(), ..wanted.clone() };
        let digest = wanted.digest();
        let other = needs_preparing(&self.spec, &wanted);
        match (&self.phase, self.update.take()) {
            (Phase::InMaintenance { since }, _) if other => {
                self.update = Some(Update {
                    previous: self.spec.clone(),
                    previous_digest: self.digest.clone(),
                    wanted,
                    wanted_digest: digest,
                    since: *since,
                    before: None,
                    touched: false,
                    booted_before: self.booted,
                    stage: Stage::Checking,
                    asked_at: Some(now),
                });
                return;
            }
            // An update that was interrupted. The server is somewhere between.
            (Phase::Preparing(progress), Some(mut update)) => {
                let back = !needs_preparing(&update.previous, &wanted);
                let continues = !other && back == matches!(update.stage, Stage::Undoing { .. });
                let mut progress = progress.clone();
                if back {
                    (update.previous, update.previous_digest) = (wanted.clone(), digest.clone());
                    update.stage = Stage::Undoing { cause: None, stuck: None };
                } else {
                    (update.wanted, update.wanted_digest) = (wanted.clone(), digest.clone());
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
            // Nothing to come back to yet: the steps under way are those of the old specification.
            (Phase::Preparing(_), None) if other => {
                self.phase = Phase::Preparing(Progress::new(prepare::steps(&wanted, &self.gates), now));
                self.spec = wanted;
            }
            _ => self.spec = wanted,
        }
        self.digest = digest;
    }

    /// Asks for the specification in force once more, because the server drifted from it.
    pub(super) fn prepare_again(&mut self) {
        let (Phase::InMaintenance { since }, None) = (&self.phase, &self.update) else { return };
        self.update = Some(Update {
            previous: self.spec.clone(),
            previous_digest: self.digest.clone(),
            wanted: self.spec.clone(),
            wanted_digest: self.digest.clone(),
            since: *since,
            before: None,
            touched: false,
            booted_before: self.booted,
            stage: Stage::Checking,
            asked_at: None,
        });
    }

    /// Another run of the specification in force continues the record: a change that it does not
    /// know is not begun, and undoing one is what it wants.
    pub(super) fn adopt_update(&mut self) {
        self.update.take_if(|update| update.stage == Stage::Checking);
        if let Some(Update { stage: Stage::Undoing { cause, stuck }, .. }) = &mut self.update {
            (*cause, *stuck) = (None, None);
        }
    }

    /// Everything that can be checked was: the server may be changed.
    pub(super) fn begin_update(&mut self, now: Timestamp) {
        let Some(update) = self.update.as_mut().filter(|update| update.stage == Stage::Checking) else { return };
        update.stage = Stage::Applying;
        self.tolerated.clear();
        (self.spec, self.digest) = (update.wanted.clone(), update.wanted_digest.clone());
        self.phase = Phase::Preparing(Progress::new(prepare::steps(&self.spec, &self.gates), now));
    }

    /// The change that was under way failed: the previous specification is in force again.
    pub(super) fn undo(&mut self, cause: &str, now: Timestamp) {
        let Some(mut update) = self.update.take() else { return };
        update.stage = Stage::Undoing { cause: Some(cause.to_owned()), stuck: None };
        (self.spec, self.digest) = (update.previous.clone(), update.previous_digest.clone());
        self.allowed = Some(self.spec.actions());
        let steps = undo_steps(self, &update);
        self.update = Some(update);
        self.phase = Phase::Preparing(Progress::new(steps, now));
    }

    /// Undoing cannot go on; the next try begins the failed step again.
    pub(super) fn stop_undoing(&mut self, why: &str, now: Timestamp) {
        if let Some(Update { stage: Stage::Undoing { stuck, .. }, .. }) = &mut self.update {
            *stuck = Some(why.to_owned());
        }
        if let Phase::Preparing(progress) = &mut self.phase {
            progress.begin_afresh(now);
        }
    }

    /// The steps are done: since when the server is as its specification asks.
    pub(super) fn end_update(&mut self, now: Timestamp) -> Timestamp {
        match self.update.take() {
            Some(Update { stage: Stage::Undoing { .. }, since, booted_before, previous, .. }) => {
                // What the change booted is gone again.
                self.booted = booted_before || (self.booted && previous.boot.is_some());
                since
            }
            _ => now,
        }
    }

    /// Notes that a call is about to be made that changes the server.
    pub(super) fn note_update_call(&mut self, action: &Action) {
        if let Some(update) = &mut self.update {
            update.touched |= action.is_mutation();
        }
    }

    /// Records how the server was before the first step of the update.
    pub(super) fn record_before_update(&mut self, state: PriorState) {
        if let Some(update) = &mut self.update {
            update.before.get_or_insert(state);
        }
    }

    /// Whether the state of the server before the update is not recorded yet.
    #[must_use]
    pub fn records_before_update(&self) -> bool {
        self.prior.is_some()
            && self.update.as_ref().is_some_and(|update| update.stage == Stage::Applying && update.before.is_none())
    }
}

impl ServerLock {
    /// Begins a change, or continues the preparation, if owner and window allow the actions. The
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

    /// Asks for the specification in force once more: the server drifted from it.
    pub fn prepare_again(&mut self, uid: &Uid, fence: Fence) -> Result<(), Refusal> {
        self.ours(uid, fence)?.prepare_again();
        Ok(())
    }
}

/// What keeps an update from being begun: the first of what can be checked without changing
/// anything.
#[must_use]
pub fn check(record: &Maintenance, facts: &Facts) -> Verdict {
    let spec = record.checked_spec();
    // The external system checks and fetches what it boots itself.
    let boots_there = gate::prepares_boot(&record.gates);
    if let Some(boot) = spec.boot.as_ref().filter(|boot| !boots_there && !boot.method.is_external()) {
        if boot.image.is_some() {
            match &facts.image {
                None => return Verdict::Look(Need::Image),
                Some(Err(problem)) => return Verdict::Fail(format!("{}: {problem}", Step::CheckImage)),
                Some(Ok(())) => {}
            }
        }
        if let (BootMethod::VirtualMedia, Some(image)) = (&boot.method, &boot.image) {
            let Some(media) = &facts.media else { return Verdict::Look(Need::Media) };
            let Some(has) = &facts.capabilities else { return Verdict::Look(Need::Capabilities) };
            if media::choose_slot(media, image, has.media_slot.as_deref()).is_none() {
                return Verdict::Fail("the machine has no virtual drive for this image".to_owned());
            }
        }
    }
    let Some(capabilities) = &facts.capabilities else { return Verdict::Look(Need::Capabilities) };
    let missing = prepare::missing_capabilities(spec, capabilities);
    if !missing.is_empty() {
        let missing: Vec<String> = missing.into_iter().map(|(_, problem)| problem).collect();
        return Verdict::Fail(missing.join(" "));
    }
    let Some(machine) = &facts.machine else { return Verdict::Look(Need::Machine) };
    let systems = record.gates.iter().map(|gate| &gate.system);
    match power::unreachable(spec, systems, machine.power, capabilities) {
        Some((_, problem)) => Verdict::Fail(problem),
        None => Verdict::Done,
    }
}

/// The steps from anywhere between to the previous specification. None when nothing was changed.
fn undo_steps(record: &Maintenance, update: &Update) -> Vec<Step> {
    let (Some(before), true) = (&update.before, update.touched) else { return Vec::new() };
    let previous = &update.previous;
    // What the previous specification boots has to be booted again: a boot that holds for one start
    // was used up.
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

/// What a step of undoing needs next.
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

/// The record, as if the state before the update were what it found.
fn as_before(record: &Maintenance, update: &Update) -> Maintenance {
    let mut prior = update.before.clone();
    if let (Some(prior), Some(power)) = (&mut prior, update.previous.server_power) {
        prior.power = power.into();
    }
    Maintenance { prior, booted: record.booted && !update.booted_before, ..record.clone() }
}
