//! Durations in each world, short enough for a few ticks.

use std::time::Duration;

use jiff::SignedDuration;
use maintenance_protocol::power::Limits;

/// One tick is one second on every clock.
pub const TICK: SignedDuration = SignedDuration::from_secs(1);
/// How long an absent waiter's queue position is reserved.
pub const HOLD_PLACE: SignedDuration = SignedDuration::from_secs(2);
/// The simulated faults. Combining both would create too many states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// Paused or disconnected processes: their leases end while they work. The BMC applies accepted
    /// calls immediately.
    Leases,
    /// Calls that take effect after their answer, and runs that are stopped or reach their limit
    /// before that. Heartbeats reach the store.
    Calls,
}

impl About {
    /// A lease.
    pub fn lease(self) -> SignedDuration {
        match self {
            Self::Leases => TICK * 3,
            Self::Calls => TICK,
        }
    }

    /// How long a process treats a lease as safe: shorter than the lease if that can expire.
    pub fn safe(self) -> SignedDuration {
        match self {
            Self::Leases => TICK * 2,
            Self::Calls => TICK,
        }
    }

    /// Maximum delay of an accepted power change. It takes effect within this time, or never.
    pub fn power_change(self) -> SignedDuration {
        match self {
            Self::Leases => SignedDuration::ZERO,
            Self::Calls => TICK,
        }
    }

    /// Time limits, short enough for a few ticks.
    pub fn limits(self) -> Limits {
        let long = |ticks: SignedDuration| Duration::try_from(ticks).unwrap();
        let change = long(self.power_change());
        Limits {
            graceful_shutdown: change,
            power_change: change,
            boot_progress: Duration::ZERO,
            // Without late effects, calls do not need to be recorded.
            call: if self == Self::Leases { Duration::ZERO } else { long(self.lease()) },
            settle: change,
            media: change,
            busy: change,
            post: change,
            attempts: 2,
            retry_pause: change,
        }
    }
}
