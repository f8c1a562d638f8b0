//! The server's own maintenance system, where it has one: what is said to it about a record, and taking requests back.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{BackendError, Machine, Outlook},
    clock::{never_beyond, within},
    maintenance::{
        change::{Applied, Change, LockChange},
        native::{Asks, NativeWish, Standing, System},
        spec::{Kind, Policy, Spec},
        state::Maintenance,
        step::Action,
    },
    store::StoreError,
};

use super::{Control, Engine, EngineError, act::LookError, drive::Drive};

/// How long a stop waits until a request is taken back.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// How often requests are looked for that nobody drives.
const TIDY: Duration = Duration::from_mins(1);

/// How long a request may take to be gone where what failed is told afterwards.
const TAKE_BACK: Duration = Duration::from_secs(30);

/// What a drive said to a server's own maintenance system.
#[derive(Debug, Default)]
pub(super) struct Talk {
    /// It noted that a request may be there.
    asked: bool,
    /// On our own clock: requests that nobody drives are looked for again a while after this.
    tidied: Option<Duration>,
}

/// A machine with a maintenance system of its own, and what is said to that about a hold.
pub(super) type Asked = (Arc<dyn Machine>, NativeWish);

/// What is said to a server's own system about a record.
#[must_use]
pub fn wish_of(record: &Maintenance, store: &str) -> NativeWish {
    let native = record.native.as_ref();
    NativeWish {
        uid: record.uid.to_string(),
        id: record.id.to_string(),
        run: record.requester.to_string(),
        asked: native.is_some_and(|native| native.asked),
        memory: native.map(|native| native.memory.clone()).unwrap_or_default(),
        enters: native.is_some_and(|native| native.system.enters),
        entered: native.is_some_and(|native| native.entered),
        namespace: record.location.as_ref().and_then(|location| location.namespace.clone()),
        ..wish_for(&record.spec, &record.owner, store)
    }
}

pub(super) fn wish_for(spec: &Spec, owner: &str, store: &str) -> NativeWish {
    NativeWish {
        store: store.to_owned(),
        uid: String::new(),
        id: String::new(),
        owner: owner.to_owned(),
        run: String::new(),
        asks: match spec.policy {
            Policy::OwnerApproval if !spec.always_perform && spec.require_claim => Asks::OwnerItMustHave,
            Policy::OwnerApproval if !spec.always_perform => Asks::Owner,
            Policy::OwnerApproval | Policy::Enforced => Asks::Nobody,
        },
        priority: spec.priority,
        reason: spec.reason.clone(),
        ticket: spec.ticket.clone(),
        asked: false,
        entered: false,
        enters: spec.kind != Kind::Operation && spec.parent.is_none(),
        namespace: None,
        memory: std::collections::BTreeMap::new(),
    }
}

impl Engine {
    /// Whether a server is part of an external maintenance system.
    #[must_use]
    pub fn is_external(&self, server: &str) -> bool {
        self.machine(server).is_ok_and(|machine| machine.native().is_some())
    }

    /// The server's own maintenance system, as a wish meets it; `None` where it has none.
    pub async fn system(&self, spec: &Spec) -> Result<Option<System>, EngineError> {
        let machine = self.machine(&spec.server)?;
        let Some(native) = machine.native() else { return Ok(None) };
        let system = native.system(spec.kind == Kind::Operation).await?;
        // What acts under a hold was granted with it.
        Ok(Some(System { enters: system.enters && spec.parent.is_none(), ..system }))
    }

    /// What the server's own maintenance system tells a reviewer about a wish; nothing where it has none.
    pub async fn outlook(&self, spec: &Spec, id: Option<&str>) -> Result<Outlook, EngineError> {
        let machine = self.machine(&spec.server)?;
        let Some(native) = machine.native() else { return Ok(Outlook::default()) };
        let spec = self.as_asked_here(spec);
        let wish =
            NativeWish { id: id.unwrap_or_default().to_owned(), ..wish_for(&spec, self.owner(), self.store().id()) };
        Ok(native.outlook(&wish).await?)
    }

    /// The machine of a record, for reading it.
    pub(super) fn machine_of(&self, holder: &Maintenance) -> Result<Arc<dyn Machine>, EngineError> {
        let plain = self.machine(holder.server())?;
        let entered = holder.native.as_ref().is_some_and(|native| native.system.enters);
        Ok(match plain.native().filter(|_| entered) {
            Some(native) => native.shown(&wish_of(holder, self.store().id())),
            None => plain,
        })
    }

    /// Where a held server stands in its own maintenance system; `None` where it has none, or was not entered.
    pub(super) async fn standing(&self, record: &Maintenance) -> Result<Option<Standing>, BackendError> {
        if !record.native.as_ref().is_some_and(|native| native.entered) {
            return Ok(None);
        }
        let machine = self.parts.backend.machine(record.server())?;
        let Some(native) = machine.native() else { return Ok(None) };
        Ok(Some(native.look(&wish_of(record, self.store().id()), false).await?.standing))
    }
}

