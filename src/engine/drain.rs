//! Drains a server's Kubernetes Node.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{BackendError, Cordon, FollowedNode, NodeDrain, UncordonOutcome},
    clock::within,
    maintenance::{
        drain::{self, DrainView, DrainWish},
        gate::ExternalRequest,
        ids::Uid,
        machine::PowerTarget,
        state::{Ending, Maintenance, Phase, Progress},
        step::{Action, Step},
    },
    store::RecordLookup,
};

use super::{Engine, EngineError, drive::Reconciler, gate::wish_of};

/// How long to wait for a kubelet's heartbeat. A kubelet renews its Lease every 10 s (Kubernetes,
/// `node-status-update-frequency`).
const LISTEN: Duration = Duration::from_secs(25);

/// The provider block that configures the Nodes' cluster.
const BLOCK: &str = "kubernetes_node";

/// Pause between two reads of a Node.
const PAUSE: Duration = Duration::from_secs(1);

/// Result of pruning Nodes that ended maintenances left cordoned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrunedNodes {
    /// Nodes that were uncordoned.
    pub uncordoned: Vec<String>,
    /// Nodes that lost only our annotations, each with true if another author cordoned it.
    pub annotations_removed: Vec<(String, bool)>,
    /// Nodes that stay cordoned, each with the reason.
    pub kept: Vec<(Cordon, String)>,
}

impl Engine {
    /// Uncordons each Node that an ended maintenance of this store left cordoned, after its
    /// kubelet's next heartbeat. Such Nodes remain after a release without a restore, or if the
    /// record is lost.
    ///
    /// # Errors
    /// The Nodes cannot be listed, or the store does not answer.
    pub async fn prune_nodes(&self) -> Result<PrunedNodes, EngineError> {
        let nodes = self.drainer("kubernetes_node")?;
        let mut pruned = PrunedNodes::default();
        let views = self.store().view_all().await?;
        let all = nodes.cordons().await.map_err(|cause| BackendError::Node {
            what: "the Nodes that maintenances left cordoned".into(),
            block: BLOCK,
            cause: Box::new(cause),
        });
        for cordon in all?.into_iter().filter(|cordon| cordon.store == self.store().id()) {
            if let Some(RecordLookup::Active(_)) = self.store().find_uid(&Uid::new(cordon.uid.clone())).await? {
                continue;
            }
            // An active maintenance can have drained the same Node again.
            let mut active = views.iter().flat_map(|view| &view.lock.active);
            let holder = active.find(|it| it.drained.as_ref().is_some_and(|drained| drained.node == cordon.node));
            if let Some(record) = holder {
                pruned.kept.push((cordon, format!("{} has its server now", record.id)));
                continue;
            }
            match self.prune_node(nodes.as_ref(), &cordon).await {
                Ok(UncordonOutcome::Uncordoned) => pruned.uncordoned.push(cordon.node),
                Ok(UncordonOutcome::AnnotationsRemoved { cordoned }) => {
                    pruned.annotations_removed.push((cordon.node, cordoned));
                }
                Ok(UncordonOutcome::Nothing) => {}
                Err(why) => pruned.kept.push((cordon, why)),
            }
        }
        Ok(pruned)
    }

    /// Uncordons one Node, or returns the reason to leave it.
    async fn prune_node(&self, nodes: &dyn NodeDrain, cordon: &Cordon) -> Result<UncordonOutcome, String> {
        let by = cordon.by();
        let look = async || nodes.look(&cordon.node, &by, None).await.map_err(|error| error.to_string());
        let first = look().await?;
        if first.was_ready && !first.ready {
            return Err("it is not Ready".to_owned());
        }
        // Kubernetes reports Ready for up to 40 s after a kubelet's last heartbeat. A renewed Lease
        // proves a current heartbeat.
        let heard = async {
            // A deleted Lease is never renewed.
            while look().await?.heard.is_none_or(|heard| Some(heard) == first.heard) {
                self.parts.clock.sleep(PAUSE).await;
            }
            Ok(())
        };
        if first.heard.is_some() {
            let (node, most) = (&cordon.node, LISTEN.as_secs());
            tracing::info!("Node {node}: waiting until its kubelet renews its Lease, for {most} s at most");
            within(LISTEN, heard).await.unwrap_or_else(|| Err("its kubelet did not renew its Lease".to_owned()))?;
        }
        nodes.uncordon(&cordon.node, &by).await.map_err(|error| error.to_string())
    }

