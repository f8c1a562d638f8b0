//! A store in memory, for tests and as the simplest reference for store behaviour.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::watch;
use uuid::Uuid;

use super::{
    AuditLine, AuditPosition, AuditStart, Contents, LockView, RecordLookup, SWEEPER, Store, StoreError, Transition,
    forgotten_before, lease_end, watchers::Watchers,
};
use crate::{
    clock::Clock,
    maintenance::{
        ids::{LockKey, MaintenanceId, Runner, RunnerId, Uid},
        lock::{AuditEvent, Leases, ServerLock},
        state::Maintenance,
    },
};

#[derive(Debug, Default)]
struct MemoryState {
    locks: BTreeMap<LockKey, Arc<ServerLock>>,
    /// Ended records, in the order in which they ended.
    history: Vec<Maintenance>,
    leases: HashMap<RunnerId, Timestamp>,
    bindings: HashMap<String, LockKey>,
    /// Audit lines with their numbers.
    audit: Vec<(i64, AuditEvent)>,
    last_line: i64,
    revision: i64,
}

impl MemoryState {
    fn lock(&self, key: &LockKey) -> Arc<ServerLock> {
        self.locks.get(key).cloned().unwrap_or_else(|| Arc::new(ServerLock::new(key.clone())))
    }

    fn leases(&self, lock: &ServerLock) -> Leases {
        let runners = lock.active.iter().filter_map(|record| Some(record.attachment.as_ref()?.runner.id.clone()));
        Leases(runners.filter_map(|id| self.leases.get(&id).map(|until| (id, *until))).collect())
    }

    fn view(&self, lock: Arc<ServerLock>, now: Timestamp) -> LockView {
        let leases = self.leases(&lock);
        LockView::new(lock, leases, now)
    }

    fn active(&self, wanted: impl Fn(&Maintenance) -> bool) -> Option<&Maintenance> {
        self.locks.values().flat_map(|lock| &lock.active).map(Deref::deref).find(|record| wanted(record))
    }

    fn write_down(&mut self, events: &[AuditEvent]) {
        for event in events {
            self.last_line += 1;
            self.audit.push((self.last_line, event.clone()));
        }
    }

    fn find(&self, wanted: impl Fn(&Maintenance) -> bool) -> Option<RecordLookup> {
        let past = || self.history.iter().rev().find(|record| wanted(record));
        self.active(&wanted)
            .map(|record| RecordLookup::Active(Box::new(record.clone())))
            .or_else(|| past().map(|record| RecordLookup::Past(Box::new(record.clone()))))
    }
}

/// A store in memory. Clones of its `Arc` are handles.
#[derive(Debug)]
pub struct MemoryStore {
    id: String,
    clock: Arc<dyn Clock>,
    state: Mutex<MemoryState>,
    watchers: Watchers,
}

