//! Withdraws orphaned requests: requests to external systems whose maintenance has ended.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::Timestamp;

use crate::{
    backend::{BackendError, ExternalRequestRef, Gate, plug::plugin_at},
    clock::within,
    maintenance::{
        change::{Applied, LockChange},
        gate::{self, Asks, ExternalRequest, ExternalState, GateRecord, QueueAuthority},
        ids::{MaintenanceId, Uid},
        lock::place_kept_until,
        queue::shown_time,
        state::{Maintenance, Phase},
    },
    store::RecordLookup,
};

use super::{
    Control, Engine, EngineError,
    gate::{GateRef, wish_to},
};

/// Time limit for a withdrawal on which nothing depends.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time limit for listing a cluster's requests.
const LOOK: Duration = Duration::from_secs(15);

/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// Result of withdrawing a request after a release without a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionResult {
    /// It was deleted, or its system releases the server.
    Gone,
    /// It still exists.
    Left {
        /// Why it could not be withdrawn.
        why: String,
        /// How a person can withdraw it.
        by_hand: String,
    },
}

/// Result of withdrawing orphaned requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneSummary {
    /// Number of withdrawn requests.
    pub taken_back: usize,
    /// Number of requests that could not be withdrawn.
    pub left: usize,
    /// Requests of waiters that can still return.
    pub waiting: Vec<Remaining>,
    /// True if a system could not be listed.
    pub unlisted: bool,
}

/// A request that stays, because its waiter can return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// The maintenance.
    pub id: MaintenanceId,
    /// The server.
    pub server: String,
    /// The request's kind and name.
    pub name: String,
    /// When this can change, on the store's clock; `None`: not automatically.
    pub until: Option<Timestamp>,
    /// Why it stays, for messages.
    pub why: String,
}

/// Warns about a withdrawal without a restore. A request without a record can have been granted.
fn tell_unrestored(server: &str, gate: Option<&GateRecord>, system: &dyn Gate) {
    if gate.is_none_or(|gate| gate.entered)
        && let Some(what) = system.after_no_restore()
    {
        tracing::warn!("{server}: {what}");
    }
}

impl Engine {
    /// Withdraws a record's gate requests within a short time limit, innermost first. `None`: it
    /// has not sent requests.
    pub(super) async fn withdraw_from_gates(&self, record: &Maintenance, control: &Control) -> Option<DeletionResult> {
        let mut taken_back = None;
        for gate in record.gates.iter().rev().filter(|gate| (gate.asked || gate.entered) && !gate.left) {
            let done = self.take_back_one(record, gate, control).await;
            // An outer request waits until the inner request is withdrawn.
            if matches!(done, DeletionResult::Left { .. }) {
                return Some(done);
            }
            taken_back = Some(done);
        }
        taken_back
    }

    async fn take_back_one(&self, record: &Maintenance, gate: &GateRecord, control: &Control) -> DeletionResult {
        let wish = ExternalRequest { asks: Asks::Nobody, ..wish_to(record, Some(gate), self.store().id()) };
        let link = self.link(record.server(), gate).ok().flatten();
        let order = gate.system.order;
        let Some(system) = link.as_ref().and_then(GateRef::gate) else {
            let place = plugin_at(record.location.as_ref());
            let why = match place {
                Some(place) => {
                    format!("this command does not reach its external system: run it with {}", place.reach())
                }
                None => "this command does not reach its external system".to_owned(),
            };
            let own = place.filter(|_| gate.system.gate.is_none());
            let by_hand = own.and_then(|place| place.by_hand(record.server()));
            let by_hand = by_hand.unwrap_or_else(|| format!("{} shows it, and removes it", gate.system.name));
            return DeletionResult::Left { why, by_hand };
        };
        // An object in another cluster does not belong to this record.
        if gate.system.gate.is_none()
            && let Err(error @ EngineError::Refused(_)) = self.reaches(record).await
        {
            return DeletionResult::Left { why: error.to_string(), by_hand: system.by_hand(&wish, order) };
        }
        let mut trouble = None;
        let gone = within(PATIENCE.min(control.timeout), self.until_let_go(system, &wish, order, &mut trouble));
        let gone = tokio::select! {
            gone = gone => gone,
            () = control.stop.cancelled() => None,
        };
        let why = match gone {
            Some(Ok(())) => {
                tell_unrestored(record.server(), Some(gate), system);
                return DeletionResult::Gone;
            }
            Some(Err(error)) => error.to_string(),
            None => trouble.map_or_else(|| "it did not end in time".to_owned(), |error| error.to_string()),
        };
        DeletionResult::Left { why, by_hand: system.by_hand(&wish, order) }
    }