    pub(super) fn drainer(&self, server: &str) -> Result<&Arc<dyn NodeDrain>, BackendError> {
        self.parts.nodes.drainer.as_ref().ok_or_else(|| BackendError::Unsupported {
            address: server.into(),
            what: "its Node was drained through kubernetes_node, which this configuration does not have".into(),
        })
    }

    /// Warns which Node stays cordoned after a maintenance that ends without steps.
    pub(super) fn leaves_node(&self, record: &Maintenance) {
        let Some(drained) = &record.drained else { return };
        let node = &drained.node;
        let or = self.drainer(record.server()).map(|drainer| format!(", or {}", drainer.by_hand(node.shown())));
        tracing::warn!(
            "{}: Node {node} is not changed; if it is cordoned for this maintenance, run `terraform-provider-metal \
             prune --nodes` once it is Ready{}",
            record.id,
            or.unwrap_or_default()
        );
    }
}

/// Returns a cluster error that names the Node and the maintenance.
pub(super) fn of_drain(record: &Maintenance, node: &str, cause: BackendError) -> BackendError {
    let id = &record.id;
    let what = match record.phase.progress().and_then(Progress::step) {
        Some(Step::UncordonNode) => format!("the server is restored, but Node {node} could still be cordoned for {id}"),
        _ if record.drained.is_some() => format!("Node {node}, which is drained for {id}"),
        _ => format!("Node {node}, which must be drained for {id}"),
    };
    BackendError::Node { what: what.into(), block: BLOCK, cause: Box::new(cause) }
}

/// A Node that a drive watches.
#[derive(Debug)]
pub(super) struct FollowedDrain {
    node: String,
    follows: Arc<dyn FollowedNode>,
}

