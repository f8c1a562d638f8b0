//! `s3://bucket/prefix?endpoint=…&region=…`, `gs://bucket/prefix`, `az://account/container/prefix`

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
    /// The environment variables of the clouds' clients. They can contain credentials.
    pub variables: Vec<(String, SecretString)>,
}

impl Default for BucketOptions {
    fn default() -> Self {
        Self { patience: Duration::from_secs(10), time: None, variables: Vec::new() }
    }
}

/// A service's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    S3,
    Gcs,
    Azure,
}

impl Service {
    fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Azure => "az",
        }
    }
}

/// A parsed URL.
#[derive(Clone, Debug)]
pub(in crate::store) struct Parsed {
    pub(super) service: Service,
    /// The storage account, for Azure.
    pub(super) account: Option<String>,
    pub(in crate::store) bucket: String,
    pub(super) prefix: String,
    pub(super) endpoint: Option<Url>,
    pub(super) region: Option<String>,
    /// True if requests can leave this machine without TLS.
    pub(super) plain_text: bool,
    pub(super) address: String,
}

const FORM: &str = "write s3://bucket/prefix, gs://bucket/prefix or az://account/container/prefix, with ?endpoint=… and \
                    &region=… for other servers";

/// Parses a URL. It contains no credentials: they come from the environment or the machine.
pub(in crate::store) fn parse(text: &str) -> Result<Parsed, StoreError> {
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    let service = [Service::S3, Service::Gcs, Service::Azure].into_iter().find(|service| service.scheme() == scheme);
    let address = format!("{}://", service.map_or("s3", Service::scheme));
    let refused = |cause: String| StoreError::Forbidden { address: address.clone(), cause: cause.into() };
    let service = service.ok_or_else(|| refused(format!("its URL cannot be read; {FORM}")))?;
    let url = Url::parse(text).map_err(|error| refused(format!("its URL cannot be read ({error}); {FORM}")))?;
    if url.port().is_some() || !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return Err(refused(format!("its URL contains more than a bucket, a prefix and parameters; {FORM}")));
    }
    let mut names = vec![url.host_str().unwrap_or_default().to_owned()];
    names.extend(url.path().split('/').filter(|name| !name.is_empty()).map(str::to_owned));
    if !names.iter().all(|name| is_plain(name)) {
        return Err(refused(format!("a bucket or prefix consists of letters, digits, '.', '-' and '_'; {FORM}")));
    }
    let account = (service == Service::Azure).then(|| names.remove(0));
    if names.is_empty() {
        return Err(refused(format!("its URL lacks a container; {FORM}")));
    }
    let (bucket, prefix) = (names.remove(0), names.join("/"));
    let mut parsed = Parsed {
        service,
        account,
        bucket,
        prefix,
        endpoint: None,
        region: None,
        plain_text: false,
        address: String::new(),
    };
    for (name, value) in url.query_pairs() {
        match name.as_ref() {
            "endpoint" if parsed.endpoint.is_none() => parsed.endpoint = Some(endpoint(&value).map_err(refused)?),
            "region" if parsed.region.is_none() && service == Service::S3 && is_plain(&value) => {
                parsed.region = Some(value.into_owned());
            }
            "plain_text" if value == "true" => parsed.plain_text = true,
            other => return Err(refused(format!("its URL has the unknown parameter {other:?}; {FORM}"))),
        }
    }
    let place = parsed.account.iter().map(String::as_str).chain([parsed.bucket.as_str(), parsed.prefix.as_str()]);
    let place: Vec<&str> = place.filter(|name| !name.is_empty()).collect();
    let at = parsed.endpoint.as_ref().map(|endpoint| format!("?endpoint={endpoint}")).unwrap_or_default();
    parsed.address = format!("{}://{}{}", service.scheme(), place.join("/"), at.trim_end_matches('/'));
    Ok(parsed)
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
        match (&self.endpoint, self.service) {
            (Some(endpoint), _) => endpoint.host_str() == Some(host),
            (None, Service::S3) => host.contains("s3") && host.contains(".amazonaws.com"),
            (None, Service::Gcs) => host.ends_with("googleapis.com") && host.starts_with("storage"),
            (None, Service::Azure) => host.contains(".blob."),
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
        let parsed = parse("az://account/container/prefix").unwrap();
        assert_eq!((parsed.account.as_deref(), parsed.bucket.as_str()), (Some("account"), "container"));
        assert_eq!((parsed.prefix.as_str(), parsed.address.as_str()), ("prefix", "az://account/container/prefix"));
        assert_eq!(parse("gs://locks").unwrap().path("x"), "x");
        assert!(parse("s3://locks?endpoint=http://minio:9000").unwrap().unencrypted());
        for bad in [
            "s3://",
            "s3:///x",
            "az://account",
            "s3://key:hunter2@locks",
            "s3://locks:1",
            "s3://locks/a%20b",
            "s3://locks/../x%2e",
            "s3://locks?nonsense=hunter2",
            "s3://locks?endpoint=relative",
            "s3://locks?endpoint=http://u:hunter2@host",
            "gs://locks?region=x",
        ] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
