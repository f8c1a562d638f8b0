//! Tests the printed roles unchanged against a real API server.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use terraform_provider_metal::{
    maintenance::{
        approval::{Approval, Scope},
        ids::Uid,
        lock::{EnqueueRequest, ServerLock},
        spec::{Policy, Spec},
    },
    store::{KubernetesStore, Store, StoreError},
};

use crate::{
    bench::{apply, finish, join, kubernetes, soon, try_admit},
    records::{TTL, id, key, request, runner, spec},
    roles,
    support::kubernetes::Kubernetes,
    talk::{approval, approve, claim, enqueue, said, until},
};

/// Returns the printed roles and the policy.
async fn manifests() -> [String; 2] {
    let printed = roles::printed("kubernetes", "kubernetes://metal").await;
    let at = printed.find("---\napiVersion: admissionregistration").unwrap();
    [printed[..at].to_owned(), printed[at..].to_owned()]
}

/// A cluster with the printed roles and their users.
struct Guarded {
    cluster: Kubernetes,
    policy: String,
}

impl Guarded {
    async fn start() -> Self {
        let [roles, policy] = manifests().await;
        let start = move || {
            let cluster = Kubernetes::start();
            cluster.apply(&roles);
            Self { cluster, policy }
        };
        tokio::task::spawn_blocking(start).await.unwrap()
    }

    fn config(&self, role: &str) -> std::path::PathBuf {
        self.cluster.user(&format!("ada-the-{role}"), &[&format!("metal-{role}s")])
    }

    async fn try_open(&self, role: &str) -> Result<Arc<KubernetesStore>, StoreError> {
        Ok(Arc::new(kubernetes(&Kubernetes::store_of("metal", &self.config(role)), None).await?))
    }

    async fn open(&self, role: &str) -> Arc<KubernetesStore> {
        self.try_open(role).await.unwrap()
    }

    async fn raw_admin(&self) -> Api<ConfigMap> {
        Api::namespaced(Kubernetes::client(&self.cluster.kubeconfig()).await, "metal")
    }

    async fn raw(&self, role: &str) -> Api<ConfigMap> {
        Api::namespaced(Kubernetes::client(&self.config(role)).await, "metal")
    }
}

/// Asserts that RBAC refused `verb` on `resource`.
#[track_caller]
fn lacks<T: std::fmt::Debug>(result: Result<T, StoreError>, verb: &str, resource: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, StoreError::Forbidden { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("the verb {verb:?} on {resource:?}")), "{text}");
    assert!(text.contains("many runners"), "{text}");
}

/// Asserts that the policy refused the request.
#[track_caller]
fn denied<T: std::fmt::Debug>(result: Result<T, StoreError>, words: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, StoreError::Forbidden { .. }), "{error}");
    assert!(error.to_string().contains(words) && !error.to_string().contains("the verb"), "{error}");
}

fn asks(name: &str, n: u32) -> EnqueueRequest {
    EnqueueRequest { spec: Spec { policy: Policy::OwnerApproval, ..spec() }, ..request(name, n) }
}

fn word(wish: &EnqueueRequest) -> Approval {
    approval(Scope::Maintenance { id: wish.id.clone(), digest: wish.spec.digest().into() })
}

async fn withdraw(store: &dyn Store, uid: &Uid) -> Result<bool, StoreError> {
    apply(store, &key("k"), |lock, _, now| Ok(lock.withdraw_approval(uid, "ada", now))).await
}

const CONFIG_MAPS: &str = "configmaps";
const LEASES: &str = "leases.coordination.k8s.io";

