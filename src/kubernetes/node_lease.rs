//! The lock that medik8s operators share: a Lease per Node.
//!
//! Node maintenance, self remediation and related operators hold `node-<name>` in the namespace
//! `medik8s-leases` while they work on a Node (<https://github.com/medik8s/common>, `pkg/lease`). A
//! process that takes a Node's server out of service should acquire it too, and must wait while
//! another component has it.
//!
//! Those operators judge a Lease by their own clocks; this module uses the API server's time. The
//! Lease is an advisory lock with a time limit and cannot replace the coordination store: a silent
//! holder loses it.

use std::{fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::Node,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference},
};
use kube::{
    Api,
    api::{DeleteParams, PostParams, Preconditions},
    core::ObjectMeta,
};

use super::{Cluster, ClusterError, RequestInfo};

/// medik8s's default namespace (`LEASE_NAMESPACE`).
pub const NAMESPACE: &str = "medik8s-leases";

const LEASES: &str = "leases.coordination.k8s.io";

/// Attempts against concurrent writers before an error is returned.
const TRIES: usize = 5;

/// A Node Lease's holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The holder's name, for example `node-maintenance`.
    pub identity: String,
    /// When it acquired the Lease, by its own clock.
    pub since: Option<Timestamp>,
    /// When it last renewed the Lease, by its own clock.
    pub renewed: Option<Timestamp>,
    /// How long the Lease lasts after the renewal.
    pub duration: Duration,
    /// True if the Lease has expired by the API server's time, so that any component can take it. A
    /// Lease from the future is valid.
    pub expired: bool,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.identity)?;
        if let Some(since) = self.since {
            write!(f, " since {since}")?;
        }
        if self.expired { write!(f, ", expired") } else { Ok(()) }
    }
}

/// Why a Node's Lease could not be acquired or renewed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeLeaseError {
    /// Another component has an unexpired Lease.
    #[error("the node {node} is held by {holder} (Lease {namespace}/{lease})")]
    Held {
        /// The Node.
        node: String,
        /// The holder.
        holder: Box<Holder>,
        /// The Lease's namespace.
        namespace: String,
        /// The Lease's name.
        lease: String,
    },
    /// The cluster request failed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

/// The Node Leases of a cluster.
#[derive(Clone, Debug)]
pub struct NodeLeases {
    cluster: Cluster,
    namespace: String,
}

impl NodeLeases {
    /// Returns the Leases in a namespace, usually [`NAMESPACE`].
    #[must_use]
    pub fn new(cluster: Cluster, namespace: &str) -> Self {
        Self { cluster, namespace: namespace.to_owned() }
    }

    /// Returns a Node Lease's holder; `None` if the Lease is free.
    pub async fn observe(&self, node: &str) -> Result<Option<Holder>, ClusterError> {
        match self.get(node).await? {
            Some(lease) => Ok(holder(&lease, self.cluster.time().await?)),
            None => Ok(None),
        }
    }

    /// Acquires a Node's Lease for `duration`, or renews ours. Fails while another component has
    /// it.
    pub async fn take(&self, node: &str, identity: &str, duration: Duration) -> Result<(), NodeLeaseError> {
        for _ in 0..TRIES {
            let now = self.cluster.time().await?;
            let done = match self.get(node).await? {
                None => self.create(node, identity, duration, now).await?,
                Some(lease) => match holder(&lease, now) {
                    Some(other) if other.identity != identity && !other.expired => {
                        return Err(self.held(node, other));
                    }
                    _ => self.write(node, lease, identity, duration, now).await?,
                },
            };
            if done {
                return Ok(());
            }
        }
        Err(self.contended(node))
    }

    /// Releases a Node's Lease if it is ours; otherwise returns false.
    pub async fn release(&self, node: &str, identity: &str) -> Result<bool, NodeLeaseError> {
        // An earlier deletion without a reply could have succeeded.
        let mut lost = false;
        for _ in 0..TRIES {
            let Some(lease) = self.get(node).await? else { return Ok(lost) };
            if lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) != Some(identity) {
                return Ok(false);
            }
            let name = name(node);
            let seen = Preconditions { resource_version: lease.metadata.resource_version, uid: lease.metadata.uid };
            let how = &DeleteParams { preconditions: Some(seen), ..DeleteParams::default() };
            let deleted = self.cluster.call(self.request("delete", &name), |client| {
                let (leases, name) = (Api::<Lease>::namespaced(client, &self.namespace), name.as_str());
                async move { leases.delete(name, how).await }
            });
            match Box::pin(deleted).await {
                Ok(_) => return Ok(true),
                Err(ClusterError::NotFound { .. }) => return Ok(lost),
                Err(ClusterError::Conflict { .. }) => {}
                Err(ClusterError::ReplyLost { .. }) => lost = true,
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.contended(node))
    }

