//! A machine's state, and its schedule of automatic changes.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::history::{BootOverride, BootRecord, Cause, Event, EventKind};
use super::media::Media;
use super::{Behaviour, Identity};
use crate::clock::{Stamp, Timeline};
use crate::personality::Personality;
use crate::words::{BootProgress, PowerState};

/// The most events kept per machine.
const EVENTS_KEPT: usize = 4096;

/// An automatic step at a scheduled time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Power(PowerState, Cause),
    /// The processors restart: boot progress and the last reset time begin again.
    Restart,
    Boot,
    Progress(BootProgress),
    /// The booted software ends by switching the machine off.
    SoftwareOff,
}

/// A machine's changing state.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) power: PowerState,
    /// The power state after the whole schedule.
    pub(crate) goal: PowerState,
    pub(crate) schedule: VecDeque<(Instant, Step)>,
    /// The current alarm's number; older alarms do nothing.
    pub(crate) alarm: u64,
    /// The time until which resets are refused.
    pub(crate) busy_until: Option<Instant>,
    pub(crate) progress: BootProgress,
    pub(crate) progress_since: Stamp,
    pub(crate) last_reset: Stamp,
    pub(crate) boot: BootOverride,
    pub(crate) pending_boot: Option<BootOverride>,
    pub(crate) last_boot: Option<BootRecord>,
    pub(crate) media: Vec<Media>,
    pub(crate) behaviour: Behaviour,
    pub(crate) identity: Identity,
    pub(crate) asset_tag: String,
    pub(crate) indicator: bool,
    /// The last rendered system resource; every change clears it.
    pub(crate) rendered: Option<(Bytes, Option<String>)>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) name: Arc<str>,
    pub(crate) timeline: Arc<Timeline>,
    /// The time for new events: a scheduled step's due time, not the current time.
    pub(crate) now: Instant,
}

impl State {
    pub(crate) fn record(&mut self, kind: EventKind) {
        if self.events.len() == EVENTS_KEPT {
            self.events.pop_front();
        }
        self.events.push_back(Event {
            sequence: self.timeline.next(),
            at: self.timeline.stamp_at(self.now),
            system: self.name.to_string(),
            kind,
        });
        self.rendered = None;
    }

    /// Executes every step that is due.
    pub(crate) fn settle(&mut self, now: Instant, personality: &Personality) {
        while let Some((due, step)) = self.schedule.front().copied() {
            if due > now {
                break;
            }
            self.schedule.pop_front();
            self.now = due;
            self.take(step, personality);
        }
        self.now = now;
    }

    fn take(&mut self, step: Step, personality: &Personality) {
        match step {
            Step::Power(to, cause) => {
                self.switch(to, cause);
                self.busy_until = Some(self.now + personality.power.busy_after);
            }
            Step::Restart => {
                self.last_reset = self.timeline.stamp_at(self.now);
                self.enter(BootProgress::None);
            }
            Step::Boot => {
                self.choose_boot_source(&personality.media);
                self.plan_boot();
            }
            Step::Progress(to) => self.enter(to),
            Step::SoftwareOff => self.plan_off(self.behaviour.power_off, Cause::Software),
        }
    }

    /// Changes the power state and its dependent state.
    pub(crate) fn switch(&mut self, to: PowerState, cause: Cause) {
        let from = self.power;
        if from == to {
            return;
        }
        self.power = to;
        self.record(EventKind::Power { from, to, cause });
        match to {
            PowerState::On => self.last_reset = self.timeline.stamp_at(self.now),
            PowerState::Off => self.enter(BootProgress::None),
            PowerState::PoweringOn | PowerState::PoweringOff | PowerState::Paused => {}
        }
    }

    pub(crate) fn enter(&mut self, to: BootProgress) {
        if self.progress == to {
            return;
        }
        self.progress = to;
        self.progress_since = self.timeline.stamp_at(self.now);
        self.record(EventKind::Progress { to });
    }
}
