//! The Kubernetes Nodes that run on servers: cordoned, drained through the eviction API, and
//! uncordoned.
//!
//! A Node that we cordon carries our annotations, written in the same patch: by them the
//! maintenance that cordoned it is known, and only that one uncordons it. An eviction honours
//! disruption budgets (Kubernetes API, `pods/eviction`): 429 says which budget allows none now.

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
};

use super::{
    BackendError, Cordon, FollowedNode, NodeDrain, UncordonOutcome, before_change,
    bulk::BulkReads,
    cluster::{self, OUR_ID, OUR_STORE, OUR_UID, annotation},
};
use pods::{PodRole, role, shown};

pub use plug::{Drains, Leases, Minded, connect};

/// Our annotation: whether the Node was Ready when we cordoned it.
const WAS_READY: &str = "terraform-provider-metal/was-ready";
/// How long a listed Node counts as one that was read now.
const RECENT: Duration = Duration::from_secs(5);
/// How much longer than it is given a Pod may take to end, and by how much clocks may differ.
const SLACK: SignedDuration = SignedDuration::from_secs(30);
/// Evictions asked for at once.
const AT_ONCE: usize = 8;

/// The Nodes of one cluster.
#[derive(Debug)]
pub struct KubernetesNodes {
    cluster: Cluster,
    uid: OnceCell<Option<String>>,
    clock: Arc<dyn Clock>,
    /// Those that are cordoned, for refreshes.
    cordoned: BulkReads<DynamicObject>,
    /// Why a Pod was not evicted when that was asked last, by its UID.
    blocked: Mutex<BTreeMap<String, String>>,
}

/// The kind of Nodes.
fn nodes() -> ApiResource {
    ApiResource::erase::<Node>(&())
}

/// The field selector of the Pods of a Node.
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

/// Whether an answer says that an object of this name is not there.
fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 && status.reason == "NotFound")
}

fn is_cordoned(node: &DynamicObject) -> bool {
    node.data.pointer("/spec/unschedulable") == Some(&Value::Bool(true))
}

fn is_ours(node: &DynamicObject, by: &ExternalRequest) -> bool {
    annotation(node, OUR_UID) == Some(by.uid.as_str()) && annotation(node, OUR_STORE) == Some(by.store.as_str())
}

/// Whose client set the cordon of a Node last, as the API notes it (`metadata.managedFields`);
/// `None`: it does not tell.
fn cordon_is_of_this_provider(node: &DynamicObject) -> Option<bool> {
    let sets = |fields: &Value| fields.pointer("/f:spec/f:unschedulable").is_some();
    let entries = node.metadata.managed_fields.iter().flatten();
    let setters: Vec<_> =
        entries.filter(|entry| entry.fields_v1.as_ref().is_some_and(|fields| sets(&fields.0))).collect();
    let ours = setters.iter().any(|entry| entry.manager.as_deref() == Some(cluster::MANAGER));
    (!setters.is_empty()).then_some(ours)
}

/// Whether the cordon of a Node is the one that we set with our annotations: another author may
/// have removed ours and set one since. Where the API does not tell, our annotations decide.
fn is_our_cordon(node: &DynamicObject) -> bool {
    cordon_is_of_this_provider(node).unwrap_or(true)
}

/// Whether a person removed the annotations of a cordon that this provider set. Asked for a
/// maintenance that recorded it.
fn is_stripped(node: &DynamicObject) -> bool {
    let unmarked = cluster::MARKS.iter().all(|key| annotation(node, key).is_none());
    unmarked && is_cordoned(node) && cordon_is_of_this_provider(node) == Some(true)
}

/// The maintenance of another store that cordoned a Node. In our own store the lock of the server
/// keeps others away, and what an ended one left there keeps nobody.
fn other_store(node: &DynamicObject, by: &ExternalRequest) -> Option<String> {
    let store = annotation(node, OUR_STORE).filter(|_| is_cordoned(node) && is_our_cordon(node))?;
    (store != by.store.as_str()).then(|| {
        let id = annotation(node, OUR_ID).unwrap_or("without a name");
        format!("the maintenance {} of another store", crate::shown::line(id))
    })
}

/// The incarnation of another maintenance of our store that cordoned a Node.
fn other_of_ours<'a>(node: &'a DynamicObject, by: &ExternalRequest) -> Option<&'a str> {
    let of_store = is_cordoned(node) && is_our_cordon(node) && annotation(node, OUR_STORE) == Some(by.store.as_str());
    annotation(node, OUR_UID).filter(|uid| of_store && *uid != by.uid.as_str())
}

/// What a Node alone tells.
fn view_of(node: &DynamicObject, by: &ExternalRequest) -> DrainView {
    let stripped = is_stripped(node);
    let ours = is_ours(node, by) || stripped;
    DrainView {
        exists: true,
        cordoned: is_cordoned(node),
        ours,
        held_by: other_store(node, by),
        left_by: other_of_ours(node, by).map(str::to_owned),
        // For the Node to be Ready is waited only where it is uncordoned then. One of which nothing
        // tells how it was is taken to have been.
        was_ready: ours && is_our_cordon(node) && (stripped || annotation(node, WAS_READY) == Some("true")),
        ready: cluster::node_is_ready(node),
        ..DrainView::default()
    }
}

