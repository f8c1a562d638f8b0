//! Finds the server among a BMC's systems. Other systems never block the search.

use std::{collections::HashMap, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use serde_json::Value;

use crate::{
    backend::BackendError,
    clock::{no_answer_within, within},
};

use super::{
    machine::{RedfishMachine, SYSTEMS},
    system,
};

/// The largest number of systems that are read to find the server.
const MOST_SEARCHED: usize = 8;
/// How long the other systems can take after the server has answered.
const FOR_SIBLINGS: Duration = Duration::from_secs(15);

impl RedfishMachine {
    /// Searches from the service root to the system.
    pub(super) async fn find(&self) -> Result<String, BackendError> {
        // NVIDIA DGX has the standard collection without a link in the root.
        let mut members = match self.members(SYSTEMS).await {
            Ok(members) => members,
            Err(error @ BackendError::Rejected { status: 404 | 405, .. }) => {
                let root = self.bmc.get("/redfish/v1/").await?.body;
                match root["Systems"]["@odata.id"].as_str().filter(|path| path.trim_end_matches('/') != SYSTEMS) {
                    Some(path) => self.members(path).await?,
                    None => return Err(error),
                }
            }
            Err(error) => return Err(error),
        };
        if self.system_id.is_none() && (2..=MOST_SEARCHED).contains(&members.len()) {
            members = self.with_reset(members).await?;
        }
        let names = || {
            let shown: Vec<String> = members.iter().take(10).map(|path| name(path)).collect();
            let more = if members.len() > 10 { format!(" and {} more", members.len() - 10) } else { String::new() };
            format!("{}{more}", shown.join(", "))
        };
        match (&self.system_id, members.as_slice()) {
            (Some(id), _) => members.iter().find(|path| *path == id || name(path) == *id).cloned().ok_or_else(|| {
                self.bmc.no_system(&format!("it does not have a system {id:?}; set system_id to one of: {}", names()))
            }),
            (None, [only]) => Ok(only.clone()),
            (None, []) => Err(self.bmc.no_system("it does not have a system")),
            (None, _) => Err(self.bmc.no_system(&format!(
                "it has {} systems; set system_id to one of: {}",
                members.len(),
                names()
            ))),
        }
    }

    /// Returns the only member that supports reset, or all members if there are several or none.
    ///
    /// A board next to the host is a system without reset. NVIDIA's `HGX_Baseboard_0` answers 503
    /// while its host is off. So a failing member is ignored if exactly one other member supports
    /// reset.
    async fn with_reset(&self, members: Vec<String>) -> Result<Vec<String>, BackendError> {
        let read = self.siblings(&members, false).await;
        let names = || members.iter().map(|path| name(path)).collect::<Vec<_>>().join(", ");
        let able: Vec<String> =
            read.iter().filter(|(_, it)| supports_reset(it)).map(|(path, _)| (*path).clone()).collect();
        let failed = read.into_iter().find_map(|(path, it)| Some((path, it.err()?)));
        match (able.as_slice(), failed) {
            ([only], failed) => {
                if let Some((path, cause)) = failed {
                    tracing::warn!(
                        "{}: the provider uses system {}, because only it supports reset; {} failed ({cause}). Set \
                         system_id to choose one of: {}",
                        self.bmc.address(),
                        name(only),
                        name(path),
                        names()
                    );
                }
                Ok(able)
            }
            ([], Some((_, cause))) => Err(with_hint(cause, &format!("set system_id to one of: {}", names()))),
            _ => Ok(members),
        }
    }

    /// Reads systems and returns them in the list's order. A failure does not mark the BMC as down.
    /// After a system with reset has answered, or if `answered`, the others get a limited time.
    pub(super) async fn siblings<'a>(
        &self,
        systems: &'a [String],
        mut answered: bool,
    ) -> Vec<(&'a String, Result<Value, BackendError>)> {
        let mut reads: FuturesUnordered<_> =
            systems.iter().map(|path| async move { (path, self.bmc.probe(path).await) }).collect();
        let mut read = HashMap::new();
        loop {
            let next = if answered { within(FOR_SIBLINGS, reads.next()).await } else { Some(reads.next().await) };
            let Some(Some((path, answer))) = next else { break };
            answered |= supports_reset(&answer);
            read.insert(path, answer);
        }
        if read.values().any(Result::is_ok) {
            self.bmc.is_up();
        }
        let silent = || {
            let cause = no_answer_within(FOR_SIBLINGS);
            Err(BackendError::Unreachable { address: self.bmc.address().into(), cause: cause.into() })
        };
        systems.iter().map(|path| (path, read.remove(path).unwrap_or_else(silent))).collect()
    }
}

/// Returns true for a system that answered and supports reset: a server, not one of its boards.
pub(super) fn supports_reset(answer: &Result<Value, BackendError>) -> bool {
    answer.as_ref().is_ok_and(|system| system::reset_action(system).target.is_some())
}

/// Returns a resource's ID: the last segment in its path.
pub(super) fn name(path: &str) -> String {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned()
}

/// Appends a configuration hint to an error.
fn with_hint(error: BackendError, hint: &str) -> BackendError {
    let more = |text: String| format!("{text}; {hint}");
    match error {
        BackendError::Unreachable { address, cause } | BackendError::ReplyLost { address, cause, .. } => {
            BackendError::Unreachable { address, cause: more(cause.into_raw()).into() }
        }
        BackendError::Protocol { address, what } => {
            BackendError::Protocol { address, what: more(what.into_raw()).into() }
        }
        BackendError::Rejected { address, request, status, message, retry_after, transient } => {
            BackendError::Rejected {
                address,
                request,
                status,
                message: more(message.into_raw()).into(),
                retry_after,
                transient,
            }
        }
        other => other,
    }
}
