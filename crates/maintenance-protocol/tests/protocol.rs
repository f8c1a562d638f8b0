//! Invariants of the lock protocol under any order of events.
#![allow(
    clippy::duration_suboptimal_units,
    clippy::too_many_lines,
    reason = "a table of actions reads best in one place"
)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod records;

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use maintenance_protocol::{
    approval::{Approval, Claim, Consent, Scope, consent},
    blocker::{StartBlocker, start_blockers},
    ids::{Fence, Runner, RunnerId, Uid},
    invariants::violations,
    lock::{EnqueueRequest, Leases, Refusal, ServerLock},
    machine::PowerState,
    queue::{Turn, WaitReason, turn, waiting},
    spec::{MaintenanceKind, Policy, Spec},
    state::{Ending, Maintenance, Phase, PriorState, Progress},
    step::Step,
    window::{OnClose, WindowSpec},
};
use proptest::prelude::*;

use records::{id, key, request, runner, spec};

const PROCESSES: u32 = 4;
const NAMES: usize = 5;
const TTL: SignedDuration = SignedDuration::from_secs(30);
const AGING: Duration = Duration::from_secs(300);

/// Possible events. Numbers select among existing objects.
#[derive(Clone, Debug)]
enum Event {
    Enqueue {
        process: u32,
        name: usize,
        priority: i64,
        under: bool,
        keeps_place: bool,
        expires: bool,
        asks: Asks,
    },
    Claim,
    Unclaim,
    /// For one record or everything; from and for this many seconds.
    Approve {
        record: usize,
        all: bool,
        from: Option<i64>,
        lasts: Option<i64>,
    },
    WithdrawApproval {
        approval: usize,
    },
    Attach {
        process: u32,
        record: usize,
    },
    Admit {
        record: usize,
        next: usize,
    },
    Barge {
        record: usize,
    },
    RecordPrior {
        record: usize,
    },
    Prepared {
        record: usize,
    },
    BeginRelease {
        record: usize,
    },
    Finish {
        record: usize,
    },
    Detach {
        record: usize,
    },
    Withdraw {
        record: usize,
    },
    Seize {
        process: u32,
        record: usize,
    },
    Fenced {
        past: usize,
        what: usize,
    },
    Crash {
        process: u32,
    },
    Renew {
        process: u32,
    },
    DropAbsent,
    Pass {
        seconds: i64,
    },
}

/// Start conditions of a request.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent conditions")]
struct Asks {
    owner: bool,
    require_claim: bool,
    escalates: bool,
    window: bool,
}

fn asks() -> impl Strategy<Value = Asks> {
    (any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.3), prop::bool::weighted(0.15))
        .prop_map(|(owner, require_claim, escalates, window)| Asks { owner, require_claim, escalates, window })
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let process = 0..PROCESSES;
    let record = 0..16usize;
    let event = prop_oneof![
        6 => (
            process.clone(), 0..NAMES, 0..3i64, prop::bool::weighted(0.2), prop::bool::weighted(0.1), any::<bool>(), asks()
        ).prop_map(
            |(process, name, priority, under, keeps_place, expires, asks)| Event::Enqueue {
                process, name, priority, under, keeps_place, expires, asks
            }
        ),
        4 => Just(Event::Claim),
        1 => Just(Event::Unclaim),
        6 => (record.clone(), prop::bool::weighted(0.4), prop::option::weighted(0.1, 1..300i64), prop::option::weighted(0.3, 1..600i64))
            .prop_map(|(record, all, from, lasts)| Event::Approve { record, all, from, lasts }),
        1 => (0..4usize).prop_map(|approval| Event::WithdrawApproval { approval }),
        8 => (process.clone(), record.clone()).prop_map(|(process, record)| Event::Attach { process, record }),
        8 => (record.clone(), 0..3usize).prop_map(|(record, next)| Event::Admit { record, next }),
        3 => record.clone().prop_map(|record| Event::Barge { record }),
        3 => record.clone().prop_map(|record| Event::RecordPrior { record }),
        3 => record.clone().prop_map(|record| Event::Prepared { record }),
        3 => record.clone().prop_map(|record| Event::BeginRelease { record }),
        3 => record.clone().prop_map(|record| Event::Finish { record }),
        2 => record.clone().prop_map(|record| Event::Detach { record }),
        1 => record.clone().prop_map(|record| Event::Withdraw { record }),
        1 => (process.clone(), record).prop_map(|(process, record)| Event::Seize { process, record }),
        4 => (0..64usize, 0..7usize).prop_map(|(past, what)| Event::Fenced { past, what }),
        2 => process.clone().prop_map(|process| Event::Crash { process }),
        6 => process.prop_map(|process| Event::Renew { process }),
        1 => Just(Event::DropAbsent),
        3 => (1..400i64).prop_map(|seconds| Event::Pass { seconds }),
    ];
    prop::collection::vec(event, 1..120)
}

