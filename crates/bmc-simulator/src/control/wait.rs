//! Waits for events through the control interface.

use std::time::Duration;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Answer;
use crate::clock::millis;
use crate::hold::HeldQuery;
use crate::journal::JournalQuery;
use crate::operate::SimulatorError;
use crate::simulator::Simulator;
use crate::words::{BootProgress, PowerState};

/// The body of `POST /wait`: a time limit and a condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitRequest {
    /// The time limit.
    #[serde(rename = "timeout_ms", with = "millis")]
    pub timeout: Duration,
    /// The condition.
    pub until: WaitFor,
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitFor {
    /// A request is held; answered with it.
    Held(HeldQuery),
    /// The journal has at least this many matching entries; answered with them.
    Journal {
        /// Selects the entries.
        query: JournalQuery,
        /// The number of entries.
        count: usize,
    },
    /// A machine is in the described state; answered with its status.
    System {
        /// Its name.
        name: String,
        /// The power state.
        #[serde(default)]
        power: Option<PowerState>,
        /// The boot progress.
        #[serde(default)]
        progress: Option<BootProgress>,
    },
    /// A machine had an event after a sequence number; answered with it.
    Event {
        /// The machine's name.
        system: String,
        /// The event's name, such as `booted`.
        event: String,
        /// The sequence number.
        #[serde(default)]
        since: u64,
    },
}

pub(crate) async fn wait(simulator: &Simulator, request: WaitRequest) -> Result<Answer, Answer> {
    let WaitRequest { timeout, until } = request;
    let what = format!("{until:?}");
    let found = match until {
        WaitFor::Held(query) => simulator.wait_held(&query, timeout).await.map(|held| json!(held)),
        WaitFor::Journal { query, count } => {
            simulator.wait_journal(&query, count, timeout).await.map(|entries| json!(entries))
        }
        WaitFor::System { name, power, progress } => {
            check(simulator, &name)?;
            let look = || {
                let status = simulator.system(&name).ok()?;
                let fits = power.is_none_or(|power| power == status.power)
                    && progress.is_none_or(|progress| progress == status.progress);
                fits.then(|| json!(status))
            };
            simulator.wait_until(&what, timeout, look).await
        }
        WaitFor::Event { system, event, since } => {
            check(simulator, &system)?;
            let look = || {
                let events = simulator.events(&system, since).ok()?;
                events.into_iter().map(|found| json!(found)).find(|found: &Value| found["event"] == event.as_str())
            };
            simulator.wait_until(&what, timeout, look).await
        }
    };
    found.map(Answer::ok).map_err(|error| Answer::error(StatusCode::REQUEST_TIMEOUT, &error))
}

/// Rejects a missing machine immediately, because the wait would always time out.
fn check(simulator: &Simulator, name: &str) -> Result<(), Answer> {
    simulator.system(name).map(drop).map_err(|error: SimulatorError| Answer::error(StatusCode::NOT_FOUND, &error))
}
