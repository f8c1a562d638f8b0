//! Takeover of a record whose process can have ended.
//!
//! A killed process keeps its lease until it expires. On the same machine, proof of its end
//! ([`super::liveness`]) avoids that wait.

use std::time::Duration;

use crate::maintenance::ids::{LockKey, MaintenanceId};

use super::{Control, Engine, EngineError};

pub use super::{
    liveness::{Liveness, end_mark, liveness, own_mark},
    run_stores::{StoreUse, other_stores, use_store},
};

impl Engine {
    /// Ends the previous process's lease if its end is proven, and otherwise waits for signs of
    /// life. So a killed job's retry continues immediately on the same machine, and after at most
    /// one lease elsewhere.
    ///
    /// Considers only the record that is taken over. Processes attached to other records keep their
    /// lease.
    pub(super) async fn end_dead_leases(
        &self,
        key: &LockKey,
        id: &MaintenanceId,
        control: &Control,
    ) -> Result<(), EngineError> {
        let view = self.store().view(key).await?;
        let record = view.lock.active.iter().find(|record| record.id == *id);
        let attachment = record.and_then(|record| record.attachment.as_ref());
        let Some(attachment) = attachment.filter(|attachment| {
            attachment.runner.id != self.parts.runner.id && view.leases.alive(attachment, view.now)
        }) else {
            return Ok(());
        };
        match liveness(&attachment.runner.process) {
            Liveness::Alive => return Ok(()),
            Liveness::Gone => {
                tracing::info!(%id, "{} was working on it and has ended", attachment.runner);
                return Ok(self.store().resign(&attachment.runner.id).await?);
            }
            Liveness::Unknown => {}
        }
        let left = view.leases.until(attachment).map(|until| until.duration_since(view.now));
        // A wall clock that was set back can show any end.
        let longest = self.tuning().lease.min(control.timeout);
        let left = left.and_then(|left| Duration::try_from(left).ok()).unwrap_or_default().min(longest);
        tracing::info!(%id, "{} was working on it: waiting {}s to see if it still runs", attachment.runner, left.as_secs());
        tokio::select! {
            () = self.parts.clock.sleep(left) => {}
            () = control.stop.cancelled() => {}
        }
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]
pub(super) mod tests {
    use std::{
        fs::File,
        io::{BufRead as _, BufReader},
        process::{Child, Command, Stdio},
    };

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    /// Prints its own mark and waits until its input ends.
    #[test]
    #[ignore = "a process that another test starts"]
    fn a_marked_one() {
        if std::env::var_os("MARKED").is_some() {
            println!("<{}>", own_mark());
            let _ = std::io::stdin().read_line(&mut String::new());
        }
    }

    /// A process with a mark.
    pub(crate) struct Marked {
        pub(crate) child: Child,
        pub(crate) mark: String,
    }

    impl Marked {
        pub(crate) fn start() -> Self {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "engine::process::tests::a_marked_one", "--ignored", "--nocapture"])
                .args(["--test-threads=1"])
                .env("MARKED", "1")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
            let between = |line: String| Some(line.split_once('<')?.1.split_once('>')?.0.to_owned());
            let mark = { lines }.find_map(between).unwrap();
            assert!(!mark.is_empty(), "this machine does not print marks");
            Self { child, mark }
        }

