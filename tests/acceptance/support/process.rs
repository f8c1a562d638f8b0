//! Processes by ID: children and signals. Linux only, like the tests.

use std::{fs, path::PathBuf};

pub use rustix::process::Signal;
use rustix::process::{Pid, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

/// Sends a signal. Returns false if the process has ended.
pub fn signal(pid: u32, signal: Signal) -> bool {
    kill_process(number(pid), signal).is_ok()
}

/// Sends a signal to a process group, like Ctrl-C in a terminal.
pub fn signal_group(leader: u32, signal: Signal) -> bool {
    kill_process_group(number(leader), signal).is_ok()
}

/// Waits until a child and all its threads have ended and released their file locks. Does not reap
/// it.
pub fn wait_for_end(child: u32) {
    let _ = waitid(WaitId::Pid(number(child)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
}

/// Returns true if the process runs; a zombie does not.
pub fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

/// Returns all running descendants, parents before children.
pub fn descendants(pid: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> =
        all().into_iter().filter_map(|child| stat(child).map(|(_, parent)| (child, parent))).collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|p| p.1 == parent).map(|p| p.0));
        next += 1;
    }
    found.split_off(1)
}

/// Path of a process's program.
pub fn program(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Peak resident memory in KiB.
pub fn peak_memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc is readable");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Returns a process's state letter and parent.
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program name in parentheses, which can contain parentheses.
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

fn number(pid: u32) -> Pid {
    let raw = i32::try_from(pid).expect("process numbers fit");
    Pid::from_raw(raw).expect("process numbers are not zero")
}
