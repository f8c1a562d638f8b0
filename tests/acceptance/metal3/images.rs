//! Available hosts under `hold = "image"`, which their operator boots from the boot
//! configuration's image.

use bmc_simulator::{BootSource, PowerState};
use serde_json::json;

use super::{HELD, configure_with, maintenance};
use crate::{
    servers::metal3::{operator::Options, world::World},
    support::{host::Host, workspace::Workspace},
};

const ISO: &str = "https://images.example/rescue.iso";

/// Starts with an available `node1` at this power; its disks are not cleaned.
async fn available(options: Options, online: bool) -> World {
    let world = World::empty(1, options).await;
    world.add("node1", json!({"automatedCleaningMode": "disabled", "online": online})).await;
    is_available(&world, online).await;
    world
}

async fn is_available(world: &World, online: bool) {
    world
        .until("node1", "available", |host| {
            host["status"]["provisioning"]["state"] == "available"
                && host["status"]["poweredOn"].as_bool().unwrap_or_default() == online
        })
        .await;
}

fn boots(image: &str) -> String {
    let boot = format!("boot_configuration = {{ method = \"boot_operator\", image = {image:?} }}");
    maintenance("bios", &format!("server_power = \"On\"\n  {boot}"))
}

fn configure(world: &World, workspace: &Workspace, body: &str) {
    configure_with(world, workspace, "hold = \"image\"", body);
}

/// Asserts that the host is available with its owner's power setting, and without marks.
async fn is_as_before(world: &World, workspace: &Workspace, online: bool) {
    is_available(world, online).await;
    let host = world.host("node1").await;
    assert_eq!((&host["spec"]["online"], &host["spec"]["image"]), (&json!(online), &json!(null)), "{host}");
    assert_eq!(host["spec"]["automatedCleaningMode"], "disabled", "{host}");
    assert_eq!(world.traces("node1").await, Vec::<String>::new());
    let system = world.simulator.system("node1").unwrap();
    assert_eq!(system.power, if online { PowerState::On } else { PowerState::Off });
    assert!(system.media.is_empty(), "{:?}", system.media);
    workspace.metal(&["queue"]).await.succeeded().says("No server is held");
}

/// Returns the image that the machine booted last.
fn booted(world: &World) -> Option<String> {
    match world.simulator.boots("node1").unwrap().pop()?.booted_from {
        BootSource::Media { image, .. } => Some(image),
        _ => None,
    }
}

for_one_host! {
    async fn an_available_host_boots_an_image_and_is_available_again(host) {
        for online in [true, false] {
            let (world, workspace) = (available(Options::default(), online).await, Workspace::new(host));
            configure(&world, &workspace, &boots(ISO));
            let plan = workspace.plan().await;
            plan.run.says("deprovisions it at the release").says("available, OK");
            workspace.apply_saved(&plan).await.succeeded();
            let held = world.host("node1").await;
            assert_eq!(held["spec"]["image"], json!({"url": ISO, "format": "live-iso"}), "{held}");
            assert_eq!(held["status"]["provisioning"]["state"], "provisioned", "{held}");
            assert_eq!(held["spec"]["consumerRef"]["kind"], "Maintenance", "{held}");
            assert_eq!(booted(&world).as_deref(), Some(ISO));
            assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
            workspace.plan().await.is_empty();
            workspace.destroy().await.succeeded();
            is_as_before(&world, &workspace, online).await;
        }
    }
}

for_one_host! {
    async fn what_such_a_host_cannot_do_is_told_before_it_is_touched(host) {
        let (world, workspace) = (available(Options::default(), true).await, Workspace::new(host));
        let before = world.host("node1").await;
        // Errors in the configuration.
        configure(&world, &workspace, &boots("https://images.example/rescue.iso?token=s3cret"));
        workspace.try_plan().await.failed().says("without user and query");
        let http = boots(ISO).replace("boot_operator", "http");
        configure(&world, &workspace, &http);
        workspace.try_plan().await.failed().says("does not support this request");
        configure_with(&world, &workspace, "hold = \"live\"", &boots(ISO));
        workspace.run(&["validate", "-no-color"]).await.failed().says("\"live\" is not a valid hold");
        assert_eq!(world.host("node1").await["spec"], before["spec"]);
        // Errors that depend on the host.
        configure(&world, &workspace, &boots(ISO));
        let theirs = json!({"kind": "Metal3Machine", "apiVersion": "x/v1", "name": "m", "namespace": "x"});
        for (change, undo, says) in [
            (json!({"automatedCleaningMode": "metadata"}), json!({"automatedCleaningMode": "disabled"}), "cleans its disks"),
            (json!({"consumerRef": theirs}), json!({"consumerRef": null}), "the host already has the consumer"),
            (json!({"disablePowerOff": true}), json!({"disablePowerOff": null}), "spec.disablePowerOff"),
        ] {
            world.merge("BareMetalHost", "node1", json!({"spec": change})).await;
            workspace.try_plan().await.failed().says("does not support this request").says(says);
            workspace.apply().await.failed().says(says);
            assert_eq!(world.host("node1").await["spec"]["image"], json!(null));
            world.merge("BareMetalHost", "node1", json!({"spec": undo})).await;
        }
        is_as_before(&world, &workspace, true).await;
    }
}

