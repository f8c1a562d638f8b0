//! Tests of the bucket store: faults on the way to a real S3 server, and the number of requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use terraform_provider_metal::{
    maintenance::lock::{Leases, ServerLock},
    store::{BucketStore, RecordLookup, Store, StoreError},
};

use crate::{
    bench::{apply, bucket, finish, hold, join, soon, try_admit},
    records::{TTL, id, key, request, runner},
    support::{
        bucket::{Bucket, url_at},
        kubernetes_proxy::{Deal, Proxy, Seen},
    },
};

/// A store behind a proxy, and the same store without it.
struct Way {
    proxy: Proxy,
    prefix: String,
    store: Arc<BucketStore>,
    direct: Arc<BucketStore>,
}

async fn server() -> &'static Bucket {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    tokio::task::spawn_blocking(Bucket::shared).await.unwrap()
}

async fn way() -> Way {
    let (server, prefix) = (server().await, Bucket::prefix());
    let proxy = Proxy::to_plain(server.endpoint()).await;
    let store = Arc::new(bucket(&url_at(&proxy.url(), &prefix), None).await.unwrap());
    let direct = Arc::new(bucket(&server.url(&prefix), None).await.unwrap());
    Way { proxy, prefix, store, direct }
}

fn writes_lock(seen: &Seen) -> bool {
    seen.method == "PUT" && seen.path.contains("/locks/")
}

/// Returns S3's error document.
fn error(status: u16, code: &str) -> Deal {
    Deal::Answer(status, "", format!("<Error><Code>{code}</Code><Message>simulated</Message></Error>"))
}

/// Handles the first `count` matching requests in a special way.
fn first(count: u32, deal: Deal, is_meant: fn(&Seen) -> bool) -> (Arc<AtomicU32>, impl FnMut(&Seen) -> Deal + Send) {
    let met = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&met);
    let rule = move |seen: &Seen| {
        let meant = is_meant(seen) && counted.load(Ordering::SeqCst) < count;
        counted.fetch_add(u32::from(meant), Ordering::SeqCst);
        if meant { deal.clone() } else { Deal::Pass }
    };
    (met, rule)
}

/// A change that must be applied once.
async fn count_one(store: &dyn Store) -> Result<(), StoreError> {
    let change = |lock: &mut ServerLock, _: &Leases, _| {
        lock.last_ticket += 1;
        Ok(())
    };
    apply(store, &key("k"), change).await
}

/// Lost replies, refusals that store nothing, and a request that the network repeats: the change is
/// applied once in each case.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_applied_once_whatever_happens_to_its_request() {
    for (what, deal) in [
        ("lost reply", Deal::LoseReply),
        ("SlowDown", error(503, "SlowDown")),
        ("conflict", error(409, "ConditionalRequestConflict")),
        ("repeated request", Deal::Repeat),
    ] {
        for new in [true, false] {
            let way = way().await;
            let before = u64::from(!new);
            if !new {
                count_one(&*way.store).await.unwrap();
            }
            let (met, rule) = first(2, deal.clone(), writes_lock);
            way.proxy.rule(rule);
            count_one(&*way.store).await.unwrap();
            assert!(met.load(Ordering::SeqCst) > 0, "{what}");
            let lock = way.direct.view(&key("k")).await.unwrap().lock;
            assert_eq!(lock.last_ticket, before + 1, "{what}, new: {new}");
        }
    }
}

