//! An API server with temporary errors: every change happens exactly once, with few requests.

use std::time::Duration;

use bmc_simulator::PowerState;

use super::{HELD, cluster, maintenance, strangers::ours};
use crate::{
    servers::{
        faulty::{Fault, Faulty},
        ironcore::{Options, family::Family, world::World},
    },
    support::{host::Host, simulator::SOON, wait::eventually, workspace::Workspace},
};

fn configure(world: &World, faulty: &Faulty, workspace: &Workspace) {
    let kubeconfig = world.kubernetes.kubeconfig_at(&faulty.url(), "admin");
    workspace.configure(&format!(
        r#"
provider "metal" {{
  graceful_shutdown_timeout = "10s"
  power_timeout             = "10s"
  metal_operator = {{
    kubeconfig   = "{}"
    bmc_insecure = true
  }}
}}
{}
"#,
        kubeconfig.display(),
        maintenance("OwnerApproval", "server_power = \"Off\"")
    ));
}

fn resets(world: &World) -> Vec<String> {
    let journal = world.simulator.journal(&bmc_simulator::JournalQuery::system("node1"));
    let resets = journal.iter().filter(|entry| entry.path.contains("ComputerSystem.Reset"));
    resets.filter_map(|entry| Some(entry.body.as_ref()?["ResetType"].as_str()?.to_owned())).collect()
}

/// Runs a maintenance under one fault.
async fn holds_in_spite_of(world: &World, faulty: &Faulty, workspace: &Workspace, fault: Fault) {
    let before = resets(world);
    let asked = faulty.asked();
    let apply = workspace.start_apply();
    apply.until_it_logs("maintenance-approved=true", SOON).await;
    // First during the wait, then on every later write.
    let method = if fault == Fault::LoseReply { "PATCH" } else { "" };
    faulty.fail(fault, method, 3);
    world.approve("owners", "claim1").await;
    apply.wait(SOON * 2).await.succeeded();
    let first = faulty.heal();
    let held = workspace.resource(HELD).await.unwrap();
    assert_eq!((&held["state"], &held["power_state"]), (&"InMaintenance".into(), &"Off".into()), "{fault:?}");
    let between = resets(world);
    assert_eq!(between[before.len()..], ["GracefulShutdown"], "{fault:?}");
    let destroy = workspace.start_destroy();
    destroy.until_it_logs("releasing the server", SOON).await;
    faulty.fail(fault, if fault == Fault::LoseReply { "DELETE" } else { "" }, 2);
    destroy.wait(SOON * 2).await.succeeded();
    let second = faulty.heal();
    assert!(first + second > 0, "{fault:?}: nothing went wrong");
    assert!(ours(world, "node1").await.is_none(), "{fault:?}");
    world.until_state("node1", "Reserved").await;
    assert_eq!(resets(world)[between.len()..], ["On"], "{fault:?}");
    assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
    assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new(), "{fault:?}");
    let requests = faulty.asked() - asked;
    assert!(requests < 200, "{fault:?}: {requests} requests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_answers_cost_time_and_nothing_else() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    world.claim("node1", "owners", "claim1").await;
    let faulty = Faulty::to(&world.kubernetes).await;
    let workspace = Workspace::new(Host::OpenTofu);
    configure(&world, &faulty, &workspace);
    let answers = [429, 409, 410, 500, 503].map(Fault::Answer);
    for fault in answers.into_iter().chain([Fault::LoseReply]) {
        holds_in_spite_of(&world, &faulty, &workspace, fault).await;
    }
}

/// Under a long overload with many clients, the request rate does not grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_with_too_much_to_do_is_not_given_more() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    world.claim("node1", "owners", "claim1").await;
    let faulty = Faulty::to(&world.kubernetes).await;
    let workspace = Workspace::new(Host::Terraform);
    configure(&world, &faulty, &workspace);
    let apply = workspace.start_apply();
    apply.until_it_logs("maintenance-approved=true", SOON).await;
    for code in [429, 500] {
        faulty.fail(Fault::Answer(code), "", usize::MAX);
        let began = std::time::Instant::now();
        eventually("some time passes", SOON, async || (began.elapsed() > Duration::from_secs(6)).then_some(())).await;
        let hit = faulty.heal();
        assert!(hit < 60, "{code}: {hit} requests in 6 s");
    }
    apply.interrupt_from_terminal();
    apply.wait(SOON).await.failed().says("Waiting for node1 was interrupted");
    assert!(ours(&world, "node1").await.is_none());
}
