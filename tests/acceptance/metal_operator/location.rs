//! A hold's record contains its location. After a change of namespace, cluster or backend, ending
//! it either finds the original objects or is refused without side effects.

use bmc_simulator::{BootSource, PowerState};
use serde_json::{Value, json};

use super::{
    HELD,
    approvals::claimed,
    cluster, configure, configure_as, maintenance,
    strangers::{holder, ours, withdraw},
};
use crate::{
    golden::diagnostics,
    servers::ironcore::{
        Options,
        api::{Key, Kind, Object, text, text as text_of},
        family::Family,
        world::World,
    },
    support::{host::Host, run::Run, simulator::SOON, wait::eventually, workspace::Workspace},
};

/// Configures a provider whose own objects are in this namespace.
fn configure_in(world: &World, workspace: &Workspace, namespace: &str, body: &str) {
    let kubeconfig = world.kubernetes.user("ci", &["system:masters"]);
    workspace.configure(&format!(
        r#"
provider "metal" {{
  graceful_shutdown_timeout = "4s"
  power_timeout             = "4s"
  metal_operator = {{
    kubeconfig   = "{}"
    namespace    = "{namespace}"
    bmc_insecure = true
  }}
}}
{body}
"#,
        kubeconfig.display()
    ));
}

async fn namespaces(world: &World, names: &[&str]) {
    for name in names {
        world.ensure(Kind::Namespace, json!({"metadata": {"name": name}})).await;
    }
}

/// Runs the command line for a cluster, with or without a namespace.
async fn metal(workspace: &mut Workspace, world: &World, namespace: Option<&str>, arguments: &[&str]) -> Run {
    let kubeconfig = world.kubernetes.kubeconfig_at(&world.kubernetes.url(), "admin");
    workspace.set("METAL_KUBECONFIG", kubeconfig.display().to_string());
    workspace.set("METAL_KUBE_NAMESPACE", namespace.unwrap_or_default());
    let all: Vec<&str> = ["--metal-operator"].iter().chain(arguments).copied().collect();
    workspace.metal(&all).await
}

/// Returns every request for the server, in all namespaces.
async fn requests(world: &World) -> Vec<Object> {
    let mut all = world.list(world.maintenances()).await;
    all.retain(|one| text(one, "/spec/serverRef/name") == "node1");
    all
}

fn network_boots(world: &World) -> usize {
    world.simulator.boots("node1").unwrap().iter().filter(|boot| boot.booted_from == BootSource::Pxe).count()
}

/// Asserts that the server runs for its owner again and carries no marks.
async fn is_as_it_was(world: &World, boots: usize) {
    world.until_state("node1", "Reserved").await;
    assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
    assert_eq!(network_boots(world), boots, "the server was released powered off, so it booted from the network");
    assert!(requests(world).await.is_empty());
    assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new());
}

for_one_host! {
    async fn a_hold_is_released_where_it_is_whatever_namespace_the_command_was_told(host) {
        let world = claimed(Family::V0_7).await;
        namespaces(&world, &["maintenance", "elsewhere"]).await;
        let mut workspace = Workspace::new(host);
        configure_in(&world, &workspace, "maintenance", &maintenance("Enforced", "server_power = \"Off\""));
        let boots = network_boots(&world);
        for told in [None, Some("elsewhere")] {
            workspace.apply().await.succeeded();
            assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off);
            let said = if told.is_none() {
                metal(&mut workspace, &world, told, &["release", "ops/bios"]).await
            } else {
                let generation = workspace.generation("ops/bios").await;
                let release = ["release", "ops/bios", "--force", "--generation", &generation, "--reason", "node needed"];
                metal(&mut workspace, &world, told, &release).await
            };
            said.succeeded().says("ops/bios has ended; node1 is in its prior state (On)");
            is_as_it_was(&world, boots).await;
            workspace.destroy().await.succeeded();
        }
    }
}

