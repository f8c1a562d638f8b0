//! Shared stores: holds are found from another machine, moved, and survive an outage.

use std::time::Duration;

use bmc_simulator::{Fault, HeldQuery, Phase, PowerState};

use crate::{
    servers::{
        bucket::{self, Bucket},
        kubernetes::Kubernetes,
        postgres::Postgres,
        toxiproxy::Toxiproxy,
    },
    support::{
        host::Host,
        simulator::{Fleet, SOON, maintenance},
        wait::eventually,
        workspace::Workspace,
    },
};

/// One store per shareable type.
fn shared() -> [String; 3] {
    let (server, cluster) = (Postgres::shared(), Kubernetes::shared());
    let database = server.url("postgres", &server.database());
    [database, cluster.store(&cluster.namespace()), Bucket::shared().url(&Bucket::prefix())]
}

/// A workspace on a separate machine that shares only the store.
pub fn machine(host: Host, url: &str) -> Workspace {
    let mut workspace = Workspace::new(host);
    for (name, value) in bucket::variables() {
        workspace.set(name, value);
    }
    workspace.set("METAL_COORDINATION_URL", url);
    workspace
}

for_one_host! {
    async fn machines_exclude_each_other(host) {
        for url in shared() {
            let (fleet, one, other) = (Fleet::new(1).await, machine(host, &url), machine(host, &url));
            fleet.configure(&one, &maintenance("node1", "one", "server_power = \"Off\""));
            fleet.configure(&other, &maintenance("node1", "other", "server_power = \"Off\""));
            one.apply().await.succeeded();
            one.plan().await.is_empty();
            assert_eq!(fleet.system("node1").power, PowerState::Off);
            other.try_plan().await.succeeded().says("1 ahead: tests/one");
            let waiting = other.start_apply();
            waiting.until_it_logs("tests/one", SOON).await;
            other.metal(&["queue"]).await.succeeded().says("tests/one").says("tests/other");
            let resets = fleet.resets("node1").len();
            one.destroy().await.succeeded();
            // The server is restored and released, then the waiter gets it.
            waiting.wait(SOON).await.succeeded();
            assert_eq!(fleet.resets("node1").len(), resets + 2, "{:?}", fleet.resets("node1"));
            other.destroy().await.succeeded();
            fleet.until("node1", PowerState::On).await;
            other.metal(&["store", "check"]).await.succeeded().says("is in order").says("2 in the history");
        }
    }
}

/// The plan warns about changes that a database fail-over would lose, unless this is accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_may_lose_changes_is_said_in_the_plan() {
    let server = Postgres::shared();
    let url = server.url("postgres", &server.database());
    let (fleet, warned) = (Fleet::new(1).await, machine(Host::OpenTofu, &url));
    fleet.configure(&warned, &maintenance("node1", "m", ""));
    let plan = warned.plan().await;
    plan.run.says("The coordination store can lose changes").says("synchronous_commit is off");
    let accepted = machine(Host::OpenTofu, &format!("{url}?accept_lost_commits=yes"));
    fleet.configure(&accepted, &maintenance("node1", "m", ""));
    let plan = accepted.plan().await;
    assert!(!plan.run.output.contains("can lose changes"), "{}", plan.run.output);
}

/// A holder without its store changes nothing, and continues after the outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_dies_in_the_middle_stops_its_holder_until_it_is_back() {
    let mut server = Postgres::start(&["fsync=on", "synchronous_commit=on", "full_page_writes=on"]);
    let url = server.url("postgres", &server.database());
    let (fleet, workspace) = (Fleet::new(2).await, machine(Host::OpenTofu, &url));
    let other = maintenance("node2", "other", "").replace("\"held\"", "\"other\"");
    let first = maintenance("node1", "m", "server_power = \"Off\"");
    fleet.configure(&workspace, &other);
    workspace.apply().await.succeeded();
    fleet.configure(&workspace, &format!("{first}{other}"));

    let fault =
        fleet.simulator.inject(Fault::hold(Phase::Before).on_system("node1").on_request("POST", "**Reset").times(1));
    let run = workspace.start_apply();
    let query = HeldQuery { system: Some("node1".to_owned()), ..HeldQuery::default() };
    let held = eventually("the first change", SOON, async || fleet.simulator.held(&query).into_iter().next()).await;
    server.kill();
    fleet.simulator.remove_fault(fault).unwrap();
    fleet.simulator.release(held.sequence).unwrap();
    run.until_it_logs("waiting for the coordination store", Duration::from_mins(1)).await;
    let before = fleet.changes("node1");
    // Plans continue with the last known data.
    let plan = workspace.start(&[
        "plan",
        "-input=false",
        "-no-color",
        "-lock=false",
        "-target=metal_server_maintenance.other",
    ]);
    let plan = plan.wait(Duration::from_mins(1)).await.succeeded();
    plan.says("The coordination store did not answer").says("No changes");
    assert_eq!(fleet.changes("node1"), before, "the server was changed while the store was unreachable");
    server.start_again();
    run.wait(Duration::from_mins(1)).await.succeeded();
    assert_eq!(fleet.resets("node1").len(), 1, "{:?}", fleet.resets("node1"));
    workspace.plan().await.is_empty();
    workspace.destroy().await.succeeded();
    workspace.metal(&["store", "check"]).await.succeeded().says("0 held");
}

