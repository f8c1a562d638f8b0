//! The only module that reads the time.
//!
//! Everything else receives a clock, so that tests can replace it. `tests/layering.rs` enforces
//! this.

#![expect(clippy::disallowed_methods, reason = "this is the one place that reads time")]

use std::{
    fmt::Debug,
    future::{Future, poll_fn},
    pin::pin,
    sync::OnceLock,
    task::Poll,
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::time::Instant;

/// A source of time and delays.
#[async_trait]
pub trait Clock: Send + Sync + Debug {
    /// Returns the machine's wall clock in UTC.
    fn now(&self) -> Timestamp;

    /// Returns time that never jumps, since a fixed moment in this process. Leases use it.
    fn monotonic(&self) -> Duration;

    /// Returns the current boot and its duration: a clock shared by all processes on a machine and
    /// independent of wall-clock changes. `None` if unsupported; macOS and Windows provide it only
    /// to unsafe code.
    fn boot(&self) -> Option<BootTime> {
        None
    }

    /// Returns after `duration` has passed.
    async fn sleep(&self, duration: Duration);
}

/// One boot of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// The machine's id (machine-id(5)); empty if missing, as in many containers.
    pub machine: String,
    /// The kernel's random id of this boot (random(4), `boot_id`).
    pub id: String,
    /// The time namespace, which can shift the boot clock (time_namespaces(7)); empty if
    /// unsupported.
    pub namespace: String,
}

/// Another boot's relation to this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootRelation {
    /// The same boot, with a comparable boot clock.
    Same,
    /// An earlier boot of the same machine: all its processes have ended.
    Ended,
    /// Another machine, or an incomparable boot clock.
    Unknown,
}

impl Boot {
    /// Compares `other` with this boot, which is running.
    #[must_use]
    pub fn relation(&self, other: &Self) -> BootRelation {
        if self.id == other.id {
            let comparable = self.namespace == other.namespace;
            return if comparable { BootRelation::Same } else { BootRelation::Unknown };
        }
        let one_machine = !self.machine.is_empty() && self.machine == other.machine;
        if one_machine { BootRelation::Ended } else { BootRelation::Unknown }
    }
}

/// A moment within a boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootTime {
    /// The boot.
    pub boot: Boot,
    /// Time since the machine was started, including sleep.
    pub since: Duration,
}

/// Returns the running boot; `None` if unsupported, or temporarily if files cannot be opened.
#[must_use]
pub fn this_boot() -> Option<Boot> {
    static BOOT: OnceLock<Boot> = OnceLock::new();
    if let Some(boot) = BOOT.get() {
        return Some(boot.clone());
    }
    let boot = read_boot()?;
    Some(BOOT.get_or_init(|| boot).clone())
}