struct World {
    lock: ServerLock,
    leases: Leases,
    now: Timestamp,
    /// Every attachment that was ever granted.
    rights: Vec<(Uid, Fence)>,
    fenced: HashSet<(Uid, Fence)>,
    tickets: HashSet<u64>,
    priors: HashMap<Uid, PriorState>,
    incarnations: u32,
    /// How often each interesting situation happened, to detect a generator that reaches nothing.
    reached: HashMap<&'static str, u32>,
}

impl World {
    fn new() -> Self {
        Self {
            lock: ServerLock::new(key("k")),
            leases: Leases::default(),
            now: Timestamp::from_second(1_800_000_000).unwrap(),
            rights: Vec::new(),
            fenced: HashSet::new(),
            tickets: HashSet::new(),
            priors: HashMap::new(),
            incarnations: 0,
            reached: HashMap::new(),
        }
    }

    fn pick(&self, n: usize) -> Option<Maintenance> {
        let count = self.lock.active.len();
        self.lock.active.get(n.checked_rem(count)?).map(|record| (**record).clone())
    }

    fn lease_of(&self, id: &RunnerId) -> bool {
        self.leases.0.get(id).is_some_and(|until| *until > self.now)
    }

    fn renew(&mut self, runner: &Runner) {
        self.leases.0.insert(runner.id.clone(), self.now + TTL);
    }

    /// Applies a transition as a store does, and checks that a rejected transition changed nothing.
    fn apply<T>(
        &mut self,
        change: impl FnOnce(&mut ServerLock, &Leases, Timestamp) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut after = self.lock.clone();
        let said = change(&mut after, &self.leases, self.now);
        if said.is_err() {
            assert_eq!(after, self.lock, "a refused transition changed something");
        }
        after.events.clear();
        for ended in after.finished.drain(..) {
            assert!(ended.phase.is_over() && ended.attachment.is_none(), "{ended:?}");
            assert_eq!(ended.prior.as_ref(), self.priors.get(&ended.uid), "the history lost a prior state");
            self.priors.remove(&ended.uid);
        }
        self.lock = after;
        said
    }

    fn attached(&mut self, uid: &Uid, generation: Fence) {
        self.fenced.extend(self.rights.iter().filter(|(other, _)| other == uid).cloned());
        self.rights.push((uid.clone(), generation));
    }

