//! Draining the Kubernetes Node that runs on a server.

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

/// How long a kubelet is listened for. It renews its Lease every 10 s (Kubernetes,
/// `node-status-update-frequency`).
const LISTEN: Duration = Duration::from_secs(25);

/// The block that names the cluster of the Nodes.
const BLOCK: &str = "kubernetes_node";

/// The pause between two looks at a Node.
const PAUSE: Duration = Duration::from_secs(1);

/// What became of the Nodes that ended maintenances left cordoned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TidiedNodes {
    /// Those that are uncordoned now.
    pub uncordoned: Vec<String>,
    /// Those of which only our annotations were removed, with whether another author cordoned them.
    pub annotations_removed: Vec<(String, bool)>,
    /// Those that stay, with the reason.
    pub kept: Vec<(Cordon, String)>,
}

impl Engine {
    /// Uncordons each Node that a maintenance of this store cordoned which is over, once its
    /// kubelet is heard. A maintenance that was ended as it is, or whose record is gone, leaves
    /// such Nodes.
    ///
    /// # Errors
    /// The Nodes cannot be listed, or the store does not answer.
    pub async fn tidy_nodes(&self) -> Result<TidiedNodes, EngineError> {
        let nodes = self.drainer("kubernetes_node")?;
        let mut tidied = TidiedNodes::default();
        let views = self.store().view_all().await?;
        let all = nodes.cordons().await.map_err(|cause| BackendError::Node {
            what: "the Nodes that maintenances left cordoned".to_owned(),
            block: BLOCK,
            cause: Box::new(cause),
        });
        for cordon in all?.into_iter().filter(|cordon| cordon.store == self.store().id()) {
            if let Some(RecordLookup::Active(_)) = self.store().find_uid(&Uid(cordon.uid.clone())).await? {
                continue;
            }
            // One that an ended maintenance left is under a maintenance that found it so.
            let mut active = views.iter().flat_map(|view| &view.lock.active);
            let holder = active.find(|it| it.drained.as_ref().is_some_and(|drained| drained.node == cordon.node));
            if let Some(record) = holder {
                tidied.kept.push((cordon, format!("{} has its server now", record.id)));
                continue;
            }
            match self.tidy_node(nodes.as_ref(), &cordon).await {
                Ok(UncordonOutcome::Uncordoned) => tidied.uncordoned.push(cordon.node),
                Ok(UncordonOutcome::AnnotationsRemoved { cordoned }) => {
                    tidied.annotations_removed.push((cordon.node, cordoned));
                }
                Ok(UncordonOutcome::Nothing) => {}
                Err(why) => tidied.kept.push((cordon, why)),
            }
        }
        Ok(tidied)
    }

    /// Uncordons one Node, or says why it stays as it is.
    async fn tidy_node(&self, nodes: &dyn NodeDrain, cordon: &Cordon) -> Result<UncordonOutcome, String> {
        let by = cordon.by();
        let look = async || nodes.look(&cordon.node, &by, None).await.map_err(|error| error.to_string());
        let first = look().await?;
        if first.was_ready && !first.ready {
            return Err("it is not Ready".to_owned());
        }
        // Ready is believed for 40 s after the last word of a kubelet; a Lease that is renewed is a
        // word of now.
        let heard = async {
            // A Lease that is gone is not renewed.
            while look().await?.heard.is_none_or(|heard| Some(heard) == first.heard) {
                self.parts.clock.sleep(PAUSE).await;
            }
            Ok(())
        };
        if first.heard.is_some() {
            let (node, most) = (&cordon.node, LISTEN.as_secs());
            tracing::info!("Node {node}: waiting until its kubelet renews its Lease, for {most} s at most");
            within(LISTEN, heard).await.unwrap_or_else(|| Err("its kubelet is not heard".to_owned()))?;
        }
        nodes.uncordon(&cordon.node, &by).await.map_err(|error| error.to_string())
    }

    pub(super) fn drainer(&self, server: &str) -> Result<&Arc<dyn NodeDrain>, BackendError> {
        self.parts.nodes.drainer.as_ref().ok_or_else(|| BackendError::Unsupported {
            address: server.to_owned(),
            what: "its Node was drained through kubernetes_node, which this configuration does not have".to_owned(),
        })
    }

    /// Says which Node a hold leaves as it is, where that ends without steps.
    pub(super) fn leaves_node(&self, record: &Maintenance) {
        let Some(drained) = &record.drained else { return };
        let node = &drained.node;
        let or = self.drainer(record.server()).map(|drainer| format!(", or {}", drainer.by_hand(node)));
        tracing::warn!(
            "{}: Node {node} stays as it is; if it is cordoned for this, run `terraform-provider-metal tidy --nodes` once it is Ready{}",
            record.id,
            or.unwrap_or_default()
        );
    }
}

/// The error of a cluster about the Node of a server: it names the Node and the maintenance.
pub(super) fn of_drain(record: &Maintenance, node: &str, cause: BackendError) -> BackendError {
    let id = &record.id;
    let what = match record.phase.progress().and_then(Progress::step) {
        Some(Step::UncordonNode) => format!("the server is restored, and Node {node} may still be cordoned for {id}"),
        _ if record.drained.is_some() => format!("Node {node}, which is drained for {id}"),
        _ => format!("Node {node}, which is to be drained for {id}"),
    };
    BackendError::Node { what, block: BLOCK, cause: Box::new(cause) }
}

/// A Node that is waited for.
#[derive(Debug)]
pub(super) struct FollowedDrain {
    node: String,
    follows: Arc<dyn FollowedNode>,
}

