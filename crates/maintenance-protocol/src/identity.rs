//! Which lock covers a server, by the identifiers that it shows now and those that are known.
//!
//! Every identifier belongs to at most one lock (`aliases.rs`). A lock begins with a system UUID or
//! with the `lock_key` of a configuration, never with less: a serial number or an address alone
//! could be shown by a server whose UUID already names another lock. Once they belong to a lock,
//! they lead to it while the UUID is hidden.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{
    aliases::{Alias, SystemUuid},
    ids::{LockKey, Uid},
    model::lock::ServerLock,
    state::Maintenance,
};

/// What one look at a server shows of its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The `lock_key` of the configuration.
    pub configured: Option<LockKey>,
    /// The system UUID, if it tells servers apart.
    pub uuid: Option<SystemUuid>,
    /// Manufacturer and serial number, if they tell servers apart.
    pub serial: Option<Alias>,
    /// The address of the BMC and the path of the system.
    pub address: Alias,
    /// `OWNER/SERVER`.
    pub name: Alias,
}

impl Sighting {
    /// The identifiers of the hardware, the best first.
    #[must_use]
    pub fn hardware(&self) -> Vec<Alias> {
        let configured = self.configured.as_ref().and_then(|key| SystemUuid::read(&key.0));
        let uuid = self.uuid.map(SystemUuid::alias);
        let configured = configured.map(SystemUuid::alias).filter(|alias| Some(alias) != uuid.as_ref());
        let all = [uuid, configured, self.serial.clone(), Some(self.address.clone())];
        all.into_iter().flatten().collect()
    }

    /// All identifiers.
    #[must_use]
    pub fn aliases(&self) -> Vec<Alias> {
        let mut all = self.hardware();
        all.push(self.name.clone());
        all
    }
}

/// Where an identifier leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AliasTarget {
    /// To a lock, after so many moves.
    At {
        /// The lock.
        key: LockKey,
        /// How often it was moved.
        version: u64,
    },
    /// Nowhere, by the word of a person: several servers show it.
    Shared,
}

/// An identifier that leads to the lock of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasClaim {
    /// The identifier.
    pub alias: Alias,
    /// How often it was moved when it was read.
    pub version: u64,
}

/// The lock of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identified {
    /// The lock.
    pub key: LockKey,
    /// The identifiers that lead to it already.
    pub claims: Vec<AliasClaim>,
    /// The identifiers that lead nowhere yet, and have to be claimed for it first.
    pub fresh: Vec<Alias>,
}

/// Why a server has no lock. Nothing was done to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It reports no UUID, and what it reports leads to no lock.
    #[error("the server reports no system UUID that tells servers apart, and {why}")]
    NoUuid {
        /// Why the other identifiers do not help.
        why: NoUuid,
    },
    /// Its identifiers belong to several locks.
    #[error("the server belongs to the lock {key}, but {} to another lock", shown(.others))]
    OtherLock {
        /// `OWNER/SERVER`.
        name: Alias,
        /// Where its best identifier leads.
        key: LockKey,
        /// What leads elsewhere.
        others: Vec<(Alias, LockKey)>,
    },
}

/// Why the other identifiers do not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoUuid {
    /// None of them leads anywhere.
    Unknown(Vec<Alias>),
    /// Its address leads to a lock, which never knew its serial number.
    OtherSerial {
        /// The serial number.
        serial: Alias,
        /// Where the address leads.
        key: LockKey,
    },
}

impl fmt::Display for NoUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(aliases) => {
                let aliases: Vec<String> = aliases.iter().map(ToString::to_string).collect();
                write!(f, "no lock is known for {}", aliases.join(" or "))
            }
            Self::OtherSerial { serial, key } => write!(f, "the lock of its address ({key}) does not know {serial}"),
        }
    }
}

fn shown(others: &[(Alias, LockKey)]) -> String {
    let others: Vec<String> = others.iter().map(|(alias, key)| format!("{alias} belongs to {key}")).collect();
    others.join(", ")
}

/// The lock of a server.
///
/// `places`: where its identifiers lead; one that is not in it leads nowhere yet.
pub fn decide(seen: &Sighting, places: &BTreeMap<Alias, AliasTarget>) -> Result<Identified, IdentityError> {
    let at = |alias: &Alias| match places.get(alias) {
        Some(AliasTarget::At { key, .. }) => Some(key.clone()),
        Some(AliasTarget::Shared) | None => None,
    };
    let shared = |alias: &Alias| matches!(places.get(alias), Some(AliasTarget::Shared));
    let key = if let Some(key) = &seen.configured {
        key.clone()
    } else if let Some(uuid) = seen.uuid.filter(|uuid| !shared(&uuid.alias())) {
        at(&uuid.alias()).unwrap_or_else(|| uuid.lock_key())
    } else {
        without_uuid(seen, &at, &shared)?
    };
    let mut all = seen.aliases();
    // A configured key stands in place of a UUID that another machine reports as well.
    let replaced = seen.uuid.map(SystemUuid::alias).filter(|_| seen.configured.is_some());
    let is_key = |alias: &Alias| SystemUuid::read(&key.0).is_some_and(|uuid| uuid.alias() == *alias);
    all.retain(|alias| replaced.as_ref() != Some(alias) || is_key(alias) || at(alias).is_none_or(|other| other == key));
    let others: Vec<(Alias, LockKey)> =
        all.iter().filter_map(|alias| Some((alias.clone(), at(alias).filter(|other| *other != key)?))).collect();
    if !others.is_empty() {
        return Err(IdentityError::OtherLock { name: seen.name.clone(), key, others });
    }
    let mut found = Identified { key, claims: Vec::new(), fresh: Vec::new() };
    for alias in all {
        match places.get(&alias) {
            Some(AliasTarget::At { version, .. }) => found.claims.push(AliasClaim { alias, version: *version }),
            Some(AliasTarget::Shared) => {}
            None => found.fresh.push(alias),
        }
    }
    Ok(found)
}

