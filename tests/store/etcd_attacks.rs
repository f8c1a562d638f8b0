//! What the users of a cluster try past this program, with etcd's own client.

use std::{sync::Arc, time::Duration};

use etcd_client::{Client, ConnectOptions, Permission};
use terraform_provider_metal::{
    maintenance::{
        approval::{Claim, Scope},
        ids::{LockKey, Uid},
        lock::EnqueueRequest,
        spec::{Policy, Spec},
    },
    store::{EtcdStore, Store},
};

use crate::{
    bench::{apply, etcd, finish, join, try_admit},
    records::{id, key, request, spec},
    roles,
    support::etcd::Etcd,
    talk::{approval, approve, claim, said, until},
};

/// With everything in it that a URL has a meaning for.
pub const PASSWORD: &str = "hunter@2:/?#%";

/// A cluster with the printed roles and one user of each, and a URL for one of them.
pub struct Guarded {
    pub cluster: Etcd,
    pub prefix: String,
}

impl Guarded {
    pub async fn start() -> Self {
        let (cluster, prefix) = (Etcd::start(1, &["--bcrypt-cost=4"]), Etcd::prefix());
        let this = Self { cluster, prefix };
        let mut auth = Client::connect([this.cluster.hosts()], None).await.unwrap().auth_client();
        auth.user_add("root", PASSWORD, None).await.unwrap();
        auth.user_grant_role("root", "root").await.unwrap();
        let url = this.cluster.url(&this.prefix);
        for line in roles::printed("etcd", &url).await.lines() {
            let words: Vec<&str> = line.split_whitespace().take_while(|word| !word.starts_with('#')).collect();
            match words.as_slice() {
                ["etcdctl", "role", "add", role] => drop(auth.role_add(*role).await.unwrap()),
                ["etcdctl", "role", "grant-permission", flags @ .., role, how, key] => {
                    let permission = match *how {
                        "read" => Permission::read(*key),
                        "readwrite" => Permission::read_write(*key),
                        other => panic!("{other}"),
                    };
                    let permission = if *flags == ["--prefix=true"] { permission.with_prefix() } else { permission };
                    auth.role_grant_permission(*role, permission).await.unwrap();
                }
                [] => {}
                other => panic!("{other:?}"),
            }
        }
        for user in ["runner", "approver", "reviewer"] {
            auth.user_add(user, PASSWORD, None).await.unwrap();
            auth.user_grant_role(user, format!("metal-{user}")).await.unwrap();
        }
        auth.auth_enable().await.unwrap();
        this
    }

    pub fn url(&self, login: &str) -> String {
        format!("etcd://{login}{}/{}", self.cluster.hosts(), self.prefix)
    }

    pub async fn open(&self, user: &str) -> Arc<EtcdStore> {
        Arc::new(etcd(&self.url(&format!("{user}:hunter%402%3A%2F%3F%23%25@")), None).await.unwrap())
    }

    pub async fn raw(&self, user: &str) -> Client {
        let login = ConnectOptions::new().with_user(user, PASSWORD);
        Client::connect([self.cluster.hosts()], Some(login)).await.unwrap()
    }

    fn key(&self, below: &str) -> String {
        format!("{}/{below}", self.prefix)
    }
}

/// A store with a runner, an approver and a claimed server.
async fn claimed() -> (Guarded, Arc<EtcdStore>, Arc<EtcdStore>, LockKey) {
    let guarded = Guarded::start().await;
    let (runs, approves) = (guarded.open("runner").await, guarded.open("approver").await);
    let k = key("k");
    apply(&*runs, &k, |lock, _, now| lock.claim(claim("c"), now)).await.unwrap();
    (guarded, runs, approves, k)
}

