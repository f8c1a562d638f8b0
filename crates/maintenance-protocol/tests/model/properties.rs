//! Invariants of every state, and situations that the exploration must reach.

use std::sync::PoisonError;

use maintenance_protocol::{
    spec::MaintenanceKind,
    state::{Maintenance, Phase},
};
use stateright::Property;

use crate::{
    actions::Protocol,
    process::timed_out,
    world::{At, Goal, World, number, uid},
};

pub const ONE_CALL: &str = "one call at a time";
pub const BOUNDED: &str = "a replaced process calls no longer than its old lease";
pub const NO_LOST_HOLD: &str = "no lock is lost";
pub const TAKEN: &str = "the server is not free during a call";
pub const ONE_MAY_ACT: &str = "one process acts";
pub const FORWARD: &str = "generations and tickets only grow";
pub const IN_TIME: &str = "no call changes the server after its maintenance";
pub const PREPARED: &str = "a prepared server stays prepared";
pub const RESTORED: &str = "a maintenance ends with the server in its prior state";
pub const TRUE_PRIOR: &str = "the recorded prior state is correct";
pub const NOT_STALE: &str = "no process acts on a lock that the store has lost";
pub const KEPT: &str = "a lock is only released on request";
pub const REMEMBERED: &str = "no state drops an active maintenance";
pub const ENDS: &str = "all maintenances can end";
pub const STOPS: &str = "a run ends at its time limit while the store rejects changes";

pub const REPLACED: &str = "a replaced process is in a call";
pub const TAKEN_OVER: &str = "a process calls while its predecessor has not noticed the takeover";
pub const QUEUED: &str = "a maintenance waits for the holder";
pub const UNDER: &str = "an operation calls under a lock";
pub const OUTLIVES: &str = "a call can change the server after its run ended";
pub const UNDONE: &str = "a change in place is undone";
pub const SET_BACK: &str = "the store was set back behind a process that acts";
pub const HANDED_OVER: &str = "a server is handed over unchanged";
pub const REJECTED: &str = "a server is changed while the store rejects changes";
pub const DONE: &str = "all are done";

pub fn all() -> Vec<Property<Protocol>> {
    let mut all = vec![
        // No rule can detect a loss by the store before the next read.
        Property::always(ONE_CALL, |_, world: &World| calls(world) <= 1 || world.here.line > 0),
        Property::always(BOUNDED, |_, world: &World| {
            world.actors.iter().all(|actor| match (&actor.at, actor.replaced) {
                (At::Calling { until, .. }, Some(lease)) => *until <= lease.max(world.now),
                _ => true,
            })
        }),
        Property::always(NO_LOST_HOLD, no_lost_hold),
        Property::always(TAKEN, |_, world: &World| {
            calls(world) == 0 || world.lock.slot.is_some() || world.here.line > 0
        }),
        Property::always(ONE_MAY_ACT, one_may_act),
        Property::always(FORWARD, |_, world: &World| !world.wrong.went_back),
        Property::always(IN_TIME, |_, world: &World| !world.wrong.late),
        Property::always(PREPARED, |_, world: &World| !world.wrong.unprepared),
        Property::always(RESTORED, |_, world: &World| !world.wrong.unrestored),
        Property::always(TRUE_PRIOR, |_, world: &World| !world.wrong.false_prior),
        Property::always(NOT_STALE, |_, world: &World| !world.wrong.stale),
        Property::always(KEPT, |_, world: &World| !world.wrong.gave_up),
        Property::always(REMEMBERED, |_, world: &World| !world.wrong.forgotten),
        Property::always(STOPS, |protocol: &Protocol, world: &World| {
            let mut over = (0..world.actors.len()).filter(|n| world.one_way && timed_out(world, *n));
            over.all(|n| protocol.stops(world, n))
        }),
        Property::always(ENDS, |protocol: &Protocol, world: &World| !protocol.ends || ends(protocol, world)),
    ];
    all.extend(reached());
    all
}

