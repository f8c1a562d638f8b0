//! The only reader of time.
//!
//! Everything else is told what time it is, so that a test can tell it another one.
//! `tests/layering.rs` holds this wall.

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

/// What time it is, and how to wait for a later one.
#[async_trait]
pub trait Clock: Send + Sync + Debug {
    /// The wall clock of this machine, UTC.
    fn now(&self) -> Timestamp;

    /// Time that never jumps, since some fixed moment of this process. Leases are judged by it.
    fn monotonic(&self) -> Duration;

    /// Which boot of which machine this is, and how long it lasts already: a clock that all
    /// processes of one machine share and that no change of the wall clock moves. `None` where the
    /// system does not tell; macOS and Windows do not, to a program without unsafe code.
    fn boot(&self) -> Option<BootTime> {
        None
    }

    /// Returns after `duration` has passed.
    async fn sleep(&self, duration: Duration);
}

/// One boot of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// The machine's id (machine-id(5)); empty where there is none, as in many containers.
    pub machine: String,
    /// The kernel's random id of this boot (random(4), `boot_id`).
    pub id: String,
    /// The time namespace, which may shift the boot clock (time_namespaces(7)); empty where there
    /// are none.
    pub namespace: String,
}

/// How another boot relates to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootRelation {
    /// The same boot, and a boot clock that can be compared.
    Same,
    /// An earlier boot of the same machine: none of its processes is left.
    Ended,
    /// Another machine, or a boot clock that cannot be compared.
    Unknown,
}

impl Boot {
    /// Relates `other` to this boot, which is the running one.
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

/// A moment of one boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootTime {
    /// The boot.
    pub boot: Boot,
    /// Time since the machine was started, with all its sleeps.
    pub since: Duration,
}

/// The running boot; `None` where the system does not tell, or not at the moment (no file can be
/// opened).
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

/// Time since some fixed moment that goes on while the machine sleeps. The usual monotonic clock of
/// Linux (`CLOCK_MONOTONIC`) and of macOS (`CLOCK_UPTIME_RAW`, which std uses) stands still then,
/// so a laptop that was closed in the middle of a call would believe in a lease that is long over.
/// `CLOCK_BOOTTIME` of Linux counts the sleep (clock_gettime(2)), as `CLOCK_MONOTONIC` of macOS
/// does: it "will continue to increment while the system is asleep" (clock_gettime(3) there).
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
/// ("Acquiring high-resolution time stamps", Microsoft). Elsewhere there may be nothing that does.
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

/// A clock that starts at a given moment and moves with tokio's own: in a test with paused time it
/// moves only when everything waits.
#[derive(Debug)]
pub struct SimulatedClock {
    start: Timestamp,
    started: Instant,
}

impl SimulatedClock {
    /// A clock that says `start` now.
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

/// The future's output, or `None` when `limit` passed first.
pub async fn within<T>(limit: Duration, future: impl Future<Output = T> + Send) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

/// Why there is no answer, for messages, when `limit` passed first.
#[must_use]
pub fn no_answer_within(limit: Duration) -> String {
    format!("no answer within {}s", limit.as_secs_f32())
}

/// The same as [`within`] for what may do harm when it is late: once `limit` has passed, the future
/// does not take another step, not even one that it could take at that moment. With [`within`], a
/// process that was stopped for a while goes one step further before it looks at the clock.
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
            // A container on this machine, with another file or none.
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
        // The file has two digits.
        assert!((before - 0.02..=uptime() + 0.02).contains(&ours.since.as_secs_f64()), "{ours:?}, {before}");
        assert_eq!(Some(ours.boot), this_boot());
    }

    #[tokio::test]
    async fn what_was_stopped_beyond_its_limit_does_nothing_more() {
        let mut begun = 0;
        let stopped = poll_fn(|context| {
            begun += 1;
            // As a process that is stopped for a while, just here.
            std::thread::sleep(Duration::from_millis(30));
            context.waker().wake_by_ref();
            if begun == 1 { Poll::Pending } else { Poll::Ready(()) }
        });
        assert_eq!(strict_timeout(Duration::from_millis(10), stopped).await, None);
        assert_eq!(begun, 1);
        assert_eq!(strict_timeout(Duration::MAX, async { 1 }).await, Some(1));
    }
}
