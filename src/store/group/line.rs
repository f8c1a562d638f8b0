//! The leader and group for a lock's transitions in this process.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};

use crate::{
    clock::within,
    maintenance::{
        lock::{AuditEvent, Leases, Refusal, ServerLock},
        state::Maintenance,
    },
    store::{StoreError, Transition, optimistic::Commits, views::Stored},
};

/// How long the leader waits for a member to apply its transition. A member that is alive but not
/// polled is queued again.
const UNRESPONSIVE: Duration = Duration::from_secs(2);

/// A lock being changed by a group.
pub(super) struct Draft {
    pub(super) lock: ServerLock,
    pub(super) leases: Arc<Leases>,
    pub(super) now: Timestamp,
}

/// A message from the leader to a member.
#[allow(clippy::large_enum_variant, reason = "few of them exist at a time")]
pub(super) enum Message {
    /// Apply the transition and return the draft.
    Apply(Box<Draft>, oneshot::Sender<(Box<Draft>, Result<(), Refusal>)>),
    /// Take over as leader.
    Lead(Leading),
    /// The transition's result.
    Done(Result<Option<Stored>, StoreError>),
}

/// A group member, from the leader's side.
#[derive(Debug)]
pub(super) struct Member {
    tell: mpsc::UnboundedSender<Message>,
    refused: Option<Refusal>,
}

/// A lock's transitions in this process that wait for a leader.
#[derive(Debug, Default)]
pub(in crate::store) struct WaitingTransitions(Mutex<Waiting>);

#[derive(Debug, Default)]
pub(super) struct Waiting {
    led: bool,
    members: VecDeque<Member>,
}

#[allow(clippy::large_enum_variant, reason = "few of them exist at a time")]
pub(super) enum Entry {
    Lead(Leading),
    Wait(mpsc::UnboundedReceiver<Message>),
}

impl WaitingTransitions {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(this: &Arc<Self>) -> Entry {
        let mut waiting = this.waiting();
        if !std::mem::replace(&mut waiting.led, true) {
            return Entry::Lead(Leading { line: Arc::clone(this), round: Some(Round::default()) });
        }
        let (tell, told) = mpsc::unbounded_channel();
        waiting.members.push_back(Member { tell, refused: None });
        Entry::Wait(told)
    }
}

/// One round's state.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Everyone but the leader, in arrival order.
    pub(super) members: Vec<Member>,
    /// Set if the leader's own transition was refused.
    pub(super) refused: Option<Refusal>,
    /// Commits with unknown outcome, all with the same content.
    pub(super) open: Option<Open>,
    /// The largest group to try, after a larger one was rejected.
    limit: Option<usize>,
}

impl Round {
    /// Returns true if a transition was refused.
    pub(super) fn refuses(&self) -> bool {
        self.refused.is_some() || self.members.iter().any(|member| member.refused.is_some())
    }
}

/// Commits without a reply, all with one content and from one revision.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) names: Vec<String>,
    pub(super) revision: i64,
    pub(super) commits: Arc<Commits>,
    pub(super) since: Duration,
    /// The error if the outcome stays unknown.
    pub(super) error: StoreError,
    pub(super) content: Arc<Content>,
}

/// A group commit's content.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) after: ServerLock,
    pub(super) finished: Vec<Maintenance>,
    pub(super) events: Vec<AuditEvent>,
}

/// The right to write one lock in this process. Dropping it passes it to the next member.
#[derive(Debug)]
pub(super) struct Leading {
    line: Arc<WaitingTransitions>,
    round: Option<Round>,
}

impl Drop for Leading {
    fn drop(&mut self) {
        let Some(mut round) = self.round.take() else { return };
        loop {
            let next = if round.members.is_empty() {
                // The group has ended, so its open commit is dropped.
                round = Round::default();
                let mut waiting = self.line.waiting();
                let Some(next) = waiting.members.pop_front() else {
                    waiting.led = false;
                    return;
                };
                next
            } else {
                round.members.remove(0)
            };
            round.refused = next.refused;
            let leading = Self { line: Arc::clone(&self.line), round: Some(round) };
            match next.tell.send(Message::Lead(leading)) {
                Err(mpsc::error::SendError(Message::Lead(mut back))) => {
                    round = back.round.take().unwrap_or_default();
                }
                Ok(()) | Err(_) => return,
            }
        }
    }
}

