//! Requests of one plan that never apply together.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::maintenance::ids::{LockKey, MaintenanceId};

/// A request in the same plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedName {
    /// Its name; `None`: unknown at plan.
    pub id: Option<MaintenanceId>,
    /// The server's name in the configuration.
    pub server: String,
}

/// A maintenance that keeps its server after create.
#[derive(Clone, Debug)]
pub struct Lasting {
    /// Its name.
    pub name: PlannedName,
    /// Whether it already has the server.
    pub holds: bool,
    /// After how long it is overdue.
    pub expires_after: Option<Duration>,
    /// How long its create waits.
    pub patience: Option<Duration>,
}

impl Lasting {
    /// Whether one becomes overdue during the other's wait.
    fn ends_for(&self, other: &Self) -> bool {
        let within = |ends: &Self, waits: &Self| {
            ends.expires_after.zip(waits.patience).is_some_and(|(expires, patience)| expires <= patience)
        };
        within(self, other) || within(other, self)
    }
}

/// A request that needs the server briefly.
#[derive(Clone, Debug)]
struct Turn {
    name: PlannedName,
    /// When its review ended; `None`: still running.
    ended: Option<u64>,
}

#[derive(Debug, Default)]
struct OfMachine {
    lasting: Vec<Lasting>,
    turns: Vec<Turn>,
}

/// Requests in one plan. A counter orders their reviews.
#[derive(Debug, Default)]
pub struct PlannedRequests {
    machines: Mutex<(u64, HashMap<LockKey, OfMachine>)>,
}

impl PlannedRequests {
    /// Begins a review.
    #[must_use]
    pub fn begin(&self) -> u64 {
        let mut machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        machines.0 += 1;
        machines.0
    }

    /// Notes a maintenance that keeps its server, reviewed since `begun`. Returns a request that
    /// never applies together with it.
    ///
    /// A turn can come first if its review ended earlier: hosts plan dependents later.
    pub fn add_lasting(&self, key: &LockKey, lasting: Lasting, begun: u64) -> Option<PlannedName> {
        let mut machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        let of = machines.1.entry(key.clone()).or_default();
        of.lasting.retain(|other| other.name != lasting.name);
        let other = of.lasting.iter().find(|other| !other.ends_for(&lasting)).map(|other| other.name.clone());
        let first = |turn: &&Turn| lasting.holds || turn.ended.is_none_or(|ended| ended > begun);
        let found = other.or_else(|| of.turns.iter().find(first).map(|turn| turn.name.clone()));
        of.lasting.push(lasting);
        found
    }

    /// Notes a request. Returns the maintenance that refuses it.
    pub fn add_turn(&self, key: &LockKey, name: PlannedName) -> Option<PlannedName> {
        let mut machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        let of = machines.1.entry(key.clone()).or_default();
        of.turns.retain(|other| other.name != name);
        of.turns.push(Turn { name, ended: None });
        of.lasting.first().map(|lasting| lasting.name.clone())
    }

    /// Ends a review.
    pub fn end_turn(&self, key: &LockKey, name: &PlannedName) {
        let now = self.begin();
        let mut machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of) = machines.1.get_mut(key) {
            of.turns.iter_mut().filter(|turn| turn.name == *name).for_each(|turn| turn.ended = Some(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(id: &str) -> PlannedName {
        PlannedName { id: MaintenanceId::new("ops", id).ok(), server: "node1".to_owned() }
    }

    fn lasting(id: &str) -> Lasting {
        let patience = Some(Duration::from_hours(1));
        Lasting { name: name(id), holds: false, expires_after: None, patience }
    }

    #[test]
    fn two_lasting_maintenances_clash_unless_one_expires_in_time() {
        let key = LockKey::new("k");
        for (expires, clash) in [(None, true), (Some(2), true), (Some(1), false)] {
            let (plan, expires_after) = (PlannedRequests::default(), expires.map(Duration::from_hours));
            assert_eq!(plan.add_lasting(&key, Lasting { expires_after, ..lasting("a") }, plan.begin()), None);
            let found = plan.add_lasting(&key, lasting("b"), plan.begin());
            assert_eq!(found, clash.then(|| name("a")), "{expires:?}");
            assert_eq!(plan.add_lasting(&LockKey::new("other"), lasting("c"), plan.begin()), None);
        }
        // A replacement is reviewed twice.
        let plan = PlannedRequests::default();
        assert_eq!([plan.add_lasting(&key, lasting("a"), 1), plan.add_lasting(&key, lasting("a"), 2)], [None, None]);
    }

    #[test]
    fn a_turn_applies_before_a_dependent_maintenance() {
        let key = LockKey::new("k");
        let plan = PlannedRequests::default();
        assert_eq!(plan.add_turn(&key, name("op")), None);
        plan.end_turn(&key, &name("op"));
        assert_eq!(plan.add_lasting(&key, lasting("a"), plan.begin()), None);
        // Both reviews overlap, or the maintenance comes first.
        let plan = PlannedRequests::default();
        let begun = plan.begin();
        assert_eq!(plan.add_turn(&key, name("op")), None);
        plan.end_turn(&key, &name("op"));
        assert_eq!(plan.add_lasting(&key, lasting("a"), begun), Some(name("op")));
        assert_eq!(plan.add_turn(&key, name("op2")), Some(name("a")));
        // A current holder refuses the turn in any order.
        let plan = PlannedRequests::default();
        plan.add_turn(&key, name("op"));
        plan.end_turn(&key, &name("op"));
        let holds = Lasting { holds: true, ..lasting("a") };
        assert_eq!(plan.add_lasting(&key, holds, plan.begin()), Some(name("op")));
    }
}
