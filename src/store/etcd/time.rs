//! What time it is for everybody who shares the store.
//!
//! etcd's own protocol tells no time, but each of its servers answers HTTP on the same port.
//! Whether a process is alive never hangs on that: etcd's leases say that.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;

use super::fault::ErrorMapper;
use crate::{
    clock::{Clock, within},
    store::{
        StoreError,
        told::{ToldTime, of_date},
    },
};

/// How long one server has for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A clock that the store's servers set.
#[derive(Debug)]
pub(super) struct ServerTime {
    told: ToldTime,
    http: reqwest::Client,
    endpoints: Vec<String>,
    faults: ErrorMapper,
}

impl ServerTime {
    pub(super) fn new(
        given: Option<Arc<dyn Clock>>,
        clock: Arc<dyn Clock>,
        http: reqwest::Client,
        endpoints: Vec<String>,
        faults: ErrorMapper,
    ) -> Self {
        Self { told: ToldTime::new(given, clock), http, endpoints, faults }
    }

    /// The store's time.
    pub(super) async fn now(&self) -> Result<Timestamp, StoreError> {
        self.told.now(self.ask_all()).await
    }

    async fn ask_all(&self) -> Result<Timestamp, StoreError> {
        let mut problem = String::new();
        for endpoint in &self.endpoints {
            match self.ask(endpoint).await {
                Ok(at) => return Ok(at),
                Err(error) => problem = error,
            }
        }
        Err(self.faults.unavailable(format!("it does not tell the time: GET {problem}")))
    }

    async fn ask(&self, endpoint: &str) -> Result<Timestamp, String> {
        let url = format!("{endpoint}/version");
        let asked = async { self.http.get(&url).send().await };
        let reply = within(PATIENCE, asked).await.ok_or_else(|| format!("{url}: no answer"))?;
        let reply = reply.map_err(|error| format!("{url}: {}", error.without_url()))?;
        let date = reply.headers().get("date").and_then(|date| date.to_str().ok());
        of_date(date).map_err(|error| format!("{url}: {error}"))
    }
}
