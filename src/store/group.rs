//! Transitions of one process on one lock share a commit.
//!
//! A thousand waiters of one server would write its lock a thousand times, each write against all the others. So the
//! first transition of a process leads: it loads the lock, applies its own transition and those that queued behind it
//! meanwhile, one after the other in the order of their arrival, and writes the result with one conditional commit.
//! Each gets its own result:
//!
//! - A refused transition is left out, and those after it are applied again without it. Its refusal is returned once
//!   the others are committed: it may rest on what they changed.
//! - A commit that the store rejects for what is in it (a taken name, a size) is made again with half of the group,
//!   down to one.
//! - A commit of unknown outcome is resolved for the whole group: the same content is sent again under another name
//!   until the lock shows one of the names or has moved on.
//! - Where this process wrote the lock last and is alone at it, it is not loaded first (see [`recall`](super::recall)).
//! - The task of any member may end at any time. A transition runs in its own task, so one that ended is left out. When
//!   the leader ends, the next member takes over, with a commit of unknown outcome if one is under way.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::{
    StoreError, Transition,
    optimistic::{Change, Commits, Conditional, Loaded, look},
    views::{Known, Stored},
};
use crate::{
    clock::{Clock, within},
    maintenance::{
        ids::LockKey,
        lock::{AuditEvent, Leases, Refusal, ServerLock},
        state::Maintenance,
    },
};

/// How long a change is tried again whose writing gets no reply, while reading does.
const GIVE_UP: Duration = Duration::from_secs(30);

/// The first pause after a lost race; later ones grow to the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// How long the leader waits for the task of another member to apply its transition. One that is alive but not polled
/// goes to the end of the line instead of holding up the rest.
const UNRESPONSIVE: Duration = Duration::from_secs(2);

/// A lock as a group changes it.
struct Draft {
    lock: ServerLock,
    leases: Arc<Leases>,
    now: Timestamp,
}

/// What the leader tells another member.
#[allow(clippy::large_enum_variant, reason = "few of them exist at a time")]
enum Message {
    /// Apply the transition and return the draft.
    Apply(Box<Draft>, oneshot::Sender<(Box<Draft>, Result<(), Refusal>)>),
    /// Take over from a leader that is done or gone.
    Lead(Leading),
    /// The result of the transition.
    Done(Result<Option<Stored>, StoreError>),
}

/// One transition of a group, as the leader sees it.
#[derive(Debug)]
struct Member {
    tell: mpsc::UnboundedSender<Message>,
    refused: Option<Refusal>,
}

/// The transitions of this process on one lock that wait for a leader.
#[derive(Debug, Default)]
pub(super) struct Line(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    led: bool,
    members: VecDeque<Member>,
}

#[allow(clippy::large_enum_variant, reason = "few of them exist at a time")]
enum Entry {
    Lead(Leading),
    Wait(mpsc::UnboundedReceiver<Message>),
}

impl Line {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(this: &Arc<Self>) -> Entry {
        let mut waiting = this.waiting();
        if !std::mem::replace(&mut waiting.led, true) {
            return Entry::Lead(Leading { line: Arc::clone(this), round: Some(Round::default()) });
        }
        let (tell, told) = mpsc::unbounded_channel();
        waiting.members.push_back(Member { tell, refused: None });
        Entry::Wait(told)
    }
}

/// What one leader has gathered.
#[derive(Debug, Default)]
struct Round {
    /// Everyone but the leader, in the order of arrival.
    members: Vec<Member>,
    /// Why the leader's own transition was refused.
    refused: Option<Refusal>,
    /// Commits of unknown outcome, all of the same content.
    open: Option<Open>,
    /// The largest group that may still succeed, after a larger one was rejected.
    limit: Option<usize>,
}

impl Round {
    /// Whether a transition was refused.
    fn refuses(&self) -> bool {
        self.refused.is_some() || self.members.iter().any(|member| member.refused.is_some())
    }
}

/// Commits without a reply, all of one content and from one revision.
#[derive(Debug)]
struct Open {
    names: Vec<String>,
    revision: i64,
    commits: Arc<Commits>,
    since: Duration,
    /// What is said if it stays unknown.
    error: StoreError,
    content: Arc<Content>,
}

/// What a group writes.
#[derive(Debug)]
struct Content {
    after: ServerLock,
    finished: Vec<Maintenance>,
    events: Vec<AuditEvent>,
}

/// The right to write one lock in this process. It is passed on when this is dropped, wherever the leader was.
#[derive(Debug)]
struct Leading {
    line: Arc<Line>,
    round: Option<Round>,
}

