//! Broken, duplicate or missing stores: the messages, and the suggested recovery.

use std::time::{Duration, Instant};

use bmc_simulator::{Fault, HeldQuery, JournalQuery, Phase, PowerState};

use crate::support::{
    host::Host,
    simulator::{Fleet, SOON, maintenance},
    wait::eventually,
    workspace::Workspace,
};

const SECOND_STORE: &str = "Another coordination store can cover these servers";

fn store_file(workspace: &Workspace) -> std::path::PathBuf {
    workspace.state_home().join("terraform-provider-metal/coordination.sqlite")
}

/// A file system of a few megabytes, or `None` if this user cannot mount one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=4m,mode=0700", "none"]).arg(folder.path()).status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(folder))
    }

    fn fill(&self) {
        use std::io::Write as _;
        let mut filler = std::fs::File::create(self.0.path().join("filler")).unwrap();
        for size in [1 << 16, 1 << 12, 1] {
            while filler.write_all(&vec![7; size]).is_ok() {}
        }
    }

    fn free(&self) {
        std::fs::remove_file(self.0.path().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// CPU time used by a process, from its `stat` (proc(5)).
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> =
        stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    let ticks = |n: usize| fields.get(n).and_then(|ticks| ticks.parse::<u64>().ok()).unwrap_or_default();
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// The disk fills up while a server is powered off. The run ends at its timeout without polling in
/// a loop, and names the cause. The next run restores.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_ends_a_run_in_time_with_its_cause() {
    let Some(disk) = SmallDisk::mount() else { return println!("this user cannot mount a file system: not tested") };
    let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    workspace.set("METAL_COORDINATION_URL", format!("sqlite://{}/coordination.sqlite", disk.0.path().display()));
    let body = maintenance("node1", "m", "server_power = \"Off\"\n timeouts = { create = \"12s\" }");
    fleet.configure(&workspace, &body);
    let fault =
        fleet.simulator.inject(Fault::hold(Phase::Before).on_system("node1").on_request("POST", "**Reset").times(1));
    let (run, began) = (workspace.start_apply(), Instant::now());
    let query = HeldQuery { system: Some("node1".to_owned()), ..HeldQuery::default() };
    let held = eventually("the first change", SOON, async || fleet.simulator.held(&query).into_iter().next()).await;
    disk.fill();
    fleet.simulator.remove_fault(fault).unwrap();
    fleet.simulator.release(held.sequence).unwrap();
    run.until_it_logs("waiting for the coordination store", SOON).await;
    let (providers, seen) = (run.providers(), fleet.simulator.journal(&JournalQuery::system("node1")).len());
    let before: Vec<Duration> = providers.iter().map(|pid| processor_time(*pid)).collect();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = providers.iter().map(|pid| processor_time(*pid));
    let used = after.zip(before).map(|(after, before)| after.saturating_sub(before)).max().unwrap_or_default();
    assert!(used < Duration::from_secs(1), "{used:?} of processor time in three seconds");
    let asked = fleet.simulator.journal(&JournalQuery::system("node1")).len() - seen;
    assert!(asked < 40, "{asked} requests to the BMC in three seconds");
    let run = run.wait(Duration::from_mins(1)).await.failed();
    // The timeout, the store's own timeout, and the host.
    assert!(began.elapsed() < Duration::from_secs(12 + 10 + 15), "{:?}", began.elapsed());
    run.says("node1: the coordination store accepts no changes").says("the disk is full").says("tests/m");
    disk.free();
    workspace.apply().await.succeeded();
    workspace.destroy().await.succeeded();
    fleet.until("node1", PowerState::On).await;
}

for_one_host! {
    async fn a_second_name_of_the_store_locks_nothing(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "one", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        let name = workspace.root().join("other.sqlite");
        std::fs::hard_link(store_file(&workspace), &name).unwrap();
        let mut other = workspace.beside();
        other.set("METAL_COORDINATION_URL", format!("sqlite://{}", name.display()));
        fleet.configure(&other, &maintenance("node1", "other", "server_power = \"Off\""));
        other.apply().await.failed().says("has 2 names (hard links)");
        workspace.destroy().await.failed().says("has 2 names (hard links)");
        std::fs::remove_file(&name).unwrap();
        workspace.destroy().await.succeeded();
        fleet.until("node1", PowerState::On).await;
    }
}

for_each_host! {
    async fn a_deleted_store_names_the_prior_state_and_a_way_out(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        std::fs::remove_dir_all(store_file(&workspace).parent().unwrap()).unwrap();
        let address = "metal_server_maintenance.held";
        for run in [workspace.destroy().await, workspace.try_plan().await] {
            let run = run.failed();
            run.says("is in another coordination store").says("Before the maintenance the server had: power On");
            run.says("state rm ADDRESS").says(address);
        }
        assert_eq!(fleet.system("node1").power, PowerState::Off, "nothing was done");
        // The suggested recovery: restore manually, remove the resource, apply again.
        workspace.run(&["state", "rm", address]).await.succeeded();
        let on = "resource \"metal_server_operation\" \"on\" {\n  server = \"node1\"\n  namespace = \"tests\"\n  name = \"on\"\n  policy = \"Enforced\"\n  operation = \"On\"\n}\n";
        fleet.configure(&workspace, on);
        workspace.apply().await.succeeded();
        fleet.until("node1", PowerState::On).await;
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
        fleet.until("node1", PowerState::On).await;
    }
}

for_one_host! {
    async fn the_plan_shows_the_store_and_another_home_is_a_warning(host) {
        let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\""));
        let plan = workspace.plan().await;
        plan.run.says(&format!("Store: sqlite://{}.", store_file(&workspace).display()));
        // No account on this machine has that home folder or that state folder.
        plan.run.says(SECOND_STORE).says("XDG_STATE_HOME is");
        workspace.set("XDG_STATE_HOME", "");
        let default = workspace.root().join("home/.local/state/terraform-provider-metal/coordination.sqlite");
        let apply = workspace.apply().await.succeeded();
        apply.says(SECOND_STORE).says(&format!("HOME is {}", workspace.root().join("home").display()));
        fleet.command_line(&mut workspace);
        let check = workspace.metal(&["check"]).await.succeeded();
        check.says(SECOND_STORE).says(&default.display().to_string());
        workspace.destroy().await.succeeded();
    }
}

