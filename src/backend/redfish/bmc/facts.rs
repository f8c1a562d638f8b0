//! BMC facts that do not require a request.

use super::{Bmc, Duration, PoisonError};
use crate::outbound::Route;

impl Bmc {
    /// Returns the slowest answered read in this process.
    pub(in crate::backend::redfish) fn slowest_read(&self) -> Duration {
        *self.slowest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an answer with invalid JSON, and warns once.
    pub(in crate::backend::redfish) fn note_flaw(&self, request: &str, flaw: &str) {
        let mut resources = self.resources.lock().unwrap_or_else(PoisonError::into_inner);
        if resources.flaws.insert(request.to_owned(), flaw.to_owned()).is_none() {
            tracing::warn!(
                "{}: the answer to {request} is not valid JSON ({flaw}); the valid part is used",
                self.address()
            );
        }
    }

    /// Returns the requests with invalid JSON in the answer, each with the reason.
    pub(in crate::backend::redfish) fn flaws(&self) -> Vec<String> {
        let resources = self.resources.lock().unwrap_or_else(PoisonError::into_inner);
        resources.flaws.iter().map(|(request, flaw)| format!("{request}: {flaw}")).collect()
    }

    pub(in crate::backend::redfish) fn username(&self) -> &str {
        &self.username
    }

    /// Returns the addresses to which this BMC's client can connect.
    pub(in crate::backend::redfish) fn route(&self) -> &Route {
        self.trusting.client.route()
    }

    /// Returns the setting that decides about trust.
    pub(in crate::backend::redfish) fn judged_by(&self) -> &'static str {
        self.trusting.judged_by
    }
}
