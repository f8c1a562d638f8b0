//! A bucket as the store: two machines that share nothing else.

use bmc_simulator::{Fault, HeldQuery, Phase, PowerState};

use crate::{
    servers::{
        bucket::{Bucket, url_at},
        kubernetes_proxy::{Proxy, Seen},
    },
    stores::machine,
    support::{
        simulator::{Fleet, SOON, maintenance},
        wait::eventually,
    },
};

/// The guide's numbers of reads and writes in an apply and in a destroy.
const APPLY: [usize; 2] = [30, 8];
const DESTROY: [usize; 2] = [40, 8];

/// Returns the numbers of reads and writes. A heartbeat depends on the run's duration.
fn counted(what: &str, seen: &[Seen]) -> [usize; 2] {
    let heartbeat = |seen: &&Seen| seen.method == "PUT" && seen.path.contains("/leases/");
    let (reads, writes): (Vec<&Seen>, Vec<&Seen>) =
        seen.iter().filter(|seen| !heartbeat(seen)).partition(|seen| seen.method == "GET");
    for seen in seen {
        println!("{what}: {} {}", seen.method, seen.path);
    }
    [reads.len(), writes.len()]
}

for_each_host! {
    async fn a_bucket_is_enough(host) {
        let url = Bucket::shared().url(&Bucket::prefix());
        let (fleet, one, other) = (Fleet::new(1).await, machine(host, &url), machine(host, &url));
        let body = |name: &str| maintenance("node1", name, "server_power = \"Off\"\n  hold_place_for = \"10m\"");
        fleet.configure(&one, &body("one"));
        fleet.configure(&other, &body("other"));

        // The first run dies in the middle of its first change.
        let fault =
            fleet.simulator.inject(Fault::hold(Phase::Before).on_system("node1").on_request("POST", "**Reset").times(1));
        let run = one.start_apply();
        let query = HeldQuery { system: Some("node1".to_owned()), ..HeldQuery::default() };
        let held = eventually("the first change", SOON, async || fleet.simulator.held(&query).into_iter().next()).await;
        run.kill_everything();
        run.wait(SOON).await.failed();
        fleet.simulator.remove_fault(fault).unwrap();
        // The request can have ended with its connection.
        let _ = fleet.simulator.release(held.sequence);

        // Another machine waits: silence does not free a server.
        let waiting = other.start_apply();
        waiting.until_it_logs("tests/one", SOON).await;
        other.metal(&["queue"]).await.succeeded().says("tests/one").says("tests/other");

        // The same run continues, and returns the server. The waiter then gets it.
        one.apply().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::Off);
        one.plan().await.is_empty();
        one.destroy().await.succeeded();
        waiting.wait(SOON).await.succeeded();
        other.destroy().await.succeeded();
        fleet.until("node1", PowerState::On).await;
        let checked = other.metal(&["store", "check"]).await.succeeded();
        checked.says("is in order").says("0 held").says("2 in the history").says("can also approve");
        other.metal(&["audit", "export"]).await.succeeded();
        other.metal(&["history"]).await.succeeded().says("tests/one").says("tests/other");
        for written in [&one, &other] {
            let secret = b"metal-test-secret";
            for (file, bytes) in written.everything_written() {
                assert!(!bytes.windows(secret.len()).any(|part| part == secret), "{} has the key", file.display());
            }
        }
    }
}

for_each_host! {
    async fn an_owner_approves_through_a_bucket(host) {
        let url = Bucket::shared().url(&Bucket::prefix());
        let (fleet, ours, theirs) = (Fleet::new(1).await, machine(host, &url), machine(host, &url));
        let claim = |more: &str| format!(
            "resource \"metal_server_claim\" \"db\" {{\n  server = \"node1\"\n  namespace = \"db\"\n  name = \"primary\"\n}}\n{more}"
        );
        fleet.configure_with(&theirs, "owner = \"team-db\"", &claim(""));
        theirs.apply().await.succeeded();
        let asked = "resource \"metal_server_maintenance\" \"held\" {\n  server = \"node1\"\n  namespace = \"ops\"\n  name = \
                     \"bios\"\n  policy = \"OwnerApproval\"\n  server_power = \"Off\"\n}\n";
        fleet.configure_with(&ours, "owner = \"team-ops\"", asked);
        let waiting = ours.start_apply();
        waiting.until_it_logs("waiting for approval", SOON).await;
        let approval = "resource \"metal_maintenance_approval\" \"yes\" {\n  server = metal_server_claim.db.server\n  \
                        maintenance = \"ops/bios\"\n}\n";
        fleet.configure_with(&theirs, "owner = \"team-db\"", &claim(approval));
        theirs.apply().await.succeeded();
        waiting.wait(SOON).await.succeeded();
        ours.metal(&["show", "ops/bios"]).await.succeeded().says("approved by team-db");
        ours.destroy().await.succeeded();
        fleet.until("node1", PowerState::On).await;
    }
}

/// The requests of a whole apply and a whole destroy. Only a plan lists objects, and a host repeats
/// it in an apply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_apply_and_a_destroy_need_few_requests() {
    let (server, prefix) = (Bucket::shared(), Bucket::prefix());
    let proxy = Proxy::to_plain(server.endpoint()).await;
    let (fleet, workspace) =
        (Fleet::new(1).await, machine(crate::support::host::Host::OpenTofu, &url_at(&proxy.url(), &prefix)));
    fleet.configure(&workspace, &maintenance("node1", "earlier", ""));
    workspace.apply().await.succeeded();
    workspace.destroy().await.succeeded();
    fleet.configure(&workspace, &maintenance("node1", "m", ""));
    let plan = workspace.plan().await;
    proxy.take_seen();
    workspace.apply_saved(&plan).await.succeeded();
    let locked = proxy.take_seen();
    workspace.run(&["destroy", "-refresh=false", "-auto-approve", "-input=false"]).await.succeeded();
    let released = proxy.take_seen();
    let lists = |seen: &[Seen]| seen.iter().filter(|seen| seen.path.contains("list-type")).count();
    assert!(lists(&locked) <= 1 && lists(&released) == 0, "a run lists objects");
    let (apply, destroy) = (counted("apply", &locked), counted("destroy", &released));
    println!("apply {apply:?}, destroy {destroy:?}");
    let within = |count: [usize; 2], most: [usize; 2]| count[0] <= most[0] && count[1] <= most[1];
    assert!(within(apply, APPLY) && within(destroy, DESTROY), "{apply:?} {destroy:?}");
}
