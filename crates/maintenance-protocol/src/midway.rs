//! What a release meets that began in the middle of something: calls that were sent, and what acts
//! under a hold that was left.

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

/// What acts under a hold that is being released ends as part of that: the release restores all of
/// it. Not while a process drives the hold: then its end is waited for.
pub(super) fn ends_with_hold(at: &DecisionInput<'_>, record: &Maintenance) -> Option<Decision> {
    let hold = at.lock.get(record.spec.parent.as_ref()?)?;
    let driven = hold.attachment.as_ref().is_some_and(|a| at.leases.alive(a, at.now));
    if driven || !matches!(hold.phase, Phase::Releasing { .. }) {
        return None;
    }
    let ending = Ending::CompletedBy(format!("the release of {}", hold.id));
    Some(Decision::Change(RecordChange::Finish(Phase::Completed { at: at.now, ending })))
}

/// Waits for what was sent before the step under way, and may still change the server: a step that
/// is done before an earlier shutdown takes effect is not done.
///
/// A step that has to call goes on: what it calls brings the server to where it shall be, and is
/// looked at before it is done.
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
    // Of two in one place, what is seen may be the effect of either, and the other one may still
    // come.
    let alone = |effect: &PendingEffect| pending.iter().filter(|other| other.meets(effect)).count() == 1;
    let media = at.facts.media.as_deref();
    // A step restarts only a server that is Paused: once it is on, the restart has taken effect.
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
            "{}: {} was sent at {} and may still take effect until {}",
            progress.text(),
            last.action,
            shown_time(last.at),
            shown_time(last.until)
        ),
        poll: true,
        wake: Some(last.until),
    })
}
