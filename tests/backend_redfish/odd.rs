//! BMCs with inconsistent resources, and temporary refusals.

use std::sync::Arc;

use bmc_simulator::{
    BootResource, Fault, FaultAction, FaultBody, JournalQuery, MediaPath, Personality, Quirks, Reply, RequestView,
    SimulatorConfig, ToldBy,
};
use serde_json::{Value, json};
use shown_text::AsRaw;
use terraform_provider_metal::{
    backend::{Backend as _, BackendError, Machine},
    maintenance::machine::{BootOverride, ResetType},
};

use super::{Bench, answer, once};

/// A Settings object that lists the override but refuses it; the system resource accepts it.
#[derive(Debug)]
struct UselessSettings;

impl Quirks for UselessSettings {
    fn before(&self, request: &RequestView<'_>) -> Option<Reply> {
        let refused = request.method == "PATCH" && request.path.ends_with("/Settings");
        refused.then(|| Reply::error_text(400, "Not here."))
    }

    fn after(&self, request: &RequestView<'_>, reply: &mut Reply) {
        if request.method == "GET" && request.path.ends_with("/Settings") {
            reply.edit_json(|settings| {
                settings["Boot"]["BootSourceOverrideEnabled"] = "Disabled".into();
                settings["Boot"]["BootSourceOverrideTarget"] = "None".into();
            });
        }
    }
}

#[tokio::test]
async fn an_override_that_only_the_system_takes_is_seen_and_ended_there() {
    let mut personality = Personality { quirks: Some(Arc::new(UselessSettings)), ..Personality::generic() };
    personality.boot.writable_on = BootResource::Both;
    let bench = Bench::new(personality).await;
    let before = bench.machine.observe().await.unwrap().boot.unwrap();
    bench.machine.set_boot_override(&once("Pxe"), false).await.unwrap();

    // Like a destroy's process.
    let (_backend, another) = Bench::process(&bench.settings, &bench.clock);
    let machines: [&dyn Machine; 2] = [&*bench.machine, &*another];
    for machine in machines {
        let armed = machine.observe().await.unwrap().boot.unwrap();
        assert_eq!((armed.enabled.as_raw(), armed.target.as_raw()), (Some("Once"), Some("Pxe")));
    }
    another.set_boot_override(&before, true).await.unwrap();
    for machine in machines {
        let ended = machine.observe().await.unwrap().boot.unwrap();
        assert!(ended.is_disabled(), "{ended:?}");
    }
}

#[tokio::test]
async fn drives_of_a_manager_that_may_be_of_another_system_are_left_alone() {
    let mut personality = Personality::generic();
    personality.media.offered_under = vec![MediaPath::Manager];
    personality.http.links_managers = false;
    for (systems, drives) in [(1, 2), (2, 0)] {
        let config = SimulatorConfig::with_systems(systems).behind_one_bmc().with_personality(personality.clone());
        let bench = Bench::with(config, |settings| {
            for (name, server) in &mut settings.servers {
                server.system_id = Some(name.clone());
            }
        })
        .await;
        for name in bench.backend.servers() {
            let found = bench.backend.machine(&name).unwrap().media(&[]).await.unwrap();
            assert_eq!(found.len(), drives, "{systems} systems, {name}: {found:?}");
        }
    }
}

/// Requires a target other than `None` together with `Enabled`, and never accepts the mode.
#[derive(Debug)]
struct OneProperty;

impl Quirks for OneProperty {
    fn before(&self, request: &RequestView<'_>) -> Option<Reply> {
        let body: Value = serde_json::from_slice(request.body).unwrap_or_default();
        let boot = body["Boot"].as_object().filter(|_| request.method == "PATCH")?;
        let both = boot.contains_key("BootSourceOverrideEnabled")
            && boot.get("BootSourceOverrideTarget").is_some_and(|target| target == "None");
        let refused = both || boot.contains_key("BootSourceOverrideMode");
        refused.then(|| Reply::error_text(400, "Not together."))
    }
}

