//! What must be true in every state, and what must be reached in some.

use std::sync::PoisonError;

use stateright::Property;
use terraform_provider_metal::maintenance::{spec::Kind, state::Phase};

use crate::{
    actions::Protocol,
    world::{At, Goal, World, number},
};

pub const ONE_CALL: &str = "one call at a time";
pub const BOUNDED: &str = "a replaced process calls no longer than its old lease";
pub const NO_LOST_HOLD: &str = "no hold is lost";
pub const TAKEN: &str = "the server is not free while somebody calls";
pub const ONE_MAY_ACT: &str = "one may act";
pub const FORWARD: &str = "generations and tickets only grow";
pub const ENDS: &str = "everybody can come to an end";

pub const REPLACED: &str = "a replaced process is in a call";
pub const TAKEN_OVER: &str = "somebody calls while a process is not aware that it was replaced";
pub const QUEUED: &str = "somebody waits for the holder";
pub const UNDER: &str = "something calls under a hold";
pub const DONE: &str = "everybody is done";

pub fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always(ONE_CALL, |_, world: &World| calls(world) <= 1),
        Property::always(BOUNDED, |_, world: &World| {
            world.actors.iter().all(|actor| match (actor.at, actor.replaced) {
                (At::Calling { until }, Some(lease)) => until <= lease.max(world.now),
                _ => true,
            })
        }),
        Property::always(NO_LOST_HOLD, no_lost_hold),
        Property::always(TAKEN, |_, world: &World| calls(world) == 0 || world.lock.slot.is_some()),
        Property::always(ONE_MAY_ACT, one_may_act),
        Property::always(FORWARD, |_, world: &World| !world.went_back),
        Property::always(ENDS, ends),
        // What the properties above are worth: the situations they are about are reached.
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
        Property::sometimes(DONE, |_, world: &World| {
            world.actors.iter().all(|actor| actor.goal == Goal::Over && !actor.is_alive())
        }),
    ]
}

fn calls(world: &World) -> usize {
    (0..world.actors.len()).filter(|n| world.is_calling(*n)).count()
}

/// Whoever was admitted has its record until somebody ends it, and the slot unless it needed that only for a change.
fn no_lost_hold(_: &Protocol, world: &World) -> bool {
    let holder = world.lock.slot.as_ref().map(|slot| number(&slot.uid));
    let held = (0..world.actors.len()).filter(|n| world.held & !world.over & 1 << n != 0);
    let kept = held.into_iter().all(|n| {
        world.lock.get(&crate::world::uid(n)).is_some_and(|record| {
            let frees = record.spec.kind != Kind::Maintenance;
            let changes = matches!(record.phase, Phase::Preparing(_));
            frees && !changes || world.lock.has_slot(record)
        })
    });
    kept && holder.is_none_or(|n| world.lock.get(&crate::world::uid(n)).is_some())
}

/// The store gives the right to touch the machine to one process at most.
fn one_may_act(_: &Protocol, world: &World) -> bool {
    let lock = &world.lock;
    let may_act = lock.active.iter().filter(|record| {
        let attachment = record.attachment.as_ref();
        attachment.is_some_and(|a| lock.may_act(&record.uid, a.fence(), &world.leases, world.now))
    });
    may_act.count() <= 1
}

/// From here everybody who wants something comes to an end, and the server is free, when nothing goes wrong any more.
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
