//! Problems specific to PostgreSQL: roles, poolers and server crashes.

use std::{fs, path::Path, sync::Arc, time::Duration};

use secrecy::SecretString;
use terraform_provider_metal::{
    maintenance::{
        approval::{Approval, Claim, Scope},
        ids::{LockKey, Uid},
        lock::{Leases, Refusal, ServerLock},
        queue::{Turn, turn},
    },
    store::{PostgresOptions, PostgresStore, Store, StoreError},
};

use crate::{
    bench::{WrongClock, apply, finish, hold, join, soon, try_admit},
    records::{AGING, TTL, id, key, request, runner},
    roles,
    support::{postgres::Postgres, toxiproxy::Toxiproxy},
};

async fn open(url: &str) -> Result<PostgresStore, StoreError> {
    PostgresStore::open(&SecretString::from(url), WrongClock::next(), &PostgresOptions::default()).await
}

/// Opens a store with a short retry limit.
async fn hasty(url: &str) -> Result<PostgresStore, StoreError> {
    let options = PostgresOptions { patience: Duration::from_secs(2), ..PostgresOptions::default() };
    PostgresStore::open(&SecretString::from(url), WrongClock::next(), &options).await
}

/// Returns the guide's command that binds an owner to its roles.
fn owner_role() -> String {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides/many-runners.md");
    let text = fs::read_to_string(guide).unwrap();
    let blocks: Vec<&str> = text.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 1);
    blocks[0].to_owned()
}

fn claim(owner: &str) -> Claim {
    Claim {
        uid: Uid::new(uuid::Uuid::now_v7().to_string()),
        id: id("claim"),
        owner: owner.into(),
        contact: None,
        server: "node-1".into(),
        since: jiff::Timestamp::UNIX_EPOCH,
        by: "ada".into(),
    }
}

fn approve(lock: &mut ServerLock, owner: &str, now: jiff::Timestamp) -> Result<Uid, Refusal> {
    let uid = Uid::new(uuid::Uuid::now_v7().to_string());
    let approval = Approval {
        uid: uid.clone(),
        scope: Scope::All,
        not_before: None,
        expires: None,
        at: now,
        by: "owner".into(),
        used_by: None,
    };
    lock.approve(approval, owner, now)?;
    Ok(uid)
}

