//! Tests of the engine with an in-memory machine and store, on simulated time.

#![allow(clippy::disallowed_methods, reason = "on simulated time, waiting is how a test moves the clock")]

mod asking;
mod blips;
mod effects;
mod faulty;
mod fencing;
mod forecasting;
mod giving_back;
mod gone;
mod handing_over;
mod identity;
mod invoking;
mod leaving;
mod one_way;
mod stopping;
mod undriven;
mod updating;
mod waiting;

use std::{
    cell::RefCell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    backend::{
        Backend, BackendError, BootControl, HardwareIdentity, Machine, MediaControl, PowerControl, before_change,
    },
    clock::SimulatedClock,
    maintenance::{
        decide::Finish,
        ids::{MaintenanceId, RunnerId},
        location::Location,
        lock::AskingState,
        machine::{BootOverride, Capabilities, MachineView, MediaSlot, PowerState, PowerTarget, ResetType},
        spec::{BootMethod, BootSpec, CompleteWhen, MaintenanceKind, Spec, WaitFor},
        state::{Ending, Maintenance, Phase},
        step::Action,
    },
    probe::{Probe, ProbeError},
    shown::{AsRaw, OneLine},
    store::MemoryStore,
};

/// How long the machine takes to change its power.
const POWER_TAKES: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "independent traits")]
struct Inside {
    power: Option<PowerState>,
    becomes: Option<(Instant, PowerState)>,
    boot: BootOverride,
    image: Option<String>,
    resets: Vec<ResetType>,
    /// All changes, as actions in words.
    sent: Vec<String>,
    booted_from: Vec<String>,
    ejected_while_on: bool,
    ignores_graceful: bool,
    /// Outcome of each reset, reported after its acceptance.
    late_answer: Option<BackendError>,
    /// How long the operating system takes to shut down; default: the usual time.
    shutdown_takes: Option<Duration>,
    deaf: bool,
    /// Loses the reply to the next mutation, after applying it.
    lose_reply: bool,
    refuse_boot: Option<String>,
    /// Number of resets to reject for now.
    busy_resets: usize,
    /// Accepts a power change and does nothing.
    ignores_power: bool,
    /// Hides its power state.
    hides_power: bool,
    /// Lists no virtual drives.
    no_drives: bool,
    /// How long an inserted medium stays unlisted.
    shows_media_after: Option<Duration>,
    /// When the inserted medium will be listed.
    media_shown_at: Option<Instant>,
    /// Rejects the first form of a boot override after this time, so that the caller sends a second
    /// form.
    refuses_first_form: Option<Duration>,
    /// Ends the drive with a panic.
    panics: bool,
    /// Number of received forms.
    forms: usize,
    /// Its reported identity; `None`: the real identity.
    identity: Option<HardwareIdentity>,
}

/// Identity of a well-behaved server.
fn real_identity() -> HardwareIdentity {
    HardwareIdentity {
        uuid: Some("4C4C4544-0037-3010-8052-B4C04F4D3332".into()),
        manufacturer: Some("Maker".into()),
        serial_number: Some("S-42".into()),
        authority: "bmc1:443".into(),
        path: "/redfish/v1/Systems/1".into(),
        ..HardwareIdentity::default()
    }
}

/// A well-behaved machine: power changes take time, and a boot uses up `Once`.
#[derive(Debug, Default)]
struct FakeMachine {
    inside: Mutex<Inside>,
    /// Calls so far; a call whose number is `hang_at` never returns.
    calls: AtomicUsize,
    hang_at: Mutex<Option<(usize, bool)>>,
    hangs: AtomicBool,
}

impl FakeMachine {
    fn on() -> Arc<Self> {
        let machine = Self::default();
        {
            let mut inside = machine.inside.lock().unwrap();
            inside.power = Some(PowerState::On);
            inside.boot = BootOverride {
                enabled: Some("Disabled".into()),
                target: Some("None".into()),
                mode: Some("UEFI".into()),
                ..BootOverride::default()
            };
        }
        Arc::new(machine)
    }

    fn with<T>(&self, look: impl FnOnce(&mut Inside) -> T) -> T {
        let mut inside = self.inside.lock().unwrap();
        if let Some((at, power)) = inside.becomes
            && Instant::now() >= at
        {
            inside.becomes = None;
            inside.power = Some(power);
        }
        look(&mut inside)
    }

