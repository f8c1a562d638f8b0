//! Boot overrides, virtual media, and recorded boots.

#![allow(clippy::unwrap_used, reason = "tests may stop")]

mod common;

use bmc_simulator::{
    Behaviour, BootResource, BootSource, EventKind, IfMatch, MediaPath, Personality, SettingsApply, SimulatorConfig,
};
use common::{Bench, SYSTEM, messages};
use serde_json::{Value, json};

async fn instant() -> Bench {
    let config = SimulatorConfig::with_systems(1).without_tls().with_behaviour(Behaviour::instant());
    Bench::start(config).await
}

fn sources(bench: &Bench) -> Vec<BootSource> {
    let boots = bench.simulator.boots("node1").unwrap();
    boots.into_iter().map(|boot| boot.booted_from).collect()
}

#[tokio::test]
async fn once_holds_for_one_boot_and_continuous_for_all() {
    let bench = instant().await;
    assert_eq!(bench.set_boot("Once", "Pxe").await, 200);
    assert_eq!(bench.reset("ForceOff").await, 204);
    // Switching off does not consume the override.
    let boot = bench.get(SYSTEM).await["Boot"].clone();
    assert_eq!(boot["BootSourceOverrideEnabled"], "Once");
    assert_eq!(bench.reset("On").await, 204);
    let boot = bench.get(SYSTEM).await["Boot"].clone();
    assert_eq!(boot["BootSourceOverrideEnabled"], "Disabled");
    assert_eq!(boot["BootSourceOverrideTarget"], "None");
    assert_eq!(bench.reset("ForceRestart").await, 204);
    assert_eq!(sources(&bench), [BootSource::Pxe, BootSource::Disk]);

    assert_eq!(bench.set_boot("Continuous", "Pxe").await, 200);
    assert_eq!(bench.reset("ForceRestart").await, 204);
    assert_eq!(bench.reset("ForceRestart").await, 204);
    let boot = bench.get(SYSTEM).await["Boot"].clone();
    assert_eq!(boot["BootSourceOverrideEnabled"], "Continuous");
    assert_eq!(sources(&bench)[2..], [BootSource::Pxe, BootSource::Pxe]);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn the_image_in_the_drive_is_what_boots_and_an_empty_drive_is_skipped() {
    let bench = instant().await;
    assert_eq!(bench.set_boot("Continuous", "Cd").await, 200);
    assert_eq!(bench.reset("ForceRestart").await, 204);
    assert_eq!(bench.insert("Cd", "http://images.example/a.iso").await, 204);
    assert_eq!(bench.reset("ForceRestart").await, 204);
    let image = BootSource::Media { device: "Cd".into(), image: "http://images.example/a.iso".into() };
    assert_eq!(sources(&bench), [BootSource::Disk, image]);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn http_boot_takes_the_uri() {
    let bench = instant().await;
    let boot = json!({
        "BootSourceOverrideEnabled": "Once",
        "BootSourceOverrideTarget": "UefiHttp",
        "HttpBootUri": "https://images.example/boot.efi",
    });
    assert_eq!(bench.patch(SYSTEM, json!({ "Boot": boot })).await, 200);
    assert_eq!(bench.reset("ForceRestart").await, 204);
    let uri = Some("https://images.example/boot.efi".to_owned());
    assert_eq!(sources(&bench), [BootSource::Http { uri }]);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn ejecting_what_the_machine_runs_from_is_noted() {
    let bench = instant().await;
    let ejections = || -> Vec<bool> {
        let events = bench.simulator.events("node1", 0).unwrap();
        events
            .into_iter()
            .filter_map(|event| match event.kind {
                EventKind::MediaEjected { ejected_while_running, .. } => Some(ejected_while_running),
                _ => None,
            })
            .collect()
    };
    assert_eq!(bench.insert("Cd", "http://images.example/a.iso").await, 204);
    assert_eq!(bench.eject("Cd").await, 204);
    assert_eq!(ejections(), [false]);
    assert_eq!(bench.insert("Cd", "http://images.example/a.iso").await, 204);
    assert_eq!(bench.set_boot("Once", "Cd").await, 200);
    assert_eq!(bench.reset("ForceRestart").await, 204);
    assert_eq!(bench.eject("Cd").await, 204);
    assert_eq!(ejections(), [false, true]);
    assert_eq!(bench.insert("Cd", "http://images.example/a.iso").await, 204);
    assert_eq!(bench.reset("ForceOff").await, 204);
    assert_eq!(bench.eject("Cd").await, 204);
    assert_eq!(ejections(), [false, true, false]);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_bad_write_changes_nothing_and_names_what_is_wrong() {
    let bench = instant().await;
    let before = bench.get(SYSTEM).await;
    for (body, expected) in [
        (
            json!({"Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Bogus"}}),
            vec!["PropertyValueNotInList"],
        ),
        (json!({"Boot": {"BootSourceOverrideEnabled": "Once", "Bogus": 1}}), vec!["PropertyUnknown"]),
        (json!({"Boot": {"BootSourceOverrideEnabled": "Once"}, "Bogus": 1}), vec!["PropertyUnknown"]),
        (json!({"Boot": {"BootSourceOverrideEnabled": true}}), vec!["PropertyValueTypeError"]),
        (json!({"Boot": {"HttpBootUri": "boot.efi"}}), vec!["PropertyValueFormatError"]),
        (json!({"PowerState": "Off"}), vec!["PropertyNotWritable"]),
        (json!({}), vec!["EmptyJSON"]),
    ] {
        let response = bench.send("PATCH", SYSTEM, body.clone()).await;
        assert_eq!(response.status(), 400, "{body}");
        assert_eq!(messages(response).await, expected, "{body}");
    }
    let response = bench
        .request("PATCH", SYSTEM)
        .header("content-type", "application/json")
        .body("{\"Boot\":")
        .send()
        .await
        .unwrap();
    assert_eq!(messages(response).await, ["MalformedJSON"]);
    assert_eq!(bench.get(SYSTEM).await, before);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn the_settings_object_can_be_the_only_place_to_write() {
    let mut personality = Personality::generic();
    personality.boot.writable_on = BootResource::Settings;
    personality.boot.settings_apply = SettingsApply::OnReset;
    let config = SimulatorConfig::with_systems(1)
        .without_tls()
        .with_personality(personality)
        .with_behaviour(Behaviour::instant());
    let bench = Bench::start(config).await;
    let system = bench.get(SYSTEM).await;
    let allowable = "BootSourceOverrideTarget@Redfish.AllowableValues";
    assert!(system["Boot"].get(allowable).is_none());
    let settings = system["@Redfish.Settings"]["SettingsObject"]["@odata.id"].as_str().unwrap().to_owned();
    assert!(bench.get(&settings).await["Boot"].get(allowable).is_some());
    assert_eq!(bench.set_boot("Once", "Pxe").await, 400);
    let boot = json!({"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"});
    assert_eq!(bench.patch(&settings, json!({ "Boot": boot })).await, 200);
    let shown = |value: &Value| value["Boot"]["BootSourceOverrideTarget"].clone();
    assert_eq!(shown(&bench.get(&settings).await), "Pxe");
    assert_eq!(shown(&bench.get(SYSTEM).await), "None");
    assert_eq!(bench.reset("ForceRestart").await, 204);
    assert_eq!(sources(&bench), [BootSource::Pxe]);
    assert_eq!(shown(&bench.get(&settings).await), "None");
    bench.simulator.stop().await;
}

#[tokio::test]
async fn media_are_found_where_the_personality_puts_them() {
    let mut personality = Personality::generic();
    personality.media.offered_under = vec![MediaPath::Manager];
    personality.media.refused_parameters = vec!["WriteProtected".into()];
    personality.media.insert_needs_eject = true;
    let bench = Bench::with(personality).await;
    assert!(bench.get(SYSTEM).await.get("VirtualMedia").is_none());
    assert_eq!(bench.insert("Cd", "http://images.example/a.iso").await, 404);
    let manager = bench.get(SYSTEM).await["Links"]["ManagedBy"][0]["@odata.id"].clone();
    let manager = bench.get(manager.as_str().unwrap()).await;
    let list = bench.get(manager["VirtualMedia"]["@odata.id"].as_str().unwrap()).await;
    let device = list["Members"][0]["@odata.id"].as_str().unwrap();
    let insert = format!("{device}/Actions/VirtualMedia.InsertMedia");
    let body = json!({"Image": "http://images.example/a.iso", "WriteProtected": true});
    let response = bench.send("POST", &insert, body).await;
    assert_eq!(messages(response).await, ["ActionParameterNotSupported"]);
    let body = json!({
        "Image": "http://images.example/a.iso", "Inserted": true,
        "TransferProtocolType": "HTTP", "UserName": "u", "Password": "p",
    });
    assert_eq!(bench.post(&insert, body.clone()).await, 204);
    let media = bench.get(device).await;
    assert_eq!(media["Inserted"], true);
    assert_eq!(media["ImageName"], "a.iso");
    assert_eq!(media["Password"], Value::Null);
    assert_eq!(bench.post(&insert, body).await, 409);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn entity_tags_guard_a_write() {
    let mut personality = Personality::generic();
    personality.http.if_match = IfMatch::Required;
    let bench = Bench::with(personality).await;
    assert_eq!(bench.set_boot("Once", "Pxe").await, 428);
    let read = bench.request("GET", SYSTEM).send().await.unwrap();
    let etag = read.headers()["etag"].to_str().unwrap().to_owned();
    let body: Value = read.json().await.unwrap();
    assert_eq!(body["@odata.etag"], etag.as_str());
    let write =
        |etag: String| bench.request("PATCH", SYSTEM).header("if-match", etag).json(&json!({"AssetTag": "x"})).send();
    let unchanged = bench.request("GET", SYSTEM).header("if-none-match", &etag);
    assert_eq!(unchanged.send().await.unwrap().status(), 304);
    assert_eq!(write(etag.clone()).await.unwrap().status(), 200);
    // The write changed the system, so the tag is outdated.
    assert_eq!(write(etag).await.unwrap().status(), 412);
    bench.simulator.stop().await;
}
