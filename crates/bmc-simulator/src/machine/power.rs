//! Resets: the planned steps and their times.

use std::time::Duration;

use tokio::time::Instant;

use super::history::{BootSource, Cause, EventKind};
use super::state::{State, Step};
use crate::personality::PowerRules;
use crate::words::{BootProgress, PowerState, ResetType};

/// A machine's reaction to a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It executes the reset.
    Accepted,
    /// It is already in the requested state, or on its way.
    AlreadyThere,
    /// Its state does not allow the reset.
    Conflict,
}

impl State {
    pub(crate) fn reset(&mut self, reset: ResetType, rules: &PowerRules) -> Taken {
        use ResetType::{
            ForceOff, ForceOn, ForceRestart, GracefulRestart, GracefulShutdown, Nmi, On, PowerCycle, PushPowerButton,
        };
        if self.power == PowerState::Paused && self.goal == PowerState::Paused {
            self.reset_paused(reset, rules);
            return Taken::Accepted;
        }
        let off = self.goal == PowerState::Off;
        match reset {
            On | ForceOn if !off => return Taken::AlreadyThere,
            ForceOff | GracefulShutdown if self.power == PowerState::Off && off => {
                return Taken::AlreadyThere;
            }
            Nmi if off => return Taken::Conflict,
            // A real BMC finishes switching off before it accepts another reset.
            On | ForceOn | PushPowerButton | ForceRestart | GracefulRestart | PowerCycle
                if off && self.power != PowerState::Off =>
            {
                return Taken::Conflict;
            }
            ForceRestart | GracefulRestart | PowerCycle if off && !rules.restart_powers_on => {
                return Taken::Conflict;
            }
            _ => {}
        }
        self.record(EventKind::Reset { reset_type: reset });
        let graceful = matches!(reset, GracefulShutdown | GracefulRestart) || (reset == PushPowerButton && !off);
        if graceful && self.behaviour.ignores_shutdown {
            self.record(EventKind::ShutdownIgnored { reset_type: reset });
            return Taken::Accepted;
        }
        let shutdown = self.behaviour.graceful_shutdown;
        match reset {
            On | ForceOn => self.plan_on(self.now, rules),
            PushPowerButton | ForceRestart | GracefulRestart | PowerCycle if off => {
                self.plan_on(self.now, rules);
            }
            ForceOff => self.plan_shown_off(rules),
            // A second request does not restart a shutdown in progress.
            GracefulShutdown if !off && rules.shutdown_pauses => self.plan_pause(shutdown),
            GracefulShutdown | PushPowerButton if !off => self.plan_off(shutdown, Cause::Reset),
            ForceRestart => self.plan_restart(Duration::ZERO),
            GracefulRestart => self.plan_restart(shutdown),
            PowerCycle => {
                self.plan_shown_off(rules);
                let pause = self.behaviour.power_off + self.behaviour.cycle_pause;
                self.plan_on(self.now + pause, rules);
            }
            GracefulShutdown | PushPowerButton | Nmi => {}
        }
        Taken::Accepted
    }

    /// Accepts a reset while no operating system runs. `On`, graceful resets and an NMI do nothing.
    fn reset_paused(&mut self, reset: ResetType, rules: &PowerRules) {
        match reset {
            ResetType::ForceOff => {
                self.record(EventKind::Reset { reset_type: reset });
                self.plan_shown_off(rules);
            }
            ResetType::ForceRestart | ResetType::PowerCycle | ResetType::PushPowerButton => {
                self.record(EventKind::Reset { reset_type: reset });
                self.plan_restart(Duration::ZERO);
            }
            ResetType::On
            | ResetType::ForceOn
            | ResetType::GracefulShutdown
            | ResetType::GracefulRestart
            | ResetType::Nmi => {}
        }
    }

    /// Halts the operating system after `wait`, and drops other plans.
    fn plan_pause(&mut self, wait: Duration) {
        self.schedule.clear();
        self.plan(self.now + wait, Step::Power(PowerState::Paused, Cause::Reset));
        self.goal = PowerState::Paused;
    }

    /// Plans when a transition ends.
    pub(crate) fn plan_arrival(&mut self, to: PowerState) {
        match to {
            PowerState::PoweringOn => {
                let on = self.now + self.behaviour.power_on;
                self.plan(on, Step::Power(PowerState::On, Cause::Outside));
                self.plan(on, Step::Boot);
            }
            PowerState::PoweringOff => {
                self.plan(self.now + self.behaviour.power_off, Step::Power(PowerState::Off, Cause::Outside));
            }
            PowerState::On | PowerState::Off | PowerState::Paused => {}
        }
    }

    /// Plans switching on at `start`, after the steps already planned.
    fn plan_on(&mut self, start: Instant, rules: &PowerRules) {
        if rules.shows_transitions {
            self.plan(start, Step::Power(PowerState::PoweringOn, Cause::Reset));
        }
        let on = start + self.behaviour.power_on;
        self.plan(on, Step::Power(PowerState::On, Cause::Reset));
        self.plan(on, Step::Boot);
        self.goal = PowerState::On;
    }

    fn plan_shown_off(&mut self, rules: &PowerRules) {
        self.plan_off(self.behaviour.power_off, Cause::Reset);
        if rules.shows_transitions && self.power != PowerState::Off {
            self.schedule.push_front((self.now, Step::Power(PowerState::PoweringOff, Cause::Reset)));
        }
    }

    /// Plans switching off after `wait`, and drops other plans.
    pub(crate) fn plan_off(&mut self, wait: Duration, cause: Cause) {
        self.schedule.clear();
        self.plan(self.now + wait, Step::Power(PowerState::Off, cause));
        self.goal = PowerState::Off;
    }

    fn plan_restart(&mut self, wait: Duration) {
        self.schedule.clear();
        let start = self.now + wait;
        // A machine in a transition counts as on when it restarts.
        self.plan(start, Step::Power(PowerState::On, Cause::Reset));
        self.plan(start, Step::Restart);
        self.plan(start + self.behaviour.power_on, Step::Boot);
        self.goal = PowerState::On;
    }

    /// Plans the steps after choosing a boot source.
    pub(crate) fn plan_boot(&mut self) {
        let third = self.behaviour.boot / 3;
        let start = self.now;
        for (step, at) in [
            (BootProgress::PrimaryProcessorInitializationStarted, start),
            (BootProgress::SystemHardwareInitializationComplete, start + third),
            (BootProgress::OSBootStarted, start + third * 2),
            (BootProgress::OSRunning, start + self.behaviour.boot),
        ] {
            self.plan(at, Step::Progress(step));
        }
        let from_elsewhere = self.last_boot.as_ref().is_some_and(|boot| boot.booted_from != BootSource::Disk);
        if let (true, Some(work)) = (from_elsewhere, self.behaviour.image_works_then_off) {
            self.plan(start + self.behaviour.boot + work, Step::SoftwareOff);
        }
    }

    fn plan(&mut self, at: Instant, step: Step) {
        self.schedule.push_back((at, step));
    }
}