fn asks(name: &str, n: u32) -> EnqueueRequest {
    EnqueueRequest { spec: Spec { policy: Policy::OwnerApproval, ..spec() }, ..request(name, n) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_below_old_deletes_no_lock() {
    let (guarded, runs, approves, k) = claimed().await;
    let wish = asks("a", 1);
    let (uid, fence) = join(&*runs, &k, &wish).await.unwrap();
    approve(&*approves, &k, &approval(Scope::All)).await.unwrap();
    assert!(try_admit(&*runs, &k, &uid, fence).await.unwrap());
    let (other, foreign) = (guarded.key("active/k/"), "elsewhere/x".to_owned());
    let mut root = guarded.raw("root").await;
    root.put(&*foreign, "1", None).await.unwrap();
    let targets = [
        guarded.key("lock/k"),
        guarded.key("meta"),
        guarded.key(&format!("active/k/{uid}")),
        guarded.key(&format!("uid/{uid}")),
        guarded.key("approvals/k"),
        other,
        foreign.clone(),
    ];
    let list = serde_json::to_string(&targets).unwrap();
    let old = guarded.key("old/00000000000000000000/x");
    // An approver may not even write there.
    let mut etcdctl = guarded.raw("approver").await;
    etcdctl.put(&*old, &*list, None).await.unwrap_err();
    for below in ["lock/k", "meta", "active/k/x", "uid/x", "past/ops/a/x", "audit/ops/a/x", "old/sweeper"] {
        etcdctl.put(guarded.key(below), "[]", None).await.unwrap_err();
        etcdctl.delete(guarded.key(below), None).await.unwrap_err();
    }
    // With a grant of earlier versions it may: nothing but history goes.
    root.put(&*old, &*list, None).await.unwrap();
    let told = runs.contents().await.unwrap().violations();
    assert!(told.iter().any(|line| line.contains("old/00000000000000000000/x") && line.contains("lock/k")), "{told:?}");
    while runs.prune(Duration::ZERO, 100).await.unwrap() > 0 {}
    let mut left = Vec::new();
    for target in &targets {
        left.push(root.get(&**target, None).await.unwrap().kvs().len());
    }
    assert_eq!(left, [1, 1, 1, 1, 1, 0, 1]);
    let view = runs.view(&k).await.unwrap();
    assert!(view.lock.slot.is_some(), "{:?}", view.lock);
    // The second one waits.
    let (second, second_fence) = join(&*runs, &k, &asks("b", 2)).await.unwrap();
    assert!(!try_admit(&*runs, &k, &second, second_fence).await.unwrap());
    finish(&*runs, &k, &uid, fence).await.unwrap();
    assert_eq!(runs.contents().await.unwrap().violations(), [""; 0]);
}

/// One request of a runner for the mark of an approval.
enum Raw {
    /// As it was before the approval was used.
    Open,
    /// The run that is to start with it once more.
    Run,
    Delete,
}

/// A runner writes the mark with which it uses an approval, so it can also remove or forge one.
/// None of that makes the approval count for a second run, whatever it writes and in whichever
/// order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_used_approval_stays_used() {
    let guarded = Guarded::start().await;
    let (runs, approves) = (guarded.open("runner").await, guarded.open("approver").await);
    let (mut runner, mut reviewer) = (guarded.raw("runner").await, guarded.raw("reviewer").await);
    let attacks: [&[Raw]; 6] = [
        &[Raw::Delete],
        &[Raw::Open],
        &[Raw::Delete, Raw::Open],
        &[Raw::Run],
        &[Raw::Delete, Raw::Run],
        &[Raw::Delete, Raw::Open, Raw::Run],
    ];
    for (n, attack) in attacks.into_iter().enumerate() {
        let k = key(&format!("k{n}"));
        let owner = Claim { uid: Uid(format!("c{n}")), ..claim(&format!("c{n}")) };
        apply(&*runs, &k, |lock, _, now| lock.claim(owner.clone(), now)).await.unwrap();
        let wish = asks("a", 1);
        let (uid, fence) = join(&*runs, &k, &wish).await.unwrap();
        let given = approval(Scope::Maintenance { id: wish.id.clone(), digest: wish.spec.digest() });
        approve(&*approves, &k, &given).await.unwrap();
        // What the approver writes later about others does not wear it out, and it lasts through
        // that.
        approve(&*approves, &k, &approval(Scope::Maintenance { id: id("other"), digest: String::new() }))
            .await
            .unwrap();
        assert!(try_admit(&*runs, &k, &uid, fence).await.unwrap(), "{n}");
        finish(&*runs, &k, &uid, fence).await.unwrap();
        assert_eq!(runs.contents().await.unwrap().violations(), [""; 0], "{n}");
        let mark = guarded.key(&format!("used/k{n}/{}", given.uid));
        reviewer.delete(&*mark, None).await.unwrap_err();
        for raw in attack {
            match raw {
                Raw::Open => drop(runner.put(&*mark, "\"open\"", None).await.unwrap()),
                Raw::Run => drop(runner.put(&*mark, format!("\"again-{n}\""), None).await.unwrap()),
                Raw::Delete => drop(runner.delete(&*mark, None).await.unwrap()),
            }
        }
        let (again, fence) =
            join(&*runs, &k, &EnqueueRequest { uid: Uid(format!("again-{n}")), ..wish.clone() }).await.unwrap();
        // Another process, which has seen nothing of it.
        for store in [&runs, &guarded.open("runner").await] {
            assert!(!try_admit(&**store, &k, &again, fence).await.unwrap(), "{n}");
        }
        let told = runs.contents().await.unwrap().violations();
        assert!(told.len() == 1 && told[0].contains(&given.uid.0) && told[0].contains(&k.0), "{n}: {told:?}");
        // The owner's next word about anything closes it for good, and a new approval is one for
        // one run.
        approve(&*approves, &k, &approval(Scope::Maintenance { id: wish.id.clone(), digest: wish.spec.digest() }))
            .await
            .unwrap();
        assert_eq!(runs.contents().await.unwrap().violations(), [""; 0], "{n}");
        assert!(try_admit(&*runs, &k, &again, fence).await.unwrap(), "{n}");
        finish(&*runs, &k, &again, fence).await.unwrap();
    }
}

/// An approval that a store was given by an earlier version has no seal; the owner's next word
/// gives it one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_of_an_earlier_version_counts_once() {
    let (guarded, runs, approves, k) = claimed().await;
    let wish = asks("a", 1);
    let (uid, fence) = join(&*runs, &k, &wish).await.unwrap();
    let given = approval(Scope::Maintenance { id: wish.id.clone(), digest: wish.spec.digest() });
    approve(&*approves, &k, &given).await.unwrap();
    let mut root = guarded.raw("root").await;
    let words = root.get(guarded.key("approvals/k"), None).await.unwrap();
    let mut words: serde_json::Value = serde_json::from_slice(words.kvs()[0].value()).unwrap();
    words.as_object_mut().unwrap().remove("seals").unwrap();
    root.put(guarded.key("approvals/k"), words.to_string(), None).await.unwrap();
    root.delete(guarded.key(&format!("used/k/{}", given.uid)), None).await.unwrap();
    let store = guarded.open("runner").await;
    assert!(try_admit(&*store, &k, &uid, fence).await.unwrap());
    finish(&*store, &k, &uid, fence).await.unwrap();
    let (again, fence) = join(&*store, &k, &EnqueueRequest { uid: Uid("again".into()), ..wish.clone() }).await.unwrap();
    assert!(!try_admit(&*store, &k, &again, fence).await.unwrap());
    // From the next word on its use cannot be forgotten.
    let other = approval(Scope::Maintenance { id: id("other"), digest: String::new() });
    approve(&*guarded.open("approver").await, &k, &other).await.unwrap();
    guarded.raw("runner").await.delete(guarded.key(&format!("used/k/{}", given.uid)), None).await.unwrap();
    assert!(!try_admit(&*guarded.open("runner").await, &k, &again, fence).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_is_over_for_long_enough_is_forgotten() {
    let (guarded, runs, approves, k) = claimed().await;
    let (uid, fence) = join(&*runs, &k, &asks("a", 1)).await.unwrap();
    approve(&*approves, &k, &approval(Scope::All)).await.unwrap();
    assert!(try_admit(&*runs, &k, &uid, fence).await.unwrap());
    finish(&*runs, &k, &uid, fence).await.unwrap();
    assert_eq!(said(&*runs, &id("c")).await, ["claimed", "approved"]);
    // Told that it is old, by a time in the key that is a lie.
    let list = serde_json::to_string(&[guarded.key(&format!("past/ops/a/{uid}"))]).unwrap();
    let mut root = guarded.raw("root").await;
    root.put(guarded.key("old/00000000000000000000/x"), list, None).await.unwrap();
    runs.prune(Duration::from_hours(1), 100).await.unwrap();
    assert!(runs.find(&id("a")).await.unwrap().is_some());
    // Both prefixes of the audit.
    until("the end of history", async || {
        runs.prune(Duration::ZERO, 100).await.unwrap();
        let gone = said(&*runs, &id("c")).await.is_empty() && runs.find(&id("a")).await.unwrap().is_none();
        // A line goes after those that its chain has before it.
        (gone && runs.contents().await.unwrap().audit.is_empty()).then_some(())
    })
    .await;
    let contents = runs.contents().await.unwrap();
    assert_eq!((contents.audit.len(), contents.history.len(), contents.violations().len()), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wide_grants_and_a_deleted_lock_are_told() {
    let guarded = Guarded::start().await;
    let (runs, admin) = (guarded.open("runner").await, guarded.open("root").await);
    let (uid, fence) = join(&*runs, &key("k"), &request("a", 1)).await.unwrap();
    assert!(try_admit(&*runs, &key("k"), &uid, fence).await.unwrap());
    assert_eq!(admin.contents().await.unwrap().violations(), [""; 0]);
    let mut root = guarded.raw("root").await;
    let wide = Permission::read_write(guarded.key("old/")).with_prefix();
    root.auth_client().role_grant_permission("metal-approver", wide).await.unwrap();
    let told = admin.contents().await.unwrap().violations();
    assert!(told.len() == 1 && told[0].contains("metal-approver") && told[0].contains("old/"), "{told:?}");
    // The approver's own check tells it, too; a runner has nothing to do with it.
    assert_eq!(guarded.open("approver").await.contents().await.unwrap().violations(), told);
    assert_eq!(runs.contents().await.unwrap().violations(), [""; 0]);
    root.delete(guarded.key("lock/k"), None).await.unwrap();
    let told = runs.contents().await.unwrap().violations().join("\n");
    assert!(told.contains("the lock of k is gone"), "{told}");
}

/// An approver may write nonsense where it writes; that keeps nobody from the server, and is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_that_cannot_be_read_freeze_no_server() {
    let guarded = Guarded::start().await;
    let runs = guarded.open("runner").await;
    let k = key("k");
    apply(&*runs, &k, |lock, _, now| lock.claim(claim("c"), now)).await.unwrap();
    let (uid, fence) = join(&*runs, &k, &asks("a", 1)).await.unwrap();
    let mut etcdctl = guarded.raw("approver").await;
    etcdctl.put(guarded.key("approvals/k"), "{", None).await.unwrap();
    etcdctl.put(guarded.key("told/ops/c/x"), "{", None).await.unwrap();
    let told = runs.contents().await.unwrap().violations().join("\n");
    for part in ["approvals/k", "told/ops/c/x"] {
        assert!(told.contains(part), "{told}");
    }
    assert!(!try_admit(&*runs, &k, &uid, fence).await.unwrap());
    assert_eq!(said(&*runs, &id("c")).await, ["claimed"]);
    finish(&*runs, &k, &uid, fence).await.unwrap();
    // The next approval takes its place.
    let approves = guarded.open("approver").await;
    let (uid, fence) = join(&*runs, &k, &asks("b", 2)).await.unwrap();
    approve(&*approves, &k, &approval(Scope::All)).await.unwrap();
    assert!(try_admit(&*runs, &k, &uid, fence).await.unwrap());
}

/// Lines are in the reach of the roles that write them; what they are a chain with is not, or the
/// anchor tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_rewrites_lines_of_another_is_named() {
    let (guarded, runs, approves, k) = claimed().await;
    let (uid, fence) = join(&*runs, &k, &asks("a", 1)).await.unwrap();
    approve(&*approves, &k, &approval(Scope::All)).await.unwrap();
    assert!(try_admit(&*runs, &k, &uid, fence).await.unwrap());
    finish(&*runs, &k, &uid, fence).await.unwrap();
    let verify = async || roles::run(&["audit", "verify"], &guarded.url("reviewer:hunter%402%3A%2F%3F%23%25@")).await;
    verify().await.unwrap();
    let all = etcd_client::GetOptions::new().with_prefix();
    let (mut root, mut runner) = (guarded.raw("root").await, guarded.raw("runner").await);
    let mut etcdctl = guarded.raw("approver").await;
    // The approver reaches no line of a runner, and the end of no chain of theirs.
    let lines = root.get(guarded.key("audit/"), Some(all.clone())).await.unwrap();
    for pair in lines.kvs() {
        etcdctl.put(pair.key(), "[]", None).await.unwrap_err();
        etcdctl.delete(pair.key(), None).await.unwrap_err();
    }
    etcdctl.put(guarded.key("lock/k"), "{}", None).await.unwrap_err();
    // The runner reaches the lines of an approver, and not the end of their chain.
    let told = root.get(guarded.key("told/"), Some(all)).await.unwrap();
    let (place, line) = (told.kvs()[0].key(), told.kvs()[0].value_str().unwrap());
    runner.put(guarded.key("approvals/k"), "{}", None).await.unwrap_err();
    for forged in [line.replace("ada", "eve"), "[]".to_owned()] {
        runner.put(place, forged, None).await.unwrap();
        let told = verify().await.unwrap_err();
        assert!(told.contains("line 1 of the chain of the approvals of k"), "{told}");
    }
    runner.put(place, line, None).await.unwrap();
    verify().await.unwrap();
}
