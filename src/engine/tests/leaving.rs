//! Requests to a server's own maintenance system with a queue, after failures.

use super::*;
use crate::{
    backend::{ExternalRequestRef, Gate, MaintenanceSystem, Outlook},
    maintenance::gate::{ExternalRequest, ExternalState, ExternalSystem, GateView, QueueAuthority},
};

/// The fake system's state.
#[derive(Debug, Default)]
struct Said {
    /// UID of the maintenance with a request.
    request: Option<String>,
    grants: bool,
    /// True if the system has only an entered flag and no owners: entered under our lock.
    flag: bool,
    /// Errors of entering, looking and leaving. A request is created despite its error.
    enter: Option<BackendError>,
    look: Option<BackendError>,
    leave: Option<BackendError>,
}

/// The fake machine as part of such a system.
#[derive(Clone, Debug)]
struct Operated {
    machine: Arc<FakeMachine>,
    said: Arc<Mutex<Said>>,
}

fn failing(error: Option<&BackendError>) -> Result<(), BackendError> {
    error.cloned().map_or(Ok(()), Err)
}

#[async_trait]
impl Gate for Operated {
    async fn system(&self, _operation: bool) -> Result<Option<ExternalSystem>, BackendError> {
        let flag = self.said.lock().unwrap().flag;
        let order = if flag { QueueAuthority::Ours } else { QueueAuthority::Theirs };
        Ok(Some(ExternalSystem { owners: !flag, ..ExternalSystem::own("theirs", order, true) }))
    }
    async fn look(&self, wish: &ExternalRequest, _fresh: bool) -> Result<GateView, BackendError> {
        let said = self.said.lock().unwrap();
        failing(said.look.as_ref())?;
        let standing = match &said.request {
            Some(uid) if *uid == wish.uid && said.grants => ExternalState::Granted,
            Some(uid) if *uid == wish.uid && said.flag => ExternalState::Entering("the operator".into()),
            Some(uid) if *uid == wish.uid => ExternalState::Waiting("the owner".into()),
            _ => ExternalState::Absent,
        };
        Ok(GateView::of(standing))
    }
    async fn enter(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        let mut said = self.said.lock().unwrap();
        said.request = Some(wish.uid.clone());
        failing(said.enter.as_ref())
    }
    async fn leave(&self, _wish: &ExternalRequest) -> Result<(), BackendError> {
        let mut said = self.said.lock().unwrap();
        failing(said.leave.as_ref())?;
        said.request = None;
        Ok(())
    }
    async fn requests(&self) -> Result<Vec<ExternalRequestRef>, BackendError> {
        Ok(Vec::new())
    }
    async fn discard(&self, _request: &ExternalRequestRef) -> Result<(), BackendError> {
        Ok(())
    }
    fn by_hand(&self, _wish: &ExternalRequest, _order: QueueAuthority) -> String {
        "ask them".into()
    }
    async fn changed(&self) {
        std::future::pending::<()>().await;
    }
    async fn outlook(&self, _wish: &ExternalRequest) -> Result<Outlook, BackendError> {
        Ok(Outlook::default())
    }
}

#[async_trait]
impl MaintenanceSystem for Operated {
    fn under(&self, _wish: &ExternalRequest) -> Arc<dyn Machine> {
        Arc::new(self.clone())
    }

    fn shown(&self, _wish: &ExternalRequest) -> Arc<dyn Machine> {
        Arc::new(self.clone())
    }
}

#[async_trait]
impl PowerControl for Operated {
    async fn reset(&self, reset: ResetType) -> Result<(), BackendError> {
        self.machine.reset(reset).await
    }
}

#[async_trait]
impl BootControl for Operated {
    async fn set_boot_override(&self, wanted: &BootOverride, clear: bool) -> Result<(), BackendError> {
        self.machine.set_boot_override(wanted, clear).await
    }
}

#[async_trait]
impl MediaControl for Operated {
    async fn media(&self, known: &[MediaSlot]) -> Result<Vec<MediaSlot>, BackendError> {
        self.machine.media(known).await
    }
    async fn insert_medium(&self, slot: &str, image: &str, protected: bool) -> Result<(), BackendError> {
        self.machine.insert_medium(slot, image, protected).await
    }
    async fn eject_medium(&self, slot: &str) -> Result<(), BackendError> {
        self.machine.eject_medium(slot).await
    }
}

#[async_trait]
impl Machine for Operated {
    fn address(&self) -> String {
        self.machine.address()
    }
    async fn identify(&self) -> Result<HardwareIdentity, BackendError> {
        self.machine.identify().await
    }
    async fn observe(&self) -> Result<MachineView, BackendError> {
        self.machine.observe().await
    }
    async fn late_answer(&self) -> Option<BackendError> {
        self.machine.late_answer().await
    }
    async fn capabilities(&self) -> Result<Capabilities, BackendError> {
        self.machine.capabilities().await
    }
    fn maintenance_system(&self) -> Option<&dyn MaintenanceSystem> {
        Some(self)
    }
}

#[async_trait]
impl Backend for Operated {
    fn servers(&self) -> Vec<String> {
        Vec::new()
    }
    fn machine(&self, _server: &str) -> Result<Arc<dyn Machine>, BackendError> {
        Ok(Arc::new(self.clone()))
    }
    async fn location(&self, _server: &str) -> Result<Location, BackendError> {
        Ok(Location::direct("redfish"))
    }
    async fn close(&self) {}
}