impl Drop for Leading {
    fn drop(&mut self) {
        let Some(mut round) = self.round.take() else { return };
        loop {
            let next = if round.members.is_empty() {
                // The group has ended: the outcome of its open commit concerns no task any more.
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
    fn round(&mut self) -> &mut Round {
        self.round.get_or_insert_default()
    }

    /// Admits waiting transitions, up to a group of `most`.
    fn let_in(&mut self, most: usize) {
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

    /// Sends the later half back to the front of the line.
    fn halve(&mut self) {
        let line = Arc::clone(&self.line);
        let round = self.round();
        let keep = round.members.len().div_ceil(2);
        round.limit = Some(keep);
        let mut waiting = line.waiting();
        for member in round.members.drain(keep - 1..).rev() {
            waiting.members.push_front(member);
        }
    }

    /// Ends the round: what was applied is stored.
    fn done(mut self, stored: Option<&Stored>) -> Result<Option<Stored>, StoreError> {
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

    /// Ends the round: nothing is known to be stored.
    fn failed(mut self, error: StoreError) -> Result<Option<Stored>, StoreError> {
        for member in self.round().members.drain(..) {
            let _ = member.tell.send(Message::Done(Err(error.clone())));
        }
        Err(error)
    }

    /// Applies every transition of the group to the loaded lock, one after the other.
    async fn apply(
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
                    // Its task has ended.
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

/// Applies a transition, alone or together with others of this process. Returns what is stored then, or `None` when it
/// changed nothing.
pub(super) async fn transact(
    store: &dyn Conditional,
    clock: &dyn Clock,
    known: &Known,
    key: &LockKey,
    transition: &mut Transition<'_>,
) -> Result<Option<Stored>, StoreError> {
    let leading = 'enter: loop {
        let mut told = match Line::enter(known.line()) {
            Entry::Lead(leading) => break leading,
            Entry::Wait(told) => told,
        };
        loop {
            match told.recv().await {
                Some(Message::Apply(mut draft, back)) => {
                    let Draft { lock, leases, now } = &mut *draft;
                    let said = transition(lock, leases, *now);
                    let _ = back.send((draft, said));
                }
                Some(Message::Lead(leading)) => break 'enter leading,
                Some(Message::Done(result)) => return result,
                None => continue 'enter,
            }
        }
    };
    lead(store, clock, known, key, transition, leading).await
}

async fn lead(
    store: &dyn Conditional,
    clock: &dyn Clock,
    known: &Known,
    key: &LockKey,
    own: &mut Transition<'_>,
    mut leading: Leading,
) -> Result<Option<Stored>, StoreError> {
    let mut pause = PAUSE.0;
    let inherited = leading.round().open.is_some();
    let mut own_memory = known.own(clock.monotonic()).filter(|_| !inherited);
    loop {
        let recalled = match own_memory.take() {
            Some(own) => store.recall(&own).await,
            None => None,
        };
        let from_memory = recalled.is_some();
        let Loaded { stored, leases, now } = match recalled {
            Some(loaded) => loaded,
            None => match look(store, known, key).await {
                Ok(loaded) => loaded,
                Err(error) => return leading.failed(error),
            },
        };
        let commits = Arc::clone(&stored.commits);
        if let Some(open) = &leading.round().open {
            if commits.contain(&open.names) {
                // The reply was lost, not the commit.
                return leading.done(Some(&stored));
            }
            let unknown = open.error.clone();
            if stored.revision != open.revision {
                // So many others wrote that ours may be among those that are forgotten: made again, it might be twice.
                if !commits.reach(&open.commits) {
                    return leading.failed(unknown);
                }
                // Another process was first. Ours fails its condition, now or when it arrives.
                leading.round().open = None;
            } else if *commits != *open.commits || clock.monotonic().saturating_sub(open.since) > GIVE_UP {
                // Also a store that went back to this revision by another way: the content belongs to what was lost.
                return leading.failed(unknown);
            }
        }
        let sent = leading.round().open.as_ref().map(|open| Arc::clone(&open.content));
        let content = if let Some(content) = sent {
            // What members were told belongs to this content and to no other.
            content
        } else {
            leading.let_in(store.together());
            let Draft { lock: mut after, .. } = leading.apply(own, &stored, &Arc::new(leases), now).await;
            let finished = std::mem::take(&mut after.finished);
            let events = std::mem::take(&mut after.events);
            let nothing = after == *stored.lock && finished.is_empty() && events.is_empty();
            if from_memory && (nothing || leading.round().refuses()) {
                continue;
            }
            if nothing {
                return leading.done(None);
            }
            Arc::new(Content { after, finished, events })
        };
        let name = Uuid::new_v4().simple().to_string();
        let first = leading.round().open.is_none();
        // Noted before it is sent: this task may end while it is under way.
        let open = leading.round().open.get_or_insert_with(|| Open {
            names: Vec::new(),
            revision: stored.revision,
            commits,
            since: clock.monotonic(),
            error: store.unanswered(),
            content: Arc::clone(&content),
        });
        open.names.push(name.clone());
        let unknown = open.error.clone();
        let change = Change::new(&stored, &content.after, &content.finished, &content.events, &name);
        let committed = store.commit(&change).await;
        drop(change);
        if let Err(error @ StoreError::Unavailable { .. }) = committed {
            // Whether it was written is seen in what is read next; a late arrival fails its condition.
            tracing::debug!(%error, %key, "a commit without a reply");
            if let Some(open) = &mut leading.round().open {
                open.error = error;
            }
        } else {
            // This one is known not to be under way any more.
            let round = leading.round();
            if first {
                round.open = None;
            } else if let Some(open) = &mut round.open {
                open.names.pop();
            }
            match committed {
                Ok(Some(written)) => {
                    let after = match Arc::try_unwrap(content) {
                        Ok(content) => content.after,
                        Err(shared) => shared.after.clone(),
                    };
                    let stored = stored.after(written, after, &name);
                    known.wrote(&stored, clock.monotonic());
                    return leading.done(Some(&stored));
                }
                // What was remembered was not what is stored, or an error may rest on that.
                Ok(None) | Err(_) if from_memory => continue,
                Ok(None) => {}
                Err(_) if first && !leading.round().members.is_empty() => {
                    leading.halve();
                    continue;
                }
                // The content of an earlier leader, or of several: which of them is to blame is not known any more.
                Err(_) if !first && (inherited || !leading.round().members.is_empty()) => {
                    return leading.failed(unknown);
                }
                Err(error) => return leading.failed(error),
            }
        }
        clock.sleep(jittered(pause)).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Between nothing and `pause`, so that racers part.
fn jittered(pause: Duration) -> Duration {
    let share = f64::from(Uuid::new_v4().as_fields().0) / f64::from(u32::MAX);
    pause.mul_f64(share)
}

#[cfg(test)]
mod tests;
