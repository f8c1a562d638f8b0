//! Attacks by a cluster role's user with a plain API client.

use std::{path::PathBuf, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use terraform_provider_metal::{
    maintenance::{
        approval::Scope,
        ids::{Fence, LockKey, Uid},
        lock::EnqueueRequest,
        spec::{Policy, Spec},
    },
    store::{AuditStart, KubernetesStore, Store, StoreError},
};

use crate::{
    bench::{apply, finish, join, kubernetes, try_admit},
    records::{key, request, spec},
    roles,
    support::kubernetes::Kubernetes,
    talk::{approval, approve, claim, enqueue, until},
};

const KIND: &str = "terraform-provider-metal/kind";
const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

/// A cluster with the printed roles and policy, and a claimed server with one waiter.
struct Guarded {
    cluster: Kubernetes,
    runs: Arc<KubernetesStore>,
    wish: EnqueueRequest,
    waiter: (Uid, Fence),
}

impl Guarded {
    async fn start() -> Self {
        let cluster = tokio::task::spawn_blocking(Kubernetes::start).await.unwrap();
        let printed = roles::printed("kubernetes", "kubernetes://metal").await;
        tokio::task::block_in_place(|| cluster.apply(&printed));
        let config = cluster.user("ada", &["metal-runners"]);
        let runs = Arc::new(kubernetes(&Kubernetes::store_of("metal", &config), None).await.unwrap());
        // The policy takes effect after a short delay. Each attempt needs a new approval, because
        // an existing approval causes no write.
        let probe = key("probe");
        apply(&*runs, &probe, |lock, _, now| lock.claim(claim("probe"), now)).await.unwrap();
        until("the policy", async || approve(&*runs, &probe, &approval(Scope::All)).await.err()).await;
        apply(&*runs, &key("k"), |lock, _, now| lock.claim(claim("c"), now)).await.unwrap();
        let wish = EnqueueRequest { spec: Spec { policy: Policy::OwnerApproval, ..spec() }, ..request("a", 1) };
        let waiter = join(&*runs, &key("k"), &wish).await.unwrap();
        Self { cluster, runs, wish, waiter }
    }

    fn config(&self, role: &str) -> PathBuf {
        self.cluster.user(&format!("eve-the-{role}"), &[&format!("metal-{role}s")])
    }

    async fn open(&self, role: &str) -> KubernetesStore {
        kubernetes(&Kubernetes::store_of("metal", &self.config(role)), None).await.unwrap()
    }

    async fn raw(&self, role: &str) -> Api<ConfigMap> {
        let config = if role == "admin" { self.cluster.kubeconfig() } else { self.config(role) };
        Api::namespaced(Kubernetes::client(&config).await, "metal")
    }

    /// Returns the object that stores a lock.
    async fn lock(&self, key: &LockKey) -> ConfigMap {
        let all = self.raw("admin").await.list(&ListParams::default().labels(&format!("{KIND}=lock"))).await.unwrap();
        let head = format!("\"key\":\"{key}\"");
        all.items.into_iter().find(|map| map.data.as_ref().unwrap()["head"].contains(&head)).unwrap()
    }

    async fn the_hold_goes_on(&self) {
        let approves = self.open("approver").await;
        let scope = Scope::Maintenance { id: self.wish.id.clone(), digest: self.wish.spec.digest().into() };
        approve(&approves, &key("k"), &approval(scope)).await.unwrap();
        let (uid, fence) = &self.waiter;
        assert!(try_admit(&*self.runs, &key("k"), uid, *fence).await.unwrap());
        finish(&*self.runs, &key("k"), uid, *fence).await.unwrap();
        assert_eq!(self.runs.contents().await.unwrap().violations(), [""; 0]);
    }
}

async fn patch(maps: &Api<ConfigMap>, object: &str, patch: &Value) -> Result<(), String> {
    let done = maps.patch(object, &PatchParams::default(), &Patch::Merge(patch)).await;
    done.map(drop).map_err(|error| error.to_string())
}

async fn create(maps: &Api<ConfigMap>, object: Value) -> Result<(), String> {
    let object: ConfigMap = serde_json::from_value(object).unwrap();
    maps.create(&PostParams::default(), &object).await.map(drop).map_err(|error| error.to_string())
}

/// Returns metadata that no role can add, because others could then delete or freeze the object.
fn traps() -> [Value; 3] {
    let dangling = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "00000000-0000-0000-0000-000000000000"}]);
    [
        json!({"metadata": {"ownerReferences": dangling}}),
        json!({"metadata": {"finalizers": ["example.com/never"]}}),
        json!({"immutable": true}),
    ]
}

