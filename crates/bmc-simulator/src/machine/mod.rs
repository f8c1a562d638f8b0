//! A simulated machine.

mod boot;
mod history;
mod media;
mod power;
mod state;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

pub(crate) use self::boot::{device_path, judge, menu_entry};
pub use self::history::{BootOverride, BootRecord, BootSource, Cause, Event, EventKind};
pub(crate) use self::media::{Inserted, Media};
pub(crate) use self::power::Taken;
pub(crate) use self::state::State;
use crate::clock::{Timeline, millis, optional_millis};
use crate::personality::Personality;
use crate::words::{BootProgress, PowerState, ResetType};

/// A machine's timing and misbehaviour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Behaviour {
    /// From the request to `On`; on a restart, from the reset to the boot.
    #[serde(rename = "power_on_ms", with = "millis")]
    pub power_on: Duration,
    /// From a forced power-off to `Off`.
    #[serde(rename = "power_off_ms", with = "millis")]
    pub power_off: Duration,
    /// Shutdown time of the operating system.
    #[serde(rename = "graceful_shutdown_ms", with = "millis")]
    pub graceful_shutdown: Duration,
    /// How long `PowerCycle` stays off.
    #[serde(rename = "cycle_pause_ms", with = "millis")]
    pub cycle_pause: Duration,
    /// From choosing the boot source to `OSRunning`.
    #[serde(rename = "boot_ms", with = "millis")]
    pub boot: Duration,
    /// True if the operating system hangs and ignores graceful requests.
    pub ignores_shutdown: bool,
    /// How long software from anywhere but the disk runs before it switches the machine off.
    #[serde(rename = "image_works_then_off_ms", with = "optional_millis")]
    pub image_works_then_off: Option<Duration>,
}

impl Default for Behaviour {
    /// Returns times that are short enough for tests, and long enough to observe every transition.
    fn default() -> Self {
        Self {
            power_on: Duration::from_millis(50),
            power_off: Duration::from_millis(50),
            graceful_shutdown: Duration::from_millis(100),
            cycle_pause: Duration::from_millis(50),
            boot: Duration::from_millis(90),
            ignores_shutdown: false,
            image_works_then_off: None,
        }
    }
}

impl Behaviour {
    /// Returns a behaviour without delays.
    #[must_use]
    pub fn instant() -> Self {
        Self {
            power_on: Duration::ZERO,
            power_off: Duration::ZERO,
            graceful_shutdown: Duration::ZERO,
            cycle_pause: Duration::ZERO,
            boot: Duration::ZERO,
            ..Self::default()
        }
    }
}

/// A machine's identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// `UUID`.
    pub uuid: SystemUuid,
    /// `SerialNumber`; `None` omits the property.
    pub serial_number: Option<String>,
    /// `Manufacturer`; `None` omits the property.
    pub manufacturer: Option<String>,
    /// `Model`; `None` omits the property.
    pub model: Option<String>,
}

/// `UUID` of a `ComputerSystem`, including defects found in the field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SystemUuid {
    /// A valid UUID.
    Real(Uuid),
    /// `00000000-0000-0000-0000-000000000000`.
    Nil,
    /// The property is missing.
    Missing,
    /// The property is `null`.
    Null,
    /// A manufacturer's placeholder text.
    Placeholder(String),
}

impl SystemUuid {
    /// Returns the property's value; `None` if it is omitted.
    pub(crate) fn value(&self) -> Option<Value> {
        match self {
            Self::Real(uuid) => Some(uuid.to_string().into()),
            Self::Nil => Some(Uuid::nil().to_string().into()),
            Self::Missing => None,
            Self::Null => Some(Value::Null),
            Self::Placeholder(text) => Some(text.clone().into()),
        }
    }
}

/// A machine's status, independent of Redfish.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SystemStatus {
    /// The machine's name in the simulator.
    pub name: String,
    /// Its BMC's name.
    pub bmc: String,
    /// Its `Id` in Redfish.
    pub system_id: String,
    /// Its identity.
    pub identity: Identity,
    /// The power state.
    pub power: PowerState,
    /// The boot progress, even if Redfish hides it.
    pub progress: BootProgress,
    /// The active boot override.
    pub boot: BootOverride,
    /// The override in the Settings object for the next boot.
    pub pending_boot: Option<BootOverride>,
    /// The last boot.
    pub last_boot: Option<BootRecord>,
    /// The inserted images, by device.
    pub media: Vec<InsertedMedia>,
    /// The machine's behaviour.
    pub behaviour: Behaviour,
    /// Requests received.
    pub requests: u64,
}

/// An image in a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsertedMedia {
    /// The device's `Id`.
    pub device: String,
    /// The image.
    pub image: String,
    /// True if it is write-protected.
    pub write_protected: bool,
}

/// A machine behind a BMC.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) name: Arc<str>,
    pub(crate) id: Arc<str>,
    pub(crate) bmc: Arc<str>,
    pub(crate) personality: Arc<Personality>,
    pub(crate) requests: AtomicU64,
    state: Mutex<State>,
    timeline: Arc<Timeline>,
}

/// A machine's initial values.
pub(crate) struct Birth {
    pub(crate) name: Arc<str>,
    pub(crate) id: Arc<str>,
    pub(crate) bmc: Arc<str>,
    pub(crate) identity: Identity,
    pub(crate) power: PowerState,
    pub(crate) behaviour: Behaviour,
}