impl Leading {
    pub(super) fn round(&mut self) -> &mut Round {
        self.round.get_or_insert_default()
    }

    /// Admits waiting transitions, up to a group of `most`.
    pub(super) fn let_in(&mut self, most: usize) {
        let line = Arc::clone(&self.line);
        let round = self.round();
        let most = round.limit.unwrap_or(most).min(most).max(1) - 1;
        let mut waiting = line.waiting();
        while round.members.len() < most {
            let Some(member) = waiting.members.pop_front() else { break };
            if !member.tell.is_closed() {
                round.members.push(member);
            }
        }
    }

    /// Requeues the later half, ahead of other waiting transitions.
    pub(super) fn halve(&mut self) {
        let line = Arc::clone(&self.line);
        let round = self.round();
        let keep = round.members.len().div_ceil(2);
        round.limit = Some(keep);
        let mut waiting = line.waiting();
        for member in round.members.drain(keep - 1..).rev() {
            waiting.members.push_front(member);
        }
    }

    /// Ends the round: the group's changes are stored.
    pub(super) fn done(mut self, stored: Option<&Stored>) -> Result<Option<Stored>, StoreError> {
        let round = self.round();
        let result = |refused: Option<Refusal>| match refused {
            Some(refusal) => Err(StoreError::Refused(refusal)),
            None => Ok(stored.cloned()),
        };
        for member in round.members.drain(..) {
            let _ = member.tell.send(Message::Done(result(member.refused)));
        }
        result(round.refused.take())
    }

    /// Ends the round with an error for every member.
    pub(super) fn failed(mut self, error: StoreError) -> Result<Option<Stored>, StoreError> {
        for member in self.round().members.drain(..) {
            let _ = member.tell.send(Message::Done(Err(error.clone())));
        }
        Err(error)
    }

    /// Applies the group's transitions to the loaded lock, in order.
    pub(super) async fn apply(
        &mut self,
        own: &mut Transition<'_>,
        loaded: &Stored,
        leases: &Arc<Leases>,
        now: Timestamp,
    ) -> Draft {
        let line = Arc::clone(&self.line);
        let round = self.round();
        round.refused = None;
        round.members.iter_mut().for_each(|member| member.refused = None);
        'again: loop {
            let lock = (*loaded.lock).clone();
            let mut draft = Box::new(Draft { lock, leases: Arc::clone(leases), now });
            if round.refused.is_none()
                && let Err(refusal) = own(&mut draft.lock, &draft.leases, draft.now)
            {
                round.refused = Some(refusal);
                continue 'again;
            }
            let mut at = 0;
            while at < round.members.len() {
                if round.members[at].refused.is_some() {
                    at += 1;
                    continue;
                }
                let (back, answer) = oneshot::channel();
                if let Err(unsent) = round.members[at].tell.send(Message::Apply(draft, back)) {
                    round.members.remove(at);
                    let mpsc::error::SendError(Message::Apply(same, _)) = unsent else { continue 'again };
                    draft = same;
                    continue;
                }
                match within(UNRESPONSIVE, answer).await {
                    Some(Ok((changed, Ok(())))) => {
                        draft = changed;
                        at += 1;
                    }
                    Some(Ok((_, Err(refusal)))) => {
                        round.members[at].refused = Some(refusal);
                        continue 'again;
                    }
                    // The member's task has ended.
                    Some(Err(_)) => {
                        round.members.remove(at);
                        continue 'again;
                    }
                    None => {
                        let member = round.members.remove(at);
                        line.waiting().members.push_back(member);
                        continue 'again;
                    }
                }
            }
            return *draft;
        }
    }
}
