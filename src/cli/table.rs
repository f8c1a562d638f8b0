//! Text in columns.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::maintenance::{identity::shared_lock, ids::LockKey, queue::shown_time, report::QueueRow};
use crate::shown;

/// The queue, one line a maintenance; a server's name is not repeated.
pub(super) fn queue(lines: &[QueueRow], store: &str, now: Timestamp) -> String {
    if lines.is_empty() {
        return format!("No server is held or waited for in {store}.\n");
    }
    let head = ["SERVER", "STATE", "MAINTENANCE", "FOR", "WAITING FOR", "BY"].map(str::to_owned);
    let mut rows = vec![head];
    let mut last = None;
    for line in lines {
        let same = last == Some((&line.lock_key, &line.server));
        last = Some((&line.lock_key, &line.server));
        let since = line.admitted_at.unwrap_or(line.requested_at);
        let mut by = line.by.to_string();
        if let Some(at) = line.expires_at {
            let left = now.until(at).ok().and_then(|span| span.get_seconds().try_into().ok());
            by.push_str(&match left {
                Some(seconds) => format!(", expires in {}", span(seconds)),
                None => format!(", overdue since {}", shown_time(at)),
            });
        }
        if line.position > 0 && !line.attended {
            by.push_str(&format!(" ({})", process(line)));
        }
        if line.position == 0 {
            by.push_str(&format!(", generation {}", line.generation));
        }
        let elapsed = now.duration_since(since).as_secs().max(0).unsigned_abs();
        rows.push([
            if same { String::new() } else { line.server.clone() },
            line.state.to_owned(),
            line.id.to_string(),
            span(elapsed),
            waiting(line),
            by,
        ]);
    }
    let mut names: BTreeMap<&LockKey, Vec<&str>> = BTreeMap::new();
    lines.iter().for_each(|line| names.entry(&line.lock_key).or_default().push(&line.server));
    let shared = names.into_iter().filter_map(|(key, names)| shared_lock(key, names));
    let notes: String = shared.map(|text| format!("\n{}.\n", shown::line(&text))).collect();
    format!("{}{notes}", columns(&rows))
}

/// What a line waits for, and what is handed over without a restore.
fn waiting(line: &QueueRow) -> String {
    let parts: Vec<&str> = line.waiting_briefly.iter().chain(&line.hand_over).map(String::as_str).collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join("; ") }
}

/// Rows below each other, each cell as wide as the widest of its column.
pub(super) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    let rows: Vec<[String; N]> =
        rows.iter().map(|row| row.each_ref().map(|cell| shown::line(cell).into_owned())).collect();
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

/// The process of a record: whether one is attached, and what becomes of a queue position without
/// one.
pub(super) fn process(line: &QueueRow) -> String {
    match (line.attended, line.position, line.place_kept_until) {
        (true, _, _) => "attached".to_owned(),
        (false, 0, _) => "none".to_owned(),
        (false, _, Some(until)) => format!("no process, queue position reserved until {}", shown_time(until)),
        (false, _, None) => "no process, queue position reserved".to_owned(),
    }
}

/// Names and values below each other.
pub(super) fn pairs(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    // What goes on in another line stays below its name, so that no row can be forged.
    let below = format!("\n{:width$}  ", "");
    rows.iter().map(|(name, value)| format!("{name:<width$}  {}\n", value.replace('\n', &below))).collect()
}

/// `1d 2h`, `1h 10m`, `4m`, `12s`: the two largest units.
fn span(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds % 86_400 / 3600, seconds % 3600 / 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, m) => format!("{m}m"),
        (0, h, 0) => format!("{h}h"),
        (0, h, m) => format!("{h}h {m}m"),
        (d, 0, _) => format!("{d}d"),
        (d, h, _) => format!("{d}d {h}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::span;

    #[test]
    fn spans_show_their_two_largest_units() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (240, "4m"), (4200, "1h 10m"), (3600, "1h"), (93_600, "1d 2h")]
        {
            assert_eq!(span(seconds), text);
        }
    }
}
