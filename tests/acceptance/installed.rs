//! Installs the provider like a user, from a folder and over HTTPS, with `init` and a lock file.
//! The version then changes while a server is held.
//!
//! Both versions contain the same program. The tests show that hosts install, verify and exchange
//! the archives, and that both versions can read each other's state.

use std::fs;

use bmc_simulator::PowerState;

use crate::support::{
    host::Host,
    mirror::{self, HERE, NetworkMirror, PLATFORMS, VERSIONS},
    provider,
    run::Run,
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

const HELD: &str = "metal_server_maintenance.held";
const LOCK_FILE: &str = ".terraform.lock.hcl";

fn with_version(workspace: &Workspace, version: &str) {
    let source = provider::SOURCE;
    let wanted = format!("metal = {{ source = \"{source}\", version = \"= {version}\" }}");
    // Files with this suffix override others.
    workspace.write("version_override.tf", &format!("terraform {{\n  required_providers {{\n    {wanted}\n  }}\n}}\n"));
}

async fn init(workspace: &Workspace, more: &[&str]) -> Run {
    workspace.run(&[&["init", "-input=false", "-no-color"], more].concat()).await
}

fn off(reason: &str) -> String {
    maintenance("node1", "m", &format!("server_power = \"Off\"\n  reason = \"{reason}\""))
}

/// # Panics
/// If a run started a different program than this installed version.
#[track_caller]
fn ran_version(run: &Run, version: &str) {
    let installed = format!("{}/{version}/{HERE}/terraform-provider-metal_v{version}", provider::SOURCE);
    assert!(run.log.contains(&installed), "{} did not start {installed}:\n{}", run.command, run.log);
    assert!(!run.log.contains("target/debug/terraform-provider-metal"), "{} started what cargo built", run.command);
}

/// Prepares one server, a workspace that reports the started program, and a configuration that
/// locks the server.
async fn held_by_the_version_before(host: Host, workspace: &mut Workspace) -> Fleet {
    assert_eq!(workspace.host(), host);
    let fleet = Fleet::new(1).await;
    fleet.configure(workspace, &off("first"));
    with_version(workspace, VERSIONS[0]);
    workspace.set("TF_LOG", "DEBUG");
    init(workspace, &[]).await.succeeded();
    ran_version(&workspace.apply().await.succeeded(), VERSIONS[0]);
    fleet.until("node1", PowerState::Off).await;
    fleet
}

/// The new version takes over and changes a held server; the old version then releases it.
async fn up_and_back(fleet: &Fleet, workspace: &Workspace) {
    let resets = fleet.resets("node1");
    with_version(workspace, VERSIONS[1]);
    init(workspace, &[]).await.failed().says("init -upgrade");
    init(workspace, &["-upgrade"]).await.succeeded();
    let plan = workspace.plan().await;
    ran_version(&plan.is_empty().run, VERSIONS[1]);
    fleet.configure(workspace, &off("second"));
    workspace.apply().await.succeeded().says("1 changed");

    with_version(workspace, VERSIONS[0]);
    init(workspace, &["-upgrade"]).await.succeeded();
    let plan = workspace.plan().await;
    ran_version(&plan.is_empty().run, VERSIONS[0]);
    // Read from the plan, because `show` fails on a state with attributes of another version.
    let known = plan.json["prior_state"]["values"]["root_module"]["resources"].as_array().expect("a state");
    let held = known.iter().find(|resource| resource["address"] == HELD).expect("still held");
    assert_eq!(held["values"]["state"], "InMaintenance");
    assert_eq!(fleet.resets("node1"), resets, "an upgrade leaves the server alone");
    workspace.destroy().await.succeeded();
    fleet.until("node1", PowerState::On).await;
}

for_each_host! {
    async fn a_folder_installs_each_version_while_a_server_is_held(host) {
        let mut workspace = Workspace::new(host);
        mirror::install_from_folder(&mut workspace);
        let fleet = held_by_the_version_before(host, &mut workspace).await;
        up_and_back(&fleet, &workspace).await;
    }
}

for_each_host! {
    async fn a_network_mirror_installs_each_version_while_a_server_is_held(host) {
        let (mut workspace, mirror) = (Workspace::new(host), NetworkMirror::start(false).await);
        mirror.install_from(&mut workspace);
        let fleet = held_by_the_version_before(host, &mut workspace).await;
        up_and_back(&fleet, &workspace).await;
        for version in VERSIONS {
            let archive = format!("terraform-provider-metal_{version}_{HERE}.zip");
            assert!(mirror.asked().iter().any(|path| path.ends_with(&archive)), "{:?}", mirror.asked());
        }
    }
}

for_each_host! {
    async fn a_lock_file_holds_the_hashes_of_all_platforms_and_keeps_another_archive_out(host) {
        let mut workspace = Workspace::new(host);
        mirror::install_from_folder(&mut workspace);
        let fleet = Fleet::new(1).await;
        fleet.configure(&workspace, &off("first"));
        with_version(&workspace, VERSIONS[1]);
        let mirrored = format!("-fs-mirror={}", mirror::folder().display());
        let platforms = PLATFORMS.map(|platform| format!("-platform={platform}"));
        let mut lock = vec!["providers", "lock", &mirrored];
        lock.extend(platforms.iter().map(String::as_str));
        workspace.run(&lock).await.succeeded();
        let locked = fs::read_to_string(workspace.folder().join(LOCK_FILE)).unwrap();
        assert_eq!(locked.matches("\"h1:").count(), PLATFORMS.len(), "{locked}");

        // As in CI: only locked archives are installed, from any source.
        init(&workspace, &["-lockfile=readonly"]).await.succeeded();
        let (honest, exchanged) = (NetworkMirror::start(false).await, NetworkMirror::start(true).await);
        let mut other = workspace.beside();
        fleet.configure(&other, &off("first"));
        with_version(&other, VERSIONS[1]);
        other.write(LOCK_FILE, &locked);
        exchanged.install_from(&mut other);
        // The mirror's hash matches, so only the lock file detects the exchange.
        let refused = init(&other, &[]).await;
        assert!(exchanged.asked().iter().any(|path| path.contains(".zip")), "{:?}", exchanged.asked());
        refused.failed().says("checksums");
        honest.install_from(&mut other);
        init(&other, &["-lockfile=readonly"]).await.succeeded();
        assert_eq!(fs::read_to_string(other.folder().join(LOCK_FILE)).unwrap(), locked);
    }
}
