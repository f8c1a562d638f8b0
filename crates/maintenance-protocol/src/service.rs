//! Rules for services: work that the external system performs and completes on its own. The
//! provider starts a service once, observes it to its end, and never restarts it after an unknown
//! outcome.

pub use super::model::service::{ServiceSpec, ServiceState, ServiceStep, ServiceView};

use jiff::Timestamp;

use super::{
    change::RecordChange,
    model::{
        facts::Facts,
        finish::Finish,
        operation::OperationOutcome,
        shown_time::shown_time,
        verdict::{Limits, Need, Verdict, after},
    },
    situation::{Decision, DecisionInput, Goal, fails, perform},
    state::{Maintenance, Phase, Progress},
    step::{Action, Attempt, Reply, Step},
};

/// Maximum number of start attempts after temporary rejections.
const MOST_TRIES: usize = 20;

/// Returns the call that started the current service, or possibly started it.
#[must_use]
pub fn begun(progress: &Progress) -> Option<(&str, &Attempt)> {
    let last = progress.attempts.last().filter(|_| progress.step() == Some(Step::Service))?;
    match (&last.action, &last.reply) {
        (_, Reply::Refused { .. }) => None,
        (Action::BeginService { stamp }, _) => Some((stamp.raw(), last)),
        _ => None,
    }
}

/// Returns the stamp from before the service's start; `None` if no start was sent.
#[must_use]
pub fn stamp_before(record: &Maintenance) -> Option<String> {
    let Phase::Preparing(progress) = &record.phase else { return None };
    begun(progress).map(|(stamp, _)| stamp.to_owned())
}

/// Judges a service before its start.
#[must_use]
pub(super) fn begin(progress: &Progress, facts: &Facts, limits: &Limits, now: Timestamp) -> Verdict {
    if let Some(last) = progress.attempts.last()
        && let Reply::Refused { message, transient } = &last.reply
    {
        if !transient {
            return Verdict::Fail(message.to_string().into());
        }
        if progress.attempts.len() >= MOST_TRIES {
            return Verdict::Fail(format!("{message} (tried {} times)", progress.attempts.len()).into());
        }
        let until = after(last.answered_at(), limits.retry_pause);
        if now < until {
            return Verdict::Wait { why: format!("refused: {message}").into(), until: Some(until) };
        }
    }
    let Some(view) = &facts.service else { return Verdict::Look(Need::Service) };
    match &view.state {
        ServiceState::Ready => Verdict::Act(Action::BeginService { stamp: view.stamp.clone() }),
        ServiceState::Busy(why) => Verdict::Wait { why: format!("waiting for {why}").into(), until: None },
        ServiceState::Impossible(why) | ServiceState::Failed(why) => Verdict::Fail(why.to_string().into()),
        ServiceState::Running(why) | ServiceState::Other(why) => {
            Verdict::Wait { why: why.to_string().into(), until: None }
        }
        ServiceState::Idle { .. } => {
            Verdict::Wait { why: "the service's state does not show if it can start".into(), until: None }
        }
    }
}