#[cfg(target_os = "linux")]
fn read_boot() -> Option<Boot> {
    use std::{fs, io::ErrorKind};
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
    let or_empty = |read: std::io::Result<String>| match read {
        Ok(text) => Some(text.trim().to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Some(String::new()),
        Err(_) => None,
    };
    let machine = or_empty(fs::read_to_string("/etc/machine-id"))?;
    let namespace = fs::read_link("/proc/self/ns/time").map(|link| link.to_string_lossy().into_owned());
    Some(Boot { machine, id, namespace: or_empty(namespace)? }).filter(|boot| !boot.id.is_empty())
}

#[cfg(not(target_os = "linux"))]
fn read_boot() -> Option<Boot> {
    None
}

/// Returns time since a fixed moment, including sleep. `CLOCK_MONOTONIC` on Linux and
/// `CLOCK_UPTIME_RAW` on macOS, which std uses, stop during sleep. A laptop that was closed during
/// a call would then trust an expired lease. `CLOCK_BOOTTIME` on Linux counts sleep
/// (clock_gettime(2)). So does `CLOCK_MONOTONIC` on macOS: it "will continue to increment while the
/// system is asleep" (clock_gettime(3) there).
#[cfg(any(target_os = "linux", target_vendor = "apple"))]
fn awake_or_asleep() -> Duration {
    #[cfg(target_os = "linux")]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(target_vendor = "apple")]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(CLOCK);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// On Windows std uses `QueryPerformanceCounter`, which counts sleep and hibernation too
/// ("Acquiring high-resolution time stamps", Microsoft). Other systems could lack such a clock.
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn awake_or_asleep() -> Duration {
    static FIRST: OnceLock<std::time::Instant> = OnceLock::new();
    FIRST.get_or_init(std::time::Instant::now).elapsed()
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    started: Duration,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { started: awake_or_asleep() }
    }
}

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn monotonic(&self) -> Duration {
        awake_or_asleep().saturating_sub(self.started)
    }

    #[cfg(target_os = "linux")]
    fn boot(&self) -> Option<BootTime> {
        Some(BootTime { boot: this_boot()?, since: awake_or_asleep() })
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// A clock that starts at a given time and follows tokio's clock: in a test with paused time it
/// advances only while every task waits.
#[derive(Debug)]
pub struct SimulatedClock {
    start: Timestamp,
    started: Instant,
}

impl SimulatedClock {
    /// Returns a clock whose current time is `start`.
    #[must_use]
    pub fn starting_at(start: Timestamp) -> Self {
        Self { start, started: Instant::now() }
    }
}

#[async_trait]
impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        self.start + self.started.elapsed()
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// Returns the future's output, or `None` after `limit`.
pub async fn within<T>(limit: Duration, future: impl Future<Output = T> + Send) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

/// Returns the message for a missing answer after `limit`.
#[must_use]
pub fn no_answer_within(limit: Duration) -> String {
    format!("no answer within {}s", limit.as_secs_f32())
}

/// Like [`within`], for futures that can do harm when late: after `limit`, the future is never
/// polled again. With [`within`], a suspended process would poll it once more before checking the
/// time.
pub async fn strict_timeout<T>(limit: Duration, future: impl Future<Output = T> + Send) -> Option<T> {
    let Some(end) = Instant::now().checked_add(limit) else { return Some(future.await) };
    let asleep_too = awake_or_asleep().saturating_add(limit);
    let mut future = pin!(future);
    let guarded = poll_fn(|context| {
        let over = Instant::now() >= end || awake_or_asleep() >= asleep_too;
        if over { Poll::Ready(None) } else { future.as_mut().poll(context).map(Some) }
    });
    tokio::time::timeout_at(end, guarded).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(machine: &str, id: &str, namespace: &str) -> Boot {
        Boot { machine: machine.into(), id: id.into(), namespace: namespace.into() }
    }

    #[test]
    fn only_an_earlier_boot_of_this_very_machine_has_ended() {
        let here = boot("m", "b", "n");
        for (other, relation) in [
            (boot("m", "b", "n"), BootRelation::Same),
            // A container on this machine with another machine-id file, or without it.
            (boot("", "b", "n"), BootRelation::Same),
            (boot("x", "b", "n"), BootRelation::Same),
            // Its boot clock is shifted.
            (boot("m", "b", "x"), BootRelation::Unknown),
            (boot("m", "x", "n"), BootRelation::Ended),
            (boot("m", "x", "x"), BootRelation::Ended),
            (boot("x", "x", "n"), BootRelation::Unknown),
            (boot("", "x", "n"), BootRelation::Unknown),
        ] {
            assert_eq!(here.relation(&other), relation, "{other:?}");
        }
        let nameless = boot("", "b", "n");
        assert_eq!(nameless.relation(&boot("", "x", "n")), BootRelation::Unknown);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_boot_clock_is_one_for_all_processes() {
        let uptime = || {
            let text = std::fs::read_to_string("/proc/uptime").unwrap();
            text.split_whitespace().next().unwrap().parse::<f64>().unwrap()
        };
        let before = uptime();
        let ours = SystemClock::default().boot().unwrap();
        // /proc/uptime has two decimals.
        assert!((before - 0.02..=uptime() + 0.02).contains(&ours.since.as_secs_f64()), "{ours:?}, {before}");
        assert_eq!(Some(ours.boot), this_boot());
    }

    #[tokio::test]
    async fn what_was_stopped_beyond_its_limit_does_nothing_more() {
        let mut begun = 0;
        let stopped = poll_fn(|context| {
            begun += 1;
            // Simulates a process that is suspended here.
            std::thread::sleep(Duration::from_millis(30));
            context.waker().wake_by_ref();
            if begun == 1 { Poll::Pending } else { Poll::Ready(()) }
        });
        assert_eq!(strict_timeout(Duration::from_millis(10), stopped).await, None);
        assert_eq!(begun, 1);
        assert_eq!(strict_timeout(Duration::MAX, async { 1 }).await, Some(1));
    }
}
