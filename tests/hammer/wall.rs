//! Wall clock shared by all processes, and its manipulation.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use terraform_provider_metal::clock::{BootTime, Clock, SystemClock};

use crate::chaos::Rng;

/// Maximum error: far above a lease, below the time that a queue position is kept.
const MOST: usize = 600_000;

/// A machine's clocks, with a wall clock error in milliseconds read from a file.
#[derive(Debug, Default)]
pub struct Wall {
    real: SystemClock,
    file: PathBuf,
}

impl Wall {
    /// Reads the error from this file; a missing file means no error.
    pub fn at(file: &Path) -> Self {
        Self { real: SystemClock::default(), file: file.to_owned() }
    }
}

#[async_trait]
impl Clock for Wall {
    fn now(&self) -> Timestamp {
        let wrong = fs::read_to_string(&self.file).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        self.real.now() + SignedDuration::from_millis(wrong)
    }

    fn monotonic(&self) -> Duration {
        self.real.monotonic()
    }

    fn boot(&self) -> Option<BootTime> {
        self.real.boot()
    }

    async fn sleep(&self, duration: Duration) {
        self.real.sleep(duration).await;
    }
}

/// Moves the clock forwards and back.
pub struct Hand {
    file: PathBuf,
    lease: Duration,
    /// Largest error so far.
    furthest: usize,
}

impl Hand {
    pub fn on(file: PathBuf, lease: Duration) -> Self {
        Self { file, lease, furthest: 0 }
    }

    fn set(&mut self, wrong: usize) {
        self.furthest = self.furthest.max(wrong);
        // The rename is atomic for concurrent readers.
        let new = self.file.with_extension("new");
        fs::write(&new, wrong.to_string()).unwrap();
        fs::rename(&new, &self.file).unwrap();
    }

    /// Sets a random error.
    pub fn strike(&mut self, chance: &mut Rng) {
        let lease = usize::try_from(self.lease.as_millis()).unwrap();
        // Slightly more than a lease, or minutes.
        let wrong = if chance.percent(70) { lease + chance.below(lease) } else { chance.below(MOST) };
        self.set(if chance.percent(30) { 0 } else { wrong });
    }

    /// Sets the clock to its largest error so far, past all recorded times. A call with an unknown
    /// outcome is awaited by this clock, and the run ends before that.
    pub fn calm(&mut self) {
        self.set(self.furthest);
    }
}
