//! A process that was replaced touches nothing any more, and who replaced it waits for its last
//! call.

use tokio::sync::watch;

use super::*;
use crate::{
    maintenance::{ids::Uid, lock::AuditEvent, state::Maintenance, step::Reply},
    store::{AuditProof, ChainEnds, Contents, LockView, RecordLookup, StoreError, Transition},
};

/// A store that is slow to say that the first intent is recorded; heartbeats reach it meanwhile.
#[derive(Debug)]
struct SlowReply {
    inner: Arc<MemoryStore>,
    pause: Duration,
    paused: AtomicBool,
}

fn waits_for_reply(record: &Maintenance) -> bool {
    let attempts = record.phase.progress().map(|progress| &progress.attempts);
    attempts.and_then(|attempts| attempts.last()).is_some_and(|attempt| attempt.reply == Reply::Unknown)
}

#[async_trait]
impl Store for SlowReply {
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
        let said = self.inner.transact(key, transition).await;
        let intended = self.inner.view(key).await?.lock.active.iter().any(|record| waits_for_reply(record));
        if intended && !self.paused.swap(true, Ordering::SeqCst) {
            tokio::time::sleep(self.pause).await;
        }
        said
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

#[tokio::test(start_paused = true)]
async fn a_heartbeat_after_the_check_of_the_store_does_not_count_for_the_call() {
    let world = World::new();
    let slow = SlowReply {
        inner: world.store.clone(),
        pause: Tuning::default().lease + Duration::from_secs(10),
        paused: AtomicBool::default(),
    };
    let alice = world.process_on("alice", Arc::new(slow));
    let preparing = tokio::spawn(async move { alice.hold(&wish("off", giving_back::off()), &control()).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let operator = world.process("carol");
    let id = MaintenanceId::new("ops", "off").unwrap();
    let seen = operator.active(&id).await.unwrap().generation;
    let released = operator.force_release(&id, seen, "node needed", None, &control()).await.unwrap();
    assert_eq!(released.finish, Finish::Over);
    let said = preparing.await.unwrap();
    assert!(matches!(said, Err(EngineError::LeaseLost(_))), "{said:?}");
    world.machine.with(|inside| assert_eq!(inside.resets, []));
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_predecessor_survives_the_process_that_waits() {
    let world = World::new();
    world.machine.with(|inside| inside.ignores_graceful = true);
    let alice = world.process("alice");
    tokio::spawn(async move { alice.hold(&wish("rescue", boots_rescue()), &control()).await });
    tokio::time::sleep(Duration::from_secs(11)).await;
    let (impatient, again) = (world.process("carol"), world.process("dave"));
    let id = MaintenanceId::new("ops", "rescue").unwrap();
    let seen = impatient.active(&id).await.unwrap().generation;
    let taken = Instant::now();
    let stopped = control();
    stopped.stop.cancel();
    let interrupted = impatient.force_release(&id, seen, "node needed", None, &stopped).await.unwrap();
    assert_eq!((interrupted.finish, taken.elapsed()), (Finish::Interrupted, Duration::ZERO));
    let seen = again.active(&id).await.unwrap().generation;
    let released = again.force_release(&id, seen, "node needed", None, &control()).await.unwrap();
    assert_eq!(released.finish, Finish::Over);
    // Alice renewed a second before.
    assert!(taken.elapsed() + Duration::from_secs(1) >= Tuning::default().lease, "{:?}", taken.elapsed());
}

/// One call may be several requests. Whoever was fenced between them sends no more.
#[tokio::test(start_paused = true)]
async fn a_call_of_several_requests_ends_where_its_process_was_replaced() {
    for replaced in [false, true] {
        let world = World::new();
        world.machine.with(|inside| inside.refuses_first_form = Some(Duration::from_secs(5)));
        let alice = world.process("alice");
        let preparing = tokio::spawn(async move { alice.hold(&wish("rescue", boots_rescue()), &control()).await });
        while world.machine.with(|inside| inside.forms) == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if !replaced {
            assert_eq!(preparing.await.unwrap().unwrap().finish, Finish::Reached);
            assert_eq!(world.machine.with(|inside| inside.forms), 2);
            continue;
        }
        let carol = world.process("carol");
        let id = MaintenanceId::new("ops", "rescue").unwrap();
        let seen = carol.active(&id).await.unwrap().generation;
        // Takes it, and is stopped before it does anything.
        let stopped = control();
        stopped.stop.cancel();
        carol.force_release(&id, seen, "node needed", None, &stopped).await.unwrap();
        let said = preparing.await.unwrap();
        assert!(said.is_err() || said.is_ok_and(|driven| driven.finish == Finish::Lost));
        assert_eq!(world.machine.with(|inside| inside.forms), 1, "the second form was sent by a fenced process");
    }
}