impl Reconciler<'_> {
    fn by(&self, record: &Maintenance) -> ExternalRequest {
        wish_of(record, self.engine.store().id())
    }

    /// Looks at the Node, and at its Pods while it is drained.
    pub(super) async fn look_drain(&mut self) -> Result<(), BackendError> {
        let Some(record) = self.record() else { return Ok(()) };
        if record.spec.parent.is_some() {
            return self.look_drained().await;
        }
        let (wanted, known) = (drain::wanted(&record.spec), record.drained.as_ref().map(|drained| &drained.node));
        let progress = record.phase.progress();
        let mut attempts = progress.iter().flat_map(|progress| &progress.attempts);
        let again = attempts.any(|attempt| matches!(attempt.action, Action::CordonNode { .. }));
        // Before a Node is drained it is the one that is named now, which may have another name.
        let step = progress.and_then(Progress::step);
        let (node, wish, needed) = match step {
            Some(Step::DrainNode) => (wanted.map(|wish| &wish.node), wanted, true),
            Some(Step::RecordPriorState) => (wanted.map(|wish| &wish.node), None, true),
            // One that is drained once more.
            Some(Step::StopForRestore) if again => (known, wanted, true),
            step => (known, None, step == Some(Step::UncordonNode)),
        };
        let Some(node) = node.or(known) else { return Ok(()) };
        if needed {
            self.engine.drainer(record.server())?;
        }
        let known = match &self.followed {
            // Whether it is taken for Ready once it is off, a look tells.
            Some(followed) if followed.node == *node && record.final_power() != Some(PowerTarget::Off) => {
                followed.follows.still(&self.by(record), wish).await
            }
            _ => None,
        };
        let wanted_back =
            matches!(&record.phase, Phase::Releasing { ending, .. } if !matches!(ending, Ending::Failed(_)));
        let mut view = match known {
            Some(view) => view,
            None => match self.node_view(node, record, wish).await {
                // Its cluster's API server may run on what is to be restored.
                Err(error) if wanted_back && step == Some(Step::StopForRestore) && !again => {
                    tracing::warn!("Node {node}: whether it was uncordoned is not known: {error}");
                    DrainView { exists: true, cordoned: true, ..DrainView::default() }
                }
                view => view?,
            },
        };
        if let Some(uid) = &view.left_by {
            view.held_by = match self.engine.store().find_uid(&Uid(uid.clone())).await {
                Ok(Some(RecordLookup::Active(other))) => Some(format!("the maintenance {}", other.id)),
                // What an ended maintenance left cordoned keeps nobody.
                Ok(_) => view.held_by,
                Err(error) => {
                    Some(format!("a maintenance of this store, which does not tell whether it has ended: {error}"))
                }
            };
            view.left_by.take_if(|_| view.held_by.is_some());
        }
        self.saw_node(view);
        Ok(())
    }

    /// Returns once the Node that is drained or uncordoned may be as it was waited for.
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

    /// Which Node a step waits for, and what for.
    fn followed_node(&self) -> Option<(String, Option<DrainWish>, ExternalRequest)> {
        let record = self.record().filter(|record| record.spec.parent.is_none())?;
        let (node, wish) = match record.phase.progress().and_then(Progress::step)? {
            Step::DrainNode => drain::wanted(&record.spec).map(|wish| (wish.node.clone(), Some(wish.clone())))?,
            Step::UncordonNode => (record.drained.as_ref()?.node.clone(), None),
            _ => return None,
        };
        Some((node, wish, self.by(record)))
    }

    /// Looks at the Node that was drained for the hold under which the record acts.
    async fn look_drained(&mut self) -> Result<(), BackendError> {
        let Some(holder) = self.holder() else { return Ok(()) };
        let Some(drained) = &holder.drained else { return Ok(()) };
        let view = self.node_view(&drained.node, holder, None).await?;
        self.saw_node(view);
        Ok(())
    }

    /// How the Node of a record is. Another configuration than the one that drained it need not
    /// reach its cluster: what is not seen stops nothing.
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

    /// Cordons, evicts or uncordons. What came of it is seen by looking.
    pub(super) async fn call_drain(&self, action: &Action) -> Result<(), BackendError> {
        let Some(record) = self.record() else { return Ok(()) };
        let (nodes, by) = (self.engine.drainer(record.server())?, self.by(record));
        if matches!(action, Action::CordonNode { .. } | Action::UncordonNode) {
            // What was read before the intent was recorded has the earlier name of the Node.
            let wanted = drain::wanted(&record.spec).map(|wish| &wish.node);
            let renamed = record.drained.iter().filter(|known| {
                matches!(action, Action::CordonNode { cluster, .. } if known.cluster == *cluster)
                    && !known.theirs
                    && wanted != Some(&known.node)
            });
            let renamed = renamed.map(|known| &known.node);
            for node in record.drained.iter().flat_map(|drained| &drained.before).chain(renamed) {
                nodes.uncordon(node, &by).await.map_err(|cause| of_drain(record, node, cause))?;
            }
        }
        let (node, called) = match (action, drain::wanted(&record.spec), &record.drained) {
            (Action::CordonNode { .. }, Some(wish), _) => (&wish.node, nodes.cordon(&wish.node, &by).await),
            (Action::EvictPods, Some(wish), _) => (&wish.node, nodes.evict(wish).await),
            (Action::UncordonNode, _, Some(drained)) if !drained.theirs => {
                (&drained.node, nodes.uncordon(&drained.node, &by).await.map(drop))
            }
            _ => return Ok(()),
        };
        called.map_err(|cause| of_drain(record, node, cause))
    }
}
