//! What a server shows of its identity, and the lock that follows.

use super::*;
use crate::maintenance::{identity::IdentityError, lock::Refusal};

fn hide_uuid(world: &World) {
    world.machine.with(|inside| inside.identity = Some(HardwareIdentity { uuid: None, ..real_identity() }));
}

fn owned_by(world: &World, owner: &str) -> Engine {
    let mut engine = world.process(owner);
    owner.clone_into(&mut engine.parts.owner);
    engine
}

#[tokio::test(start_paused = true)]
async fn a_hidden_uuid_leads_to_the_lock_that_is_held() {
    let world = World::new();
    let alice = owned_by(&world, "alice");
    let driven = alice.hold(&wish("first", spec()), &control()).await.unwrap();
    hide_uuid(&world);
    let bob = owned_by(&world, "bob");
    let place = MaintenanceRequest { wait_for: WaitFor::Enqueued, ..wish("second", spec()) };
    let waits = bob.hold(&place, &control()).await.unwrap();
    assert_eq!(waits.record.lock_key, driven.record.lock_key, "one server has two locks");
    assert_eq!(waits.record.phase, Phase::Pending);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_showed_a_uuid_is_refused() {
    let world = World::new();
    hide_uuid(&world);
    let refused = owned_by(&world, "alice").hold(&wish("first", spec()), &control()).await.unwrap_err();
    assert!(matches!(refused, EngineError::Identity(IdentityError::NoUuid { .. })), "{refused}");
    assert_eq!(world.store.view_all().await.unwrap().len(), 0);
    let with_key = HardwareIdentity { lock_key: Some("rack1".into()), uuid: None, ..real_identity() };
    world.machine.with(|inside| inside.identity = Some(with_key));
    let driven = owned_by(&world, "alice").hold(&wish("first", spec()), &control()).await.unwrap();
    assert_eq!(driven.record.lock_key.0, "rack1");
    // Its identifiers are known by that, also to others.
    hide_uuid(&world);
    assert_eq!(owned_by(&world, "bob").lock_key("node").await.unwrap().0, "rack1");
}

#[tokio::test(start_paused = true)]
async fn a_name_alone_is_enough_while_the_server_does_not_answer() {
    let world = World::new();
    let alice = owned_by(&world, "alice");
    let key = alice.hold(&wish("first", spec()), &control()).await.unwrap().record.lock_key;
    world.machine.with(|inside| inside.deaf = true);
    assert_eq!(alice.lock_key("node").await.unwrap(), key);
    owned_by(&world, "bob").lock_key("node").await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn identifiers_move_when_nothing_is_active_and_never_before() {
    let world = World::new();
    let alice = owned_by(&world, "alice");
    let driven = alice.hold(&wish("first", spec()), &control()).await.unwrap();
    let (old, new) = (driven.record.lock_key.clone(), "5d5d5544-0037-3010-8052-b4c04f4d3332");
    let board = HardwareIdentity { uuid: Some(new.into()), ..real_identity() };
    world.machine.with(|inside| inside.identity = Some(board));
    let bob = owned_by(&world, "bob");
    let refused = bob.hold(&wish("second", spec()), &control()).await.unwrap_err();
    let EngineError::Identity(IdentityError::OtherLock { others, .. }) = refused else { panic!("{refused}") };
    let others: Vec<String> = others.into_iter().map(|(alias, _)| alias.to_string()).collect();
    assert_eq!(others, ["serial:maker/s-42", "address:bmc1:443/redfish/v1/Systems/1"]);
    let names: Vec<String> = others.into_iter().chain(["alice/node".to_owned()]).collect();
    let in_use = bob.rebind(&names, Some(new), "new mainboard").await.unwrap_err();
    assert!(matches!(in_use, EngineError::Refused(Refusal::LockInUse { .. })), "{in_use}");
    release(&alice, &driven).await;
    let rebound = bob.rebind(&names, Some(new), "new mainboard").await.unwrap();
    assert_eq!(rebound.moved.len(), 3);
    assert!(rebound.moved.iter().all(|(_, from)| *from == old));
    let driven = bob.hold(&wish("second", spec()), &control()).await.unwrap();
    assert_eq!(driven.record.lock_key.0, new);
    assert_eq!(alice.lock_key("node").await.unwrap().0, new, "by its name and by its UUID");
    assert_eq!(world.store.contents().await.unwrap().violations(), Vec::<String>::new());
    let unknown = bob.rebind(&["bob/nothing".to_owned()], Some(new), "why").await.unwrap_err();
    assert!(matches!(unknown, EngineError::UnknownIdentifier { .. }), "{unknown}");
}

#[tokio::test(start_paused = true)]
async fn a_serial_number_that_several_servers_share_stops_identifying_them() {
    let world = World::new();
    let alice = owned_by(&world, "alice");
    let driven = alice.hold(&wish("first", spec()), &control()).await.unwrap();
    let neighbour = HardwareIdentity {
        uuid: Some("5d5d5544-0037-3010-8052-b4c04f4d3332".into()),
        authority: "bmc2:443".into(),
        ..real_identity()
    };
    world.machine.with(|inside| inside.identity = Some(neighbour));
    let bob = owned_by(&world, "bob");
    bob.lock_key("node").await.unwrap_err();
    bob.rebind(&["serial:maker/s-42".to_owned()], None, "one chassis").await.unwrap();
    let neighbour = bob.hold(&wish("second", spec()), &control()).await.unwrap();
    assert_ne!(neighbour.record.lock_key, driven.record.lock_key);
    world.machine.with(|inside| inside.identity = None);
    bob.lock_key("node").await.expect_err("its name is another server's");
    assert_eq!(alice.lock_key("node").await.unwrap(), driven.record.lock_key);
}