    fn request<'a>(&'a self, verb: &'static str, name: &'a str) -> RequestInfo<'a> {
        RequestInfo { verb, resource: LEASES, namespace: Some(&self.namespace), name: Some(name) }
    }

    fn held(&self, node: &str, holder: Holder) -> NodeLeaseError {
        let (namespace, lease) = (self.namespace.clone(), name(node));
        NodeLeaseError::Held { node: node.to_owned(), holder: Box::new(holder), namespace, lease }
    }

    fn contended(&self, node: &str) -> NodeLeaseError {
        let message = "other writers changed it at the same time in every attempt".to_owned();
        let request = self.request("update", &name(node)).to_string();
        ClusterError::Conflict {
            address: self.cluster.address().into(),
            request: request.into(),
            message: message.into(),
        }
        .into()
    }

    async fn get(&self, node: &str) -> Result<Option<Lease>, ClusterError> {
        let name = name(node);
        let got = self.cluster.call(self.request("get", &name), |client| {
            let (leases, name) = (Api::<Lease>::namespaced(client, &self.namespace), name.as_str());
            async move { leases.get(name).await }
        });
        match Box::pin(got).await {
            Ok(lease) => Ok(Some(lease)),
            Err(ClusterError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a Lease; returns false if another component was faster.
    async fn create(
        &self,
        node: &str,
        identity: &str,
        duration: Duration,
        now: Timestamp,
    ) -> Result<bool, ClusterError> {
        let asked = RequestInfo { verb: "get", resource: "nodes", namespace: None, name: Some(node) };
        let found = self.cluster.call(asked, |client| {
            let nodes = Api::<Node>::all(client);
            async move { nodes.get(node).await }
        });
        let owner = Box::pin(found).await?;
        // The Lease is deleted together with its Node, like those of medik8s.
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: node.to_owned(),
            uid: owner.metadata.uid.unwrap_or_default(),
            ..OwnerReference::default()
        };
        let name = name(node);
        let metadata =
            ObjectMeta { name: Some(name.clone()), owner_references: Some(vec![owner]), ..ObjectMeta::default() };
        let spec = LeaseSpec { lease_transitions: Some(0), ..taken(LeaseSpec::default(), identity, duration, now) };
        let lease = &Lease { metadata, spec: Some(spec) };
        let made = self.cluster.call(self.request("create", &name), |client| {
            let leases = Api::<Lease>::namespaced(client, &self.namespace);
            async move { leases.create(&PostParams::default(), lease).await }
        });
        match Box::pin(made).await {
            Ok(_) => Ok(true),
            Err(ClusterError::AlreadyExists { .. } | ClusterError::ReplyLost { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Updates the read Lease with us as its holder; returns false if another component was faster.
    async fn write(
        &self,
        node: &str,
        mut lease: Lease,
        identity: &str,
        duration: Duration,
        now: Timestamp,
    ) -> Result<bool, ClusterError> {
        let old = lease.spec.take().unwrap_or_default();
        lease.spec = Some(if old.holder_identity.as_deref() == Some(identity) {
            LeaseSpec { acquire_time: old.acquire_time.clone(), ..taken(old, identity, duration, now) }
        } else {
            let transitions = old.lease_transitions.unwrap_or_default().saturating_add(1);
            LeaseSpec { lease_transitions: Some(transitions), ..taken(old, identity, duration, now) }
        });
        let (name, lease) = (name(node), &lease);
        let written = self.cluster.call(self.request("update", &name), |client| {
            let (leases, name) = (Api::<Lease>::namespaced(client, &self.namespace), name.as_str());
            async move { leases.replace(name, &PostParams::default(), lease).await }
        });
        match Box::pin(written).await {
            Ok(_) => Ok(true),
            // The next read shows if a write without a reply was applied.
            Err(ClusterError::Conflict { .. } | ClusterError::NotFound { .. } | ClusterError::ReplyLost { .. }) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns a Node Lease's name.
fn name(node: &str) -> String {
    format!("node-{}", node.to_lowercase())
}

fn taken(old: LeaseSpec, identity: &str, duration: Duration, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(i32::try_from(duration.as_secs().max(1)).unwrap_or(i32::MAX)),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        ..old
    }
}

/// Returns the holder; `None` if the Lease is free.
fn holder(lease: &Lease, now: Timestamp) -> Option<Holder> {
    let spec = lease.spec.as_ref()?;
    let identity = spec.holder_identity.clone().filter(|identity| !identity.is_empty())?;
    let seconds = spec.lease_duration_seconds.unwrap_or_default();
    let renewed = spec.renew_time.as_ref().or(spec.acquire_time.as_ref()).map(|time| time.0);
    // A Lease without a time never expires.
    let over = |at: Timestamp| at.checked_add(SignedDuration::from_secs(seconds.into())).is_ok_and(|end| end < now);
    Some(Holder {
        identity,
        since: spec.acquire_time.as_ref().map(|time| time.0),
        renewed,
        duration: Duration::from_secs(u64::try_from(seconds).unwrap_or_default()),
        expired: renewed.is_some_and(over),
    })
}
