//! What happened in a run, in numbers.

use std::{collections::BTreeMap, fmt};

use crate::checker::Course;

/// What happened, in numbers.
#[derive(Debug, Default)]
pub struct Tally {
    pub done: usize,
    pub kills: usize,
    pub stops: usize,
    /// Stops between the look and the change that follows it.
    pub ambushed: usize,
    /// Attempts that were begun while an earlier one was stopped.
    pub replaced: usize,
    /// Those that went on in the middle of what the later attempt did.
    pub overtaken: usize,
    /// Attempts after the first, for whatever reason.
    pub retries: usize,
    /// Strikes at what stands between.
    pub strikes: usize,
    pub mutations: usize,
    /// Machines that went from one hold to the next.
    pub hand_overs: usize,
    pub seconds: f64,
    /// How holds ended and why attempts did not go on.
    pub said: BTreeMap<String, usize>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (said, times) in &self.said {
            writeln!(f, "{times:>6} × {said}")?;
        }
        write!(
            f,
            "holds done {}, kills {}, stops {} ({} ambushed, {} replaced, {} overtaken), retries {}, strikes {}, mutations {}, hand-overs {}, \
             seconds {:.1}",
            self.done,
            self.kills,
            self.stops,
            self.ambushed,
            self.replaced,
            self.overtaken,
            self.retries,
            self.strikes,
            self.mutations,
            self.hand_overs,
            self.seconds
        )
    }
}

/// How often a machine went from one hold to another.
pub fn hand_overs(course: &Course) -> usize {
    let mut last: BTreeMap<&str, &str> = BTreeMap::new();
    course
        .lines
        .iter()
        .filter(|line| {
            let hold = line.account.split('.').next().unwrap_or_default();
            last.insert(&line.system, hold).is_some_and(|before| before != hold)
        })
        .count()
}

/// The beginning of what somebody said, without the names in it: equal causes are counted together.
pub fn shortened(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_ascii_digit()).collect();
    plain.chars().take(110).collect()
}
