//! The API server's time.

use jiff::{SignedDuration, Timestamp, fmt::rfc2822};
use kube::{
    client::Body,
    core::{params::GetParams, request::Request as Path},
};

use super::{Cluster, ClusterError, RequestInfo};

impl Cluster {
    /// Returns the answering API server's time, from the `Date` header (RFC 9110, section 6.6.1)
    /// in whole seconds.
    pub async fn time(&self) -> Result<Timestamp, ClusterError> {
        // Every authenticated user can read the version (ClusterRole system:public-info-viewer).
        let request = RequestInfo { verb: "get", resource: "/version", namespace: None, name: None };
        let asked = self.call(request, |client| async move {
            let path = Path::new("").get("version", &GetParams::default()).map_err(kube::Error::BuildRequest)?;
            let reply = client.send(path.map(Body::from)).await?;
            Ok(reply.headers().get("date").and_then(|date| date.to_str().ok()).map(str::to_owned))
        });
        let date = Box::pin(asked).await?;
        let wrong = |what: String| ClusterError::Protocol {
            address: self.address().into(),
            request: request.to_string().into(),
            what: what.into(),
        };
        let date = date.ok_or_else(|| wrong("the answer lacks a Date".to_owned()))?;
        let at = rfc2822::parse(&date).map_err(|error| wrong(format!("the Date {date:?}: {error}")))?;
        // Halfway through the reported second.
        Ok(at.timestamp() + SignedDuration::from_millis(500))
    }
}
