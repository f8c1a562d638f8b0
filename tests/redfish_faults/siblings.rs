//! Neighbors behind one BMC: a failing system never blocks another system.
//!
//! A board next to the host is a system without reset (`HGX_Baseboard_0` of NVIDIA). Every failure
//! is tested in each power state, for the creating and the destroying process. A second server
//! behind the BMC has another owner and breaks as well.

use std::sync::Arc;

use bmc_simulator::{
    FaultAction, JournalQuery, MediaPath, Personality, Place, PowerState, Quirks, Reply, RequestView, Simulator,
    SimulatorConfig,
};
use futures_util::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, join},
    stream,
};
use terraform_provider_metal::{
    clock::{Clock, SystemClock},
    store::{MemoryStore, Store},
};

use crate::{
    AT_ONCE, TRIES,
    bench::{Bench, reached},
    faults::Kind,
    flows::Flow,
};

/// The flows: each reads and changes other parts of the server.
const FLOWS: [Flow; 3] = [Flow::PowerOff, Flow::VirtualMedia, Flow::ForceRestart];

/// The system next to the server.
const SIBLING: &str = "node2";

/// A board without reset.
#[derive(Debug)]
struct Board;

impl Quirks for Board {
    fn after(&self, request: &RequestView<'_>, reply: &mut Reply) {
        if request.path == format!("/redfish/v1/Systems/{SIBLING}") {
            reply.edit_json(|system| {
                if let Some(fields) = system.as_object_mut() {
                    fields.remove("Actions");
                }
            });
        }
    }
}

/// Returns the sibling's failures.
fn breaks() -> Vec<FaultAction> {
    let add = |place, bytes: &[u8]| FaultAction::Add { place, bytes: bytes.to_vec() };
    let mut breaks: Vec<FaultAction> = Kind::ALL.iter().map(|kind| kind.fault().action).collect();
    breaks.extend([
        FaultAction::Busy { retry_after_seconds: 120 },
        FaultAction::Redirect { location: "https://elsewhere.example/".to_owned() },
        add(Place::Front, b"{\"error\":{\"message\":\"no licence\"}}"),
        add(Place::Inside("Model".to_owned()), b"\xff\r\""),
        add(Place::Back, b"\0"),
    ]);
    breaks
}

/// Two systems behind one BMC, `node1` and [`SIBLING`].
async fn pair(personality: Personality, power: PowerState) -> Arc<Simulator> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut config = SimulatorConfig::with_systems(2).behind_one_bmc().without_tls().with_personality(personality);
    for system in &mut config.systems {
        system.power = power;
    }
    Arc::new(Simulator::start(config).await.unwrap())
}

fn store() -> (Arc<dyn Store>, Arc<dyn Clock>) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    (Arc::new(MemoryStore::new(Arc::clone(&clock))), clock)
}

/// Breaks a system with its manager and its drives.
fn break_system(simulator: &Simulator, name: &str, action: &FaultAction) {
    for folder in ["Systems", "Managers"] {
        let fault = bmc_simulator::Fault::new(action.clone());
        let _ = simulator.inject(fault.on_request("GET", &format!("/redfish/v1/{folder}/{name}*")));
    }
}

/// Plays a flow and returns its problems, including a server that was not reached.
async fn play(bench: &Bench) -> Vec<String> {
    let (held, mut problems) = bench.play_to_end().await;
    let is_refused = bench.flow == Flow::ForceRestart && bench.before.power == PowerState::Off;
    if !is_refused && !reached(&held) {
        problems.push(format!("blocked: {held:?}"));
    }
    problems
}

fn untouched(simulator: &Simulator, name: &str) -> Vec<String> {
    let journal = simulator.journal(&JournalQuery::system(name)).into_iter();
    journal.filter(|entry| entry.applied).map(|entry| format!("changed {} {}", entry.method, entry.path)).collect()
}

