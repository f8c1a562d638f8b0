//! Maintenance flags set or cleared by an operator, and kills of Ironic and of runs.

use bmc_simulator::{PowerState, Simulator, SimulatorConfig, TlsMode};
use reqwest::Method;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use super::{HELD, configure, configure_with, maintenance};
use crate::{
    servers::ironic::{Ironic, Options},
    support::{images::Images, simulator::SOON, wait::eventually, workspace::Workspace},
};

for_one_host! {
    async fn maintenance_of_an_operator_is_refused_and_stays(host) {
        let ironic = Ironic::start(Options::default()).await;
        ironic.active_node("n1").await;
        ironic.maintenance("n1", Some("disk swap by carol")).await;
        let workspace = Workspace::new(host);
        configure(&ironic, &workspace, &maintenance("server_power = \"Off\""));
        workspace.try_plan().await.succeeded().says("disk swap by carol");
        workspace.apply().await.failed().says("disk swap by carol");
        assert!(workspace.resource(HELD).await.is_none(), "the state contains the rejected maintenance");
        let node = ironic.node("n1").await;
        assert_eq!((&node["maintenance_reason"], &node["power_state"]), (&json!("disk swap by carol"), &json!("power on")));
        ironic.maintenance("n1", None).await;
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn an_operator_who_clears_the_flag_takes_the_node_away(host) {
        let ironic = Ironic::start(Options::default()).await;
        ironic.active_node("n1").await;
        let workspace = Workspace::new(host);
        configure(&ironic, &workspace, &maintenance("server_power = \"Off\""));
        workspace.apply().await.succeeded();
        ironic.maintenance("n1", None).await;
        let plan = workspace.try_plan().await;
        assert!(plan.words().contains("External maintenance system revoked the server"), "{}", plan.words());
        ironic.maintenance("n1", Some("mine now")).await;
        workspace.destroy().await;
        let node = ironic.node("n1").await;
        assert_eq!((&node["maintenance_reason"], &node["power_state"]), (&json!("mine now"), &json!("power off")));
    }
}

for_one_host! {
    async fn a_protected_node_cannot_be_undeployed_until_it_is_released(host) {
        let (ironic, workspace) = (Ironic::start(Options::default()).await, Workspace::new(host));
        ironic.active_node("n1").await;
        let reach = format!("endpoint = \"{}\"\n    protect = true", ironic.url());
        configure_with(&reach, &workspace, &maintenance("server_power = \"Off\""));
        workspace.try_plan().await.succeeded().says("cannot undeploy, rebuild or delete the node");
        workspace.apply().await.succeeded();
        let undeploy = Some(json!({ "target": "deleted" }));
        assert_eq!(ironic.try_call(Method::PUT, "/v1/nodes/n1/states/provision", undeploy).await.0, 403);
        assert_eq!(ironic.try_call(Method::DELETE, "/v1/nodes/n1", None).await.0, 403);
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        let node = ironic.node("n1").await;
        assert_eq!((&node["protected"], &node["protected_reason"]), (&json!(false), &Value::Null));
        assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(false), &json!("power on")));
    }
}

for_one_host! {
    async fn an_ironic_that_is_killed_in_the_middle_is_waited_for(host) {
        let mut ironic = Ironic::start(Options { fake_delay: 3, ..Options::default() }).await;
        ironic.active_node("n1").await;
        let workspace = Workspace::new(host);
        configure(&ironic, &workspace, &maintenance("server_power = \"Off\""));
        let apply = workspace.start_apply();
        eventually("the node is being switched off", SOON, async || {
            (ironic.node("n1").await["target_power_state"] == "power off").then_some(())
        })
        .await;
        ironic.restart().await;
        apply.wait(SOON * 6).await.succeeded();
        let node = ironic.node("n1").await;
        assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(true), &json!("power off")));
        ironic.kill();
        let refresh = workspace.refresh().await.succeeded();
        assert!(refresh.words().contains("last known values"), "{}", refresh.words());
        ironic.restart().await;
        workspace.destroy().await.succeeded();
        let node = ironic.node("n1").await;
        assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(false), &json!("power on")));
    }
}

for_one_host! {
    async fn a_run_that_was_killed_is_adopted_and_released(host) {
        let ironic = Ironic::start(Options { fake_delay: 3, ..Options::default() }).await;
        ironic.active_node("n1").await;
        let workspace = Workspace::new(host);
        configure(&ironic, &workspace, &maintenance("server_power = \"Off\""));
        let apply = workspace.start_apply();
        eventually("the node is being switched off", SOON, async || {
            (ironic.node("n1").await["target_power_state"] == "power off").then_some(())
        })
        .await;
        apply.kill_everything();
        let _ = apply.wait(SOON).await;
        let reason = ironic.node("n1").await["maintenance_reason"].clone();
        workspace.apply().await.succeeded();
        let node = ironic.node("n1").await;
        assert_eq!((&node["maintenance_reason"], &node["power_state"]), (&reason, &json!("power off")));
        workspace.destroy().await.succeeded();
        assert_eq!(ironic.node("n1").await["maintenance"], json!(false));
    }
}

for_one_host! {
    async fn a_run_that_was_killed_with_a_medium_in_the_drive_is_adopted_and_released(host) {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let config = SimulatorConfig { tls: TlsMode::Off, ..SimulatorConfig::with_systems(1) };
        let simulator = Simulator::start(config).await.unwrap();
        let system = simulator.systems()[0].clone();
        let account = simulator.credentials();
        let account = (account.username.as_str(), account.password.expose_secret());
        let ironic = Ironic::start(Options::default()).await;
        let url = simulator.url(&system).unwrap();
        ironic.redfish_node("n1", url.trim_end_matches('/'), "/redfish/v1/Systems/1", account).await;
        ironic.power("n1", "power on").await;
        let images = Images::start().await;
        let workspace = Workspace::new(host);
        let boot = format!("boot_configuration = {{ method = \"virtual_media\", image = \"{}\" }}", images.url("rescue.iso"));
        configure(&ironic, &workspace, &maintenance(&format!("server_power = \"On\"\n  {boot}")));
        let filled = async || {
            let drives = ironic.try_call(Method::GET, "/v1/nodes/n1/vmedia", None).await.1.to_string();
            drives.contains("/cdrom-")
        };
        let apply = workspace.start_apply();
        eventually("the drive is filled", SOON * 2, async || filled().await.then_some(())).await;
        apply.kill_everything();
        let _ = apply.wait(SOON).await;
        workspace.apply().await.succeeded();
        assert!(filled().await);
        // The release is killed once the drive is empty again.
        let destroy = workspace.start_destroy();
        eventually("the drive is empty", SOON * 2, async || (!filled().await).then_some(())).await;
        destroy.kill_everything();
        let _ = destroy.wait(SOON).await;
        workspace.destroy().await.succeeded();
        assert!(!filled().await);
        let node = ironic.node("n1").await;
        assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(false), &json!("power on")));
        simulator.wait_power(&system, PowerState::On, SOON).await.expect("the release restores the power");
    }
}
