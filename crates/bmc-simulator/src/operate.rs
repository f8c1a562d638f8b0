//! Test methods for a running simulator, independent of Redfish.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::bmc::{Availability, Bmc, BmcStatus};
use crate::config::SystemConfig;
use crate::fault::{ActiveFault, Fault};
use crate::hold::{HeldQuery, HeldRequest};
use crate::journal::{Counts, JournalEntry, JournalMode, JournalQuery};
use crate::machine::{
    Behaviour, BootOverride, BootRecord, Event, EventKind, Identity, Inserted, Machine, SystemStatus,
};
use crate::net::set_availability;
use crate::personality::SettingsApply;
use crate::simulator::Simulator;
use crate::words::{BootProgress, PowerState};
use crate::world::AddError;

/// An object does not exist, or a wait timed out.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SimulatorError {
    /// A machine with that name does not exist.
    #[error("there is no system named {0}")]
    NoSystem(String),
    /// A BMC with that name does not exist.
    #[error("there is no BMC named {0}")]
    NoBmc(String),
    /// The machine's BMC does not have a virtual media device with that `Id`.
    #[error("there is no virtual media device {0}")]
    NoDevice(String),
    /// A fault with that number does not exist.
    #[error("there is no fault {0}")]
    NoFault(u64),
    /// The request with that sequence number is not held.
    #[error("request {0} is not held")]
    NotHeld(u64),
    /// A wait timed out.
    #[error("after {waited:?}, still waiting for {what}")]
    Timeout {
        /// The time limit.
        waited: Duration,
        /// The expected event.
        what: String,
    },
}

/// A change to a machine, independent of Redfish; unset fields stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SystemChange {
    /// The power state, reached immediately.
    pub power: Option<PowerState>,
    /// The boot override.
    pub boot: Option<BootOverride>,
    /// An image to insert.
    pub insert: Option<InsertChange>,
    /// The `Id` of the device to eject.
    pub eject: Option<String>,
    /// The machine's behaviour.
    pub behaviour: Option<Behaviour>,
    /// Its identity.
    pub identity: Option<Identity>,
}

/// An image inserted without Redfish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InsertChange {
    /// The device's `Id`.
    pub device: String,
    /// The image.
    pub image: String,
}

/// Machines.
impl Simulator {
    /// Adds a machine, and creates its BMC if necessary. The BMC answers before this returns.
    pub fn add_system(&self, config: SystemConfig) -> Result<(), AddError> {
        self.world.add(config)?;
        Ok(())
    }

    /// Returns the machines' names, sorted.
    #[must_use]
    pub fn systems(&self) -> Vec<String> {
        let machines = self.world.machines();
        machines.iter().map(|machine| machine.name.to_string()).collect()
    }

    fn machine(&self, name: &str) -> Result<Arc<Machine>, SimulatorError> {
        self.world.machine(name).ok_or_else(|| SimulatorError::NoSystem(name.to_owned()))
    }

    /// Returns a machine's BMC address, such as `https://127.0.0.1:40001`.
    pub fn url(&self, system: &str) -> Result<String, SimulatorError> {
        let machine = self.machine(system)?;
        Ok(self.bmc(&machine.bmc)?.url())
    }

    /// Returns a machine's status.
    pub fn system(&self, name: &str) -> Result<SystemStatus, SimulatorError> {
        Ok(self.machine(name)?.status())
    }

    /// Returns a machine's events after a sequence number, in order.
    pub fn events(&self, system: &str, since: u64) -> Result<Vec<Event>, SimulatorError> {
        Ok(self.machine(system)?.events(since))
    }

    /// Returns a machine's boots, in order.
    pub fn boots(&self, system: &str) -> Result<Vec<BootRecord>, SimulatorError> {
        let events = self.events(system, 0)?;
        Ok(events
            .into_iter()
            .filter_map(|event| match event.kind {
                EventKind::Booted(record) => Some(record),
                _ => None,
            })
            .collect())
    }

