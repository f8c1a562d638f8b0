//! An approval and a window cover the admitted actions. Changed actions need both again, in every
//! phase in which a specification can change.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod records;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use maintenance_protocol::{
    approval::{Approval, Claim, Scope, asked},
    change::{Applied, LockChange, Moment, RecordChange},
    forecast::{Coming, Forecast, Outlook, Run, SeenServer, Start, forecast},
    ids::{Fence, Uid},
    lock::{EnqueueRequest, Leases, ServerLock},
    machine::{BootOverride, Capabilities, MachineView, PowerState, PowerTarget, ResetType},
    model::verdict::Limits,
    spec::{BootMethod, BootSpec, Policy, Spec},
    state::{Maintenance, Phase, PriorState},
    window::{OnClose, WindowSpec},
};

use records::{AGING, id, key, request, runner, spec, token};

fn now() -> Timestamp {
    "2026-11-21T10:30:00Z".parse().unwrap()
}

fn only_locks() -> Spec {
    Spec { policy: Policy::OwnerApproval, ..spec() }
}

fn boots() -> Spec {
    Spec { server_power: Some(PowerTarget::On), boot: Some(BootSpec::new(BootMethod::Pxe)), ..only_locks() }
}

fn switches_off() -> Spec {
    Spec { server_power: Some(PowerTarget::Off), ..only_locks() }
}

fn server() -> SeenServer {
    let boot = BootOverride {
        enabled: Some("Disabled".into()),
        target: Some("None".into()),
        mode: Some("UEFI".into()),
        ..BootOverride::default()
    };
    let capabilities = Capabilities {
        resets: vec![ResetType::On, ResetType::ForceOff],
        boot_targets: vec!["None".into(), "Pxe".into()],
        ..Capabilities::default()
    };
    SeenServer {
        machine: Some(MachineView { power: PowerState::On, boot: Some(boot), ..MachineView::default() }),
        media: Some(Vec::new()),
        capabilities: Some(capabilities),
    }
}

/// The phase before the change.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reached {
    Preparing,
    Held,
    Changing,
}

struct World {
    lock: ServerLock,
    leases: Leases,
    uid: Uid,
    fence: Fence,
}

impl World {
    /// A claimed server with an approved and admitted `spec`.
    fn new(spec: &Spec, reached: Reached) -> Self {
        let mut lock = ServerLock::new(key("k"));
        let claim = Claim {
            uid: Uid::new("claim"),
            id: id("claim"),
            owner: "team-db".into(),
            contact: Some("#db".into()),
            server: "node-1".into(),
            since: now(),
            by: "db".into(),
        };
        lock.claim(claim, now()).unwrap();
        let mut leases = Leases::default();
        leases.0.insert(runner(1).id, Timestamp::MAX);
        let mut world =
            Self { lock, leases, uid: Uid::new(String::new()), fence: Fence { generation: 0, token: token() } };
        world.approve(spec);
        let request = EnqueueRequest { spec: spec.clone(), ..request("m", 1) };
        let entered = world.apply(&LockChange::Enqueue { request: &request, claims: &[], token: token() });
        let Applied::Enqueued { uid, fence: Some(fence), .. } = entered else { panic!("{entered:?}") };
        (world.uid, world.fence) = (uid, fence);
        let steps = maintenance_protocol::prepare::steps(spec, &[]);
        let begun = Phase::Preparing(maintenance_protocol::state::Progress::new(steps, now()));
        assert_eq!(world.change(&RecordChange::Admit(begun)), Applied::Done);
        let seen = server().machine.unwrap();
        let prior = PriorState { power: seen.power, boot: seen.boot, media: Vec::new(), recorded_at: now() };
        world.change(&RecordChange::Prior(Box::new(prior)));
        if reached != Reached::Preparing {
            world.change(&RecordChange::Prepared);
        }
        if reached == Reached::Changing {
            world.approve(&switches_off());
            world.change(&RecordChange::Respecify(Box::new(switches_off())));
            assert_eq!(world.change(&RecordChange::BeginUpdate), Applied::Done);
        }
        world.change(&RecordChange::Detach);
        world
    }

    fn apply(&mut self, change: &LockChange<'_>) -> Applied {
        let at = Moment { leases: &self.leases, now: now(), aging: AGING, limits: &Limits::default() };
        self.lock.apply(change, &at).unwrap()
    }

    fn change(&mut self, change: &RecordChange) -> Applied {
        let (uid, fence) = (self.uid.clone(), self.fence);
        self.apply(&LockChange::Driven { uid: &uid, fence, change })
    }

    fn approve(&mut self, spec: &Spec) {
        self.allow(Scope::Maintenance { id: id("m"), digest: spec.digest().into() });
    }

    fn allow(&mut self, scope: Scope) {
        let uid = Uid::new(format!("approval-{}", self.lock.events.len()));
        let approval =
            Approval { uid, scope, not_before: None, expires: None, at: now(), by: "db".into(), used_by: None };
        self.lock.approve(approval, "team-db", now()).unwrap();
    }