    fn reach(&mut self, what: &'static str) {
        *self.reached.entry(what).or_default() += 1;
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Claim => {
                let claim = Claim {
                    uid: Uid::new(format!("c{}", self.incarnations)),
                    id: id("claim"),
                    owner: "owners".into(),
                    contact: None,
                    server: "node-1".into(),
                    since: self.now,
                    by: "somebody".into(),
                };
                self.incarnations += 1;
                let known = self.lock.ownership.claim.as_ref().map(|claim| claim.uid.clone());
                let uid = self.apply(|lock, _, now| lock.claim(claim, now)).unwrap();
                assert!(known.is_none_or(|known| known == uid), "another owner took a claim over");
            }
            Event::Unclaim => {
                let Some(claim) = self.lock.ownership.claim.clone() else { return };
                assert!(self.apply(|lock, _, now| Ok(lock.unclaim(&claim.uid, "somebody", now))).unwrap());
                assert!(self.lock.ownership.is_empty());
            }
            Event::Approve { record, all, from, lasts } => {
                let Some(record) = self.pick(*record) else { return };
                self.incarnations += 1;
                let scope = if *all {
                    Scope::All
                } else {
                    Scope::Maintenance { id: record.id.clone(), digest: record.digest.clone() }
                };
                let at = |seconds: &i64| self.now + SignedDuration::from_secs(*seconds);
                let approval = Approval {
                    uid: Uid::new(format!("a{}", self.incarnations)),
                    scope,
                    not_before: from.as_ref().map(at),
                    expires: lasts.as_ref().map(|lasts| at(&(lasts + from.unwrap_or(0)))),
                    at: self.now,
                    by: "owners".into(),
                    used_by: None,
                };
                let stranger = self.apply(|lock, _, now| lock.approve(approval.clone(), "strangers", now));
                assert!(stranger.is_err(), "another owner approved");
                let claimed = self.lock.ownership.claim.is_some();
                let said = self.apply(|lock, _, now| lock.approve(approval, "owners", now));
                assert_eq!(said.is_ok(), claimed);
                if claimed {
                    self.reach("approve");
                }
            }
            Event::WithdrawApproval { approval } => {
                let count = self.lock.ownership.approvals.len();
                let Some(uid) = approval.checked_rem(count).map(|n| self.lock.ownership.approvals[n].uid.clone())
                else {
                    return;
                };
                let holder = self.lock.slot.clone();
                assert!(self.apply(|lock, _, now| Ok(lock.withdraw_approval(&uid, "owners", now))).unwrap());
                assert_eq!(self.lock.slot, holder, "a started maintenance continues");
            }
            Event::Enqueue { process, name, priority, under, keeps_place, expires, asks } => {
                self.incarnations += 1;
                let parent = self.lock.slot.as_ref().filter(|_| *under).map(|slot| slot.uid.clone());
                let kind = if parent.is_some() || *name == 0 {
                    MaintenanceKind::BootConfiguration
                } else {
                    MaintenanceKind::Maintenance
                };
                let expires_after = expires.then_some(Duration::from_secs(600));
                let hold_place_for = Duration::from_secs(200);
                // Open for twenty minutes in every hour.
                let window = asks.window.then(|| WindowSpec {
                    schedule: "10 * * * *".into(),
                    duration: Duration::from_mins(20),
                    time_zone: "Europe/Berlin".into(),
                    exclude: Vec::new(),
                    exclude_periods: Vec::new(),
                    min_remaining: Duration::from_mins(5),
                    on_close: OnClose::Release,
                });
                let spec = Spec {
                    kind,
                    parent,
                    priority: *priority,
                    expires_after,
                    hold_place_for,
                    policy: if asks.owner { Policy::OwnerApproval } else { Policy::Enforced },
                    require_claim: asks.owner && asks.require_claim,
                    escalate_after: asks.escalates.then_some(Duration::from_secs(300)),
                    window,
                    ..spec()
                };
                let wish = EnqueueRequest {
                    location: None,
                    gates: Vec::new(),
                    uid: Uid::new(format!("u{}", self.incarnations)),
                    spec,
                    keeps_place: *keeps_place,
                    ..request(&format!("m{name}"), *process)
                };
                self.renew(&wish.runner);
                let new = self.apply(|lock, leases, now| lock.enqueue(wish, leases, now));
                if let Ok(maintenance_protocol::lock::Enqueued::New(uid)) = new {
                    let ticket = self.lock.get(&uid).unwrap().ticket_number;
                    assert!(self.tickets.iter().all(|earlier| *earlier < ticket), "ticket {ticket} is not new");
                    self.tickets.insert(ticket);
                }
            }
            Event::Attach { process, record } => {
                let Some(record) = self.pick(*record) else { return };
                let living = record.attachment.as_ref().is_some_and(|a| self.lease_of(&a.runner.id));
                let taken = self.apply(|lock, leases, now| {
                    lock.attach(&record.uid, runner(*process), records::token(), leases, now)
                });
                assert_eq!(taken.is_err(), living, "attached over a living process, or refused over a dead one");
                if let Ok(generation) = taken {
                    self.attached(&record.uid, generation);
                    self.reach(if record.attachment.is_some() { "take-over" } else { "attach" });
                }
            }
            Event::Seize { process, record } => {
                let Some(record) = self.pick(*record) else { return };
                let wrong = self.apply(|lock, leases, now| {
                    lock.fence_holder(
                        &record.uid,
                        record.generation + 1,
                        runner(*process),
                        records::token(),
                        leases,
                        now,
                    )
                });
                assert!(wrong.is_err(), "seized with an unknown generation");
                let seized = self.apply(|lock, leases, now| {
                    lock.fence_holder(&record.uid, record.generation, runner(*process), records::token(), leases, now)
                });
                let (generation, predecessors) = seized.unwrap();
                // Processes attached to it or its children are fenced and returned.
                assert!(record.attachment.is_none_or(|attachment| predecessors.contains(&attachment)));
                let children = self.lock.active.iter().filter(|child| child.spec.parent.as_ref() == Some(&record.uid));
                assert!(children.clone().all(|child| child.attachment.is_none()), "a child acts on");
                self.attached(&record.uid, generation);
                self.reach("seize");
            }
            Event::Admit { record, next } => {
                let Some(record) = self.pick(*record) else { return };
                if turn(&self.lock, &self.leases, &record.uid, AGING, self.now) != Turn::Yours {
                    return;
                }
                let starts = matches!(record.phase, Phase::Pending) && record.spec.parent.is_none();
                let said = consent(&self.lock, &record, self.now);
                assert!(!starts || said.allows(), "{} starts without its owner's approval", record.id);
                let Some(attachment) = record.attachment else { return };
                let progress = Progress::new(vec![Step::RecordPriorState], self.now);
                let next = match (next, record.phase) {
                    (_, Phase::Releasing { ending, progress, stuck }) => Phase::Releasing { ending, progress, stuck },
                    (0, _) => Phase::InMaintenance { since: self.now },
                    _ => Phase::Preparing(progress),
                };
                let uid = record.uid;
                if self.apply(|lock, _, now| lock.admit(&uid, attachment.fence(), next, now)).is_ok() {
                    self.reach("admit");
                    if let (true, Consent::Given { approval, all, .. }) = (starts, said) {
                        let used = self.lock.ownership.approval(&approval).unwrap().used_by.as_ref() == Some(&uid);
                        assert_eq!(used, !all, "an approval covers one run");
                        self.reach("approved start");
                    }
                }
            }
            Event::Barge { record } => {
                let Some(record) = self.pick(*record) else { return };
                let Some(attachment) = record.attachment.clone() else { return };
                if self.lock.slot.is_none() && record.spec.parent.is_none() || self.lock.has_slot(&record) {
                    return;
                }
                let next = Phase::InMaintenance { since: self.now };
                let refused = self.apply(|lock, _, now| lock.admit(&record.uid, attachment.fence(), next, now));
                assert!(refused.is_err(), "admitted next to the holder");
                self.reach("barge");
            }
            Event::RecordPrior { record } => self.act(*record, |lock, uid, generation, now, priors| {
                let prior = PriorState { power: PowerState::On, boot: None, media: Vec::new(), recorded_at: now };
                lock.update(uid, generation, |record| {
                    record.prior.get_or_insert(prior.clone());
                })?;
                priors.entry(uid.clone()).or_insert(prior);
                Ok(())
            }),
            Event::Prepared { record } => {
                self.act(*record, |lock, uid, generation, now, _| match lock.get(uid).map(|record| &record.phase) {
                    Some(Phase::Preparing(_)) => lock.prepared(uid, generation, now),
                    _ => Ok(()),
                });
            }
            Event::BeginRelease { record } => self.act(*record, |lock, uid, generation, now, _| {
                lock.begin_release(uid, generation, Ending::Completed, Progress::new(vec![Step::Verify], now), now)
            }),
            Event::Finish { record } => self.act(*record, |lock, uid, generation, now, _| {
                assert!(lock.finish(uid, generation, &Phase::Pending, now).is_err());
                lock.finish(uid, generation, &Phase::Completed { at: now, ending: Ending::Completed }, now)
            }),
            Event::Detach { record } => {
                let Some(record) = self.pick(*record) else { return };
                let Some(attachment) = record.attachment else { return };
                self.apply(|lock, _, now| lock.detach(&record.uid, attachment.fence(), now)).unwrap();
                self.fenced.insert((record.uid, attachment.fence()));
            }
            Event::Withdraw { record } => {
                let Some(record) = self.pick(*record) else { return };
                let Some(attachment) = record.attachment else { return };
                let left = self.apply(|lock, _, now| lock.withdraw(&record.uid, attachment.fence(), now));
                assert_eq!(left.is_ok(), matches!(record.phase, Phase::Pending));
            }
            Event::Fenced { past, what } => self.try_fenced(*past, *what),
            Event::Crash { process } => {
                let ended = self.now;
                self.leases.0.entry(runner(*process).id).and_modify(|until| *until = ended.min(*until));
            }
            Event::Renew { process } => self.renew(&runner(*process)),
            Event::DropAbsent => {
                let before = self.lock.clone();
                self.apply(|lock, leases, now| {
                    lock.drop_absent(leases, now);
                    Ok(())
                })
                .unwrap();
                for record in before.active.iter().filter(|record| self.lock.get(&record.uid).is_none()) {
                    let living = record.attachment.as_ref().is_some_and(|a| self.lease_of(&a.runner.id));
                    assert!(!living && matches!(record.phase, Phase::Pending), "dropped {record:?}");
                    self.reached.entry("drop").and_modify(|n| *n += 1).or_insert(1);
                }
            }
            Event::Pass { seconds } => self.now += SignedDuration::from_secs(*seconds),
        }
    }

    /// Acts after a process's check; does nothing if that fails.
    fn act(
        &mut self,
        record: usize,
        change: impl FnOnce(&mut ServerLock, &Uid, Fence, Timestamp, &mut HashMap<Uid, PriorState>) -> Result<(), Refusal>,
    ) {
        let Some(record) = self.pick(record) else { return };
        let Some(attachment) = record.attachment else { return };
        if self.lock.may_act(&record.uid, attachment.fence(), &self.leases, self.now) {
            let mut priors = std::mem::take(&mut self.priors);
            let mut after = self.lock.clone();
            let said = change(&mut after, &record.uid, attachment.fence(), self.now, &mut priors);
            self.priors = priors;
            said.unwrap();
            self.apply(|lock, _, _| {
                *lock = after;
                Ok(())
            })
            .unwrap();
            self.reach("act");
        }
    }

    /// A replaced process returns and tries to continue.
    fn try_fenced(&mut self, past: usize, what: usize) {
        let mut fenced: Vec<_> = self.fenced.iter().cloned().collect();
        fenced.sort();
        let Some((uid, old)) = past.checked_rem(fenced.len()).map(|n| fenced[n].clone()) else { return };
        let said = self.apply(|lock, _, now| {
            let over = Phase::Completed { at: now, ending: Ending::Completed };
            match what {
                0 => lock.update(&uid, old, |record| record.booted = true),
                1 => lock.finish(&uid, old, &over, now),
                2 => lock.detach(&uid, old, now),
                3 => lock.withdraw(&uid, old, now),
                4 => lock.admit(&uid, old, Phase::InMaintenance { since: now }, now),
                5 => lock.prepared(&uid, old, now),
                _ => lock.begin_release(&uid, old, Ending::Completed, Progress::new(Vec::new(), now), now),
            }
        });
        assert!(
            matches!(said, Err(Refusal::Fenced { .. } | Refusal::Gone)),
            "generation {old:?} was accepted: {said:?}"
        );
        self.reach("fenced");
    }

    fn present(&self, record: &Maintenance) -> bool {
        record.attachment.as_ref().is_some_and(|a| self.leases.alive(a, self.now))
    }

    fn check(&self, before: &ServerLock) {
        let wrong = violations(std::slice::from_ref(&self.lock), &[]);
        assert!(wrong.is_empty(), "`store check` would report: {wrong:?}");
        let lock = &self.lock;
        assert!(lock.generation >= before.generation && lock.last_ticket >= before.last_ticket);
        if let Some(slot) = &lock.slot {
            let holder = lock.get(&slot.uid).expect("an ended record is the holder");
            assert!(!matches!(holder.phase, Phase::Pending), "admitted and pending");
            assert!(holder.spec.parent.is_none());
            if let Some(acting) = slot.acting.as_ref().and_then(|acting| lock.get(acting)) {
                assert_eq!(acting.spec.parent.as_ref(), Some(&slot.uid), "acts under another lock");
            }
        }
        if let (Some(old), Some(new)) = (&before.slot, &lock.slot) {
            assert!(old.uid == new.uid || lock.get(&old.uid).is_none(), "the holder lost the lock");
        }
        let acting: Vec<_> = self
            .rights
            .iter()
            .filter(|(uid, generation)| lock.may_act(uid, *generation, &self.leases, self.now))
            .collect();
        assert!(acting.len() <= 1, "two can act: {acting:?}");
        assert!(acting.iter().all(|right| !self.fenced.contains(*right)), "a fenced process can act: {acting:?}");
        for (uid, prior) in &self.priors {
            let record = lock.get(uid).expect("a record with a prior state is lost");
            assert_eq!(record.prior.as_ref(), Some(prior));
        }
        for record in &lock.active {
            assert!(record.generation <= lock.generation && record.ticket_number <= lock.last_ticket);
            if let Some(attachment) = &record.attachment {
                assert_eq!(attachment.generation, record.generation);
            }
        }
        self.check_queue();
    }

    fn check_queue(&self) {
        let order = waiting(&self.lock, AGING, self.now);
        // The order, defined differently: no later record has a higher priority, or the same
        // priority and an earlier ticket.
        let steps = |record: &Maintenance| {
            let age = self.now.as_second() - record.requested_at.as_second();
            record.spec.priority + age / 300
        };
        for (n, later) in order.iter().enumerate() {
            for earlier in &order[..n] {
                let (high, low) = (steps(earlier), steps(later));
                assert!(high > low || high == low && earlier.ticket_number < later.ticket_number);
            }
        }
        let turn_of = |record: &Maintenance| turn(&self.lock, &self.leases, &record.uid, AGING, self.now);
        let kept = |record: &Maintenance| start_blockers(&self.lock, record, self.now);
        let first = order.iter().find(|record| self.present(record) && kept(record).is_empty());
        match (&self.lock.slot, first) {
            (None, Some(first)) => assert_eq!(turn_of(first), Turn::Yours, "the server is free and {} waits", first.id),
            (Some(_), _) => {
                for record in &order {
                    assert_ne!(turn_of(record), Turn::Yours, "{} would go past the holder", record.id);
                }
            }
            _ => {}
        }
        let may_go = order.iter().filter(|record| self.present(record) && turn_of(record) == Turn::Yours);
        assert!(may_go.count() <= 1, "two maintenances are next");
        for record in &order {
            self.check_wait(record, &turn_of(record));
            if let Turn::ReclaimOverdue(uid) = turn_of(record) {
                let holder = self.lock.get(&uid).unwrap();
                assert!(self.lock.has_slot(holder) && holder.is_overdue(self.now) && !self.present(holder));
            }
        }
    }
}

