//! Releases that start in the middle of other work: with unfinished calls, or with orphaned work
//! under the lock.

use super::{
    change::RecordChange,
    machine::{PowerState, ResetType},
    model::{
        effects::PendingEffect,
        shown_time::shown_time,
        verdict::{Need, Verdict},
    },
    situation::{Decision, DecisionInput},
    state::{Ending, Maintenance, Phase, Progress},
    step::{Action, Step},
};

/// Ends work under a lock together with the holder's release, which restores everything. While a
/// process drives the holder, the work waits for that process instead.
pub(super) fn ends_with_hold(at: &DecisionInput<'_>, record: &Maintenance) -> Option<Decision> {
    let hold = at.lock.get(record.spec.parent.as_ref()?)?;
    let driven = hold.attachment.as_ref().is_some_and(|a| at.leases.alive(a, at.now));
    if driven || !matches!(hold.phase, Phase::Releasing { .. }) {
        return None;
    }
    let ending = Ending::CompletedBy(format!("the release of {}", hold.id).into());
    Some(Decision::Change(RecordChange::Finish(Phase::Completed { at: at.now, ending })))
}

/// Waits for earlier calls that can still change the server. A step is not done before an earlier
/// shutdown takes effect.
///
/// A step that must send a call continues, because its result is observed before the step
/// completes.
pub(super) fn outlast_calls(
    at: &DecisionInput<'_>,
    record: &Maintenance,
    progress: &Progress,
    verdict: &Verdict,
) -> Option<Decision> {
    let looks = matches!(
        progress.step(),
        Some(Step::SwitchOff | Step::ApplyPower | Step::StopForRestore | Step::RestorePower | Step::Verify)
    );
    if !looks || *verdict != Verdict::Done {
        return None;
    }
    let pending = at.lock.own_effects(record, at.now);
    if pending.is_empty() {
        return None;
    }
    let Some(machine) = &at.facts.machine else { return Some(Decision::Look(Need::Machine)) };
    // If two calls change the same state, the observation can be either call's effect, and the
    // other can still arrive.
    let alone = |effect: &PendingEffect| pending.iter().filter(|other| other.meets(effect)).count() == 1;
    let media = at.facts.media.as_deref();
    // A step restarts only a Paused server, so `On` proves that the restart took effect.
    let started = |effect: &PendingEffect| {
        effect.is_of(&progress.attempts)
            && effect.action == Action::Reset(ResetType::ForceRestart)
            && machine.power == PowerState::On
    };
    let (settled, open): (Vec<&PendingEffect>, Vec<_>) =
        pending.iter().partition(|effect| alone(effect) && (effect.is_settled_by(machine, media) || started(effect)));
    let settled: Vec<_> = settled.into_iter().filter(|effect| !effect.is_of(&progress.attempts)).cloned().collect();
    if !settled.is_empty() {
        return Some(Decision::Change(RecordChange::Settled(settled)));
    }
    let last = open.iter().max_by_key(|effect| effect.until)?;
    Some(Decision::Wait {
        reason: format!(
            "{}: {} was sent at {} and can still take effect until {}",
            progress.text(),
            last.action,
            shown_time(last.at),
            shown_time(last.until)
        ),
        poll: true,
        wake: Some(last.until),
    })
}
