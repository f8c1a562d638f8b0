//! Finding a server's lock by its current and its stored identifiers.
//!
//! Each identifier belongs to at most one lock (`aliases.rs`). Only a system UUID or a configured
//! `lock_key` creates a lock. A serial number or an address alone cannot, because the server's
//! hidden UUID could already belong to another lock. Once assigned, they lead to the lock while the
//! UUID is hidden.

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

/// The identity that a server reports in one read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The configured `lock_key`.
    pub configured: Option<LockKey>,
    /// The system UUID, unless it is a placeholder.
    pub uuid: Option<SystemUuid>,
    /// Manufacturer and serial number, unless they are placeholders.
    pub serial: Option<Alias>,
    /// BMC address and system path.
    pub address: Alias,
    /// `OWNER/SERVER`.
    pub name: Alias,
}

impl Sighting {
    /// Returns the hardware identifiers, best first.
    #[must_use]
    pub fn hardware(&self) -> Vec<Alias> {
        let configured = self.configured.as_ref().and_then(|key| SystemUuid::read(key.raw()));
        let uuid = self.uuid.map(SystemUuid::alias);
        let configured = configured.map(SystemUuid::alias).filter(|alias| Some(alias) != uuid.as_ref());
        let all = [uuid, configured, self.serial.clone(), Some(self.address.clone())];
        all.into_iter().flatten().collect()
    }

    /// Returns all identifiers.
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
    /// It leads to a lock.
    At {
        /// The lock.
        key: LockKey,
        /// Number of moves so far.
        version: u64,
    },
    /// It leads to no lock, because a person declared that several servers report it.
    Shared,
}

/// An identifier that leads to the server's lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasClaim {
    /// The identifier.
    pub alias: Alias,
    /// Number of moves when it was read.
    pub version: u64,
}

/// A server's lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identified {
    /// The lock.
    pub key: LockKey,
    /// The identifiers that already lead to it.
    pub claims: Vec<AliasClaim>,
    /// Unassigned identifiers, which must first be claimed for it.
    pub fresh: Vec<Alias>,
}

/// The reason why a server cannot be locked. The server is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It does not report a UUID, and its other identifiers do not lead to a lock.
    #[error("the server does not report a unique system UUID, and {why}")]
    NoUuid {
        /// The reason why the other identifiers do not help.
        why: NoUuid,
    },
    /// Its identifiers belong to several locks.
    #[error("the server belongs to the lock {key}, but {} to another lock", shown(.others))]
    OtherLock {
        /// `OWNER/SERVER`.
        name: Alias,
        /// Lock of the server's best identifier.
        key: LockKey,
        /// The identifiers of other locks.
        others: Vec<(Alias, LockKey)>,
    },
}

/// The reason why the other identifiers do not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoUuid {
    /// They are all unassigned.
    Unknown(Vec<Alias>),
    /// Its address leads to a lock that was never assigned this serial number.
    OtherSerial {
        /// The serial number.
        serial: Alias,
        /// The lock to which the address leads.
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
            Self::OtherSerial { serial, key } => write!(f, "its address's lock ({key}) does not contain {serial}"),
        }
    }
}

fn shown(others: &[(Alias, LockKey)]) -> String {
    let others: Vec<String> = others.iter().map(|(alias, key)| format!("{alias} belongs to {key}")).collect();
    others.join(", ")
}

/// Returns the server's lock.
///
/// `places` contains the stored identifiers; missing ones are unassigned.
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
    // A configured key replaces a UUID that another machine also reports.
    let replaced = seen.uuid.map(SystemUuid::alias).filter(|_| seen.configured.is_some());
    let is_key = |alias: &Alias| SystemUuid::read(key.raw()).is_some_and(|uuid| uuid.alias() == *alias);
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
    (names.len() > 1).then(|| match SystemUuid::read(key.raw()) {
        Some(_) => format!(
            "{all} report the same system UUID {key} and share one lock. If they are different machines, set lock_key for one \
             of them"
        ),
        None => format!("{all} share the lock key {key}. If they are different machines, set another lock_key for one of them"),
    })
}

impl Identified {
    /// Leaves this server's own identifiers unclaimed if two conditions hold: only its UUID leads
    /// to the lock, and a server with another name requested that lock earlier. The two can be
    /// different machines with the same UUID, which `lock_key` separates later.
    pub fn leave_unclaimed(&mut self, lock: &ServerLock, uid: &Uid) {
        let Some(ours) = lock.get(uid) else { return };
        let by_uuid = SystemUuid::read(self.key.raw()).is_some() && self.claims.iter().all(|it| it.alias.is_uuid());
        let other = |it: &Maintenance| it.ticket_number < ours.ticket_number && it.server() != ours.server();
        if by_uuid && lock.active.iter().any(|record| other(record)) {
            self.fresh.retain(Alias::is_uuid);
        }
    }
}

/// Returns the reported identifiers if they belong to a different server; `None` for the lock's own
/// server.
///
/// A mainboard can be replaced during a maintenance, even with a known server's mainboard. The
/// serial number then identifies the server, or without a stored serial number the BMC address. An
/// address alone does not outweigh another lock's identifier, because addresses are reassigned.
#[must_use]
pub fn another_server(seen: &Sighting, key: &LockKey, places: &BTreeMap<Alias, AliasTarget>) -> Option<Vec<Shown>> {
    let shown = |alias: &Alias| {
        let known = match places.get(alias) {
            Some(AliasTarget::At { key, .. }) => Some(key.clone()),
            Some(AliasTarget::Shared) | None => None,
        };
        // A lock's own UUID matches it even before it is claimed.
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

/// A reported identifier and its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The identifier.
    pub alias: Alias,
    /// Its lock; `None` if it is unassigned.
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

/// Returns the lock of serial number and address, which must not contradict each other.
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