#[tokio::test]
async fn an_override_is_ended_where_its_properties_are_only_taken_one_by_one() {
    let personality = Personality { quirks: Some(Arc::new(OneProperty)), ..Personality::generic() };
    let bench = Bench::new(personality).await;
    bench.machine.set_boot_override(&once("Pxe"), false).await.unwrap();
    let disarm = BootOverride { enabled: Some("Disabled".into()), ..once("None") };
    bench.machine.set_boot_override(&disarm, false).await.unwrap();
    let ended = bench.machine.observe().await.unwrap().boot.unwrap();
    assert!(ended.is_disabled(), "{ended:?}");
}

#[tokio::test]
async fn a_refused_eject_of_a_filled_drive_that_shows_no_image_is_told() {
    let mut personality = Personality::generic();
    personality.media.shows_image = false;
    let bench = Bench::new(personality).await;
    let slot = bench.machine.media(&[]).await.unwrap()[0].slot.clone();
    bench.machine.insert_medium(slot.raw(), "http://images.example/a.iso", true).await.unwrap();
    bench.inject(answer(409, "ResourceInUse", false), "POST", "*EjectMedia");
    let error = bench.machine.eject_medium(slot.raw()).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
}

/// Drives with read-only `Inserted`.
#[derive(Debug)]
struct FixedInserted;

impl Quirks for FixedInserted {
    fn before(&self, request: &RequestView<'_>) -> Option<Reply> {
        let body: Value = serde_json::from_slice(request.body).unwrap_or_default();
        let refused = request.method == "PATCH" && body.get("Inserted").is_some();
        refused.then(|| Reply::error_text(400, "Inserted is read only."))
    }
}

#[tokio::test]
async fn a_drive_that_is_filled_by_its_image_alone_is_emptied_so_too() {
    let mut personality = Personality { quirks: Some(Arc::new(FixedInserted)), ..Personality::generic() };
    personality.media.by_patch = true;
    let bench = Bench::new(personality).await;
    let slot = bench.machine.media(&[]).await.unwrap()[0].slot.clone();
    let name = &bench.simulator.systems()[0];
    bench.machine.insert_medium(slot.raw(), "http://images.example/a.iso", true).await.unwrap();
    assert_eq!(bench.simulator.system(name).unwrap().media.len(), 1);
    bench.machine.eject_medium(slot.raw()).await.unwrap();
    assert_eq!(bench.simulator.system(name).unwrap().media.len(), 0);
}

#[tokio::test]
async fn a_bmc_that_has_no_session_left_is_busy_and_not_closed_to_the_password() {
    let mut personality = Personality::generic();
    personality.sessions.basic_auth = false;
    let bench = Bench::new(personality).await;
    // A read is attempted three times.
    let full = Fault::new(answer(503, "SessionLimitExceeded", false)).on_request("POST", "*Sessions").times(3);
    let _ = bench.simulator.inject(full);
    let error = bench.machine.observe().await.unwrap_err();
    assert!(matches!(&error, BackendError::Rejected { status: 503, transient: true, .. }), "{error:?}");
    bench.machine.observe().await.expect("a free session");
    let tried = bench.simulator.journal(&JournalQuery { status: Some(401), ..JournalQuery::default() }).len();
    assert_eq!(tried, 1, "basic authentication was refused once");
}

#[tokio::test]
async fn settings_that_cannot_be_read_for_a_moment_are_used_afterwards() {
    for status in [503, 429] {
        let mut personality = Personality::generic();
        personality.boot.writable_on = BootResource::Settings;
        let bench = Bench::new(personality).await;
        // A read is attempted three times.
        let busy = Fault::new(answer(status, "GeneralError", false)).on_request("GET", "*/Settings").times(3);
        let _ = bench.simulator.inject(busy);
        let error = bench.machine.observe().await.unwrap_err();
        assert!(error.is_transient(), "{error:?}");
        bench.machine.set_boot_override(&once("Pxe"), false).await.unwrap();
        let found = bench.machine.observe().await.unwrap().boot.unwrap();
        assert_eq!(found.target.as_raw(), Some("Pxe"), "{status}");
    }
}

