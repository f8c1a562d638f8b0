//! An attachment that no drive uses any more: it is let go, although its process lives on.

use tokio::sync::watch;

use super::*;
use crate::{
    maintenance::{
        ids::Uid,
        lock::{AuditEvent, Refusal, ServerLock},
        state::Maintenance,
    },
    store::{AuditProof, ChainEnds, Contents, LockView, RecordLookup, StoreError, Transition},
};

/// How many of the next requests of a kind go wrong.
#[derive(Debug, Default)]
struct Plan {
    /// Records are not found, for want of an answer.
    finds: usize,
    /// Commits that are made, and whose reply is lost.
    replies: usize,
    /// Commits that would detach a process and do not arrive.
    detaches: usize,
}

/// A store that fails on demand.
#[derive(Debug)]
struct Faulty {
    inner: Arc<MemoryStore>,
    plan: Mutex<Plan>,
}

impl Faulty {
    fn of(world: &World) -> Arc<Self> {
        Arc::new(Self { inner: world.store.clone(), plan: Mutex::default() })
    }

    fn plan(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.plan.lock().unwrap());
    }

    fn fails(&self, which: impl FnOnce(&mut Plan) -> &mut usize) -> Result<(), StoreError> {
        let mut plan = self.plan.lock().unwrap();
        let left = which(&mut plan);
        if *left == 0 {
            return Ok(());
        }
        *left -= 1;
        Err(StoreError::Unavailable { address: "memory://".into(), cause: "cut".into() })
    }
}

#[async_trait]
impl Store for Faulty {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn address(&self) -> String {
        self.inner.address()
    }

    fn reach_warning(&self) -> Option<String> {
        self.inner.reach_warning()
    }

    async fn transact(&self, key: &LockKey, transition: &mut Transition<'_>) -> Result<(), StoreError> {
        let attached = |lock: &ServerLock| lock.active.iter().filter(|record| record.attachment.is_some()).count();
        let mut cut = Ok(());
        let said = self
            .inner
            .transact(key, &mut |lock, leases, now| {
                let before = attached(lock);
                transition(lock, leases, now)?;
                if attached(lock) < before {
                    cut = self.fails(|plan| &mut plan.detaches);
                }
                if cut.is_err() { Err(Refusal::Gone) } else { Ok(()) }
            })
            .await;
        cut?;
        said?;
        self.fails(|plan| &mut plan.replies)
    }

    async fn view(&self, key: &LockKey) -> Result<LockView, StoreError> {
        self.inner.view(key).await
    }

    async fn view_all(&self) -> Result<Vec<LockView>, StoreError> {
        self.inner.view_all().await
    }

    async fn find(&self, id: &MaintenanceId) -> Result<Option<RecordLookup>, StoreError> {
        self.inner.find(id).await
    }

    async fn find_uid(&self, uid: &Uid) -> Result<Option<RecordLookup>, StoreError> {
        self.fails(|plan| &mut plan.finds)?;
        self.inner.find_uid(uid).await
    }

    async fn renew(&self, runner: &Runner, ttl: Duration) -> Result<(), StoreError> {
        self.inner.renew(runner, ttl).await
    }

    async fn resign(&self, runner: &RunnerId) -> Result<(), StoreError> {
        self.inner.resign(runner).await
    }

    async fn binding(&self, server: &str) -> Result<Option<LockKey>, StoreError> {
        self.inner.binding(server).await
    }

    async fn bind(&self, server: &str, key: &LockKey, rebind: bool) -> Result<(), StoreError> {
        self.inner.bind(server, key, rebind).await
    }

    async fn audit(&self, id: &MaintenanceId, limit: usize) -> Result<Vec<AuditEvent>, StoreError> {
        self.inner.audit(id, limit).await
    }

    async fn verify_audit(&self, earlier: &ChainEnds) -> Result<AuditProof, StoreError> {
        self.inner.verify_audit(earlier).await
    }

    async fn contents(&self) -> Result<Contents, StoreError> {
        self.inner.contents().await
    }

    async fn fill(&self, contents: &Contents) -> Result<(), StoreError> {
        self.inner.fill(contents).await
    }

    async fn claim_sweep(&self, runner: &RunnerId, length: Duration) -> Result<bool, StoreError> {
        self.inner.claim_sweep(runner, length).await
    }

    async fn prune(&self, keep: Duration, most: u32) -> Result<u64, StoreError> {
        self.inner.prune(keep, most).await
    }

