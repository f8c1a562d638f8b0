//! An API server that accepts connections but never replies: plans end; waits and releases
//! continue once it replies again.

use std::time::Duration;

use bmc_simulator::PowerState;

use super::{HELD, approvals::claimed, maintenance, strangers::ours};
use crate::{
    servers::{
        ironcore::{
            api::{Key, Kind},
            family::Family,
            world::World,
        },
        toxiproxy::Toxiproxy,
    },
    support::{simulator::SOON, workspace::Workspace},
};

/// Long enough for several requests to time out.
const SILENT: Duration = Duration::from_secs(8);

/// Longer than all request timeouts.
const LONG: Duration = Duration::from_secs(110);

fn configure(world: &World, proxy: &Toxiproxy, workspace: &Workspace, body: &str) {
    let kubeconfig = world.kubernetes.kubeconfig_at(&format!("https://{}", proxy.host()), "admin");
    workspace.configure(&format!(
        r#"
provider "metal" {{
  graceful_shutdown_timeout = "60s"
  power_timeout             = "60s"
  metal_operator = {{
    kubeconfig      = "{}"
    bmc_insecure    = true
    request_timeout = "3s"
  }}
}}
{body}
"#,
        kubeconfig.display()
    ));
}

fn shutdowns(world: &World) -> usize {
    let journal = world.simulator.journal(&bmc_simulator::JournalQuery::system("node1"));
    let bodies =
        journal.iter().filter(|entry| entry.path.contains("ComputerSystem.Reset")).filter_map(|it| it.body.as_ref());
    bodies.filter(|body| body["ResetType"] == "GracefulShutdown").count()
}

for_one_host! {
    async fn a_plan_ends_with_a_warning(host) {
        let world = claimed(Family::V0_7).await;
        let proxy = Toxiproxy::to(&world.kubernetes.host());
        let workspace = Workspace::new(host);
        let claim = "resource \"metal_server_claim\" \"db\" {\n  server = \"node1\"\n  namespace = \"owners\"\n  name = \"claim1\"\n  \
                     image = \"registry.example/os:1\"\n  server_power = \"On\"\n  ignition = { secret_name = \"claim1-ignition\" }\n}\n";
        let body = format!("{}{claim}", maintenance("Enforced", "server_power = \"Off\""));
        // No data is known yet.
        configure(&world, &proxy, &workspace, &body);
        proxy.lose_replies();
        let plan = workspace.try_plan().await.succeeded();
        plan.says("The cluster did not answer").says("node1").says("no answer within 3s").is_silent_about("BMC did not answer");
        proxy.heal();
        workspace.import("metal_server_claim.db", "owners/claim1").await.succeeded();
        workspace.apply().await.succeeded();
        // Known data is kept.
        proxy.lose_replies();
        let plan = workspace.try_plan().await.succeeded();
        plan.says("The cluster did not answer").says("last known values").says("no answer within 3s");
        let plan = workspace.run(&["plan", "-destroy"]).await.succeeded();
        plan.says("Server will be powered off and unbound").says("Its current state could not be read");
        proxy.heal();
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        assert!(world.find(Kind::Claim, &Key::within("owners", "claim1")).await.is_some());
    }
}

for_one_host! {
    async fn a_wait_and_giving_back_go_on_when_it_speaks_again(host) {
        let world = claimed(Family::V0_7).await;
        let proxy = Toxiproxy::to(&world.kubernetes.host());
        let workspace = Workspace::new(host);
        configure(&world, &proxy, &workspace, &maintenance("OwnerApproval", "server_power = \"Off\""));
        let before = shutdowns(&world);
        let apply = workspace.start_apply();
        apply.until_it_logs("maintenance-approved=true", SOON).await;
        let uid = ours(&world, "node1").await.unwrap().metadata.uid;
        proxy.lose_replies();
        world.approve("owners", "claim1").await;
        tokio::time::sleep(SILENT).await;
        // The operator has granted it, but the provider cannot read that yet.
        assert_eq!(shutdowns(&world), before);
        proxy.heal();
        apply.wait(LONG).await.succeeded();
        assert_eq!(ours(&world, "node1").await.unwrap().metadata.uid, uid, "it is another request");
        assert_eq!(shutdowns(&world), before + 1);
        assert_eq!(workspace.resource(HELD).await.unwrap()["power_state"], "Off");

        let destroy = workspace.start_destroy();
        destroy.until_it_logs("releasing the server", SOON).await;
        proxy.lose_replies();
        tokio::time::sleep(SILENT).await;
        proxy.heal();
        destroy.wait(LONG).await.succeeded();
        assert!(ours(&world, "node1").await.is_none());
        world.until_state("node1", "Reserved").await;
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
        assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new());
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}
