//! Counts a run's events.

use std::{collections::BTreeMap, fmt};

use crate::checker::Course;

/// Event counts of a run.
#[derive(Debug, Default)]
pub struct Tally {
    pub done: usize,
    pub kills: usize,
    pub stops: usize,
    /// Stops between a state read and the change after it.
    pub ambushed: usize,
    /// Attempts started while an earlier attempt was stopped.
    pub replaced: usize,
    /// Stopped attempts that continued during the later attempt's work.
    pub overtaken: usize,
    /// Stops longer than a lease.
    pub outlasted: usize,
    /// Wall clock changes.
    pub steps: usize,
    /// Attempts that ended because the store lost their commits.
    pub noticed: usize,
    /// Maintenances that waited for an inspection after a restore.
    pub marked: usize,
    /// Servers repaired manually after a restore.
    pub mended: usize,
    /// Holds whose end the store lost.
    pub undone: usize,
    /// Unfinished holds that the store lost.
    pub lost: usize,
    /// Ended holds that the restored store listed as active.
    pub reopened: usize,
    /// Processes that cannot see others in `/proc`.
    pub hidden: usize,
    /// Attempts after the first, for any reason.
    pub retries: usize,
    /// Faults of the connections to the store and the BMCs.
    pub strikes: usize,
    pub mutations: usize,
    /// Machine changes from one hold to the next.
    pub hand_overs: usize,
    pub seconds: f64,
    /// Ends of holds and errors of attempts, with their number.
    pub said: BTreeMap<String, usize>,
}

impl Tally {
    /// Returns true if the run contained enough events to be meaningful.
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

/// Counts the changes of machines from one hold to another.
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

/// Shortens a message and removes names, so that equal causes are counted together.
pub fn shortened(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_ascii_digit()).collect();
    plain.chars().take(110).collect()
}
