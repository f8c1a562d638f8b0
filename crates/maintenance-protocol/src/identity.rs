//! Which lock covers a server, by the identifiers that it shows now and those that are known.
//!
//! Every identifier belongs to at most one lock (`aliases.rs`). A lock begins with a system UUID or
//! with the `lock_key` of a configuration, never with less: a serial number or an address alone
//! could be shown by a server whose UUID already names another lock. Once they belong to a lock,
//! they lead to it while the UUID is hidden.

use std::{collections::BTreeMap, fmt};

use super::{
    aliases::{Alias, SystemUuid},
    ids::LockKey,
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
    } else if let Some(uuid) = seen.uuid {
        at(&uuid.alias()).unwrap_or_else(|| uuid.lock_key())
    } else {
        without_uuid(seen, &at, &shared)?
    };
    let all = seen.aliases();
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
mod tests {
    use super::*;

    const ONE: &str = "4c4c4544-0037-3010-8052-b4c04f4d3332";
    const TWO: &str = "5d5d5544-0037-3010-8052-b4c04f4d3332";

    fn seen(uuid: Option<&str>, serial: Option<&str>) -> Sighting {
        Sighting {
            configured: None,
            uuid: uuid.and_then(SystemUuid::read),
            serial: serial.and_then(|number| Alias::serial("maker", number, None)),
            address: Alias::address("bmc1:443", "/redfish/v1/Systems/1"),
            name: Alias::name("team/node"),
        }
    }

    fn key(text: &str) -> LockKey {
        LockKey(text.to_owned())
    }

    /// What is known after a server was identified.
    fn learn(places: &mut BTreeMap<Alias, AliasTarget>, found: &Identified) {
        for alias in &found.fresh {
            places.insert(alias.clone(), AliasTarget::At { key: found.key.clone(), version: 0 });
        }
    }

    fn first() -> BTreeMap<Alias, AliasTarget> {
        let mut places = BTreeMap::new();
        let found = decide(&seen(Some(ONE), Some("42")), &places).unwrap();
        assert_eq!((found.key.clone(), found.fresh.len()), (key(ONE), 4));
        learn(&mut places, &found);
        places
    }

    fn told(seen: &Sighting, places: &BTreeMap<Alias, AliasTarget>) -> Result<LockKey, IdentityError> {
        decide(seen, places).map(|found| found.key)
    }

