//! The clock on the wall of the machine that all processes share, and the hand that sets it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use terraform_provider_metal::clock::{BootTime, Clock, SystemClock};

use crate::chaos::Rng;

/// By how much it is wrong at most: far more than a lease, less than what a place in the queue is
/// kept for.
const MOST: usize = 600_000;

/// The machine's clocks, of which the one on the wall is wrong by as many milliseconds as a file
/// says.
#[derive(Debug, Default)]
pub struct Wall {
    real: SystemClock,
    file: PathBuf,
}

impl Wall {
    /// Wrong by what this file says; right when it is not there.
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

/// Sets the clock forwards and back.
pub struct Hand {
    file: PathBuf,
    lease: Duration,
    /// The most that it was wrong by.
    furthest: usize,
}

impl Hand {
    pub fn on(file: PathBuf, lease: Duration) -> Self {
        Self { file, lease, furthest: 0 }
    }

    fn set(&mut self, wrong: usize) {
        self.furthest = self.furthest.max(wrong);
        // All at once: who reads in between sees the one or the other.
        let new = self.file.with_extension("new");
        fs::write(&new, wrong.to_string()).unwrap();
        fs::rename(&new, &self.file).unwrap();
    }

    /// Sets the clock.
    pub fn strike(&mut self, chance: &mut Rng) {
        let lease = usize::try_from(self.lease.as_millis()).unwrap();
        // By a little more than a lease, or by minutes.
        let wrong = if chance.percent(70) { lease + chance.below(lease) } else { chance.below(MOST) };
        self.set(if chance.percent(30) { 0 } else { wrong });
    }

    /// Sets it for the last time, past everything that was dated by it: a call whose outcome is not
    /// known is waited for until it cannot come any more, by this clock, and a run does not last
    /// that long.
    pub fn calm(&mut self) {
        self.set(self.furthest);
    }
}
