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
    /// Stops that were longer than a lease.
    pub outlasted: usize,
    /// Steps of the clock on the wall.
    pub steps: usize,
    /// Attempts that ended because the store had lost what they saw.
    pub noticed: usize,
    /// Maintenances that waited for an inspection after the store went back.
    pub marked: usize,
    /// Servers that a person mended by hand then.
    pub mended: usize,
    /// Holds whose end the store lost.
    pub undone: usize,
    /// Holds in the middle of their work that the store lost.
    pub lost: usize,
    /// Holds that were over and that the store believed to be active.
    pub reopened: usize,
    /// Processes that see no other one.
    pub hidden: usize,
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

impl Tally {
    /// Whether enough happened for the run to say something.
    pub fn is_telling(&self) -> bool {
        self.done > 0 && self.kills > 0 && self.outlasted > 0
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (said, times) in &self.said {
            writeln!(f, "{times:>6} × {said}")?;
        }
        write!(
            f,
            "holds done {}, kills {}, stops {} ({} past the lease, {} ambushed, {} replaced, {} overtaken), retries {}, strikes {}, \
             wall steps {}, mutations {}, hand-overs {}, seconds {:.1}",
            self.done,
            self.kills,
            self.stops,
            self.outlasted,
            self.ambushed,
            self.replaced,
            self.overtaken,
            self.retries,
            self.strikes,
            self.steps,
            self.mutations,
            self.hand_overs,
            self.seconds
        )?;
        let special = [
            ("noticed that the store went back", self.noticed),
            ("marked for inspection", self.marked),
            ("servers mended by hand", self.mended),
            ("holds whose end was lost", self.undone),
            ("holds that were lost whole", self.lost),
            ("holds that it believed to be active", self.reopened),
            ("processes that see no other", self.hidden),
        ];
        special.iter().filter(|(_, times)| *times > 0).try_for_each(|(what, times)| write!(f, ", {what} {times}"))
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
