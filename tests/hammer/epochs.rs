//! A run whose store went back in time is judged in parts: before, and after a person has put
//! things in order. Across that border nothing can be told by what reached the machines, because
//! the person decides who goes on.

use std::collections::BTreeSet;

use crate::checker::{Course, Fault, Line, Rule, judge};

/// Where one part of a run ends and the next one begins.
#[derive(Clone, Debug, Default)]
pub struct Border {
    /// The last thing before it.
    pub at: u64,
    /// The holds that had ended when the store went back.
    pub over: BTreeSet<String>,
    /// The server and the hold that goes on there where it stood, by the store and by what the
    /// person saw.
    pub goes_on: BTreeSet<(String, String)>,
    /// Holds that were ended by the person, or whose server the person brought back to what it was:
    /// those may find nothing left to do.
    pub ended: BTreeSet<String>,
}

fn hold(line: &Line) -> &str {
    line.account.rsplit_once('.').map_or("", |(hold, _)| hold)
}

/// Every rule that the run broke in one of its parts.
pub fn judge_parts(course: &Course, borders: &[Border]) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut before: Vec<Line> = Vec::new();
    let mut from: Option<u64> = None;
    for part in 0..=borders.len() {
        let border = borders.get(part);
        let to = border.map_or(u64::MAX, |border| border.at);
        let goes_on = |line: &&Line| {
            let entered = part.checked_sub(1).map(|part| &borders[part].goes_on);
            entered.is_some_and(|pairs| pairs.contains(&(line.system.clone(), hold(line).to_owned())))
        };
        // What goes on is one piece of work with what it did before.
        let mut lines: Vec<Line> = before.iter().filter(goes_on).cloned().collect();
        lines.extend(
            course.lines.iter().filter(|line| from.is_none_or(|from| line.at > from) && line.at <= to).cloned(),
        );
        let end = if border.is_some() { course.start.clone() } else { course.end.clone() };
        let judged = judge(&Course { end, lines: lines.clone(), ..course.clone() });
        faults.extend(judged.into_iter().filter(|fault| match (fault.rule, border) {
            // Cut off in the middle.
            (Rule::Lost, Some(_)) => false,
            (Rule::Restore, Some(border)) => fault.lines.first().is_some_and(|line| border.over.contains(hold(line))),
            (Rule::Lost, None) => !did_before(fault, course, borders),
            _ => true,
        }));
        (before, from) = (lines, Some(to));
    }
    faults
}

/// Whether a hold that did nothing in the last part did something in an earlier one, or was ended
/// by the person.
fn did_before(fault: &Fault, course: &Course, borders: &[Border]) -> bool {
    let named = fault.what.split(' ').next().unwrap_or_default();
    let last = borders.last().map_or(0, |border| border.at);
    borders.iter().any(|border| border.ended.contains(named))
        || course.lines.iter().any(|line| line.at <= last && line.accepted && hold(line) == named)
}
