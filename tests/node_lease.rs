//! The Leases shared by medik8s operators, on a real API server.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, reason = "tests measure real time")]

#[path = "support/mod.rs"]
mod support;

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::Api;
use serde_json::json;
use support::{
    kubernetes::Kubernetes,
    kubernetes_proxy::{Deal, Proxy},
};
use terraform_provider_metal::{
    clock::SystemClock,
    kubernetes::{Cluster, ClusterError, ClusterSettings, NodeLeaseError, NodeLeases},
};

const HOUR: Duration = Duration::from_hours(1);

/// A namespace for Leases, and a node with a unique name.
struct Place {
    cluster: &'static Kubernetes,
    namespace: String,
    node: String,
}

impl Place {
    async fn new() -> Self {
        let make = || {
            let cluster = Kubernetes::shared();
            let namespace = cluster.namespace();
            let node = format!("node-of-{namespace}");
            cluster.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}).to_string());
            Self { cluster, namespace, node }
        };
        tokio::task::spawn_blocking(make).await.unwrap()
    }

    fn leases_of(&self, kubeconfig: PathBuf) -> NodeLeases {
        let settings = ClusterSettings { kubeconfig: Some(kubeconfig), ..ClusterSettings::default() };
        NodeLeases::new(Cluster::new(settings, Arc::new(SystemClock::default())), &self.namespace)
    }

    fn leases(&self) -> NodeLeases {
        self.leases_of(self.cluster.kubeconfig())
    }

    /// Writes a Lease of another operator.
    fn foreign(&self, renewed: Timestamp, seconds: u32) {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": format!("node-{}", self.node)},
            "spec": {
                "holderIdentity": "node-maintenance", "leaseDurationSeconds": seconds, "leaseTransitions": 4,
                "acquireTime": format!("{renewed:.6}"), "renewTime": format!("{renewed:.6}"),
            },
        });
        tokio::task::block_in_place(|| self.cluster.apply_in(&self.namespace, &lease.to_string()));
    }

    async fn lease(&self) -> Lease {
        let client = Kubernetes::client(&self.cluster.kubeconfig()).await;
        Api::namespaced(client, &self.namespace).get(&format!("node-{}", self.node)).await.unwrap()
    }
}

#[track_caller]
fn held_by(result: Result<(), NodeLeaseError>, identity: &str) {
    let error = result.unwrap_err();
    let NodeLeaseError::Held { holder, .. } = &error else { panic!("{error}") };
    assert_eq!(holder.identity, identity);
    assert!(error.to_string().contains(&format!("held by {identity:?}")), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_taken_again_and_given_back_by_its_holder_only() {
    let place = Place::new().await;
    let (leases, node) = (place.leases(), place.node.as_str());
    assert_eq!(leases.observe(node).await.unwrap(), None);
    leases.take(node, "us", HOUR).await.unwrap();
    let first = leases.observe(node).await.unwrap().unwrap();
    assert_eq!((first.identity.as_str(), first.duration, first.expired), ("us", HOUR, false));
    // The Lease is deleted with its node.
    let nodes: Api<Node> = Api::all(Kubernetes::client(&place.cluster.kubeconfig()).await);
    let owner = place.lease().await.metadata.owner_references.unwrap().remove(0);
    assert_eq!((owner.kind.as_str(), Some(owner.uid)), ("Node", nodes.get(node).await.unwrap().metadata.uid));

    held_by(leases.take(node, "them", HOUR).await, "us");
    assert!(!leases.release(node, "them").await.unwrap());
    assert_eq!(leases.observe(node).await.unwrap().unwrap(), first, "a foreign release changed the Lease");

    leases.take(node, "us", HOUR * 3).await.unwrap();
    let kept = leases.observe(node).await.unwrap().unwrap();
    assert_eq!((kept.since, kept.duration), (first.since, HOUR * 3));
    assert!(kept.renewed >= first.renewed);
    assert_eq!(place.lease().await.spec.unwrap().lease_transitions, Some(0));
    assert!(leases.release(node, "us").await.unwrap());
    assert_eq!(leases.observe(node).await.unwrap(), None);
    assert!(!leases.release(node, "us").await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_over_is_taken_over_and_what_is_not_is_left_alone() {
    let place = Place::new().await;
    let (leases, node) = (place.leases(), place.node.as_str());
    let now = Timestamp::now();
    // This includes an operator whose clock is ahead of the API server's.
    for renewed in [now - SignedDuration::from_mins(5), now + SignedDuration::from_mins(5)] {
        place.foreign(renewed, 3600);
        held_by(leases.take(node, "us", HOUR).await, "node-maintenance");
        assert!(!leases.release(node, "us").await.unwrap());
        assert_eq!(place.lease().await.spec.unwrap().holder_identity.as_deref(), Some("node-maintenance"));
    }
    place.foreign(now - SignedDuration::from_mins(61), 3600);
    assert!(leases.observe(node).await.unwrap().unwrap().expired);
    leases.take(node, "us", HOUR).await.unwrap();
    let spec = place.lease().await.spec.unwrap();
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_transitions), (Some("us"), Some(5)));
    assert_eq!((&spec.acquire_time, spec.lease_duration_seconds), (&spec.renew_time, Some(3600)));
    assert!(spec.renew_time.unwrap().0.duration_since(now).abs() < SignedDuration::from_secs(60));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_take_a_node_at_once_one_has_it() {
    let place = Place::new().await;
    for expired in [false, true] {
        if expired {
            place.foreign(Timestamp::now() - SignedDuration::from_hours(2), 3600);
        }
        let takers = (0..8).map(|n| {
            let (leases, node) = (place.leases(), place.node.clone());
            async move { leases.take(&node, &format!("taker-{n}"), HOUR).await }
        });
        let results = join_all(takers).await;
        let won: Vec<usize> = (0..8).filter(|n| results[*n].is_ok()).collect();
        let [winner] = won[..] else { panic!("{results:?}") };
        let winner = format!("taker-{winner}");
        for result in results.into_iter().filter(Result::is_err) {
            held_by(result, &winner);
        }
        assert!(place.leases().release(&place.node, &winner).await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_answered_by_looking() {
    let place = Place::new().await;
    let proxy = Proxy::to(place.cluster).await;
    let leases = place.leases_of(place.cluster.kubeconfig_at(&proxy.url(), "admin"));
    let lose_next = || {
        let mut left = 1;
        proxy.rule(move |seen| {
            if seen.method != "GET" && left > 0 {
                left -= 1;
                return Deal::LoseReply;
            }
            Deal::Pass
        });
    };
    lose_next();
    leases.take(&place.node, "us", HOUR).await.unwrap();
    lose_next();
    leases.take(&place.node, "us", HOUR * 2).await.unwrap();
    let spec = place.lease().await.spec.unwrap();
    assert_eq!((spec.lease_transitions, spec.lease_duration_seconds), (Some(0), Some(7200)));
    lose_next();
    assert!(leases.release(&place.node, "us").await.unwrap());
    assert_eq!(leases.observe(&place.node).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_is_named() {
    let place = Place::new().await;
    let error = place.leases().take("nowhere", "us", HOUR).await.unwrap_err();
    assert!(matches!(&error, NodeLeaseError::Cluster(ClusterError::NotFound { .. })), "{error}");
    assert!(error.to_string().contains("nodes nowhere"), "{error}");
    let error = place.leases_of(place.cluster.kubeconfig_of("nobody")).observe(&place.node).await.unwrap_err();
    assert!(error.to_string().contains("the verb \"get\" on \"leases.coordination.k8s.io\" in namespace"), "{error}");
}
