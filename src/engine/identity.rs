//! Maps server names to locks.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, PoisonError},
};

use crate::{
    backend::{BackendError, HardwareIdentity},
    maintenance::{
        aliases::{Alias, SystemUuid},
        identity::{AliasClaim, AliasTarget, Identified, Sighting, decide, shared_lock},
        ids::LockKey,
        lock::ServerLock,
    },
    store::StoreError,
};

use super::{Engine, EngineError};

/// Targets of identifiers.
pub(super) type Places = BTreeMap<Alias, AliasTarget>;

impl Engine {
    /// Returns a server's lock from its identifiers and the store. Read-only.
    pub async fn lock_key(&self, server: &str) -> Result<LockKey, EngineError> {
        Ok(self.identify(server).await?.key)
    }

    /// Returns a server's lock with its identifiers.
    ///
    /// While the server does not answer, its stored name is enough. Without a stored name this
    /// fails, because a lock under a guessed key would exclude no other process.
    pub(super) async fn identify(&self, server: &str) -> Result<Identified, EngineError> {
        match self.machine(server)?.identify().await {
            Ok(identity) => self.located(&self.sighting(server, identity), true).await,
            Err(error) if error.is_transient() => {
                let found = self.by_name(server).await?.ok_or(error)?;
                tracing::warn!(server, "the server does not answer; its lock was found by its name");
                Ok(found)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns a server's lock with its identifiers, best first. Read-only.
    pub async fn identification(&self, server: &str) -> Result<(LockKey, Vec<String>), EngineError> {
        let seen = self.sighting(server, self.machine(server)?.identify().await?);
        let key = self.located(&seen, true).await?.key;
        let configured = seen.configured.as_ref().map(|key| format!("lock_key:{key}"));
        Ok((key, configured.into_iter().chain(seen.hardware().iter().map(ToString::to_string)).collect()))
    }

    /// Returns a server's current lock for a plan. Read-only.
    ///
    /// `None`: the server does not answer, and its name is not stored.
    pub async fn lock_key_now(&self, server: &str) -> Result<Option<LockKey>, EngineError> {
        match self.machine(server)?.identify().await {
            Ok(identity) => Ok(Some(self.located(&self.sighting(server, identity), false).await?.key)),
            Err(error @ BackendError::NoLockKey { .. }) => Err(error.into()),
            Err(_) => Ok(self.by_name(server).await?.map(|found| found.key)),
        }
    }

    /// Returns a server's lock for messages; `None` if it is uncertain.
    pub async fn known_lock_key(&self, server: &str) -> Option<LockKey> {
        match self.lock_key_now(server).await {
            Ok(key) => key,
            // Without the store, the server's own identifiers are the best guess.
            Err(EngineError::Store(_)) => {
                let identity = self.machine(server).ok()?.identify().await.ok()?;
                let seen = self.sighting(server, identity);
                seen.configured.or_else(|| seen.uuid.map(SystemUuid::lock_key))
            }
            Err(_) => None,
        }
    }

    /// Returns true if the store contains this owner's server name. Does not contact the server.
    pub async fn is_known(&self, server: &str) -> Result<bool, EngineError> {
        Ok(self.by_name(server).await?.is_some())
    }

    /// Returns a server name as the store has it. Names belong to an owner, so two teams can use
    /// the same name for different servers.
    #[must_use]
    pub fn bound_name(&self, server: &str) -> String {
        format!("{}/{server}", self.owner())
    }

    /// Converts a server's identity into the rules' input.
    pub(super) fn sighting(&self, server: &str, identity: HardwareIdentity) -> Sighting {
        let HardwareIdentity { lock_key, uuid, manufacturer, serial_number, has_siblings, authority, path } = identity;
        let system = has_siblings.then_some(path.as_str());
        let maker = manufacturer.unwrap_or_default();
        Sighting {
            configured: lock_key.map(LockKey::new),
            uuid: uuid.as_deref().and_then(SystemUuid::read),
            serial: serial_number.and_then(|number| Alias::serial(&maker, &number, system)),
            address: Alias::address(&authority, &path),
            name: Alias::name(&self.bound_name(server)),
        }
    }

    /// Returns the lock that a configured name leads to.
    async fn by_name(&self, server: &str) -> Result<Option<Identified>, EngineError> {
        let name = Alias::name(&self.bound_name(server));
        let mut places = self.places(std::slice::from_ref(&name)).await?;
        self.follow(&mut places).await?;
        let Some(AliasTarget::At { key, version }) = places.remove(&name) else { return Ok(None) };
        Ok(Some(Identified { key, claims: vec![AliasClaim { alias: name, version }], fresh: Vec::new() }))
    }

    /// Returns the targets of identifiers, without unbound identifiers.
    pub(super) async fn places(&self, aliases: &[Alias]) -> Result<Places, EngineError> {
        let names: Vec<String> = aliases.iter().map(Alias::stored).collect();
        let found = self.store().bindings(&names).await?;
        let known = aliases.iter().zip(found).filter_map(|(alias, key)| Some((alias.clone(), key?)));
        Ok(known.map(|(alias, key)| (alias, AliasTarget::At { key, version: 0 })).collect())
    }

    /// Follows moved identifiers to their current lock.
    pub(super) async fn follow(&self, places: &mut Places) -> Result<(), EngineError> {
        let mut locks: HashMap<LockKey, Arc<ServerLock>> = HashMap::new();
        for (alias, place) in places {
            while let AliasTarget::At { key, version } = &*place {
                let lock = match locks.get(key) {
                    Some(lock) => Arc::clone(lock),
                    None => self.store().view(key).await?.lock,
                };
                locks.insert(key.clone(), Arc::clone(&lock));
                // Each step has a higher number, so the loop ends.
                match lock.moved_on(alias, *version) {
                    Some(next) => *place = next,
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// Returns a server's lock. With `certain`, follows moved identifiers, as changes require. A
    /// plan follows them only if identifiers disagree.
    async fn located(&self, seen: &Sighting, certain: bool) -> Result<Identified, EngineError> {
        let mut places = self.places(&seen.aliases()).await?;
        let found = match decide(seen, &places) {
            Ok(found) if !certain => found,
            _ => {
                self.follow(&mut places).await?;
                decide(seen, &places)?
            }
        };
        let mut sighted = self.sighted.lock().unwrap_or_else(PoisonError::into_inner);
        sighted.entry(found.key.clone()).or_default().insert(seen.name.clone(), seen.address.clone());
        Ok(found)
    }

    /// Explains other names with the same lock: names in its queue, and names that this process
    /// found at another address.
    #[must_use]
    pub fn shared_lock(&self, server: &str, lock: &ServerLock) -> Option<String> {
        let own = Alias::name(&self.bound_name(server));
        let sighted = self.sighted.lock().unwrap_or_else(PoisonError::into_inner);
        let of_lock = sighted.get(&lock.key);
        let address = of_lock.and_then(|seen| seen.get(&own));
        let elsewhere = of_lock.into_iter().flatten().filter(|(_, at)| address.is_some_and(|own| own != *at));
        let prefix = self.bound_name("");
        let seen = elsewhere.filter_map(|(name, _)| name.to_string().strip_prefix(&prefix).map(str::to_owned));
        let queued = lock.active.iter().map(|record| record.server().to_owned());
        let names: Vec<String> = seen.chain(queued).chain([server.to_owned()]).collect();
        shared_lock(&lock.key, names.iter().map(String::as_str))
    }

    /// Binds new identifiers to a lock. The caller must have an active record or a claim there,
    /// which prevents moves of the lock's identifiers. Returns false if another lock was first: the
    /// caller must then stop.
    ///
    /// Each binding is a single write that succeeds once per store. So two processes that identify
    /// one server differently cannot use separate locks. The best identifier is bound first: a
    /// process that loses it must not bind the others to a wrong lock.
    pub(super) async fn claim_fresh(&self, found: &Identified) -> Result<bool, EngineError> {
        if found.fresh.is_empty() {
            return Ok(true);
        }
        let (store, key) = (self.store(), &found.key);
        let names: Vec<String> = found.fresh.iter().map(Alias::stored).collect();
        match store.bind_all(&names, key).await {
            Ok(()) => {}
            Err(StoreError::OtherIdentity { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        // Another process bound them earlier, and they were moved since.
        let claims: Vec<AliasClaim> =
            found.fresh.iter().map(|alias| AliasClaim { alias: alias.clone(), version: 0 }).collect();
        Ok(store.view(key).await?.lock.keeps(&claims).is_ok())
    }
}