for_one_host! {
    async fn a_namespace_that_changes_during_a_hold_leaves_nothing_behind(host) {
        let world = claimed(Family::V0_7).await;
        namespaces(&world, &["maintenance", "elsewhere"]).await;
        let workspace = Workspace::new(host);
        let body = maintenance("Enforced", "server_power = \"Off\"");
        configure_in(&world, &workspace, "maintenance", &body);
        workspace.apply().await.succeeded();
        let boots = network_boots(&world);
        configure_in(&world, &workspace, "elsewhere", &body);
        let plan = workspace.plan().await;
        plan.is_empty();
        plan.run.is_silent_about("revoked the server");
        // In-place changes are written to the request's namespace.
        configure_in(&world, &workspace, "elsewhere", &body.replace("\"Off\"", "\"On\""));
        workspace.apply().await.succeeded();
        let there: Vec<_> = requests(&world).await.iter().map(Key::of).collect();
        assert_eq!(there.iter().filter_map(|key| key.namespace.as_deref()).collect::<Vec<_>>(), ["maintenance"]);
        workspace.destroy().await.succeeded();
        is_as_it_was(&world, boots).await;
    }
}

for_one_host! {
    async fn another_cluster_than_that_of_the_hold_is_refused_before_anything_is_touched(host) {
        let (world, other) = (claimed(Family::V0_7).await, claimed(Family::V0_7).await);
        let mut workspace = Workspace::new(host);
        let body = maintenance("Enforced", "server_power = \"Off\"");
        configure(&world, &workspace, &body);
        workspace.apply().await.succeeded();
        let boots = network_boots(&world);
        let before = holder(&world, "node1").await;
        configure(&other, &workspace, &body);
        let refused = |run: Run| {
            run.says("ops/bios").says(&world.kubernetes.url()).says(&other.kubernetes.url());
        };
        let plan = workspace.try_plan().await.succeeded();
        refused(plan);
        let destroy = workspace.destroy().await.failed();
        refused(destroy);
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        refused(metal(&mut workspace, &other, None, &["release", "ops/bios"]).await.failed());
        let generation = workspace.generation("ops/bios").await;
        let release = ["release", "ops/bios", "--force", "--generation", &generation, "--reason", "node needed"];
        refused(metal(&mut workspace, &other, None, &release).await.failed());
        // A command without access to any cluster does not end it either.
        let said = workspace.metal(&["release", "ops/bios"]).await.failed();
        said.says("metal_operator").says(&world.kubernetes.url()).says("--metal-operator");
        assert_eq!(holder(&world, "node1").await, before);
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off);
        assert!(requests(&other).await.is_empty());
        assert_eq!(other.simulator.system("node1").unwrap().power, PowerState::On);
        // Repeating the request from there does not continue it either.
        let retry = workspace.beside();
        configure(&other, &retry, &body);
        refused(retry.apply().await.failed());
        configure(&world, &workspace, &body);
        workspace.destroy().await.succeeded();
        is_as_it_was(&world, boots).await;
    }
}