/// A request that the network repeats conflicts with itself, and every other object that is written
/// on condition survives that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_repeated_request_has_its_effect_once() {
    let way = way().await;
    way.proxy.rule(|seen| if seen.method == "PUT" { Deal::Repeat } else { Deal::Pass });
    let again = bucket(&url_at(&way.proxy.url(), &format!("{}-new", way.prefix)), None).await;
    assert!(again.is_err() || !again.unwrap().id().is_empty(), "a new store has an id, or is refused");
    way.store.bind("node-1", &key("k"), false).await.unwrap();
    for n in 0..3 {
        let (uid, fence) = hold(&*way.store, &key("k"), &request("a", n)).await;
        finish(&*way.store, &key("k"), &uid, fence).await.unwrap();
    }
    let (_, _) = hold(&*way.store, &key("other"), &request("a", 4)).await;
    let said = way.direct.audit(&id("a"), 20).await.unwrap();
    assert_eq!(said.iter().filter(|event| event.what == "enqueued").count(), 4);
    assert_eq!(way.direct.contents().await.unwrap().violations(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_has_too_much_to_do_is_no_busy_loop() {
    let way = way().await;
    let began = Instant::now();
    way.proxy.take_seen();
    let busy = error(503, "SlowDown");
    way.proxy.rule(move |_| if began.elapsed() < Duration::from_secs(3) { busy.clone() } else { Deal::Pass });
    count_one(&*way.store).await.unwrap();
    let asked = way.proxy.take_seen().len();
    println!("{asked} requests in {:?}", began.elapsed());
    assert!(asked < 40, "{asked} requests in {:?}", began.elapsed());
    assert_eq!(way.direct.view(&key("k")).await.unwrap().lock.last_ticket, 1);
}

/// Errors of credentials and clocks name their cause and change nothing. The store works again
/// afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_request_says_why_and_shows_no_credentials() {
    let way = way().await;
    let (uid, fence) = hold(&*way.store, &key("k"), &request("a", 1)).await;
    for (status, code, said, transient) in [
        (403, "RequestTimeTooSkewed", "clock differs from the store's clock", true),
        (400, "ExpiredToken", "have expired", false),
        (403, "AccessDenied", "store roles s3", false),
        (404, "NoSuchBucket", "create it first", false),
    ] {
        let refused = error(status, code);
        way.proxy.rule(move |_| refused.clone());
        for error in [
            way.store.renew(&runner(1), TTL).await.unwrap_err(),
            finish(&*way.store, &key("k"), &uid, fence).await.unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(text.contains(said) && error.is_transient() == transient, "{code}: {text}");
            assert!(!text.contains("metal-test-secret") && !text.contains("Signature="), "{text}");
        }
        way.proxy.rule(|_| Deal::Pass);
        way.store.renew(&runner(1), TTL).await.unwrap();
    }
    finish(&*way.store, &key("k"), &uid, fence).await.unwrap();
}

/// The probe of a new store finds a service that ignores either condition. Nothing is locked there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_ignores_conditions_is_rejected() {
    let server = server().await;
    for (header, named) in [("if-none-match", "If-None-Match"), ("if-match", "If-Match")] {
        let proxy = Proxy::to_plain(server.endpoint()).await;
        let written = AtomicU32::new(0);
        // The service stores each write with this condition, as if it was not there.
        proxy.rule(move |seen| {
            let meant = seen.method == "PUT" && seen.header(header).is_some();
            if meant && written.fetch_add(1, Ordering::SeqCst) > 0 {
                Deal::Answer(200, "ETag: \"0123456789abcdef\"\r\n", String::new())
            } else {
                Deal::Pass
            }
        });
        let refused = bucket(&url_at(&proxy.url(), &Bucket::prefix()), None).await.unwrap_err();
        assert!(matches!(refused, StoreError::Untrusted { .. }), "{refused}");
        assert!(refused.to_string().contains(&format!("ignores {named}")), "{refused}");
    }
    let missing = format!("s3://missing/x?endpoint={}&region=us-east-1", server.endpoint());
    let refused = bucket(&missing, None).await.unwrap_err();
    assert!(refused.to_string().contains("create it first"), "{refused}");
}

/// A `Date` that goes backward changes nothing, and the reply of a cache is not believed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_never_goes_backward_and_a_cache_is_rejected() {
    let way = way().await;
    let before = way.store.view(&key("k")).await.unwrap().now;
    way.proxy.rule(|seen| {
        if seen.path.contains("/locks/") {
            Deal::Answer(404, "Date: Sat, 01 Jan 2000 00:00:00 GMT\r\n", "<Error><Code>NoSuchKey</Code></Error>".into())
        } else {
            Deal::Pass
        }
    });
    assert!(way.store.view(&key("k")).await.unwrap().now >= before);
    way.proxy.rule(|_| Deal::Answer(404, "Age: 3\r\n", "<Error><Code>NoSuchKey</Code></Error>".into()));
    let error = way.store.view(&key("k")).await.unwrap_err();
    assert!(error.to_string().contains("a cache answered") && error.is_transient(), "{error}");
}