        fn signal(&self, signal: Signal) {
            kill_process(Pid::from_child(&self.child), signal).unwrap();
        }
    }

    impl Drop for Marked {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// Prints how it judges a mark.
    #[test]
    #[ignore = "a process that another test starts"]
    fn a_judge() {
        let Ok(mark) = std::env::var("JUDGED_MARK") else { return };
        let mut opened = Vec::new();
        match std::env::var("JUDGED_WITHOUT_FILES").as_deref() {
            // Data about the current boot can already be cached.
            Ok("later") => assert!(crate::clock::this_boot().is_some()),
            Ok(_) => {}
            Err(_) => {
                println!("<{:?}>", liveness(&mark));
                return;
            }
        }
        while let Ok(file) = File::open("/dev/null") {
            opened.push(file);
        }
        let judged = liveness(&mark);
        drop(opened);
        println!("<{judged:?}>");
    }

    fn root(program: &str) -> Command {
        if rustix::process::geteuid().is_root() {
            return Command::new(program);
        }
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "-E", program]);
        sudo
    }

    /// Returns another process's judgment of a mark. It runs as `user` in its own mount namespace
    /// after `setup`.
    fn judged(mark: &str, setup: &str, user: u32, more: &[(&str, &str)]) -> String {
        let place = tempfile::NamedTempFile::new().unwrap();
        // Other users cannot always read the test's own folder.
        let script = format!(
            "set -e; ulimit -n 200; {setup}; chmod 755 $1; mount --bind $2 $1; \
             exec setpriv --reuid={user} --regid={user} --clear-groups \
             $1 --exact engine::process::tests::a_judge --ignored --nocapture --test-threads=1"
        );
        let output = root("unshare")
            .args(["--mount", "--fork", "sh", "-c", &script, "sh"])
            .arg(place.path())
            .arg(std::env::current_exe().unwrap())
            .env("JUDGED_MARK", mark)
            .envs(more.iter().copied())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let word = said.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map(|(word, _)| word.to_owned());
        word.filter(|_| output.status.success()).unwrap_or_else(|| panic!("{output:?}"))
    }

    const NOBODY: u32 = 65534;

    #[test]
    fn a_killed_process_is_gone_at_once_and_a_stopped_one_is_not() {
        let mut marked = Marked::start();
        assert_eq!(liveness(&marked.mark), Liveness::Alive);
        assert_eq!(liveness(&own_mark()), Liveness::Alive);
        marked.signal(Signal::STOP);
        assert_eq!(liveness(&marked.mark), Liveness::Alive);
        marked.signal(Signal::KILL);
        // A zombie that was not reaped does not count as running. A dying process can release its
        // lock before its PID; that is not proof yet. The test's time limit bounds this wait.
        while liveness(&marked.mark) != Liveness::Gone {
            std::thread::yield_now();
        }
        marked.child.wait().unwrap();
        assert_eq!(liveness(&marked.mark), Liveness::Gone);
    }

    #[test]
    fn alive_is_not_dead_where_proc_is_hidden() {
        let user = rustix::process::geteuid().as_raw();
        let mut marked = Marked::start();
        for options in ["hidepid=0", "hidepid=2", "hidepid=4,subset=pid"] {
            let setup = format!("mount -t proc -o {options} proc /proc");
            assert_ne!(judged(&marked.mark, &setup, user, &[]), "Gone", "{options}");
            assert_eq!(judged(&marked.mark, &setup, NOBODY, &[]), "Unknown", "{options}");
        }
        let hidden = "mount -t proc -o hidepid=2 proc /proc";
        assert_eq!(judged(&marked.mark, hidden, user, &[]), "Alive");
        marked.child.kill().unwrap();
        marked.child.wait().unwrap();
        // The lock works without /proc.
        assert_eq!(judged(&marked.mark, hidden, user, &[]), "Gone");
        assert_eq!(judged(&marked.mark, hidden, NOBODY, &[]), "Unknown", "another user cannot see it");
    }

    #[test]
    fn without_a_file_descriptor_left_nothing_is_known() {
        let user = rustix::process::geteuid().as_raw();
        let mut marked = Marked::start();
        for dead in [false, true] {
            for when in ["first", "later"] {
                let known = judged(&marked.mark, "true", user, &[("JUDGED_WITHOUT_FILES", when)]);
                assert_eq!(known, "Unknown", "dead: {dead}, {when}");
            }
            marked.child.kill().unwrap();
            marked.child.wait().unwrap();
        }
        assert_eq!(judged(&marked.mark, "true", user, &[]), "Gone");
    }

    /// A machine that was cloned while running has the same IDs, but not the files that were
    /// created later.
    #[test]
    fn of_a_clone_nothing_is_known() {
        let user = rustix::process::geteuid().as_raw();
        let mut marked = Marked::start();
        let elsewhere = format!("mount -t tmpfs -o mode=700,uid={user} tmpfs /tmp/terraform-provider-metal-{user}");
        assert_eq!(judged(&marked.mark, &elsewhere, user, &[]), "Unknown");
        marked.child.kill().unwrap();
        marked.child.wait().unwrap();
        assert_eq!(judged(&marked.mark, &elsewhere, user, &[]), "Unknown");
    }

    #[test]
    fn of_a_mark_of_an_older_version_nothing_is_known() {
        let boot = crate::clock::this_boot().unwrap().id;
        let pids = std::fs::read_link("/proc/self/ns/pid").unwrap();
        assert_eq!(liveness(&format!("{boot}/{}/999999999/1", pids.display())), Liveness::Unknown);
        assert_eq!(liveness(""), Liveness::Unknown);
    }
}