for_one_host! {
    async fn what_was_not_put_back_is_not_said_to_be(host) {
        let world = claimed(Family::V0_7).await;
        let mut workspace = Workspace::new(host);
        configure(&world, &workspace, &maintenance("Enforced", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        withdraw(&world, &Key::of(&ours(&world, "node1").await.unwrap())).await;
        world.until_state("node1", "Reserved").await;
        world.simulator.wait_power("node1", PowerState::On, SOON).await.expect("the operator switches it on again");
        let said = metal(&mut workspace, &world, None, &["release", "ops/bios"]).await.failed();
        said.is_silent_about("is in its prior state").says("ops/bios has ended, but node1 was not restored");
        said.says("the external request does not exist any more").says("Power is On now, and was On before").says("its external system shows Reserved");
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");

        // The same for a destroy.
        workspace.destroy().await.succeeded();
        workspace.apply().await.succeeded();
        withdraw(&world, &Key::of(&ours(&world, "node1").await.unwrap())).await;
        world.until_state("node1", "Reserved").await;
        let said = workspace.destroy().await.succeeded();
        said.says("Power is").says("and was On before");
    }
}

/// The next waiter takes over an overdue hold without a process.
async fn is_taken_over(family: Family, host: Host) {
    let world = claimed(family).await;
    let first = Workspace::new(host);
    configure(&world, &first, &maintenance("Enforced", "expires_after = \"1s\""));
    first.apply().await.succeeded();
    let second = first.beside();
    let next = maintenance("Enforced", "timeouts = { create = \"60s\" }").replace("\"bios\"", "\"next\"");
    configure(&world, &second, &next);
    second.apply().await.succeeded();
    assert_eq!(second.resource(HELD).await.unwrap()["state"], "InMaintenance", "{family:?}");
    first.refresh().await.succeeded().says("Maintenance has expired");
    first.destroy().await.succeeded();
    assert_eq!(second.resource(HELD).await.unwrap()["state"], "InMaintenance", "{family:?}");
    second.destroy().await.succeeded();
    world.until_state("node1", "Reserved").await;
    assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On, "{family:?}");
    assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new(), "{family:?}");
}

for_one_host! {
    async fn an_overdue_hold_is_taken_over_by_the_next_of_the_same_store(host) {
        is_taken_over(Family::V0_7, host).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overdue_hold_is_taken_over_in_every_family() {
    for (family, host) in
        [(Family::V0_5, Host::OpenTofu), (Family::MaintenanceGroup, Host::Terraform), (Family::Parked, Host::OpenTofu)]
    {
        is_taken_over(family, host).await;
    }
}

/// A waiter without the owner's approval does not end another hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overdue_hold_is_not_ended_for_who_may_not_start() {
    let world = claimed(Family::V0_7).await;
    let first = Workspace::new(Host::OpenTofu);
    configure(&world, &first, &maintenance("Enforced", "expires_after = \"1s\""));
    first.apply().await.succeeded();
    let second = first.beside();
    let next = maintenance("OwnerApproval", "timeouts = { create = \"6s\" }").replace("\"bios\"", "\"next\"");
    configure(&world, &second, &next);
    second.apply().await.failed().says("maintenance-approved");
    assert_eq!(first.resource(HELD).await.unwrap()["state"], "InMaintenance");
    first.plan().await.run.says("Maintenance is overdue");
    assert!(requests(&world).await.iter().any(|one| text(one, "/status/state") == "InMaintenance"));
    world.approve("owners", "claim1").await;
    configure(&world, &second, &next.replace("6s", "60s"));
    second.apply().await.succeeded();
    second.destroy().await.succeeded();
}

/// After a killed waiter, `prune` shows the lease that it waits for, with the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prune_says_which_lease_it_waits_for() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    let mut workspace = Workspace::new(Host::Terraform);
    configure_as(
        &world.kubernetes.user("ci", &["system:masters"]),
        &workspace,
        "",
        &maintenance("Enforced", "hold_place_for = \"1s\""),
    );
    let disk = super::strangers::request(&world, "disk", "node1", "Enforced", 0).await;
    super::strangers::until_request(&world, &disk, "InMaintenance").await;
    metal(&mut workspace, &world, None, &["prune"]).await.succeeded().says("No orphaned requests.");
    let lost = workspace.start_apply();
    lost.until_it_logs("others/disk (reason \"swap disk 3\") to release the server", SOON).await;
    lost.kill_everything();
    drop(lost);
    let said = metal(&mut workspace, &world, None, &["prune"]).await.succeeded();
    said.is_silent_about("No orphaned requests").says("ops/bios on node1").says("its lease ends at");
    let said = metal(&mut workspace, &world, None, &["prune", "--json"]).await.succeeded();
    let said: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(said["taken_back"], 0, "{said}");
    assert_eq!(
        (&said["waiting"][0]["id"], &said["waiting"][0]["server"]),
        (&json!("ops/bios"), &json!("node1")),
        "{said}"
    );
    let until: jiff::Timestamp = said["waiting"][0]["until"].as_str().unwrap().parse().unwrap();
    assert!(until > jiff::Timestamp::now(), "{said}");
    eventually("the request is deleted", SOON * 3, async || {
        metal(&mut workspace, &world, None, &["prune"]).await.succeeded();
        ours(&world, "node1").await.is_none().then_some(())
    })
    .await;
    metal(&mut workspace, &world, None, &["prune"]).await.succeeded().says("No orphaned requests.");
}

