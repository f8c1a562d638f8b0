//! Equality of worlds: two worlds are equal if no rule can distinguish them. Times count relative
//! to now, as far as any rule looks; attachments by being current; processes by their actors and
//! their existence. So the space is finite without a limit on time, crashes or processes.

use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::{SignedDuration, Timestamp};
use maintenance_protocol::{
    change::RecordChange,
    lock::ServerLock,
    machine::{PowerState, PowerTarget, ResetType},
    state::{Maintenance, Phase, Progress},
    step::{Action, Reply},
    update::Stage,
};

use crate::{
    times::HOLD_PLACE,
    world::{At, World, number},
};

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for (n, actor) in self.actors.iter().enumerate() {
            let process = self.process(n);
            (actor.goal, actor.told, std::mem::discriminant(&actor.at), actor.ran == process.run).hash(state);
            (actor.remembers.is_some(), self.runs(actor.process), actor.called).hash(state);
            if self.runs(actor.process) {
                let lease = self.leases.0.get(&self.runner(n).id);
                (self.behind(process.renewed, self.about.lease()), lease.map(|until| self.ahead(*until))).hash(state);
                self.is_behind(process.seen).hash(state);
            }
            if !actor.is_alive() {
                continue;
            }
            match &actor.at {
                At::Planned(change) => self.hash_change(change, state),
                At::Intended { action, bound: moment } | At::Calling { action, until: moment } => {
                    (action_name(action), self.ahead(*moment)).hash(state);
                }
                At::Waiting { until } => self.ahead(*until).hash(state),
                At::Called(reply) => std::mem::discriminant(reply).hash(state),
                At::Away | At::Driving => {}
            }
            (self.in_force(n), self.is_behind(actor.fenced_at)).hash(state);
            actor.replaced.map(|until| self.ahead(until)).hash(state);
        }
        self.hash_lock(&self.lock, state);
        let mut coming: Vec<_> =
            self.machine.coming.iter().map(|effect| (effect.root, effect.on, self.ahead(effect.until))).collect();
        coming.sort_unstable();
        (self.machine.on, coming).hash(state);
        (self.held, self.reached, self.over, self.abandoned, self.restored, self.wrong).hash(state);
        self.one_way.hash(state);
        // A store that was set back issues the same numbers again.
        if self.loses() {
            (self.here.line, self.lock.generation).hash(state);
            for (n, actor) in self.actors.iter().enumerate() {
                (self.process(n).run, actor.fence.generation, actor.remembers).hash(state);
            }
            if let Some((backup, commit)) = &self.backup {
                (self.here.line == 0, self.here.commit == *commit, backup.generation).hash(state);
                self.hash_lock(backup, state);
            }
        }
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl World {
    /// Returns the hash.
    pub fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    fn loses(&self) -> bool {
        self.backup.is_some() || self.here.line > 0
    }

    /// Returns how far a time is in the future, as far as any rule can distinguish.
    fn ahead(&self, at: Timestamp) -> i64 {
        at.duration_since(self.now).as_secs().clamp(0, (self.about.lease() + self.about.power_change()).as_secs())
    }

    /// Returns how far a time is in the past, as far as a rule can distinguish that looks back for
    /// `most`.
    fn behind(&self, at: Timestamp, most: SignedDuration) -> i64 {
        self.now.duration_since(at).as_secs().clamp(0, most.as_secs())
    }

    fn hash_change(&self, change: &RecordChange, state: &mut impl Hasher) {
        std::mem::discriminant(change).hash(state);
        match change {
            RecordChange::Admit(phase) => phase.name().hash(state),
            RecordChange::Progress(progress) => {
                self.hash_progress(progress, state);
                // Includes server changes by child records since the decision.
                let current = self.lock.active.iter().filter_map(|record| match &record.phase {
                    Phase::Preparing(current) | Phase::Releasing { progress: current, .. } => Some(current),
                    _ => None,
                });
                current.map(|current| current.disturbed == progress.disturbed).collect::<Vec<_>>().hash(state);
            }
            RecordChange::Intend { action, .. } => action_name(action).hash(state),
            RecordChange::Prior(prior) => (prior.power == PowerState::On).hash(state),
            RecordChange::Settled(effects) => effects.len().hash(state),
            _ => {}
        }
    }

    fn hash_progress(&self, progress: &Progress, state: &mut impl Hasher) {
        (progress.current, progress.steps.len()).hash(state);
        for attempt in &progress.attempts {
            let reply = std::mem::discriminant::<Reply>(&attempt.reply);
            (action_name(&attempt.action), self.behind(attempt.at, self.about.power_change()), reply).hash(state);
        }
    }

    fn hash_lock(&self, lock: &ServerLock, state: &mut impl Hasher) {
        let slot = lock.slot.as_ref();
        slot.map(|slot| (number(&slot.uid), slot.acting.as_ref().map(number))).hash(state);
        let mut records: Vec<&Maintenance> = lock.active.iter().map(|record| &**record).collect();
        records.sort_by_key(|record| record.ticket_number);
        for record in records {
            self.hash_record(record, state);
        }
        let effects = lock.extension.effects.iter();
        let effects: Vec<_> = effects
            .filter(|effect| effect.until > self.now)
            .map(|effect| {
                (number(&effect.root), number(&effect.by), action_name(&effect.action), self.ahead(effect.until))
            })
            .collect();
        effects.hash(state);
        let mut released: Vec<_> = lock.extension.restrictions.released.iter().map(|it| it.id.to_string()).collect();
        released.sort();
        released.hash(state);
        lock.extension.inspections.iter().map(|it| number(&it.uid)).collect::<Vec<_>>().hash(state);
    }

    fn hash_record(&self, record: &Maintenance, state: &mut impl Hasher) {
        number(&record.uid).hash(state);
        record.phase.name().hash(state);
        match &record.phase {
            Phase::Preparing(progress) => self.hash_progress(progress, state),
            Phase::Releasing { progress, stuck, .. } => {
                self.hash_progress(progress, state);
                stuck.is_some().hash(state);
            }
            _ => {}
        }
        record.prior.as_ref().map(|prior| prior.power == PowerState::On).hash(state);
        if let Some(update) = &record.update {
            let reached = match &update.stage {
                Stage::Checking => 1,
                Stage::Applying => 2,
                Stage::Undoing { cause, stuck } => 3 + u8::from(cause.is_some()) + 2 * u8::from(stuck.is_some()),
            };
            (reached, update.touched, update.before.as_ref().map(|before| before.power == PowerState::On)).hash(state);
        }
        record.spec.server_power.map(|power| power == PowerTarget::On).hash(state);
        record.awaiting_consent().is_some().hash(state);
        if let Some(attachment) = &record.attachment {
            let (process, _) = attachment.runner.id.raw().split_once('.').unwrap();
            (process, self.process_exists(&attachment.runner.id)).hash(state);
            self.leases.0.get(&attachment.runner.id).map(|until| self.ahead(*until)).hash(state);
            (0..self.actors.len()).filter(|n| attachment.is(self.actors[*n].fence)).collect::<Vec<_>>().hash(state);
        }
        record.calls_until.map(|until| self.ahead(until)).hash(state);
        // The time of absence matters only for a waiter's queue position.
        if record.phase == Phase::Pending {
            let lease = record.attachment.as_ref().and_then(|attachment| self.leases.until(attachment));
            let since = lease.or(record.detached_at).unwrap_or(record.requested_at);
            self.behind(since, HOLD_PLACE).hash(state);
        }
    }
}

fn action_name(action: &Action) -> &'static str {
    match action {
        Action::Reset(ResetType::On) => "on",
        Action::Reset(_) => "off",
        _ => "other",
    }
}
