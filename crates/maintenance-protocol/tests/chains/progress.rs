//! Checks that every state leads to an end. Finds runs that wait forever and runs that loop.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex},
};

use crate::world::{Event, World};

#[derive(Default)]
struct Seen {
    /// Predecessors of each state, with their events.
    before: HashMap<u64, Vec<(u64, Event)>>,
    ends: HashSet<u64>,
}

/// Records which state follows which.
#[derive(Clone, Default)]
pub struct Progress(Arc<Mutex<Seen>>);

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

impl Progress {
    pub fn note(&self, world: &World, event: Event, next: &World) {
        let mut seen = self.0.lock().unwrap();
        seen.before.entry(next.mark).or_default().push((world.mark, event));
        if next.is_over() || next.wrong.is_some() {
            seen.ends.insert(next.mark);
        }
    }

    /// Returns events that lead to a state without any reachable end.
    pub fn without_end(&self, first: &World) -> Option<Vec<Event>> {
        let seen = self.0.lock().unwrap();
        let mut leads: HashSet<u64> = seen.ends.clone();
        let mut open: Vec<u64> = leads.iter().copied().collect();
        while let Some(mark) = open.pop() {
            for (before, _) in seen.before.get(&mark).into_iter().flatten() {
                if leads.insert(*before) {
                    open.push(*before);
                }
            }
        }
        let lost = seen.before.keys().filter(|mark| !leads.contains(mark));
        { lost }.map(|mark| Self::path(&seen, first.mark, *mark)).min_by_key(Vec::len)
    }

    fn path(seen: &Seen, first: u64, to: u64) -> Vec<Event> {
        let mut after: HashMap<u64, (u64, Event)> = HashMap::new();
        let mut round = vec![to];
        while !round.is_empty() && !after.contains_key(&first) {
            let mut next = Vec::new();
            for mark in round {
                for (before, event) in seen.before.get(&mark).into_iter().flatten() {
                    if !after.contains_key(before) {
                        after.insert(*before, (mark, *event));
                        next.push(*before);
                    }
                }
            }
            round = next;
        }
        let (mut events, mut at) = (Vec::new(), first);
        while at != to
            && let Some((next, event)) = after.get(&at)
        {
            events.push(*event);
            at = *next;
        }
        events
    }
}
