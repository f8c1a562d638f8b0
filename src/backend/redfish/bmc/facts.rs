//! Facts of a BMC that are known without asking it.

use super::{Bmc, Duration, PoisonError};

impl Bmc {
    /// The slowest read that was answered in this process.
    pub(in crate::backend::redfish) fn slowest_read(&self) -> Duration {
        *self.slowest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an answer was not valid JSON, and warns of it once.
    pub(in crate::backend::redfish) fn note_flaw(&self, request: &str, flaw: &str) {
        let mut resources = self.resources.lock().unwrap_or_else(PoisonError::into_inner);
        if resources.flaws.insert(request.to_owned(), flaw.to_owned()).is_none() {
            tracing::warn!(
                "{}: the answer to {request} is not valid JSON ({flaw}); the valid part is used",
                self.address()
            );
        }
    }

    /// The requests whose answer was not valid JSON, each with the reason.
    pub(in crate::backend::redfish) fn flaws(&self) -> Vec<String> {
        let resources = self.resources.lock().unwrap_or_else(PoisonError::into_inner);
        resources.flaws.iter().map(|(request, flaw)| format!("{request}: {flaw}")).collect()
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