    /// A record is acted on where the server of its lock is, whatever that shows now.
    #[test]
    fn another_server_under_the_name_of_a_held_one_is_noticed() {
        let mut places = first();
        let moved = |uuid, serial| Sighting { address: Alias::address("bmc9:443", "/1"), ..seen(uuid, serial) };
        let swapped = SystemUuid::read(ONE).unwrap().swapped().lock_key().0;
        let other = Sighting { address: Alias::address("bmc2:443", "/1"), ..seen(Some(TWO), Some("43")) };
        let unknown = another_server(&other, &key(ONE), &places);
        let found = decide(&other, &BTreeMap::new()).unwrap();
        learn(
            &mut places,
            &Identified { fresh: found.fresh.into_iter().filter(|it| *it != other.name).collect(), ..found },
        );
        let known = another_server(&other, &key(ONE), &places);
        let texts =
            |shown: Option<Vec<Shown>>| shown.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>());
        for (told, lock) in [(texts(unknown), "of no lock".to_owned()), (texts(known), format!("of the lock {TWO}"))] {
            let told = told.unwrap();
            assert_eq!(told.len(), 3, "{told:?}");
            assert!(told.iter().all(|text| text.contains(&lock)), "{told:?}");
        }
        for (sighting, same) in [
            (seen(Some(ONE), Some("42")), true),
            (seen(Some(&swapped), Some("42")), true),
            // At another address, hidden, and after a change of the mainboard.
            (moved(Some(ONE), None), true),
            (moved(None, Some("42")), true),
            (seen(None, None), true),
            (seen(Some("6e6e6644-0037-3010-8052-b4c04f4d3332"), None), true),
            (seen(Some(TWO), Some("42")), true),
            // Nothing leads here, or only an address that another server may have by now.
            (moved(Some("6e6e6644-0037-3010-8052-b4c04f4d3332"), Some("44")), false),
            (moved(None, None), false),
            (seen(Some(TWO), None), false),
            (seen(None, Some("43")), false),
        ] {
            assert_eq!(another_server(&sighting, &key(ONE), &places).is_none(), same, "{sighting:?}");
        }
        let configured = Sighting { configured: Some(key(ONE)), ..moved(None, None) };
        assert_eq!(another_server(&configured, &key(ONE), &places), None, "the word of the configuration");
    }

    #[test]
    fn a_server_that_hides_its_uuid_is_found_by_what_its_lock_knows() {
        let places = first();
        assert_eq!(told(&seen(None, Some("42")), &places), Ok(key(ONE)));
        assert_eq!(told(&seen(None, None), &places), Ok(key(ONE)));
        let elsewhere = Sighting { address: Alias::address("bmc9:443", "/x"), ..seen(None, Some("42")) };
        assert_eq!(told(&elsewhere, &places), Ok(key(ONE)));
        let other_owner = Sighting { name: Alias::name("other/node"), ..seen(Some(ONE), None) };
        assert_eq!(told(&other_owner, &places), Ok(key(ONE)));
    }

    #[test]
    fn a_server_without_uuid_and_known_alias_is_refused() {
        for unknown in [seen(None, Some("42")), seen(None, None)] {
            let refused = told(&unknown, &BTreeMap::new()).unwrap_err();
            assert!(matches!(refused, IdentityError::NoUuid { why: NoUuid::Unknown(_) }), "{refused}");
        }
        // Known by its name only: the name is not part of the hardware.
        let named = BTreeMap::from([(Alias::name("team/node"), AliasTarget::At { key: key(ONE), version: 0 })]);
        assert!(told(&seen(None, Some("42")), &named).is_err());
        // Another server behind a known address.
        let refused = told(&seen(None, Some("78")), &first()).unwrap_err();
        assert!(matches!(refused, IdentityError::NoUuid { why: NoUuid::OtherSerial { .. } }), "{refused}");
    }

    #[test]
    fn a_new_mainboard_is_refused_with_both_locks() {
        let refused = told(&seen(Some(TWO), Some("42")), &first()).unwrap_err();
        let IdentityError::OtherLock { key: ours, others, .. } = refused else { panic!("{refused}") };
        assert_eq!(ours, key(TWO));
        let others: Vec<String> = others.iter().map(|(alias, key)| format!("{alias} {key}")).collect();
        assert_eq!(
            others,
            [
                format!("serial:maker/42 {ONE}"),
                format!("address:bmc1:443/redfish/v1/Systems/1 {ONE}"),
                format!("team/node {ONE}"),
            ]
        );
    }

    #[test]
    fn a_configured_key_takes_what_is_free_and_is_refused_what_is_not() {
        let configured = |server: Sighting| Sighting { configured: Some(key("rack1")), ..server };
        let mut places = BTreeMap::new();
        let found = decide(&configured(seen(None, Some("42"))), &places).unwrap();
        learn(&mut places, &found);
        // Somebody else, without lock_key, meets the same lock.
        let other = Sighting { name: Alias::name("other/node"), ..seen(Some(ONE), Some("42")) };
        let refused = told(&other, &places).unwrap_err();
        assert!(matches!(&refused, IdentityError::OtherLock { others, .. } if others.len() == 2), "{refused}");
        let other = Sighting { uuid: None, ..other };
        assert_eq!(told(&other, &places), Ok(key("rack1")));
        assert!(told(&configured(seen(Some(ONE), None)), &first()).is_err());
        assert_eq!(told(&Sighting { configured: Some(key(ONE)), ..seen(None, None) }, &first()), Ok(key(ONE)));
    }

    #[test]
    fn what_several_servers_share_leads_nowhere() {
        let mut places = first();
        places.insert(Alias::serial("maker", "42", None).unwrap(), AliasTarget::Shared);
        let neighbour = Sighting {
            address: Alias::address("bmc2:443", "/redfish/v1/Systems/1"),
            name: Alias::name("team/neighbour"),
            ..seen(Some(TWO), Some("42"))
        };
        assert_eq!(told(&neighbour, &places), Ok(key(TWO)));
        assert_eq!(told(&seen(Some(ONE), Some("42")), &places), Ok(key(ONE)));
        assert_eq!(told(&seen(None, Some("42")), &places), Ok(key(ONE)), "by its address");
        assert!(told(&Sighting { uuid: None, ..neighbour }, &places).is_err());
    }
}