fn operated(world: &World) -> (Arc<Engine>, Arc<Mutex<Said>>) {
    let said = Arc::new(Mutex::new(Said::default()));
    let operated = Operated { machine: world.machine.clone(), said: said.clone() };
    let process = world.process("alice");
    (Arc::new(Engine::new(Parts { backend: Arc::new(operated), ..process.parts })), said)
}

/// Returns an error that only another author can fix.
fn forbidden(what: &str) -> BackendError {
    BackendError::Unsupported { address: "theirs".into(), what: what.into() }
}

fn away() -> BackendError {
    BackendError::Unreachable { address: "theirs".into(), cause: "connection refused".into() }
}

type Running = tokio::task::JoinHandle<Result<ReconcileResult, EngineError>>;

/// Starts a create that waits for its request to be granted.
async fn waiting(engine: &Arc<Engine>, said: &Mutex<Said>, wish: MaintenanceRequest) -> Running {
    let engine = engine.clone();
    let running = tokio::spawn(async move { engine.hold(&wish, &control()).await });
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(!running.is_finished());
    assert!(said.lock().unwrap().request.is_some());
    running
}

async fn fails_with(running: Running, what: &str) {
    let error = running.await.unwrap().unwrap_err();
    assert!(error.to_string().contains(what), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_cannot_be_looked_at_any_more_leaves_nothing() {
    let world = World::new();
    let (engine, said) = operated(&world);
    let running = waiting(&engine, &said, wish("m", spec())).await;
    said.lock().unwrap().look = Some(forbidden("no permission to read"));
    fails_with(running, "no permission to read").await;
    assert_eq!(said.lock().unwrap().request, None);
    assert!(engine.queue().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_fails_for_good_is_taken_back_before_its_record_goes() {
    let world = World::new();
    let (engine, said) = operated(&world);
    said.lock().unwrap().enter = Some(forbidden("no permission to create"));
    let began = Instant::now();
    fails_with(
        tokio::spawn(async move { engine.hold(&wish("m", spec()), &control()).await }),
        "no permission to create",
    )
    .await;
    assert_eq!(said.lock().unwrap().request, None);
    assert!(world.process("reader").queue().await.unwrap().is_empty());
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_taken_back_hides_no_error_and_ends_in_time() {
    for refusal in [forbidden("no permission to delete"), away()] {
        let world = World::new();
        let (engine, said) = operated(&world);
        let running = waiting(&engine, &said, wish("m", spec())).await;
        {
            let mut said = said.lock().unwrap();
            (said.look, said.leave) = (Some(forbidden("no permission to read")), Some(refusal));
        }
        let began = Instant::now();
        fails_with(running, "no permission to read").await;
        assert!(began.elapsed() < Duration::from_mins(2));
        assert!(engine.queue().await.unwrap().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_system_that_is_away_costs_no_place() {
    let world = World::new();
    let (engine, said) = operated(&world);
    let running = waiting(&engine, &said, wish("m", spec())).await;
    said.lock().unwrap().look = Some(away());
    fails_with(running, "connection refused").await;
    assert!(said.lock().unwrap().request.is_some());
    assert_eq!(engine.queue().await.unwrap().len(), 1);
    // The next run of the same configuration continues.
    {
        let mut said = said.lock().unwrap();
        (said.look, said.grants) = (None, true);
    }
    let held = engine.hold(&wish("m", spec()), &control()).await.unwrap();
    assert_eq!(held.finish, Finish::Reached);
}

#[tokio::test(start_paused = true)]
async fn what_is_held_stays_held_when_it_cannot_be_looked_at() {
    let world = World::new();
    let (engine, said) = operated(&world);
    said.lock().unwrap().grants = true;
    let ends = Spec { complete_when: Some(CompleteWhen::PowerState(PowerTarget::Off)), ..spec() };
    let whole = MaintenanceRequest { wait_for: WaitFor::Completed, ..wish("m", ends) };
    let running = waiting(&engine, &said, whole).await;
    said.lock().unwrap().look = Some(forbidden("no permission to read"));
    fails_with(running, "no permission to read").await;
    assert!(said.lock().unwrap().request.is_some());
    let lines = engine.queue().await.unwrap();
    assert_eq!((lines.len(), lines[0].state), (1, "InMaintenance"));
}

#[tokio::test(start_paused = true)]
async fn owners_of_whom_the_external_system_knows_nothing_are_asked_here() {
    let world = World::new();
    let (owner, key) = super::asking::claimed(&world).await;
    let (engine, said) = operated(&world);
    {
        let mut said = said.lock().unwrap();
        (said.flag, said.grants) = (true, true);
    }
    let running = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.hold(&wish("m", super::asking::asks()), &control()).await })
    };
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(!running.is_finished());
    assert_eq!(said.lock().unwrap().request, None, "not entered before the owner approved");
    owner.approve(&key, &Uid::new("b"), &super::asking::yes(Some("m"))).await.unwrap();
    assert_eq!(running.await.unwrap().unwrap().finish, Finish::Reached);
    assert!(said.lock().unwrap().request.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_being_entered_is_not_switched_off_by_force() {
    let world = World::new();
    let (engine, said) = operated(&world);
    said.lock().unwrap().flag = true;
    let running = waiting(&engine, &said, wish("m", spec())).await;
    tokio::time::sleep(Duration::from_mins(20)).await;
    assert!(!running.is_finished(), "only the maintenance's limit ends it");
    assert!(world.machine.with(|inside| inside.resets.is_empty()));
    said.lock().unwrap().grants = true;
    assert_eq!(running.await.unwrap().unwrap().finish, Finish::Reached);
}
