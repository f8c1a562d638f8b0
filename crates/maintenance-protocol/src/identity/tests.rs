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
    LockKey::new(text)
}

/// Stores the identifiers that were claimed for a server.
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

/// `lock_key` distinguishes mainboards whose firmware contains the same UUID.
#[test]
fn lock_key_stands_in_place_of_a_uuid_that_another_machine_reports() {
    let second = |configured: Option<&str>, serial| Sighting {
        configured: configured.map(key),
        address: Alias::address("bmc2:443", "/redfish/v1/Systems/1"),
        name: Alias::name("team/second"),
        ..seen(Some(ONE), serial)
    };
    for serial in [Some("77"), None] {
        let found = decide(&second(Some("second"), serial), &first()).unwrap();
        assert_eq!((found.key, found.claims), (key("second"), Vec::new()));
        assert!(!found.fresh.iter().any(Alias::is_uuid), "{:?}", found.fresh);
    }
    // The same machine with a different key: its serial number or address reveals it.
    assert!(told(&second(Some("second"), Some("42")), &first()).is_err());
    let here = Sighting { address: seen(None, None).address, ..second(Some("second"), None) };
    assert!(told(&here, &first()).is_err());
    // A key that is the UUID of another lock.
    let mut places = first();
    let moved = AliasTarget::At { key: key("elsewhere"), version: 1 };
    places.insert(SystemUuid::read(ONE).unwrap().alias(), moved);
    assert!(told(&second(Some(ONE), Some("77")), &places).is_err());
    // A UUID that a person declared as shared does not lead to a lock.
    places.insert(SystemUuid::read(ONE).unwrap().alias(), AliasTarget::Shared);
    let refused = told(&second(None, Some("77")), &places).unwrap_err();
    assert!(matches!(refused, IdentityError::NoUuid { .. }), "{refused}");
    assert_eq!(told(&seen(Some(ONE), Some("42")), &places), Ok(key(ONE)), "by its serial number");
}

#[test]
fn several_names_of_one_lock_are_explained() {
    assert_eq!(shared_lock(&key(ONE), ["n1", "n1"]), None);
    let text = shared_lock(&key(ONE), ["n2", "n1", "n2"]).unwrap();
    for word in ["n1 and n2", ONE, "lock_key"] {
        assert!(text.contains(word), "{text}");
    }
}

/// A record is processed only on its lock's server.
#[test]
fn another_server_under_the_name_of_a_held_one_is_noticed() {
    let mut places = first();
    let moved = |uuid, serial| Sighting { address: Alias::address("bmc9:443", "/1"), ..seen(uuid, serial) };
    let swapped = SystemUuid::read(ONE).unwrap().swapped().lock_key();
    let other = Sighting { address: Alias::address("bmc2:443", "/1"), ..seen(Some(TWO), Some("43")) };
    let unknown = another_server(&other, &key(ONE), &places);
    let found = decide(&other, &BTreeMap::new()).unwrap();
    learn(
        &mut places,
        &Identified { fresh: found.fresh.into_iter().filter(|it| *it != other.name).collect(), ..found },
    );
    let known = another_server(&other, &key(ONE), &places);
    let texts = |shown: Option<Vec<Shown>>| shown.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>());
    for (told, lock) in [(texts(unknown), "of no lock".to_owned()), (texts(known), format!("of the lock {TWO}"))] {
        let told = told.unwrap();
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told.iter().all(|text| text.contains(&lock)), "{told:?}");
    }
    for (sighting, same) in [
        (seen(Some(ONE), Some("42")), true),
        (seen(Some(swapped.raw()), Some("42")), true),
        // Different address, hidden identifiers, and a replaced mainboard.
        (moved(Some(ONE), None), true),
        (moved(None, Some("42")), true),
        (seen(None, None), true),
        (seen(Some("6e6e6644-0037-3010-8052-b4c04f4d3332"), None), true),
        (seen(Some(TWO), Some("42")), true),
        // No identifier leads here, or only an address that can be reassigned.
        (moved(Some("6e6e6644-0037-3010-8052-b4c04f4d3332"), Some("44")), false),
        (moved(None, None), false),
        (seen(Some(TWO), None), false),
        (seen(None, Some("43")), false),
    ] {
        assert_eq!(another_server(&sighting, &key(ONE), &places).is_none(), same, "{sighting:?}");
    }
    let configured = Sighting { configured: Some(key(ONE)), ..moved(None, None) };
    assert_eq!(another_server(&configured, &key(ONE), &places), None, "the configuration decides");
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
    // The configured name alone does not identify hardware.
    let named = BTreeMap::from([(Alias::name("team/node"), AliasTarget::At { key: key(ONE), version: 0 })]);
    assert!(told(&seen(None, Some("42")), &named).is_err());
    // A different server at a known address.
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
    // A different owner without lock_key gets the same lock.
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
