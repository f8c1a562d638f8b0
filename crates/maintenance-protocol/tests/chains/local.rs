//! Other blockers of a start: a person's block, the server's owner, and the window.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use maintenance_protocol::{
    approval::{Approval, Claim, Scope},
    ids::{Generation, Uid},
    restrictions::Block,
    window::{OnClose, Period, WindowSpec},
};

use crate::{
    chain::Chain,
    records,
    world::{Event, World},
};

/// Start of the exploration, a morning.
pub const START: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// When the window closes, and for how long: after the latest start of the last run, and shorter
/// than a reserved queue position.
const CLOSES: SignedDuration = SignedDuration::from_secs(600);
const CLOSED: SignedDuration = SignedDuration::from_secs(60);

/// Events that have happened once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Local {
    blocked: bool,
    disapproved: bool,
}

/// Open in every minute except for one freeze.
pub fn window() -> WindowSpec {
    let closes = START + CLOSES;
    WindowSpec {
        schedule: "* * * * *".into(),
        duration: Duration::from_secs(60),
        time_zone: "UTC".into(),
        exclude: Vec::new(),
        exclude_periods: vec![Period { start: closes, end: closes + CLOSED }],
        min_remaining: Duration::ZERO,
        on_close: OnClose::Finish,
    }
}

pub fn claim() -> Claim {
    Claim {
        uid: Uid::new("claim"),
        id: records::id("claim"),
        owner: "owners".into(),
        contact: None,
        server: "node-1".into(),
        since: START,
        by: "owners".into(),
    }
}

impl Chain {
    fn is_blocked(world: &World) -> bool {
        world.lock.block(world.now).is_some()
    }

    fn is_closed(world: &World) -> bool {
        let closes = START + CLOSES;
        closes <= world.now && world.now < closes + CLOSED
    }

    /// Returns true if a person, the owner or the window blocks every waiter.
    pub fn is_kept(&self, world: &World) -> bool {
        Self::is_blocked(world)
            || self.asks_owner && world.lock.ownership.approvals.is_empty()
            || self.closes && Self::is_closed(world)
    }

    pub fn local_events(&self, world: &World, events: &mut Vec<Event>) {
        match (self.blocks, Self::is_blocked(world)) {
            (true, false) if !world.local.blocked => events.push(Event::Block),
            (_, true) => events.push(Event::Unblock),
            _ => {}
        }
        if self.asks_owner {
            if world.lock.ownership.approvals.is_empty() {
                events.push(Event::Approve);
            } else if !world.local.disapproved {
                events.push(Event::Disapprove);
            }
        }
        if self.closes && world.now < START + CLOSES {
            events.push(Event::Close);
        }
        if self.closes && Self::is_closed(world) {
            events.push(Event::Open);
        }
    }

    pub fn local_event(&self, world: &mut World, event: Event) {
        let now = world.now;
        match event {
            Event::Block => {
                world.local.blocked = true;
                world.write(|lock| lock.extension.restrictions.block = Some(block(now)));
            }
            Event::Unblock => world.write(|lock| lock.extension.restrictions.block = None),
            Event::Approve => {
                let digest = self.request(world, 0).spec.digest();
                let approval = Approval {
                    uid: Uid::new("approval"),
                    scope: Scope::Maintenance { id: records::id("m0"), digest: digest.into() },
                    not_before: None,
                    expires: None,
                    at: now,
                    by: "owners".into(),
                    used_by: None,
                };
                world.write(|lock| lock.ownership.approvals.push(approval));
            }
            Event::Disapprove => {
                world.local.disapproved = true;
                world.write(|lock| lock.ownership.approvals.clear());
            }
            Event::Close => world.now = START + CLOSES,
            Event::Open => world.now = START + CLOSES + CLOSED,
            _ => {}
        }
    }
}

fn block(since: Timestamp) -> Block {
    Block {
        since,
        until: Timestamp::MAX,
        id: records::request("other", 0).id,
        uid: Uid::new("other"),
        generation: Generation::default(),
        owner: String::new().into(),
        server: "node-1".into(),
        by: records::runner(0),
        reason: "repair".into(),
    }
}