#[tokio::test]
async fn lists_that_are_empty_for_a_moment_are_read_again() {
    let mut personality = Personality::generic();
    personality.media.offered_under = vec![MediaPath::System];
    personality.power.reset_types_told_by = ToldBy::ActionInfo;
    personality.power.reset_types = vec![bmc_simulator::ResetType::On, bmc_simulator::ResetType::ForceOff];
    let bench = Bench::new(personality).await;
    let empty = |property: &str, value: Value, path: &str| {
        let show = FaultAction::Show { property: property.to_owned(), value };
        let _ = bench.simulator.inject(Fault::new(show).on_request("GET", path).times(1));
    };
    empty("/Members", json!([]), "*/VirtualMedia");
    empty("/Parameters", json!([]), "*/ResetActionInfo");
    empty("/Actions", json!({}), "/redfish/v1/Systems/1");
    assert!(bench.machine.media(&[]).await.unwrap().is_empty());
    assert_eq!(bench.machine.media(&[]).await.unwrap().len(), 2);
    let unlisted = bench.machine.capabilities().await.unwrap().resets;
    assert!(
        unlisted.contains(&ResetType::GracefulRestart),
        "without a list, every reset type is allowed: {unlisted:?}"
    );
    let listed = bench.machine.capabilities().await.unwrap().resets;
    assert_eq!(listed, [ResetType::On, ResetType::ForceOff]);
}

#[tokio::test]
async fn a_reset_that_was_hidden_for_a_moment_is_sent() {
    let bench = Bench::new(Personality::generic()).await;
    let hidden = FaultAction::Show { property: "/Actions".to_owned(), value: json!({}) };
    let _ = bench.simulator.inject(Fault::new(hidden).on_request("GET", "/redfish/v1/Systems/1").times(1));
    bench.machine.observe().await.unwrap();
    bench.machine.reset(ResetType::ForceOff).await.unwrap();
}

#[tokio::test]
async fn an_empty_answer_is_not_a_server_that_shows_nothing() {
    for body in [FaultBody::Empty, FaultBody::Json(json!({}))] {
        let bench = Bench::new(Personality::generic()).await;
        let empty = |times| {
            let action = FaultAction::Answer { status: 200, body: body.clone(), headers: vec![], apply: false };
            let _ = bench.simulator.inject(Fault::new(action).on_request("GET", "/redfish/v1/Systems/1").times(times));
        };
        empty(1);
        let error = bench.machine.observe().await.unwrap_err();
        assert!(matches!(error, BackendError::Protocol { .. }), "{body:?}: {error:?}");
        bench.machine.observe().await.unwrap();
        empty(1);
        let error = bench.machine.observe().await.unwrap_err();
        assert!(error.is_transient(), "it was read before: {body:?}: {error:?}");
        bench.machine.observe().await.unwrap();
    }
}

#[tokio::test]
async fn no_request_follows_a_link_to_another_host() {
    let other = Bench::new(Personality::generic()).await;
    let url = other.simulator.url(&other.simulator.systems()[0]).unwrap();
    let system = "/redfish/v1/Systems/1";
    let reset = format!("{system}/Actions/ComputerSystem.Reset");
    for (read, property, path) in [
        ("/redfish/v1/Systems", "/Members/0/@odata.id", system),
        (system, "/Actions/#ComputerSystem.Reset/target", reset.as_str()),
    ] {
        for (host, is_own) in [("", true), (url.trim_end_matches('/'), false)] {
            let bench = Bench::new(Personality::generic()).await;
            let link = FaultAction::Show { property: property.to_owned(), value: json!(format!("{host}{path}")) };
            bench.inject(link, "GET", read);
            let done = bench.machine.reset(ResetType::ForceOff).await;
            assert_eq!(done.is_ok(), is_own, "{property}: {done:?}");
            assert!(is_own || done.unwrap_err().to_string().contains("credentials are not sent there"));
        }
    }
    assert!(other.simulator.journal(&JournalQuery::default()).is_empty());
}
