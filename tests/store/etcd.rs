//! What only etcd can do wrong: its leases, its users, its limits, and the network on the way to
//! it.

use std::{
    collections::HashSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use jiff::Timestamp;
use secrecy::SecretString;
use terraform_provider_metal::{
    maintenance::{
        approval::Scope,
        ids::Uid,
        lock::{EnqueueRequest, ServerLock},
        queue::{Turn, turn},
        spec::{MaintenanceKind, Policy, Spec},
    },
    store::{EtcdOptions, EtcdStore, Store, StoreError},
};

use crate::{
    bench::{Bench, WrongClock, apply, etcd, finish, hold, join, soon, try_admit},
    etcd_attacks::{Guarded, PASSWORD},
    records::{AGING, TTL, id, key, request, runner, spec},
    support::{etcd::Etcd, toxiproxy::Toxiproxy},
    talk::{
        a_crowd_leaves, a_group_loses_its_reply, approval, approve, claim, enqueue, of, renewed_in_time, said, timed,
        until,
    },
    watching::outlives,
};

/// A handle that uses the cluster's own clock, as everybody but a test of time does.
async fn open(url: &str) -> Arc<EtcdStore> {
    Arc::new(etcd(url, None).await.unwrap())
}

/// The same with less patience.
async fn impatient(url: &str, patience: Duration) -> Result<EtcdStore, StoreError> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let options = EtcdOptions { patience, ..EtcdOptions::default() };
    EtcdStore::open(&SecretString::from(url), WrongClock::next(), options).await
}

