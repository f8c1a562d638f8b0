//! Follows redirects within the BMC, never to another host.
//!
//! HPE answers paths without their last slash with 308 and expects clients to follow; old
//! Supermicro BMCs answer 301. A redirected request was not performed, so a change can be repeated
//! at the target.

use reqwest::{Method, Response, StatusCode, header};

use crate::backend::BackendError;

use super::bmc::Bmc;

pub(super) const MOST: usize = 3;

impl Bmc {
    /// Returns the redirect target; `None` for any other answer. `Err` describes a redirect that is
    /// not followed.
    pub(super) fn redirected(
        &self,
        method: &Method,
        path: &str,
        response: &Response,
    ) -> Result<Option<String>, BackendError> {
        let status = response.status();
        if !status.is_redirection() || status == StatusCode::NOT_MODIFIED {
            return Ok(None);
        }
        let location = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
        let from = self.endpoint.join(path).ok();
        let to = location.and_then(|to| from.as_ref().unwrap_or(&self.endpoint).join(to).ok());
        let followed = matches!(status.as_u16(), 301 | 302 | 307 | 308);
        if let Some(to) = to.as_ref().filter(|_| followed)
            && to.origin() == self.endpoint.origin()
            && to.path().starts_with("/redfish/")
        {
            let query = to.query().map(|query| format!("?{query}")).unwrap_or_default();
            let to = format!("{}{query}", to.path());
            if matches!(status.as_u16(), 301 | 308) {
                self.moved(path, &to);
            }
            return Ok(Some(to));
        }
        let own = to.as_ref().is_some_and(|to| to.origin() == self.endpoint.origin());
        let to = to.map(|to| if own { to.path().to_owned() } else { to.origin().ascii_serialization() });
        Err(self.protocol(&format!(
            "{method} {path} was redirected to {}; redirects are followed on the BMC's own address and below /redfish only, so \
             that credentials go nowhere else. Set endpoint to the BMC's own address",
            to.unwrap_or_else(|| "nowhere".to_owned())
        )))
    }
}
