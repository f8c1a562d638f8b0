//! What a test can do to a running simulator, and learn from it, behind Redfish's back.

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

/// Something was asked about what does not exist, or did not happen in time.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SimulatorError {
    /// There is no machine of that name.
    #[error("there is no system named {0}")]
    NoSystem(String),
    /// There is no BMC of that name.
    #[error("there is no BMC named {0}")]
    NoBmc(String),
    /// The machine's BMC has no device of virtual media with that `Id`.
    #[error("there is no virtual media device {0}")]
    NoDevice(String),
    /// There is no fault of that number.
    #[error("there is no fault {0}")]
    NoFault(u64),
    /// The request of that sequence number is not held.
    #[error("request {0} is not held")]
    NotHeld(u64),
    /// What was waited for did not happen in time.
    #[error("waited {waited:?} in vain for {what}")]
    Timeout {
        /// For how long.
        waited: Duration,
        /// What it was.
        what: String,
    },
}

/// A change to a machine from outside of Redfish; what is not named stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SystemChange {
    /// The power state, reached at once.
    pub power: Option<PowerState>,
    /// The boot override.
    pub boot: Option<BootOverride>,
    /// An image to insert.
    pub insert: Option<InsertChange>,
    /// The `Id` of a device whose image to eject.
    pub eject: Option<String>,
    /// How the machine behaves.
    pub behaviour: Option<Behaviour>,
    /// Its identity.
    pub identity: Option<Identity>,
}

/// An image that is inserted from outside of Redfish.
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
    /// Adds a machine, and its BMC when there is none yet. Its BMC answers when this returns.
    pub fn add_system(&self, config: SystemConfig) -> Result<(), AddError> {
        self.world.add(config)?;
        Ok(())
    }

    /// The machines' names, sorted.
    #[must_use]
    pub fn systems(&self) -> Vec<String> {
        let machines = self.world.machines();
        machines.iter().map(|machine| machine.name.to_string()).collect()
    }

    fn machine(&self, name: &str) -> Result<Arc<Machine>, SimulatorError> {
        self.world.machine(name).ok_or_else(|| SimulatorError::NoSystem(name.to_owned()))
    }

    /// The address of a machine's BMC, such as `https://127.0.0.1:40001`.
    pub fn url(&self, system: &str) -> Result<String, SimulatorError> {
        let machine = self.machine(system)?;
        Ok(self.bmc(&machine.bmc)?.url())
    }

    /// What a machine looks like from outside of Redfish.
    pub fn system(&self, name: &str) -> Result<SystemStatus, SimulatorError> {
        Ok(self.machine(name)?.status())
    }

    /// The events of a machine after a sequence number, in order.
    pub fn events(&self, system: &str, since: u64) -> Result<Vec<Event>, SimulatorError> {
        Ok(self.machine(system)?.events(since))
    }

    /// What a machine booted from, each time, in order.
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

    /// Changes a machine from outside of Redfish.
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

    /// Changes a machine's power state behind everybody's back, at once.
    pub fn set_power(&self, system: &str, power: PowerState) -> Result<(), SimulatorError> {
        let change = SystemChange { power: Some(power), ..SystemChange::default() };
        self.change_system(system, change)
    }

    /// Changes how a machine behaves from now on.
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

    /// The name of a machine's BMC.
    pub fn bmc_of(&self, system: &str) -> Result<String, SimulatorError> {
        Ok(self.machine(system)?.bmc.to_string())
    }

    /// What every BMC looks like from outside of Redfish.
    #[must_use]
    pub fn bmcs(&self) -> Vec<BmcStatus> {
        self.world.bmcs().iter().map(|bmc| bmc.status()).collect()
    }

    /// What a BMC looks like from outside of Redfish.
    pub fn bmc_status(&self, name: &str) -> Result<BmcStatus, SimulatorError> {
        Ok(self.bmc(name)?.status())
    }

    /// Changes whether a BMC can be reached, and returns when it is so. Its port stays its own.
    pub async fn set_availability(&self, bmc: &str, availability: Availability) -> Result<(), SimulatorError> {
        let bmc = self.bmc(bmc)?;
        set_availability(&self.world, &bmc, availability).await;
        Ok(())
    }

    /// Forgets a BMC's sessions, as its restart would.
    pub fn close_sessions(&self, bmc: &str) -> Result<(), SimulatorError> {
        self.bmc(bmc)?.sessions.close_all();
        Ok(())
    }

    /// Unlocks a BMC's accounts.
    pub fn unlock_accounts(&self, bmc: &str) -> Result<(), SimulatorError> {
        self.bmc(bmc)?.accounts.unlock_all();
        Ok(())
    }

    /// Sets how long every request takes in addition.
    pub fn set_latency(&self, latency: Duration) {
        self.world.set_latency(latency);
    }
}

/// The journal.
impl Simulator {
    /// The entries that match, in the order of arrival.
    #[must_use]
    pub fn journal(&self, query: &JournalQuery) -> Vec<JournalEntry> {
        self.world.journal.find(query)
    }

    /// Counts of all requests.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.world.journal.counts()
    }

    /// The last sequence number that was given out; later requests and events have greater ones.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.world.timeline.last()
    }

    /// Empties the journal and its counts. Sequence numbers go on.
    pub fn clear_journal(&self) {
        self.world.journal.clear();
    }

    /// Sets how much of the requests is kept.
    pub fn set_journal(&self, mode: JournalMode) {
        self.world.journal.set_mode(mode);
    }
}

/// Faults and holds.
impl Simulator {
    /// Puts a fault into force; the number removes it.
    #[must_use = "the number removes the fault"]
    pub fn inject(&self, fault: Fault) -> u64 {
        self.world.faults.add(fault)
    }

    /// The faults in force, also those that are used up.
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

    /// The held requests that match.
    #[must_use]
    pub fn held(&self, query: &HeldQuery) -> Vec<HeldRequest> {
        self.world.holds.list(query)
    }

    /// Lets a held request go on; an error when it is not held (any more).
    pub fn release(&self, sequence: u64) -> Result<(), SimulatorError> {
        if self.world.holds.release(sequence) { Ok(()) } else { Err(SimulatorError::NotHeld(sequence)) }
    }

    /// Lets every held request go on, and returns how many there were.
    #[allow(clippy::must_use_candidate, reason = "the number is a courtesy")]
    pub fn release_all(&self) -> usize {
        self.world.holds.release_all()
    }
}

/// Waiting.
impl Simulator {
    /// Waits until `look` finds something; it is called again after every change.
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

    /// Waits until a request that matches is held.
    pub async fn wait_held(&self, query: &HeldQuery, time: Duration) -> Result<HeldRequest, SimulatorError> {
        let look = || self.held(query).into_iter().next();
        self.wait_until("a held request", time, look).await
    }

    /// Waits until the journal has at least `count` entries that match, and returns them.
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

    /// Waits until a machine's boot has got to a state.
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