impl MemoryStore {
    /// Returns an empty store on the given clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { id: Uuid::new_v4().simple().to_string(), clock, state: Mutex::default(), watchers: Watchers::default() }
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        // Transitions work on a copy, so a panic leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn id(&self) -> &str {
        &self.id
    }

    fn address(&self) -> String {
        "memory://".to_owned()
    }

    fn reach_warning(&self) -> Option<String> {
        Some("It exists only in this process's memory, so other processes cannot read its locks.".to_owned())
    }

    async fn transact(&self, key: &LockKey, transition: &mut Transition<'_>) -> Result<(), StoreError> {
        let mut state = self.state();
        let before = state.lock(key);
        let mut after = (*before).clone();
        transition(&mut after, &state.leases(&before), self.clock.now())?;
        for new in after.active.iter().filter(|record| before.get(&record.uid).is_none()) {
            if let Some(other) = state.active(|other| other.id == new.id).filter(|other| other.lock_key != *key) {
                return Err(StoreError::NameTaken { id: new.id.clone(), key: other.lock_key.clone() });
            }
        }
        state.history.append(&mut after.finished);
        let events = std::mem::take(&mut after.events);
        state.write_down(&events);
        if after != *before {
            state.locks.insert(key.clone(), Arc::new(after));
            state.revision += 1;
            self.watchers.moved(key, state.revision);
        }
        Ok(())
    }

    async fn view(&self, key: &LockKey) -> Result<LockView, StoreError> {
        let state = self.state();
        Ok(state.view(state.lock(key), self.clock.now()))
    }

    async fn view_all(&self) -> Result<Vec<LockView>, StoreError> {
        let state = self.state();
        let now = self.clock.now();
        let busy = state.locks.values().filter(|lock| !lock.is_idle());
        Ok(busy.map(|lock| state.view(lock.clone(), now)).collect())
    }

    async fn find(&self, id: &MaintenanceId) -> Result<Option<RecordLookup>, StoreError> {
        Ok(self.state().find(|record| record.id == *id))
    }

    async fn find_uid(&self, uid: &Uid) -> Result<Option<RecordLookup>, StoreError> {
        Ok(self.state().find(|record| record.uid == *uid))
    }

    async fn renew(&self, runner: &Runner, ttl: Duration) -> Result<(), StoreError> {
        let mut state = self.state();
        let until = lease_end(self.clock.now(), ttl);
        state.leases.insert(runner.id.clone(), until);
        Ok(())
    }

    async fn resign(&self, runner: &RunnerId) -> Result<(), StoreError> {
        let now = self.clock.now();
        if let Some(until) = self.state().leases.get_mut(runner) {
            *until = now.min(*until);
        }
        Ok(())
    }

    async fn binding(&self, server: &str) -> Result<Option<LockKey>, StoreError> {
        Ok(self.state().bindings.get(server).cloned())
    }

    async fn bind(&self, server: &str, key: &LockKey, rebind: bool) -> Result<(), StoreError> {
        let mut state = self.state();
        match state.bindings.get(server) {
            Some(bound) if bound != key && !rebind => {
                Err(StoreError::OtherIdentity { server: server.into(), bound: bound.clone(), found: key.clone() })
            }
            _ => {
                state.bindings.insert(server.to_owned(), key.clone());
                Ok(())
            }
        }
    }

    async fn audit(&self, id: &MaintenanceId, limit: usize) -> Result<Vec<AuditEvent>, StoreError> {
        let state = self.state();
        let events = state.audit.iter().rev().map(|(_, event)| event);
        let mut lines: Vec<_> = events.filter(|event| event.id == *id).take(limit).cloned().collect();
        lines.reverse();
        Ok(lines)
    }

    async fn export_audit(&self, start: &AuditStart, most: u32) -> Result<Vec<AuditLine>, StoreError> {
        let state = self.state();
        let (mut after, mut since) = (0, Timestamp::MIN);
        match start {
            AuditStart::Oldest => {}
            AuditStart::Age(age) => since = forgotten_before(self.clock.now(), *age),
            AuditStart::After(position) => after = position.number,
            AuditStart::AfterId(id) => {
                let found = state.audit.iter().find(|(number, _)| number.to_string() == *id);
                let missing = || StoreError::NoSuchLine { address: self.address().into(), id: id.clone().into() };
                after = found.ok_or_else(missing)?.0;
            }
        }
        let lines = state.audit.iter().filter(|(number, event)| *number > after && event.at >= since);
        let line = |(number, event): &(i64, AuditEvent)| AuditLine {
            id: number.to_string(),
            position: AuditPosition { number: *number, ..AuditPosition::default() },
            event: Ok(event.clone()),
            stamp: None,
        };
        Ok(lines.take(most as usize).map(line).collect())
    }

    async fn contents(&self) -> Result<Contents, StoreError> {
        let state = self.state();
        let mut bindings: Vec<_> = state.bindings.iter().map(|(name, key)| (name.clone(), key.clone())).collect();
        bindings.sort();
        Ok(Contents {
            store_id: self.id.clone(),
            locks: state.locks.values().map(|lock| (**lock).clone()).collect(),
            history: state.history.clone(),
            bindings,
            audit: state.audit.iter().map(|(_, event)| event.clone()).collect(),
            oddities: Vec::new(),
        })
    }

    async fn fill(&self, contents: &Contents) -> Result<(), StoreError> {
        if !self.contents().await?.is_empty() {
            return Err(StoreError::InUse { address: self.address().into() });
        }
        let mut state = self.state();
        state.locks = contents.locks.iter().map(|lock| (lock.key.clone(), Arc::new(lock.clone()))).collect();
        state.history.clone_from(&contents.history);
        state.bindings = contents.bindings.iter().cloned().collect();
        state.write_down(&contents.audit);
        Ok(())
    }

    async fn prune(&self, keep: Duration, most: u32) -> Result<u64, StoreError> {
        let mut state = self.state();
        let before = forgotten_before(self.clock.now(), keep);
        let mut records = 0;
        state.history.retain(|record| {
            let goes = records < most && record.detached_at.is_some_and(|at| at < before);
            records += u32::from(goes);
            !goes
        });
        let old = state.audit.iter().take(most as usize).take_while(|(_, event)| event.at < before).count();
        state.audit.drain(..old);
        Ok(u64::from(records) + old as u64)
    }

    async fn claim_sweep(&self, _: &RunnerId, length: Duration) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let mut state = self.state();
        let sweeper = RunnerId::new(SWEEPER);
        if state.leases.get(&sweeper).is_some_and(|until| *until > now) {
            return Ok(false);
        }
        state.leases.insert(sweeper, lease_end(now, length));
        Ok(true)
    }

    fn changes(&self, key: &LockKey) -> watch::Receiver<u64> {
        let (changes, _) = self.watchers.watch(key);
        // No change task runs here, so remove unwatched keys now.
        self.watchers.nobody_left();
        changes
    }

    async fn close(&self) {}
}
