//! Judges a run with a restored store in parts: before the restore and after the repair. The
//! machines' journal alone cannot be judged across a restore, because the operator decides which
//! holds continue.

use std::collections::BTreeSet;

use crate::checker::{Course, Fault, Line, Rule, judge};

/// Border between two parts of a run.
#[derive(Clone, Debug, Default)]
pub struct Border {
    /// Sequence number of the last event before the border.
    pub at: u64,
    /// Holds that had ended before the restore.
    pub over: BTreeSet<String>,
    /// Servers with the hold that continues there, according to the store and the inspection.
    pub goes_on: BTreeSet<(String, String)>,
    /// Holds that the operator ended, or whose server was repaired. They can end without a change.
    pub ended: BTreeSet<String>,
}

fn hold(line: &Line) -> &str {
    line.account.rsplit_once('.').map_or("", |(hold, _)| hold)
}

/// Returns the violations in all parts.
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
        // A continued hold includes its changes from before the border.
        let mut lines: Vec<Line> = before.iter().filter(goes_on).cloned().collect();
        lines.extend(
            course.lines.iter().filter(|line| from.is_none_or(|from| line.at > from) && line.at <= to).cloned(),
        );
        let end = if border.is_some() { course.start.clone() } else { course.end.clone() };
        let judged = judge(&Course { end, lines: lines.clone(), ..course.clone() });
        faults.extend(judged.into_iter().filter(|fault| match (fault.rule, border) {
            // The border cut this hold off.
            (Rule::Lost, Some(_)) => false,
            (Rule::Restore, Some(border)) => fault.lines.first().is_some_and(|line| border.over.contains(hold(line))),
            (Rule::Lost, None) => !did_before(fault, course, borders),
            _ => true,
        }));
        (before, from) = (lines, Some(to));
    }
    faults
}

/// Returns true if a hold without changes in the last part had earlier changes, or was ended by
/// the operator.
fn did_before(fault: &Fault, course: &Course, borders: &[Border]) -> bool {
    let named = fault.what.split(' ').next().unwrap_or_default();
    let last = borders.last().map_or(0, |border| border.at);
    borders.iter().any(|border| border.ended.contains(named))
        || course.lines.iter().any(|line| line.at <= last && line.accepted && hold(line) == named)
}
