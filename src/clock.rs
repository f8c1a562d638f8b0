//! The only reader of time.
//!
//! Everything else is told what time it is, so that a test can tell it another one. `tests/layering.rs` holds this wall.

#![expect(clippy::disallowed_methods, reason = "this is the one place that reads time")]

use std::{
    fmt::Debug,
    future::{Future, poll_fn},
    pin::pin,
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

    /// Returns after `duration` has passed.
    async fn sleep(&self, duration: Duration);
}

/// Time since some fixed moment that goes on while the machine sleeps. On Linux the usual monotonic clock stands still
/// then, so a laptop that was closed in the middle of a call would believe in a lease that is long over.
#[cfg(target_os = "linux")]
fn awake_or_asleep() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Where there is nothing better: the monotonic clock, which on macOS and Windows may stand still in a sleep.
#[cfg(not(target_os = "linux"))]
fn awake_or_asleep() -> Duration {
    static FIRST: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
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

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// A clock that starts at a given moment and moves with tokio's own: in a test with paused time it moves only when
/// everything waits.
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

/// The same as [`within`] for what may do harm when it is late: once `limit` has passed, the future does not take another step, not even
/// one that it could take at that moment. With [`within`], a process that was stopped for a while goes one step further
/// before it looks at the clock.
pub async fn never_beyond<T>(limit: Duration, future: impl Future<Output = T> + Send) -> Option<T> {
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
        assert_eq!(never_beyond(Duration::from_millis(10), stopped).await, None);
        assert_eq!(begun, 1);
        assert_eq!(never_beyond(Duration::MAX, async { 1 }).await, Some(1));
    }
}
