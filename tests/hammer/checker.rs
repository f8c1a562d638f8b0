//! Judges a run by the requests that reached the machines. It uses no store, engine or lock, so it
//! does not share their bugs.
//!
//! Each mutation's account is `hold-<n>.<attempt>`: the hold and the attempt that sent it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// A requested change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Reset with this type.
    Reset(String),
    /// Write of these `Boot` properties.
    Boot(BTreeMap<String, String>),
    /// Any change that holds never send.
    Other(String),
}

/// One mutation that reached a machine, in order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub at: u64,
    pub system: String,
    pub account: String,
    pub change: Change,
    /// True if the machine applied it.
    pub accepted: bool,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken = if self.accepted { "" } else { " (not accepted)" };
        write!(f, "{:>8} {} {} {:?}{taken}", self.at, self.system, self.account, self.change)
    }
}

/// Machine state that a hold changes and must restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub on: bool,
    /// Non-empty properties of `Boot`.
    pub boot: BTreeMap<String, String>,
}

impl State {
    /// Returns the state after an accepted change, by the rules of Redfish.
    fn after(mut self, change: &Change) -> Self {
        match change {
            Change::Reset(kind) => self.on = !matches!(kind.as_str(), "ForceOff" | "GracefulShutdown"),
            Change::Boot(properties) => {
                self.boot.extend(properties.clone());
                let disabled = properties.get(ENABLED).is_some_and(|enabled| enabled == "Disabled");
                if disabled && !properties.contains_key(TARGET) {
                    self.boot.insert(TARGET.to_owned(), "None".to_owned());
                }
            }
            Change::Other(_) => {}
        }
        self
    }
}

pub const ENABLED: &str = "BootSourceOverrideEnabled";
pub const TARGET: &str = "BootSourceOverrideTarget";

/// A complete run.
#[derive(Clone, Debug, Default)]
pub struct Course {
    /// Requested holds and their machines.
    pub asked: BTreeMap<String, String>,
    /// Machine states before the run.
    pub start: BTreeMap<String, State>,
    /// Machine states after the run.
    pub end: BTreeMap<String, State>,
    /// Mutations during the run.
    pub lines: Vec<Line>,
    /// Accounts whose process was stopped between its clock check and the BMC call after it. That
    /// one call can still arrive later: a BMC does not check generations. A second call is a
    /// fault.
    pub caught: BTreeSet<String>,
    /// Holds that reported a failure. They can end without a change, after a BMC failed twice.
    pub failed: BTreeSet<String>,
}

/// A rule that every run must meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// An account without a requested hold mutated a machine.
    Stranger,
    /// A hold mutated a machine after another hold had begun there.
    Exclusivity,
    /// An attempt mutated a machine after a later attempt had begun.
    Fencing,
    /// A requested hold changed nothing.
    Lost,
    /// A hold did not restore the machine's state.
    Restore,
    /// A change was repeated although its result was visible.
    Double,
}

/// A broken rule with the lines that prove it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub rule: Rule,
    pub what: String,
    pub lines: Vec<Line>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}: {}", self.rule, self.what)?;
        self.lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

/// Consecutive lines of one hold on one machine.
struct Block<'a> {
    hold: &'a str,
    lines: Vec<(&'a Line, u64)>,
}

impl Block<'_> {
    fn shown(&self) -> Vec<Line> {
        self.lines.iter().map(|(line, _)| Line::clone(line)).collect()
    }
}

