//! A complete maintenance, from the plan to the managed host.

use bmc_simulator::PowerState;
use secrecy::ExposeSecret as _;
use serde_json::json;

use super::{HELD, configure, configure_with, maintenance};
use crate::{
    servers::metal3::{
        operator::Options,
        world::{DETACHED, World},
    },
    support::{
        images::Images,
        simulator::{Fleet, SOON},
        workspace::Workspace,
    },
};

for_one_host! {
    async fn a_host_is_detached_booted_and_managed_again(host) {
        let (world, images) = (World::start(1, Options::default()).await, Images::start().await);
        let (workspace, fleet) = (Workspace::new(host), Fleet { simulator: world.simulator.clone() });
        let boot = format!(
            "server_power = \"On\"\n  boot_configuration = {{ method = \"virtual_media\", image = \"{}\" }}",
            images.url("rescue.iso")
        );
        configure(&world, &workspace, &maintenance("bios", &boot));
        workspace
            .try_plan()
            .await
            .succeeded()
            .says("provisioned, OK, wanted On, no consumer")
            .says("a deletion is delayed until the release");
        workspace.apply().await.succeeded();
        let held = workspace.resource(HELD).await.unwrap();
        assert_eq!((&held["state"], &held["previous_power_state"]), (&"InMaintenance".into(), &"On".into()), "{held}");
        let detached = world.host("node1").await;
        assert_eq!(detached["status"]["operationalStatus"], "detached", "{detached}");
        assert!(fleet.runs("node1").contains("rescue.iso"), "{}", fleet.runs("node1"));
        workspace.plan().await.is_empty();
        workspace.metal(&["queue"]).await.succeeded().says("ops/bios");
        workspace.destroy().await.succeeded();
        let back = world.host("node1").await;
        assert_eq!(back["status"]["operationalStatus"], "OK", "{back}");
        assert_eq!((&back["status"]["poweredOn"], &back["spec"]["online"]), (&true.into(), &true.into()));
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
        assert!(fleet.runs("node1").contains("Disk"), "{}", fleet.runs("node1"));
        // The BMC credentials were read from the cluster and written nowhere.
        let password = world.simulator.credentials().password.expose_secret().as_bytes().to_vec();
        for (path, content) in workspace.everything_written() {
            assert!(!content.windows(password.len()).any(|part| part == password), "{}", path.display());
        }
    }
}

for_one_host! {
    async fn a_host_is_only_kept_off_and_switched_on_by_its_operator(host) {
        let world = World::start(1, Options::default()).await;
        let workspace = Workspace::new(host);
        let hold = "hold = \"power_off\"";
        configure_with(&world, &workspace, hold, &maintenance("bios", "server_power = \"On\""));
        workspace.try_plan().await.failed().says("does not accept the reset type On");
        configure_with(&world, &workspace, hold, &maintenance("bios", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off);
        assert!(world.host("node1").await["metadata"]["annotations"][DETACHED].is_null());
        workspace.destroy().await.succeeded();
        world.simulator.wait_power("node1", PowerState::On, SOON).await.expect("the operator switched it on");
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn a_host_that_cannot_be_booted_is_refused_with_what_to_use(host) {
        let world = World::start(1, Options::default()).await;
        let workspace = Workspace::new(host);
        let boot =
            "boot_configuration = { method = \"virtual_media\", image = \"https://images.example/rescue.iso\" }";
        configure_with(&world, &workspace, "hold = \"power_off\"", &maintenance("bios", boot));
        let said = workspace.try_plan().await.failed();
        said.says("does not support a boot override").says("Use hold = \"detach\", which boots it through Redfish");
        // An available host: booting its own image would erase its disks.
        let bmc = json!({"address": "ipmi://10.0.0.1", "credentialsName": "node1-bmc"});
        world.merge("BareMetalHost", "node1", json!({"spec": {"bmc": bmc, "image": null}})).await;
        configure_with(&world, &workspace, "lock_keys = { node1 = \"rack1-7\" }", &maintenance("bios", boot));
        let said = workspace.try_plan().await.failed();
        said.says("The BMC uses ipmi").says("hold = \"image\"").says("method = \"boot_operator\"");
        assert_eq!(world.host("node1").await["spec"]["image"], json!(null));
    }
}

for_one_host! {
    async fn a_wrong_block_is_refused_where_it_is_wrong(host) {
        let world = World::empty(1, Options::default()).await;
        let workspace = Workspace::new(host);
        configure_with(&world, &workspace, "hold = \"park\"", &maintenance("bios", ""));
        workspace.run(&["validate", "-no-color"]).await.failed().says("is not a valid hold");
        configure(&world, &workspace, &maintenance("bios", ""));
        workspace.apply().await.failed().says("does not contain BareMetalHost \"node1\"");
    }
}