/// Two provider configurations in one run, with a separate store and server each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_aliases_with_two_stores_are_a_warning() {
    let (fleet, workspace) = (Fleet::new(2).await, Workspace::new(Host::OpenTofu));
    let alias = |url: &str| format!("alias = \"second\"\n  coordination_url = \"{url}\"");
    let first = maintenance("node1", "one", "");
    let second = maintenance("node2", "two", "provider = metal.second").replace("\"held\"", "\"second\"");
    fleet.configure(&workspace, &first);
    let first_provider = std::fs::read_to_string(workspace.folder().join("main.tf")).unwrap();
    let other = workspace.root().join("second.sqlite");
    for (url, warned) in [
        (format!("sqlite://{}", other.display()), true),
        (format!("sqlite://{}", store_file(&workspace).display()), false),
    ] {
        fleet.configure_with(&workspace, &alias(&url), &second);
        let both = std::fs::read_to_string(workspace.folder().join("main.tf")).unwrap();
        // Only one block of required providers is allowed.
        let second_provider = both.split_once("provider \"metal\"").unwrap().1.to_owned();
        workspace.write("main.tf", &format!("{first_provider}\nprovider \"metal\"{second_provider}"));
        let plan = workspace.plan().await;
        if warned {
            plan.run.says(SECOND_STORE).says("Another provider configuration in this run uses sqlite://");
        } else {
            plan.run.is_silent_about("Another provider configuration");
        }
    }
}
