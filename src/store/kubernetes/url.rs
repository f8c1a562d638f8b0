//! `kubernetes://namespace?context=…&kubeconfig=…`

use std::{path::PathBuf, sync::Arc, time::Duration};

use url::Url;

use crate::{clock::Clock, files::PathTrust, kubernetes::ClusterSettings, store::StoreError};

/// Options for a Kubernetes cluster.
#[derive(Clone, Debug)]
pub struct KubernetesOptions {
    /// How long requests retry before the store counts as unavailable.
    pub patience: Duration,
    /// Replaces the API servers' clocks, for tests that control the time.
    pub time: Option<Arc<dyn Clock>>,
    /// Whether files that other users can change are accepted.
    pub trust: PathTrust,
}

impl Default for KubernetesOptions {
    fn default() -> Self {
        Self { patience: Duration::from_secs(10), time: None, trust: PathTrust::Checked }
    }
}

/// A parsed URL.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) namespace: String,
    pub(super) address: String,
    pub(super) cluster: ClusterSettings,
}

/// Parses a URL. It contains no credentials: they come from the kubeconfig or the pod's service
/// account.
pub(super) fn parse(text: &str) -> Result<Parsed, StoreError> {
    let refused = |cause: String| StoreError::Forbidden { address: "kubernetes://".into(), cause: cause.into() };
    let form = "write kubernetes://namespace, and ?context=… and &kubeconfig=/path to override the defaults";
    let url = Url::parse(text).map_err(|error| refused(format!("its URL cannot be read ({error}); {form}")))?;
    let more = url.port().is_some() || !url.username().is_empty() || url.password().is_some();
    if more || !matches!(url.path(), "" | "/") || url.fragment().is_some() {
        return Err(refused(format!("its URL contains more than a namespace and parameters; {form}")));
    }
    let namespace = url.host_str().unwrap_or_default().to_owned();
    if !is_namespace(&namespace) {
        return Err(refused(format!("{namespace:?} is not a valid namespace name; {form}")));
    }
    let mut cluster = ClusterSettings::default();
    for (name, value) in url.query_pairs() {
        match name.as_ref() {
            "context" if cluster.context.is_none() => cluster.context = Some(value.into_owned()),
            "kubeconfig" if cluster.kubeconfig.is_none() && value.starts_with('/') => {
                cluster.kubeconfig = Some(PathBuf::from(value.into_owned()));
            }
            "kubeconfig" if cluster.kubeconfig.is_none() => {
                return Err(refused("the path of kubeconfig must be absolute".to_owned()));
            }
            "context" | "kubeconfig" => return Err(refused(format!("its URL sets {name} twice"))),
            other => return Err(refused(format!("its URL has the unknown parameter {other:?}; {form}"))),
        }
    }
    let at = cluster.context.as_ref().map(|context| format!("?context={context}")).unwrap_or_default();
    Ok(Parsed { address: format!("kubernetes://{namespace}{at}"), namespace, cluster })
}

/// Returns true for an RFC 1123 label, as the API server requires for a namespace.
fn is_namespace(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&name.len()) && name.chars().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}

/// Returns a URL's namespace.
pub(in crate::store) fn namespace_of(url: &str) -> Result<String, StoreError> {
    Ok(parse(url)?.namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_namespace_and_how_the_cluster_is_found() {
        let parsed = parse("kubernetes://metal?context=a%20b&kubeconfig=/tmp/k").unwrap();
        assert_eq!((parsed.namespace.as_str(), parsed.address.as_str()), ("metal", "kubernetes://metal?context=a b"));
        assert_eq!(parsed.cluster.kubeconfig.unwrap().to_str(), Some("/tmp/k"));
        assert_eq!(parse("kubernetes://metal/").unwrap().address, "kubernetes://metal");
        for bad in [
            "kubernetes://",
            "kubernetes:///x",
            "kubernetes://metal/x",
            "kubernetes://Metal_1",
            "kubernetes://-a",
            "kubernetes://a.b",
            "kubernetes://u:hunter2@metal",
            "kubernetes://metal:1",
            "kubernetes://metal?nonsense=hunter2",
            "kubernetes://metal?kubeconfig=relative",
            "kubernetes://metal?context=a&context=b",
        ] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