/// Ctrl-C works during a store outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_without_its_store_can_be_interrupted() {
    let mut server = Postgres::start(&[]);
    let url = server.url("postgres", &server.database());
    let (fleet, one, other) = (Fleet::new(1).await, machine(Host::OpenTofu, &url), machine(Host::OpenTofu, &url));
    fleet.configure(&one, &maintenance("node1", "one", ""));
    fleet.configure(&other, &maintenance("node1", "other", ""));
    one.apply().await.succeeded();
    // Both use the default owner, although their users differ.
    let unowned = other.try_plan().await.succeeded();
    unowned.says("No owner is set").says("acts for \"default\"");
    let waiting = other.start_apply();
    waiting.until_it_logs("tests/one", SOON).await;
    server.kill();
    waiting.interrupt();
    let run = waiting.wait(Duration::from_secs(20)).await.failed();
    run.says("coordination store");
    server.start_again();
    one.destroy().await.succeeded();
}

/// A forced release during a store outage stops the former holder for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_comes_back_after_its_server_was_taken_stops_for_good() {
    let server = Postgres::shared();
    let database = server.database();
    let proxy = Toxiproxy::to(&format!("127.0.0.1:{}", server.port));
    let cut_off = machine(Host::OpenTofu, &format!("postgres://postgres@{}/{database}", proxy.host()));
    let (fleet, mut operator) = (Fleet::new(1).await, machine(Host::OpenTofu, &server.url("postgres", &database)));
    for workspace in [&cut_off, &operator] {
        fleet.configure(workspace, &maintenance("node1", "m", "server_power = \"Off\""));
    }
    fleet.command_line(&mut operator);
    let before = fleet.system("node1");
    let fault =
        fleet.simulator.inject(Fault::hold(Phase::Before).on_system("node1").on_request("POST", "**Reset").times(1));
    let run = cut_off.start_apply();
    let query = HeldQuery { system: Some("node1".to_owned()), ..HeldQuery::default() };
    let held = eventually("the first change", SOON, async || fleet.simulator.held(&query).into_iter().next()).await;
    proxy.cut();
    fleet.simulator.remove_fault(fault).unwrap();
    fleet.simulator.release(held.sequence).unwrap();
    fleet.until("node1", PowerState::Off).await;
    let generation = operator.generation("tests/m").await;
    let release = ["release", "tests/m", "--force", "--generation", &generation, "--reason", "the runner is cut off"];
    operator.metal(&release).await.succeeded();
    fleet.until("node1", PowerState::On).await;
    let changes = fleet.changes("node1");
    proxy.mend();
    run.wait(Duration::from_mins(1)).await.failed().says("node1").says("Nothing more was done to the server");
    assert_eq!(fleet.changes("node1"), changes, "the run changed the server after it lost the lock");
    let after = fleet.system("node1");
    assert_eq!((after.power, &after.boot, &after.media), (before.power, &before.boot, &before.media));
    operator.metal(&["store", "check"]).await.succeeded().says("0 held");
}

/// Moves a whole store; existing states continue with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_moved_while_nobody_holds_a_server() {
    let (fleet, mut workspace) = (Fleet::new(2).await, Workspace::new(Host::OpenTofu));
    for (name, value) in bucket::variables() {
        workspace.set(name, value);
    }
    let over = maintenance("node1", "over", "on_end = \"keep\"");
    let held = maintenance("node2", "m", "").replace("\"held\"", "\"other\"");
    fleet.configure(&workspace, &format!("{over}{held}"));
    workspace.apply().await.succeeded();
    let busy = workspace.metal(&["store", "export"]).await.failed();
    busy.says("is in use").says("tests/m (InMaintenance)");
    workspace
        .run(&["destroy", "-auto-approve", "-input=false", "-target=metal_server_maintenance.other"])
        .await
        .succeeded();
    fleet.command_line(&mut workspace);
    workspace.metal(&["release", "tests/over"]).await.succeeded();
    workspace.refresh().await.succeeded();
    for url in shared() {
        let export = workspace.metal(&["store", "export"]).await.succeeded();
        let password = &fleet.simulator.credentials().password;
        assert!(
            !export.stdout.contains(secrecy::ExposeSecret::expose_secret(password)),
            "the export contains a password"
        );
        fleet.configure(&workspace, &over);
        workspace.write("export.json", &export.stdout);
        let file = workspace.folder().join("export.json").display().to_string();
        workspace.set("METAL_COORDINATION_URL", &*url);
        workspace.metal(&["store", "import", &file]).await.succeeded().says("2 machines");
        workspace.metal(&["store", "import", &file]).await.failed().says("is not empty");
        workspace.metal(&["show", "tests/over"]).await.succeeded().says("Completed").says("prepared");
        // The state finds its record, and the ended maintenance stays ended.
        workspace.plan().await.is_empty();
    }
    workspace.destroy().await.succeeded();
    workspace.write("nonsense.json", "{}");
    let file = workspace.folder().join("nonsense.json").display().to_string();
    workspace.metal(&["store", "import", &file]).await.failed().says("it is not a store export");
}