/// A case and the function that plays it once.
type Case = (String, Box<dyn Fn() -> BoxFuture<'static, Vec<String>> + Send + Sync>);

/// Plays all cases. A busy computer can exceed the short limits, so a case fails after several
/// tries.
async fn all(cases: Vec<Case>) {
    let tries = async |(name, play): Case| {
        let mut problems = Vec::new();
        for _ in 0..TRIES {
            problems = play().await;
            if problems.is_empty() {
                break;
            }
        }
        (!problems.is_empty()).then(|| format!("{name}:\n  {}", problems.join("\n  ")))
    };
    let wrong: Vec<String> = stream::iter(cases)
        .map(tries)
        .buffer_unordered(AT_ONCE / 3)
        .filter_map(|wrong| async { wrong })
        .collect()
        .await;
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

async fn host_of_board(flow: Flow, power: PowerState, action: FaultAction) -> Vec<String> {
    let personality = Personality { quirks: Some(Arc::new(Board)), ..Personality::generic() };
    let simulator = pair(personality, power).await;
    break_system(&simulator, SIBLING, &action);
    let (store, clock) = store();
    let bench = Bench::behind(flow, &simulator, "node1", &store, &clock);
    let mut problems = play(&bench).await;
    problems.extend(untouched(&simulator, SIBLING));
    if !problems.is_empty() {
        problems.push(bench.story());
    }
    problems
}

async fn neighbors(flow: Flow, power: PowerState, action: FaultAction) -> Vec<String> {
    let simulator = pair(Personality::generic(), power).await;
    let (store, clock) = store();
    let of = |name: &str, owner| Bench::behind(flow, &simulator, name, &store, &clock).of_owner(owner);
    let (ours, theirs) = (of("node1", "team-a"), of(SIBLING, "team-b"));
    // Both run in parallel, and their neighbors work.
    let (mut problems, more) = join(play(&ours), play(&theirs)).await;
    problems.extend(more);
    let changed = untouched(&simulator, SIBLING).len();
    break_system(&simulator, SIBLING, &action);
    problems.extend(play(&of("node1", "team-a")).await);
    if untouched(&simulator, SIBLING).len() != changed {
        problems.push("the neighbor was changed".to_owned());
    }
    if !problems.is_empty() {
        problems.push(ours.story());
    }
    problems
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_board_that_fails_never_blocks_its_host() {
    let mut cases: Vec<Case> = Vec::new();
    for power in [PowerState::On, PowerState::Off] {
        for flow in FLOWS {
            for action in breaks() {
                let name = format!("{flow:?} from {power}, board: {action:?}");
                cases.push((name, Box::new(move || host_of_board(flow, power, action.clone()).boxed())));
            }
        }
    }
    all(cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_of_another_owner_that_fails_never_blocks_its_neighbor() {
    let mut cases: Vec<Case> = Vec::new();
    for power in [PowerState::On, PowerState::Off] {
        for (n, action) in breaks().into_iter().enumerate() {
            let flow = FLOWS[n % 2];
            let name = format!("{flow:?} from {power}, neighbor: {action:?}");
            cases.push((name, Box::new(move || neighbors(flow, power, action.clone()).boxed())));
        }
    }
    all(cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_drive_that_two_servers_share_is_never_filled() {
    let mut personality = Personality::generic();
    personality.media.offered_under = vec![MediaPath::Manager];
    personality.media.shared = true;
    let simulator = pair(personality, PowerState::On).await;
    let (store, clock) = store();
    let of = |flow, name: &str, owner| Bench::behind(flow, &simulator, name, &store, &clock).of_owner(owner);
    for (name, owner) in [("node1", "team-a"), (SIBLING, "team-b")] {
        let (held, problems) = of(Flow::VirtualMedia, name, owner).play_to_end().await;
        assert!(!reached(&held), "{held:?}");
        let told = format!("{held:?}");
        assert!(told.contains("shared") && told.contains("method"), "{told}");
        assert!(problems.iter().all(|problem| problem.starts_with(crate::judge::MISSED)), "{problems:?}");
        assert_eq!(untouched(&simulator, name), Vec::<String>::new());
    }
    // A medium that a person inserts for one server survives the other's maintenance.
    let insert =
        bmc_simulator::InsertChange { device: "Cd".to_owned(), image: "http://images.example/theirs.iso".to_owned() };
    let theirs = bmc_simulator::SystemChange { insert: Some(insert), ..bmc_simulator::SystemChange::default() };
    let other = of(Flow::PowerOff, SIBLING, "team-b");
    simulator.change_system("node1", theirs).unwrap();
    assert_eq!(play(&other).await, Vec::<String>::new());
    let journal = simulator.journal(&JournalQuery::default());
    assert!(!journal.iter().any(|entry| entry.path.contains("Media.EjectMedia")), "the neighbor's medium was ejected");
}