    fn changes(&self, key: &LockKey) -> watch::Receiver<u64> {
        self.inner.changes(key)
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

async fn only(world: &World) -> Maintenance {
    world.store.view_all().await.unwrap().remove(0).lock.active[0].clone().into_inner()
}

/// Two heartbeats of the default lease.
const TWO_BEATS: Duration = Duration::from_secs(21);

/// Ways in which a create fails after its enqueue was committed.
const FAILURES: [fn(&mut Plan); 2] = [|plan| plan.finds = 1, |plan| plan.replies = 1];

#[tokio::test(start_paused = true)]
async fn the_same_process_goes_on_with_what_it_left_undriven() {
    for failure in FAILURES {
        let world = World::new();
        let store = Faulty::of(&world);
        let alice = world.process_on("alice", store.clone());
        store.plan(failure);
        let failed = alice.hold(&wish("mine", spec()), &control()).await;
        assert!(matches!(failed, Err(EngineError::Store(_))), "{failed:?}");
        let left = only(&world).await;
        assert!(left.attachment.is_some(), "the commit was made");
        let again = alice.hold(&wish("mine", spec()), &control()).await.unwrap();
        assert_eq!((again.finish, again.record.uid), (Finish::Reached, left.uid));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_create_keeps_no_server_from_others_while_its_process_lives_on() {
    for failure in FAILURES {
        let world = World::new();
        let store = Faulty::of(&world);
        let alice = world.process_on("alice", store.clone());
        store.plan(failure);
        alice.hold(&wish("mine", spec()), &control()).await.unwrap_err();
        tokio::time::sleep(TWO_BEATS).await;
        let left = only(&world).await;
        assert_eq!(left.attachment, None, "nothing drives it");
        // Its place counts from now on, and then the server is free for others.
        let bob = world.process("bob");
        let began = Instant::now();
        let driven = bob.hold(&wish("his", spec()), &control()).await.unwrap();
        assert_eq!(driven.finish, Finish::Reached);
        assert!(began.elapsed() <= spec().hold_place_for, "{:?}", began.elapsed());
        alice.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_detach_that_did_not_arrive_is_made_up_for() {
    let world = World::new();
    let store = Faulty::of(&world);
    let alice = world.process_on("alice", store.clone());
    store.plan(|plan| plan.detaches = 1);
    let held = alice.hold(&wish("mine", spec()), &control()).await.unwrap();
    assert_eq!(held.finish, Finish::Reached);
    assert!(only(&world).await.attachment.is_some());
    tokio::time::sleep(TWO_BEATS).await;
    assert_eq!(only(&world).await.attachment, None);
    alice.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_drive_that_panicked_or_was_dropped_lets_go() {
    for panics in [true, false] {
        let world = World::new();
        let alice = Arc::new(world.process("alice"));
        world.machine.with(|inside| inside.panics = panics);
        let (driver, wish) = (Arc::clone(&alice), wish("mine", boots_rescue()));
        let drive = tokio::spawn(async move { driver.hold(&wish, &control()).await.map(drop) });
        if panics {
            assert!(drive.await.unwrap_err().is_panic());
        } else {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drive.abort();
            assert!(drive.await.unwrap_err().is_cancelled());
        }
        world.machine.with(|inside| inside.panics = false);
        assert!(only(&world).await.attachment.is_some());
        tokio::time::sleep(TWO_BEATS).await;
        assert_eq!(only(&world).await.attachment, None);
        let again = alice.hold(&self::wish("mine", boots_rescue()), &control()).await.unwrap();
        assert_eq!(again.finish, Finish::Reached);
    }
}

/// What is driven stays attached, however often the process lets go of other records of the same
/// server.
#[tokio::test(start_paused = true)]
async fn what_is_driven_stays_attached() {
    let world = World::new();
    let store = Faulty::of(&world);
    let alice = Arc::new(world.process_on("alice", store.clone()));
    alice.hold(&wish("holds", spec()), &control()).await.unwrap();
    let waiter = Arc::clone(&alice);
    let waiting = tokio::spawn(async move { waiter.hold(&wish("waits", spec()), &control()).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    store.plan(|plan| plan.replies = 1);
    alice.hold(&wish("fails", spec()), &control()).await.unwrap_err();
    tokio::time::sleep(TWO_BEATS * 3).await;
    let view = world.store.view_all().await.unwrap().remove(0);
    let attached: Vec<_> = view.lock.active.iter().filter(|record| record.attachment.is_some()).collect();
    assert_eq!(attached.iter().map(|record| record.id.name()).collect::<Vec<_>>(), ["waits"]);
    let twice = alice.hold(&wish("waits", spec()), &control()).await;
    assert!(matches!(twice, Err(EngineError::Refused(_))), "two resources of one name: {twice:?}");
    assert!(!waiting.is_finished());
    waiting.abort();
}
