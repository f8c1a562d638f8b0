//! Many machines in one process, in both layouts.

#![allow(clippy::unwrap_used, reason = "tests may stop")]

mod common;

use std::collections::BTreeSet;

use bmc_simulator::{JournalQuery, Simulator, SimulatorConfig, SystemConfig, SystemUuid};
use common::{Bench, client};
use serde_json::Value;

#[tokio::test]
async fn two_thousand_bmcs_have_a_port_each() {
    let simulator = Simulator::start(SimulatorConfig::with_systems(2_000).without_tls()).await.unwrap();
    let urls: BTreeSet<_> = simulator.systems().iter().map(|name| simulator.url(name).unwrap()).collect();
    assert_eq!(urls.len(), 2_000);
    let client = client(&simulator);
    for name in ["node1", "node999", "node2000"] {
        let url = format!("{}/redfish/v1/Systems/1", simulator.url(name).unwrap());
        let reply = client.get(url).basic_auth("admin", Some("simulated-password"));
        let system: Value = reply.send().await.unwrap().json().await.unwrap();
        assert_eq!(system["Name"], name);
        let uuid = SystemConfig::default_uuid(name).to_string();
        assert_eq!(system["UUID"], uuid.as_str());
        assert_eq!(simulator.journal(&JournalQuery::system(name)).len(), 1);
    }
    simulator.stop().await;
}

#[tokio::test]
async fn a_thousand_machines_behind_one_bmc_have_managers_and_media_of_their_own() {
    let config = SimulatorConfig::with_systems(1_000).without_tls().behind_one_bmc();
    let bench = Bench::start(config).await;
    let list = bench.get("/redfish/v1/Systems").await;
    assert_eq!(list["Members@odata.count"], 1_000);
    let path = "/redfish/v1/Systems/node500";
    let system = bench.get(path).await;
    let manager = system["Links"]["ManagedBy"][0]["@odata.id"].as_str().unwrap();
    assert_eq!(manager, "/redfish/v1/Managers/node500");
    let manager = bench.get(manager).await;
    let media = manager["VirtualMedia"]["@odata.id"].as_str().unwrap();
    let insert = format!("{media}/Cd/Actions/VirtualMedia.InsertMedia");
    let image = serde_json::json!({"Image": "http://images.example/a.iso"});
    assert_eq!(bench.post(&insert, image).await, 204);
    let inserted = |name: &str| bench.simulator.system(name).unwrap().media.len();
    assert_eq!((inserted("node500"), inserted("node501")), (1, 0));
    // Reading the list does not belong to any machine.
    let query = JournalQuery::system("node500");
    assert_eq!(bench.simulator.journal(&query).len(), 3);
    let status = bench.simulator.bmc_status("bmc").unwrap();
    assert_eq!((status.requests, status.connections_opened), (4, 1));
    bench.simulator.stop().await;
}

#[tokio::test]
async fn identities_can_be_wrong_in_every_way_of_the_field() {
    let with =
        |name: &str, uuid| SystemConfig { uuid: Some(uuid), bmc: Some("rack".into()), ..SystemConfig::named(name) };
    let config = SimulatorConfig {
        systems: vec![
            with("nil", SystemUuid::Nil),
            with("missing", SystemUuid::Missing),
            with("null", SystemUuid::Null),
            with("placeholder", SystemUuid::Placeholder("Not Specified".into())),
        ],
        ..SimulatorConfig::default()
    };
    let bench = Bench::start(config.without_tls()).await;
    for (name, uuid) in [
        ("nil", Some(Value::from("00000000-0000-0000-0000-000000000000"))),
        ("missing", None),
        ("null", Some(Value::Null)),
        ("placeholder", Some(Value::from("Not Specified"))),
    ] {
        let system = bench.get(&format!("/redfish/v1/Systems/{name}")).await;
        assert_eq!(system.get("UUID").cloned(), uuid, "{name}");
    }
    let again = bench.simulator.add_system(SystemConfig::named("nil"));
    assert!(again.is_err());
    bench.simulator.stop().await;
}

#[tokio::test]
async fn the_inventory_names_every_machine() {
    let bench = Bench::start(SimulatorConfig::with_systems(2).without_tls()).await;
    let yaml = bench.simulator.inventory();
    let lines: Vec<_> = yaml.lines().collect();
    assert_eq!(lines.len(), 6);
    assert_eq!(lines[0], "\"node1\":");
    assert_eq!(lines[1], format!("  endpoint: \"{}\"", bench.url));
    assert_eq!(lines[2], "  system_id: \"1\"");
    bench.simulator.stop().await;
}