    /// Counts a call; hangs before or after its effect if the test requires it.
    async fn gate(&self, after: bool) {
        let hang = *self.hang_at.lock().unwrap();
        let number =
            if after { self.calls.load(Ordering::SeqCst) } else { self.calls.fetch_add(1, Ordering::SeqCst) + 1 };
        if hang == Some((number, after)) {
            self.hangs.store(true, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
    }

    async fn call<T>(
        &self,
        mutates: bool,
        work: impl FnOnce(&mut Inside) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        self.gate(false).await;
        if self.with(|inside| inside.deaf) {
            return Err(BackendError::Unreachable { address: "fake".into(), cause: "connection refused".into() });
        }
        let result = self.with(work);
        self.gate(true).await;
        if mutates && result.is_ok() && self.with(|inside| std::mem::take(&mut inside.lose_reply)) {
            return Err(BackendError::ReplyLost {
                address: "fake".into(),
                request: "POST".into(),
                cause: "cut".into(),
            });
        }
        result
    }

    fn power(&self) -> PowerState {
        self.with(|inside| inside.power.unwrap())
    }
}

#[async_trait]
impl PowerControl for FakeMachine {
    async fn reset(&self, reset: ResetType) -> Result<(), BackendError> {
        self.call(true, |inside| {
            if inside.busy_resets > 0 {
                inside.busy_resets -= 1;
                return Err(BackendError::Unreachable { address: "fake".into(), cause: "busy".into() });
            }
            inside.resets.push(reset);
            inside.sent.push(Action::Reset(reset).to_string());
            if inside.ignores_power {
                return Ok(());
            }
            let at = Instant::now() + POWER_TAKES;
            match reset {
                ResetType::GracefulShutdown if inside.ignores_graceful => {}
                ResetType::GracefulShutdown => {
                    let at = inside.shutdown_takes.map_or(at, |takes| Instant::now() + takes);
                    inside.becomes = Some((at, PowerState::Off));
                }
                ResetType::ForceOff => inside.becomes = Some((at, PowerState::Off)),
                ResetType::On => {
                    let from = match (inside.boot.enabled.as_raw(), &inside.image) {
                        (Some("Disabled"), _) => "disk".to_owned(),
                        (_, Some(image)) if inside.boot.target.as_raw() == Some("Cd") => image.clone(),
                        _ => inside.boot.target.clone().unwrap().into_raw(),
                    };
                    inside.booted_from.push(from);
                    if inside.boot.enabled.as_raw() == Some("Once") {
                        inside.boot.enabled = Some("Disabled".into());
                        inside.boot.target = Some("None".into());
                    }
                    inside.power = Some(PowerState::PoweringOn);
                    inside.becomes = Some((at, PowerState::On));
                }
                _ => panic!("{reset} is not used"),
            }
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl BootControl for FakeMachine {
    async fn set_boot_override(&self, wanted: &BootOverride, _clear: bool) -> Result<(), BackendError> {
        if let Some(pause) = self.with(|inside| inside.refuses_first_form) {
            before_change("first form").await?;
            self.with(|inside| inside.forms += 1);
            tokio::time::sleep(pause).await;
            before_change("second form").await?;
            self.with(|inside| inside.forms += 1);
        }
        self.call(true, |inside| {
            if let Some(message) = inside.refuse_boot.clone() {
                return Err(BackendError::Rejected {
                    address: "fake".into(),
                    request: "PATCH".into(),
                    status: 400,
                    message: message.into(),
                    retry_after: None,
                    transient: false,
                });
            }
            let change = Action::SetBoot { wanted: wanted.clone(), clear_http_boot_uri: false };
            inside.sent.push(change.to_string());
            let set = |to: &mut Option<OneLine>, from: &Option<OneLine>| {
                if from.is_some() {
                    to.clone_from(from);
                }
            };
            set(&mut inside.boot.enabled, &wanted.enabled);
            set(&mut inside.boot.target, &wanted.target);
            set(&mut inside.boot.mode, &wanted.mode);
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl MediaControl for FakeMachine {
    async fn media(&self, _known: &[MediaSlot]) -> Result<Vec<MediaSlot>, BackendError> {
        self.call(false, |inside| {
            if inside.no_drives {
                return Ok(Vec::new());
            }
            let shown = inside.media_shown_at.is_none_or(|at| Instant::now() >= at);
            let image = inside.image.clone().filter(|_| shown);
            Ok(vec![MediaSlot {
                slot: "Cd".into(),
                media_types: vec!["CD".into()],
                inserted: image.is_some(),
                image: image.map(OneLine::from),
                write_protected: Some(true),
            }])
        })
        .await
    }
    async fn insert_medium(&self, _slot: &str, image: &str, _protected: bool) -> Result<(), BackendError> {
        self.call(true, |inside| {
            assert!(inside.image.is_none(), "inserted twice");
            inside.sent.push("insert the image".to_owned());
            inside.image = Some(image.to_owned());
            inside.media_shown_at = inside.shows_media_after.map(|after| Instant::now() + after);
            Ok(())
        })
        .await
    }
    async fn eject_medium(&self, _slot: &str) -> Result<(), BackendError> {
        self.call(true, |inside| {
            inside.sent.push("eject the image".to_owned());
            inside.ejected_while_on |= inside.power != Some(PowerState::Off);
            inside.image = None;
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl Machine for FakeMachine {
    fn address(&self) -> String {
        "fake://node".into()
    }
    async fn identify(&self) -> Result<HardwareIdentity, BackendError> {
        self.call(false, |inside| Ok(inside.identity.clone().unwrap_or_else(real_identity))).await
    }
    async fn late_answer(&self) -> Option<BackendError> {
        self.with(|inside| inside.late_answer.clone().filter(|_| !inside.resets.is_empty()))
    }
    async fn observe(&self) -> Result<MachineView, BackendError> {
        let panics = self.with(|inside| inside.panics);
        assert!(!panics, "this test requested a panic");
        self.call(false, |inside| {
            Ok(MachineView {
                last_reset: None,
                power: if inside.hides_power { PowerState::Unknown } else { inside.power.unwrap() },
                boot_progress: None,
                boot: Some(inside.boot.clone()),
                boot_unclear: false,
                health: None,
                description: crate::maintenance::machine::MachineDescription::default(),
            })
        })
        .await
    }
    async fn capabilities(&self) -> Result<Capabilities, BackendError> {
        Ok(Capabilities {
            resets: vec![ResetType::On, ResetType::ForceOff, ResetType::GracefulShutdown],
            boot_targets: vec!["None".into(), "Pxe".into(), "Cd".into()],
            ..Capabilities::default()
        })
    }
}

#[derive(Debug)]
struct OneMachine(Arc<FakeMachine>);

#[async_trait]
impl Backend for OneMachine {
    fn servers(&self) -> Vec<String> {
        vec!["node".into()]
    }
    fn machine(&self, _server: &str) -> Result<Arc<dyn Machine>, BackendError> {
        Ok(Arc::clone(&self.0) as _)
    }
    async fn location(&self, _server: &str) -> Result<Location, BackendError> {
        Ok(Location::direct("redfish"))
    }
    async fn close(&self) {}
}

#[derive(Debug, Default)]
struct FakeProbe {
    image: Mutex<Option<ProbeError>>,
    /// The image host sends data without end.
    drips: AtomicBool,
}

#[async_trait]
impl Probe for FakeProbe {
    async fn check_image(&self, _url: &str, _sha256: Option<&str>) -> Result<(), ProbeError> {
        if self.drips.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.image.lock().unwrap().clone().map_or(Ok(()), Err)
    }
    async fn check_status(&self, _url: &str, _status: u16) -> Result<(), ProbeError> {
        Ok(())
    }
}

/// A machine, a store and a clock for processes that come and go.
#[derive(Clone)]
struct World {
    machine: Arc<FakeMachine>,
    store: Arc<MemoryStore>,
    clock: Arc<SimulatedClock>,
    probe: Arc<FakeProbe>,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(SimulatedClock::starting_at("2026-11-21T10:00:00Z".parse().unwrap()));
        Self {
            machine: FakeMachine::on(),
            store: Arc::new(MemoryStore::new(clock.clone())),
            clock,
            probe: Arc::default(),
        }
    }

    fn process(&self, name: &str) -> Engine {
        self.process_on(name, self.store.clone())
    }

    fn process_on(&self, name: &str, store: Arc<dyn Store>) -> Engine {
        self.process_with(name, store, Tuning::default())
    }

    fn process_with(&self, name: &str, store: Arc<dyn Store>, tuning: Tuning) -> Engine {
        Engine::new(Parts {
            store,
            backend: Arc::new(OneMachine(self.machine.clone())),
            probe: self.probe.clone(),
            clock: self.clock.clone(),
            runner: Runner::new(uuid::Uuid::new_v4().to_string(), name, name, 1),
            owner: "tests".into(),
            windows: std::collections::BTreeMap::new(),
            always_perform: false,
            nodes: super::Nodes::default(),
            gates: Vec::new(),
            tuning,
        })
    }
}

/// Returns the only record.
async fn only(world: &World) -> Maintenance {
    world.store.view_all().await.unwrap().remove(0).lock.active[0].clone().into_inner()
}

fn control() -> Control {
    Control {
        stop: CancellationToken::new(),
        timeout: Duration::from_hours(1),
        release_timeout: Duration::from_mins(30),
    }
}

fn spec() -> Spec {
    Spec::new(MaintenanceKind::Maintenance, "node")
}

const IMAGE: &str = "http://images/rescue.iso";

fn boots_rescue() -> Spec {
    Spec {
        server_power: Some(PowerTarget::On),
        boot: Some(BootSpec { image: Some(IMAGE.into()), ..BootSpec::new(BootMethod::VirtualMedia) }),
        ..spec()
    }
}

fn wish(name: &str, spec: Spec) -> MaintenanceRequest {
    MaintenanceRequest {
        id: MaintenanceId::new("ops", name).unwrap(),
        spec,
        wait_for: WaitFor::InMaintenance,
        asking: AskingState::default(),
    }
}

async fn release(engine: &Engine, driven: &ReconcileResult) -> ReconcileResult {
    engine.release(&driven.record.uid, "node", Ending::Completed, &control()).await.unwrap().unwrap()
}

fn assert_as_before(machine: &FakeMachine) {
    machine.with(|inside| {
        assert_eq!(inside.power, Some(PowerState::On));
        assert_eq!(inside.boot.enabled.as_raw(), Some("Disabled"));
        assert_eq!(inside.boot.target.as_raw(), Some("None"));
        assert_eq!(inside.image, None);
        assert!(!inside.ejected_while_on, "a running installer lost its medium");
        assert_eq!(inside.booted_from.last().map(String::as_str), Some("disk"));
    });
}

#[tokio::test(start_paused = true)]
async fn a_server_is_held_booted_and_given_back() {
    let world = World::new();
    let engine = world.process("alice");
    let driven = engine.hold(&wish("rescue", boots_rescue()), &control()).await.unwrap();
    assert_eq!(driven.finish, Finish::Reached);
    assert!(matches!(driven.record.phase, Phase::InMaintenance { .. }));
    assert_eq!(driven.record.prior.as_ref().unwrap().power, PowerState::On);
    world.machine.with(|inside| assert_eq!(inside.booted_from, [IMAGE]));
    let released = release(&engine, &driven).await;
    assert_eq!(released.finish, Finish::Over);
    assert_as_before(&world.machine);
    let view = world.store.view(&driven.record.lock_key).await.unwrap();
    assert_eq!(view.lock.slot, None);
    assert!(view.lock.generation >= 2, "the generation survives the release");
}

#[tokio::test(start_paused = true)]
async fn a_plain_hold_does_nothing_to_the_server() {
    let world = World::new();
    let engine = world.process("alice");
    let driven = engine.hold(&wish("look", spec()), &control()).await.unwrap();
    release(&engine, &driven).await;
    world.machine.with(|inside| {
        assert_eq!(inside.resets, []);
        assert_eq!(inside.power, Some(PowerState::On));
    });
}

/// Runs to the given machine call, dies there, and another process finishes.
async fn dies_at(call: usize, after: bool) -> bool {
    let world = World::new();
    *world.machine.hang_at.lock().unwrap() = Some((call, after));
    let first = Arc::new(world.process("first"));
    let doomed = {
        let first = first.clone();
        tokio::spawn(async move { first.hold(&wish("rescue", boots_rescue()), &control()).await.map(|d| d.finish) })
    };
    while !doomed.is_finished() && !world.machine.hangs.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let reached = doomed.is_finished();
    if !reached {
        doomed.abort();
        first.lease.resign().await;
    }
    *world.machine.hang_at.lock().unwrap() = None;
    let second = world.process("second");
    let driven = second.hold(&wish("rescue", boots_rescue()), &control()).await.unwrap();
    assert_eq!(driven.finish, Finish::Reached, "died at call {call}, after: {after}");
    assert!(matches!(driven.record.phase, Phase::InMaintenance { .. }));
    world.machine.with(|inside| {
        let forced = inside.resets.iter().filter(|reset| **reset == ResetType::ForceOff).count();
        let on = inside.resets.iter().filter(|reset| **reset == ResetType::On).count();
        let graceful = inside.resets.len() - forced - on;
        assert!(graceful <= 1, "died at call {call}, after: {after}: {:?}", inside.resets);
        assert_eq!(on, 1, "died at call {call}, after: {after}: {:?}", inside.resets);
        assert_eq!(inside.booted_from, [IMAGE], "died at call {call}, after: {after}");
    });
    assert_eq!(release(&second, &driven).await.finish, Finish::Over);
    assert_as_before(&world.machine);
    !reached
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_at_any_call_is_continued_by_the_next() {
    for after in [false, true] {
        let mut call = 1;
        while dies_at(call, after).await {
            call += 1;
        }
        assert!(call > 12, "only {call} calls were walked");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_causes_no_second_reset() {
    for lost in 0..4 {
        let world = World::new();
        let engine = world.process("alice");
        let machine = world.machine.clone();
        let watcher = tokio::spawn(async move {
            // Lose the reply to the mutation that follows `lost` others.
            loop {
                let seen = machine.with(|i| {
                    i.resets.len()
                        + usize::from(i.image.is_some())
                        + usize::from(i.boot.enabled.as_raw() == Some("Once"))
                });
                if seen == lost {
                    machine.with(|i| i.lose_reply = true);
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let driven = engine.hold(&wish("rescue", boots_rescue()), &control()).await.unwrap();
        assert_eq!(driven.finish, Finish::Reached, "{lost}");
        world.machine.with(|i| assert_eq!(i.resets, [ResetType::GracefulShutdown, ResetType::On], "{lost}"));
        watcher.abort();
        release(&engine, &driven).await;
        assert_as_before(&world.machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_system_that_does_not_shut_down_is_forced_after_the_deadline() {
    let world = World::new();
    world.machine.with(|inside| inside.ignores_graceful = true);
    let engine = world.process("alice");
    let off = Spec { server_power: Some(PowerTarget::Off), ..spec() };
    let began = Instant::now();
    let driven = engine.hold(&wish("off", off), &control()).await.unwrap();
    assert_eq!(driven.finish, Finish::Reached);
    assert!(began.elapsed() >= Tuning::default().limits.graceful_shutdown);
    world.machine.with(|i| assert_eq!(i.resets, [ResetType::GracefulShutdown, ResetType::ForceOff]));
}

#[tokio::test(start_paused = true)]
async fn the_second_waits_for_the_first_and_then_gets_the_server() {
    let world = World::new();
    let (first, second) = (world.process("first"), Arc::new(world.process("second")));
    let held = first.hold(&wish("one", spec()), &control()).await.unwrap();
    let waiting = {
        let second = second.clone();
        tokio::spawn(async move { second.hold(&wish("two", spec()), &control()).await.unwrap() })
    };
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(!waiting.is_finished());
    let calls = world.machine.calls.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(world.machine.calls.load(Ordering::SeqCst), calls, "a waiter does not read the BMC");
    let queue = first.queue().await.unwrap();
    assert!(queue[1].waiting_for.as_ref().unwrap().contains("1 ahead: ops/one"), "{:?}", queue[1]);
    release(&first, &held).await;
    let second = waiting.await.unwrap();
    assert_eq!(second.finish, Finish::Reached);
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_waiting_leaves_the_queue() {
    let world = World::new();
    let (first, second) = (world.process("first"), Arc::new(world.process("second")));
    first.hold(&wish("one", spec()), &control()).await.unwrap();
    let control = control();
    let stop = control.stop.clone();
    let waiting = {
        let second = second.clone();
        tokio::spawn(async move { second.hold(&wish("two", spec()), &control).await.unwrap() })
    };
    tokio::time::sleep(Duration::from_secs(30)).await;
    let began = Instant::now();
    stop.cancel();
    assert_eq!(waiting.await.unwrap().finish, Finish::Withdrawn);
    assert!(began.elapsed() < Duration::from_secs(1));
    assert_eq!(first.queue().await.unwrap().len(), 1);
}

thread_local! {
    /// This thread's token to cancel, and the log text that triggers it.
    static STOPPED_BY: RefCell<Option<(CancellationToken, &'static str)>> = const { RefCell::new(None) };
}

/// Stops a run when it logs a wait: after the decision, before the wait.
struct StopsWhenSaid;

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for StopsWhenSaid {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let Some((token, text)) = STOPPED_BY.with_borrow(Clone::clone) else { return };
        let mut stop_if = |_: &tracing::field::Field, said: &dyn std::fmt::Debug| {
            if format!("{said:?}").contains(text) {
                token.cancel();
            }
        };
        event.record(&mut stop_if);
    }
}

/// Cancels the token at this text in the thread's log. The subscriber is global: with a subscriber
/// per thread, another thread's first use of a log line would disable that line for all.
fn stop_when_said(token: CancellationToken, text: &'static str) {
    use tracing_subscriber::layer::SubscriberExt as _;
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let subscriber = tracing_subscriber::registry().with(StopsWhenSaid);
        tracing::subscriber::set_global_default(subscriber).unwrap();
    });
    STOPPED_BY.set(Some((token, text)));
}

#[tokio::test(start_paused = true)]
async fn a_stop_between_the_decision_to_wait_and_the_wait_is_seen() {
    let world = World::new();
    let (first, second) = (world.process("first"), world.process("second"));
    first.hold(&wish("one", spec()), &control()).await.unwrap();
    let control = control();
    stop_when_said(control.stop.clone(), "1 ahead");
    let began = Instant::now();
    let stopped = second.hold(&wish("two", spec()), &control).await.unwrap();
    assert!(control.stop.is_cancelled(), "it reported its wait");
    assert_eq!(stopped.finish, Finish::Withdrawn);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_preparing_keeps_the_hold_and_the_next_run_goes_on() {
    let world = World::new();
    let engine = Arc::new(world.process("first"));
    let control_ = control();
    let stop = control_.stop.clone();
    let preparing = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.hold(&wish("rescue", boots_rescue()), &control_).await.unwrap() })
    };
    tokio::time::sleep(Duration::from_secs(2)).await;
    stop.cancel();
    let driven = preparing.await.unwrap();
    assert_eq!(driven.finish, Finish::Interrupted);
    assert!(matches!(driven.record.phase, Phase::Preparing(_)));
    assert_eq!(driven.record.attachment, None);
    let second = world.process("second");
    let driven = second.resume(&driven.record.uid, &wish("rescue", boots_rescue()), &control()).await.unwrap().unwrap();
    assert_eq!(driven.finish, Finish::Reached);
    release(&second, &driven).await;
    assert_as_before(&world.machine);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_fails_after_it_was_accepted_fails_its_step_in_its_own_words() {
    let (address, request) = ("fake".to_owned(), "POST reset".to_owned());
    let failed = BackendError::TaskFailed {
        address: address.clone().into(),
        request: request.clone().into(),
        message: "task Exception: the fan tray is missing".into(),
        nothing_changed: false,
    };
    // Its progress is unknown, so it is not sent again either.
    let unknown = BackendError::OutcomeUnknown {
        address: address.into(),
        request: request.into(),
        answer: "the fan tray is missing".into(),
    };
    for late in [failed, unknown] {
        let world = World::new();
        let engine = world.process("alice");
        world.machine.with(|inside| {
            inside.ignores_power = true;
            inside.late_answer = Some(late);
        });
        let began = Instant::now();
        let off = Spec { server_power: Some(PowerTarget::Off), ..spec() };
        let failed = engine.hold(&wish("m", off), &control()).await.unwrap();
        let Phase::Failed { cause, .. } = &failed.record.phase else { panic!("{:?}", failed.record.phase) };
        assert!(cause.shown().contains("the fan tray is missing"), "{cause}");
        let taken = began.elapsed();
        assert!(taken < Duration::from_mins(1), "the failure waited until the shutdown timed out: {taken:?}");
        assert_eq!(world.machine.power(), PowerState::On);
        let sent = [ResetType::GracefulShutdown, ResetType::ForceOff];
        world.machine.with(|inside| assert_eq!(inside.resets, sent, "each way once"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_for_good_gives_the_server_back() {
    let world = World::new();
    world.machine.with(|inside| inside.refuse_boot = Some("not writable".into()));
    let engine = world.process("alice");
    let driven = engine.hold(&wish("rescue", boots_rescue()), &control()).await.unwrap();
    assert_eq!(driven.finish, Finish::Over);
    let Phase::Failed { cause, .. } = &driven.record.phase else { panic!("{:?}", driven.record.phase) };
    assert!(cause.shown().contains("not writable"), "{cause}");
    assert_as_before(&world.machine);
    assert!(engine.queue().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_image_host_that_never_ends_holds_a_server_no_longer_than_the_time_limit() {
    let world = World::new();
    let engine = world.process("alice");
    world.probe.drips.store(true, Ordering::SeqCst);
    let limit = Control { timeout: Duration::from_secs(25), ..control() };
    let began = Instant::now();
    let driven = engine.hold(&wish("rescue", boots_rescue()), &limit).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let Phase::Failed { cause, .. } = &driven.record.phase else { panic!("{:?}", driven.record.phase) };
    assert!(cause.shown().contains("timeouts.create ended at step"), "{cause}");
    world.machine.with(|inside| assert_eq!(inside.resets, []));

    // A change to a held maintenance is rejected in the same way, and the server stays locked.
    world.probe.drips.store(false, Ordering::SeqCst);
    let held = engine.hold(&wish("rescue", spec()), &control()).await.unwrap();
    world.probe.drips.store(true, Ordering::SeqCst);
    let changed = engine.resume(&held.record.uid, &wish("rescue", boots_rescue()), &limit).await.unwrap().unwrap();
    let Finish::NotUpdated { cause, .. } = &changed.finish else { panic!("{:?}", changed.finish) };
    assert!(cause.raw().contains("timeouts.update ended before it began"), "{cause}");
    assert!(matches!(changed.record.phase, Phase::InMaintenance { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_missing_image_is_found_before_the_server_is_touched() {
    let world = World::new();
    *world.probe.image.lock().unwrap() =
        Some(ProbeError::Status { url: IMAGE.into(), found: 404, expected: "200".into() });
    let engine = world.process("alice");
    let driven = engine.hold(&wish("rescue", boots_rescue()), &control()).await.unwrap();
    assert!(matches!(driven.record.phase, Phase::Failed { .. }));
    world.machine.with(|inside| assert_eq!(inside.resets, []));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_put_back_stays_held_and_the_next_destroy_resumes() {
    let world = World::new();
    let engine = world.process("alice");
    let driven = engine.hold(&wish("rescue", boots_rescue()), &control()).await.unwrap();
    world.machine.with(|inside| inside.deaf = true);
    let limited = Control { timeout: Duration::from_mins(1), ..control() };
    let stuck = engine.release(&driven.record.uid, "node", Ending::Completed, &limited).await;
    let lines = engine.queue().await.unwrap();
    assert_eq!(lines[0].state, "Releasing", "{stuck:?}");
    assert!(lines[0].stuck.is_some());
    world.machine.with(|inside| inside.deaf = false);
    assert_eq!(release(&engine, &driven).await.finish, Finish::Over);
    assert_as_before(&world.machine);
}

#[tokio::test(start_paused = true)]
async fn a_release_by_force_fences_the_holder_and_restores() {
    let world = World::new();
    let engine = world.process("alice");
    let driven = engine.hold(&wish("rescue", boots_rescue()), &control()).await.unwrap();
    let operator = world.process("carol");
    let wrong = operator.force_release(&driven.record.id, driven.record.generation + 1, "x", None, &control()).await;
    assert!(matches!(wrong, Err(EngineError::Refused(_))), "{wrong:?}");
    let released = operator
        .force_release(&driven.record.id, driven.record.generation, "node needed", None, &control())
        .await
        .unwrap();
    assert_eq!(released.finish, Finish::Over);
    assert_as_before(&world.machine);
    assert!(engine.release(&driven.record.uid, "node", Ending::Completed, &control()).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_release_by_force_while_somebody_prepares_stops_it_before_its_next_step() {
    let world = World::new();
    world.machine.with(|inside| inside.ignores_graceful = true);
    let engine = Arc::new(world.process("alice"));
    let preparing = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.hold(&wish("rescue", boots_rescue()), &control()).await.unwrap() })
    };
    tokio::time::sleep(Duration::from_secs(10)).await;
    let operator = world.process("carol");
    let id = MaintenanceId::new("ops", "rescue").unwrap();
    let seen = operator.active(&id).await.unwrap().generation;
    let released = operator.force_release(&id, seen, "node needed", None, &control()).await.unwrap();
    assert_eq!(released.finish, Finish::Over);
    assert_eq!(preparing.await.unwrap().finish, Finish::Lost);
    world.machine.with(|inside| assert_eq!(inside.resets, [ResetType::GracefulShutdown]));
    assert_eq!(world.machine.power(), PowerState::On);
}

#[tokio::test(start_paused = true)]
async fn an_overdue_hold_is_given_back_by_the_next_in_the_queue() {
    let world = World::new();
    let first = world.process("first");
    let expiring = Spec { expires_after: Some(Duration::from_hours(1)), ..boots_rescue() };
    first.hold(&wish("rescue", expiring), &control()).await.unwrap();
    first.lease.resign().await;
    let second = world.process("second");
    let patient = Control { timeout: Duration::from_hours(3), ..control() };
    let driven = second.hold(&wish("two", spec()), &patient).await.unwrap();
    assert_eq!(driven.finish, Finish::Reached);
    assert_as_before(&world.machine);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_keeps_the_place() {
    let world = World::new();
    let (first, second) = (world.process("first"), world.process("second"));
    let held = first.hold(&wish("one", spec()), &control()).await.unwrap();
    let short = Control { timeout: Duration::from_mins(1), ..control() };
    let driven = second.hold(&wish("two", spec()), &short).await.unwrap();
    assert!(
        matches!(&driven.finish, Finish::TimedOut(reason) if reason.raw().contains("ops/one")),
        "{:?}",
        driven.finish
    );
    let ticket = driven.record.ticket_number;
    release(&first, &held).await;
    let driven = second.hold(&wish("two", spec()), &control()).await.unwrap();
    assert_eq!((driven.finish, driven.record.ticket_number), (Finish::Reached, ticket));
}

#[tokio::test(start_paused = true)]
async fn one_apply_runs_a_whole_maintenance() {
    let world = World::new();
    let engine = Arc::new(world.process("alice"));
    let ends = Spec { complete_when: Some(CompleteWhen::PowerState(PowerTarget::Off)), ..boots_rescue() };
    let whole = MaintenanceRequest { wait_for: WaitFor::Completed, ..wish("rescue", ends) };
    let running = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.hold(&whole, &control()).await.unwrap() })
    };
    tokio::time::sleep(Duration::from_mins(2)).await;
    world.machine.with(|inside| inside.power = Some(PowerState::Off));
    let driven = running.await.unwrap();
    assert_eq!(driven.finish, Finish::Over);
    assert!(matches!(driven.record.phase, Phase::Completed { ending: Ending::CompletedBy(_), .. }));
    assert_as_before(&world.machine);
}

#[tokio::test(start_paused = true)]
async fn a_boot_configuration_acts_under_a_hold_and_goes_before_it() {
    let world = World::new();
    let engine = world.process("alice");
    let hold = engine.hold(&wish("hold", spec()), &control()).await.unwrap();
    let under =
        Spec { kind: MaintenanceKind::BootConfiguration, parent: Some(hold.record.uid.clone()), ..boots_rescue() };
    let boot = engine.hold(&wish("hold.boot", under), &control()).await.unwrap();
    assert_eq!(boot.finish, Finish::Reached);
    world.machine.with(|inside| assert_eq!(inside.booted_from, [IMAGE]));
    // The maintenance is released without destroying the boot configuration first: that is still
    // undone.
    assert_eq!(release(&engine, &hold).await.finish, Finish::Over);
    assert_as_before(&world.machine);
    assert!(engine.release(&boot.record.uid, "node", Ending::Completed, &control()).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_boot_configuration_without_a_hold_frees_the_server_once_it_is_ready() {
    let world = World::new();
    let engine = world.process("alice");
    let alone = Spec { kind: MaintenanceKind::BootConfiguration, ..boots_rescue() };
    let boot = engine.hold(&wish("boot", alone), &control()).await.unwrap();
    assert_eq!(boot.finish, Finish::Reached);
    let other = world.process("bob").hold(&wish("other", spec()), &control()).await.unwrap();
    assert_eq!(other.finish, Finish::Reached, "the slot is free");
    let short = Control { timeout: Duration::from_mins(1), ..control() };
    let refused = engine.release(&boot.record.uid, "node", Ending::Completed, &short).await.unwrap().unwrap();
    assert!(matches!(refused.finish, Finish::TimedOut(_)), "{:?}", refused.finish);
    release(&engine, &other).await;
    assert_eq!(release(&engine, &boot).await.finish, Finish::Over);
    assert_as_before(&world.machine);
}

#[tokio::test(start_paused = true)]
async fn fifty_processes_never_hold_one_server_together() {
    let world = World::new();
    let mut tasks = Vec::new();
    let inside = Arc::new(AtomicUsize::new(0));
    for n in 0..50 {
        let (world, inside) = (world.clone(), inside.clone());
        tasks.push(tokio::spawn(async move {
            let engine = world.process(&format!("p{n}"));
            let driven = engine.hold(&wish(&format!("m{n}"), spec()), &control()).await.unwrap();
            assert_eq!(driven.finish, Finish::Reached);
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
            tokio::time::sleep(Duration::from_secs(20)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            release(&engine, &driven).await;
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}
