//! Checks the harness's servers and clients.

use std::time::Duration;

use serde_json::json;

use crate::support::{
    sushy::{Options, Sushy},
    wait::eventually,
};

#[tokio::test]
async fn the_independent_client_sees_what_it_changes_over_tls() {
    let sushy = Sushy::start(Options::default()).await;
    assert!(sushy.url().starts_with("https://127.0.0.1:"), "{}", sushy.url());
    let system = format!("/redfish/v1/Systems/{}", sushy.system(1));
    let client = sushy.client();
    let before = client.machine(&system).await;
    assert_eq!(before.power, "Off");
    assert!(!before.media.is_empty());
    assert!(before.media.iter().all(|(_, _, inserted)| !inserted));

    let boot = json!({ "Boot": { "BootSourceOverrideTarget": "Cd", "BootSourceOverrideEnabled": "Once" } });
    client.patch(&system, boot).await;
    let reset = format!("{system}/Actions/ComputerSystem.Reset");
    client.post(&reset, json!({ "ResetType": "On" })).await;
    eventually("the machine is on", Duration::from_secs(30), async || {
        (client.machine(&system).await.power == "On").then_some(())
    })
    .await;
    let after = client.machine(&system).await;
    assert_eq!(after.boot["BootSourceOverrideTarget"], "Cd");
    assert_ne!(after, before);

    let requests = sushy.requests();
    let resets = requests.iter().filter(|r| **r == format!("POST {reset} 204"));
    assert_eq!(resets.count(), 1, "{requests:#?}");
}

#[tokio::test]
async fn a_wrong_password_is_refused() {
    let sushy = Sushy::start(Options { tls: false, ..Options::default() }).await;
    assert!(sushy.url().starts_with("http://127.0.0.1:"));
    let mut client = sushy.client();
    "wrong".clone_into(&mut client.password);
    let path = format!("/redfish/v1/Systems/{}", sushy.system(1));
    let refused = tokio::spawn(async move { client.get(&path).await }).await;
    assert!(refused.is_err(), "a wrong password was accepted");
}

#[tokio::test]
async fn another_authority_is_not_trusted() {
    let sushy = Sushy::start(Options { password: None, ..Options::default() }).await;
    let other = Sushy::start(Options { password: None, ..Options::default() }).await;
    let mut client = sushy.client();
    client.authority = other.client().authority;
    let refused = tokio::spawn(async move { client.get("/redfish/v1/").await }).await;
    assert!(refused.is_err(), "another authority's certificate was trusted");
}

#[tokio::test]
async fn stopping_an_emulator_closes_its_port() {
    let sushy = Sushy::start(Options { tls: false, systems: 3, ..Options::default() }).await;
    let address = sushy.url().trim_start_matches("http://").to_owned();
    assert!(tokio::net::TcpStream::connect(&address).await.is_ok());
    sushy.stop().await;
    assert!(tokio::net::TcpStream::connect(&address).await.is_err());
}
