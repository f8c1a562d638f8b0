//! `why`: who holds a server, what blocks each waiter, and the next command, in at most ten lines.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    engine::Engine,
    maintenance::{
        ids::LockKey,
        queue::shown_time,
        report::{BLOCKED, ProcessState, QueueRow},
    },
    shown::{self, shell_word},
};

use super::{
    GlobalArgs, NAME,
    commands::{CommandError, pretty},
    servers, shape, show,
    table::{needs_action, process},
};

/// Maximum lines, without the last one that names the rest of the queue.
const LINES: usize = 9;

pub(super) async fn run(engine: &Engine, server: &str, common: &GlobalArgs) -> Result<String, CommandError> {
    let mut rows = engine.queue().await?;
    // The same machine can have several names.
    let keys: Vec<LockKey> = rows.iter().filter(|row| row.server == server).map(|row| row.lock_key.clone()).collect();
    rows.retain(|row| keys.contains(&row.lock_key));
    if rows.is_empty() {
        servers::refuse_unknown(engine, server).await?;
    }
    let store = engine.store().address();
    let flags = common.repeated();
    let next = next(engine, &rows, common, &flags).await?;
    if common.json {
        let rows: Vec<Value> = rows.iter().map(shape::line).collect();
        return Ok(pretty(&json!({ "store": store, "server": server, "queue": rows, "next": next })));
    }
    Ok(text(server, &rows, &store, engine.now(), next.as_deref(), &flags))
}

fn text(server: &str, rows: &[QueueRow], store: &str, now: Timestamp, next: Option<&str>, flags: &str) -> String {
    let (first, waiting): (Vec<&QueueRow>, Vec<&QueueRow>) = rows.iter().partition(|row| row.position == 0);
    let mut lines = Vec::new();
    if first.is_empty() {
        let waits = if waiting.is_empty() { format!(" and has no queue in {store}") } else { String::new() };
        lines.push(format!("{server} is not held{waits}."));
    }
    for row in &first {
        lines.extend(holds(row, now));
    }
    lines.extend(next.map(|next| format!("Next: {next}")));
    let room = LINES.saturating_sub(lines.len());
    lines.extend(waiting.iter().take(room).map(|row| waits(row)));
    if waiting.len() > room {
        let server = shell_word(server);
        lines.push(format!("{} more: {NAME} queue --server {server}{flags}", waiting.len() - room));
    }
    lines.iter().map(|line| format!("{}\n", shown::line(line))).collect()
}

/// Describes the holder, work under its lock, or a block: the state, then the obstacle.
fn holds(row: &QueueRow, now: Timestamp) -> Vec<String> {
    let since = shown_time(row.admitted_at.unwrap_or(row.requested_at));
    let reason = row.reason.as_ref().map(|reason| format!(" {reason:?}")).unwrap_or_default();
    if row.state == BLOCKED {
        let until = row.expires_at.map(|at| format!(" until {}", shown_time(at))).unwrap_or_default();
        return vec![format!("{} is blocked{until} by {}{reason}, since {since}.", row.server, row.by)];
    }
    let expires = match row.expires_at {
        Some(at) if at <= now => format!(", overdue since {}", shown_time(at)),
        Some(at) => format!(", expires {}", shown_time(at)),
        None => ", does not expire".to_owned(),
    };
    let step = row.step.as_ref().map(|step| format!(" {step}")).unwrap_or_default();
    let mut lines = vec![format!(
        "{} is held by {} of {} ({}{reason}), {}{step}, since {since}{expires}.",
        row.server, row.id, row.owner, row.by, row.state
    )];
    if let Some(cause) = &row.stuck {
        lines.push(format!("Stuck: {cause}"));
    } else if let Some(doing) = &row.doing {
        lines.push(format!("Step: {doing}"));
    }
    if needs_action(row) || row.process == ProcessState::Working {
        lines.push(format!("Process: {}", process(row)));
    }
    lines
}

/// Describes a waiter and its obstacle.
fn waits(row: &QueueRow) -> String {
    let obstacle = row.waiting_for.as_deref().unwrap_or("its turn");
    format!("{}. {} of {} ({}) waits for {obstacle}", row.position, row.id, row.owner, row.by)
}

/// Returns the command that frees the server, or `None` if it becomes free without one.
async fn next(
    engine: &Engine,
    rows: &[QueueRow],
    common: &GlobalArgs,
    flags: &str,
) -> Result<Option<String>, CommandError> {
    let Some(row) = rows.iter().find(|row| row.position == 0 && (row.state == BLOCKED || needs_action(row))) else {
        return Ok(None);
    };
    if row.state == BLOCKED {
        let owner = shell_word(row.owner.shown());
        return Ok(Some(format!("{NAME} release --allow {} --owner {owner}{flags}", row.id)));
    }
    Ok(engine.held_by_name(&row.id).await?.map(|held| show::next(&held.record, common)))
}

#[cfg(test)]
mod tests {
    use crate::{
        cli::table::tests::{now, row},
        maintenance::state::{Ending, Phase, Progress},
    };

    use super::*;

    fn shown(rows: &[QueueRow], next: Option<&str>) -> String {
        text("node1", rows, "sqlite:///x", now(), next, "")
    }

    fn waiters(count: usize) -> Vec<QueueRow> {
        let waiter = |position| QueueRow {
            position,
            waiting_for: Some("ops/bios to release the server".to_owned()),
            ..row(&Phase::Pending, ProcessState::Working)
        };
        (1..=count).map(waiter).collect()
    }

    #[test]
    fn a_held_stuck_blocked_or_free_server_is_explained() {
        let held = row(&Phase::InMaintenance { since: now() }, ProcessState::Detached);
        let stuck = Phase::Releasing {
            ending: Ending::Completed,
            progress: Progress::new(Vec::new(), now()),
            stuck: Some("BMC refused\nthe connection".into()),
        };
        let stuck = row(&stuck, ProcessState::Detached);
        let block = QueueRow { state: BLOCKED, expires_at: Some(now()), reason: Some("disk".into()), ..held.clone() };
        let all = [
            shown(&[], None),
            shown(&waiters(1), None),
            shown(&[held], None),
            shown(&[&[stuck][..], &waiters(2)].concat(), Some("terraform-provider-metal release ops/bios")),
            shown(&[block], Some("terraform-provider-metal release --allow ops/bios")),
        ];
        insta::assert_snapshot!("why", all.join("\n"));
    }

    #[test]
    fn a_long_queue_takes_ten_lines() {
        for count in 0..40 {
            let held = row(&Phase::InMaintenance { since: now() }, ProcessState::Killed);
            let text = shown(&[&[held][..], &waiters(count)].concat(), Some("terraform-provider-metal release x"));
            assert!(text.lines().count() <= LINES + 1, "{text}");
            let rest = text.lines().any(|line| line.contains("more: terraform-provider-metal queue --server node1"));
            assert_eq!(rest, count > 6, "{text}");
        }
    }
}
