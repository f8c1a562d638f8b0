//! Text in columns.

use std::collections::BTreeMap;

use clap::ValueEnum;
use jiff::Timestamp;

use crate::{
    maintenance::{
        identity::shared_lock,
        ids::LockKey,
        queue::shown_time,
        report::{ProcessState, QueueRow},
    },
    shown,
};

use super::NAME;

/// The formats of `queue` other than its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum QueueFormat {
    /// The table with more columns.
    Wide,
    /// JSON, as `--json`.
    Json,
    /// Only the names of the maintenances.
    Name,
}

/// Formats the queue: a row for each maintenance, and notes for the operator below it. `flags`: the
/// global flags of this call, so that the next command can be pasted.
pub(super) fn queue(lines: &[QueueRow], store: &str, now: Timestamp, flags: &str) -> String {
    with_columns(lines, store, now, flags, &[])
}

/// Formats the queue with the columns that a script or a search for a process needs.
pub(super) fn wide_queue(lines: &[QueueRow], store: &str, now: Timestamp, flags: &str) -> String {
    let url = |line: &QueueRow| line.by.url.as_ref().map(ToString::to_string).unwrap_or_default();
    let more: [Column<'_>; 5] = [
        ("GENERATION", &|line| line.generation.to_string()),
        ("LOCK KEY", &|line| line.lock_key.to_string()),
        ("HOST", &|line| line.by.host.to_string()),
        ("PID", &|line| line.by.pid.to_string()),
        ("RUN URL", &url),
    ];
    with_columns(lines, store, now, flags, &more)
}

/// A column's title and its cell of a row.
type Column<'a> = (&'static str, &'a dyn Fn(&QueueRow) -> String);

