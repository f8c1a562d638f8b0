//! Runs the shell blocks of the first guide and of the README as written, in one bash session with
//! OpenTofu. The user has the provider as after `make install`, and the simulator as the BMC.
//!
//! `tools/demo/machine.py`, which the guide copies, reads the server's state from its BMC without
//! the provider.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use crate::support::{
    host::Host,
    provider,
    run::Run,
    simulator::SOON,
    workspace::{RUN_LIMIT, Workspace},
};

const GUIDE: &str = "docs/guides/first-maintenance.md";

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns a page's code blocks in a language, in order.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = fs::read_to_string(repository(page)).unwrap();
    let fence = format!("\n```{language}\n");
    let blocks = text.split(&fence).skip(1);
    blocks.map(|rest| rest.split_once("\n```").expect("a closed block").0.to_owned()).collect()
}

/// Creates a user whose `~/.local/bin` contains the provider's command, the simulator and
/// OpenTofu. The host's configuration is empty, so `init` uses the user's plugin folder.
async fn installed() -> Workspace {
    let mut workspace = Workspace::new(Host::OpenTofu);
    let target = workspace.root().join("target");
    let built = provider::binary();
    fs::create_dir_all(target.join("release")).unwrap();
    symlink(&built, target.join("release/terraform-provider-metal")).unwrap();
    let commands = workspace.root().join("home/.local/bin");
    let path = format!("{}:{}", commands.display(), std::env::var("PATH").unwrap());
    workspace.set("CARGO_TARGET_DIR", target.display().to_string()).set("PATH", path);
    let install = repository("tools/install").display().to_string();
    workspace.start_program(&install, &[]).wait(SOON).await.succeeded().says("(on the PATH)");

    let simulator = built.parent().unwrap().join("bmc-simulator");
    assert!(simulator.exists(), "run cargo build --workspace --bins first, as make test does");
    symlink(simulator, commands.join("bmc-simulator")).unwrap();
    symlink(Host::OpenTofu.binary(), commands.join("tofu")).unwrap();
    fs::write(workspace.root().join("cli.tfrc"), "").unwrap();
    // The log level is the page's own, and log lines go to the session's standard error.
    workspace.set("TF_LOG", "").set("TF_LOG_PATH", "");
    workspace
}

/// Runs a script to its successful end. A failure also ends its servers, which are in its process
/// group.
async fn play(workspace: &Workspace, script: &str) -> Run {
    workspace.start_program("bash", &["-euo", "pipefail", "-c", script]).wait(RUN_LIMIT).await.succeeded()
}

/// # Panics
/// Unless the standard output contains these texts in this order.
#[track_caller]
fn shows_in_order(run: &Run, texts: &[&str]) {
    let mut rest = run.stdout.as_str();
    for text in texts {
        let Some((_, after)) = rest.split_once(*text) else {
            panic!("{text:?} is missing or out of order:\n{}", run.output);
        };
        rest = after;
    }
}

const BEFORE: &str = "power On | boot override Disabled | virtual drives Cd: empty";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guide_can_be_pasted_from_the_folder_to_the_release() {
    let workspace = installed().await;
    let blocks = blocks(GUIDE, "sh");
    // `installed` replaces the first block, which compiles.
    let (install, pasted) = blocks.split_first().expect("the guide has blocks");
    assert!(install.starts_with("make install\n"), "{install}");
    assert!(pasted.len() >= 7 && !pasted.concat().contains("cargo"), "{pasted:#?}");
    let run = play(&workspace, &format!("cd '{}'\n{}\n", repository("").display(), pasted.join("\n"))).await;
    shows_in_order(
        &run,
        &[
            BEFORE,
            "node1: usable",
            "successfully initialized",
            "node1 is locked; power and boot do not change",
            "Apply complete! Resources: 1 added",
            "InMaintenance  guide/first-maintenance",
            "Apply complete! Resources: 0 added, 1 changed",
            "InMaintenance  guide/first-maintenance",
            "virtual drives Cd: http://127.0.0.1:",
            "runs what it booted from: http://127.0.0.1:",
            "Destroy complete! Resources: 1 destroyed",
            "No server is held",
            "Completed at",
            BEFORE,
            "runs what it booted from: disk",
        ],
    );
    // The level that the guide sets shows each step.
    for step in ["step 3/6: switching off", "in maintenance", "ended (Completed)"] {
        assert!(run.stderr.contains(&format!("guide/first-maintenance on node1: {step}")), "{step}:\n{}", run.output);
    }
    assert!(!workspace.root().join("home/first-maintenance").exists(), "the guide removes its folder");
    workspace.metal(&["queue"]).await.succeeded().says("No server is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_of_the_readme_runs_as_shown() {
    let workspace = installed().await;
    let example = blocks("README.md", "hcl").remove(0);
    assert!(example.lines().count() <= 15, "{example}");
    workspace.write("main.tf", &format!("{example}\n"));
    let scripts = blocks("README.md", "sh");
    let script = scripts.iter().find(|script| script.contains("bmc-simulator --inventory")).expect("a session");
    let run = play(&workspace, script).await;
    shows_in_order(
        &run,
        &[
            "node1 is switched off",
            "Apply complete! Resources: 1 added",
            "InMaintenance  ops/bios-2-19",
            "Destroy complete! Resources: 1 destroyed",
        ],
    );
    workspace.metal(&["queue"]).await.succeeded().says("No server is held");
}
