//! The only reader of time.
//!
//! Everything else is told what time it is, so that a test can tell it another one. `tests/layering.rs` holds this wall.

#![expect(clippy::disallowed_methods, reason = "this is the one place that reads time")]

use std::{fmt::Debug, future::Future, time::Duration};

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

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { started: Instant::now() }
    }
}

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
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