    /// Waits until no request of ours blocks the server. After the request's deletion, the system
    /// returns the server without us. `trouble` receives the last transient error.
    async fn until_let_go(
        &self,
        system: &dyn Gate,
        wish: &ExternalRequest,
        order: QueueAuthority,
        trouble: &mut Option<BackendError>,
    ) -> Result<(), BackendError> {
        loop {
            match try_release(system, wish, order).await {
                Ok(true) => return Ok(()),
                Ok(false) => *trouble = None,
                Err(error) if error.is_transient() => *trouble = Some(error),
                Err(error) => return Err(error),
            }
            tokio::select! {
                () = system.changed() => {}
                () = self.parts.clock.sleep(PAUSE) => {}
            }
        }
    }

    /// Waits until a leaving waiter's request is deleted.
    pub(super) async fn wait_deleted(&self, system: &dyn Gate, wish: &ExternalRequest) -> Result<(), BackendError> {
        let clock = Arc::clone(&self.parts.clock);
        loop {
            let seen = match system.look(wish, true).await {
                Ok(seen) => seen,
                Err(error) => {
                    // Withdraw even without permission to read; the deletion is then unconfirmed.
                    if !error.is_transient() {
                        system.leave(wish).await?;
                    }
                    return Err(error);
                }
            };
            match seen.standing {
                ExternalState::Absent | ExternalState::Refused(_) | ExternalState::Taken(_) => return Ok(()),
                ExternalState::Returning(_) => {}
                ExternalState::Waiting(_)
                | ExternalState::Entering(_)
                | ExternalState::Granted
                | ExternalState::Lost(_)
                | ExternalState::Failed(_)
                | ExternalState::Leftovers(_) => {
                    system.leave(wish).await?;
                }
            }
            tokio::select! {
                () = system.changed() => {}
                () = clock.sleep(PAUSE) => {}
            }
        }
    }

    /// Withdraws an orphaned request of this store. Returns false for other stores' requests and
    /// for active records. Our records precede their requests, so a missing record has ended.
    pub(super) async fn discard_orphan(&self, request: &ExternalRequestRef) -> Result<bool, EngineError> {
        let unsaid = request.store.is_empty();
        if request.store != self.store().id() && !unsaid {
            return Ok(false);
        }
        let record = match self.store().find_uid(&Uid::new(request.uid.clone())).await? {
            // A completed operation has released its server, and its leftover request would act
            // later.
            Some(RecordLookup::Active(record)) if !record.is_made() => return Ok(false),
            // Without a store ID, the request can belong to another store.
            None if unsaid => return Ok(false),
            Some(RecordLookup::Active(record) | RecordLookup::Past(record)) => Some(record),
            None => None,
        };
        let machine = self.machine(&request.server);
        let link = match request.gate {
            None => Some(GateRef::Own(machine?)),
            Some(id) => {
                let kind = self.parts.gates.iter().find(|kind| kind.id() == id);
                kind.map(|kind| GateRef::Before(kind.of(&request.server, machine.ok())))
            }
        };
        let Some(system) = link.as_ref().and_then(GateRef::gate) else { return Ok(false) };
        tracing::info!(
            "{}: deleting {}, whose maintenance has ended and which no process acts on",
            request.server,
            request.name
        );
        let mut gates = record.iter().flat_map(|record| &record.gates);
        let gate = gates.find(|gate| gate.system.gate.as_deref() == request.gate).cloned();
        // Only the record contains the state before parking. Without it the server is released, and
        // stays closed to new claims.
        let Some(record) = record.filter(|_| request.parks) else {
            system.discard(request).await?;
            tell_unrestored(&request.server, gate.as_ref(), system);
            return Ok(true);
        };
        let wish = wish_to(&record, gate.as_ref(), self.store().id());
        let wish = ExternalRequest { asks: Asks::Nobody, asked: true, ..wish };
        let mut trouble = None;
        match (within(PATIENCE, self.until_let_go(system, &wish, QueueAuthority::Ours, &mut trouble)).await, trouble) {
            (Some(done), _) => {
                done?;
                tell_unrestored(&request.server, gate.as_ref(), system);
            }
            (None, Some(error)) => return Err(error.into()),
            (None, None) => tracing::warn!("{}: the external system has not released the server yet", request.server),
        }
        Ok(true)
    }

    /// Lists all our requests, first to the servers' own systems, then to the gates in front of
    /// them. Stops with false at the first system that cannot be listed, because inner requests are
    /// withdrawn first. `None`: no system was listed.
    async fn every_request(&self) -> Option<(Vec<ExternalRequestRef>, bool)> {
        let mut requests = None;
        let mut looks = vec![within(LOOK, self.parts.backend.external_requests()).await];
        for kind in self.parts.gates.iter().rev() {
            looks.push(within(LOOK, kind.requests()).await);
        }
        for look in looks {
            match look {
                Some(None) => {}
                Some(Some(Ok(more))) => requests.get_or_insert_with(Vec::new).extend(more),
                Some(Some(Err(error))) => {
                    tracing::warn!("orphaned external requests could not be listed: {error}");
                    return requests.map(|found| (found, false));
                }
                None => {
                    tracing::warn!("the external system did not list orphaned external requests in time");
                    return requests.map(|found| (found, false));
                }
            }
        }
        requests.map(|found| (found, true))
    }

