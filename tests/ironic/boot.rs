//! Boot devices, boot modes, virtual media and identity of a node with a simulated BMC.

use std::time::Duration;

use bmc_simulator::SystemUuid;
use reqwest::Method;
use shown_text::AsRaw;
use terraform_provider_metal::{
    backend::{Backend as _, BackendError, Machine, ironic::IronicAccess},
    maintenance::{
        gate::ExternalState,
        machine::{BootOverride, MediaSlot},
    },
};

use crate::{
    bench::{Bench, RedfishBench, backend, entered, wish},
    proxy::{Deal, Proxy, Seen},
};

fn device(target: &str, enabled: &str) -> BootOverride {
    BootOverride { enabled: Some(enabled.into()), target: Some(target.into()), ..BootOverride::default() }
}

async fn drive(machine: &dyn Machine, filled: bool) -> MediaSlot {
    let until = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        let media = machine.media(&[]).await.unwrap();
        let slot = media.iter().find(|slot| slot.slot == "cdrom").unwrap().clone();
        if slot.inserted == filled {
            return slot;
        }
        assert!(std::time::Instant::now() < until, "not in time: {media:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_boot_device_is_set_seen_and_restored() {
    let redfish = RedfishBench::new().await;
    let held = redfish.bench.held(&wish()).await;
    let can = held.capabilities().await.unwrap();
    for target in ["Pxe", "Hdd", "Cd"] {
        assert!(can.boot_targets.iter().any(|listed| listed == target), "{can:?}");
    }
    assert!(!can.http_boot_uri);
    let none = held.observe().await.unwrap().boot.unwrap();
    assert!(none.is_disabled() && none.target.is_none(), "a boot device is set: {none}");
    assert_eq!(can.boot_enabled, ["Once"], "a persistent override could not be removed");
    held.set_boot_override(&device("Cd", "Once"), false).await.unwrap();
    let seen = held.observe().await.unwrap().boot.unwrap();
    assert_eq!((seen.target.as_raw(), seen.enabled.as_raw()), (Some("Cd"), Some("Once")));
    held.set_boot_override(&device("Hdd", "Continuous"), false).await.unwrap();
    let seen = held.observe().await.unwrap().boot.unwrap();
    assert_eq!((seen.target.as_raw(), seen.enabled.as_raw()), (Some("Hdd"), Some("Continuous")));
    // An unused one-time override is removed before the power is restored.
    held.set_boot_override(&device("Pxe", "Once"), false).await.unwrap();
    let disabled = BootOverride { enabled: Some("Disabled".into()), ..BootOverride::default() };
    held.set_boot_override(&disabled, false).await.unwrap();
    let seen = held.observe().await.unwrap().boot.unwrap();
    assert_eq!((seen.enabled, seen.target), (none.enabled, none.target));
    let http = BootOverride { http_boot_uri: Some("http://i/a".into()), ..device("UefiHttp", "Once") };
    let refused = held.set_boot_override(&http, false).await.unwrap_err();
    assert!(matches!(refused, BackendError::Unsupported { .. }), "{refused}");
}

#[tokio::test]
async fn a_boot_device_that_was_not_used_does_not_stay() {
    let redfish = RedfishBench::new().await;
    let bench = &redfish.bench;
    let memory = bench.memory(&wish()).await;
    let held = bench.held(&wish()).await;
    held.set_boot_override(&device("Cd", "Once"), false).await.unwrap();
    let wish = terraform_provider_metal::maintenance::gate::ExternalRequest { memory, ..entered(&wish()) };
    for _ in 0..20 {
        match bench.leave(&wish).await {
            Ok(()) => break,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
    assert_eq!(bench.ironic.node("n1").await["maintenance"], false);
    let left = bench.ironic.call(Method::GET, "/v1/nodes/n1/management/boot_device", None).await;
    assert_eq!(left["boot_device"], "disk", "Ironic cannot remove a boot device, so disk is set");
}

fn refuse_boot_device(seen: &Seen, status: u16, body: &str) -> Deal {
    if seen.is("GET", "/management/boot_device") {
        Deal::Answer(status, String::new(), body.to_owned())
    } else {
        Deal::Pass
    }
}

#[tokio::test]
async fn a_node_is_not_entered_before_its_boot_device_is_known() {
    let bench = Bench::active().await;
    let proxy = Proxy::to(&bench.ironic.url()).await;
    let behind = backend(&proxy.url(), IronicAccess::Open, |_| {});
    let machine = behind.machine("n1").unwrap();
    let system = machine.maintenance_system().unwrap();
    proxy.rule(|seen| refuse_boot_device(seen, 409, r#"{"error_message": "Node n1 is locked by host c1"}"#));
    let locked = system.look(&wish(), true).await.unwrap_err();
    assert!(locked.is_transient() && locked.to_string().contains("is locked"), "{locked}");
    proxy.rule(|_| Deal::Pass);
    let known = system.look(&wish(), true).await.unwrap();
    assert_eq!((known.standing, known.memory.contains_key("boot_device")), (ExternalState::Absent, true));
    // An interface without boot devices cannot restore one.
    proxy.rule(|seen| refuse_boot_device(seen, 400, r#"{"error_message": "not supported"}"#));
    let known = system.look(&wish(), true).await.unwrap();
    assert_eq!(known.memory["boot_device"], "none");
}

#[tokio::test]
async fn a_node_whose_driver_cannot_read_the_boot_device_is_held_without_it() {
    let bench = Bench::active().await;
    let proxy = Proxy::to(&bench.ironic.url()).await;
    let behind = backend(&proxy.url(), IronicAccess::Open, |_| {});
    let machine = behind.machine("n1").unwrap();
    let system = machine.maintenance_system().unwrap();
    proxy.rule(|seen| {
        refuse_boot_device(seen, 500, r#"{"error_message": "IPMI call failed: chassis bootparam get 5"}"#)
    });
    let known = system.look(&wish(), true).await.unwrap();
    assert_eq!((known.standing, known.memory.contains_key("boot_device")), (ExternalState::Absent, false));
    let seen = system.under(&wish()).observe().await.unwrap();
    assert_eq!((seen.boot, seen.boot_unclear), (None, true));
    proxy
        .rule(|seen| refuse_boot_device(seen, 500, r#"{"error_message": "Timed out waiting for a reply to message"}"#));
    let away = backend(&proxy.url(), IronicAccess::Open, |_| {});
    let away = away.machine("n1").unwrap();
    let away = away.maintenance_system().unwrap().look(&wish(), true).await.unwrap_err();
    assert!(away.is_transient(), "{away}");
}

#[tokio::test]
async fn an_image_is_inserted_seen_and_ejected() {
    let redfish = RedfishBench::new().await;
    let held = redfish.bench.held(&wish()).await;
    assert!(!drive(&*held, false).await.inserted);
    let images = Proxy::to("http://127.0.0.1:9").await;
    images.rule(|_| Deal::Answer(200, String::new(), String::new()));
    let image = format!("{}/rescue.iso", images.url());
    held.insert_medium("cdrom", &image, true).await.unwrap();
    let slot = drive(&*held, true).await;
    assert_eq!(slot.content(), Some(""), "the conductor publishes the image until it is ejected");
    held.eject_medium("cdrom").await.unwrap();
    drive(&*held, false).await;
}

#[tokio::test]
async fn an_image_that_a_bmc_refuses_is_told_with_the_words_of_ironic() {
    let redfish = RedfishBench::new().await;
    let held = redfish.bench.held(&wish()).await;
    let error = held.insert_medium("cdrom", "gopher://images/rescue.iso", true).await.unwrap_err();
    assert!(error.to_string().contains("scheme"), "{error}");
    assert!(!error.is_transient() && !error.outcome_unknown());
    // The conductor checks the image even if the BMC fetches it, but still returns 204.
    let error = held.insert_medium("cdrom", "http://127.0.0.1:9/rescue.iso", true).await.unwrap_err();
    assert!(error.to_string().contains("Could not attach device cdrom"), "{error}");
    assert!(!drive(&*held, false).await.inserted);
}

#[tokio::test]
async fn the_identity_is_that_of_an_inspection_or_of_the_configuration() {
    let redfish = RedfishBench::new().await;
    let bench = &redfish.bench;
    let missing = bench.machine().identify().await.unwrap_err().to_string();
    assert!(missing.contains("lock_keys") && missing.contains("does not have an inventory"), "{missing}");
    assert!(missing.contains("masks"), "{missing}");
    bench.ironic.provision("n1", "inspect", "manageable").await;
    let found = bench.machine().identify().await.unwrap();
    let identity = redfish.simulator.system(&redfish.system).unwrap().identity;
    let SystemUuid::Real(uuid) = identity.uuid else { panic!("{:?}", identity.uuid) };
    assert_eq!(found.uuid, Some(uuid.to_string()));
    assert!(found.serial_number.is_some(), "{found:?}");
    assert_eq!((found.serial_number, found.manufacturer), (identity.serial_number, identity.manufacturer));

    let fake = Bench::active().await;
    assert!(fake.machine().identify().await.is_err());
    let keyed = crate::bench::backend(
        &fake.ironic.url(),
        terraform_provider_metal::backend::ironic::IronicAccess::Open,
        |it| {
            it.lock_keys.insert("n1".into(), "key-1".into());
        },
    );
    let machine = terraform_provider_metal::backend::Backend::machine(&keyed, "n1").unwrap();
    assert_eq!(machine.identify().await.unwrap().lock_key.as_deref(), Some("key-1"));
}
