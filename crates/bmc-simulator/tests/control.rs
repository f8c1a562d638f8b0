//! The control interface.

#![allow(clippy::unwrap_used, reason = "tests may stop")]

mod common;

use bmc_simulator::SimulatorConfig;
use common::{Bench, SYSTEM};
use serde_json::{Value, json};

struct Control {
    bench: Bench,
    url: String,
}

impl Control {
    async fn start() -> Self {
        let config = SimulatorConfig::with_systems(1).without_tls().with_control();
        let bench = Bench::start(config).await;
        let url = bench.simulator.control_url().unwrap();
        Self { bench, url }
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let response = self
            .bench
            .client
            .request(method.parse().unwrap(), format!("{}{path}", self.url))
            .json(&body)
            .send()
            .await
            .unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }
}

#[tokio::test]
async fn machines_are_added_changed_and_told_about() {
    let control = Control::start().await;
    let body = json!({"name": "late", "uuid": "nil", "power": "Off", "system_id": "Node.1"});
    let (status, late) = control.call("POST", "/systems", body.clone()).await;
    assert_eq!(status, 201);
    let url = late["url"].as_str().unwrap();
    let system = control
        .bench
        .client
        .get(format!("{url}/redfish/v1/Systems/Node.1"))
        .basic_auth("admin", Some("simulated-password"));
    let system: Value = system.send().await.unwrap().json().await.unwrap();
    assert_eq!(system["UUID"], "00000000-0000-0000-0000-000000000000");
    assert_eq!(system["PowerState"], "Off");
    assert_eq!(control.call("POST", "/systems", body).await.0, 409);

    let change = json!({
        "power": "Off",
        "boot": {"enabled": "Once", "target": "Pxe", "mode": "UEFI", "http_boot_uri": null},
        "insert": {"device": "Cd", "image": "http://images.example/a.iso"},
        "identity": {"uuid": "missing", "serial_number": null, "manufacturer": null, "model": "M"},
    });
    let (status, told) = control.call("PATCH", "/systems/node1", change).await;
    assert_eq!((status, &told["power"]), (200, &json!("Off")));
    let system = control.bench.get(SYSTEM).await;
    assert_eq!(system["Boot"]["BootSourceOverrideTarget"], "Pxe");
    assert!(system.get("UUID").is_none() && system.get("SerialNumber").is_none());
    let (_, told) = control.call("GET", "/systems/node1", json!({})).await;
    assert_eq!(told["media"][0]["image"], "http://images.example/a.iso");
    let (_, events) = control.call("GET", "/systems/node1/events?since=0", json!({})).await;
    assert!(events.as_array().unwrap().len() >= 3, "{events}");
    assert_eq!(control.call("GET", "/systems/other", json!({})).await.0, 404);
    let wrong = json!({"power": "Sideways"});
    assert_eq!(control.call("PATCH", "/systems/node1", wrong).await.0, 400);
    control.bench.simulator.stop().await;
}

#[tokio::test]
async fn a_held_request_is_waited_for_and_released() {
    let control = Control::start().await;
    let fault = json!({
        "method": "POST", "path": "*ComputerSystem.Reset", "times": 1,
        "action": {"do": "hold", "phase": "before"},
    });
    let (status, added) = control.call("POST", "/faults", fault).await;
    assert_eq!((status, &added["id"]), (201, &json!(1)));
    let nothing = json!({"timeout_ms": 1, "until": {"held": {}}});
    assert_eq!(control.call("POST", "/wait", nothing).await.0, 408);

    let reset = control
        .bench
        .request("POST", &format!("{SYSTEM}/Actions/ComputerSystem.Reset"))
        .json(&json!({"ResetType": "ForceOff"}));
    let reset = tokio::spawn(reset.send());
    let wait = json!({"timeout_ms": 20_000, "until": {"held": {"system": "node1"}}});
    let (status, held) = control.call("POST", "/wait", wait).await;
    assert_eq!(status, 200, "{held}");
    let sequence = &held["sequence"];
    let (_, list) = control.call("GET", "/held", json!({})).await;
    assert_eq!(&list[0]["sequence"], sequence);
    let release = format!("/held/{sequence}/release");
    assert_eq!(control.call("POST", &release, json!({})).await.0, 200);
    assert_eq!(control.call("POST", &release, json!({})).await.0, 404);
    assert_eq!(reset.await.unwrap().unwrap().status(), 204);

    for until in [
        json!({"system": {"name": "node1", "power": "Off"}}),
        json!({"event": {"system": "node1", "event": "power"}}),
        json!({"journal": {"query": {"method": "POST", "status": 204}, "count": 1}}),
    ] {
        let wait = json!({"timeout_ms": 20_000, "until": until});
        let (status, found) = control.call("POST", "/wait", wait).await;
        assert_eq!(status, 200, "{found}");
    }
    assert_eq!(control.call("DELETE", "/faults/1", json!({})).await.0, 200);
    assert_eq!(control.call("DELETE", "/faults/1", json!({})).await.0, 404);
    control.bench.simulator.stop().await;
}

#[tokio::test]
async fn the_journal_is_filtered_by_query() {
    let control = Control::start().await;
    control.bench.get("/redfish/v1").await;
    control.bench.get(SYSTEM).await;
    control.bench.set_boot("Once", "Pxe").await;
    let count = |query: &'static str| {
        let control = &control;
        async move {
            let path = format!("/journal?{query}");
            let (status, entries) = control.call("GET", &path, json!({})).await;
            (status, entries.as_array().map_or(0, Vec::len))
        }
    };
    assert_eq!(count("").await, (200, 3));
    assert_eq!(count("method=PATCH").await, (200, 1));
    assert_eq!(count("path=*%2FSystems%2F1&method=GET").await, (200, 1));
    assert_eq!(count("since=1").await, (200, 2));
    assert_eq!(count("limit=2").await, (200, 2));
    assert_eq!(count("since=x").await, (400, 0));
    let (_, counts) = control.call("GET", "/counts", json!({})).await;
    assert_eq!(counts["by_method_and_status"], json!({"GET 200": 2, "PATCH 200": 1}));
    control.call("PATCH", "/settings", json!({"journal": "count_only"})).await;
    control.bench.get(SYSTEM).await;
    assert_eq!(count("").await, (200, 0));
    let (_, counts) = control.call("GET", "/counts", json!({})).await;
    assert_eq!(counts["requests"], 4);
    control.bench.simulator.stop().await;
}

#[tokio::test]
async fn a_bmc_is_taken_down_and_up() {
    let control = Control::start().await;
    let down = json!({"availability": "refusing"});
    let (status, told) = control.call("PATCH", "/bmcs/node1-bmc", down).await;
    assert_eq!((status, &told["availability"]), (200, &json!("refusing")));
    let request = control.bench.request("GET", SYSTEM);
    assert!(request.send().await.unwrap_err().is_connect());
    let up = json!({"availability": "up"});
    assert_eq!(control.call("PATCH", "/bmcs/node1-bmc", up).await.0, 200);
    control.bench.get(SYSTEM).await;
    control.bench.simulator.stop().await;
}