impl Reconciler<'_> {
    fn by(&self, record: &Maintenance) -> ExternalRequest {
        wish_of(record, self.engine.store().id())
    }

    /// Reads the Node and, during a drain, its Pods.
    pub(super) async fn look_drain(&mut self) -> Result<(), BackendError> {
        let Some(record) = self.record() else { return Ok(()) };
        if record.spec.parent.is_some() {
            return self.look_drained().await;
        }
        let (wanted, known) = (drain::wanted(&record.spec), record.drained.as_ref().map(|drained| &drained.node));
        let progress = record.phase.progress();
        let mut attempts = progress.iter().flat_map(|progress| &progress.attempts);
        let again = attempts.any(|attempt| matches!(attempt.action, Action::CordonNode { .. }));
        // Before the drain, use the currently configured Node: its name can have changed.
        let step = progress.and_then(Progress::step);
        let (node, wish, needed) = match step {
            Some(Step::DrainNode) => (wanted.map(|wish| &wish.node), wanted, true),
            Some(Step::RecordPriorState) => (wanted.map(|wish| &wish.node), None, true),
            // The Node is drained a second time.
            Some(Step::StopForRestore) if again => (known, wanted, true),
            step => (known, None, step == Some(Step::UncordonNode)),
        };
        let Some(node) = node.or(known) else { return Ok(()) };
        if needed {
            self.engine.drainer(record.server())?;
        }
        let known = match &self.followed {
            // For a server that ends off, only a fresh read shows whether the Node counts as Ready.
            Some(followed) if followed.node == *node && record.final_power() != Some(PowerTarget::Off) => {
                followed.follows.still(&self.by(record), wish).await
            }
            _ => None,
        };
        let wanted_back =
            matches!(&record.phase, Phase::Releasing { ending, .. } if !matches!(ending, Ending::Failed(_)));
        let mut view = match known {
            Some(view) => view,
            None => match self.node_view(node.raw(), record, wish).await {
                // The cluster's API server can run on the server under restore.
                Err(error) if wanted_back && step == Some(Step::StopForRestore) && !again => {
                    tracing::warn!("Node {node}: whether it was uncordoned is not known: {error}");
                    DrainView { exists: true, cordoned: true, ..DrainView::default() }
                }
                view => view?,
            },
        };
        if let Some(uid) = &view.left_by {
            view.held_by = match self.engine.store().find_uid(&Uid::new(uid.raw().to_owned())).await {
                Ok(Some(RecordLookup::Active(other))) => Some(format!("the maintenance {}", other.id).into()),
                // A Node that an ended maintenance left cordoned is free.
                Ok(_) => view.held_by,
                Err(error) => Some(format!("a maintenance in this store, whose state cannot be read: {error}").into()),
            };
            view.left_by.take_if(|_| view.held_by.is_some());
        }
        self.saw_node(view);
        Ok(())
    }

    /// Returns when the Node can have reached the awaited state.
    pub(super) fn drain_ended(&mut self) -> impl Future<Output = ()> + use<> {
        let wanted = self.followed_node();
        let follows = wanted.map(|(node, wish, by)| {
            let known = self.followed.take().filter(|known| known.node == node);
            let known = known.or_else(|| {
                let drainer = Arc::clone(self.engine.parts.nodes.drainer.as_ref()?);
                Some(FollowedDrain { follows: drainer.follow(&node), node })
            })?;
            let follows = Arc::clone(&self.followed.insert(known).follows);
            Some((follows, wish, by))
        });
        if follows.is_none() {
            self.followed = None;
        }
        async move {
            match follows.flatten() {
                Some((follows, wish, by)) => follows.ended(&by, wish.as_ref()).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Returns the Node that a step waits for, with its drain settings.
    fn followed_node(&self) -> Option<(String, Option<DrainWish>, ExternalRequest)> {
        let record = self.record().filter(|record| record.spec.parent.is_none())?;
        let (node, wish) = match record.phase.progress().and_then(Progress::step)? {
            Step::DrainNode => drain::wanted(&record.spec).map(|wish| (wish.node.clone(), Some(wish.clone())))?,
            Step::UncordonNode => (record.drained.as_ref()?.node.clone(), None),
            _ => return None,
        };
        Some((node.into_raw(), wish, self.by(record)))
    }

    /// Reads the Node that was drained for the parent maintenance.
    async fn look_drained(&mut self) -> Result<(), BackendError> {
        let Some(holder) = self.holder() else { return Ok(()) };
        let Some(drained) = &holder.drained else { return Ok(()) };
        let view = self.node_view(drained.node.raw(), holder, None).await?;
        self.saw_node(view);
        Ok(())
    }

    /// Reads a record's Node. A configuration that did not drain it does not need access to its
    /// cluster, so an unread Node blocks nothing.
    async fn node_view(
        &self,
        node: &str,
        record: &Maintenance,
        wish: Option<&DrainWish>,
    ) -> Result<DrainView, BackendError> {
        match &self.engine.parts.nodes.drainer {
            Some(nodes) => {
                nodes.look(node, &self.by(record), wish).await.map_err(|cause| of_drain(record, node, cause))
            }
            None => Ok(DrainView { cordoned: true, ..DrainView::default() }),
        }
    }

    fn saw_node(&mut self, view: DrainView) {
        self.facts.drain = Some(Box::new(view));
        self.drain_at = self.engine.parts.clock.monotonic();
    }

    /// Cordons, evicts or uncordons. The next read shows the result.
    pub(super) async fn call_drain(&self, action: &Action) -> Result<(), BackendError> {
        let Some(record) = self.record() else { return Ok(()) };
        let (nodes, by) = (self.engine.drainer(record.server())?, self.by(record));
        if matches!(action, Action::CordonNode { .. } | Action::UncordonNode) {
            // A read before the intent can contain the Node's former name.
            let wanted = drain::wanted(&record.spec).map(|wish| &wish.node);
            let renamed = record.drained.iter().filter(|known| {
                matches!(action, Action::CordonNode { cluster, .. } if known.cluster == *cluster)
                    && !known.theirs
                    && wanted != Some(&known.node)
            });
            let renamed = renamed.map(|known| &known.node);
            for node in record.drained.iter().flat_map(|drained| &drained.before).chain(renamed) {
                nodes.uncordon(node.raw(), &by).await.map_err(|cause| of_drain(record, node.shown(), cause))?;
            }
        }
        let (node, called) = match (action, drain::wanted(&record.spec), &record.drained) {
            (Action::CordonNode { .. }, Some(wish), _) => (&wish.node, nodes.cordon(wish.node.raw(), &by).await),
            (Action::EvictPods, Some(wish), _) => (&wish.node, nodes.evict(wish).await),
            (Action::UncordonNode, _, Some(drained)) if !drained.theirs => {
                (&drained.node, nodes.uncordon(drained.node.raw(), &by).await.map(drop))
            }
            _ => return Ok(()),
        };
        called.map_err(|cause| of_drain(record, node.shown(), cause))
    }
}
