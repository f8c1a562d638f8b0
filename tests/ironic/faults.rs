//! Interference: a conductor that ends while it attaches an image, power changes outside Ironic,
//! and flags set by others.

use std::time::Duration;

use bmc_simulator::PowerState;
use reqwest::Method;
use serde_json::json;
use terraform_provider_metal::{
    backend::{Backend as _, ironic::IronicAccess},
    maintenance::{
        gate::{ExternalRequest, ExternalState},
        machine::{BootOverride, ResetType},
    },
};
use tokio::net::TcpListener;

use crate::{
    bench::{Bench, RedfishBench, asked, backend, entered, settled, wish},
    proxy::{Deal, Proxy},
    support::ironic::Options,
};

/// Leaves with a run's retries.
async fn leave(bench: &Bench, wish: &ExternalRequest) {
    let until = std::time::Instant::now() + Duration::from_mins(2);
    while let Err(error) = bench.leave(wish).await {
        assert!(error.is_transient() && std::time::Instant::now() < until, "{error}");
    }
}

#[tokio::test]
async fn a_conductor_that_is_killed_while_it_attaches_an_image_leaves_an_observable_drive() {
    let mut redfish = RedfishBench::new().await;
    let held = redfish.bench.held(&wish()).await;
    // A host that accepts the image request and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let image = format!("http://{}/rescue.iso", listener.local_addr().unwrap());
    let asked_for = tokio::spawn(async move { listener.accept().await.map(|(stream, _)| (stream, listener)) });
    let inserting = tokio::spawn({
        let (held, image) = (std::sync::Arc::clone(&held), image);
        async move { held.insert_medium("cdrom", &image, true).await }
    });
    let kept = tokio::time::timeout(Duration::from_mins(2), asked_for).await.unwrap().unwrap().unwrap();
    redfish.bench.ironic.restart().await;
    drop(kept);
    let told = inserting.await.unwrap();
    assert!(told.as_ref().err().is_none_or(|error| error.is_transient() || error.outcome_unknown()), "{told:?}");
    redfish.bench.ironic.await_node("n1", "the lock is released", |node| node["reservation"].is_null()).await;
    assert_eq!(redfish.bench.standing(&entered(&wish())).await, ExternalState::Granted, "the flag is still ours");
    let drives = held.media(&[]).await.unwrap();
    assert!(drives.iter().all(|drive| !drive.inserted), "{drives:?}");
    // The next attempt attaches it.
    let images = Proxy::to("http://127.0.0.1:9").await;
    images.rule(|_| Deal::Answer(200, String::new(), String::new()));
    held.insert_medium("cdrom", &format!("{}/rescue.iso", images.url()), true).await.unwrap();
    let until = std::time::Instant::now() + Duration::from_mins(1);
    while !held.media(&[]).await.unwrap().iter().any(|drive| drive.inserted) {
        assert!(std::time::Instant::now() < until, "the image is not attached");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn the_power_synchronisation_of_ironic_undoes_neither_a_hold_nor_its_release() {
    let redfish = RedfishBench::with(Options { sync_power: 1, ..Options::default() }).await;
    let bench = &redfish.bench;
    let memory = bench.memory(&wish()).await;
    let held = bench.held(&wish()).await;
    held.reset(ResetType::ForceOff).await.unwrap();
    settled(&held, terraform_provider_metal::maintenance::machine::PowerState::Off).await;
    // Powered on outside Ironic, which does not correct it during maintenance.
    redfish.simulator.set_power(&redfish.system, PowerState::On).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(redfish.simulated_power(), PowerState::On);
    assert_eq!(
        bench.ironic.node("n1").await["power_state"],
        "power off",
        "Ironic must not synchronise the power during maintenance"
    );
    // A run restores the power through Ironic before it leaves.
    held.reset(ResetType::On).await.unwrap();
    settled(&held, terraform_provider_metal::maintenance::machine::PowerState::On).await;
    leave(bench, &ExternalRequest { memory, ..entered(&wish()) }).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(redfish.simulated_power(), PowerState::On, "the power synchronisation switched the server off");
    let node = bench.ironic.node("n1").await;
    assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(false), &json!("power on")));
}

#[tokio::test]
async fn a_boot_mode_is_changed_and_restored() {
    let redfish = RedfishBench::new().await;
    let held = redfish.bench.held(&wish()).await;
    let before = redfish.bench.ironic.node("n1").await["boot_mode"].clone();
    if before.is_null() {
        // Ironic reads it only at the next power synchronisation or inspection.
        redfish.bench.ironic.sql("update nodes set boot_mode = 'uefi'").await;
    }
    assert!(!held.capabilities().await.unwrap().boot_modes.is_empty());
    for (mode, there) in [("Legacy", "bios"), ("UEFI", "uefi")] {
        let wanted = BootOverride { mode: Some(mode.into()), ..BootOverride::default() };
        let until = std::time::Instant::now() + Duration::from_mins(1);
        while let Err(error) = held.set_boot_override(&wanted, false).await {
            assert!(error.is_transient() && std::time::Instant::now() < until, "{error}");
        }
        let wanted = |node: &serde_json::Value| node["boot_mode"] == there && node["reservation"].is_null();
        redfish.bench.ironic.await_node("n1", there, wanted).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_who_sets_the_flag_between_our_read_and_our_write_loses_its_reason_and_no_more() {
    let bench = Bench::active().await;
    let proxy = Proxy::to(&bench.ironic.url()).await;
    let behind = backend(&proxy.url(), IronicAccess::Open, |_| {});
    let machine = behind.machine("n1").unwrap();
    let system = machine.maintenance_system().unwrap();
    // Ironic lacks conditional writes. The reason is overwritten, which the provider cannot
    // detect.
    let runtime = tokio::runtime::Handle::current();
    let url = bench.ironic.url();
    proxy.rule(move |seen| {
        if seen.is("PUT", "/maintenance") {
            let url = url.clone();
            tokio::task::block_in_place(|| runtime.block_on(set_by_an_operator(&url)));
        }
        Deal::Pass
    });
    system.enter(&wish()).await.unwrap();
    assert_eq!(system.look(&asked(&wish()), true).await.unwrap().standing, ExternalState::Granted);
    proxy.rule(|_| Deal::Pass);
    // A reason set after our write is reported and stays.
    bench.ironic.maintenance("n1", Some("carol")).await;
    let ExternalState::Refused(why) = system.look(&asked(&wish()), true).await.unwrap().standing else { panic!() };
    assert!(why.raw().contains("carol"), "{why}");
    system.leave(&asked(&wish())).await.unwrap();
    assert_eq!(bench.ironic.node("n1").await["maintenance_reason"], "carol");
    let states = bench.ironic.call(Method::GET, "/v1/nodes/n1/states", None).await;
    assert_eq!(states["power_state"], "power on");
}

async fn set_by_an_operator(url: &str) {
    let request = reqwest::Client::builder().no_proxy().build().unwrap().put(format!("{url}/v1/nodes/n1/maintenance"));
    let request = request.header("X-OpenStack-Ironic-API-Version", "1.95").json(&json!({ "reason": "disk swap" }));
    request.send().await.unwrap().error_for_status().unwrap();
}
