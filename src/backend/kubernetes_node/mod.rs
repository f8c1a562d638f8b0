//! Kubernetes Nodes that run on servers: cordon, drain through the eviction API, uncordon.
//!
//! The patch that cordons a Node also writes our annotations. They identify the maintenance, and
//! only that maintenance uncordons the Node. Evictions honour disruption budgets (Kubernetes API,
//! `pods/eviction`): status 429 names the budget that currently blocks.

mod followed;
mod leases;
mod plug;
mod pods;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{DeleteParams, EvictParams, ListParams, PostParams, Preconditions},
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{
    clock::Clock,
    kubernetes::{Cluster, ClusterError, RequestInfo},
    maintenance::{
        drain::{DrainView, DrainWish},
        gate::ExternalRequest,
    },
    shown::OneLine,
};

use super::{
    BackendError, Cordon, FollowedNode, NodeDrain, UncordonOutcome, before_change,
    bulk::BulkReads,
    cluster::{self, OUR_ID, OUR_STORE, OUR_UID, annotation},
};
use pods::{PodRole, role, shown};

pub use plug::{Drains, Leases, Minded, connect};

/// Our annotation that records if the Node was Ready before the cordon.
const WAS_READY: &str = "terraform-provider-metal/was-ready";
/// How long a listed Node counts as current.
const RECENT: Duration = Duration::from_secs(5);
/// Tolerance after a Pod's grace period, including clock differences.
const SLACK: SignedDuration = SignedDuration::from_secs(30);
/// The number of concurrent evictions.
const AT_ONCE: usize = 8;

/// One cluster's Nodes.
#[derive(Debug)]
pub struct KubernetesNodes {
    cluster: Cluster,
    uid: OnceCell<Option<String>>,
    clock: Arc<dyn Clock>,
    /// The cordoned Nodes, for refreshes.
    cordoned: BulkReads<DynamicObject>,
    /// The last reason why a Pod was not evicted, by Pod UID.
    blocked: Mutex<BTreeMap<String, String>>,
}

fn nodes() -> ApiResource {
    ApiResource::erase::<Node>(&())
}

/// Returns the field selector for a Node's Pods.
fn of_node(node: &str) -> String {
    format!("spec.nodeName={node}")
}

fn meaning(problem: ClusterError) -> BackendError {
    cluster::error(problem, |_| None)
}

fn request<'a>(
    verb: &'static str,
    resource: &'a str,
    namespace: Option<&'a str>,
    name: Option<&'a str>,
) -> RequestInfo<'a> {
    RequestInfo { verb, resource, namespace, name }
}

/// Returns true if the error is a 404 for an object.
fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 && status.reason == "NotFound")
}

fn is_cordoned(node: &DynamicObject) -> bool {
    node.data.pointer("/spec/unschedulable") == Some(&Value::Bool(true))
}

fn is_ours(node: &DynamicObject, by: &ExternalRequest) -> bool {
    annotation(node, OUR_UID) == Some(by.uid.as_str()) && annotation(node, OUR_STORE) == Some(by.store.as_str())
}

/// Returns true if this provider's client last set the Node's cordon, according to
/// `metadata.managedFields`; `None` without that information.
fn cordon_is_of_this_provider(node: &DynamicObject) -> Option<bool> {
    let sets = |fields: &Value| fields.pointer("/f:spec/f:unschedulable").is_some();
    let entries = node.metadata.managed_fields.iter().flatten();
    let setters: Vec<_> =
        entries.filter(|entry| entry.fields_v1.as_ref().is_some_and(|fields| sets(&fields.0))).collect();
    let ours = setters.iter().any(|entry| entry.manager.as_deref() == Some(cluster::MANAGER));
    (!setters.is_empty()).then_some(ours)
}

/// Returns true if the Node's cordon is ours: another author can remove ours and set a new cordon.
/// Without managed fields, our annotations decide.
fn is_our_cordon(node: &DynamicObject) -> bool {
    cordon_is_of_this_provider(node).unwrap_or(true)
}

