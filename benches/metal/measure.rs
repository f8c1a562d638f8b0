//! Measures processes, and summarises series of durations.
use std::{fs, time::Duration};

/// Highest resident memory of a process so far, in MiB.
pub fn peak_memory(pid: u32) -> f64 {
    status(pid, "VmHWM:") / 1024.0
}

/// Returns a number from `/proc/PID/status`.
fn status(pid: u32, key: &str) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// CPU time that a process has used so far.
pub fn processor_time(pid: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // After the command's name in parentheses: the state, then fields 4 and onwards of proc(5).
    let fields: Vec<&str> = text.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    let per_second = rustix::param::clock_ticks_per_second();
    Duration::from_millis(ticks * 1000 / per_second)
}

/// Returns the given percentile; 0.5 is the median.
pub fn percentile(of: &[Duration], share: f64) -> Duration {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "an index")]
    let index = ((sorted.len() - 1) as f64 * share).round() as usize;
    sorted[index]
}

pub fn median(of: &[Duration]) -> Duration {
    percentile(of, 0.5)
}

pub fn middle(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Returns `of` as a multiple of `reference`.
pub fn ratio(of: Duration, reference: Duration) -> f64 {
    of.as_secs_f64() / reference.as_secs_f64()
}

/// Formats milliseconds.
pub fn ms(of: Duration) -> String {
    let ms = of.as_secs_f64() * 1000.0;
    if ms < 10.0 { format!("{ms:.2} ms") } else { format!("{ms:.0} ms") }
}