impl KubernetesNodes {
    /// The Nodes of a cluster. Sends no request.
    #[must_use]
    pub fn new(cluster: Cluster, clock: Arc<dyn Clock>) -> Self {
        let cordoned = BulkReads::new("Nodes", RECENT);
        Self { cluster, uid: OnceCell::new(), clock, cordoned, blocked: Mutex::default() }
    }

    /// The UID of the namespace `kube-system`; `None`: a role hides it.
    async fn uid(&self) -> Result<Option<String>, BackendError> {
        Ok(self.uid.get_or_try_init(|| cluster::uid(&self.cluster, meaning)).await?.clone())
    }

    fn blocked(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn node(&self, name: &str) -> Result<Option<DynamicObject>, BackendError> {
        cluster::now(&self.cluster, &nodes(), None, name).await.map_err(meaning)
    }

    /// Every Node that is cordoned, by name.
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

    /// A Pod whose time to end passed before this has ended, also where its kubelet cannot say so.
    fn ended_by(&self) -> Timestamp {
        self.clock.now().checked_sub(SLACK).unwrap_or(Timestamp::MIN)
    }

    /// What a Node and its Pods tell for a drain.
    fn drained(&self, node: &DynamicObject, pods: &[Pod], by: &ExternalRequest, wish: &DrainWish) -> DrainView {
        let mut view = DrainView { only_ending: true, ..view_of(node, by) };
        let was_away = view.ours && annotation(node, WAS_READY) == Some("false");
        let unheard = (!view.ready).then(|| if was_away { Timestamp::MAX } else { self.ended_by() });
        for pod in pods {
            match role(pod, wish, unheard) {
                PodRole::Stays => {}
                PodRole::Ending => view.left.push(format!("{} (ending)", shown(pod))),
                PodRole::Refused(why) => view.refused.push(format!("{} ({why})", shown(pod))),
                PodRole::Evict => {
                    view.only_ending = false;
                    let why = pod.metadata.uid.as_ref().and_then(|uid| self.blocked().get(uid).cloned());
                    view.left.push(why.map_or_else(|| shown(pod), |why| format!("{} ({why})", shown(pod))));
                }
            }
        }
        view
    }

    async fn patch(&self, node: &DynamicObject, change: Value) -> Result<(), BackendError> {
        cluster::patched(&self.cluster, &nodes(), node, change, meaning).await.map(drop)
    }

    /// Asks for the eviction of exactly this Pod. `Ok(Some(why))`: not now.
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
                // It is gone, or another Pod has its name.
                Err(error) if is_gone(&error) => Ok(None),
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
                // A budget allows none now (429), or more than one budget covers it (500).
                Err(kube::Error::Api(status)) if matches!(status.code, 429 | 500) => Ok(Some(said(&status))),
                // Its namespace is being deleted, and it with that: nothing may be created there.
                Err(kube::Error::Api(status)) if status.code == 403 && ends(&status) => Ok(Some(said(&status))),
                Err(error) => Err(error),
            }
        });
        asked.await.map_err(meaning)
    }
}

/// Whether an answer says that the namespace is being deleted.
fn ends(status: &kube::core::Status) -> bool {
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "NamespaceTerminating")
}

/// Why the API did not evict, with the budget that it names.
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
        let Some(found) = self.node(node).await? else { return Ok(DrainView { cluster, ..DrainView::default() }) };
        let Some(wish) = wish else {
            let mut view = DrainView { cluster, ..view_of(&found, by) };
            // Before it is Ready again the Lease decides nothing.
            if view.was_ready && view.ready {
                view.heard = cluster::node_heard(&self.cluster, node, meaning).await?;
            }
            return Ok(view);
        };
        Ok(DrainView { cluster, ..self.drained(&found, &self.pods(node).await?, by, wish) })
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
        Ok(DrainView { cluster, ..found.map(|found| view_of(&found, by)).unwrap_or_default() })
    }

    async fn cordon(&self, node: &str, by: &ExternalRequest) -> Result<(), BackendError> {
        let missing = || BackendError::Missing { address: self.address(), what: format!("Node {node} is not there") };
        let found = self.node(node).await?.ok_or_else(missing)?;
        let mut marks = cluster::marks(by);
        if is_cordoned(&found) {
            // What an ended maintenance left there becomes ours, with how it was before that one.
            return match other_of_ours(&found, by) {
                Some(_) => self.patch(&found, json!({ "metadata": { "annotations": marks } })).await,
                None => Ok(()),
            };
        }
        marks.insert(WAS_READY.to_owned(), cluster::node_is_ready(&found).to_string());
        self.patch(&found, json!({ "metadata": { "annotations": marks }, "spec": { "unschedulable": true } })).await
    }

    async fn evict(&self, wish: &DrainWish) -> Result<(), BackendError> {
        let pods = self.pods(&wish.node).await?;
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
