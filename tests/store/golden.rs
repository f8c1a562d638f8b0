//! Golden file of format 1: an export with every field of a record.
//!
//! A changed file means a changed format. `GOLDEN=1 cargo test --test store golden` writes it.

use std::{fs, path::PathBuf, time::Duration};

use jiff::{SignedDuration, Timestamp};
use terraform_provider_metal::{
    maintenance::{
        approval::{Approval, Claim, Scope},
        gate::{ExternalSystem, QueueAuthority},
        ids::{Fence, LockKey, Token, Uid},
        invariants::violations,
        lock::{EnqueueRequest, Leases, ServerLock},
        machine::{BootMode, BootOverride, Ignition, MediaSlot, PowerState, PowerTarget, ResetType},
        node::{NodeLease, NodeWish},
        operate::{CompletionProof, OperationSpec, WhenOff},
        spec::{BootMethod, BootSpec, CompleteWhen, MaintenanceKind, Policy, Spec, UrlCheck},
        state::{Ending, Maintenance, Phase, PriorState, Progress},
        step::{Action, Attempt, Step},
        window::{OnClose, WindowSpec},
    },
    store::{Contents, MemoryStore, Store as _},
};

use crate::{
    bench::HandClock,
    records::{id, key, request, runner},
};

fn file() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/store/golden.json"))
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// A specification with every field set.
fn full() -> Spec {
    Spec {
        policy: Policy::OwnerApproval,
        require_claim: true,
        escalate_after: Some(Duration::from_hours(4)),
        node: Some(NodeWish {
            lease: NodeLease { namespace: "medik8s-leases".into(), node: "worker-1".into() },
            take: true,
        }),
        reason: Some("BIOS 2.19 \u{1F512}".into()),
        ticket: Some("OPS-1".into()),
        priority: 7,
        window: Some(WindowSpec {
            schedule: "0 22 * * 1-5".into(),
            duration: Duration::from_hours(6),
            time_zone: "Europe/Berlin".into(),
            exclude: vec!["2026-12-20/2027-01-06".into()],
            exclude_periods: Vec::new(),
            min_remaining: Duration::from_mins(30),
            on_close: OnClose::Release,
        }),
        server_power: Some(PowerTarget::On),
        boot: Some(BootSpec {
            ignition: Some(Ignition::Secret("node-1".into())),
            method: BootMethod::Http,
            image: Some("https://images.example/a.iso?token=1".into()),
            image_sha256: Some("00ff".into()),
            once: true,
            boot_mode: Some(BootMode::Uefi),
            ready_when: Some(UrlCheck { url: "https://ready.example/node-1".into(), status: 204 }),
        }),
        complete_when: Some(CompleteWhen::PowerState(PowerTarget::Off)),
        expires_after: Some(Duration::from_hours(8)),
        triggers: [("run".into(), "1".into())].into(),
        ..Spec::new(MaintenanceKind::Maintenance, "node-1")
    }
}

fn operation() -> Spec {
    let operation =
        OperationSpec { reset: ResetType::ForceRestart, when_off: WhenOff::Error, proof: CompletionProof::Power };
    Spec { operation: Some(operation), ..Spec::new(MaintenanceKind::Operation, "node-2") }
}

fn prior() -> PriorState {
    PriorState {
        power: PowerState::On,
        boot: Some(BootOverride {
            enabled: Some("Disabled".into()),
            target: Some("None".into()),
            mode: Some("UEFI".into()),
            ..BootOverride::default()
        }),
        media: vec![MediaSlot {
            slot: "/redfish/v1/Managers/1/VirtualMedia/Cd".into(),
            media_types: vec!["CD".into(), "DVD".into()],
            image: Some("https://images.example/old.iso".into()),
            inserted: true,
            write_protected: Some(true),
        }],
        recorded_at: at(5),
    }
}

/// A request whose uid derives from its name.
fn asks(name: &str, n: u32, spec: Spec) -> EnqueueRequest {
    EnqueueRequest { uid: Uid::new(format!("uid-{name}")), spec, ..request(name, n) }
}

/// Enqueues and attaches.
fn joins(lock: &mut ServerLock, wish: &EnqueueRequest, leases: &Leases, now: Timestamp) -> (Uid, Fence) {
    let uid = lock.enqueue(wish.clone(), leases, now).unwrap().uid().clone();
    let generation = lock.attach(&uid, wish.runner.clone(), Token::default(), leases, now).unwrap();
    (uid, generation)
}