impl Drive<'_> {
    /// The machine and what is said about the hold, where the server has a maintenance system of its own.
    pub(super) fn native(&self) -> Result<Option<Asked>, EngineError> {
        let Some(holder) = self.holder().filter(|holder| holder.native.is_some()) else { return Ok(None) };
        Ok(Some((self.engine.machine(&self.server)?, wish_of(holder, self.engine.store().id()))))
    }

    pub(super) fn asked_natively(&self) -> bool {
        self.talk.asked || self.record().and_then(|record| record.native.as_ref()).is_some_and(|native| native.asked)
    }

    pub(super) async fn look_native(&mut self, fresh: bool) -> Result<(), LookError> {
        let Some((machine, wish)) = self.native()? else { return Ok(()) };
        let Some(native) = machine.native() else { return Ok(()) };
        // A waiter is told of changes; whoever is about to act has to know.
        self.facts.native = Some(native.look(&wish, fresh || !self.waits() || self.looks_first()).await?);
        Ok(())
    }

    /// Makes or takes back the request of a record that is still in the queue.
    pub(super) async fn ask_native(
        &mut self,
        action: Action,
        deadline: Duration,
        control: &Control,
    ) -> Result<(), EngineError> {
        if let Err(error) = self.engine.lease.keep().await {
            return self.outlast(error, deadline, control).await;
        }
        let renewal = self.engine.lease.renewal();
        // First the note that it may be there: whoever finds the record later knows what to take back.
        match self.apply(&Change::AskExternal).await {
            Ok(Applied::Done) => self.talk.asked = true,
            // The next round finds out who has it now.
            Ok(_) | Err(StoreError::Refused(_)) => return Ok(()),
            Err(error) => return self.outlast(error, deadline, control).await,
        }
        let Some((machine, wish)) = self.native()? else { return Ok(()) };
        let Some(native) = machine.native() else { return Ok(()) };
        if !self.engine.lease.is_safe_with(renewal) {
            return Ok(());
        }
        self.say(&action.to_string());
        let left = self.engine.lease.left_of(renewal);
        let call = never_beyond(left, async {
            if action == Action::EnterNative { native.enter(&wish).await } else { native.leave(&wish).await }
        });
        match call.await {
            None | Some(Ok(())) => Ok(()),
            Some(Err(error)) if error.is_transient() => {
                self.say(&format!("{error}; trying again"));
                self.wait(true, None, deadline, control).await;
                Ok(())
            }
            Some(Err(error)) => Err(self.leave_queue(error, deadline, control).await),
        }
    }

    /// Nothing that waiting would mend: the request is taken back, the record leaves the queue, and the error tells why.
    pub(super) async fn leave_queue(
        &mut self,
        error: BackendError,
        deadline: Duration,
        control: &Control,
    ) -> EngineError {
        let soon = self.engine.parts.clock.monotonic() + TAKE_BACK;
        match self.withdraw_native(deadline.min(soon), control).await {
            Ok(true) => {}
            // Whoever waits next for the server looks for such requests too.
            Ok(false) => tracing::warn!("the request to the server's own maintenance system may still be there"),
            Err(error) => {
                tracing::warn!(%error, "the request to the server's own maintenance system was not taken back");
            }
        }
        self.withdraw().await;
        error.into()
    }

    async fn withdraw(&self) {
        let left = self.apply(&Change::Withdraw).await;
        if let Err(error) = left {
            tracing::warn!(%error, "could not leave the queue; the place is lost when its time is over");
        }
    }

    /// Takes the request back before its record goes. `false`: it could not be seen to be gone in time.
    pub(super) async fn withdraw_native(&mut self, deadline: Duration, control: &Control) -> Result<bool, EngineError> {
        if !self.asked_natively() {
            return Ok(true);
        }
        let Some((machine, wish)) = self.native()? else { return Ok(true) };
        let Some(native) = machine.native() else { return Ok(true) };
        // Who leaves waits for no owner any more. What was noted since the record was seen counts too.
        let wish = NativeWish { asks: Asks::Nobody, asked: true, ..wish };
        let limit = if control.stop.is_cancelled() {
            STOP_GRACE
        } else {
            deadline.saturating_sub(self.engine.parts.clock.monotonic()).max(STOP_GRACE)
        };
        let gone = within(limit, self.engine.until_gone(native, &wish)).await;
        if let Some(Err(error)) = &gone {
            tracing::warn!(%error, "the request to the server's own maintenance system could not be taken back");
        }
        Ok(matches!(gone, Some(Ok(()))))
    }

    /// Takes back requests of ours whose maintenance is no more: somebody died between the two, or did not come back in
    /// time. Whoever waits for the same server does it, because such a request may be the one it waits for.
    pub(super) async fn tidy_native(&mut self) {
        let now = self.engine.parts.clock.monotonic();
        if !self.asked_natively() || self.talk.tidied.is_some_and(|at| now.saturating_sub(at) < TIDY) {
            return;
        }
        self.talk.tidied = Some(now);
        if let Err(error) = self.engine.apply(&self.key, &LockChange::DropAbsent).await {
            tracing::debug!(%error, "absent waiters could not be dropped");
        }
        if let Err(error) = self.discard_orphans().await {
            tracing::warn!(%error, "orphaned external requests could not be listed");
        }
    }

    async fn discard_orphans(&self) -> Result<(), EngineError> {
        let Some((machine, _)) = self.native()? else { return Ok(()) };
        let Some(native) = machine.native() else { return Ok(()) };
        for request in native.requests().await? {
            self.engine.discard_orphan(&request).await?;
        }
        Ok(())
    }
}
