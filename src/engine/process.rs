//! Whether a process of this machine still runs.
//!
//! A process that was killed keeps its lease until it runs out. On the same machine that need not be waited for: the
//! kernel knows. A mark names the boot, the process-number namespace, the number and the start time, so that neither a
//! restarted machine nor a container nor a reused number is mistaken for the process (proc(5), field 22 of `stat`).

use std::{fs, time::Duration};

use crate::maintenance::{
    ids::{LockKey, MaintenanceId},
    state::Maintenance,
};

use super::{Control, Engine, EngineError};

/// The mark of our own process; empty where the kernel does not tell.
#[must_use]
pub fn own_mark() -> String {
    let here = namespace().and_then(|namespace| {
        let pid = std::process::id();
        Some(format!("{namespace}/{pid}/{}", start_time(pid)?))
    });
    here.unwrap_or_default()
}

/// Whether the process with this mark is known to be gone. `false` when that cannot be known from here.
#[must_use]
pub fn is_gone(mark: &str) -> bool {
    let Some(namespace) = namespace() else { return false };
    let Some(rest) = mark.strip_prefix(&format!("{namespace}/")) else { return false };
    let Some((pid, started)) = rest.split_once('/') else { return false };
    let Ok(pid) = pid.parse::<u32>() else { return false };
    start_time(pid).is_none_or(|now| now != started)
}

/// Whether [`is_gone`] can know about the process with this mark.
fn can_tell(mark: &str) -> bool {
    namespace().is_some_and(|namespace| mark.starts_with(&format!("{namespace}/")))
}

fn namespace() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let pids = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{}/{}", boot.trim(), pids.display()))
}

/// When a process started, in clock ticks after boot; `None` when there is no such process, or only its remains.
fn start_time(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may itself hold spaces and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18).map(str::to_owned)
}

impl Engine {
    /// Ends the leases of processes that are known to be gone, and gives one that is silent the time to show whether it
    /// lives: after a job was killed, its retry goes on at once on the same machine, and after at most one lease
    /// elsewhere.
    pub(super) async fn settle_dead(
        &self,
        key: &LockKey,
        id: &MaintenanceId,
        control: &Control,
    ) -> Result<(), EngineError> {
        let view = self.store().view(key).await?;
        for attachment in view.lock.active.iter().filter_map(|record| record.attachment.as_ref()) {
            if view.leases.alive(attachment, view.now) && is_gone(&attachment.runner.process) {
                self.store().resign(&attachment.runner.id).await?;
            }
        }
        let view = self.store().view(key).await?;
        let ours = |record: &&Maintenance| record.id == *id;
        let Some(attachment) = view.lock.active.iter().find(ours).and_then(|record| record.attachment.as_ref()) else {
            return Ok(());
        };
        let elsewhere = attachment.runner.id != self.parts.runner.id && !can_tell(&attachment.runner.process);
        let left = view.leases.until(attachment).map(|until| until.duration_since(view.now));
        let Some(left) = left.and_then(|left| Duration::try_from(left).ok()).filter(|_| elsewhere) else {
            return Ok(());
        };
        tracing::info!(%id, "{} was working on it: waiting {}s to see whether it lives", attachment.runner, left.as_secs());
        tokio::select! {
            () = self.parts.clock.sleep(left) => {}
            () = control.stop.cancelled() => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_process_is_not_gone_and_a_finished_one_is() {
        assert!(!is_gone(&own_mark()));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mark = format!("{}/{}/{}", namespace().unwrap(), child.id(), start_time(child.id()).unwrap());
        assert!(!is_gone(&mark));
        child.kill().unwrap();
        // Not waited for yet: what is left of it does not count as running.
        while start_time(child.id()).is_some() {
            std::thread::yield_now();
        }
        assert!(is_gone(&mark));
        child.wait().unwrap();
        assert!(is_gone(&mark));
    }

    #[test]
    fn of_another_machine_nothing_is_known() {
        let pid = std::process::id();
        assert!(!is_gone(&format!("another-boot/pid:[1]/{pid}/1")));
        assert!(!is_gone(""));
    }
}
