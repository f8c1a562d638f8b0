//! The changing part of a machine, and the schedule that changes it by itself.

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

/// Older events are dropped beyond this many per machine.
const EVENTS_KEPT: usize = 4096;

/// A step that the machine takes by itself at a set time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Power(PowerState, Cause),
    /// The processors start anew: boot progress and the time of the last reset begin again.
    Restart,
    Boot,
    Progress(BootProgress),
    /// The software that was booted ends by switching the machine off.
    SoftwareOff,
}

/// Everything about a machine that changes.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) power: PowerState,
    /// The power state that the machine will have when its schedule is done.
    pub(crate) goal: PowerState,
    pub(crate) schedule: VecDeque<(Instant, Step)>,
    /// Which alarm belongs to the schedule; older alarms end by themselves.
    pub(crate) alarm: u64,
    /// Until when resets are refused.
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
    /// The last rendering of the system resource; every change throws it away.
    pub(crate) rendered: Option<(Bytes, Option<String>)>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) name: Arc<str>,
    pub(crate) timeline: Arc<Timeline>,
    /// The time that new events carry: the due time of a scheduled step, not when it was noticed.
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

    /// Takes every step that is due.
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

    /// Changes the power state and what depends on it.
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