/// Returns true if a person removed the annotations from this provider's cordon. Used for a
/// maintenance that recorded the cordon.
fn is_stripped(node: &DynamicObject) -> bool {
    let unmarked = cluster::MARKS.iter().all(|key| annotation(node, key).is_none());
    unmarked && is_cordoned(node) && cordon_is_of_this_provider(node) == Some(true)
}

/// Returns another store's maintenance that cordoned the Node. In our own store, the server's lock
/// excludes others, and an ended maintenance's cordon does not block.
fn other_store(node: &DynamicObject, by: &ExternalRequest) -> Option<String> {
    let store = annotation(node, OUR_STORE).filter(|_| is_cordoned(node) && is_our_cordon(node))?;
    (store != by.store.as_str()).then(|| {
        let id = annotation(node, OUR_ID).unwrap_or("without a name");
        format!("the maintenance {} of another store", crate::shown::line(id))
    })
}

/// Returns the incarnation of our store's other maintenance that cordoned the Node.
fn other_of_ours<'a>(node: &'a DynamicObject, by: &ExternalRequest) -> Option<&'a str> {
    let of_store = is_cordoned(node) && is_our_cordon(node) && annotation(node, OUR_STORE) == Some(by.store.as_str());
    annotation(node, OUR_UID).filter(|uid| of_store && *uid != by.uid.as_str())
}

/// Returns a Node's view without its Pods.
fn view_of(node: &DynamicObject, by: &ExternalRequest) -> DrainView {
    let stripped = is_stripped(node);
    let ours = is_ours(node, by) || stripped;
    DrainView {
        exists: true,
        cordoned: is_cordoned(node),
        ours,
        held_by: other_store(node, by).map(OneLine::from),
        left_by: other_of_ours(node, by).map(OneLine::from),
        // A wait for Ready follows only if we uncordon the Node. Without a record, the Node counts
        // as previously Ready.
        was_ready: ours && is_our_cordon(node) && (stripped || annotation(node, WAS_READY) == Some("true")),
        ready: cluster::node_is_ready(node),
        ..DrainView::default()
    }
}

impl KubernetesNodes {
    /// Returns a cluster's Nodes without sending a request.
    #[must_use]
    pub fn new(cluster: Cluster, clock: Arc<dyn Clock>) -> Self {
        let cordoned = BulkReads::new("Nodes", RECENT);
        Self { cluster, uid: OnceCell::new(), clock, cordoned, blocked: Mutex::default() }
    }

    /// Returns the UID of the namespace `kube-system`; `None` without permission.
    async fn uid(&self) -> Result<Option<String>, BackendError> {
        Ok(self.uid.get_or_try_init(|| cluster::uid(&self.cluster, meaning)).await?.clone())
    }