const NO_APPROVAL: &str = "who may not give approvals does not write them";
const NO_HOLD: &str = "who may not hold servers writes approvals only";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_role_may_do_what_it_is_for_and_nothing_else() {
    let guarded = Guarded::start().await;
    let k = key("k");
    // Opening an empty store needs create permission, and a user without a role cannot read.
    lacks(guarded.try_open("reviewer").await, "create", CONFIG_MAPS);
    lacks(guarded.try_open("stranger").await, "get", CONFIG_MAPS);
    let runs = guarded.open("runner").await;
    let (approves, reviews) = (guarded.open("approver").await, guarded.open("reviewer").await);
    let claimed = apply(&*runs, &k, |lock, _, now| lock.claim(claim("c"), now)).await.unwrap();
    let wish = asks("a", 1);
    let (uid, generation) = join(&*runs, &k, &wish).await.unwrap();
    assert!(!try_admit(&*runs, &k, &uid, generation).await.unwrap(), "admitted without the owner's approval");

    // RBAC alone stops the approver from renewing leases and the reviewer from writing. It does
    // not stop the runner, as the guide documents.
    lacks(approves.renew(&runner(2), TTL).await, "patch", LEASES);
    let everything = approval(Scope::All);
    approve(&*runs, &k, &everything).await.unwrap();
    assert!(withdraw(&*runs, &everything.uid).await.unwrap());
    everything_is_refused_to_the_reviewer(&reviews, &wish, &uid).await;

    // The policy takes effect after a short delay.
    let policy = guarded.policy.clone();
    tokio::task::block_in_place(|| guarded.cluster.apply(&policy));
    until("the policy", async || {
        if approve(&*runs, &k, &everything).await.is_err() {
            return Some(());
        }
        withdraw(&*approves, &everything.uid).await.unwrap();
        None
    })
    .await;
    let before = runs.view(&k).await.unwrap().lock;
    denied(approve(&*runs, &k, &word(&wish)).await, NO_APPROVAL);
    // The approver can approve but not request.
    let made = enqueue(&*approves, &k, &request("b", 2)).await;
    lacks(made, "create", CONFIG_MAPS);
    lacks(apply(&*approves, &key("other"), |lock, _, now| lock.claim(claim("d"), now)).await, "create", CONFIG_MAPS);
    denied(apply(&*approves, &k, |lock, _, now| Ok(lock.unclaim(&claimed, "ada", now))).await, NO_HOLD);
    denied(finish(&*approves, &k, &uid, generation).await, NO_HOLD);
    lacks(approves.bind("node-1", &k, false).await, "create", CONFIG_MAPS);
    assert_eq!(runs.view(&k).await.unwrap().lock, before);
    approve(&*approves, &k, &everything).await.unwrap();
    denied(withdraw(&*runs, &everything.uid).await, NO_APPROVAL);
    assert!(withdraw(&*approves, &everything.uid).await.unwrap());
    assert!(!try_admit(&*runs, &k, &uid, generation).await.unwrap(), "admitted after the approval was withdrawn");
    approve(&*approves, &k, &word(&wish)).await.unwrap();

    // The reviewer can watch all changes.
    let mut changes = reviews.changes(&k);
    assert!(try_admit(&*runs, &k, &uid, generation).await.unwrap());
    soon("the change", changes.changed()).await.unwrap();
    runs.bind("node-1", &k, false).await.unwrap();
    let seen = reviews.view(&k).await.unwrap();
    assert_eq!(seen.lock, runs.view(&k).await.unwrap().lock);
    assert_eq!(seen.lock.ownership.approvals[0].used_by.as_ref(), Some(&uid));
    assert_eq!(reviews.view_all().await.unwrap().len(), 1);
    assert!(reviews.find(&wish.id).await.unwrap().is_some() && reviews.find_uid(&uid).await.unwrap().is_some());
    assert_eq!(said(&*reviews, &wish.id).await, ["enqueued", "approved", "admitted"]);
    assert_eq!(reviews.binding("node-1").await.unwrap(), Some(k.clone()));
    let contents = reviews.contents().await.unwrap();
    assert_eq!(contents.violations(), [""; 0]);
    everything_is_refused_to_the_reviewer(&reviews, &wish, &uid).await;
    assert_eq!(reviews.contents().await.unwrap(), contents);

    // The runner can end its hold and its claim, and prune the history.
    finish(&*runs, &k, &uid, generation).await.unwrap();
    assert!(apply(&*runs, &k, |lock, _, now| Ok(lock.unclaim(&claimed, "ada", now))).await.unwrap());
    assert!(runs.view(&k).await.unwrap().lock.ownership.is_empty());
    apply(&*runs, &k, |lock, _, now| lock.claim(claim("c"), now)).await.unwrap();
    assert!(runs.view(&k).await.unwrap().lock.ownership.approvals.is_empty(), "an approval outlived its claim");
    runs.resign(&runner(1).id).await.unwrap();
    // History can be pruned after a short delay.
    let refused = until("history", async || reviews.prune(Duration::ZERO, 100).await.err()).await;
    lacks(Err::<(), _>(refused), "patch", CONFIG_MAPS);
    assert!(runs.prune(Duration::ZERO, 100).await.unwrap() > 0);
    assert_eq!(runs.contents().await.unwrap().violations(), [""; 0]);
    runs.close().await;
}

