//! Requests to servers' own maintenance systems whose maintenance is no more: taken back by whoever
//! meets them.

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

/// How long a request is tried to be taken back of which nothing else depends.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a cluster may take to list requests.
const LOOK: Duration = Duration::from_secs(15);

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// What became of a request whose maintenance was ended as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionResult {
    /// It is gone, or its system lets go of the server.
    Gone,
    /// It is still there.
    Left {
        /// Why it could not be taken back.
        why: String,
        /// How a person takes it back.
        by_hand: String,
    },
}

/// What became of requests whose maintenance is no more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TidySummary {
    /// So many were taken back.
    pub taken_back: usize,
    /// So many could not be.
    pub left: usize,
    /// Requests of waiters that are not known to be gone for good.
    pub waiting: Vec<Remaining>,
    /// Whether a system could not be looked through.
    pub unlisted: bool,
}

/// A request that stays for now, because its waiter may come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// The maintenance.
    pub id: MaintenanceId,
    /// The server.
    pub server: String,
    /// What the request is and what it is called.
    pub name: String,
    /// When this answer may change, on the store's clock; `None`: not by itself.
    pub until: Option<Timestamp>,
    /// What keeps it, for people.
    pub why: String,
}

/// Warns of what follows where a request was withdrawn of a server that was not restored. Without
/// a record it may have been granted.
fn tell_unrestored(server: &str, gate: Option<&GateRecord>, system: &dyn Gate) {
    if gate.is_none_or(|gate| gate.entered)
        && let Some(what) = system.after_no_restore()
    {
        tracing::warn!("{server}: {what}");
    }
}

impl Engine {
    /// Takes back what a record asked of its gates, the innermost first, as far as that can be done
    /// in a short time. `None`: it asked nothing there.
    pub(super) async fn withdraw_from_gates(&self, record: &Maintenance, control: &Control) -> Option<DeletionResult> {
        let mut taken_back = None;
        for gate in record.gates.iter().rev().filter(|gate| (gate.asked || gate.entered) && !gate.left) {
            let done = self.take_back_one(record, gate, control).await;
            // One outside it waits until this one is really back.
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
        // What is deleted in another cluster is not this record's.
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

    /// Until nothing of ours is in the way any more. That a server is on its way back is not waited
    /// for where its request is gone: nobody needs it for that. `trouble`: what went wrong last and
    /// is tried again.
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

    /// Waits for the deletion on behalf of a waiter that leaves the queue.
    pub(super) async fn wait_deleted(&self, system: &dyn Gate, wish: &ExternalRequest) -> Result<(), BackendError> {
        let clock = Arc::clone(&self.parts.clock);
        loop {
            let seen = match system.look(wish, true).await {
                Ok(seen) => seen,
                Err(error) => {
                    // What may not be looked at may be taken back all the same; that it is gone is
                    // then not known.
                    if !error.is_transient() {
                        system.leave(wish).await?;
                    }
                    return Err(error);
                }
            };
            match seen.standing {
                // What is on its way back needs nobody.
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

    /// Takes a request back if it is of our store and its maintenance is no more. Another store's
    /// has somebody there; ours had its record before it was made. `false`: it is not for us to
    /// judge, or somebody drives it.
    pub(super) async fn discard_orphan(&self, request: &ExternalRequestRef) -> Result<bool, EngineError> {
        let unsaid = request.store.is_empty();
        if request.store != self.store().id() && !unsaid {
            return Ok(false);
        }
        let record = match self.store().find_uid(&Uid(request.uid.clone())).await? {
            // An operation that is made holds nothing, and what is left of it would act later.
            Some(RecordLookup::Active(record)) if !record.is_made() => return Ok(false),
            // It may be of a store that knows more.
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
        // What was before parking is in the record only; without it the server is let go, and stays
        // closed to new claims.
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

    /// Every request that one of our processes made, to the servers' own systems first and to the
    /// gates before them afterwards, and whether it is all of them: before a system that could not
    /// be looked through nothing is withdrawn, because what is behind a gate is withdrawn first.
    /// `None`: no system could be.
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
                    tracing::warn!(
                        "the external system did not tell in time whether there are orphaned external requests"
                    );
                    return requests.map(|found| (found, false));
                }
            }
        }
        requests.map(|found| (found, true))
    }

    /// Takes back every request of ours whose maintenance is no more, of one server or of all.
    /// Bounded in time; what cannot be done is told and left for the next time. `None`: there is no
    /// such system, or none could be looked through.
    pub async fn tidy(&self, server: Option<&str>) -> Option<TidySummary> {
        self.drop_lost_places().await;
        let (requests, complete) = self.every_request().await?;
        let mut tidied = TidySummary { unlisted: !complete, ..TidySummary::default() };
        let mut stays = BTreeSet::new();
        for request in requests.iter().filter(|one| server.is_none_or(|server| one.server == server)) {
            // A gate is left once all behind it are.
            if stays.contains(&request.uid) {
                tidied.left += 1;
                tracing::warn!("{}: {} stays, because a request behind it stays", request.server, request.name);
                continue;
            }
            // Letting go of a parked server has a limit of its own, and needs nobody any more once
            // it is over.
            let why = match within(PATIENCE * 2, self.discard_orphan(request)).await {
                Some(Ok(true)) => {
                    tidied.taken_back += 1;
                    continue;
                }
                Some(Ok(false)) => {
                    tidied.waiting.extend(self.remaining(request).await);
                    continue;
                }
                Some(Err(error)) => format!(": {error}"),
                None => " in time".to_owned(),
            };
            tidied.left += 1;
            stays.insert(&request.uid);
            tracing::warn!("{}: {} could not be deleted{why}", request.server, request.name);
        }
        Some(tidied)
    }

    /// What keeps a request of a waiter of this store; `None`: it is of another store, or of a
    /// maintenance that has started.
    async fn remaining(&self, request: &ExternalRequestRef) -> Option<Remaining> {
        if request.store != self.store().id() {
            return None;
        }
        let Ok(Some(RecordLookup::Active(record))) = self.store().find_uid(&Uid(request.uid.clone())).await else {
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
        Some(Remaining { id: record.id.clone(), server, name: request.name.clone(), until, why })
    }

    /// Waiters of which nobody has heard for longer than their place is kept have a request for
    /// nobody.
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
                Err(error) => tracing::debug!(%error, "absent waiters could not be dropped"),
            }
        }
    }
}

/// One look at the rest of a request, and what is to be done about it. `true`: nothing is.
async fn try_release(system: &dyn Gate, wish: &ExternalRequest, order: QueueAuthority) -> Result<bool, BackendError> {
    match system.look(wish, true).await?.standing {
        ExternalState::Absent | ExternalState::Refused(_) | ExternalState::Taken(_) => Ok(true),
        // Another author has the server. Leaving removes only what names our request.
        ExternalState::Lost(_) if order == QueueAuthority::Ours => system.leave(wish).await.map(|()| true),
        ExternalState::Returning(_) if order == QueueAuthority::Theirs => {
            Ok(!system.requests().await?.iter().any(|request| request.uid == wish.uid))
        }
        ExternalState::Returning(_) => Ok(false),
        _ => system.leave(wish).await.map(|()| false),
    }
}
