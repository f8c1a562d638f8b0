//! Plan notes about drained Nodes.

use crate::{
    backend::BackendError,
    maintenance::{
        drain::{self, DrainView, DrainWish, some},
        gate::ExternalRequest,
        ids::{MaintenanceId, Uid},
        spec::Spec,
        state::Maintenance,
        update::has_drain_ahead,
    },
};

use super::{
    Engine,
    drain::of_drain,
    gate::{wish_for, wish_of},
};

impl Engine {
    /// Describes how a server's Node is drained, for a reviewer; `None` without a Node.
    pub async fn drain_outlook(&self, spec: &Spec) -> Option<String> {
        let spec = self.as_asked_here(spec);
        let by = wish_for(&spec, self.owner(), self.store().id());
        self.drain_outlook_of(&spec, drain::wanted(&spec)?, &by, None).await
    }

    /// Describes, for a reviewer, how a change to `spec` affects the server's Node; `None` if the
    /// change does not drain it.
    pub async fn drain_outlook_of_change(&self, spec: &Spec, uid: &Uid) -> Option<String> {
        let record = self.held(uid).await.ok()?.filter(|found| found.active)?.record;
        if let Some(parent) = &record.spec.parent {
            let parent = self.held(parent).await.ok()?.filter(|found| found.active)?.record;
            return self.drain_outlook_below(&parent).await;
        }
        let spec = self.as_asked_here(spec);
        let wish = drain::wanted(&spec).filter(|_| has_drain_ahead(&record, &spec))?;
        self.drain_outlook_of(&spec, wish, &wish_of(&record, self.store().id()), Some(&record)).await
    }

    /// Warns a reviewer if a parent maintenance's drained Node is in use. `None` if it is cordoned
    /// or does not exist, or if the maintenance is only planned.
    pub async fn drain_outlook_under(&self, hold: &MaintenanceId) -> Option<String> {
        self.drain_outlook_below(&self.planned_record(hold).await.ok()??).await
    }

    async fn drain_outlook_below(&self, hold: &Maintenance) -> Option<String> {
        match self.drained_now(hold).await? {
            Ok(view) => {
                let why = hold.drained.as_ref()?.in_use(&view)?;
                Some(format!("It would fail: {why}. Cordon the Node again, or release {} first.", hold.id))
            }
            Err(error) => Some(format!("Node: its current state was not checked: {error}.")),
        }
    }

    async fn drain_outlook_of(
        &self,
        spec: &Spec,
        wish: &DrainWish,
        by: &ExternalRequest,
        held: Option<&Maintenance>,
    ) -> Option<String> {
        let node = &wish.node;
        let drainer = self.drainer(spec.server.shown()).ok()?;
        Some(match drainer.look(node.raw(), by, Some(wish)).await {
            Err(error) => format!("Node: {node} is drained first; its current state was not checked: {error}."),
            Ok(view) if !view.exists => {
                format!(
                    "It would fail: {} does not contain Node {node}, which kubernetes_node names.",
                    drainer.address()
                )
            }
            Ok(DrainView { held_by: Some(other), .. }) => {
                format!("It would wait for {other}, for which Node {node} is cordoned.")
            }
            Ok(view) if !view.refused.is_empty() => {
                format!("It would fail: Node {node} cannot be drained: {}.", some(&view.refused))
            }
            Ok(view) if held.is_some_and(|held| drain::is_drained(held, wish, &view)) => return None,
            Ok(view) => {
                let cordoned = if view.cordoned { "stays cordoned and is" } else { "is cordoned and" };
                let ready = if view.ready { "" } else { ", not Ready now," };
                format!("Node: {node}{ready} {cordoned} drained first (Pods to evict: {}).", view.left.len())
            }
        })
    }

    /// Returns the drained Node's state, at most some seconds old; `None` if no Node was drained.
    async fn drained_now(&self, record: &Maintenance) -> Option<Result<DrainView, BackendError>> {
        let drained = record.drained.as_ref()?;
        let nodes = self.drainer(record.server()).ok()?;
        let seen = nodes.glance(drained.node.shown(), &wish_of(record, self.store().id())).await;
        Some(seen.map_err(|cause| of_drain(record, drained.node.shown(), cause)))
    }

    /// Returns the reason if the maintenance's drained Node can receive Pods again.
    ///
    /// # Errors
    /// The Node cannot be read.
    pub(super) async fn drain_lost(&self, record: &Maintenance) -> Result<Option<String>, BackendError> {
        let (Some(drained), Some(seen)) = (&record.drained, self.drained_now(record).await) else { return Ok(None) };
        let why = || format!("Node {} was uncordoned by another author", drained.node);
        Ok(drained.is_opened(&seen?).then(why))
    }
}
