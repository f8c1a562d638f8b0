//! How big a run is: small by default, anything by the environment.

use std::{env, str::FromStr, time::Duration};

use crate::arena::Kind;

/// The size of a run.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// How long new holds are asked for and things go wrong.
    pub chaos: Duration,
    /// How many processes hold at once.
    pub processes: usize,
    /// How many machines they fight for.
    pub servers: usize,
    pub seed: u64,
    /// The coordination store; none for a file of the run's own.
    pub url: Option<String>,
    /// The lease of every process: short, so that a stop outlasts it.
    pub lease: Duration,
    /// How long it is between two strikes, at most.
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

    /// The same for a store that is so much slower that nobody would ever come to an end: an API
    /// server with etcd under it, on the processors that the run has too.
    pub fn on(self, kind: Kind) -> Self {
        match kind {
            Kind::Kubernetes => {
                Self { processes: self.processes.div_ceil(2), lease: self.lease * 2, pause: self.pause * 4, ..self }
            }
            Kind::Sqlite | Kind::Postgres => self,
        }
    }
}

fn number<T: FromStr>(name: &str, default: T) -> T {
    match env::var(name) {
        Ok(text) if !text.is_empty() => text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        _ => default,
    }
}