impl World {
    /// Checks that a waiter has a reason to wait and a wake-up time.
    fn check_wait(&self, record: &Maintenance, turn: &Turn) {
        let kept = start_blockers(&self.lock, record, self.now);
        let Turn::Wait { reason, wake } = turn else {
            assert!(kept.is_empty(), "{} starts despite {kept:?}", record.id);
            return;
        };
        assert!(wake.is_none_or(|wake| wake > self.now), "woken in the past");
        match reason {
            WaitReason::NotYet { blockers, .. } => assert!(!blockers.is_empty()),
            WaitReason::Turn { ahead } => assert!(!ahead.is_empty(), "{} waits without a blocker", record.id),
            WaitReason::SameHold { .. } | WaitReason::HoldNotReady { .. } => {}
        }
        for blocker in &kept {
            let ends_by_itself = match blocker {
                StartBlocker::Window { opens, .. } => opens.as_ref().map(|(_, at)| *at),
                StartBlocker::Approval(missing) => missing.escalates_at,
                StartBlocker::Block(block) => Some(block.until),
                StartBlocker::Gate(_) | StartBlocker::Node(..) => None,
            };
            if let Some(at) = ends_by_itself {
                assert!(wake.is_some_and(|wake| wake <= at), "{} sleeps through {at}", record.id);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_protocol_holds(events in events()) {
        let mut world = World::new();
        for event in &events {
            let before = world.lock.clone();
            world.happen(event);
            world.check(&before);
        }
    }
}

/// The property is only as good as the situations that its events reach.
#[test]
fn the_events_reach_what_matters() {
    use proptest::{strategy::ValueTree as _, test_runner::TestRunner};
    let mut chance = TestRunner::deterministic();
    let mut reached: HashMap<&'static str, u32> = HashMap::new();
    for _ in 0..300 {
        let mut world = World::new();
        for event in events().new_tree(&mut chance).unwrap().current() {
            world.happen(&event);
        }
        for (what, count) in world.reached {
            *reached.entry(what).or_default() += count;
        }
    }
    println!("{reached:?}");
    for what in ["attach", "take-over", "seize", "admit", "act", "fenced", "drop", "barge", "approve", "approved start"]
    {
        assert!(reached.get(what).copied().unwrap_or(0) >= 30, "{what}: {reached:?}");
    }
}