    fn changes_to(&self, spec: &Spec, at: Timestamp) -> Forecast {
        let limits = Limits::default();
        let start = Start { lock: &self.lock, leases: &self.leases, now: at, aging: AGING, limits: &limits };
        forecast(&start, &Run::Change(&self.uid, spec), &runner(2), server())
    }

    fn record(&self) -> &Maintenance {
        self.lock.get(&self.uid).unwrap()
    }
}

fn calls(forecast: &Forecast) -> usize {
    forecast.steps.iter().filter(|step| matches!(step, Coming::Calls(_))).count()
}

#[test]
fn an_approval_covers_the_approved_actions_and_no_others() {
    for reached in [Reached::Preparing, Reached::Held, Reached::Changing] {
        for from in [only_locks(), switches_off()] {
            let world = World::new(&from, reached);
            let refused = world.changes_to(&boots(), now());
            let Outlook::Waits(why) = &refused.outlook else { panic!("{reached:?} {from:?}: {refused:?}") };
            assert!(why.contains("waiting for approval by team-db (contact: #db)"), "{why}");
            assert_eq!(refused.steps, [], "{reached:?}: nothing is sent to the server");
            // The owner receives the changed request and its digest.
            let (lock, ..) = refused.entered.unwrap();
            let pending = asked(&lock, now());
            assert_eq!(pending.len(), 1, "{reached:?}");
            assert_eq!((pending[0].digest.raw(), pending[0].allowed), (boots().digest().as_str(), false));
            assert!(pending[0].effect.shown().contains("boots by pxe"), "{}", pending[0].effect);

            for all in [false, true] {
                let mut world = World::new(&from, reached);
                if all {
                    world.allow(Scope::All);
                } else {
                    world.approve(&boots());
                }
                let begun = world.changes_to(&boots(), now());
                assert!(matches!(begun.outlook, Outlook::Finished(_)), "{reached:?}: {begun:?}");
                assert!(calls(&begun) > 0);
            }
        }
    }
}

#[test]
fn other_words_and_the_same_actions_need_no_further_approval() {
    for reached in [Reached::Preparing, Reached::Held] {
        for from in [only_locks(), switches_off()] {
            let world = World::new(&from, reached);
            let worded = Spec { reason: Some("BIOS 2.19".into()), ..from.clone() };
            let changed = world.changes_to(&worded, now());
            assert!(matches!(changed.outlook, Outlook::Finished(_)), "{reached:?}: {changed:?}");
        }
    }
}

#[test]
fn an_approval_that_is_withdrawn_before_the_change_begins_does_not_count() {
    let mut world = World::new(&only_locks(), Reached::Held);
    world.approve(&boots());
    let attached = world.apply(&LockChange::Attach {
        uid: &world.uid.clone(),
        runner: &runner(1),
        token: token(),
        state: "",
        owner: None,
    });
    let Applied::Attached { fence, .. } = attached else { panic!("{attached:?}") };
    world.fence = fence;
    world.change(&RecordChange::Respecify(Box::new(boots())));
    let approval = world.lock.ownership.approvals.last().unwrap().uid.clone();
    assert!(world.lock.withdraw_approval(&approval, "db", now()));
    let before = world.lock.clone();
    assert_eq!(world.change(&RecordChange::BeginUpdate), Applied::Outdated);
    assert_eq!(world.lock, before);
    assert!(matches!(world.record().phase, Phase::InMaintenance { .. }));
}

#[test]
fn a_change_of_the_actions_waits_for_the_window() {
    let window = WindowSpec {
        schedule: "0 10 * * *".into(),
        duration: Duration::from_hours(1),
        time_zone: "UTC".into(),
        exclude: Vec::new(),
        exclude_periods: Vec::new(),
        min_remaining: Duration::ZERO,
        on_close: OnClose::Finish,
    };
    let within = |spec: Spec| Spec { policy: Policy::Enforced, window: Some(window.clone()), ..spec };
    let closed = now() + SignedDuration::from_hours(2);
    for reached in [Reached::Preparing, Reached::Held] {
        let world = World::new(&within(only_locks()), reached);
        let open = world.changes_to(&within(boots()), now());
        assert!(matches!(open.outlook, Outlook::Finished(_)), "{reached:?}: {open:?}");
        let later = world.changes_to(&within(boots()), closed);
        let Outlook::Waits(why) = &later.outlook else { panic!("{reached:?}: {later:?}") };
        assert!(why.contains("waiting for its window, opens"), "{why}");
        assert_eq!(later.steps, []);
        let worded = Spec { reason: Some("why".into()), ..within(only_locks()) };
        let worded = world.changes_to(&worded, closed);
        assert!(matches!(worded.outlook, Outlook::Finished(_)), "{reached:?}: {worded:?}");
    }
}
