//! Changes that Ironic accepted (202) and carries out afterwards: what became of them.
//!
//! Ironic 39.0.0 keeps the error of the last change on the node (`last_error`), and clears it when
//! the next one begins.

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

/// A change that was accepted.
#[derive(Clone, Debug)]
pub(super) struct Accepted {
    /// What was sent, as errors call it.
    pub(super) request: String,
    /// For a power change: which one.
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
            // What leads towards a state may be sent again.
            Some(ResetType::On | ResetType::ForceOff) => self.rejected(&request, &answer, true),
            None | Some(ResetType::GracefulShutdown) => self.rejected(&request, &answer, false),
            Some(_) => BackendError::OutcomeUnknown { address: self.address(), request, answer },
        }
    }

    /// Waits a little for the end of a change. One that takes longer is told by
    /// [`Self::ended_late`].
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

    /// The error of a change that was still carried out when its call returned. Told once.
    pub(super) async fn ended_late(&self) -> Option<BackendError> {
        // Without one of this node, nothing is asked for it.
        if !self.unsettled().contains_key(&self.server) {
            return None;
        }
        let node = self.fleet.read(&self.server).await.ok().filter(|node| !node.is_changing())?;
        let change = self.unsettled().remove(&self.server)?;
        node.last_error.as_deref().map(|answer| self.failed(change, answer))
    }
}
