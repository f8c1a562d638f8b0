//! Size of a run, small by default and set by environment variables.

use std::{env, str::FromStr, time::Duration};

use crate::arena::Kind;

/// Size of a run.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Duration of new holds and faults.
    pub chaos: Duration,
    /// Number of parallel processes.
    pub processes: usize,
    /// Number of machines.
    pub servers: usize,
    pub seed: u64,
    /// Coordination store; `None` for a temporary file.
    pub url: Option<String>,
    /// Lease of every process, short enough for a stop to outlast it.
    pub lease: Duration,
    /// Maximum time between two faults.
    pub pause: Duration,
}

impl Sizes {
    pub fn from_environment() -> Self {
        Self {
            chaos: Duration::from_secs(number("HAMMER_SECONDS", 12)),
            processes: number("HAMMER_PROCESSES", 12),
            servers: number("HAMMER_SERVERS", 4),
            seed: number(
                "HAMMER_SEED",
                u64::from(std::process::id()) ^ jiff::Timestamp::now().as_second().unsigned_abs(),
            ),
            url: env::var("HAMMER_URL").ok().filter(|url| !url.is_empty()),
            lease: Duration::from_millis(number("HAMMER_LEASE_MS", 1500)),
            pause: Duration::from_millis(number("HAMMER_PAUSE_MS", 350)),
        }
    }

    /// Adjusts the size for a slow store: a server that shares the run's CPUs.
    pub fn on(self, kind: Kind) -> Self {
        match kind {
            Kind::Kubernetes | Kind::Bucket => {
                Self { processes: self.processes.div_ceil(2), lease: self.lease * 2, pause: self.pause * 4, ..self }
            }
            Kind::Sqlite | Kind::Postgres => self,
        }
    }
}

fn number<T: FromStr>(name: &str, default: T) -> T {
    match env::var(name) {
        Ok(text) if !text.is_empty() => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        _ => default,
    }
}
