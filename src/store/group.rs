//! Transitions of one process on one lock share a commit.
//!
//! A thousand waiters of one server would write its lock a thousand times, each write against all
//! the others. So the first transition of a process leads: it loads the lock, applies its own
//! transition and those that queued behind it meanwhile, one after the other in the order of their
//! arrival, and writes the result with one conditional commit. Each gets its own result:
//!
//! - A refused transition is left out, and those after it are applied again without it. Its refusal
//!   is returned once the others are committed: it may rest on what they changed.
//! - A commit that the store rejects for what is in it (a taken name, a size) is made again with
//!   half of the group, down to one.
//! - A commit of unknown outcome is resolved for the whole group: the same content is sent again
//!   under another name until the lock shows one of the names or has moved on.
//! - Where this process wrote the lock last and is alone at it, it is not loaded first (see
//!   [`recall`](super::recall)).
//! - The task of any member may end at any time. A transition runs in its own task, so one that
//!   ended is left out. When the leader ends, the next member takes over, with a commit of unknown
//!   outcome if one is under way.

mod line;

use std::{sync::Arc, time::Duration};

use uuid::Uuid;

pub(super) use self::line::WaitingTransitions;
use self::line::{Content, Draft, Entry, Leading, Message, Open};
use super::{
    StoreError, Transition,
    optimistic::{CommitDelta, Conditional, Loaded, look},
    views::{CachedLock, Stored},
};
use crate::{clock::Clock, maintenance::ids::LockKey};

/// How long a change is repeated whose writes get no reply, while reads do: the same limit as for
/// reads.
const GIVE_UP: Duration = Duration::from_secs(10);

/// The first pause after a lost race; later ones grow to the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// Applies a transition, alone or together with others of this process. Returns what is stored
/// then, or `None` when it changed nothing.
pub(super) async fn transact(
    store: &dyn Conditional,
    clock: &dyn Clock,
    known: &CachedLock,
    key: &LockKey,
    transition: &mut Transition<'_>,
) -> Result<Option<Stored>, StoreError> {
    let leading = 'enter: loop {
        let mut told = match WaitingTransitions::enter(known.line()) {
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

/// What became of a commit without a reply.
enum Fate {
    /// The reply was lost, not the commit.
    Made,
    /// Another process was first. Ours fails its condition, now or when it arrives.
    Overtaken,
    /// It may still arrive.
    Open,
    /// It cannot be known any more.
    Unknown,
}

fn fate(open: &Open, stored: &Stored, clock: &dyn Clock) -> Fate {
    let commits = &stored.commits;
    if commits.contain(&open.names) {
        return Fate::Made;
    }
    if stored.revision != open.revision {
        // So many others may have written that ours is among those that are forgotten: made again,
        // it might be twice.
        return if commits.reach(&open.commits) { Fate::Overtaken } else { Fate::Unknown };
    }
    // Also a store that went back to this revision by another way: the content belongs to what was
    // lost.
    let other = **commits != *open.commits || clock.monotonic().saturating_sub(open.since) > GIVE_UP;
    if other { Fate::Unknown } else { Fate::Open }
}

async fn lead(
    store: &dyn Conditional,
    clock: &dyn Clock,
    known: &CachedLock,
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
            let unknown = open.error.clone();
            match fate(open, &stored, clock) {
                Fate::Made => return leading.done(Some(&stored)),
                Fate::Unknown => return leading.failed(unknown),
                Fate::Overtaken => leading.round().open = None,
                Fate::Open => {}
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
        let change = CommitDelta::new(&stored, &content.after, &content.finished, &content.events, &name);
        let committed = store.commit(&change).await;
        drop(change);
        if let Err(error @ StoreError::Unavailable { .. }) = committed {
            // Whether it was written is seen in what is read next; a late arrival fails its
            // condition.
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
                    let stored = stored.after(&written, after, &name);
                    known.wrote(&stored, clock.monotonic());
                    return leading.done(Some(&stored));
                }
                // What was remembered was not what is stored, or an error may rest on that.
                Ok(None) | Err(_) if from_memory => continue,
                Ok(None) => {}
                // No member is to blame, and none was stored.
                Err(StoreError::Unwritable { .. }) if !first => return leading.failed(unknown),
                Err(error @ StoreError::Unwritable { .. }) => return leading.failed(error),
                Err(_) if first && !leading.round().members.is_empty() => {
                    leading.halve();
                    continue;
                }
                // The content of an earlier leader, or of several: which of them is to blame is not
                // known any more.
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