/// Explains several names with one lock, and the remedy; `None`: there is only one name.
#[must_use]
pub fn shared_lock<'a>(key: &LockKey, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let names: BTreeSet<&str> = names.into_iter().collect();
    let all = names.iter().copied().collect::<Vec<_>>().join(" and ");
    (names.len() > 1).then(|| match SystemUuid::read(&key.0) {
        Some(_) => format!(
            "{all} report the same system UUID {key} and share one lock. If they are different machines, set lock_key for one \
             of them"
        ),
        None => format!("{all} share the lock key {key}. If they are different machines, set another lock_key for one of them"),
    })
}

impl Identified {
    /// Leaves this server's own identifiers unclaimed if only its UUID leads to a lock, and a
    /// server with another name requested that lock before. Both can be different machines with one
    /// UUID, and `lock_key` tells them apart later.
    pub fn leave_unclaimed(&mut self, lock: &ServerLock, uid: &Uid) {
        let Some(ours) = lock.get(uid) else { return };
        let by_uuid = SystemUuid::read(&self.key.0).is_some() && self.claims.iter().all(|it| it.alias.is_uuid());
        let other = |it: &Maintenance| it.ticket_number < ours.ticket_number && it.server() != ours.server();
        if by_uuid && lock.active.iter().any(|record| other(record)) {
            self.fresh.retain(Alias::is_uuid);
        }
    }
}

/// What a server shows, where that is not the server of this lock; `None`: it is.
///
/// A mainboard may be replaced during a maintenance, by a new one or by that of another known
/// server: then the serial number tells, and without a known one the address of the BMC. That alone
/// does not stand against an identifier of another lock, because addresses are given to other
/// servers.
#[must_use]
pub fn another_server(seen: &Sighting, key: &LockKey, places: &BTreeMap<Alias, AliasTarget>) -> Option<Vec<Shown>> {
    let shown = |alias: &Alias| {
        let known = match places.get(alias) {
            Some(AliasTarget::At { key, .. }) => Some(key.clone()),
            Some(AliasTarget::Shared) | None => None,
        };
        // The UUID of a lock leads to it before it is claimed.
        let own = seen.uuid.filter(|uuid| uuid.alias() == *alias).map(SystemUuid::lock_key);
        let lock = known.or_else(|| own.filter(|own| own == key));
        Shown { alias: alias.clone(), lock }
    };
    let (uuid, serial) = (seen.uuid.map(|uuid| shown(&uuid.alias())), seen.serial.as_ref().map(shown));
    let address = shown(&seen.address);
    let here = |it: &Shown| it.lock.as_ref() == Some(key);
    let by_number = [&uuid, &serial].into_iter().flatten().any(here);
    let by_address = here(&address) && [&uuid, &serial].into_iter().flatten().all(|it| it.lock.is_none());
    let same = seen.configured.as_ref() == Some(key) || by_number || by_address;
    (!same).then(|| [uuid, serial, Some(address)].into_iter().flatten().collect())
}

/// An identifier that a server shows, and where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The identifier.
    pub alias: Alias,
    /// The lock that it belongs to; `None`: to none.
    pub lock: Option<LockKey>,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lock {
            Some(lock) => write!(f, "{} (of the lock {lock})", self.alias),
            None => write!(f, "{} (of no lock)", self.alias),
        }
    }
}

/// The lock that serial number and address lead to. Whatever is shown has to agree.
fn without_uuid(
    seen: &Sighting,
    at: &impl Fn(&Alias) -> Option<LockKey>,
    shared: &impl Fn(&Alias) -> bool,
) -> Result<LockKey, IdentityError> {
    let serial = seen.serial.as_ref().filter(|serial| !shared(serial));
    match (serial, serial.and_then(at), at(&seen.address)) {
        (_, Some(key), _) | (None, None, Some(key)) => Ok(key),
        (Some(serial), None, Some(key)) => {
            Err(IdentityError::NoUuid { why: NoUuid::OtherSerial { serial: serial.clone(), key } })
        }
        (_, None, None) => Err(IdentityError::NoUuid { why: NoUuid::Unknown(seen.hardware()) }),
    }
}

#[cfg(test)]
mod tests;