    /// Withdraws all orphaned requests, for one server or all. Bounded in time; failures are logged
    /// and retried the next time. `None`: no system was listed.
    pub async fn prune(&self, server: Option<&str>) -> Option<PruneSummary> {
        self.drop_lost_places().await;
        let (requests, complete) = self.every_request().await?;
        let mut pruned = PruneSummary { unlisted: !complete, ..PruneSummary::default() };
        let mut stays = BTreeSet::new();
        for request in requests.iter().filter(|one| server.is_none_or(|server| one.server == server)) {
            // Inner gates come first.
            if stays.contains(&request.uid) {
                pruned.left += 1;
                tracing::warn!("{}: {} stays, because a request behind it stays", request.server, request.name);
                continue;
            }
            // Releasing a parked server has its own time limit. Afterwards the system continues
            // without us.
            let why = match within(PATIENCE * 2, self.discard_orphan(request)).await {
                Some(Ok(true)) => {
                    pruned.taken_back += 1;
                    continue;
                }
                Some(Ok(false)) => {
                    pruned.waiting.extend(self.remaining(request).await);
                    continue;
                }
                Some(Err(error)) => format!(": {error}"),
                None => " in time".to_owned(),
            };
            pruned.left += 1;
            stays.insert(&request.uid);
            tracing::warn!("{}: {} could not be deleted{why}", request.server, request.name);
        }
        Some(pruned)
    }

    /// Returns why a waiter's request stays; `None` for another store's request or a started
    /// maintenance.
    async fn remaining(&self, request: &ExternalRequestRef) -> Option<Remaining> {
        if request.store != self.store().id() {
            return None;
        }
        let Ok(Some(RecordLookup::Active(record))) = self.store().find_uid(&Uid::new(request.uid.clone())).await else {
            return None;
        };
        if record.phase != Phase::Pending {
            return None;
        }
        let view = self.store().view(&record.lock_key).await.ok()?;
        let alive = record.attachment.as_ref().filter(|attachment| view.leases.alive(attachment, view.now));
        let (until, why) = if let Some(attachment) = alive {
            let until = view.leases.until(attachment);
            let shown = until.map(shown_time).unwrap_or_default();
            (
                until,
                format!("attached to {}, its lease ends at {shown} unless the process renews it", attachment.runner),
            )
        } else {
            let until = place_kept_until(&record, &view.leases, view.now);
            let shown =
                until.map_or_else(|| "without a limit".to_owned(), |until| format!("until {}", shown_time(until)));
            (until, format!("no process, its queue position is reserved {shown}"))
        };
        let server = record.server().to_owned();
        Some(Remaining { id: record.id.clone(), server, name: request.name.clone(), until, why: why.clone() })
    }

    /// Drops waiters whose queue position has expired, because their requests serve no process.
    async fn drop_lost_places(&self) {
        let Ok(views) = self.store().view_all().await else { return };
        let asks = |record: &Maintenance| record.phase == Phase::Pending && gate::is_asked(record);
        for view in views.iter().filter(|view| view.lock.active.iter().any(|record| asks(record))) {
            match self.apply(&view.lock.key, &LockChange::DropAbsent).await {
                Ok(applied) => {
                    let Applied::Dropped(lost) = applied else { continue };
                    for id in &lost {
                        tracing::info!("{id} lost its position: it was not resumed in time");
                    }
                }
                Err(error) => tracing::debug!(%error, "disconnected waiters could not be removed from the queue"),
            }
        }
    }
}

/// Reads a withdrawn request once and acts on it. Returns true if nothing remains to do.
async fn try_release(system: &dyn Gate, wish: &ExternalRequest, order: QueueAuthority) -> Result<bool, BackendError> {
    match system.look(wish, true).await?.standing {
        ExternalState::Absent | ExternalState::Refused(_) | ExternalState::Taken(_) => Ok(true),
        // Another author has the server. Leaving removes only the objects that name our request.
        ExternalState::Lost(_) if order == QueueAuthority::Ours => system.leave(wish).await.map(|()| true),
        ExternalState::Returning(_) if order == QueueAuthority::Theirs => {
            Ok(!system.requests().await?.iter().any(|request| request.uid == wish.uid))
        }
        ExternalState::Returning(_) => Ok(false),
        _ => system.leave(wish).await.map(|()| false),
    }
}