    /// Changes a machine without Redfish.
    pub fn change_system(&self, name: &str, change: SystemChange) -> Result<(), SimulatorError> {
        let machine = self.machine(name)?;
        let rules = &machine.personality.media;
        let device = |id: &str| {
            rules
                .devices
                .iter()
                .position(|device| device.id == id)
                .ok_or_else(|| SimulatorError::NoDevice(id.to_owned()))
        };
        let insert = match &change.insert {
            Some(insert) => Some((device(&insert.device)?, insert.image.clone())),
            None => None,
        };
        let eject = change.eject.as_deref().map(device).transpose()?;
        {
            let mut state = machine.lock();
            if let Some(behaviour) = change.behaviour {
                state.behaviour = behaviour;
            }
            if let Some(identity) = change.identity {
                state.identity = identity;
            }
            if let Some(boot) = change.boot {
                state.set_override(boot, SettingsApply::Immediate);
            }
            if let Some(device) = eject {
                state.eject(device, rules);
            }
            if let Some((device, image)) = insert {
                let inserted = Inserted {
                    image,
                    write_protected: true,
                    transfer_protocol: None,
                    user_name: None,
                    shown_from: tokio::time::Instant::now(),
                };
                state.insert(device, rules, inserted);
            }
            state.rendered = None;
        }
        if let Some(power) = change.power {
            machine.force_power(power);
        }
        machine.changed();
        Ok(())
    }

    /// Changes a machine's power state immediately, without Redfish.
    pub fn set_power(&self, system: &str, power: PowerState) -> Result<(), SimulatorError> {
        let change = SystemChange { power: Some(power), ..SystemChange::default() };
        self.change_system(system, change)
    }

    /// Changes a machine's behaviour.
    pub fn set_behaviour(&self, system: &str, behaviour: Behaviour) -> Result<(), SimulatorError> {
        let change = SystemChange { behaviour: Some(behaviour), ..SystemChange::default() };
        self.change_system(system, change)
    }
}

/// BMCs.
impl Simulator {
    fn bmc(&self, name: &str) -> Result<Arc<Bmc>, SimulatorError> {
        self.world.bmc(name).ok_or_else(|| SimulatorError::NoBmc(name.to_owned()))
    }

    /// Returns a machine's BMC name.
    pub fn bmc_of(&self, system: &str) -> Result<String, SimulatorError> {
        Ok(self.machine(system)?.bmc.to_string())
    }

    /// Returns every BMC's status.
    #[must_use]
    pub fn bmcs(&self) -> Vec<BmcStatus> {
        self.world.bmcs().iter().map(|bmc| bmc.status()).collect()
    }

    /// Returns a BMC's status.
    pub fn bmc_status(&self, name: &str) -> Result<BmcStatus, SimulatorError> {
        Ok(self.bmc(name)?.status())
    }

    /// Changes a BMC's availability, and waits until it is effective. The BMC keeps its port.
    pub async fn set_availability(&self, bmc: &str, availability: Availability) -> Result<(), SimulatorError> {
        let bmc = self.bmc(bmc)?;
        set_availability(&self.world, &bmc, availability).await;
        Ok(())
    }

    /// Deletes a BMC's sessions, as its restart would.
    pub fn close_sessions(&self, bmc: &str) -> Result<(), SimulatorError> {
        self.bmc(bmc)?.sessions.close_all();
        Ok(())
    }

    /// Unlocks a BMC's accounts.
    pub fn unlock_accounts(&self, bmc: &str) -> Result<(), SimulatorError> {
        self.bmc(bmc)?.accounts.unlock_all();
        Ok(())
    }

    /// Sets the additional latency of every request.
    pub fn set_latency(&self, latency: Duration) {
        self.world.set_latency(latency);
    }
}

/// The journal.
impl Simulator {
    /// Returns the matching entries in order of arrival.
    #[must_use]
    pub fn journal(&self, query: &JournalQuery) -> Vec<JournalEntry> {
        self.world.journal.find(query)
    }