for_one_host! {
    async fn an_image_that_cannot_be_booted_leaves_the_host_as_before(host) {
        for online in [true, false] {
            let (world, workspace) = (available(Options::default(), online).await, Workspace::new(host));
            let reads = world.running.operator.options.boots.clone();
            configure(&world, &workspace, &boots(ISO));
            reads.close();
            workspace.apply().await.failed().says("the operator could not boot").says("the image cannot be read");
            is_as_before(&world, &workspace, online).await;
            // The same host boots after the image becomes readable.
            reads.open();
            workspace.apply().await.succeeded();
            assert_eq!(booted(&world).as_deref(), Some(ISO));
            workspace.destroy().await.succeeded();
            is_as_before(&world, &workspace, online).await;
        }
    }
}

for_one_host! {
    async fn a_cleaning_mode_that_another_author_set_keeps_the_image_and_is_told(host) {
        let (world, mut workspace) = (available(Options::default(), true).await, Workspace::new(host));
        let kubeconfig = world.kubernetes.user("admin", &["system:masters"]).display().to_string();
        workspace.set("METAL_KUBECONFIG", kubeconfig).set("METAL_KUBE_NAMESPACE", &world.namespace);
        configure(&world, &workspace, &boots(ISO));
        workspace.apply().await.succeeded();
        let cleans = |mode: &str| json!({"spec": {"automatedCleaningMode": mode}});
        world.merge("BareMetalHost", "node1", cleans("metadata")).await;
        workspace.destroy().await.failed().says("automatedCleaningMode");
        let generation = workspace.generation("ops/bios").await;
        let as_is = ["--backend", "metal3", "release", "ops/bios", "--force", "--generation", &generation, "--accept-as-is", "--reason", "test"];
        workspace.metal(&as_is).await.says("NOT deleted").says("automatedCleaningMode");
        let prune = ["--backend", "metal3", "prune"];
        workspace.metal(&prune).await.failed().says("spec.automatedCleaningMode of BareMetalHost");
        assert_eq!(world.host("node1").await["spec"]["image"]["url"], ISO, "its disks are not cleaned for us");
        world.merge("BareMetalHost", "node1", cleans("disabled")).await;
        workspace.metal(&prune).await.succeeded();
        is_as_before(&world, &workspace, true).await;
    }
}

for_one_host! {
    async fn an_image_of_another_author_stays(host) {
        let (world, workspace) = (available(Options::default(), true).await, Workspace::new(host));
        configure(&world, &workspace, &boots(ISO));
        workspace.apply().await.succeeded();
        let theirs = json!({"url": "https://images.example/theirs.iso", "format": "live-iso"});
        world.merge("BareMetalHost", "node1", json!({"spec": {"image": theirs}})).await;
        workspace.destroy().await.says("another author changed the image of");
        assert_eq!(world.host("node1").await["spec"]["image"], theirs);
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

/// Returns true if a host is at a given point.
type Reached = dyn Fn(&serde_json::Value) -> bool;

fn is_marked(host: &serde_json::Value) -> bool {
    !host["metadata"]["annotations"]["terraform-provider-metal/hold"].is_null()
}

/// Kills the run at each distinguishable point, then applies or destroys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_killed_while_the_host_boots_is_continued_or_undone() {
    let moments: [(&str, &Reached); 4] = [
        ("entered", &is_marked),
        // A run can reach a later point before the kill.
        ("switched off", &|host| {
            is_marked(host) && (host["spec"]["online"] == false || !host["spec"]["image"].is_null())
        }),
        ("given an image", &|host| !host["spec"]["image"].is_null()),
        ("being provisioned", &|host| {
            ["provisioning", "provisioned"].iter().any(|state| host["status"]["provisioning"]["state"] == *state)
        }),
    ];
    let world = available(Options::default(), true).await;
    let workspace = Workspace::new(Host::OpenTofu);
    configure(&world, &workspace, &boots(ISO));
    for (moment, reached) in moments {
        for continues in [true, false] {
            let apply = workspace.start_apply();
            world.until("node1", moment, reached).await;
            apply.kill_everything();
            drop(apply);
            if continues {
                workspace.apply().await.succeeded();
                assert_eq!(booted(&world).as_deref(), Some(ISO), "{moment}");
                workspace.destroy().await.succeeded();
            } else {
                let mut person = workspace.beside();
                let kubeconfig = world.kubernetes.user("admin", &["system:masters"]).display().to_string();
                person.set("METAL_KUBECONFIG", kubeconfig).set("METAL_KUBE_NAMESPACE", &world.namespace);
                person.metal(&["--backend", "metal3", "release", "ops/bios"]).await.succeeded();
            }
            is_as_before(&world, &workspace, true).await;
        }
    }
}
