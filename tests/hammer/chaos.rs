//! Fault injection and its random numbers.

use std::time::Duration;

use async_trait::async_trait;
use bmc_simulator::{Fault, FaultAction, Simulator};

/// Random numbers from a seed (SplitMix64). The same seed repeats the choices, but not the races.
#[derive(Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, which is at least one.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(limit).unwrap()).unwrap()
    }

    /// Returns true in the given percentage of cases.
    pub fn percent(&mut self, share: usize) -> bool {
        self.below(100) < share
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { from.get(self.below(from.len())) }
    }

    pub fn between(&mut self, from: Duration, to: Duration) -> Duration {
        from + Duration::from_millis(self.next() % u64::try_from((to - from).as_millis()).unwrap().max(1))
    }
}

/// Injects faults between the processes and external systems, such as cut or delayed connections
/// and lost replies. Called at random times, even while an earlier fault lasts.
#[async_trait]
pub trait Gremlin: Send + Sync {
    /// Injects a random fault for a random time.
    async fn strike(&self, chance: &mut Rng);

    /// Ends all faults. No more follow.
    async fn calm(&self);
}

/// A BMC that does not answer its next change, which can be applied or not.
#[derive(Debug)]
pub struct LostReplies(pub Simulator);

#[async_trait]
impl Gremlin for LostReplies {
    async fn strike(&self, chance: &mut Rng) {
        let systems = self.0.systems();
        let Some(system) = chance.pick(&systems) else { return };
        let action = if chance.percent(50) { FaultAction::LoseReply } else { FaultAction::Cut };
        let method = if chance.percent(50) { "POST" } else { "PATCH" };
        let fault = Fault::new(action).on_system(system).on_request(method, "*/Systems/*").times(1);
        let _ = self.0.inject(fault);
    }

    async fn calm(&self) {
        self.0.clear_faults();
    }
}