    /// Returns counts of all requests.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.world.journal.counts()
    }

    /// Returns the last assigned sequence number; later requests and events have greater numbers.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.world.timeline.last()
    }

    /// Empties the journal and its counts. Sequence numbers continue.
    pub fn clear_journal(&self) {
        self.world.journal.clear();
    }

    /// Sets how many requests are kept.
    pub fn set_journal(&self, mode: JournalMode) {
        self.world.journal.set_mode(mode);
    }
}

/// Faults and held requests.
impl Simulator {
    /// Activates a fault and returns its number.
    #[must_use = "the number removes the fault"]
    pub fn inject(&self, fault: Fault) -> u64 {
        self.world.faults.add(fault)
    }

    /// Returns the active faults, including exhausted faults.
    #[must_use]
    pub fn faults(&self) -> Vec<ActiveFault> {
        self.world.faults.list()
    }

    /// Removes a fault.
    pub fn remove_fault(&self, id: u64) -> Result<(), SimulatorError> {
        if self.world.faults.remove(id) { Ok(()) } else { Err(SimulatorError::NoFault(id)) }
    }

    /// Removes every fault. Held requests stay held.
    pub fn clear_faults(&self) {
        self.world.faults.clear();
    }

    /// Returns the matching held requests.
    #[must_use]
    pub fn held(&self, query: &HeldQuery) -> Vec<HeldRequest> {
        self.world.holds.list(query)
    }

    /// Releases a held request; returns an error if it is not held.
    pub fn release(&self, sequence: u64) -> Result<(), SimulatorError> {
        if self.world.holds.release(sequence) { Ok(()) } else { Err(SimulatorError::NotHeld(sequence)) }
    }

    /// Releases every held request, and returns their number.
    #[allow(clippy::must_use_candidate, reason = "the number is a courtesy")]
    pub fn release_all(&self) -> usize {
        self.world.holds.release_all()
    }
}

/// Waiting.
impl Simulator {
    /// Waits until `look` returns a value; it is called again after every change.
    pub async fn wait_until<T>(
        &self,
        what: &str,
        time: Duration,
        look: impl FnMut() -> Option<T>,
    ) -> Result<T, SimulatorError> {
        self.world
            .timeline
            .wait(Instant::now() + time, look)
            .await
            .ok_or_else(|| SimulatorError::Timeout { waited: time, what: what.to_owned() })
    }

    /// Waits until a matching request is held.
    pub async fn wait_held(&self, query: &HeldQuery, time: Duration) -> Result<HeldRequest, SimulatorError> {
        let look = || self.held(query).into_iter().next();
        self.wait_until("a held request", time, look).await
    }

    /// Waits until the journal has at least `count` matching entries, and returns them.
    pub async fn wait_journal(
        &self,
        query: &JournalQuery,
        count: usize,
        time: Duration,
    ) -> Result<Vec<JournalEntry>, SimulatorError> {
        let look = || Some(self.journal(query)).filter(|found| found.len() >= count);
        let what = format!("{count} requests that match {query:?}");
        self.wait_until(&what, time, look).await
    }

    /// Waits until a machine is in a power state.
    pub async fn wait_power(&self, system: &str, power: PowerState, time: Duration) -> Result<(), SimulatorError> {
        let machine = self.machine(system)?;
        let look = || (machine.lock().power == power).then_some(());
        let what = format!("power state {power} of {system}");
        self.wait_until(&what, time, look).await
    }

    /// Waits until a machine's boot has reached a state.
    pub async fn wait_progress(
        &self,
        system: &str,
        progress: BootProgress,
        time: Duration,
    ) -> Result<(), SimulatorError> {
        let machine = self.machine(system)?;
        let look = || (machine.lock().progress == progress).then_some(());
        let what = format!("boot progress {progress} of {system}");
        self.wait_until(&what, time, look).await
    }
}
