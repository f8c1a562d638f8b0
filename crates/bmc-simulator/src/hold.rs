//! Requests that wait until a test releases them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::clock::Timeline;
use crate::fault::Phase;
use crate::glob;

/// A held request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRequest {
    /// The request's sequence number in the journal; it identifies the held request.
    pub sequence: u64,
    /// The BMC's name.
    pub bmc: String,
    /// The machine's name.
    pub system: Option<String>,
    /// The method.
    pub method: String,
    /// The path.
    pub path: String,
    /// Whether it was executed already.
    pub phase: Phase,
}

/// Selects held requests; every given field must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HeldQuery {
    /// The machine's name.
    pub system: Option<String>,
    /// The method.
    pub method: Option<String>,
    /// A pattern for the path; `*` matches any text.
    pub path: Option<String>,
    /// The phase.
    pub phase: Option<Phase>,
}

impl HeldQuery {
    fn matches(&self, held: &HeldRequest) -> bool {
        (self.system.is_none() || self.system == held.system)
            && self.method.as_ref().is_none_or(|method| *method == held.method)
            && self.path.as_ref().is_none_or(|path| glob::matches(path, &held.path))
            && self.phase.is_none_or(|phase| phase == held.phase)
    }
}

#[derive(Debug)]
pub(crate) struct Holds {
    held: Mutex<BTreeMap<u64, (HeldRequest, oneshot::Sender<()>)>>,
    timeline: Arc<Timeline>,
}

impl Holds {
    pub(crate) fn new(timeline: Arc<Timeline>) -> Self {
        Self { held: Mutex::default(), timeline }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (HeldRequest, oneshot::Sender<()>)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until released. If the caller is dropped, the entry is removed.
    pub(crate) async fn stall(&self, request: HeldRequest) {
        struct Entry<'a>(&'a Holds, u64);
        impl Drop for Entry<'_> {
            fn drop(&mut self) {
                self.0.lock().remove(&self.1);
                self.0.timeline.announce();
            }
        }
        let (release, released) = oneshot::channel();
        let entry = Entry(self, request.sequence);
        self.lock().insert(request.sequence, (request, release));
        self.timeline.announce();
        // An error means that the simulator has stopped, which also releases.
        let _ = released.await;
        drop(entry);
    }

    pub(crate) fn list(&self, query: &HeldQuery) -> Vec<HeldRequest> {
        self.lock().values().map(|(held, _)| held).filter(|held| query.matches(held)).cloned().collect()
    }

    pub(crate) fn release(&self, sequence: u64) -> bool {
        self.lock().remove(&sequence).is_some_and(|(_, release)| release.send(()).is_ok())
    }

    pub(crate) fn release_all(&self) -> usize {
        let held = std::mem::take(&mut *self.lock());
        held.into_values().filter_map(|(_, release)| release.send(()).ok()).count()
    }
}