/// Past the store, as a person with etcdctl would.
async fn raw(hosts: &str) -> etcd_client::Client {
    let hosts: Vec<String> = hosts.split(',').map(str::to_owned).collect();
    etcd_client::Client::connect(hosts, None).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_who_open_an_empty_prefix_at_once_share_one_store() {
    let cluster = Etcd::shared();
    for _ in 0..3 {
        let prefix = Etcd::prefix();
        let url = cluster.url(&prefix);
        let opening = (0..24).map(|_| {
            let url = url.clone();
            tokio::spawn(async move { open(&url).await })
        });
        let stores: Vec<_> = join_all(opening).await.into_iter().map(Result::unwrap).collect();
        let ids: HashSet<&str> = stores.iter().map(|store| store.id()).collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
        let mut client = raw(&cluster.hosts()).await;
        let meta = client.get(format!("{prefix}/meta"), None).await.unwrap();
        assert_eq!(meta.kvs()[0].version(), 1, "it was written once");
        // They are one store in deed, too.
        let asking = stores.iter().zip(0..).map(|(store, n)| {
            let store = store.clone();
            tokio::spawn(async move { enqueue(&*store, &key("k"), &request(&format!("m{n}"), n)).await.unwrap() })
        });
        join_all(asking).await;
        let view = stores[0].view(&key("k")).await.unwrap();
        let mut tickets: Vec<_> = view.lock.active.iter().map(|record| record.ticket_number).collect();
        tickets.sort_unstable();
        assert_eq!(tickets, (1..=24).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_stopped_renewing_is_gone_and_it_is_known_since_when() {
    let url = Etcd::shared().url(&Etcd::prefix());
    let (one, two) = (open(&url).await, open(&url).await);
    let (uid, generation) = hold(&*one, &key("k"), &request("a", 1)).await;
    let began = two.view(&key("k")).await.unwrap();
    assert!(began.lock.may_act(&uid, generation, &began.leases, began.now));
    one.renew(&runner(1), Duration::from_secs(2)).await.unwrap();
    let mut asked = Instant::now();
    let view = until("the end of the lease", async || {
        asked = Instant::now();
        let view = two.view(&key("k")).await.unwrap();
        (!view.lock.may_act(&uid, generation, &view.leases, view.now)).then_some(view)
    })
    .await;
    let since = view.leases.0[&runner(1).id];
    assert!(began.now <= since && since <= view.now, "{} {since} {}", began.now, view.now);
    // Still held: silence is not release. And it stays known since when.
    assert_eq!(view.lock.slot.as_ref().unwrap().uid, uid);
    let later = until("another second", async || {
        let later = open(&url).await.view(&key("k")).await.unwrap();
        (later.now.duration_since(view.now) > jiff::SignedDuration::from_secs(1)).then_some(later)
    })
    .await;
    // To the second: each handle asked the servers for the time by itself, and they tell it to the
    // second. An answer may be late on a machine under load.
    let apart = later.leases.0[&runner(1).id].duration_since(since).unsigned_abs();
    assert!(apart <= Duration::from_secs(1) + asked.elapsed(), "{since} {apart:?}");
    // Somebody else may go on now, and the same process may come back.
    one.renew(&runner(1), TTL).await.unwrap();
    let back = two.view(&key("k")).await.unwrap();
    assert!(back.lock.may_act(&uid, generation, &back.leases, back.now));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_renewed_outlives_its_length_many_times() {
    const LENGTH: Duration = Duration::from_secs(2);
    let url = Etcd::shared().url(&Etcd::prefix());
    let (one, two) = (open(&url).await, open(&url).await);
    let (uid, generation) = hold(&*one, &key("k"), &request("a", 1)).await;
    let alive = async || {
        let view = two.view(&key("k")).await.unwrap();
        view.lock.may_act(&uid, generation, &view.leases, view.now)
    };
    let renew = async || one.renew(&runner(1), LENGTH).await.unwrap();
    until("a lease that is renewed in time", async || renewed_in_time(LENGTH, 4, &alive, &renew).await).await;
}

/// The revision of the whole cluster, which every write moves.
async fn revision(client: &mut etcd_client::Client) -> i64 {
    client.get("nothing", None).await.unwrap().header().unwrap().revision()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_only_waits_writes_nothing() {
    const LENGTH: Duration = Duration::from_secs(2);
    let cluster = Etcd::start(1, &[]);
    let url = cluster.url("metal");
    let (store, other) = (open(&url).await, open(&url).await);
    let (uid, generation) = hold(&*store, &key("k"), &request("a", 1)).await;
    let mut client = raw(&cluster.hosts()).await;
    let alive = async || {
        let view = other.view(&key("k")).await.unwrap();
        view.lock.may_act(&uid, generation, &view.leases, view.now)
    };
    let renew = async || store.renew(&runner(1), LENGTH).await.unwrap();
    let before = until("a lease that is renewed in time", async || {
        // One that ended is made again, which is a write.
        renew().await;
        let before = revision(&mut client).await;
        renewed_in_time(LENGTH, 3, &alive, &renew).await.map(|()| before)
    })
    .await;
    assert_eq!(revision(&mut client).await, before, "a heartbeat moved the revision of the cluster");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_lease_was_ended_by_another_notices_with_its_next_heartbeat() {
    let (cluster, prefix) = (Etcd::shared(), Etcd::prefix());
    let url = cluster.url(&prefix);
    let (one, two) = (open(&url).await, open(&url).await);
    let (uid, generation) = hold(&*one, &key("k"), &request("a", 1)).await;
    let acts = async || {
        let view = two.view(&key("k")).await.unwrap();
        view.lock.may_act(&uid, generation, &view.leases, view.now)
    };
    two.resign(&runner(1).id).await.unwrap();
    assert!(!acts().await);
    one.renew(&runner(1), TTL).await.unwrap();
    assert!(acts().await);
    // Only its key is gone, as when the process that ended it died right after that: its lease
    // itself is still there.
    raw(&cluster.hosts()).await.delete(format!("{prefix}/alive/runner-1"), None).await.unwrap();
    assert!(!acts().await);
    one.renew(&runner(1), TTL).await.unwrap();
    assert!(acts().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_are_gone_for_long_are_forgotten_unless_a_record_names_them() {
    const DAY: Duration = Duration::from_hours(24);
    let bench = Bench::etcd().await;
    let store = bench.open().await;
    for n in 0..5 {
        join(&*store, &key("k"), &request(&format!("m{n}"), n)).await.unwrap();
    }
    for n in 10..30 {
        store.renew(&runner(n), TTL).await.unwrap();
        store.resign(&runner(n).id).await.unwrap();
    }
    store.resign(&runner(0).id).await.unwrap();
    let address = store.address();
    let prefix = address.strip_prefix("etcd://").unwrap().split_once('/').unwrap().1.to_owned();
    let mut client = raw(&Etcd::shared().hosts()).await;
    let mut seen = async || {
        let all = etcd_client::GetOptions::new().with_prefix().with_keys_only();
        client.get(format!("{prefix}/seen/"), Some(all)).await.unwrap().kvs().len()
    };
    assert_eq!(seen().await, 21);
    bench.pass(DAY / 2).await;
    while store.prune(Duration::ZERO, 100).await.unwrap() > 0 {}
    assert_eq!(seen().await, 21, "their places may be kept");
    bench.pass(DAY).await;
    assert_eq!(store.prune(DAY * 30, 100).await.unwrap(), 0);
    assert_eq!(seen().await, 21, "history is kept for longer");
    let mut gone = 0;
    while let more @ 1.. = store.prune(DAY, 7).await.unwrap() {
        assert!(more <= 7);
        gone += more;
    }
    assert_eq!((gone, seen().await), (20, 1));
}

/// etcd takes no puts then, and keeps leases alive, reads and deletes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_space_holds_stay_alive_old_history_goes_and_a_release_follows_the_guide() {
    let cluster = Etcd::start(1, &["--quota-backend-bytes=16777216"]);
    let store = open(&cluster.url("metal")).await;
    let (past, generation) = hold(&*store, &key("k"), &request("past", 2)).await;
    finish(&*store, &key("k"), &past, generation).await.unwrap();
    let (uid, generation) = hold(&*store, &key("k"), &request("a", 1)).await;
    let mut client = raw(&cluster.hosts()).await;
    let big = "x".repeat(1_000_000);
    let mut puts = 0;
    let full = loop {
        match client.put(format!("others/{puts}"), big.clone(), None).await {
            Ok(_) => puts += 1,
            Err(error) => break error,
        }
        assert!(puts < 100);
    };
    assert!(full.to_string().contains("space exceeded"), "{full}");
    // Nothing can be recorded, so nothing may be done to the server.
    let refused = finish(&*store, &key("k"), &uid, generation).await.unwrap_err();
    assert!(matches!(refused, StoreError::Forbidden { .. }), "{refused}");
    assert!(refused.to_string().contains("no space left"), "{refused}");
    // Its process stays alive, and is seen to be.
    store.renew(&runner(1), TTL).await.unwrap();
    let view = open(&cluster.url("metal")).await.view(&key("k")).await.unwrap();
    assert!(view.lock.may_act(&uid, generation, &view.leases, view.now));
    // History is deleted.
    while store.prune(Duration::ZERO, 100).await.unwrap() > 0 {}
    assert_eq!(store.find_uid(&past).await.unwrap(), None);
    // What the guide says: delete what is not needed, compact, defragment, disarm.
    let all = etcd_client::DeleteOptions::new().with_prefix();
    client.delete("others/", Some(all)).await.unwrap();
    let at = revision(&mut client).await;
    client.compact(at, Some(etcd_client::CompactionOptions::new().with_physical())).await.unwrap();
    client.defragment().await.unwrap();
    let raised = client.alarm(etcd_client::AlarmAction::Get, etcd_client::AlarmType::Nospace, None).await.unwrap();
    for alarm in raised.alarms() {
        let mut member = etcd_client::AlarmOptions::new();
        member.with_member(alarm.member_id());
        let (disarm, space) = (etcd_client::AlarmAction::Deactivate, etcd_client::AlarmType::Nospace);
        client.alarm(disarm, space, Some(member)).await.unwrap();
    }
    finish(&*store, &key("k"), &uid, generation).await.unwrap();
    assert!(store.view(&key("k")).await.unwrap().lock.slot.is_none());
    assert_eq!(store.contents().await.unwrap().violations(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_whose_clocks_are_years_apart_agree_on_the_time_and_on_who_is_alive() {
    let url = Etcd::shared().url(&Etcd::prefix());
    // Each handle's machine has a clock that is wrong in another way.
    let stores = join_all((0..7).map(|_| open(&url))).await;
    join(&*stores[0], &key("k"), &request("here", 1)).await.unwrap();
    join(&*stores[3], &key("k"), &request("away", 2)).await.unwrap();
    // Whoever it is that notes the end of a lease, and whoever reads it.
    for store in &stores {
        stores[0].renew(&runner(2), TTL).await.unwrap();
        store.resign(&runner(2).id).await.unwrap();
        for store in &stores {
            let view = store.view(&key("k")).await.unwrap();
            for record in &view.lock.active {
                let alive = view.leases.alive(record.attachment.as_ref().unwrap(), view.now);
                assert_eq!(alive, record.id == id("here"), "{}", record.id);
            }
        }
    }
    let began = Instant::now();
    let mut times = Vec::new();
    for store in &stores {
        times.push(store.view(&key("k")).await.unwrap().now);
    }
    times.push(Timestamp::now());
    let apart = times.iter().max().unwrap().duration_since(*times.iter().min().unwrap());
    let limit = Duration::from_secs(2) + began.elapsed();
    assert!(apart.unsigned_abs() < limit, "{times:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_a_newer_schema_is_refused_and_left_alone() {
    let (cluster, prefix) = (Etcd::shared(), Etcd::prefix());
    let mut client = raw(&cluster.hosts()).await;
    let newer = r#"{"store_id":"theirs","schema":9,"more":true}"#;
    client.put(format!("{prefix}/meta"), newer, None).await.unwrap();
    let refused = etcd(&cluster.url(&prefix), None).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unreadable { .. }), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("schema 9") && text.contains("up to 2"), "{text}");
    let meta = client.get(format!("{prefix}/meta"), None).await.unwrap();
    assert_eq!(meta.kvs()[0].value_str().unwrap(), newer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pointers_that_are_wrong_or_missing_are_found() {
    let (cluster, prefix) = (Etcd::shared(), Etcd::prefix());
    let store = open(&cluster.url(&prefix)).await;
    let (past, generation) = hold(&*store, &key("k"), &request("past", 1)).await;
    finish(&*store, &key("k"), &past, generation).await.unwrap();
    let (active, _) = hold(&*store, &key("k"), &request("active", 2)).await;
    join(&*store, &key("k"), &request("nameless", 3)).await.unwrap();
    assert_eq!(store.contents().await.unwrap().violations(), [""; 0]);
    let mut client = raw(&cluster.hosts()).await;
    let ghost = format!(r#"{{"lock_key":"k","uid":"ghost","record":"{prefix}/active/k/ghost"}}"#);
    client.put(format!("{prefix}/name/ops/ghost"), ghost.clone(), None).await.unwrap();
    client.put(format!("{prefix}/uid/ghost"), ghost, None).await.unwrap();
    client.delete(format!("{prefix}/uid/{past}"), None).await.unwrap();
    client.delete(format!("{prefix}/uid/{active}"), None).await.unwrap();
    client.delete(format!("{prefix}/name/ops/nameless"), None).await.unwrap();
    let mut found = store.contents().await.unwrap().violations();
    found.sort();
    let mut expected = vec![
        format!("{prefix}/name/ops/ghost stands for ghost, which is not active"),
        format!("ghost leads to {prefix}/active/k/ghost, where nothing is"),
        format!("ops/past ({past}) cannot be found by its incarnation"),
        format!("ops/active ({active}) cannot be found by its incarnation"),
        "ops/nameless is active, but its name is free".to_owned(),
    ];
    expected.sort();
    assert_eq!(found, expected);
}

/// A hold with so many boot configurations under it that its end is more than one transaction of
/// etcd takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_too_large_for_etcd_fails_as_a_whole_and_says_what_to_do() {
    let cluster = Etcd::start(1, &["--max-txn-ops=40"]);
    let url = cluster.url("test");
    let store = open(&url).await;
    let (uid, generation) = hold(&*store, &key("k"), &request("hold", 1)).await;
    for n in 0..40 {
        let boots = Spec { kind: MaintenanceKind::BootConfiguration, parent: Some(uid.clone()), ..spec() };
        let wish = EnqueueRequest { spec: boots, ..request(&format!("child{n}"), 1) };
        enqueue(&*store, &key("k"), &wish).await.unwrap();
    }
    let (before, audit) = (store.view(&key("k")).await.unwrap(), said(&*store, &id("hold")).await);
    let refused = finish(&*store, &key("k"), &uid, generation).await.unwrap_err();
    assert!(matches!(refused, StoreError::Forbidden { .. }), "{refused}");
    assert!(refused.to_string().contains("--max-txn-ops"), "{refused}");
    let after = open(&url).await;
    assert_eq!(after.view(&key("k")).await.unwrap().lock, before.lock);
    assert_eq!(said(&*after, &id("hold")).await, audit);
    assert_eq!(after.contents().await.unwrap().violations(), [""; 0]);
}

/// What ends it writes as much again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_maintenance_that_etcd_could_not_end_is_not_taken() {
    let url = Etcd::shared().url(&Etcd::prefix());
    let store = open(&url).await;
    let large = |name: &str, bytes| {
        let spec = Spec { reason: Some("x".repeat(bytes)), ..spec() };
        EnqueueRequest { spec, ..request(name, 1) }
    };
    let refused = join(&*store, &key("k"), &large("large", 1_300_000)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Forbidden { .. }), "{refused}");
    assert!(refused.to_string().contains("is full"), "{}", &refused.to_string()[..300]);
    // A little less, and it comes to its end.
    let (uid, generation) = hold(&*store, &key("k"), &large("less", 550_000)).await;
    finish(&*store, &key("k"), &uid, generation).await.unwrap();
    assert!(store.view(&key("k")).await.unwrap().lock.slot.is_none());
}

/// They are dropped by whoever comes next; were that more than etcd takes at once, nobody could
/// ever come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_waiters_that_went_away_do_not_block_a_server() {
    let store = open(&Etcd::shared().url(&Etcd::prefix())).await;
    a_crowd_leaves(&*store).await;
    assert_eq!(store.contents().await.unwrap().violations(), [""; 0]);
}

/// The change arrives, its reply does not, and others go on meanwhile.
async fn reply_lost(others: u32) -> (Result<Uid, StoreError>, Vec<String>, u64) {
    let (cluster, prefix) = (Etcd::shared(), Etcd::prefix());
    let proxy = Toxiproxy::to(&cluster.hosts());
    let direct = open(&cluster.url(&prefix)).await;
    let through = open(&format!("etcd://{}/{prefix}", proxy.host())).await;
    let wish = request("a", 1);
    let mut calls = 0;
    let k = key("k");
    let ours = apply(&*through, &k, |lock, leases, now| {
        calls += 1;
        if calls == 1 {
            // It has been read, and will be written next.
            proxy.lose_replies();
        }
        Ok(lock.enqueue(wish.clone(), leases, now)?.uid().clone())
    });
    let theirs = async {
        until("the change", async || direct.find(&id("a")).await.unwrap()).await;
        for n in 0..others {
            enqueue(&*direct, &key("k"), &request(&format!("other{n}"), 2)).await.unwrap();
        }
        proxy.cut();
        proxy.heal();
    };
    let (result, ()) = tokio::join!(ours, theirs);
    let tickets = direct.view(&key("k")).await.unwrap().lock.last_ticket;
    assert_eq!(direct.contents().await.unwrap().violations(), [""; 0]);
    (result, said(&*direct, &id("a")).await, tickets)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_reply_was_lost_is_made_once_however_much_others_change() {
    for others in [0, 1, 8, 25] {
        let (result, said, tickets) = reply_lost(others).await;
        result.unwrap();
        assert_eq!((said, tickets), (vec!["enqueued".to_owned()], u64::from(others) + 1), "{others}");
    }
    // More than is remembered: then it says that it does not know.
    let (result, said, tickets) = reply_lost(60).await;
    assert!(matches!(result, Err(StoreError::Unavailable { .. })), "{result:?}");
    assert_eq!((said, tickets), (vec!["enqueued".to_owned()], 61));
}

/// Forty at once, in commits whose replies are lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_group_whose_reply_was_lost_each_is_applied_once() {
    let (cluster, prefix) = (Etcd::shared(), Etcd::prefix());
    let proxy = Toxiproxy::to(&cluster.hosts());
    let direct = open(&cluster.url(&prefix)).await;
    let through = open(&format!("etcd://{}/{prefix}", proxy.host())).await;
    a_group_loses_its_reply(&direct, &through, &proxy).await;
}

/// Approvals are written to a key of their own, and it is not the runs that push them out of what
/// is remembered there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_whose_reply_was_lost_is_given_once() {
    let (cluster, prefix) = (Etcd::shared(), Etcd::prefix());
    let proxy = Toxiproxy::to(&cluster.hosts());
    let direct = open(&cluster.url(&prefix)).await;
    let through = open(&format!("etcd://{}/{prefix}", proxy.host())).await;
    apply(&*direct, &key("k"), |lock, _, now| lock.claim(claim("c"), now)).await.unwrap();
    for n in 0..70 {
        enqueue(&*direct, &key("k"), &request(&format!("m{n}"), n)).await.unwrap();
    }
    let mut calls = 0;
    let first = approval(of("m0"));
    let k = key("k");
    let ours = apply(&*through, &k, |lock, _, now| {
        calls += 1;
        if calls == 1 {
            proxy.lose_replies();
        }
        lock.approve(first.clone(), "team", now)
    });
    let theirs = async {
        until("the approval", async || {
            let view = direct.view(&key("k")).await.unwrap();
            view.lock.ownership.approval(&first.uid).cloned()
        })
        .await;
        approve(&*direct, &key("k"), &approval(of("m1"))).await.unwrap();
        enqueue(&*direct, &key("k"), &request("later", 1)).await.unwrap();
        approve(&*direct, &key("k"), &approval(of("m2"))).await.unwrap();
        proxy.cut();
        proxy.heal();
    };
    let (result, ()) = tokio::join!(ours, theirs);
    result.unwrap();
    for n in 0..3 {
        assert_eq!(said(&*direct, &id(&format!("m{n}"))).await, ["enqueued", "approved"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_through_a_network_that_cuts_replies_is_done_exactly_once() {
    const ASKED: u32 = 200;
    const SERVERS: u32 = 40;
    let (cluster, prefix) = (Etcd::shared(), Etcd::prefix());
    let direct = open(&cluster.url(&prefix)).await;
    let mut proxies = Vec::new();
    let mut handles = Vec::new();
    // Each connection ends in the middle of a reply; another one each time.
    for bytes in [23_003, 29_009, 37_003] {
        let proxy = Toxiproxy::to(&cluster.hosts());
        handles.push(open(&format!("etcd://{}/{prefix}", proxy.host())).await);
        proxy.limit_replies(bytes);
        proxy.cut();
        proxy.mend();
        proxies.push(proxy);
    }
    let asking = (0..12u32).map(|task| {
        let store = handles[task as usize % handles.len()].clone();
        tokio::spawn(async move {
            for n in (task..ASKED).step_by(12) {
                let key = key(&format!("k{}", n % SERVERS));
                enqueue(&*store, &key, &request(&format!("m{n}"), n)).await.unwrap();
            }
        })
    });
    for asked in asking.collect::<Vec<_>>() {
        tokio::time::timeout(Duration::from_secs(50), asked).await.expect("it ends").unwrap();
    }
    for n in 0..ASKED {
        assert_eq!(said(&*direct, &id(&format!("m{n}"))).await, ["enqueued"], "m{n}");
    }
    for n in 0..SERVERS {
        let view = direct.view(&key(&format!("k{n}"))).await.unwrap();
        let mut tickets: Vec<_> = view.lock.active.iter().map(|record| record.ticket_number).collect();
        tickets.sort_unstable();
        assert_eq!(tickets, (1..=u64::from(ASKED / SERVERS)).collect::<Vec<_>>());
        assert_eq!(view.lock.last_ticket, u64::from(ASKED / SERVERS));
    }
    assert_eq!(direct.contents().await.unwrap().violations(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_outlives_a_cut_and_the_compaction_of_what_it_missed() {
    let (cluster, prefix) = (Etcd::shared(), Etcd::prefix());
    let proxy = Toxiproxy::to(&cluster.hosts());
    let direct = open(&cluster.url(&prefix)).await;
    let through = open(&format!("etcd://{}/{prefix}", proxy.host())).await;
    let mut client = raw(&cluster.hosts()).await;
    outlives(&*direct, &*through, &proxy, &mut client, Duration::from_secs(8)).await;
    through.close().await;
}

/// A lock costs three ranges (its head, the owner's words, the marks) and its records; who is alive
/// is listed once per group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_are_read_together_list_the_processes_once() {
    const SERVERS: u32 = 48;
    let (cluster, prefix) = (Etcd::start(1, &[]), Etcd::prefix());
    let store = open(&cluster.url(&prefix)).await;
    let keys: Vec<_> = (0..SERVERS).map(|n| key(&format!("k{n}"))).collect();
    for (n, k) in (0..SERVERS).zip(&keys) {
        enqueue(&*store, k, &request(&format!("m{n}"), n)).await.unwrap();
    }
    let fresh = open(&cluster.url(&prefix)).await;
    let before = cluster.ranges();
    let views = join_all(keys.iter().map(|k| fresh.view(k))).await;
    assert!(views.iter().all(|view| view.as_ref().is_ok_and(|view| view.lock.active.len() == 1)));
    let ranges = cluster.ranges() - before;
    // With a list for each server they would be five for each.
    let servers = u64::from(SERVERS);
    assert!((servers * 4..servers * 9 / 2).contains(&ranges), "{ranges} ranges for {SERVERS} servers");
}

/// A long queue is counted first, and listed where some have left: what another process makes of it
/// is seen either way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_and_goes_in_a_long_queue_is_seen() {
    let (cluster, prefix) = (Etcd::shared(), Etcd::prefix());
    let (here, there) = (open(&cluster.url(&prefix)).await, open(&cluster.url(&prefix)).await);
    for n in 0..100 {
        there.renew(&runner(n), TTL).await.unwrap();
    }
    let joining = (0..100).map(|n| {
        let there = Arc::clone(&there);
        async move { join(&*there, &key("k"), &request(&format!("m{n}"), n)).await.unwrap() }
    });
    let mut places = join_all(joining).await;
    assert_eq!(here.view(&key("k")).await.unwrap().lock.active.len(), 100);
    // One comes; one leaves; both with one look; two leave and one comes; nothing.
    for (round, (come, leave)) in [(1, 0), (0, 1), (1, 1), (1, 2), (0, 0), (2, 0)].into_iter().enumerate() {
        for (uid, fence) in places.drain(..leave) {
            apply(&*there, &key("k"), |lock, _, now| lock.withdraw(&uid, fence, now)).await.unwrap();
        }
        for n in 0..come {
            let wish = request(&format!("late-{round}-{n}"), n);
            places.push(join(&*there, &key("k"), &wish).await.unwrap());
        }
        let uids = |lock: &ServerLock| lock.active.iter().map(|record| record.uid.clone()).collect::<HashSet<_>>();
        let seen = here.view(&key("k")).await.unwrap();
        let wanted: HashSet<_> = places.iter().map(|(uid, _)| uid.clone()).collect();
        assert_eq!(uids(&seen.lock), wanted, "round {round}");
        let fresh = open(&cluster.url(&prefix)).await.view(&key("k")).await.unwrap();
        assert_eq!(seen.lock.active.len(), fresh.lock.active.len());
    }
}

/// They are read with each look at a server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_used_approvals_stays_when_their_claim_ends() {
    let (cluster, prefix) = (Etcd::shared(), Etcd::prefix());
    let (store, k) = (open(&cluster.url(&prefix)).await, key("k"));
    let mut client = raw(&cluster.hosts()).await;
    let mut marks = async || {
        let all = etcd_client::GetOptions::new().with_prefix();
        client.get(format!("{prefix}/used/"), Some(all)).await.unwrap().kvs().len()
    };
    let claimed = apply(&*store, &k, |lock, _, now| lock.claim(claim("c"), now)).await.unwrap();
    for n in 0..3 {
        let asks = Spec { policy: Policy::OwnerApproval, ..spec() };
        let wish = EnqueueRequest { spec: asks, ..request("a", n) };
        let (uid, generation) = join(&*store, &k, &wish).await.unwrap();
        // It takes the place of the one before, which was used.
        let word = approval(Scope::Maintenance { id: wish.id.clone(), digest: wish.spec.digest() });
        approve(&*store, &k, &word).await.unwrap();
        assert!(try_admit(&*store, &k, &uid, generation).await.unwrap());
        finish(&*store, &k, &uid, generation).await.unwrap();
    }
    assert!(marks().await > 0);
    apply(&*store, &k, |lock, _, now| Ok(lock.unclaim(&claimed, "ada", now))).await.unwrap();
    assert_eq!(marks().await, 0);
    assert_eq!(store.contents().await.unwrap().violations(), [""; 0]);
}

/// What may not be done, and says so without the password.
#[track_caller]
fn forbidden<T: std::fmt::Debug>(result: Result<T, StoreError>) {
    let error = result.unwrap_err();
    assert!(matches!(error, StoreError::Forbidden { .. }), "{error}");
    let text = format!("{error} {error:?}");
    assert!(!text.contains("hunter") && text.contains("etcd://127.0.0.1:"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_user_may_do_what_the_role_is_for_and_nothing_else() {
    let guarded = Guarded::start().await;
    let (k, wish) = (key("k"), {
        let spec = Spec { policy: Policy::OwnerApproval, ..spec() };
        EnqueueRequest { spec, ..request("a", 1) }
    });
    // Nobody who may not write can be the first.
    forbidden(etcd(&guarded.url("reviewer:hunter%402%3A%2F%3F%23%25@"), None).await);
    let runs = guarded.open("runner").await;
    let (approves, reviews) = (guarded.open("approver").await, guarded.open("reviewer").await);
    let claimed = apply(&*runs, &k, |lock, _, now| lock.claim(claim("c"), now)).await.unwrap();
    let (uid, generation) = join(&*runs, &k, &wish).await.unwrap();
    assert!(!try_admit(&*runs, &k, &uid, generation).await.unwrap(), "its owner was not asked");

    // The runner asks, and cannot answer.
    let scope = Scope::Maintenance { id: wish.id.clone(), digest: wish.spec.digest() };
    let (word, everything) = (approval(scope), approval(Scope::All));
    let before = runs.view(&k).await.unwrap().lock;
    forbidden(approve(&*runs, &k, &word).await);
    // The approver answers, and cannot ask.
    forbidden(enqueue(&*approves, &k, &request("b", 2)).await);
    forbidden(apply(&*approves, &key("other"), |lock, _, now| lock.claim(claim("d"), now)).await);
    forbidden(apply(&*approves, &k, |lock, _, now| Ok(lock.unclaim(&claimed, "ada", now))).await);
    forbidden(finish(&*approves, &k, &uid, generation).await);
    forbidden(approves.renew(&runner(2), TTL).await);
    forbidden(approves.bind("node-1", &k, false).await);
    assert_eq!(runs.view(&k).await.unwrap().lock, before);
    let withdraw = async |store: &EtcdStore, uid: &Uid| {
        apply(store, &k, |lock, _, now| Ok(lock.withdraw_approval(uid, "ada", now))).await
    };
    approve(&*approves, &k, &everything).await.unwrap();
    forbidden(withdraw(&runs, &everything.uid).await);
    assert!(withdraw(&approves, &everything.uid).await.unwrap());
    assert!(!try_admit(&*runs, &k, &uid, generation).await.unwrap(), "the word was taken back");
    approve(&*approves, &k, &word).await.unwrap();

    // The reviewer sees all of it as it happens.
    let mut changes = reviews.changes(&k);
    assert!(try_admit(&*runs, &k, &uid, generation).await.unwrap());
    soon("the change", changes.changed()).await.unwrap();
    runs.bind("node-1", &k, false).await.unwrap();
    let seen = reviews.view(&k).await.unwrap();
    assert_eq!(seen.lock, runs.view(&k).await.unwrap().lock);
    assert_eq!(seen.lock.ownership.approvals[0].used_by.as_ref(), Some(&uid));
    assert_eq!(reviews.view_all().await.unwrap().len(), 1);
    assert!(reviews.find(&wish.id).await.unwrap().is_some() && reviews.find_uid(&uid).await.unwrap().is_some());
    let lines = ["enqueued", "approved", "admitted"];
    assert_eq!(said(&*reviews, &wish.id).await, lines);
    assert_eq!(reviews.binding("node-1").await.unwrap(), Some(k.clone()));
    let contents = reviews.contents().await.unwrap();
    assert_eq!(contents.violations(), [""; 0]);
    // And changes nothing.
    forbidden(enqueue(&*reviews, &k, &request("b", 2)).await);
    forbidden(finish(&*reviews, &k, &uid, generation).await);
    forbidden(approve(&*reviews, &k, &approval(Scope::All)).await);
    forbidden(withdraw(&reviews, &word.uid).await);
    forbidden(reviews.renew(&runner(1), TTL).await);
    forbidden(reviews.resign(&runner(1).id).await);
    forbidden(reviews.bind("node-1", &key("other"), true).await);
    assert_eq!(reviews.contents().await.unwrap(), contents);

    // The runner's whole life: the end of the hold and of the claim, the history and its end.
    finish(&*runs, &k, &uid, generation).await.unwrap();
    assert!(apply(&*runs, &k, |lock, _, now| Ok(lock.unclaim(&claimed, "ada", now))).await.unwrap());
    assert!(runs.view(&k).await.unwrap().lock.ownership.is_empty());
    apply(&*runs, &k, |lock, _, now| lock.claim(claim("c"), now)).await.unwrap();
    assert!(runs.view(&k).await.unwrap().lock.ownership.approvals.is_empty(), "they ended with the claim");
    runs.resign(&runner(1).id).await.unwrap();
    // As soon as it is a moment old.
    let refused = until("history", async || reviews.prune(Duration::ZERO, 100).await.err()).await;
    forbidden(Err::<(), _>(refused));
    assert!(runs.prune(Duration::ZERO, 100).await.unwrap() > 0);
    assert_eq!(runs.contents().await.unwrap().violations(), [""; 0]);
    runs.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_login_is_refused_without_its_password() {
    let mut guarded = Guarded::start().await;
    let runs = guarded.open("runner").await;
    assert!(!format!("{runs:?} {}", runs.address()).contains("hunter"));
    for login in ["runner:hunter3@", "nobody:hunter3@", "runner:@", ""] {
        let began = Instant::now();
        let error = etcd(&guarded.url(login), None).await.unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(5), "{login} is not tried again and again");
        assert_eq!(error.to_string().contains("etcd://USER:PASSWORD@"), login.is_empty(), "{error}");
        forbidden(Err::<(), _>(error));
    }
    // The tokens of a server that was away are gone with it; handles and watches get new ones by
    // themselves.
    let reviews = guarded.open("reviewer").await;
    let mut changes = reviews.changes(&key("k"));
    join(&*runs, &key("k"), &request("a", 1)).await.unwrap();
    soon("the change", changes.changed()).await.unwrap();
    tokio::task::block_in_place(|| {
        guarded.cluster.kill(0);
        guarded.cluster.start_again(0);
    });
    changes.mark_unchanged();
    join(&*runs, &key("k"), &request("b", 2)).await.unwrap();
    while reviews.view(&key("k")).await.unwrap().lock.active.len() < 2 {
        soon("the change", changes.changed()).await.unwrap();
    }
    // A password that was changed is no longer a login.
    let root = etcd_client::ConnectOptions::new().with_user("root", PASSWORD);
    let mut root = etcd_client::Client::connect([guarded.cluster.hosts()], Some(root)).await.unwrap().auth_client();
    root.user_change_password("runner", "other").await.unwrap();
    forbidden(runs.view(&key("k")).await);
    forbidden(enqueue(&*runs, &key("k"), &request("c", 3)).await);
}

/// An authority, and one certificate of it for a server and one for a client, as files.
fn certificates(folder: &Path) -> [String; 5] {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let [server, client] = ["127.0.0.1", "runner"].map(|name| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        (write(&format!("{name}.pem"), certificate.pem()), write(&format!("{name}.key"), key.serialize_pem()))
    });
    [write("ca.pem", authority.pem()), server.0, server.1, client.0, client.1]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_wants_certificates_gets_them_or_says_what_is_missing() {
    const PATIENCE: Duration = Duration::from_secs(2);
    let folder = tempfile::tempdir().unwrap();
    let [ca, server, server_key, mine, my_key] = certificates(folder.path());
    let cluster = Etcd::start(
        1,
        &[
            &format!("--cert-file={server}"),
            &format!("--key-file={server_key}"),
            &format!("--trusted-ca-file={ca}"),
            "--client-cert-auth",
        ],
    );
    let url = cluster.url(&Etcd::prefix());
    let store = open(&format!("{url}?ca_file={ca}&cert_file={mine}&key_file={my_key}")).await;
    let mut changes = store.changes(&key("k"));
    let (uid, generation) = hold(&*store, &key("k"), &request("a", 1)).await;
    finish(&*store, &key("k"), &uid, generation).await.unwrap();
    soon("the change", changes.changed()).await.unwrap();
    assert_eq!(store.contents().await.unwrap().violations(), [""; 0]);

    let other = tempfile::tempdir().unwrap();
    let [other_ca, _, _, theirs, their_key] = certificates(other.path());
    let wrong = [
        ("?tls=on".to_owned(), "certificate"),
        (format!("?ca_file={other_ca}&cert_file={mine}&key_file={my_key}"), "certificate"),
        (format!("?ca_file={ca}"), "certificate"),
        (format!("?ca_file={ca}&cert_file={theirs}&key_file={their_key}"), "certificate"),
        ("?tls=off".to_owned(), "TLS"),
        (format!("?tls=off&ca_file={ca}"), "tls=off"),
        (format!("?ca_file={ca}&cert_file={mine}"), "key_file"),
    ];
    for (parameters, told) in wrong {
        let began = Instant::now();
        let error = impatient(&format!("{url}{parameters}"), PATIENCE).await.unwrap_err();
        assert!(began.elapsed() < PATIENCE * 3, "{parameters}");
        assert!(matches!(error, StoreError::Unavailable { .. } | StoreError::Forbidden { .. }), "{error}");
        assert!(error.to_string().contains(told), "{parameters}: {error}");
        println!("{parameters}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_leader_that_is_killed_costs_nothing_but_time() {
    const SERVERS: u32 = 3;
    const PEOPLE: u32 = 60;
    let mut cluster = Etcd::start(3, &[]);
    let url = cluster.url(&Etcd::prefix());
    let mut handles = Vec::new();
    for _ in 0..4 {
        handles.push(open(&url).await);
    }
    let inside: Arc<Vec<AtomicU32>> = Arc::new((0..SERVERS).map(|_| AtomicU32::new(0)).collect());
    let served = Arc::new(AtomicU32::new(0));
    let people = (0..PEOPLE).map(|n| {
        let (store, inside, served) = (handles[n as usize % handles.len()].clone(), inside.clone(), served.clone());
        tokio::spawn(async move {
            let k = key(&format!("k{}", n % SERVERS));
            let mut changes = store.changes(&k);
            let (uid, generation) = join(&*store, &k, &request(&format!("m{n}"), n)).await.unwrap();
            loop {
                changes.mark_unchanged();
                store.renew(&runner(n), TTL).await.unwrap();
                let view = store.view(&k).await.unwrap();
                let mine = turn(&view.lock, &view.leases, &uid, AGING, view.now) == Turn::Yours;
                if mine && try_admit(&*store, &k, &uid, generation).await.unwrap() {
                    break;
                }
                changes.changed().await.unwrap();
            }
            let others = inside[(n % SERVERS) as usize].fetch_add(1, Ordering::SeqCst);
            assert_eq!(others, 0, "two hold {k}");
            tokio::task::yield_now().await;
            inside[(n % SERVERS) as usize].fetch_sub(1, Ordering::SeqCst);
            finish(&*store, &k, &uid, generation).await.unwrap();
            served.fetch_add(1, Ordering::SeqCst);
            generation.generation
        })
    });
    let people: Vec<_> = people.collect();
    let reached = async |count| {
        until("that they are served", async || (served.load(Ordering::SeqCst) >= count).then_some(())).await;
    };
    reached(6).await;
    let leader = cluster.leader().await;
    tokio::task::block_in_place(|| cluster.kill(leader));
    reached(PEOPLE / 2).await;
    tokio::task::block_in_place(|| cluster.start_again(leader));
    let mut generations = Vec::new();
    for person in people {
        generations.push(soon("the turn of everybody", person).await.unwrap());
    }
    let mut all: Vec<u64> = (1..=u64::from(PEOPLE / SERVERS)).flat_map(|n| [n; SERVERS as usize]).collect();
    generations.sort_unstable();
    all.sort_unstable();
    assert_eq!(generations, all);
    for n in 0..PEOPLE {
        assert_eq!(said(&*handles[0], &id(&format!("m{n}"))).await, ["enqueued", "admitted", "released"], "m{n}");
    }
    let contents = open(&url).await.contents().await.unwrap();
    assert_eq!(contents.violations(), [""; 0]);
    assert_eq!(contents.history.len(), PEOPLE as usize);
    assert!(contents.locks.iter().all(|lock| lock.active.is_empty() && lock.slot.is_none()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_left_alone_answers_nothing_and_goes_on_when_the_others_are_back() {
    const PATIENCE: Duration = Duration::from_secs(3);
    // What a busy machine may add.
    const LIMIT: Duration = Duration::from_secs(6);
    let mut cluster = Etcd::start(3, &[]);
    let url = cluster.url(&Etcd::prefix());
    let store = impatient(&url, PATIENCE).await.unwrap();
    let (uid, generation) = hold(&store, &key("k"), &request("a", 1)).await;
    let mut changes = store.changes(&key("k"));
    tokio::task::block_in_place(|| {
        cluster.kill(0);
        cluster.kill(1);
    });
    // A leader goes on alone until it notices, and answers heartbeats meanwhile.
    until("the last member to notice", async || store.renew(&runner(1), TTL).await.err()).await;
    let view = async { store.view(&key("k")).await.map(drop) };
    let transact = async { finish(&store, &key("k"), &uid, generation).await };
    let renew = async { store.renew(&runner(1), TTL).await };
    let contents = async { store.contents().await.map(drop) };
    let open = async { impatient(&url, PATIENCE).await.map(drop) };
    let results = tokio::join!(timed(view), timed(transact), timed(renew), timed(contents), timed(open));
    for (result, took) in [results.0, results.1, results.2, results.3, results.4] {
        assert!(matches!(result, Err(StoreError::Unavailable { .. })), "{result:?}");
        assert!(took < LIMIT, "{took:?}: {result:?}");
    }
    tokio::task::block_in_place(|| {
        cluster.start_again(0);
        cluster.start_again(1);
    });
    changes.mark_unchanged();
    // What was not answered was not done, or was done once.
    let view = until("an answer", async || store.view(&key("k")).await.ok()).await;
    if view.lock.get(&uid).is_some() {
        finish(&store, &key("k"), &uid, generation).await.unwrap();
    }
    assert_eq!(said(&store, &id("a")).await, ["enqueued", "admitted", "released"]);
    let (next, generation) = hold(&store, &key("k"), &request("b", 2)).await;
    finish(&store, &key("k"), &next, generation).await.unwrap();
    soon("the change", changes.changed()).await.unwrap();
    assert_eq!(store.contents().await.unwrap().violations(), [""; 0]);
}

/// Reading goes on when etcd has no space left, so nothing is away: to wait for it would be to wait
/// for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_space_says_so_and_goes_on_when_it_has_some() {
    use etcd_client::{AlarmAction, AlarmOptions, AlarmType};
    let cluster = Etcd::start(1, &["--quota-backend-bytes=1000000"]);
    let store = open(&cluster.url(&Etcd::prefix())).await;
    let (uid, generation) = hold(&*store, &key("k"), &request("a", 1)).await;
    let mut client = raw(&cluster.hosts()).await;
    while client.put("large", vec![b'x'; 100_000], None).await.is_ok() {}
    let refused = soon("an answer", finish(&*store, &key("k"), &uid, generation)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Forbidden { .. }), "{refused}");
    assert!(refused.to_string().contains("--quota-backend-bytes"), "{refused}");
    assert_eq!(store.view(&key("k")).await.unwrap().lock.slot.as_ref().unwrap().uid, uid);
    // As etcd's guide says.
    let revision = client.get("large", None).await.unwrap().header().unwrap().revision();
    client.compact(revision, Some(etcd_client::CompactionOptions::new().with_physical())).await.unwrap();
    client.defragment().await.unwrap();
    let raised = client.alarm(AlarmAction::Get, AlarmType::Nospace, None).await.unwrap();
    for alarm in raised.alarms() {
        let mut of = AlarmOptions::new();
        of.with_member(alarm.member_id());
        client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(of)).await.unwrap();
    }
    finish(&*store, &key("k"), &uid, generation).await.unwrap();
}
