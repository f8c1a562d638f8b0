//! Calls that can change the server after their reply.
//!
//! A BMC accepts a graceful shutdown within a second, but the operating system powers off minutes
//! later, even if the process has ended. The lock therefore stores each call until its effect is
//! observed or no longer possible. Restores and later maintenances wait for that.

pub use super::model::effects::PendingEffect;

use std::time::Duration;

use jiff::Timestamp;

use super::{
    ids::Uid,
    machine::ResetType,
    model::{
        lock::ServerLock,
        verdict::{Limits, after},
    },
    state::{Maintenance, Progress},
    step::{Action, Attempt, Reply, Step},
};

/// Returns how long a call can change the server after its reply, or after the wait for a reply
/// ended. `None` if no later effect is possible.
#[must_use]
pub fn effect_lasts(action: &Action, reply: &Reply, limits: &Limits) -> Option<Duration> {
    let accepted = match (reply, action) {
        (Reply::Refused { .. }, _) => return None,
        (Reply::Accepted, _) => true,
        (Reply::Unknown | Reply::Unclear { .. }, _) => false,
    };
    match action {
        // The operating system controls the timing (ACPI power button).
        Action::Reset(ResetType::GracefulShutdown | ResetType::GracefulRestart) => Some(limits.graceful_shutdown),
        Action::Reset(ResetType::Nmi) if accepted => None,
        Action::Reset(_) => Some(limits.power_change),
        // Some BMCs report the change after they accepted it, even without a task.
        Action::SetBoot { .. } => Some(limits.settle),
        // The BMC must first contact the image server.
        Action::Insert { .. } | Action::Eject { .. } => Some(limits.media),
        Action::Record
        | Action::CheckImage
        | Action::AskPreparer
        | Action::EnterGate
        | Action::LeaveGate
        // The service is observed to its end under the lock.
        | Action::BeginService { .. }
        | Action::TakeNode
        | Action::ReturnNode
        | Action::CordonNode { .. }
        | Action::EvictPods
        | Action::UncordonNode => None,
    }
}

impl ServerLock {
    /// Returns other maintenances' calls that can still change the server.
    pub(super) fn foreign_effects(&self, uid: &Uid, now: Timestamp) -> impl Iterator<Item = &PendingEffect> {
        let root = self.get(uid).and_then(|record| record.spec.parent.clone()).unwrap_or_else(|| uid.clone());
        self.extension.effects.iter().filter(move |effect| effect.root != root && effect.until > now)
    }

    /// Returns calls of this maintenance and of work under it that can still change the server.
    #[must_use]
    pub fn own_effects(&self, record: &Maintenance, now: Timestamp) -> Vec<&PendingEffect> {
        let effects = self.extension.effects.iter();
        match &record.spec.parent {
            // Work under a lock restores only its own calls; the lock's holder restores all.
            Some(_) => effects.filter(|effect| effect.by == record.uid && effect.until > now).collect(),
            None => effects.filter(|effect| effect.root == record.uid && effect.until > now).collect(),
        }
    }

    /// Returns true if the current step changes power only, and no earlier call can still change a
    /// drive.
    #[must_use]
    pub fn only_power_changes(&self, record: &Maintenance, now: Timestamp) -> bool {
        let at_a_drive = |action: &Action| matches!(action, Action::Insert { .. } | Action::Eject { .. });
        matches!(
            record.phase.progress().and_then(Progress::step),
            Some(Step::SwitchOff | Step::ApplyPower | Step::Operate | Step::StopForRestore | Step::RestorePower)
        ) && !self.own_effects(record, now).iter().any(|effect| at_a_drive(&effect.action))
    }