fn forbidden<T: std::fmt::Debug>(said: Result<T, StoreError>) {
    let error = said.unwrap_err();
    assert!(matches!(&error, StoreError::Forbidden { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_role_of_the_guide_may_do_its_own_and_nothing_else() {
    let server = Postgres::start(&[]);
    let database = server.database();
    open(&server.url("postgres", &database)).await.unwrap().close().await;
    let printed = roles::printed("postgres", &server.url("postgres", &database)).await;
    server.sql(&database, &printed);
    // Again, as after an update.
    server.sql(&database, &printed);

    let runner_store = open(&server.url("metal_runner", &database)).await.unwrap();
    let approver = open(&server.url("metal_approver", &database)).await.unwrap();
    let reviewer = open(&server.url("metal_reviewer", &database)).await.unwrap();
    // A complete hold, and a claim.
    let (uid, generation) = hold(&runner_store, &key("k"), &request("a", 1)).await;
    apply(&runner_store, &key("k"), |lock, _, now| lock.claim(claim("team-web"), now)).await.unwrap();
    runner_store.bind("team/node-1", &key("k"), false).await.unwrap();
    forbidden(apply(&runner_store, &key("k"), |lock, _, now| approve(lock, "team-web", now)).await);

    // The approver can approve and nothing more.
    let given = apply(&approver, &key("k"), |lock, _, now| approve(lock, "team-web", now)).await.unwrap();
    forbidden(join(&approver, &key("k"), &request("b", 2)).await);
    let enqueue = |lock: &mut ServerLock, leases: &Leases, now| lock.enqueue(request("b", 2), leases, now);
    forbidden(apply(&approver, &key("k"), enqueue).await);
    forbidden(finish(&approver, &key("k"), &uid, generation).await);
    forbidden(apply(&approver, &key("other"), |lock, _, now| lock.claim(claim("team-web"), now)).await);
    forbidden(approver.bind("team/node-1", &key("x"), true).await);

    // The reviewer can only read.
    let view = reviewer.view(&key("k")).await.unwrap();
    assert_eq!(view.lock.ownership.approvals[0].uid, given);
    assert_eq!(view.lock.get(&uid).map(|record| record.generation), Some(generation.generation));
    assert_eq!(reviewer.view_all().await.unwrap().len(), 1);
    assert_eq!(reviewer.contents().await.unwrap().violations(), [""; 0]);
    assert!(reviewer.find(&id("a")).await.unwrap().is_some() && !reviewer.audit(&id("a"), 9).await.unwrap().is_empty());
    forbidden(apply(&reviewer, &key("k"), |lock, _, now| approve(lock, "team-web", now)).await);
    forbidden(reviewer.renew(&runner(3), TTL).await);
    forbidden(apply(&reviewer, &key("k"), enqueue).await);

    // A run uses an approval, the owner withdraws another, and both end with the claim.
    let used = |lock: &mut ServerLock, _: &Leases, _| {
        // The first attempt uses this handle's cache, which can lack the approval.
        let approval = lock.ownership.approvals.first_mut().ok_or(Refusal::WrongPhase("no approval"))?;
        approval.used_by = Some(uid.clone());
        Ok(())
    };
    apply(&runner_store, &key("k"), used).await.unwrap();
    finish(&runner_store, &key("k"), &uid, generation).await.unwrap();
    assert!(
        apply(&approver, &key("k"), |lock, _, now| Ok(lock.withdraw_approval(&given, "owner", now))).await.unwrap()
    );
    apply(&approver, &key("k"), |lock, _, now| approve(lock, "team-web", now)).await.unwrap();
    let unclaim = |lock: &mut ServerLock, _: &Leases, now| {
        let uid = lock.ownership.claim.as_ref().unwrap().uid.clone();
        Ok(lock.unclaim(&uid, "ada", now))
    };
    assert!(apply(&runner_store, &key("k"), unclaim).await.unwrap());
    assert!(runner_store.view(&key("k")).await.unwrap().lock.ownership.is_empty());
    // PostgreSQL itself recorded the role.
    let query = r#"SELECT DISTINCT role_name FROM metal.audit WHERE body LIKE '%"what":"approv%'"#;
    assert_eq!(server.sql(&database, query), "metal_approver");
    runner_store.prune(Duration::ZERO, 100).await.unwrap();

    // For an owner with its own roles, other roles cannot approve.
    server.sql(&database, &owner_role());
    apply(&runner_store, &key("k"), |lock, _, now| lock.claim(claim("team-database"), now)).await.unwrap();
    forbidden(apply(&approver, &key("k"), |lock, _, now| approve(lock, "team-database", now)).await);
    let team = open(&server.url("team_database", &database)).await.unwrap();
    apply(&team, &key("k"), |lock, _, now| approve(lock, "team-database", now)).await.unwrap();
    assert_eq!(reviewer.view(&key("k")).await.unwrap().lock.ownership.approvals.len(), 1);
}

#[tokio::test]
async fn a_wrong_login_or_place_is_refused_at_once_and_names_no_password() {
    let server = Postgres::shared();
    let database = server.database();
    let place = format!("127.0.0.1:{}", server.port);
    for (url, word) in [
        (format!("postgres://nobody:hunter2@{place}/{database}"), "nobody"),
        (format!("postgres://postgres:hunter2@{place}/nowhere"), "nowhere"),
    ] {
        let error = hasty(&url).await.unwrap_err();
        assert!(matches!(&error, StoreError::Forbidden { .. }), "{error}");
        let text = format!("{error} {error:?}");
        assert!(text.contains(word) && !text.contains("hunter2"), "{text}");
    }
    let closed = crate::support::server::free_port();
    let error = hasty(&format!("postgres://postgres:hunter2@127.0.0.1:{closed}/x")).await.unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable { .. }) && !error.to_string().contains("hunter2"), "{error}");
}

#[tokio::test]
async fn a_schema_of_a_newer_version_is_refused() {
    let server = Postgres::shared();
    let database = server.database();
    let url = server.url("postgres", &database);
    open(&url).await.unwrap().close().await;
    server.sql(
        &database,
        "INSERT INTO metal.schema_versions SELECT 9999, description, installed_on, success, checksum, 0 \
         FROM metal.schema_versions LIMIT 1",
    );
    let error = open(&url).await.unwrap_err();
    let expected = "newer version of this program (format 9999; this version supports format 1)";
    assert!(matches!(&error, StoreError::Unreadable { cause, .. } if cause.raw().contains(expected)), "{error}");
}

#[tokio::test]
async fn what_is_out_of_order_is_found() {
    let server = Postgres::shared();
    let database = server.database();
    let store = open(&server.url("postgres", &database)).await.unwrap();
    hold(&store, &key("k"), &request("a", 1)).await;
    assert_eq!(store.contents().await.unwrap().violations(), [""; 0]);
    server.sql(
        &database,
        "UPDATE metal.maintenances SET revision = 99; UPDATE metal.locks SET generation = 0, last_ticket = 0",
    );
    let wrong = store.contents().await.unwrap().violations();
    let wrong = wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for part in [
        "was written after k",
        "has generation 1, but the last generation of k is 0",
        "has number 1, but the last number of k is 0",
    ] {
        assert!(wrong.contains(part), "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_used_as_the_url_says() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, private) = (folder.path().join("server.pem"), folder.path().join("server.key"));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&private, made.signing_key.serialize_pem()).unwrap();
    let (_files, settings) = crate::support::postgres::with_certificate(&certificate, &private);
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let server = Postgres::start(&settings);
    let url = server.url("postgres", &server.database());
    let trusted = format!("{url}?sslmode=verify-full&sslrootcert={}", certificate.display());
    let store = open(&trusted).await.unwrap();
    hold(&store, &key("k"), &request("a", 1)).await;
    let used = server.sql("postgres", "SELECT count(*) > 0 FROM pg_stat_ssl WHERE ssl");
    assert_eq!(used, "t");
    // A certificate from an untrusted authority.
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    fs::write(&certificate, other.cert.pem()).unwrap();
    let error = hasty(&trusted).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Unavailable { cause, .. } if cause.raw().to_lowercase().contains("certificate")),
        "{error}"
    );
}

/// Runs holds in several tasks during an event on the server.
async fn holds_go_on(url: &str, meanwhile: impl std::future::Future<Output = ()>) -> u64 {
    const PEOPLE: u32 = 24;
    let mut handles: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..3 {
        handles.push(Arc::new(open(url).await.unwrap()));
    }
    let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let people = (0..PEOPLE).map(|n| {
        let (store, inside) = (handles[n as usize % handles.len()].clone(), inside.clone());
        tokio::spawn(async move { one_turn(&*store, n, &inside).await })
    });
    let people: Vec<_> = people.collect();
    meanwhile.await;
    for person in people {
        tokio::time::timeout(Duration::from_secs(60), person).await.expect("everyone acquires the lock").unwrap();
    }
    let store = &handles[0];
    let view = store.view(&key("k")).await.unwrap();
    assert!(view.lock.slot.is_none() && view.lock.active.is_empty(), "{:?}", view.lock);
    assert_eq!(view.lock.last_ticket, u64::from(PEOPLE), "a person was counted twice");
    let contents = store.contents().await.unwrap();
    assert_eq!(contents.violations(), [""; 0]);
    assert_eq!(contents.history.len(), PEOPLE as usize, "nothing is lost");
    view.lock.generation
}

/// Waits for the next change. Returns false after all tasks have ended.
async fn goes_on(changes: &mut tokio::sync::watch::Receiver<u64>) -> bool {
    changes.mark_unchanged();
    tokio::time::timeout(Duration::from_secs(8), changes.changed()).await.is_ok_and(|changed| changed.is_ok())
}

/// Retries during an outage, like the engine.
async fn insist<T, F: Future<Output = Result<T, StoreError>>>(attempt: impl Fn() -> F) -> Result<T, StoreError> {
    loop {
        match attempt().await {
            Err(StoreError::Unavailable { .. }) => tokio::task::yield_now().await,
            other => return other,
        }
    }
}

async fn one_turn(store: &dyn Store, n: u32, inside: &std::sync::atomic::AtomicU32) {
    use std::sync::atomic::Ordering;
    let (key, wish): (LockKey, _) = (key("k"), request(&format!("m{n}"), n));
    let mut changes = store.changes(&key);
    let (uid, generation) = insist(|| join(store, &key, &wish)).await.unwrap();
    loop {
        changes.mark_unchanged();
        let view = insist(|| store.view(&key)).await.unwrap();
        let mine = turn(&view.lock, &view.leases, &uid, AGING, view.now) == Turn::Yours;
        if mine && insist(|| try_admit(store, &key, &uid, generation)).await.unwrap() {
            break;
        }
        // Poll every second next to change notifications, like the engine.
        let _ = tokio::time::timeout(Duration::from_secs(1), changes.changed()).await;
    }
    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "{key} has two holders");
    tokio::time::sleep(Duration::from_millis(5)).await;
    inside.fetch_sub(1, Ordering::SeqCst);
    match insist(|| finish(store, &key, &uid, generation)).await {
        // An earlier attempt succeeded, but its reply was lost.
        Ok(()) | Err(StoreError::Refused(Refusal::Gone)) => {}
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_comes_back_lost_nothing() {
    // As in production: commits are on disk.
    let mut server = Postgres::start(&["fsync=on", "synchronous_commit=on", "full_page_writes=on"]);
    let url = server.url("postgres", &server.database());
    let watched = open(&url).await.unwrap();
    let mut changes = watched.changes(&key("k"));
    let generation = holds_go_on(&url, async {
        let mut kills = 0;
        // Right after a hold began or ended.
        while kills < 3 && goes_on(&mut changes).await {
            server.kill();
            server.start_again();
            kills += 1;
        }
        assert!(kills > 0, "nothing was killed");
    })
    .await;
    assert!(generation >= 24);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_lose_no_change() {
    let server = Postgres::shared();
    let database = server.database();
    let url = server.url("postgres", &database);
    let cut = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{database}' AND pid <> pg_backend_pid()"
    );
    let cutter = open(&url).await.unwrap();
    holds_go_on(&url, async {
        let mut changes = cutter.changes(&key("k"));
        let mut cuts = 0;
        while cuts < 8 && goes_on(&mut changes).await {
            server.sql("postgres", &cut);
            cuts += 1;
        }
        assert!(cuts > 0, "no connection was cut");
    })
    .await;
}

/// Requests over a network that loses replies: each is applied once or reports failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_without_a_reply_is_written_once() {
    const REQUESTS: u32 = 200;
    let server = Postgres::shared();
    let database = server.database();
    let proxy = Arc::new(Toxiproxy::to(&format!("127.0.0.1:{}", server.port)));
    let through = hasty(&format!("postgres://postgres@{}/{database}", proxy.host())).await.unwrap();
    let past = open(&server.url("postgres", &database)).await.unwrap();
    let over = tokio_util::sync::CancellationToken::new();
    let (stop, network) = (over.clone(), proxy.clone());
    let gremlin = tokio::task::spawn_blocking(move || {
        for round in 0.. {
            // Cut at varying points of a reply, or before it.
            match round % 4 {
                0 => network.limit_replies(700 + round * 37 % 2900),
                1 => network.lose_replies(),
                2 => network.cut(),
                _ => network.heal(),
            }
            std::thread::sleep(Duration::from_millis(u64::from(20 + round * 7 % 60)));
            network.heal();
            if stop.is_cancelled() {
                return;
            }
        }
    });
    for n in 0..REQUESTS {
        let wish = request(&format!("m{n}"), 1);
        let enqueue = |lock: &mut ServerLock, leases: &Leases, now| lock.enqueue(wish.clone(), leases, now);
        let key = key("k");
        insist(|| apply(&through, &key, enqueue)).await.unwrap();
    }
    over.cancel();
    gremlin.await.unwrap();
    let view = past.view(&key("k")).await.unwrap();
    let mut tickets: Vec<_> = view.lock.active.iter().map(|record| record.ticket_number).collect();
    tickets.sort_unstable();
    assert_eq!(tickets, (1..=u64::from(REQUESTS)).collect::<Vec<_>>(), "a ticket number was skipped");
    for n in 0..REQUESTS {
        let lines = past.audit(&id(&format!("m{n}")), 9).await.unwrap();
        let enqueued = lines.iter().filter(|line| line.what == "enqueued").count();
        assert_eq!(enqueued, 1, "m{n}: {lines:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_nobody_needs_are_closed() {
    let server = Postgres::start(&[]);
    let database = server.database();
    let count = |what: &str| {
        let where_ = format!("datname = '{database}' AND backend_type = 'client backend'{what}");
        server.sql("postgres", &format!("SELECT count(*) FROM pg_stat_activity WHERE {where_}")).parse::<u32>().unwrap()
    };
    let until = async |most: u32| {
        while count("") > most {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let store = open(&server.url("postgres", &database)).await.unwrap();
    let keys: Vec<_> = (0..20).map(|n| key(&format!("k{n}"))).collect();
    for _ in 0..2 {
        let views = futures_util::future::join_all(keys.iter().map(|key| store.view(key))).await;
        assert!(views.iter().all(Result::is_ok));
        assert!((1..=3).contains(&count("")), "more than three connections");
        soon("rest", until(0)).await;
    }
    // A watch keeps the listening connection open.
    let changes = store.changes(&keys[0]);
    let listening = async {
        while count(" AND query LIKE 'LISTEN%'") == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    soon("somebody listens", listening).await;
    soon("rest", until(1)).await;
    assert_eq!(count(" AND query LIKE 'LISTEN%'"), 1);
    drop(changes);
    store.close().await;
    // A server process ends shortly after its connection.
    soon("the end of all connections", until(0)).await;
}

/// More processes wait than the server allows connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_takes_no_connection_from_those_who_work() {
    let server = Postgres::start(&["max_connections=16"]);
    let database = server.database();
    server.sql(&database, &format!("CREATE ROLE ci LOGIN; GRANT CREATE ON DATABASE {database} TO ci"));
    let url = server.url("ci", &database);
    let taken = || {
        let count = server.sql("postgres", "SELECT count(*) FROM pg_stat_activity WHERE usename = 'ci'");
        count.parse::<u32>().unwrap()
    };
    let mut waiting = Vec::new();
    for n in 0..30 {
        let store = insist(|| open(&url)).await.unwrap();
        let changes = store.changes(&key("k"));
        waiting.push((store, changes));
        if n % 6 == 5 {
            // Idle waiters return their connections.
            let calm = async {
                while taken() > 10 {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            soon("rest", calm).await;
        }
    }
    for (_, changes) in &mut waiting {
        changes.mark_unchanged();
    }
    let late = insist(|| open(&url)).await.unwrap();
    hold(&late, &key("k"), &request("a", 1)).await;
    let this = key("k");
    for (store, mut changes) in waiting {
        soon("the change", changes.changed()).await.unwrap();
        let seen = soon("a look", insist(|| store.view(&this))).await.unwrap();
        assert_eq!(seen.lock.active.len(), 1);
    }
}
