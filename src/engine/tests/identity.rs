//! Server identities and the resulting locks.

use super::{giving_back::off, *};
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
    assert_eq!(driven.record.lock_key.raw(), "rack1");
    // Its identifiers now lead there, even for other owners.
    hide_uuid(&world);
    assert_eq!(owned_by(&world, "bob").lock_key("node").await.unwrap().raw(), "rack1");
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
    assert_eq!(driven.record.lock_key.raw(), new);
    assert_eq!(alice.lock_key("node").await.unwrap().raw(), new, "by its name and by its UUID");
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

/// A held server's name temporarily leads to another server. That server is never changed, and the
/// first server is released and restored.
#[tokio::test(start_paused = true)]
async fn another_server_under_the_name_of_a_held_one_is_not_touched() {
    let other = HardwareIdentity {
        uuid: Some("5d5d5544-0037-3010-8052-b4c04f4d3332".into()),
        serial_number: Some("43".into()),
        authority: "bmc2:443".into(),
        ..real_identity()
    };
    for released in [false, true] {
        let world = World::new();
        let held = world.process("alice").hold(&wish("mine", off()), &control()).await.unwrap().record;
        let resets = world.machine.with(|inside| inside.resets.len());
        world.machine.with(|inside| inside.identity = Some(other.clone()));
        let alice = world.process("alice");
        let asked = if released {
            alice.release(&held.uid, "node", Ending::Completed, &control()).await
        } else {
            alice.resume(&held.uid, &wish("mine", boots_rescue()), &control()).await
        };
        let refused = asked.unwrap_err().to_string();
        assert!(refused.contains("is not the locked server"), "{refused}");
        assert_eq!(world.machine.with(|inside| (inside.resets.len(), inside.image.clone())), (resets, None));
        world.machine.with(|inside| inside.identity = None);
        let over = world.process("alice").release(&held.uid, "node", Ending::Completed, &control()).await;
        assert_eq!(over.unwrap().unwrap().finish, Finish::Over);
        assert_eq!(world.machine.with(|inside| inside.power), Some(PowerState::On));
    }
}

/// A waiting server's name changes to another server.
#[tokio::test(start_paused = true)]
async fn another_server_under_the_name_of_a_waiting_one_is_not_touched() {
    let world = World::new();
    let bob = world.process("bob");
    let held = bob.hold(&wish("his", spec()), &control()).await.unwrap().record;
    let alice = Arc::new(world.process("alice"));
    let waiter = Arc::clone(&alice);
    let waiting = tokio::spawn(async move { waiter.hold(&wish("mine", off()), &control()).await });
    tokio::time::sleep(Duration::from_mins(2)).await;
    let uuid = Some("5d5d5544-0037-3010-8052-b4c04f4d3332".into());
    let other = HardwareIdentity { uuid, authority: "bmc2:443".into(), serial_number: None, ..real_identity() };
    world.machine.with(|inside| inside.identity = Some(other));
    bob.release_without_restore(&held.id, held.generation, "it was scrapped", None, &control()).await.unwrap();
    let refused = waiting.await.unwrap().unwrap().record.phase;
    let Phase::Failed { cause, .. } = &refused else { panic!("{refused:?}") };
    assert!(cause.shown().contains("is not the locked server"), "{cause}");
    assert_eq!(world.machine.with(|inside| inside.resets.len()), 0);
}
