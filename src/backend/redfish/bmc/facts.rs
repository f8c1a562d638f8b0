//! Facts of a BMC that are known without asking it.

use super::{Bmc, Duration, PoisonError};

impl Bmc {
    /// The slowest read that was answered in this process.
    pub(in crate::backend::redfish) fn slowest_read(&self) -> Duration {
        *self.slowest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The account.
    pub(in crate::backend::redfish) fn username(&self) -> &str {
        &self.username
    }

    /// The setting that decides which certificate is trusted.
    pub(in crate::backend::redfish) fn judged_by(&self) -> &'static str {
        self.trusting.judged_by
    }
}