/// The history of a lock moves to journals, and stays readable by name and uid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_that_left_its_lock_is_found() {
    let way = way().await;
    let mut ended = Vec::new();
    for n in 0..30 {
        let (uid, fence) = hold(&*way.store, &key("k"), &request(&format!("m{}", n % 10), n)).await;
        finish(&*way.store, &key("k"), &uid, fence).await.unwrap();
        ended.push(uid);
    }
    let objects = server().await.objects(&way.prefix).all().await;
    assert!(objects.iter().filter(|(name, _)| name.starts_with("audit/")).count() > 2, "no journal was written");
    let lock = &objects.iter().find(|(name, _)| name.starts_with("locks/")).unwrap().1;
    assert!(lock.len() < 64 * 1024, "the lock has {} bytes", lock.len());
    for (n, uid) in ended.iter().enumerate() {
        let found = way.direct.find_uid(uid).await.unwrap();
        assert!(matches!(found, Some(RecordLookup::Past(record)) if record.uid == *uid), "{n}");
    }
    for n in 0..10 {
        let found = way.direct.find(&id(&format!("m{n}"))).await.unwrap();
        assert!(matches!(found, Some(RecordLookup::Past(record)) if record.uid == ended[20 + n]), "m{n}");
        assert_eq!(way.direct.audit(&id(&format!("m{n}")), 99).await.unwrap().len(), 9);
    }
    let contents = way.direct.contents().await.unwrap();
    assert_eq!((contents.history.len(), contents.violations().len()), (30, 0));
}

/// The guide states these numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_and_its_release_need_few_requests() {
    let way = way().await;
    let shown = |seen: &[Seen]| -> Vec<String> {
        seen.iter().map(|seen| format!("{} {}", seen.method, seen.path.split('?').next().unwrap_or_default())).collect()
    };
    let names = ["node-1", "uuid-1", "serial-1"].map(str::to_owned);
    way.store.bind_all(&names, &key("k")).await.unwrap();
    let (uid, fence) = hold(&*way.store, &key("k"), &request("earlier", 1)).await;
    finish(&*way.store, &key("k"), &uid, fence).await.unwrap();
    // A new process uses a server that was used before.
    way.proxy.take_seen();
    let store = bucket(&url_at(&way.proxy.url(), &way.prefix), None).await.unwrap();
    store.bindings(&names).await.unwrap();
    let (uid, fence) = join(&store, &key("k"), &request("a", 2)).await.unwrap();
    assert!(try_admit(&store, &key("k"), &uid, fence).await.unwrap());
    let locked = way.proxy.take_seen();
    println!("lock: {:#?}", shown(&locked));
    finish(&store, &key("k"), &uid, fence).await.unwrap();
    store.resign(&runner(2).id).await.unwrap();
    let released = way.proxy.take_seen();
    println!("release: {:#?}", shown(&released));
    assert!(locked.len() <= 8 && released.len() <= 6, "{} and {} requests", locked.len(), released.len());
    let listed = locked.iter().chain(&released).filter(|seen| seen.path.contains("list-type"));
    assert_eq!(listed.count(), 0, "an apply lists objects");
}

/// Waiters poll once per process and lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_share_one_poll_and_see_a_change_within_three_seconds() {
    let way = way().await;
    hold(&*way.direct, &key("k"), &request("a", 1)).await;
    let mut waiters: Vec<_> = (0..50).map(|_| way.store.changes(&key("k"))).collect();
    tokio::time::sleep(Duration::from_secs(3)).await;
    way.proxy.take_seen();
    for waiter in &mut waiters {
        waiter.mark_unchanged();
    }
    let began = Instant::now();
    join(&*way.direct, &key("k"), &request("b", 2)).await.unwrap();
    for waiter in &mut waiters {
        soon("the change", waiter.changed()).await.unwrap();
    }
    let (asked, took) = (way.proxy.take_seen(), began.elapsed());
    println!("{} requests in {took:?}", asked.len());
    assert!(took < Duration::from_secs(3) && asked.len() <= 2, "{} requests in {took:?}", asked.len());
    assert!(asked.iter().all(|seen| seen.header("if-none-match").is_some()), "{asked:?}");
}
