//! Where a server and the external request of a record are: kept in the record, so that every later
//! process acts there and not where its own configuration points.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of a backend, by the name of its block in the provider configuration. A record may name
/// one that this version does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BackendKind(String);

impl BackendKind {
    /// The backend of that name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What identifies a Kubernetes cluster, whatever address it is reached at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterIdentity {
    /// The UID of its namespace `kube-system`; `None` where that may not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The UID of the Server object; `None` where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_uid: Option<String>,
    /// The address at which it was reached, for people. Never compared: one cluster has many.
    pub address: String,
}

/// Returns our cluster, if the one that was asked is known to be another; both by the UID of their
/// namespace `kube-system`. Where a role hides one of them, it is not known.
#[must_use]
pub(crate) fn other_cluster<'a>(ours: Option<&'a str>, asked: Option<&str>) -> Option<&'a str> {
    ours.filter(|ours| asked.is_some_and(|asked| asked != *ours))
}

/// Where a server is reached, and where the external request for it lies.
///
/// Not part of the spec nor of its digest: it is a fact of the configuration that enqueued, not a
/// wish. The address of a BMC is not kept, because the lock key identifies the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// The kind of the backend.
    pub backend: BackendKind,
    /// The cluster, for a backend that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterIdentity>,
    /// The namespace of our own objects in that cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The system's path behind its BMC, if the backend found it there. Never compared: a firmware
    /// update can rename it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
}

/// Why a configuration cannot act on a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// Another kind of backend.
    Backend,
    /// Another cluster.
    Cluster,
    /// The clusters cannot be compared: neither `kube-system` nor the Server tells.
    Unproven,
}

impl Location {
    /// The location of servers that a backend reaches without a cluster.
    #[must_use]
    pub fn direct(backend: &str) -> Self {
        Self { backend: BackendKind::named(backend), cluster: None, namespace: None, system: None }
    }

    /// Compares the place of a record (`self`) with the place that a configuration reaches. The
    /// namespace is not compared: who acts uses that of the record.
    ///
    /// # Errors
    /// Why the configuration does not reach the record's place.
    pub fn compare(&self, reached: &Self) -> Result<(), Elsewhere> {
        if self.backend != reached.backend {
            return Err(Elsewhere::Backend);
        }
        let (Some(ours), Some(theirs)) = (&self.cluster, &reached.cluster) else { return Ok(()) };
        let both = |one: &Option<String>, other: &Option<String>| {
            one.as_ref().zip(other.as_ref()).map(|(one, other)| one == other)
        };
        match (both(&ours.uid, &theirs.uid), both(&ours.server_uid, &theirs.server_uid)) {
            (Some(true), _) | (None, Some(true)) => Ok(()),
            (Some(false), _) => Err(Elsewhere::Cluster),
            // A Server that was made again has another UID in the same cluster.
            (None, Some(false) | None) => Err(Elsewhere::Unproven),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.backend)?;
        if let Some(cluster) = &self.cluster {
            write!(f, ", cluster {}", cluster.address)?;
            if let Some(uid) = &cluster.uid {
                write!(f, " (UID of kube-system: {uid})")?;
            }
        }
        if let Some(namespace) = &self.namespace {
            write!(f, ", namespace {namespace}")?;
        }
        if let Some(system) = &self.system {
            write!(f, ", system {system}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(uid: Option<&str>, server_uid: Option<&str>, namespace: &str) -> Location {
        let own = |text: Option<&str>| text.map(str::to_owned);
        let address = format!("https://{namespace}");
        Location {
            backend: BackendKind::named("metal_operator"),
            cluster: Some(ClusterIdentity { uid: own(uid), server_uid: own(server_uid), address }),
            namespace: Some(namespace.to_owned()),
            system: None,
        }
    }

    #[test]
    fn only_proof_makes_two_places_one() {
        let ours = |uid, server| cluster(uid, server, "a");
        let theirs = |uid, server| cluster(uid, server, "b");
        for (uid, server, reached_uid, reached_server, expected) in [
            (Some("k1"), Some("s1"), Some("k1"), Some("s1"), Ok(())),
            // The Server was made again.
            (Some("k1"), Some("s1"), Some("k1"), Some("s2"), Ok(())),
            (Some("k1"), Some("s1"), Some("k1"), None, Ok(())),
            // A right is missing, then or now.
            (None, Some("s1"), Some("k1"), Some("s1"), Ok(())),
            (Some("k1"), Some("s1"), None, Some("s1"), Ok(())),
            (Some("k1"), Some("s1"), Some("k2"), Some("s2"), Err(Elsewhere::Cluster)),
            // Two clusters restored from one backup.
            (Some("k1"), Some("s1"), Some("k2"), Some("s1"), Err(Elsewhere::Cluster)),
            (None, Some("s1"), None, Some("s2"), Err(Elsewhere::Unproven)),
            (None, Some("s1"), Some("k1"), None, Err(Elsewhere::Unproven)),
            (Some("k1"), None, None, None, Err(Elsewhere::Unproven)),
        ] {
            let found = ours(uid, server).compare(&theirs(reached_uid, reached_server));
            assert_eq!(found, expected, "{uid:?} {server:?} {reached_uid:?} {reached_server:?}");
        }
    }

    #[test]
    fn another_backend_is_another_place() {
        let (cluster, redfish) = (cluster(Some("k1"), None, "a"), Location::direct("redfish"));
        assert_eq!(redfish.compare(&redfish), Ok(()));
        assert_eq!(cluster.compare(&redfish), Err(Elsewhere::Backend));
        assert_eq!(redfish.compare(&cluster), Err(Elsewhere::Backend));
    }

    #[test]
    fn what_was_stored_is_read_again() {
        let before = cluster(Some("k1"), None, "a");
        let text = serde_json::to_string(&before).unwrap();
        assert_eq!(
            text,
            r#"{"backend":"metal_operator","cluster":{"uid":"k1","address":"https://a"},"namespace":"a"}"#
        );
        assert_eq!(serde_json::from_str::<Location>(&text).unwrap(), before);
        assert_eq!(serde_json::to_string(&Location::direct("redfish")).unwrap(), r#"{"backend":"redfish"}"#);
    }
}
