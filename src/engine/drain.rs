//! Draining the Kubernetes Node that runs on a server.

use std::sync::Arc;

use crate::{
    backend::{BackendError, NodeDrain},
    maintenance::{
        drain::{self, some},
        native::NativeWish,
        spec::Spec,
        state::{Maintenance, Phase},
        step::{Action, Step},
    },
};

use super::{
    Engine,
    drive::Drive,
    native::{wish_for, wish_of},
};

impl Engine {
    fn drainer(&self, server: &str) -> Result<&Arc<dyn NodeDrain>, BackendError> {
        self.parts.nodes.drainer.as_ref().ok_or_else(|| BackendError::Unsupported {
            address: server.to_owned(),
            what: "its Node was drained through kubernetes_node, which this configuration does not have".to_owned(),
        })
    }

    /// What a reviewer should know about draining the Node of a wished server; `None` where it has none.
    pub async fn drain_outlook(&self, spec: &Spec) -> Option<String> {
        let spec = self.as_asked_here(spec);
        let wish = spec.drain.clone().filter(|_| spec.parent.is_none())?;
        let by = wish_for(&spec, self.owner(), self.store().id());
        let node = &wish.node;
        let drainer = self.drainer(&spec.server).ok()?;
        Some(match drainer.look(node, &by, Some(&wish)).await {
            Err(error) => format!("Node: {node} is drained first; how it is now was not checked: {error}."),
            Ok(view) if !view.exists => {
                format!("It would fail: {} has no Node {node}, which kubernetes_node names.", drainer.address())
            }
            Ok(view) if !view.refused.is_empty() => {
                format!("It would fail: Node {node} cannot be drained: {}.", some(&view.refused))
            }
            Ok(view) => {
                let cordoned = if view.cordoned { "stays cordoned" } else { "is cordoned" };
                let ready = if view.ready { "" } else { ", not Ready now" };
                format!("Node: {node}{ready} {cordoned} and drained first ({} Pods to evict).", view.left.len())
            }
        })
    }

    /// Why the Node that was drained for a hold may get Pods again, where that was seen.
    pub(super) async fn drain_lost(&self, record: &Maintenance) -> Option<String> {
        let drained = record.drained.as_ref()?;
        let nodes = self.drainer(record.server()).ok()?;
        let view = nodes.look(&drained.node, &wish_of(record, self.store().id()), None).await.ok()?;
        let is_same = drained.cluster.is_none() || view.cluster.is_none() || drained.cluster == view.cluster;
        let opened = view.exists && is_same && !view.cordoned;
        opened.then(|| format!("Node {} was uncordoned, which this provider did not do", drained.node))
    }
}

impl Drive<'_> {
    fn by(&self, record: &Maintenance) -> NativeWish {
        wish_of(record, self.engine.store().id())
    }

    /// Looks at the Node, and at its Pods while it is drained.
    pub(super) async fn look_drain(&mut self) -> Result<(), BackendError> {
        let Some(record) = self.last.clone() else { return Ok(()) };
        let step = match &record.phase {
            Phase::Preparing(progress) | Phase::Releasing { progress, .. } => progress.step(),
            _ => None,
        };
        let wish = drain::wanted(&record).filter(|_| step == Some(Step::DrainNode));
        let known = record.drained.as_ref().map(|drained| drained.node.clone());
        let Some(node) = wish.map(|wish| wish.node.clone()).or(known) else { return Ok(()) };
        let drainer = self.engine.drainer(record.server())?;
        self.facts.drain = Some(Box::new(drainer.look(&node, &self.by(&record), wish).await?));
        Ok(())
    }

    /// Cordons, evicts or uncordons. What came of it is seen by looking.
    pub(super) async fn call_drain(&self, action: &Action) -> Result<(), BackendError> {
        let Some(record) = self.last.as_ref() else { return Ok(()) };
        let (nodes, by) = (self.engine.drainer(record.server())?, self.by(record));
        match (action, drain::wanted(record), &record.drained) {
            (Action::CordonNode { .. }, Some(wish), _) => nodes.cordon(&wish.node, &by).await,
            (Action::EvictPods, Some(wish), _) => nodes.evict(wish).await,
            (Action::UncordonNode, _, Some(drained)) => nodes.uncordon(&drained.node, &by).await,
            _ => Ok(()),
        }
    }
}