    /// Stores a call before it is sent. It counts as unanswered until its reply arrives.
    pub(super) fn expect_effect(&mut self, record: &Maintenance, action: &Action, limits: &Limits, now: Timestamp) {
        let Some(lasts) = effect_lasts(action, &Reply::Unknown, limits) else { return };
        let root = record.spec.parent.clone().unwrap_or_else(|| record.uid.clone());
        let until = after(now, limits.call + lasts);
        let effects = &mut self.extension.effects;
        effects.retain(|effect| effect.until > now);
        // Of equal earlier calls, keep only the longest. Repeated attempts then do not grow the
        // list.
        let again = |effect: &PendingEffect| effect.by == record.uid && effect.action == *action;
        let longest = effects.iter().filter(|effect| again(effect)).max_by_key(|effect| effect.until).cloned();
        effects.retain(|effect| !again(effect));
        effects.extend(longest);
        effects.push(PendingEffect { root, by: record.uid.clone(), action: action.clone(), at: now, until });
    }

    /// Stores a reply to the record's last call.
    pub(super) fn reply_to_effect(
        &mut self,
        uid: &Uid,
        action: &Action,
        reply: &Reply,
        limits: &Limits,
        now: Timestamp,
    ) {
        let is_it = |effect: &PendingEffect| effect.by == *uid && effect.action == *action;
        let Some(last) = self.extension.effects.iter().rposition(is_it) else { return };
        match effect_lasts(action, reply, limits) {
            Some(lasts) => self.extension.effects[last].until = after(now, lasts),
            None => drop(self.extension.effects.remove(last)),
        }
    }

    /// Removes a step's calls after their effects were observed or superseded.
    pub(super) fn settle_effects(&mut self, uid: &Uid, attempts: &[Attempt]) {
        self.extension.effects.retain(|effect| effect.by != *uid || !effect.is_of(attempts));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{machine::BootOverride, model::verdict::Verdict, power::pursue};

    #[test]
    fn a_call_whose_effect_a_step_waits_for_may_change_the_server_as_long_when_the_step_is_left() {
        let limits = Limits::default();
        let (slot, image) = ("/Cd".to_owned(), "http://images.example/a.iso".to_owned());
        let set = Action::SetBoot { wanted: BootOverride::default(), clear_http_boot_uri: false };
        let calls = [
            (Action::Reset(ResetType::On), limits.power_change),
            (Action::Reset(ResetType::ForceOff), limits.power_change),
            (Action::Reset(ResetType::GracefulShutdown), limits.graceful_shutdown),
            (set, limits.settle),
            (Action::Insert { slot: slot.clone().into(), image: image.into(), write_protected: true }, limits.media),
            (Action::Eject { slot: slot.into() }, limits.media),
        ];
        let at = Timestamp::UNIX_EPOCH;
        let answered = after(at, Duration::from_secs(40));
        for (action, within) in calls {
            for reply in [Reply::Accepted, Reply::Unknown] {
                let attempt = |at, answered| Attempt {
                    reply: reply.clone(),
                    answered: Some(answered),
                    ..Attempt::intended(action.clone(), at)
                };
                let mut attempts = vec![attempt(at, answered)];
                // A call toward one state is sent a second time. Both are observed until the limit.
                if matches!(action, Action::Reset(ResetType::On | ResetType::ForceOff) | Action::SetBoot { .. }) {
                    let half = after(answered, within / 2);
                    assert_eq!(pursue(action.clone(), &attempts, within, &limits, half), Verdict::Act(action.clone()));
                    attempts.push(attempt(half, half));
                }
                let until = after(answered, within);
                let judged = |now| pursue(action.clone(), &attempts, within, &limits, now);
                assert!(matches!(judged(after(until, Duration::ZERO)), Verdict::Fail(_) | Verdict::Act(_)), "{action}");
                let before = judged(until - Duration::from_secs(1));
                assert!(
                    matches!(before, Verdict::Wait { until: Some(ends), .. } if ends == until),
                    "{action}: {before:?}"
                );
                assert_eq!(effect_lasts(&action, &reply, &limits), Some(within), "{action} {reply:?}");
            }
        }
    }
}