/// Situations that give the properties their value.
fn reached() -> Vec<Property<Protocol>> {
    vec![
        Property::sometimes(REPLACED, |_, world: &World| {
            (0..world.actors.len()).any(|n| world.is_calling(n) && world.actors[n].replaced.is_some())
        }),
        Property::sometimes(TAKEN_OVER, |_, world: &World| {
            let driving = |n: &usize| world.actors[*n].is_alive() && world.record(*n).is_some();
            calls(world) == 1 && (0..world.actors.len()).filter(driving).any(|n| !world.in_force(n))
        }),
        Property::sometimes(QUEUED, |_, world: &World| {
            let held = world.lock.slot.is_some();
            held && world.lock.active.iter().any(|record| record.phase == Phase::Pending)
        }),
        Property::sometimes(UNDER, |_, world: &World| {
            world.lock.slot.as_ref().is_some_and(|slot| slot.acting.is_some()) && calls(world) == 1
        }),
        Property::sometimes(OUTLIVES, |_, world: &World| {
            let runs = |root: usize| {
                let of = |n: usize| world.root(world.roles[n].subject(n)) == root && world.actors[n].is_alive();
                (0..world.actors.len()).any(of)
            };
            world.machine.coming.iter().any(|effect| effect.on != world.machine.on && !runs(effect.root))
        }),
        Property::sometimes(UNDONE, |_, world: &World| {
            world.lock.active.iter().any(|record| record.undoing().is_some_and(|update| update.touched))
        }),
        Property::sometimes(HANDED_OVER, |_, world: &World| {
            world.lock.holder().is_some_and(|holder| holder.took_over.is_some())
        }),
        Property::sometimes(SET_BACK, |_, world: &World| {
            let acts = |n: usize| matches!(world.actors[n].at, At::Calling { .. } | At::Called(_));
            (0..world.actors.len()).any(|n| acts(n) && world.is_behind(world.process(n).seen))
        }),
        Property::sometimes(REJECTED, |_, world: &World| world.one_way && !world.machine.coming.is_empty()),
        Property::sometimes(DONE, |_, world: &World| {
            world.actors.iter().all(|actor| actor.goal == Goal::Over && !actor.is_alive())
        }),
    ]
}

fn calls(world: &World) -> usize {
    (0..world.actors.len()).filter(|n| world.is_calling(*n)).count()
}

/// Admitted records exist until they are ended, and keep the lock unless they needed it only for a
/// change.
fn no_lost_hold(_: &Protocol, world: &World) -> bool {
    let holder = world.lock.slot.as_ref().map(|slot| number(&slot.uid));
    let held = (0..world.actors.len()).filter(|n| world.held & !world.over & 1 << n != 0);
    let kept = held.into_iter().all(|n| {
        world.lock.get(&uid(n)).is_some_and(|record| {
            let frees = record.spec.kind != MaintenanceKind::Maintenance;
            let changes = matches!(record.phase, Phase::Preparing(_));
            frees && !changes || world.lock.has_slot(record)
        })
    });
    world.here.line > 0 || kept && holder.is_none_or(|n| world.lock.get(&uid(n)).is_some())
}

/// The store allows at most one process to contact the machine.
fn one_may_act(_: &Protocol, world: &World) -> bool {
    let lock = &world.lock;
    let may_act = |record: &Maintenance| {
        let attachment = record.attachment.as_ref();
        attachment.is_some_and(|a| lock.may_act(&record.uid, a.fence(), &world.leases, world.now))
    };
    lock.active.iter().filter(|record| may_act(record)).count() <= 1
}

/// From here, without further faults, all actors finish and the server is free.
fn ends(protocol: &Protocol, world: &World) -> bool {
    let known = || protocol.known_to_end.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut world, mut passed) = (world.clone(), Vec::new());
    loop {
        let here = world.identity();
        if known().contains(&here) {
            break;
        }
        if passed.contains(&here) {
            return false;
        }
        passed.push(here);
        match protocol.fair_step(&world) {
            Some(next) => world = next,
            None if world.lock.active.is_empty() && world.lock.slot.is_none() => break,
            None => return false,
        }
    }
    known().extend(passed);
    true
}
