//! `s3://bucket/prefix?endpoint=…&region=…`

use std::{sync::Arc, time::Duration};

use secrecy::SecretString;
use url::Url;

use crate::{clock::Clock, loopback::is_loopback, store::StoreError};

/// Options for a bucket.
#[derive(Clone, Debug)]
pub struct BucketOptions {
    /// How long requests retry before the store counts as unavailable.
    pub patience: Duration,
    /// Replaces the servers' clocks, for tests that control the time.
    pub time: Option<Arc<dyn Clock>>,
    /// The environment variables for AWS clients (`AWS_…`). They can contain credentials.
    pub variables: Vec<(String, SecretString)>,
}

impl Default for BucketOptions {
    fn default() -> Self {
        Self { patience: Duration::from_secs(10), time: None, variables: Vec::new() }
    }
}

/// A parsed URL.
#[derive(Clone, Debug)]
pub(in crate::store) struct Parsed {
    pub(in crate::store) bucket: String,
    pub(super) prefix: String,
    pub(super) endpoint: Option<Url>,
    pub(super) region: Option<String>,
    /// True if requests can leave this machine without TLS.
    pub(super) plain_text: bool,
    pub(super) address: String,
}

const FORM: &str = "write s3://bucket/prefix, with ?endpoint=… and &region=… for other servers";

/// Parses a URL. It contains no credentials: they come from the environment or the machine.
pub(in crate::store) fn parse(text: &str) -> Result<Parsed, StoreError> {
    let refused = |cause: String| StoreError::Forbidden { address: "s3://".to_owned().into(), cause: cause.into() };
    let url = Url::parse(text).map_err(|error| refused(format!("its URL cannot be read ({error}); {FORM}")))?;
    if url.port().is_some() || !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return Err(refused(format!("its URL contains more than a bucket, a prefix and parameters; {FORM}")));
    }
    let bucket = url.host_str().unwrap_or_default().to_owned();
    let names: Vec<&str> = url.path().split('/').filter(|name| !name.is_empty()).collect();
    if !is_plain(&bucket) || !names.iter().all(|name| is_plain(name)) {
        return Err(refused(format!("a bucket or prefix consists of letters, digits, '.', '-' and '_'; {FORM}")));
    }
    let prefix = names.join("/");
    let mut address = format!("s3://{bucket}/{prefix}").trim_end_matches('/').to_owned();
    let (mut server, mut region, mut plain_text) = (None, None, false);
    for (name, value) in url.query_pairs() {
        match name.as_ref() {
            "endpoint" if server.is_none() => server = Some(endpoint(&value).map_err(refused)?),
            "region" if region.is_none() && is_plain(&value) => region = Some(value.into_owned()),
            "plain_text" if value == "true" => plain_text = true,
            other => return Err(refused(format!("its URL has the unknown parameter {other:?}; {FORM}"))),
        }
    }
    if let Some(server) = &server {
        address.push_str(&format!("?endpoint={}", server.as_str().trim_end_matches('/')));
    }
    Ok(Parsed { bucket, prefix, endpoint: server, region, plain_text, address })
}

/// Returns true for a name that means the same in a URL, in a path and in a policy.
fn is_plain(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.chars().all(inner) && !name.chars().all(|c| c == '.')
}

fn endpoint(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("its endpoint cannot be read: {error}"))?;
    let bare = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() || !bare {
        return Err("its endpoint must be an http or https URL without credentials".to_owned());
    }
    Ok(url)
}

impl Parsed {
    /// Returns true if a host answers for this bucket. Other hosts issue credentials only.
    pub(super) fn is_served_by(&self, host: &str) -> bool {
        match &self.endpoint {
            Some(endpoint) => endpoint.host_str() == Some(host),
            None => host.starts_with("s3.") && host.contains(".amazonaws.com"),
        }
    }

    /// Returns the object path of a name.
    pub(in crate::store) fn path(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}/{name}", self.prefix) }
    }

    /// Returns true if requests to the endpoint are not encrypted on a network.
    pub(super) fn unencrypted(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| {
            endpoint.scheme() == "http" && !is_loopback(endpoint.host_str().unwrap_or_default())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_bucket_a_prefix_and_the_server() {
        let parsed = parse("s3://locks/team/a?endpoint=http://127.0.0.1:9000&region=eu-central-1").unwrap();
        assert_eq!((parsed.bucket.as_str(), parsed.prefix.as_str()), ("locks", "team/a"));
        assert_eq!(parsed.address, "s3://locks/team/a?endpoint=http://127.0.0.1:9000");
        assert_eq!((parsed.region.as_deref(), parsed.unencrypted()), (Some("eu-central-1"), false));
        assert_eq!(parsed.path("x"), "team/a/x");
        assert_eq!(parse("s3://locks").unwrap().path("x"), "x");
        assert!(parse("s3://locks?endpoint=http://minio:9000").unwrap().unencrypted());
        for bad in [
            "s3://",
            "s3:///x",
            "s3://key:hunter2@locks",
            "s3://locks:1",
            "s3://locks/a%20b",
            "s3://locks/../x%2e",
            "s3://locks?nonsense=hunter2",
            "s3://locks?endpoint=relative",
            "s3://locks?endpoint=http://u:hunter2@host",
            "s3://locks?region=x/y",
        ] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
