//! Outcomes of changes that Ironic accepts (202) and performs later.
//!
//! Ironic 39.0.0 stores the last change's error on the node (`last_error`) and clears it when the
//! next change starts.

use std::{
    collections::BTreeMap,
    sync::{MutexGuard, PoisonError},
};

use crate::{
    backend::{BackendError, Machine as _},
    maintenance::machine::ResetType,
    shown,
};

use super::{
    machine::{NEXT, NodeMachine},
    node::Node,
};

#[derive(Clone, Debug)]
pub(super) struct Accepted {
    /// The request, as errors name it.
    pub(super) request: String,
    /// The reset type of a power change.
    pub(super) reset: Option<ResetType>,
}

impl NodeMachine {
    fn unsettled(&self) -> MutexGuard<'_, BTreeMap<String, Accepted>> {
        self.fleet.unsettled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, change: Accepted, answer: &str) -> BackendError {
        let answer = shown::line(answer).into_owned();
        let Accepted { request, reset } = change;
        match reset {
            // Repeating a change to a fixed state is safe.
            Some(ResetType::On | ResetType::ForceOff) => self.rejected(&request, &answer, true),
            None | Some(ResetType::GracefulShutdown) => self.rejected(&request, &answer, false),
            Some(_) => BackendError::OutcomeUnknown {
                address: self.address().into(),
                request: request.into(),
                answer: answer.into(),
            },
        }
    }

    /// Waits briefly for a change to finish. [`Self::ended_late`] reports changes that take longer.
    pub(super) async fn soon(&self, node: &Node, change: Accepted) -> Result<(), BackendError> {
        match self.fleet.settled(node, NEXT).await {
            Ok(seen) if !seen.is_changing() => match &seen.last_error {
                Some(answer) => Err(self.failed(change, answer)),
                None => Ok(()),
            },
            Ok(_) | Err(_) => {
                self.unsettled().insert(self.server.clone(), change);
                Ok(())
            }
        }
    }

    /// Returns, once, a change's error that appeared after its call had returned.
    pub(super) async fn ended_late(&self) -> Option<BackendError> {
        // Without a pending change for this node, no request is sent.
        if !self.unsettled().contains_key(&self.server) {
            return None;
        }
        let node = self.fleet.read(&self.server).await.ok().filter(|node| !node.is_changing())?;
        let change = self.unsettled().remove(&self.server)?;
        node.last_error.as_deref().map(|answer| self.failed(change, answer))
    }
}
