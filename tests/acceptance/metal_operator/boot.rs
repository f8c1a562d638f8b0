//! `metal_server_boot_configuration` under a hold on a cluster, through the boot operator and
//! Redfish.

use bmc_simulator::PowerState;
use serde_json::json;

use super::{cluster, configure, maintenance};
use crate::{
    servers::ironcore::{
        Options,
        api::{Kind, Object, text},
        family::Family,
        world::World,
    },
    support::{images::Images, simulator::SOON, workspace::Workspace},
};

const BOOT: &str = "metal_server_boot_configuration.boot";
const SENTINEL: &str = "sentinel-91be-of-the-rescue";

/// A boot configuration under the hold.
fn boot(method: &str, image: &str, more: &str) -> String {
    format!(
        "resource \"metal_server_boot_configuration\" \"boot\" {{\n  server = \"node1\"\n  \
         maintenance_id = metal_server_maintenance.held.id\n  method = \"{method}\"\n  image = \"{image}\"\n  {more}\n}}\n"
    )
}

fn operated(image: &str, more: &str) -> String {
    boot("boot_operator", &format!("registry.example/{image}"), more)
}

/// Returns the boot configuration created by the operator for the maintenance.
async fn prepared(world: &World) -> Option<Object> {
    let boots = world.list(Kind::Boot).await;
    boots.into_iter().find(|boot| {
        let owners = boot.metadata.owner_references.iter().flatten();
        owners.clone().any(|owner| owner.kind == "ServerMaintenance")
    })
}

async fn prepared_image(world: &World) -> String {
    prepared(world).await.map(|boot| text(&boot, "/spec/image").to_owned()).unwrap_or_default()
}

for_one_host! {
    async fn the_boot_operator_prepares_it_and_the_holds_own_comes_back(host) {
        let world = cluster(Family::V0_7, 1, Options::default()).await;
        let mut workspace = Workspace::new(host);
        workspace.set("TF_LOG", "TRACE");
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("{{\"passwd\": \"{text}\"}}")).unwrap();
            path.display().to_string()
        };
        let (own, rescue) = (file("own.ign", &format!("{SENTINEL}-own")), file("rescue.ign", SENTINEL));
        let hold = maintenance(
            "Enforced",
            &format!(
                "server_power = \"On\"\n  boot_configuration = {{ method = \"boot_operator\", image = \"registry.example/bios:2\", \
                 ignition = {{ file = \"{own}\" }} }}"
            ),
        );
        configure(&world, &workspace, &hold);
        workspace.apply().await.succeeded();
        let secret_of = |boot: &Object| text(boot, "/spec/ignitionSecretRef/name").to_owned();
        let before = prepared(&world).await.unwrap();
        assert_eq!(text(&before, "/spec/image"), "registry.example/bios:2");

        let under = operated("rescue:3", &format!("server_power = \"On\"\n  ignition = {{ file = \"{rescue}\" }}"));
        configure(&world, &workspace, &(hold.clone() + &under));
        workspace.apply().await.succeeded();
        let made = workspace.resource(BOOT).await.unwrap();
        assert_eq!((&made["state"], &made["message"]), (&json!("Ready"), &json!(null)), "{made}");
        let now = prepared(&world).await.unwrap();
        assert_eq!(text(&now, "/spec/image"), "registry.example/rescue:3");
        assert_ne!(secret_of(&now), secret_of(&before), "each has its own Secret");
        let requests = world.list(Kind::Legacy).await;
        let secret = crate::servers::ironcore::api::Key::within("default", &secret_of(&now));
        let owners = world.object(Kind::Secret, &secret).await.metadata.owner_references.unwrap();
        assert_eq!(owners[0].uid, requests[0].metadata.uid.clone().unwrap());
        workspace.plan().await.is_empty();

        // The same image with another ignition is a different boot.
        let other = under.replace("rescue.ign", "own.ign");
        configure(&world, &workspace, &(hold.clone() + &other));
        workspace.apply().await.succeeded();
        assert_eq!(secret_of(&prepared(&world).await.unwrap()), secret_of(&before));

        configure(&world, &workspace, &(hold.clone() + &under));
        workspace.apply().await.succeeded();
        configure(&world, &workspace, &hold);
        workspace.apply().await.succeeded();
        let after = prepared(&world).await.unwrap();
        assert_eq!((text(&after, "/spec/image"), secret_of(&after)), ("registry.example/bios:2", secret_of(&before)));
        world.simulator.wait_power("node1", PowerState::On, SOON).await.expect("the boot image change keeps the power on");
        for arguments in [["queue", "--json"].as_slice(), &["show", "ops/bios", "--json"]] {
            assert!(!workspace.metal(arguments).await.succeeded().output.contains(SENTINEL));
        }
        workspace.destroy().await.succeeded();
        assert_eq!(prepared_image(&world).await, "");
        for (file, content) in workspace.everything_written() {
            let found = content.windows(SENTINEL.len()).any(|window| window == SENTINEL.as_bytes());
            assert!(!found, "{} contains the ignition", file.display());
        }
    }
}

