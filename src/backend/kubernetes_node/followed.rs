//! A Node followed by watches of the Node and its Pods.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kube::core::{ApiResource, DynamicObject};

use super::{KubernetesNodes, nodes, of_node, view_of};
use crate::{
    backend::FollowedNode,
    kubernetes::{ClusterError, Mirror},
    maintenance::{
        drain::{DrainView, DrainWish},
        gate::ExternalRequest,
    },
    shown::OneLine,
};

#[derive(Debug)]
pub(super) struct Followed {
    all: Arc<KubernetesNodes>,
    name: String,
    node: Mirror,
    pods: Mirror,
    /// True without permission to watch.
    denied: AtomicBool,
    /// True if the last view required waiting.
    waits: AtomicBool,
}

/// Returns true if a Node is not yet drained, or not yet Ready again.
fn has_to_wait(view: &DrainView, wish: Option<&DrainWish>) -> bool {
    let awaited = match wish {
        Some(_) => view.held_by.is_some() || (view.cordoned && !view.left.is_empty()),
        None => view.ours && view.cordoned && view.was_ready && !view.ready,
    };
    awaited && view.exists && view.refused.is_empty()
}

impl Followed {
    pub(super) fn new(all: Arc<KubernetesNodes>, name: &str) -> Self {
        let mirror = |kind, fields| Mirror::selected(all.cluster.clone(), kind, fields);
        let node = mirror(nodes(), format!("metadata.name={name}"));
        let pods = mirror(ApiResource::erase::<Pod>(&()), of_node(name));
        let name = name.to_owned();
        Self { all, name, node, pods, denied: AtomicBool::new(false), waits: AtomicBool::new(false) }
    }

    /// Returns the Node's current view; `None` if it cannot be watched now.
    async fn view(&self, by: &ExternalRequest, wish: Option<&DrainWish>) -> Option<DrainView> {
        if self.denied.load(Ordering::Relaxed) {
            return None;
        }
        let read = async {
            let node = self.node.get(None, &self.name).await?;
            let pods = if wish.is_some() { self.pods.all().await? } else { Vec::new() };
            Ok((node, pods))
        };
        match read.await {
            Ok((node, pods)) => self.judged(node.as_deref(), &pods, by, wish).await,
            Err(ClusterError::Forbidden { .. }) => {
                // Without permission, another watch attempt would fail too.
                self.denied.store(true, Ordering::Relaxed);
                self.node.close();
                self.pods.close();
                None
            }
            Err(_) => None,
        }
    }

    async fn judged(
        &self,
        node: Option<&DynamicObject>,
        pods: &[Arc<DynamicObject>],
        by: &ExternalRequest,
        wish: Option<&DrainWish>,
    ) -> Option<DrainView> {
        let cluster = self.all.uid().await.ok()?;
        let Some(node) = node else {
            return Some(DrainView { cluster: cluster.map(OneLine::from), ..DrainView::default() });
        };
        let view = match wish {
            Some(wish) => {
                let pods: Result<Vec<Pod>, _> = pods.iter().map(|pod| pod.as_ref().clone().try_parse()).collect();
                self.all.drained(node, &pods.ok()?, by, wish)
            }
            None => view_of(node, by),
        };
        Some(DrainView { cluster: cluster.map(OneLine::from), ..view })
    }
}

#[async_trait]
impl FollowedNode for Followed {
    async fn still(&self, by: &ExternalRequest, wish: Option<&DrainWish>) -> Option<DrainView> {
        let view = self.view(by, wish).await.filter(|view| has_to_wait(view, wish));
        self.waits.store(view.is_some(), Ordering::Relaxed);
        view
    }

    async fn ended(&self, by: &ExternalRequest, wish: Option<&DrainWish>) {
        let (mut node, mut pods) = (self.node.changes(), self.pods.changes());
        while let Some(view) = self.view(by, wish).await {
            let waits = has_to_wait(&view, wish);
            if self.waits.swap(waits, Ordering::Relaxed) != waits {
                return;
            }
            let told = tokio::select! {
                told = node.changed() => told,
                told = pods.changed() => told,
            };
            if told.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    }
}
