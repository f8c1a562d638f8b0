//! Which of our attachments are driven, and how the rest is let go.
//!
//! An attachment is good as long as its process lives. Where nothing drives it any more (a read
//! failed after the commit, the commit's reply was lost, a detach did not arrive, a panic) it would
//! keep a server from others for as long as the process works on anything at all. So each
//! attachment has a guard from before its transaction on, and the keeper of the lease ends those
//! that have none.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use uuid::Uuid;

use crate::{
    maintenance::ids::{LockKey, RunnerId, Token},
    store::{Store, StoreError},
};

/// How many heartbeats look for an attachment whose guard ended without a detach. More than one: a
/// commit without a reply may arrive late.
const LOOKS: u32 = 4;

#[derive(Debug, Default)]
struct AttachmentSet {
    driven: Vec<Token>,
    /// Locks where an attachment may be left, and how often they are looked at yet.
    left: BTreeMap<LockKey, u32>,
}

/// The attachments of one process.
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

    /// The attachments that are driven, or about to be.
    pub(super) fn driven(&self) -> Vec<Token> {
        self.known().driven.clone()
    }

    /// Ends the attachments of `runner` that nothing drives, where there may be some.
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

/// The guard of one attachment: it is driven for as long as this lives.
#[derive(Debug)]
pub(super) struct Driving {
    attachments: Attachments,
    key: LockKey,
    token: Token,
    over: bool,
}

impl Driving {
    /// The random number of the attachment.
    pub(super) fn token(&self) -> Token {
        self.token
    }

    /// Passes an answer of the store on. A transition that was refused attached to nothing.
    pub(super) fn over_if_refused<T>(&mut self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        self.over |= matches!(answer, Err(StoreError::Refused(_) | StoreError::NameTaken { .. }));
        answer
    }

    /// The store knows that it is over: there is nothing to let go.
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
