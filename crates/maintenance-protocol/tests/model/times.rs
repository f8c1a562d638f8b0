//! How long things take in each world: short, so that all of it happens within a few ticks.

use std::time::Duration;

use jiff::SignedDuration;
use maintenance_protocol::power::Limits;

/// One tick is one second on every clock.
pub const TICK: SignedDuration = SignedDuration::from_secs(1);
/// For how long the place of an absent waiter is kept.
pub const HOLD_PLACE: SignedDuration = SignedDuration::from_secs(2);
/// What goes wrong. Both at once are more states than can be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// Processes that are paused or cut off from the store: their leases end while they work. A BMC
    /// does at once what it accepts.
    Leases,
    /// Calls whose effect comes later than the answer, and runs that are stopped or out of time
    /// meanwhile. Heartbeats reach the store.
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

    /// For how long the process judges a lease as safe: less than all of it, where it may run out.
    pub fn safe(self) -> SignedDuration {
        match self {
            Self::Leases => TICK * 2,
            Self::Calls => TICK,
        }
    }

    /// How long a power change may take after the BMC accepted it. It comes at any moment until
    /// then, or never.
    pub fn power_change(self) -> SignedDuration {
        match self {
            Self::Leases => SignedDuration::ZERO,
            Self::Calls => TICK,
        }
    }

    /// How long things may take: short, so that all of it happens within a few ticks.
    pub fn limits(self) -> Limits {
        let long = |ticks: SignedDuration| Duration::try_from(ticks).unwrap();
        let change = long(self.power_change());
        Limits {
            graceful_shutdown: change,
            power_change: change,
            boot_progress: Duration::ZERO,
            // Where nothing comes later than the answer, nothing has to be remembered of a call.
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