/// Observes a service that was possibly started, until its end. Neither a time limit nor a closing
/// window or a release frees the server earlier. Returns `None` if no start was sent.
pub(super) fn under_way(at: &DecisionInput<'_>, record: &Maintenance, progress: &Progress) -> Option<Decision> {
    let (_, call) = begun(progress)?;
    let Some(view) = &at.facts.service else { return Some(Decision::Look(Need::Service)) };
    let releases = matches!(at.intent.goal, Goal::Release(_));
    let ended = |verdict: Verdict| match verdict {
        // The service ended and a release does not need its result.
        _ if releases => None,
        Verdict::Fail(cause) => Some(fails(record, format!("{}: {cause}", Step::Service))),
        verdict => Some(perform(at, "preparing", progress, Step::Service, verdict)),
    };
    match follow(call, &view.state, at.limits, at.now) {
        Next::Begun => Some(Decision::Change(RecordChange::Replied(Reply::Accepted))),
        Next::Over(verdict) => ended(verdict),
        Next::Wait(why, _) if at.intent.timed_out => {
            Some(Decision::Finished(Finish::TimedOut(format!("{}: {why}", progress.text()).into())))
        }
        Next::Wait(why, until) => {
            Some(perform(at, "preparing", progress, Step::Service, Verdict::Wait { why: why.into(), until }))
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// The service was observed running, which settles the call's unknown outcome.
    Begun,
    Wait(String, Option<Timestamp>),
    Over(Verdict),
}

fn follow(call: &Attempt, state: &ServiceState, limits: &Limits, now: Timestamp) -> Next {
    let accepted = call.reply == Reply::Accepted;
    let over = |outcome| Next::Over(Verdict::Concluded(outcome));
    // The request can still be in progress, or its effect not yet reported.
    let until = after(call.at, limits.call + limits.settle);
    match state {
        ServiceState::Running(_) if !accepted => Next::Begun,
        ServiceState::Running(doing) => Next::Wait(doing.to_string(), None),
        ServiceState::Failed(message) | ServiceState::Impossible(message) => {
            Next::Over(Verdict::Fail(message.to_string().into()))
        }
        ServiceState::Idle { ran: Some(true) } => over(OperationOutcome::Proven),
        ServiceState::Idle { ran: None } if accepted => over(OperationOutcome::Accepted),
        ServiceState::Idle { .. } | ServiceState::Ready | ServiceState::Busy(_) | ServiceState::Other(_)
            if now < until =>
        {
            let said = if accepted { "accepted" } else { "sent without a known outcome" };
            Next::Wait(format!("it was {said} at {}", shown_time(call.at)), Some(until))
        }
        // It was possibly performed, so it is not started again.
        _ => over(OperationOutcome::Unproven),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(reply: Option<Reply>) -> Progress {
        let at = Timestamp::UNIX_EPOCH;
        let mut progress = Progress::new(vec![Step::Service], at);
        let action = Action::BeginService { stamp: "t0".into() };
        progress.attempts.extend(reply.map(|reply| Attempt { reply, ..Attempt::intended(action, at) }));
        progress
    }

    fn facts(state: ServiceState) -> Facts {
        Facts { service: Some(Box::new(ServiceView { stamp: "t0".into(), state })), ..Facts::default() }
    }

    fn refused(transient: bool) -> Reply {
        Reply::Refused { message: "locked".into(), transient }
    }

    fn later(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn it_begins_once_the_server_is_ready_and_keeps_the_stamp() {
        let limits = Limits::default();
        let begin = |reply, state, now| begin(&progress(reply), &facts(state), &limits, now);
        let now = later(1);
        let begins = Verdict::Act(Action::BeginService { stamp: "t0".into() });
        assert_eq!(begin(None, ServiceState::Ready, now), begins);
        assert!(matches!(begin(None, ServiceState::Busy("x".into()), now), Verdict::Wait { .. }));
        assert!(matches!(begin(None, ServiceState::Impossible("x".into()), now), Verdict::Fail(_)));
        assert!(matches!(begin(Some(refused(true)), ServiceState::Ready, now), Verdict::Wait { .. }));
        assert_eq!(begin(Some(refused(true)), ServiceState::Ready, later(60)), begins);
        assert!(matches!(begin(Some(refused(false)), ServiceState::Ready, later(60)), Verdict::Fail(_)));
    }

    #[test]
    fn what_was_refused_was_not_begun() {
        assert!(begun(&progress(None)).is_none() && begun(&progress(Some(refused(true)))).is_none());
        assert!(begun(&progress(Some(Reply::Unknown))).is_some());
        assert!(begun(&progress(Some(Reply::Accepted))).is_some());
    }

    #[test]
    fn a_lost_reply_is_answered_by_what_is_seen_and_never_by_beginning_again() {
        let limits = Limits::default();
        let follow = |reply, state, now| {
            let progress = progress(Some(reply));
            follow(begun(&progress).unwrap().1, &state, &limits, now)
        };
        let over = |outcome| Next::Over(Verdict::Concluded(outcome));
        let soon = later(1);
        assert_eq!(follow(Reply::Unknown, ServiceState::Running("1 of 2".into()), soon), Next::Begun);
        assert!(matches!(
            follow(Reply::Accepted, ServiceState::Running("1 of 2".into()), later(90_000)),
            Next::Wait(..)
        ));
        for ran in [None, Some(false)] {
            assert!(matches!(follow(Reply::Unknown, ServiceState::Idle { ran }, soon), Next::Wait(..)));
            assert_eq!(
                follow(Reply::Unknown, ServiceState::Idle { ran }, later(600)),
                over(OperationOutcome::Unproven)
            );
        }
        assert_eq!(follow(Reply::Unknown, ServiceState::Ready, later(600)), over(OperationOutcome::Unproven));
        assert_eq!(
            follow(Reply::Unknown, ServiceState::Other("x".into()), later(600)),
            over(OperationOutcome::Unproven)
        );
        assert_eq!(
            follow(Reply::Unknown, ServiceState::Idle { ran: Some(true) }, soon),
            over(OperationOutcome::Proven)
        );
        assert_eq!(
            follow(Reply::Accepted, ServiceState::Idle { ran: Some(true) }, soon),
            over(OperationOutcome::Proven)
        );
        assert_eq!(follow(Reply::Accepted, ServiceState::Idle { ran: None }, soon), over(OperationOutcome::Accepted));
        let failed = follow(Reply::Accepted, ServiceState::Failed("no image".into()), soon);
        assert_eq!(failed, Next::Over(Verdict::Fail("no image".into())));
    }
}