async fn everything_is_refused_to_the_reviewer(reviews: &KubernetesStore, wish: &EnqueueRequest, uid: &Uid) {
    let k = key("k");
    lacks(enqueue(reviews, &k, &request("b", 2)).await, "create", CONFIG_MAPS);
    let change = |lock: &mut ServerLock, _: &_, _: Timestamp| {
        lock.generation += 1;
        Ok(())
    };
    lacks(apply(reviews, &k, change).await, "patch", CONFIG_MAPS);
    lacks(approve(reviews, &k, &word(wish)).await, "patch", CONFIG_MAPS);
    lacks(reviews.renew(&runner(1), TTL).await, "patch", LEASES);
    lacks(reviews.resign(&runner(1).id).await, "patch", LEASES);
    lacks(reviews.bind("node-1", &key("other"), true).await, "create", CONFIG_MAPS);
    assert!(reviews.find_uid(uid).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_check_finds_a_policy_that_does_not_work() {
    let guarded = Guarded::start().await;
    let admin = kubernetes(&Kubernetes::store_of("metal", &guarded.cluster.kubeconfig()), None).await.unwrap();
    // The runner may not read policies, and still sees that none works.
    let runner = guarded.open("runner").await;
    let told = async |store: &KubernetesStore| {
        store.contents().await.unwrap().violations().iter().map(ToString::to_string).collect::<String>()
    };
    for store in [&admin, &*runner] {
        assert!(told(store).await.contains("the admission policy of the roles does not work"));
    }
    // An account that cannot write cannot check it.
    for role in ["approver", "reviewer"] {
        assert_eq!(told(&*guarded.open(role).await).await, "", "{role}");
    }
    let policy = guarded.policy.clone();
    let audited = policy.replace("validationActions: [Deny]", "validationActions: [Audit]");
    tokio::task::block_in_place(|| guarded.cluster.apply(&audited));
    assert!(told(&*runner).await.contains("does not work"));
    tokio::task::block_in_place(|| guarded.cluster.apply(&policy));
    until("the policy", async || told(&*runner).await.is_empty().then_some(())).await;
    assert_eq!(told(&admin).await, "");
    let maps = guarded.raw_admin().await.list(&ListParams::default()).await.unwrap();
    assert!(maps.items.iter().all(|map| !map.name_any().contains("policy-check")), "the check wrote an object");
}

/// The policy also restricts other clients, such as kubectl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy_holds_against_kubectl_too() {
    let guarded = Guarded::start().await;
    let policy = guarded.policy.clone();
    tokio::task::block_in_place(|| guarded.cluster.apply(&policy));
    let (runs, approves) = (guarded.open("runner").await, guarded.open("approver").await);
    apply(&*runs, &key("k"), |lock, _, now| lock.claim(claim("c"), now)).await.unwrap();
    enqueue(&*runs, &key("k"), &asks("a", 1)).await.unwrap();
    // The policy takes effect after a short delay. Each attempt needs a new approval, because an
    // existing one causes no write.
    let probe = key("probe");
    apply(&*runs, &probe, |lock, _, now| lock.claim(claim("probe"), now)).await.unwrap();
    until("the policy", async || approve(&*runs, &probe, &approval(Scope::All)).await.err()).await;
    approve(&*approves, &key("k"), &approval(Scope::All)).await.unwrap();
    let (one, other) = (guarded.raw("runner").await, guarded.raw("approver").await);
    let of = async |kind: &str| {
        let all = one.list(&ListParams::default().labels(&format!("terraform-provider-metal/kind={kind}"))).await;
        let mut all = all.unwrap().items;
        let about_k = |map: &ConfigMap| {
            map.data.as_ref().is_some_and(|data| !data.values().any(|text| text.contains("\"probe\"")))
        };
        all.retain(about_k);
        all.remove(0).metadata.name.unwrap()
    };
    let (lock, name, store) = (of("lock").await, of("name").await, of("store").await);
    let change = async |who: &Api<ConfigMap>, object: &str, patch: Value| {
        who.patch(object, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let kind = |kind: Value| json!({"metadata": {"labels": {"terraform-provider-metal/kind": kind}}});
    for (who, object, patch) in [
        (&one, &lock, json!({"data": {"approvals": null}})),
        (&one, &lock, json!({"data": null})),
        (&one, &lock, kind(Value::Null)),
        (&one, &lock, kind(json!("journal"))),
        (&one, &name, kind(json!("lock"))),
        (&other, &lock, json!({"data": {"head": "{}"}})),
        (&other, &lock, json!({"data": {"active": null}})),
        (&other, &lock, json!({"data": {"outbox": "[]"}})),
        (&other, &lock, json!({"data": {"more": "x"}})),
        (&other, &lock, json!({"binaryData": {"active.gz": "AAAA"}})),
        (&other, &lock, json!({"metadata": {"labels": {"terraform-provider-metal/busy": "false"}}})),
        (&other, &name, json!({"data": {"place": "[]"}})),
        (&other, &store, json!({"data": {"meta": "{}"}})),
    ] {
        let refused = change(who, object, patch.clone()).await.unwrap_err();
        assert!(refused.contains("ValidatingAdmissionPolicy"), "{patch}: {refused}");
    }
    for (who, object, told) in [
        (&one, &lock, "a lock is never deleted"),
        (&one, &store, "a lock is never deleted"),
        (&other, &name, "cannot delete resource"),
    ] {
        let refused = who.delete(object, &DeleteParams::default()).await.unwrap_err().to_string();
        assert!(refused.contains(told), "{refused}");
    }
    assert_eq!(runs.contents().await.unwrap().violations(), [""; 0]);
    assert_eq!(said(&*runs, &id("c")).await, ["claimed", "approved"]);
    // Cluster administrators can delete a lock, and so can the namespace controller.
    guarded.raw_admin().await.delete(&lock, &DeleteParams::default()).await.unwrap();
}