impl Machine {
    pub(crate) fn new(birth: Birth, personality: Arc<Personality>, timeline: Arc<Timeline>) -> Arc<Self> {
        let now = Instant::now();
        let stamp = timeline.stamp_at(now);
        let on = birth.power == PowerState::On;
        let boot = BootOverride {
            mode: personality
                .boot
                .modes
                .first()
                .copied()
                .filter(|_| !personality.boot.modes.contains(&crate::words::BootMode::UEFI))
                .unwrap_or(crate::words::BootMode::UEFI),
            ..BootOverride::default()
        };
        let state = State {
            power: birth.power,
            goal: birth.power,
            schedule: VecDeque::new(),
            alarm: 0,
            busy_until: None,
            progress: if on { BootProgress::OSRunning } else { BootProgress::None },
            progress_since: stamp,
            last_reset: stamp,
            last_boot: on.then(|| BootRecord { requested: boot.clone(), booted_from: BootSource::Disk }),
            boot,
            pending_boot: None,
            media: (0..personality.media.devices.len()).map(|device| Media { device, ..Media::default() }).collect(),
            behaviour: birth.behaviour,
            identity: birth.identity,
            asset_tag: String::new(),
            indicator: false,
            rendered: None,
            events: VecDeque::new(),
            name: Arc::clone(&birth.name),
            timeline: Arc::clone(&timeline),
            now,
        };
        Arc::new(Self {
            name: birth.name,
            id: birth.id,
            bmc: birth.bmc,
            personality,
            requests: AtomicU64::new(0),
            state: Mutex::new(state),
            timeline,
        })
    }

    /// Returns the current state, after every due step.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.settle(Instant::now(), &self.personality);
        state
    }

    /// Returns the changing state for [`Self::restore`].
    pub(crate) fn snapshot(&self) -> State {
        self.lock().clone()
    }

    /// Restores a snapshot.
    pub(crate) fn restore(self: &Arc<Self>, before: State) {
        {
            let mut state = self.lock();
            let alarm = state.alarm;
            *state = State { alarm, rendered: None, ..before };
        }
        self.follow_up();
    }

    /// Resets the machine and schedules the steps.
    pub(crate) fn reset(self: &Arc<Self>, reset: ResetType) -> Taken {
        let taken = {
            let mut state = self.lock();
            let taken = state.reset(reset, &self.personality.power);
            let now = state.now;
            state.settle(now, &self.personality);
            taken
        };
        self.follow_up();
        taken
    }

    /// Changes the power state from outside, immediately.
    pub(crate) fn force_power(self: &Arc<Self>, to: PowerState) {
        {
            let mut state = self.lock();
            state.schedule.clear();
            state.goal = match to {
                PowerState::On | PowerState::PoweringOn => PowerState::On,
                PowerState::Off | PowerState::PoweringOff => PowerState::Off,
                PowerState::Paused => PowerState::Paused,
            };
            let was = state.power;
            state.switch(to, Cause::Outside);
            state.plan_arrival(to);
            if to == PowerState::On && was != PowerState::On {
                state.choose_boot_source(&self.personality.media);
                state.enter(BootProgress::OSRunning);
            }
        }
        self.follow_up();
    }

    /// Notifies waiters of a change without further steps.
    pub(crate) fn changed(&self) {
        self.timeline.announce();
    }

    /// Notifies waiters of a change and sets an alarm for the next step.
    pub(crate) fn follow_up(self: &Arc<Self>) {
        let alarm = {
            let mut state = self.lock();
            state.alarm += 1;
            (!state.schedule.is_empty()).then_some(state.alarm)
        };
        self.timeline.announce();
        let Some(alarm) = alarm else { return };
        let machine = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                let due = {
                    let Some(machine) = machine.upgrade() else {
                        return;
                    };
                    let state = machine.lock();
                    if state.alarm != alarm {
                        return;
                    }
                    let due = state.schedule.front().map(|(due, _)| *due);
                    drop(state);
                    machine.timeline.announce();
                    due
                };
                let Some(due) = due else { return };
                tokio::time::sleep_until(due).await;
            }
        });
    }

    pub(crate) fn status(&self) -> SystemStatus {
        let state = self.lock();
        SystemStatus {
            name: self.name.to_string(),
            bmc: self.bmc.to_string(),
            system_id: self.id.to_string(),
            identity: state.identity.clone(),
            power: state.power,
            progress: state.progress,
            boot: state.boot.clone(),
            pending_boot: state.pending_boot.clone(),
            last_boot: state.last_boot.clone(),
            media: state
                .media
                .iter()
                .filter_map(|media| {
                    media.inserted.as_ref().map(|inserted| InsertedMedia {
                        device: self.personality.media.devices[media.device].id.clone(),
                        image: inserted.image.clone(),
                        write_protected: inserted.write_protected,
                    })
                })
                .collect(),
            behaviour: state.behaviour.clone(),
            requests: self.requests.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn events(&self, since: u64) -> Vec<Event> {
        let state = self.lock();
        let from = state.events.partition_point(|event| event.sequence <= since);
        state.events.iter().skip(from).cloned().collect()
    }
}