/// One machine with a hold in the given phase, and its waiters.
fn held(name: &str, phase: Phase) -> ServerLock {
    let mut lock = ServerLock::new(key(name));
    let leases = Leases([(runner(1).id, at(30)), (runner(2).id, at(30))].into());
    let system = ExternalSystem {
        boots: true,
        owners: true,
        ..ExternalSystem::own("metal-operator", QueueAuthority::Theirs, true)
    };
    let claim = Claim {
        uid: Uid::new(format!("claim-{name}")),
        id: id(&format!("claim-{name}")),
        owner: "tenants".into(),
        contact: Some("tenants@example.org".into()),
        server: "node-1".into(),
        since: at(0),
        by: "ada".into(),
    };
    lock.claim(claim, at(0)).unwrap();
    let mut wish = asks(&format!("hold-{name}"), 1, full());
    wish.gates = vec![system];
    wish.runner.run = Some("ci-4711".into());
    let (uid, generation) = joins(&mut lock, &wish, &leases, at(1));
    let digest = lock.get(&uid).unwrap().digest.clone();
    let approval = Approval {
        uid: Uid::new(format!("approval-{name}")),
        scope: Scope::Maintenance { id: wish.id.clone(), digest },
        not_before: Some(at(0)),
        expires: Some(at(1_000_000)),
        at: at(2),
        by: "grace".into(),
        used_by: None,
    };
    lock.approve(approval, "tenants", at(2)).unwrap();
    lock.admit(&uid, generation, phase, at(4)).unwrap();
    lock.update(&uid, generation, |record| {
        record.prior = Some(prior());
        record.booted = true;
        record.started_at = Some(at(9));
        record.last_power = Some(PowerState::On);
    })
    .unwrap();
    joins(
        &mut lock,
        &asks(&format!("waits-{name}"), 2, Spec::new(MaintenanceKind::Maintenance, "node-1")),
        &leases,
        at(20),
    );
    lock
}

/// Every field of a store.
fn everything() -> Contents {
    let action = Action::Reset(ResetType::ForceOff);
    let progress = |step: Step| Progress {
        attempts: vec![Attempt {
            last_reset: Some("2026-11-22T05:00:00Z".into()),
            ..Attempt::intended(action.clone(), at(7))
        }],
        ..Progress::new(vec![Step::RecordPriorState, step], at(6))
    };
    let releasing = Phase::Releasing {
        ending: Ending::Released { by: "ada".into(), reason: "burning".into(), seen: 1 },
        progress: progress(Step::RestorePower),
        stuck: Some("the BMC does not answer".into()),
    };
    let mut locks = vec![
        held("11111111-0000-0000-0000-000000000000", Phase::Preparing(progress(Step::SwitchOff))),
        held("22222222-0000-0000-0000-000000000000", Phase::InMaintenance { since: at(9) }),
        held("33333333-0000-0000-0000-000000000000", releasing),
    ];
    let mut free = ServerLock::new(key("serial:maker/42"));
    let leases = Leases::default();
    let (uid, generation) = joins(&mut free, &asks("operation", 3, operation()), &leases, at(1));
    free.admit(&uid, generation, Phase::Preparing(progress(Step::Operate)), at(2)).unwrap();
    free.prepared(&uid, generation, at(3)).unwrap();
    let (uid, generation) =
        joins(&mut free, &asks("done", 4, Spec::new(MaintenanceKind::Maintenance, "node-2")), &leases, at(4));
    free.admit(&uid, generation, Phase::InMaintenance { since: at(5) }, at(5)).unwrap();
    let over = Phase::Completed { at: at(6), ending: Ending::CompletedBy("ada".into()) };
    free.finish(&uid, generation, &over, at(6)).unwrap();
    locks.push(free);
    let mut contents = Contents { store_id: "5f0c".into(), ..Contents::default() };
    for lock in &mut locks {
        contents.history.append(&mut lock.finished);
        contents.audit.append(&mut lock.events);
    }
    contents.locks = locks;
    contents.bindings = vec![("team/node-1".into(), LockKey::new("11111111-0000-0000-0000-000000000000"))];
    contents
}

fn records(contents: &Contents) -> impl Iterator<Item = &Maintenance> {
    contents.locks.iter().flat_map(|lock| &lock.active).map(|record| &**record).chain(&contents.history)
}

/// Repeats a request from another process, with a new uid and this version's specification.
fn again(record: &Maintenance) -> EnqueueRequest {
    EnqueueRequest {
        uid: Uid::new(format!("again-{}", record.uid)),
        id: record.id.clone(),
        owner: record.owner.clone().into_raw(),
        spec: record.spec.clone(),
        gates: Vec::new(),
        runner: runner(9),
        keeps_place: record.keeps_place,
        location: None,
        asking: terraform_provider_metal::maintenance::lock::AskingState::default(),
    }
}

#[tokio::test]
async fn the_golden_file_of_format_1_is_read_and_means_the_same() {
    let expected = everything();
    let text = format!("{:#}\n", serde_json::to_value(&expected).unwrap());
    if std::env::var_os("GOLDEN").is_some() {
        fs::write(file(), &text).unwrap();
    }
    let golden = fs::read_to_string(file()).unwrap();
    assert_eq!(golden, text, "the format has changed");
    let contents: Contents = serde_json::from_str(&golden).unwrap();
    assert_eq!(violations(&contents.locks, &contents.history), [""; 0]);
    let store = MemoryStore::new(HandClock::new());
    store.fill(&contents).await.unwrap();
    for record in records(&contents) {
        assert_eq!(store.find_uid(&record.uid).await.unwrap().unwrap().record(), record);
        // An approval refers to the digest, and a state contains it.
        assert_eq!(record.digest, record.spec.digest(), "{}", record.id);
    }
    for mut lock in contents.locks {
        let now = at(0) + SignedDuration::from_hours(1);
        for record in lock.active.clone() {
            let found = lock.enqueue(again(&record), &Leases::default(), now);
            assert_eq!(found.unwrap().uid(), &record.uid, "the request is found again");
        }
    }
}