    fn blocked(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn node(&self, name: &str) -> Result<Option<DynamicObject>, BackendError> {
        cluster::now(&self.cluster, &nodes(), None, name).await.map_err(meaning)
    }

    async fn all_cordoned(&self) -> Result<BTreeMap<String, DynamicObject>, BackendError> {
        let cordoned = ListParams::default().fields("spec.unschedulable=true");
        let all = cluster::list_of(&self.cluster, &nodes(), None, &cordoned).await.map_err(meaning)?;
        Ok(all.into_iter().map(|node| (cluster::name(&node).to_owned(), node)).collect())
    }

    async fn pods(&self, node: &str) -> Result<Vec<Pod>, BackendError> {
        let params = &ListParams::default().fields(&of_node(node));
        let listed = self.cluster.call(request("list", "pods", None, None), |client| async move {
            Api::<Pod>::all(client).list(params).await
        });
        Ok(listed.await.map_err(meaning)?.items)
    }

    /// Returns the time before which a Pod's grace period must have passed to count it as ended,
    /// even if its kubelet cannot confirm.
    fn ended_by(&self) -> Timestamp {
        self.clock.now().checked_sub(SLACK).unwrap_or(Timestamp::MIN)
    }

    /// Returns a Node's view with its Pods, for a drain.
    fn drained(&self, node: &DynamicObject, pods: &[Pod], by: &ExternalRequest, wish: &DrainWish) -> DrainView {
        let mut view = DrainView { only_ending: true, ..view_of(node, by) };
        let was_away = view.ours && annotation(node, WAS_READY) == Some("false");
        let unheard = (!view.ready).then(|| if was_away { Timestamp::MAX } else { self.ended_by() });
        for pod in pods {
            match role(pod, wish, unheard) {
                PodRole::Stays => {}
                PodRole::Ending => view.left.push(format!("{} (ending)", shown(pod)).into()),
                PodRole::Refused(why) => view.refused.push(format!("{} ({why})", shown(pod)).into()),
                PodRole::Evict => {
                    view.only_ending = false;
                    let why = pod.metadata.uid.as_ref().and_then(|uid| self.blocked().get(uid).cloned());
                    view.left.push(why.map_or_else(|| shown(pod), |why| format!("{} ({why})", shown(pod))).into());
                }
            }
        }
        view
    }

    async fn patch(&self, node: &DynamicObject, change: Value) -> Result<(), BackendError> {
        cluster::patched(&self.cluster, &nodes(), node, change, meaning).await.map(drop)
    }

    /// Requests the eviction of exactly this Pod. `Ok(Some(reason))` if the API currently refuses.
    async fn evict_one(&self, pod: &Pod) -> Result<Option<String>, BackendError> {
        let (name, namespace) = (pod.metadata.name.as_deref(), pod.metadata.namespace.as_deref());
        let (Some(name), Some(namespace)) = (name, namespace) else { return Ok(None) };
        let only = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        let options = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
        let params = &EvictParams { delete_options: Some(options), post_options: PostParams::default() };
        before_change(&format!("evict {namespace}/{name}")).await?;
        let about = request("create", "pods/eviction", Some(namespace), Some(name));
        let asked = self.cluster.call(about, |client| async move {
            match Api::<Pod>::namespaced(client, namespace).evict(name, params).await {
                Ok(_) => Ok(None),
                // The Pod no longer exists, or another Pod has its name.
                Err(error) if is_gone(&error) => Ok(None),
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
                // A budget currently blocks the eviction (429), or several budgets cover the Pod
                // (500).
                Err(kube::Error::Api(status)) if matches!(status.code, 429 | 500) => Ok(Some(said(&status))),
                // The Pod's namespace is being deleted, and the Pod with it. The API rejects new
                // objects there.
                Err(kube::Error::Api(status)) if status.code == 403 && ends(&status) => Ok(Some(said(&status))),
                Err(error) => Err(error),
            }
        });
        asked.await.map_err(meaning)
    }
}

/// Returns true if the status shows that the namespace is being deleted.
fn ends(status: &kube::core::Status) -> bool {
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "NamespaceTerminating")
}

/// Returns the API's reason against eviction, including its budget.
fn said(status: &kube::core::Status) -> String {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut words: Vec<&str> = causes.map(|cause| cause.message.as_str()).filter(|text| !text.is_empty()).collect();
    if words.is_empty() {
        words.push(status.message.as_str());
    }
    crate::shown::line(&words.join("; ")).into_owned()
}

#[async_trait]
impl NodeDrain for KubernetesNodes {
    fn address(&self) -> String {
        self.cluster.address()
    }

    fn by_hand(&self, node: &str) -> String {
        format!("kubectl uncordon {node}")
    }

    async fn look(
        &self,
        node: &str,
        by: &ExternalRequest,
        wish: Option<&DrainWish>,
    ) -> Result<DrainView, BackendError> {
        let cluster = self.uid().await?;
        let Some(found) = self.node(node).await? else {
            return Ok(DrainView { cluster: cluster.map(OneLine::from), ..DrainView::default() });
        };
        let Some(wish) = wish else {
            let mut view = DrainView { cluster: cluster.map(OneLine::from), ..view_of(&found, by) };
            // The kubelet's Lease is meaningless before the Node is Ready.
            if view.was_ready && view.ready {
                view.heard = cluster::node_heard(&self.cluster, node, meaning).await?;
            }
            return Ok(view);
        };
        Ok(DrainView { cluster: cluster.map(OneLine::from), ..self.drained(&found, &self.pods(node).await?, by, wish) })
    }