/// Returns true if a later attempt or hold has already changed the machine.
fn is_late(blocks: &[Block<'_>], hold: &str, attempt: u64) -> bool {
    let began = blocks.iter().position(|block| block.hold == hold);
    let replaced = |block: &Block<'_>| block.hold == hold && block.lines.iter().any(|(_, other)| *other > attempt);
    began.is_some_and(|began| blocks[began..].iter().any(|block| block.hold != hold || replaced(block)))
}

/// Returns every violation, none for a correct run.
pub fn judge(course: &Course) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut machines: BTreeMap<&str, Vec<Block<'_>>> = BTreeMap::new();
    let mut ordered: Vec<&Line> = course.lines.iter().collect();
    ordered.sort_by_key(|line| line.at);
    let mut caught = course.caught.clone();
    for line in ordered {
        let Some((hold, attempt)) = who(line).filter(|(hold, _)| course.asked.get(*hold) == Some(&line.system)) else {
            let what = format!("{} is not a hold of {}", line.account, line.system);
            faults.push(Fault { rule: Rule::Stranger, what, lines: vec![line.clone()] });
            continue;
        };
        if let Change::Other(what) = &line.change {
            let what = format!("{hold} sent a change that holds never send: {what}");
            faults.push(Fault { rule: Rule::Stranger, what, lines: vec![line.clone()] });
        }
        let blocks = machines.entry(&line.system).or_default();
        if is_late(blocks, hold, attempt) && caught.remove(&line.account) {
            continue;
        }
        match blocks.last_mut().filter(|block| block.hold == hold) {
            Some(block) => block.lines.push((line, attempt)),
            None => blocks.push(Block { hold, lines: vec![(line, attempt)] }),
        }
    }
    for (system, blocks) in &machines {
        judge_machine(system, blocks, course.start.get(*system), &mut faults);
    }
    let did: BTreeSet<&str> = machines
        .values()
        .flatten()
        .filter(|block| block.lines.iter().any(|(l, _)| l.accepted))
        .map(|b| b.hold)
        .collect();
    for (hold, system) in &course.asked {
        if !did.contains(hold.as_str()) && !course.failed.contains(hold) {
            let what = format!("{hold} was requested but did not change {system}");
            faults.push(Fault { rule: Rule::Lost, what, lines: Vec::new() });
        }
    }
    for (system, start) in &course.start {
        if course.end.get(system) != Some(start) {
            let last = machines.get(system.as_str()).and_then(|blocks| blocks.last());
            let what = format!("{system} was {start:?} before and is {:?} now", course.end.get(system));
            faults.push(Fault { rule: Rule::Restore, what, lines: last.map(Block::shown).unwrap_or_default() });
        }
    }
    faults.sort_by_key(|fault| fault.rule);
    faults
}

fn judge_machine(system: &str, blocks: &[Block<'_>], start: Option<&State>, faults: &mut Vec<Fault>) {
    for (place, block) in blocks.iter().enumerate() {
        if let Some(before) = blocks[..place].iter().rposition(|earlier| earlier.hold == block.hold) {
            let what = format!("{} changed {system} again after {} had begun", block.hold, blocks[before + 1].hold);
            let lines = blocks[before..=place].iter().flat_map(Block::shown).collect();
            faults.push(Fault { rule: Rule::Exclusivity, what, lines });
        }
        let mut highest = 0;
        for (line, attempt) in &block.lines {
            if *attempt < highest {
                let what = format!("{} changed {system} after attempt {highest} had begun", line.account);
                faults.push(Fault { rule: Rule::Fencing, what, lines: block.shown() });
            }
            highest = highest.max(*attempt);
        }
        let accepted: Vec<&Line> = block.lines.iter().map(|(line, _)| *line).filter(|line| line.accepted).collect();
        for pair in accepted.windows(2).filter(|pair| pair[0].change == pair[1].change) {
            let what = format!("{} repeated an accepted change on {system}", pair[1].account);
            faults.push(Fault { rule: Rule::Double, what, lines: block.shown() });
        }
        let Some(start) = start else { continue };
        let left = accepted.iter().fold(start.clone(), |state, line| state.after(&line.change));
        if left != *start {
            let what = format!("{} found {system} as {start:?} and left it as {left:?}", block.hold);
            faults.push(Fault { rule: Rule::Restore, what, lines: block.shown() });
        }
    }
}

/// Returns the hold and attempt of a line's account.
fn who(line: &Line) -> Option<(&str, u64)> {
    let (hold, attempt) = line.account.rsplit_once('.')?;
    Some((hold, attempt.parse().ok()?))
}