fn with_columns(lines: &[QueueRow], store: &str, now: Timestamp, flags: &str, more: &[Column<'_>]) -> String {
    if lines.is_empty() {
        return format!("No server is held or waited for in {store}.\n");
    }
    let titles = ["SERVER", "STATE", "MAINTENANCE", "AGE", "EXPIRES", "HOLDER"];
    let mut rows: Vec<Vec<String>> =
        vec![titles.into_iter().chain(more.iter().map(|(title, _)| *title)).map(str::to_owned).collect()];
    let mut last = None;
    for line in lines {
        let same = last == Some((&line.lock_key, &line.server));
        last = Some((&line.lock_key, &line.server));
        let since = line.admitted_at.unwrap_or(line.requested_at);
        let age = now.duration_since(since).as_secs().max(0).unsigned_abs();
        let cells = [
            if same { String::new() } else { line.server.to_string() },
            state(line),
            line.id.to_string(),
            span(age),
            expires(line, now),
            holder(line),
        ];
        rows.push(cells.into_iter().chain(more.iter().map(|(_, cell)| cell(line))).collect());
    }
    let indent = rows.iter().map(|row| shown::line(&row[0]).chars().count()).max().unwrap_or(0) + 2;
    let table = columns(&rows);
    let mut text = String::new();
    let notes = lines.iter().map(|line| notes(line, now, flags));
    for (row, notes) in table.lines().zip(std::iter::once(Vec::new()).chain(notes)) {
        text.push_str(&format!("{row}\n"));
        for note in notes {
            text.push_str(&format!("{:indent$}{}\n", "", shown::line(&note)));
        }
    }
    let mut names: BTreeMap<&LockKey, Vec<&str>> = BTreeMap::new();
    for line in lines {
        names.entry(&line.lock_key).or_default().push(line.server.shown());
    }
    for shared in names.into_iter().filter_map(|(key, names)| shared_lock(key, names)) {
        text.push_str(&format!("\n{}.\n", shown::line(&shared)));
    }
    text
}

/// `Releasing 2/5` for the holder, `1. Pending` for the first waiter.
fn state(line: &QueueRow) -> String {
    match (&line.step, line.position) {
        (Some(step), 0) => format!("{} {step}", line.state),
        (_, 0) => line.state.to_owned(),
        (_, position) => format!("{position}. {}", line.state),
    }
}

/// Formats the time until the lock is overdue.
fn expires(line: &QueueRow, now: Timestamp) -> String {
    match line.expires_at {
        Some(at) => match u64::try_from(now.duration_since(at).as_secs().saturating_neg()) {
            Ok(left) if at > now => span(left),
            _ => "overdue".to_owned(),
        },
        None if line.position == 0 => "never".to_owned(),
        None => String::new(),
    }
}

/// Formats the run or the person, with the reason.
fn holder(line: &QueueRow) -> String {
    let mut text = line.by.to_string();
    if line.process == ProcessState::Working && line.step.is_none() && line.position == 0 {
        text.push_str(", running");
    }
    if let Some(reason) = &line.reason {
        text.push_str(&format!(" {reason:?}"));
    }
    text
}

/// Returns notes for the operator; exceptions come first.
fn notes(line: &QueueRow, now: Timestamp, flags: &str) -> Vec<String> {
    let overdue = line.expires_at.filter(|at| line.position == 0 && *at <= now);
    let is_step = |brief: &&String| line.step.as_ref().is_some_and(|step| brief.starts_with(step.as_str()));
    let waits_for = line.waiting_briefly.as_ref().filter(|brief| !is_step(brief) && line.stuck.is_none());
    let notes = [
        line.stuck.as_ref().map(|cause| match line.process {
            ProcessState::Working => format!("RETRYING after: {cause}"),
            _ => format!("STUCK: {cause}"),
        }),
        without_process(line),
        overdue.map(|at| format!("OVERDUE since {}: the next waiter releases the server", shown_time(at))),
        line.doing.as_ref().map(|doing| format!("step: {doing}")),
        waits_for.map(|what| format!("waits for: {what}")),
        line.hand_over.as_ref().map(|what| format!("hand-over: {what}")),
        needs_action(line).then(|| format!("next: {NAME} show {}{flags}", line.id)),
    ];
    notes.into_iter().flatten().collect()
}

/// Returns true if the server keeps its state until an operator acts.
pub(super) fn needs_action(line: &QueueRow) -> bool {
    line.position == 0 && without_process(line).is_some()
}

/// Returns why no process works on a maintenance, and its next event. `None`: a process works on
/// it, or it does not need a process.
fn without_process(line: &QueueRow) -> Option<String> {
    let why = match line.process {
        ProcessState::Working => return None,
        ProcessState::Killed => "NO PROCESS: killed",
        ProcessState::Suspended => "PROCESS STOPPED: it exists, but its lease ended",
        ProcessState::Silent => "NO SIGN OF LIFE: its lease ended",
        ProcessState::Detached if line.position > 0 => "NO PROCESS",
        ProcessState::Detached if line.step.is_none() => return None,
        ProcessState::Detached if line.stuck.is_some() => "NO PROCESS",
        ProcessState::Detached => "NO PROCESS: interrupted",
    };
    let reserved = line.place_kept_until.map(|until| format!(" until {}", shown_time(until))).unwrap_or_default();
    Some(match line.state {
        _ if line.position > 0 => format!("{why}; queue position reserved{reserved}; apply again to continue"),
        "Preparing" => format!("{why}; apply again to continue"),
        "Releasing" => format!("{why}; destroy again to continue"),
        _ => format!("{why}; the server stays held until a destroy"),
    })
}

/// Formats the process row of `show`.
pub(super) fn process(line: &QueueRow) -> String {
    let none = if line.process == ProcessState::Working { "running" } else { "none, not required" };
    without_process(line).unwrap_or_else(|| none.to_owned())
}

/// Formats rows as columns, each as wide as its widest cell.
pub(super) fn columns<R: AsRef<[String]>>(rows: &[R]) -> String {
    let mut widths = vec![0; rows.first().map_or(0, |row| row.as_ref().len())];
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.as_ref().iter().map(|cell| shown::line(cell).into_owned()).collect()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in &rows {
        let mut padded = String::new();
        for (width, cell) in widths.iter().zip(row) {
            let pad = width - cell.chars().count();
            padded.push_str(cell);
            padded.push_str(&" ".repeat(pad + 2));
        }
        text.push_str(padded.trim_end());
        text.push('\n');
    }
    text
}

/// Formats names and values in two columns.
pub(super) fn pairs(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:<width$}  {}\n", shown::line(value))).collect()
}