for_one_host! {
    async fn a_stale_ready_is_not_believed(host) {
        let options = Options::default();
        let world = cluster(Family::V0_7, 1, options.clone()).await;
        let workspace = Workspace::new(host);
        let hold = maintenance("Enforced", "");
        configure(&world, &workspace, &(hold.clone() + &operated("rescue:3", "server_power = \"On\"")));
        workspace.apply().await.succeeded();
        // The boot operator ignores changes from here.
        options.boot.close();
        configure(&world, &workspace, &(hold.clone() + &operated("rescue:4", "server_power = \"On\"")));
        let apply = workspace.start_apply();
        apply.until_it_logs("is Pending", SOON).await;
        assert_eq!(prepared_image(&world).await, "registry.example/rescue:4");
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off, "the server was switched on before the configuration was Ready");
        options.boot.open();
        apply.wait(SOON * 2).await.succeeded();
        world.simulator.wait_power("node1", PowerState::On, SOON).await.expect("it is Ready");
        workspace.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn what_the_boot_operator_refuses_fails_fast_with_its_words(host) {
        let world = cluster(Family::V0_7, 1, Options::default()).await;
        let workspace = Workspace::new(host);
        let hold = maintenance("Enforced", "");
        configure(&world, &workspace, &(hold.clone() + &operated("missing:1", "server_power = \"On\"")));
        let refused = workspace.apply().await.failed();
        refused.says("ImageValidation").says("no registry has it");
        workspace.destroy().await.succeeded();
        world.until_state("node1", "Available").await;
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

for_one_host! {
    async fn without_a_hold_it_takes_its_own_maintenance_for_as_long_as_it_is_in_force(host) {
        for family in [Family::V0_7, Family::Parked, Family::MaintenanceGroup] {
            let world = cluster(family, 1, Options::default()).await;
            let workspace = Workspace::new(host);
            let body = if family == Family::V0_7 {
                operated("rescue:3", "server_power = \"On\"\n  reason = \"rescue\"")
            } else {
                boot("pxe", "", "server_power = \"Off\"").replace("image = \"\"", "")
            };
            let body = body.replace("maintenance_id = metal_server_maintenance.held.id", "policy = \"Enforced\"");
            configure(&world, &workspace, &body);
            workspace.try_plan().await.succeeded().says("locked as long as this resource exists").is_silent_about("ahead");
            workspace.apply().await.succeeded();
            let made = workspace.resource(BOOT).await.unwrap();
            assert_eq!(made["state"], json!("Ready"), "{family:?}: {made}");
            if family == Family::V0_7 {
                assert_eq!(prepared_image(&world).await, "registry.example/rescue:3");
            }
            workspace.plan().await.is_empty();
            workspace.metal(&["queue"]).await.succeeded().says("boot-configuration/default.node1");
            workspace.metal(&["store", "check"]).await.succeeded();
            // The next waiter waits for it.
            let second = workspace.beside();
            configure(&world, &second, &maintenance("Enforced", ""));
            second.try_plan().await.succeeded().says("1 ahead: boot-configuration/default.node1");
            workspace.destroy().await.succeeded();
            world.until_state("node1", "Available").await;
            assert!(family != Family::V0_7 || world.list(Kind::Legacy).await.is_empty());
        }
    }
}

for_one_host! {
    async fn where_the_cluster_boots_nothing_redfish_does(host) {
        for family in [Family::Parked, Family::MaintenanceGroup] {
            let world = cluster(family, 1, Options::default()).await;
            let (images, workspace) = (Images::start().await, Workspace::new(host));
            let before = world.simulator.system("node1").unwrap();
            let hold = maintenance("Enforced", "");
            configure(&world, &workspace, &hold);
            workspace.apply().await.succeeded();
            let under = boot("virtual_media", &images.url("rescue.iso"), "server_power = \"On\"");
            configure(&world, &workspace, &(hold.clone() + &under));
            workspace.apply().await.succeeded();
            let boots = world.simulator.boots("node1").unwrap();
            let last = format!("{:?}", boots.last().unwrap().booted_from);
            assert!(last.contains("rescue.iso"), "{family:?}: {last}");
            workspace.plan().await.is_empty();
            configure(&world, &workspace, &hold);
            workspace.apply().await.succeeded();
            let after = world.simulator.system("node1").unwrap();
            assert_eq!((&after.boot, &after.media), (&before.boot, &before.media), "{family:?}");
            workspace.destroy().await.succeeded();
        }
    }
}
