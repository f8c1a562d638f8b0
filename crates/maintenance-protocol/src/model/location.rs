//! Where a server and its external request are. Each record stores its location, so every later
//! process acts there even if its own configuration points elsewhere.

use std::fmt;

use serde::{Deserialize, Serialize};
use shown_text::OneLine;

/// A backend's kind, by its block name in the provider configuration. A record can contain a kind
/// that this version does not support.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BackendKind(OneLine);

impl BackendKind {
    /// Creates the kind with this name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self(name.into())
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.shown()
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies a Kubernetes cluster independently of its address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterIdentity {
    /// UID of the namespace `kube-system`; `None` without permission to read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<OneLine>,
    /// UID of the Server object; `None` if it does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_uid: Option<OneLine>,
    /// The address used, for people. It is not compared, because a cluster can have several.
    pub address: OneLine,
}

/// Returns `ours` if the queried cluster differs from it. Both are UIDs of namespace `kube-system`.
/// A UID hidden by a role counts as equal.
#[must_use]
pub(crate) fn other_cluster<'a>(ours: Option<&'a OneLine>, asked: Option<&OneLine>) -> Option<&'a OneLine> {
    ours.filter(|ours| asked.is_some_and(|asked| asked != *ours))
}

/// How to reach a server and its external request.
///
/// The requesting configuration determines it, so neither the spec nor its digest contains it. The
/// BMC address is not stored, because the lock key identifies the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// Kind of the backend.
    pub backend: BackendKind,
    /// The cluster, for backends that use a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterIdentity>,
    /// Namespace of the provider's objects in that cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<OneLine>,
    /// The system's path on its BMC, if the backend discovered it. It is not compared, because a
    /// firmware update can rename it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<OneLine>,
}

/// The reason why a configuration cannot act on a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// The backend differs.
    Backend,
    /// The cluster differs.
    Cluster,
    /// The clusters cannot be compared: neither `kube-system` nor the Server identifies them.
    Unproven,
}

impl Location {
    /// Creates a location without a cluster.
    #[must_use]
    pub fn direct(backend: &str) -> Self {
        Self { backend: BackendKind::named(backend), cluster: None, namespace: None, system: None }
    }

    /// Compares a record's location (`self`) with the location that a configuration reaches. The
    /// namespace is not compared, because the process uses the recorded namespace.
    ///
    /// # Errors
    ///
    /// Returns the difference.
    pub fn compare(&self, reached: &Self) -> Result<(), Elsewhere> {
        if self.backend != reached.backend {
            return Err(Elsewhere::Backend);
        }
        let (Some(ours), Some(theirs)) = (&self.cluster, &reached.cluster) else { return Ok(()) };
        let both = |one: &Option<OneLine>, other: &Option<OneLine>| {
            one.as_ref().zip(other.as_ref()).map(|(one, other)| one == other)
        };
        match (both(&ours.uid, &theirs.uid), both(&ours.server_uid, &theirs.server_uid)) {
            (Some(true), _) | (None, Some(true)) => Ok(()),
            (Some(false), _) => Err(Elsewhere::Cluster),
            // A recreated Server gets a new UID in the same cluster.
            (None, Some(false) | None) => Err(Elsewhere::Unproven),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, cluster, namespace, system } = self;
        write!(f, "{backend}")?;
        if let Some(ClusterIdentity { address, uid, .. }) = cluster {
            write!(f, ", cluster {address}")?;
            if let Some(uid) = uid {
                write!(f, " (UID of kube-system: {uid})")?;
            }
        }
        if let Some(namespace) = namespace {
            write!(f, ", namespace {namespace}")?;
        }
        if let Some(system) = system {
            write!(f, ", system {system}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(uid: Option<&str>, server_uid: Option<&str>, namespace: &str) -> Location {
        let own = |text: Option<&str>| text.map(OneLine::from);
        let address = format!("https://{namespace}").into();
        Location {
            backend: BackendKind::named("metal_operator"),
            cluster: Some(ClusterIdentity { uid: own(uid), server_uid: own(server_uid), address }),
            namespace: Some(namespace.into()),
            system: None,
        }
    }

    #[test]
    fn only_proof_makes_two_places_one() {
        let ours = |uid, server| cluster(uid, server, "a");
        let theirs = |uid, server| cluster(uid, server, "b");
        for (uid, server, reached_uid, reached_server, expected) in [
            (Some("k1"), Some("s1"), Some("k1"), Some("s1"), Ok(())),
            // The Server was recreated.
            (Some("k1"), Some("s1"), Some("k1"), Some("s2"), Ok(())),
            (Some("k1"), Some("s1"), Some("k1"), None, Ok(())),
            // One side lacks the permission.
            (None, Some("s1"), Some("k1"), Some("s1"), Ok(())),
            (Some("k1"), Some("s1"), None, Some("s1"), Ok(())),
            (Some("k1"), Some("s1"), Some("k2"), Some("s2"), Err(Elsewhere::Cluster)),
            // Two clusters restored from the same backup.
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