/// A runner marks the approval that it uses. The policy prevents changes to that mark.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_used_approval_stays_used() {
    let guarded = Guarded::start().await;
    let approves = guarded.open("approver").await;
    let (uid, fence) = &guarded.waiter;
    let scope = || Scope::Maintenance { id: guarded.wish.id.clone(), digest: guarded.wish.spec.digest().into() };
    let given = approval(scope());
    approve(&approves, &key("k"), &given).await.unwrap();
    assert!(try_admit(&*guarded.runs, &key("k"), uid, *fence).await.unwrap());
    finish(&*guarded.runs, &key("k"), uid, *fence).await.unwrap();
    let lock = guarded.lock(&key("k")).await;
    let (name, data) = (lock.metadata.name.clone().unwrap(), lock.data.clone().unwrap());
    let mark = data.iter().find(|(key, _)| key.starts_with("used-") && key.contains(given.uid.raw())).unwrap().0;
    for role in ["runner", "approver", "reviewer"] {
        let maps = guarded.raw(role).await;
        for forged in [Value::Null, json!("again"), json!("")] {
            let refused = patch(&maps, &name, &json!({"data": {mark: forged}})).await;
            assert!(refused.is_err(), "{role}: {forged}");
        }
    }
    // The runner can still write this key, but it is not authoritative.
    let mut head: Value = serde_json::from_str(&data["head"]).unwrap();
    for forged in [json!([]), json!([[given.uid, "again"]])] {
        head["used"] = forged;
        patch(&guarded.raw("runner").await, &name, &json!({"data": {"head": head.to_string()}})).await.unwrap();
        let again = EnqueueRequest { uid: Uid::new("again"), ..guarded.wish.clone() };
        let store = guarded.open("runner").await;
        let (again, fence) = join(&store, &key("k"), &again).await.unwrap();
        assert!(!try_admit(&store, &key("k"), &again, fence).await.unwrap());
        finish(&store, &key("k"), &again, fence).await.unwrap();
    }
    // The owner withdraws the approval, and the next change by a runner removes the mark.
    apply(&approves, &key("k"), |lock, _, now| Ok(lock.withdraw_approval(&given.uid, "ada", now))).await.unwrap();
    approve(&approves, &key("k"), &approval(scope())).await.unwrap();
    let again = EnqueueRequest { uid: Uid::new("third"), ..guarded.wish.clone() };
    let (third, fence) = join(&*guarded.runs, &key("k"), &again).await.unwrap();
    assert!(try_admit(&*guarded.runs, &key("k"), &third, fence).await.unwrap());
    assert!(!guarded.lock(&key("k")).await.data.unwrap().contains_key(mark));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_hands_a_lock_to_the_collector_or_freezes_it() {
    let guarded = Guarded::start().await;
    let lock = guarded.lock(&key("k")).await;
    let name = lock.metadata.name.clone().unwrap();
    for role in ["approver", "runner"] {
        let maps = guarded.raw(role).await;
        for trap in traps() {
            let refused = patch(&maps, &name, &trap).await;
            assert!(
                refused.as_ref().is_err_and(|text| text.contains("ValidatingAdmissionPolicy")),
                "{role}: {trap}: {refused:?}"
            );
        }
    }
    let runner = guarded.raw("runner").await;
    for (n, trap) in traps().into_iter().enumerate() {
        let mut made = json!({"metadata": {"name": format!("metal-journal-{n}"), "labels": {KIND: "journal"}}, "data": {"entries": "[]"}});
        for (field, value) in trap.as_object().unwrap() {
            match value {
                Value::Object(more) => made["metadata"].as_object_mut().unwrap().extend(more.clone()),
                value => made[field] = value.clone(),
            }
        }
        let refused = create(&runner, made.clone()).await;
        assert!(refused.is_err(), "{made}");
    }
    // The garbage collector can delete other objects, but not locks.
    let collector = guarded.cluster.user(COLLECTOR, &["system:serviceaccounts", "system:authenticated"]);
    let collects: Api<ConfigMap> = Api::namespaced(Kubernetes::client(&collector).await, "metal");
    let refused = collects.delete(&name, &DeleteParams::default()).await.unwrap_err().to_string();
    assert!(refused.contains("a lock is never deleted"), "{refused}");
    guarded.the_hold_goes_on().await;
    // Deleting the namespace stays possible.
    let deletes = guarded.cluster.user(
        "system:serviceaccount:kube-system:namespace-controller",
        &["system:serviceaccounts", "system:authenticated"],
    );
    let deletes: Api<ConfigMap> = Api::namespaced(Kubernetes::client(&deletes).await, "metal");
    deletes.delete(&name, &DeleteParams::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_of_an_object_says_what_it_is() {
    let guarded = Guarded::start().await;
    let (approver, runner) = (guarded.raw("approver").await, guarded.raw("runner").await);
    let real = guarded.lock(&key("k")).await;
    let (data, name) = (real.data.clone().unwrap(), real.metadata.name.clone().unwrap());
    let digest = name.strip_prefix("metal-lock-").unwrap();
    let object =
        |name: &str, labels: Value, data: Value| json!({"metadata": {"name": name, "labels": labels}, "data": data});
    let free = "metal-lock-0000000000000000000000000000000000000000";
    let granted = json!({"head": data["head"], "approvals": r#"{"claim":"x","approvals":[],"commits":""}"#});
    for kind in [json!({KIND: "journal"}), json!({}), json!({KIND: "lock"})] {
        let refused = create(&approver, object(free, kind.clone(), json!({"head": data["head"]}))).await;
        assert!(refused.is_err(), "an approver created a lock as {kind}");
        let refused = create(&runner, object(free, kind.clone(), granted.clone())).await;
        assert!(refused.is_err(), "a runner created a lock with approvals as {kind}");
    }
    create(&approver, object("metal-journal-forged", json!({KIND: "journal"}), json!({"entries": "[]"})))
        .await
        .unwrap_err();
    for (name, kind) in [
        (format!("metal-name-{digest}"), "uid"),
        ("metal-something".to_owned(), "journal"),
        ("something".to_owned(), "journal"),
        ("something".to_owned(), "lock"),
        (format!("metal-bound-{digest}"), "name"),
    ] {
        create(&runner, object(&name, json!({KIND: kind}), json!({}))).await.expect_err(&name);
    }
    // With `generateName` the API server chooses the name.
    for labels in [json!({}), json!({KIND: "journal"})] {
        let made = json!({"metadata": {"generateName": "metal-lock-", "labels": labels}, "data": granted});
        create(&runner, made).await.unwrap_err();
    }
    // Foreign objects stay unchanged and cannot get this program's labels.
    let admin = guarded.raw("admin").await;
    create(&admin, object("kube-root-ca.crt", json!({}), json!({"ca.crt": ""}))).await.unwrap();
    patch(&runner, "kube-root-ca.crt", &json!({"metadata": {"labels": {KIND: "lock"}}})).await.unwrap_err();
    guarded.the_hold_goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approver_adds_to_what_was_said_and_takes_nothing_away() {
    let guarded = Guarded::start().await;
    let (approves, maps) = (guarded.open("approver").await, guarded.raw("approver").await);
    let given = approval(Scope::All);
    approve(&approves, &key("k"), &given).await.unwrap();
    let lock = guarded.lock(&key("k")).await;
    let (name, said) = (lock.metadata.name.clone().unwrap(), lock.data.unwrap()["said"].clone());
    assert!(said.len() > 10, "{said}");
    for less in ["[]", "", "[{}]", &said[..said.len() - 2]] {
        let refused = patch(&maps, &name, &json!({"data": {"said": less}})).await;
        assert!(refused.is_err(), "{less:?}");
    }
    patch(&maps, &name, &json!({"data": {"said": null}})).await.unwrap_err();
    let endless = format!("{},{}]", &said[..said.len() - 1], "1".repeat(600 * 1024));
    patch(&maps, &name, &json!({"data": {"said": endless}})).await.unwrap_err();
    // Approvals do not block runners, however many there are.
    for _ in 0..60 {
        approve(&approves, &key("k"), &approval(Scope::All)).await.unwrap();
    }
    let asks = enqueue(&*guarded.runs, &key("k"), &request("b", 2)).await;
    asks.unwrap();
    assert_eq!(crate::talk::said(&*guarded.runs, &crate::records::id("c")).await.len(), 62);
    assert_eq!(guarded.runs.contents().await.unwrap().violations(), [""; 0]);
}

/// An approver can write invalid data into its key. It is reported and blocks no server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_that_cannot_be_read_freeze_no_server() {
    let guarded = Guarded::start().await;
    let maps = guarded.raw("approver").await;
    let lock = guarded.lock(&key("k")).await;
    let name = lock.metadata.name.unwrap();
    for (part, nonsense) in [("approvals", "{"), ("order", "[]"), ("said", "[1,")] {
        patch(&maps, &name, &json!({"data": {part: nonsense}})).await.unwrap();
    }
    let told = guarded.runs.contents().await.unwrap().violations();
    let told = told.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for part in ["\"approvals\"", "\"order\"", "\"said\""] {
        assert!(told.contains(part), "{told}");
    }
    let (uid, fence) = &guarded.waiter;
    assert!(!try_admit(&*guarded.runs, &key("k"), uid, *fence).await.unwrap());
    finish(&*guarded.runs, &key("k"), uid, *fence).await.unwrap();
    // The invalid data stays unchanged.
    guarded.runs.prune(std::time::Duration::ZERO, 100).await.unwrap();
    assert_eq!(guarded.lock(&key("k")).await.data.unwrap()["said"], "[1,");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_without_its_label_is_no_lock() {
    let guarded = Guarded::start().await;
    let lock = guarded.lock(&key("k")).await;
    let name = lock.metadata.name.clone().unwrap();
    let admin = guarded.raw("admin").await;
    // An object from before the policy.
    admin.delete(&name, &DeleteParams::default()).await.unwrap();
    let policies: Api<k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding> =
        Api::all(Kubernetes::client(&guarded.cluster.kubeconfig()).await);
    policies.delete("metal-store", &DeleteParams::default()).await.unwrap();
    let bare = json!({"metadata": {"name": name}, "data": lock.data});
    until("the policy removal", async || create(&admin, bare.clone()).await.ok()).await;
    // `store check` reports damage from before the policy.
    for trap in [&traps()[0], &traps()[2]] {
        let metadata =
            json!({"name": format!("metal-journal-{}", uuid::Uuid::new_v4().simple()), "labels": {KIND: "journal"}});
        let mut made = json!({"metadata": metadata, "data": {"entries": "[]", "key": "\"k\""}});
        for (field, value) in trap.as_object().unwrap() {
            match value {
                Value::Object(more) => made["metadata"].as_object_mut().unwrap().extend(more.clone()),
                value => made[field] = value.clone(),
            }
        }
        create(&admin, made).await.unwrap();
    }
    let forged = json!({"metadata": {"name": "something", "labels": {KIND: "journal"}}, "data": {"entries": "[]"}});
    create(&admin, forged).await.unwrap();
    let fresh = guarded.open("runner").await;
    let told = fresh.contents().await.unwrap().violations();
    let told = told.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for part in ["has owners", "is immutable", "the ConfigMap something has an unknown kind label"] {
        assert!(told.contains(part), "{told}");
    }
    let error = fresh.view(&key("k")).await.unwrap_err();
    assert!(matches!(&error, StoreError::Unreadable { cause, .. } if cause.raw().contains("label")), "{error}");
}

/// For approvers the policy keeps the log append-only. A runner can rewrite it, so the guide shows
/// how to export it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approver_adds_lines_and_removes_none() {
    let guarded = Guarded::start().await;
    let approves = guarded.open("approver").await;
    approve(&approves, &key("k"), &approval(Scope::All)).await.unwrap();
    let lock = guarded.lock(&key("k")).await;
    let (object, data) = (lock.metadata.name.unwrap(), lock.data.unwrap());
    let kubectl = guarded.raw("approver").await;
    let part = |part: &str, text: String| json!({ "data": { part: text } });
    patch(&kubectl, &object, &part("outbox", "[]".into())).await.unwrap_err();
    patch(&kubectl, &object, &part("said", "[]".into())).await.unwrap_err();
    patch(&kubectl, &object, &part("said", data["said"].replace("ada", "eve"))).await.unwrap_err();
}

/// A runner can write such objects. They must not affect others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_cannot_be_read_is_reported_and_hides_no_other() {
    let guarded = Guarded::start().await;
    let runner = guarded.raw("runner").await;
    let forged = format!("metal-journal-forged-{}", i64::MAX);
    let made = [
        (forged.as_str(), "journal", "entries"),
        ("metal-bound-forged", "bound", "bound"),
        ("metal-name-forged", "name", "place"),
    ];
    for (name, kind, key) in made {
        create(&runner, json!({"metadata": {"name": name, "labels": {KIND: kind}}, "data": {key: "{"}})).await.unwrap();
    }
    let wrong = guarded.runs.contents().await.unwrap().violations();
    for (name, ..) in made {
        assert!(wrong.iter().any(|line| line.raw().contains(name)), "{name}: {wrong:?}");
    }
    let lines = guarded.runs.export_audit(&AuditStart::Oldest, 1000).await.unwrap();
    assert!(lines.iter().any(|line| line.event.is_ok()), "{lines:?}");
    assert!(lines.iter().any(|line| line.id.contains("forged") && line.event.is_err()), "{lines:?}");
    // Its name hides no later line.
    let after = AuditStart::After(lines.last().unwrap().position.clone());
    apply(&*guarded.runs, &key("later"), |lock, _, now| lock.claim(claim("later"), now)).await.unwrap();
    let lines = guarded.runs.export_audit(&after, 1000).await.unwrap();
    assert!(lines.iter().any(|line| line.event.is_ok()), "{lines:?}");
}
