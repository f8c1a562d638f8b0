//! Tracks this process's driven attachments and detaches the others.
//!
//! An attachment is valid while its process lives. It can lose its drive: a read fails after the
//! commit, the commit's reply is lost, a detach does not arrive, or a panic occurs. It would then
//! block the server until the process ends. So each attachment has a guard that exists before its
//! transaction, and the lease keeper ends attachments without a guard.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use uuid::Uuid;

use crate::{
    maintenance::ids::{LockKey, RunnerId, Token},
    store::{Store, StoreError},
};

/// How many heartbeats look for an attachment whose guard ended without a detach. More than one,
/// because a commit without a reply can arrive late.
const LOOKS: u32 = 4;

#[derive(Debug, Default)]
struct AttachmentSet {
    driven: Vec<Token>,
    /// Locks that can have an undriven attachment, with the number of remaining checks.
    left: BTreeMap<LockKey, u32>,
}

/// The process's attachments.
#[derive(Clone, Debug, Default)]
pub(super) struct Attachments(Arc<Mutex<AttachmentSet>>);

impl Attachments {
    fn known(&self) -> MutexGuard<'_, AttachmentSet> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an attachment, before its transaction.
    pub(super) fn begin(&self, key: &LockKey) -> Driving {
        let token = Token(Uuid::new_v4());
        self.known().driven.push(token);
        Driving { attachments: self.clone(), key: key.clone(), token, over: false }
    }

    /// Returns the attachments that are driven or about to be.
    pub(super) fn driven(&self) -> Vec<Token> {
        self.known().driven.clone()
    }

    /// Ends undriven attachments of `runner` in the locks that can have some.
    pub(super) async fn detach_undriven(&self, store: &dyn Store, runner: &RunnerId) -> Result<(), StoreError> {
        let keys: Vec<LockKey> = self.known().left.keys().cloned().collect();
        for key in keys {
            store
                .transact(&key, &mut |lock, _, now| {
                    for id in lock.detach_undriven(runner, &self.driven(), now) {
                        tracing::info!(%id, "no process acts on it any more: its queue position is reserved");
                    }
                    Ok(())
                })
                .await?;
            let mut known = self.known();
            if let Some(looks) = known.left.get_mut(&key) {
                *looks = looks.saturating_sub(1);
            }
            known.left.retain(|_, looks| *looks > 0);
        }
        Ok(())
    }
}

/// Guards one attachment: it is driven while this exists.
#[derive(Debug)]
pub(super) struct Driving {
    attachments: Attachments,
    key: LockKey,
    token: Token,
    over: bool,
}

impl Driving {
    /// Returns the attachment's random number.
    pub(super) fn token(&self) -> Token {
        self.token
    }

    /// Passes a store's answer on. A rejected transition did not attach.
    pub(super) fn over_if_refused<T>(&mut self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        self.over |= matches!(answer, Err(StoreError::Refused(_) | StoreError::NameTaken { .. }));
        answer
    }

    /// Marks the attachment as ended in the store, so the drop does nothing.
    pub(super) fn over(&mut self) {
        self.over = true;
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        let mut known = self.attachments.known();
        known.driven.retain(|token| *token != self.token);
        if !self.over {
            known.left.insert(self.key.clone(), LOOKS);
        }
    }
}