/// Plans need only read access.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reviewer_plans_with_the_right_to_read_only() {
    let server = Postgres::start(&[]);
    let database = server.database();
    let (fleet, runner) = (Fleet::new(1).await, machine(Host::OpenTofu, &server.url("postgres", &database)));
    fleet.configure(&runner, &maintenance("node1", "one", ""));
    runner.apply().await.succeeded();
    server.sql(&database, &runner.metal(&["store", "roles", "postgres"]).await.succeeded().stdout);
    let reviewer = machine(Host::OpenTofu, &server.url("metal_reviewer", &database));
    fleet.configure(&reviewer, &maintenance("node1", "two", ""));
    reviewer.try_plan().await.succeeded().says("1 ahead: tests/one").is_silent_about("did not answer");
    reviewer.metal(&["queue"]).await.succeeded().says("tests/one");
    reviewer.apply().await.failed().says("denied access for").says("permission denied");
    let runner_only = machine(Host::OpenTofu, &server.url("metal_runner", &database));
    fleet.configure(&runner_only, &maintenance("node1", "one", ""));
    runner_only.metal(&["store", "check"]).await.succeeded().says("1 held");
    runner.destroy().await.succeeded();
}

/// The same in a cluster. Errors name the verb and resource that the role lacks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reviewer_of_a_cluster_plans_with_the_right_to_read_only() {
    let cluster = Kubernetes::start();
    let printed = machine(Host::OpenTofu, "kubernetes://metal").metal(&["store", "roles", "kubernetes"]).await;
    cluster.apply(&printed.succeeded().stdout);
    let as_a = |role: &str| Kubernetes::store_of("metal", &cluster.user("ada", &[&format!("metal-{role}s")]));
    let (fleet, runner) = (Fleet::new(1).await, machine(Host::OpenTofu, &as_a("runner")));
    fleet.configure(&runner, &maintenance("node1", "one", ""));
    runner.apply().await.succeeded();
    let reviewer = machine(Host::OpenTofu, &as_a("reviewer"));
    fleet.configure(&reviewer, &maintenance("node1", "two", ""));
    reviewer.try_plan().await.succeeded().says("1 ahead: tests/one").is_silent_about("did not answer");
    reviewer.metal(&["queue"]).await.succeeded().says("tests/one");
    reviewer
        .apply()
        .await
        .failed()
        .says("denied access for")
        .says("\"leases.coordination.k8s.io\" in namespace \"metal\"");
    reviewer.metal(&["store", "check"]).await.succeeded().says("1 held");
    runner.destroy().await.succeeded();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_cannot_be_reached_or_used_is_named_without_its_password() {
    let closed = crate::servers::server::free_port();
    let workspace = machine(Host::OpenTofu, &format!("postgres://ci:hunter2@127.0.0.1:{closed}/metal"));
    let fleet = Fleet::new(1).await;
    fleet.configure(&workspace, &maintenance("node1", "m", ""));
    let plan = workspace.try_plan().await.succeeded();
    plan.says("no response from").is_silent_about("hunter2");
    let apply = workspace.apply().await.failed();
    apply.says(&format!("postgres://127.0.0.1:{closed}/metal cannot be used")).is_silent_about("hunter2");
    let workspace = machine(Host::OpenTofu, "postgres://ci:hunter2@127.0.0.1/metal?sslmod=require");
    fleet.configure(&workspace, &maintenance("node1", "m", ""));
    workspace.try_plan().await.failed().says("has the unknown parameter").is_silent_about("hunter2");
    for (file, content) in workspace.everything_written() {
        assert!(!content.windows(7).any(|window| window == b"hunter2"), "{} contains the password", file.display());
    }
}