/// Compares a text with its golden file, ignoring variable parts.
fn golden(name: &str, text: &str) {
    insta::with_settings!({
        omit_expression => true,
        prepend_module_to_snapshot => false,
        snapshot_path => "../snapshots",
        filters => vec![
            (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "<time>"),
            (r"\S+ on \S+ \(process \d+\)", "<user> on <host> (process <pid>)"),
            (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<uuid>"),
            (r"node1-[0-9a-f]{12}", "node1-<digest>"),
            (r"127\.0\.0\.1:\d+", "<address>"),
        ],
    }, { insta::assert_snapshot!(name, text) });
}

/// Returns a command's output for a person.
fn said(run: &Run) -> String {
    let lines = run.stdout.lines().chain(run.stderr.lines().filter(|line| line.starts_with("Error")));
    lines.map(|line| format!("{line}\n")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_of_places_is_as_in_the_golden_file() {
    let (world, other) = (claimed(Family::V0_7).await, claimed(Family::V0_7).await);
    let mut workspace = Workspace::new(Host::OpenTofu);
    let body = maintenance("Enforced", "server_power = \"Off\"");
    configure(&world, &workspace, &body);
    workspace.apply().await.succeeded();
    configure(&other, &workspace, &body);
    let mut text = String::new();
    let mut note = |title: &str, said: String| text.push_str(&format!("# {title}\n{said}\n"));
    let plan = workspace.run(&["plan", "-input=false", "-json"]).await.succeeded();
    note("A plan for another cluster", diagnostics(&plan.stdout));
    let destroy =
        workspace.run(&["destroy", "-auto-approve", "-input=false", "-json", "-refresh=false"]).await.failed();
    note("A destroy in another cluster", diagnostics(&destroy.stdout));
    let complete = ["release", "ops/bios"];
    note("release in another cluster", said(&metal(&mut workspace, &other, None, &complete).await.failed()));
    note("release without a cluster", said(&workspace.metal(&complete).await.failed()));
    withdraw(&world, &Key::of(&ours(&world, "node1").await.unwrap())).await;
    world.until_state("node1", "Reserved").await;
    world.simulator.wait_power("node1", PowerState::On, SOON).await.expect("the operator switches it on again");
    let on = |server: &Object| text_of(server, "/status/powerState") == "On";
    world.until(Kind::Server, &Key::cluster("node1"), "the operator reports On", on).await;
    note("release after the request was deleted", said(&metal(&mut workspace, &world, None, &complete).await.failed()));
    note("prune with nothing to do", said(&metal(&mut workspace, &world, None, &["prune"]).await.succeeded()));
    golden("places", &text);
}

/// A server that is already off stays off, and the plan reports a missing namespace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_that_is_there_already_is_kept_and_a_missing_namespace_is_planned() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    let workspace = Workspace::new(Host::Terraform);
    configure_in(&world, &workspace, "nowhere", &maintenance("OwnerApproval", "server_power = \"Off\""));
    let plan = workspace.try_plan().await.succeeded();
    plan.says("Namespace \"nowhere\" does not exist").is_silent_about("Unclaimed");
    configure_in(&world, &workspace, "default", &maintenance("OwnerApproval", "server_power = \"Off\""));
    workspace.try_plan().await.succeeded().is_silent_about("does not exist");
    assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off);
    workspace.apply().await.succeeded();
    let request = ours(&world, "node1").await.unwrap();
    assert_eq!(text(&request, "/spec/serverPower"), "Off");
    workspace.destroy().await.succeeded();
}
