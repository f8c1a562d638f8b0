//! A held node outside apply and destroy: import, forced release, `prune`, and other connections to
//! Ironic and BMCs.

use serde_json::json;

use super::{HELD, SYSTEM, configure, maintenance};
use crate::{
    servers::ironic::{Ironic, Options},
    support::{
        certificates::Certificates,
        simulator::SOON,
        sushy::{self, Sushy},
        wait::eventually,
        workspace::Workspace,
    },
};

for_one_host! {
    async fn a_held_node_is_imported_released_by_a_person_and_pruned(host) {
        let ironic = Ironic::start(Options::default()).await;
        ironic.active_node("n1").await;
        let mut workspace = Workspace::new(host);
        workspace.set("METAL_IRONIC_ENDPOINT", ironic.url());
        configure(&ironic, &workspace, &maintenance("server_power = \"Off\""));
        workspace.apply().await.succeeded();
        let ours = ironic.node("n1").await["maintenance_reason"].as_str().unwrap().to_owned();
        // `prune` keeps held nodes.
        workspace.metal(&["--backend", "ironic", "prune"]).await.succeeded();
        assert_eq!(ironic.node("n1").await["maintenance_reason"], *ours);
        workspace.run(&["state", "rm", HELD]).await.succeeded();
        workspace.import(HELD, "ops/bios").await.succeeded();
        workspace.apply().await.succeeded().says("0 added, 1 changed");
        workspace.plan().await.is_empty();
        let generation = workspace.resource(HELD).await.unwrap()["generation"].to_string();
        let release = ["--backend", "ironic", "release", "ops/bios", "--force", "--generation", &generation, "--reason", "node needed"];
        workspace.metal(&release).await.succeeded().says("is in its prior state");
        let node = ironic.node("n1").await;
        assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(false), &json!("power on")));
        workspace.destroy().await.succeeded();
        // An ended maintenance's flag, left by a run that died before removing it.
        ironic.maintenance("n1", Some(&ours)).await;
        workspace.metal(&["--backend", "ironic", "prune"]).await.succeeded();
        let node = eventually("the maintenance flag is cleared", SOON * 2, async || {
            workspace.metal(&["--backend", "ironic", "prune"]).await.succeeded();
            let node = ironic.node("n1").await;
            (node["maintenance"] == false).then_some(node)
        })
        .await;
        assert_eq!(node["power_state"], "power on");
        // A person's flag stays.
        ironic.maintenance("n1", Some("disk swap by carol")).await;
        workspace.metal(&["--backend", "ironic", "prune"]).await.succeeded();
        assert_eq!(ironic.node("n1").await["maintenance_reason"], "disk swap by carol");
    }
}

for_one_host! {
    async fn a_node_on_sushy_tools_is_held_through_an_api_with_tls(host) {
        let folder = tempfile::tempdir().unwrap();
        let certificates = Certificates::new(folder.path());
        let sushy = Sushy::start(sushy::Options { tls: false, powered_on: true, ..sushy::Options::default() }).await;
        let tls = Some((certificates.certificate.clone(), certificates.key.clone()));
        let ironic = Ironic::start(Options { tls, ..Options::default() }).await;
        let account = (sushy::USERNAME, sushy.password());
        ironic.redfish_node("n1", sushy.url(), &format!("/redfish/v1/Systems/{}", sushy.system(1)), account).await;
        ironic.power("n1", "power on").await;
        let workspace = Workspace::new(host);
        let provider = |more: &str| {
            format!(
                r#"
provider "metal" {{
  graceful_shutdown_timeout = "40s"
  power_timeout             = "60s"
  ironic = {{
    endpoint           = "{}"
    soft_power_timeout = "30s"
    lock_keys          = {{ n1 = "{SYSTEM}" }}
    {more}
  }}
}}
{}"#,
                ironic.url(),
                maintenance("server_power = \"Off\"")
            )
        };
        // Unconfigured authorities are not trusted.
        workspace.configure(&provider(""));
        workspace.apply().await.failed();
        assert_eq!(ironic.node("n1").await["maintenance"], false);
        let authority = certificates.authority.display().to_string();
        workspace.configure(&provider(&format!("ca_certificate_file = {authority:?}")));
        workspace.apply().await.succeeded();
        let held = workspace.resource(HELD).await.unwrap();
        assert_eq!((&held["state"], &held["power_state"]), (&"InMaintenance".into(), &"Off".into()), "{held}");
        let node = ironic.node("n1").await;
        assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(true), &json!("power off")));
        workspace.destroy().await.succeeded();
        let node = ironic.node("n1").await;
        assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(false), &json!("power on")));
    }
}