    fn follow(self: Arc<Self>, node: &str) -> Arc<dyn FollowedNode> {
        Arc::new(followed::Followed::new(self, node))
    }

    async fn glance(&self, node: &str, by: &ExternalRequest) -> Result<DrainView, BackendError> {
        let cluster = self.uid().await?;
        let found = match self.cordoned.take(self.clock.as_ref(), node, self.all_cordoned()).await {
            Some(found) => Some(found),
            None => self.node(node).await?,
        };
        Ok(DrainView {
            cluster: cluster.map(OneLine::from),
            ..found.map(|found| view_of(&found, by)).unwrap_or_default()
        })
    }

    async fn cordon(&self, node: &str, by: &ExternalRequest) -> Result<(), BackendError> {
        let missing = || BackendError::Missing {
            address: self.address().into(),
            what: format!("Node {node} does not exist").into(),
        };
        let found = self.node(node).await?.ok_or_else(missing)?;
        let mut marks = cluster::marks(by);
        if is_cordoned(&found) {
            // We adopt an ended maintenance's cordon, together with the recorded prior state.
            return match other_of_ours(&found, by) {
                Some(_) => self.patch(&found, json!({ "metadata": { "annotations": marks } })).await,
                None => Ok(()),
            };
        }
        marks.insert(WAS_READY.to_owned(), cluster::node_is_ready(&found).to_string());
        self.patch(&found, json!({ "metadata": { "annotations": marks }, "spec": { "unschedulable": true } })).await
    }

    async fn evict(&self, wish: &DrainWish) -> Result<(), BackendError> {
        let pods = self.pods(wish.node.raw()).await?;
        let pods: Vec<Pod> = pods.into_iter().filter(|pod| role(pod, wish, None) == PodRole::Evict).collect();
        let asked = stream::iter(pods)
            .map(|pod| async move { (pod.metadata.uid.clone().unwrap_or_default(), self.evict_one(&pod).await) })
            .buffer_unordered(AT_ONCE);
        let asked: Vec<_> = asked.collect().await;
        let mut failed = None;
        let mut blocked = BTreeMap::new();
        for (uid, answer) in asked {
            match answer {
                Ok(None) => {}
                Ok(Some(why)) => drop(blocked.insert(uid, why)),
                Err(error) => failed = Some(error),
            }
        }
        *self.blocked() = blocked;
        failed.map_or(Ok(()), Err)
    }

    async fn cordons(&self) -> Result<Vec<Cordon>, BackendError> {
        let all = cluster::list(&self.cluster, &nodes(), None).await.map_err(meaning)?;
        let ours = all.iter().filter_map(|node| {
            let own = |key| annotation(node, key).map(str::to_owned);
            annotation(node, WAS_READY)?;
            Some(Cordon {
                node: cluster::name(node).to_owned(),
                by_hand: self.by_hand(cluster::name(node)),
                store: own(OUR_STORE)?,
                uid: own(OUR_UID)?,
                id: own(OUR_ID).unwrap_or_default(),
            })
        });
        Ok(ours.collect())
    }

    async fn uncordon(&self, node: &str, by: &ExternalRequest) -> Result<UncordonOutcome, BackendError> {
        let Some(found) = self.node(node).await?.filter(|found| is_ours(found, by) || is_stripped(found)) else {
            return Ok(UncordonOutcome::Nothing);
        };
        let marks: BTreeMap<&str, Value> =
            cluster::MARKS.into_iter().chain([WAS_READY]).map(|key| (key, Value::Null)).collect();
        let mut change = json!({ "metadata": { "annotations": marks } });
        let (ours, cordoned) = (is_our_cordon(&found), is_cordoned(&found));
        if ours {
            change["spec"] = json!({ "unschedulable": null });
        } else if cordoned {
            tracing::warn!("Node {node} stays cordoned: another author cordoned it after ours was removed");
        }
        self.patch(&found, change).await?;
        Ok(if ours && cordoned {
            UncordonOutcome::Uncordoned
        } else {
            UncordonOutcome::AnnotationsRemoved { cordoned }
        })
    }
}