/// `1d2h`, `1h10m`, `4m`, `12s`: the two largest units.
fn span(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds % 86_400 / 3600, seconds % 3600 / 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, m) => format!("{m}m"),
        (0, h, 0) => format!("{h}h"),
        (0, h, m) => format!("{h}h{m}m"),
        (d, 0, _) => format!("{d}d"),
        (d, h, _) => format!("{d}d{h}h"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use crate::maintenance::{
        ids::{LockKey, MaintenanceId, Runner},
        state::{Ending, Phase, Progress},
        step::Step,
    };

    use super::*;
    use crate::shown::OneLine;

    pub(in crate::cli) fn now() -> Timestamp {
        "2026-11-21T10:00:00Z".parse().unwrap()
    }

    /// Returns the next state after `before` with every possible delay. A new state does not
    /// compile until it is listed here.
    fn after(before: Option<&Phase>) -> Vec<Phase> {
        let at = now();
        let delays = [None, Some("no answer within 10s".into())];
        let progress = |waits_for: &Option<OneLine>| Progress {
            waits_for: waits_for.clone(),
            ..Progress::new(vec![Step::SwitchOff, Step::ConfigureBoot], at)
        };
        match before {
            None => vec![Phase::Pending],
            Some(Phase::Pending) => delays.iter().map(|delay| Phase::Preparing(progress(delay))).collect(),
            Some(Phase::Preparing(_)) => vec![Phase::InMaintenance { since: at }],
            Some(Phase::InMaintenance { .. }) => {
                let stuck = [None, Some("the BMC refused the connection".into())];
                let all = delays.iter().flat_map(|delay| stuck.iter().map(move |stuck| (delay, stuck)));
                all.map(|(delay, stuck)| Phase::Releasing {
                    ending: Ending::Completed,
                    progress: progress(delay),
                    stuck: stuck.clone(),
                })
                .collect()
            }
            Some(Phase::Releasing { .. }) => vec![Phase::Completed { at, ending: Ending::Completed }],
            Some(Phase::Completed { .. }) => vec![Phase::Failed { at, cause: "x".into() }],
            Some(Phase::Failed { .. }) => Vec::new(),
        }
    }

    pub(in crate::cli) fn row(phase: &Phase, process: ProcessState) -> QueueRow {
        let waits = *phase == Phase::Pending;
        QueueRow {
            server: "node1".into(),
            lock_key: LockKey::new("key"),
            id: MaintenanceId::new("ops", "bios").unwrap(),
            state: phase.name(),
            position: usize::from(waits),
            waiting_for: None,
            waiting_briefly: None,
            stuck: if let Phase::Releasing { stuck, .. } = phase { stuck.clone() } else { None },
            requested_at: now(),
            admitted_at: (!waits).then(now),
            by: Runner::new("r", "ada", "desk", 1),
            attended: process == ProcessState::Working,
            process,
            step: phase.progress().map(Progress::place),
            doing: phase.progress().and_then(Progress::doing),
            owner: "ops".into(),
            reason: None,
            ticket: None,
            priority: 0,
            expires_at: None,
            place_kept_until: None,
            hand_over: None,
            generation: 1,
        }
    }

    #[test]
    fn rows_of_every_state_process_and_cause_differ() {
        let mut shown = BTreeMap::new();
        let mut phases = after(None);
        while let Some(last) = phases.last() {
            let next = after(Some(last));
            for phase in phases.iter().filter(|phase| !phase.is_over()) {
                for process in ProcessState::ALL {
                    let text = queue(&[row(phase, process)], "sqlite:///x", now(), "");
                    let below = text.lines().skip(1).map(|line| format!("{line}\n")).collect::<String>();
                    let earlier = shown.insert(below, (phase.clone(), process));
                    assert_eq!(earlier, None, "{phase:?} {process:?} looks the same:\n{text}");
                }
            }
            phases = next;
        }
        let all: Vec<String> = shown.into_keys().collect();
        assert_eq!(all.len(), 8 * ProcessState::ALL.len());
        insta::assert_snapshot!("rows", all.join("\n"));
    }

    #[test]
    fn what_needs_action_comes_first_and_its_command_can_be_pasted() {
        let stuck = after(Some(&Phase::InMaintenance { since: now() })).remove(1);
        let stuck =
            QueueRow { reason: Some("disk 3".into()), expires_at: Some(now()), ..row(&stuck, ProcessState::Detached) };
        let waits = QueueRow { lock_key: stuck.lock_key.clone(), ..row(&Phase::Pending, ProcessState::Working) };
        let text = queue(&[stuck, waits], "sqlite:///x", now(), " --coordination-url sqlite:///x");
        insta::assert_snapshot!("stuck", text);
    }

    #[test]
    fn the_wide_queue_has_a_column_for_each_process() {
        let mut held = row(&Phase::InMaintenance { since: now() }, ProcessState::Working);
        held.by.url = Some("https://ci.example/4711".into());
        insta::assert_snapshot!("wide", wide_queue(&[held], "sqlite:///x", now(), ""));
    }

    #[test]
    fn spans_show_their_two_largest_units() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (240, "4m"), (4200, "1h10m"), (3600, "1h"), (93_600, "1d2h")] {
            assert_eq!(span(seconds), text);
        }
    }
}
