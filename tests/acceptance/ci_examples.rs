//! Runs the shell scripts of the jobs in `examples/ci/` unchanged, with the installed provider.
//!
//! The forge's own features (checkout, conditions, job order) are not tested. Stand-ins for `gh`
//! and `curl` record their arguments.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use bmc_simulator::{Fault, HeldQuery, Phase, PowerState};
use serde_json::Value;

use crate::support::{
    host::Host,
    mirror, provider,
    run::{Run, Running},
    simulator::{Fleet, SOON},
    state_server::StateServer,
    workspace::{RUN_LIMIT, Workspace},
};

/// CI system of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forge {
    GitHub,
    GitLab,
}

fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().unwrap_or_else(|| panic!("a list: {value}")).iter().map(|one| one.as_str().unwrap()).collect()
}

/// The bucket's job runs the same scripts as the tested job, with a web identity.
#[test]
fn the_job_with_a_bucket_differs_only_in_its_credentials() {
    let read = |name: &str| -> Value {
        serde_saphyr::from_str(&fs::read_to_string(repository("examples/ci").join(name)).unwrap()).unwrap()
    };
    let (tested, bucket) = (read("github-actions.yml"), read("github-actions-bucket.yml"));
    for job in ["plan", "maintain"] {
        let scripts = |file: &Value| -> Vec<Value> {
            let steps = file["jobs"][job]["steps"].as_array().unwrap().clone();
            steps.into_iter().filter(|step| step["run"].is_string()).collect()
        };
        assert_eq!(scripts(&tested), scripts(&bucket));
        assert_eq!(bucket["jobs"][job]["permissions"]["id-token"], "write");
    }
    assert!(bucket["env"]["METAL_COORDINATION_URL"].as_str().unwrap().starts_with("s3://"));
}

impl Forge {
    fn file(self) -> Value {
        let name = match self {
            Self::GitHub => "github-actions.yml",
            Self::GitLab => "gitlab-ci.yml",
        };
        let text = fs::read_to_string(repository("examples/ci").join(name)).unwrap();
        serde_saphyr::from_str(&text).unwrap()
    }

    /// Returns a job's scripts in the order in which the forge runs them, each in a new shell.
    fn scripts(self, job: &str) -> Vec<String> {
        let file = self.file();
        match self {
            Self::GitHub => {
                let steps = file["jobs"][job]["steps"].as_array().unwrap_or_else(|| panic!("a job {job}"));
                let when = |step: &&Value| step["if"].is_null();
                steps.iter().filter(when).filter_map(|step| step["run"].as_str()).map(str::to_owned).collect()
            }
            Self::GitLab => vec![strings(&file[job]["script"]).join("\n")],
        }
    }

    /// Returns the script that runs after a failed job.
    fn after_failure(self) -> String {
        let file = self.file();
        match self {
            Self::GitHub => {
                let steps = file["jobs"]["maintain"]["steps"].as_array().unwrap().clone();
                let after = steps.iter().find(|step| step["if"] == "failure() || cancelled()").unwrap();
                after["run"].as_str().unwrap().to_owned()
            }
            Self::GitLab => strings(&file[".maintain"]["after_script"]).join("\n"),
        }
    }

    fn start(self, workspace: &Workspace, script: &str) -> Running {
        match self {
            // With the runner's shell options.
            Self::GitHub => {
                workspace.start_program("bash", &["--noprofile", "--norc", "-eo", "pipefail", "-c", script])
            }
            Self::GitLab => workspace.start_program("bash", &["-eo", "pipefail", "-c", script]),
        }
    }

    /// Starts the only script of the apply or release job.
    fn start_maintain(self, workspace: &mut Workspace, task: &str) -> Running {
        workspace.set("TASK", task);
        let job = if self == Self::GitHub { "maintain" } else { task };
        let scripts = self.scripts(job);
        assert_eq!(scripts.len(), 1, "{scripts:?}");
        // Shortens the ten-minute wait for the state lock.
        let (patient, limit) = ("-lock-timeout=10m", "-lock-timeout=\"${LOCK_TIMEOUT:-10m}\"");
        assert!(scripts[0].contains(patient), "{scripts:?}");
        self.start(workspace, &scripts[0].replace(patient, limit))
    }

    async fn maintain(self, workspace: &mut Workspace, task: &str) -> Run {
        self.start_maintain(workspace, task).wait(RUN_LIMIT).await
    }
}

/// Creates a checkout as the examples expect it: configuration, comment.py and a lock file,
/// installed from a mirror.
async fn checkout(host: Host, fleet: &Fleet) -> Workspace {
    let mut workspace = Workspace::new(host);
    fleet.configure(&workspace, "");
    fleet.command_line(&mut workspace);
    let guide = repository("examples/guides/pull-request-comment");
    let text = fs::read_to_string(guide.join("main.tf")).unwrap();
    workspace.write("main.tf", &text.replace("localhost/metal-maintenance/metal", provider::SOURCE));
    workspace.write("comment.py", &fs::read_to_string(guide.join("comment.py")).unwrap());
    let programs = workspace.folder().join("programs");
    fs::create_dir(&programs).unwrap();
    for name in ["gh", "curl"] {
        let file = programs.join(name);
        fs::write(&file, "#!/bin/sh\nprintf '%s\\n' \"$0\" \"$@\" > called.txt\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let folder = workspace.folder().to_owned();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    for (name, value) in [
        ("PATH", path),
        ("TF", host.binary().display().to_string()),
        ("TF_VAR_servers", "[\"node1\"]".to_owned()),
        ("TF_VAR_inventory_file", folder.join("servers.yaml").display().to_string()),
        ("TF_VAR_bmc_ca_certificate_file", folder.join("bmc-ca.pem").display().to_string()),
        ("NUMBER", "17".to_owned()),
        ("CI_JOB_STATUS", "failed".to_owned()),
        ("COMMENT_TOKEN", "token".to_owned()),
        ("CI_API_V4_URL", "https://gitlab.example/api/v4".to_owned()),
        ("CI_PROJECT_ID", "4".to_owned()),
        ("CI_MERGE_REQUEST_IID", "17".to_owned()),
    ] {
        workspace.set(name, value);
    }
    mirror::install_from_folder(&mut workspace);
    let mirrored = format!("-fs-mirror={}", mirror::folder().display());
    workspace.run(&["providers", "lock", &mirrored, "-platform=linux_amd64"]).await.succeeded();
    workspace
}

async fn a_request_is_planned_and_commented(host: Host, forge: Forge) {
    let fleet = Fleet::new(1).await;
    let workspace = checkout(host, &fleet).await;
    for script in forge.scripts("plan") {
        forge.start(&workspace, &script).wait(RUN_LIMIT).await.succeeded();
    }
    let read = |name: &str| fs::read_to_string(workspace.folder().join(name)).unwrap();
    assert!(read("comment.md").contains("| node1 | is switched off. | free |"), "{}", read("comment.md"));
    let called = read("called.txt");
    let (program, number, body) = match forge {
        Forge::GitHub => ("/gh\n", "\n17\n", "comment.md"),
        Forge::GitLab => ("/curl\n", "/api/v4/projects/4/merge_requests/17/notes\n", "body@comment.md"),
    };
    assert!([program, number, body].iter().all(|part| called.contains(part)), "{called}");
    assert!(fleet.changes("node1").is_empty(), "a plan changes nothing");
}

/// While another repository's job is the holder, this job waits, is killed during its apply,
/// continues and releases the server.
async fn a_job_waits_is_killed_and_goes_on(host: Host, forge: Forge) {
    let (fleet, states) = (Fleet::new(1).await, StateServer::start().await);
    let mut workspace = checkout(host, &fleet).await;
    states.keep_state_of(&workspace);
    let other = workspace.beside();
    fleet.configure(&other, &crate::support::simulator::maintenance("node1", "before", ""));
    other.run(&["init", "-input=false"]).await.succeeded();
    other.apply().await.succeeded();
    let waiting = forge.start_maintain(&mut workspace, "apply");
    waiting.until_it_logs("queued, 1 ahead", SOON).await;

    // Killed at its first change to the server.
    let fault = fleet.simulator.inject(Fault::hold(Phase::After).on_request("POST", "*Reset").times(1));
    other.destroy().await.succeeded();
    fleet.simulator.wait_held(&HeldQuery::default(), SOON).await.unwrap();
    waiting.kill_everything();
    fleet.simulator.remove_fault(fault).unwrap();
    fleet.simulator.release_all();
    drop(waiting);
    let after = forge.start(&workspace, &forge.after_failure()).wait(RUN_LIMIT).await.succeeded();
    after.says("node1").says("ops/bios-node1");

    // The killed job left the state locked. The next job's error shows how to unlock it.
    let lock = states.lock().expect("the killed job held the state lock");
    workspace.set("LOCK_TIMEOUT", "1s");
    forge.maintain(&mut workspace, "apply").await.failed().says("Error acquiring the state lock").says(&lock);
    workspace.set("STATE_LOCK", &lock);
    forge.maintain(&mut workspace, "apply").await.succeeded().says("1 added");
    workspace.set("STATE_LOCK", "");
    fleet.until("node1", PowerState::Off).await;
    assert_eq!(fleet.resets("node1").len(), 1, "a reset was sent twice: {:?}", fleet.resets("node1"));
    forge.maintain(&mut workspace, "release").await.succeeded().says("1 destroyed");
    fleet.until("node1", PowerState::On).await;
    let after = forge.start(&workspace, &forge.after_failure()).wait(RUN_LIMIT).await.succeeded();
    after.says("No server is held");
}

/// Checks the forge's settings, because a job that is cancelled before the provider's own timeout
/// loses its report.
#[test]
fn jobs_of_one_state_take_turns_and_end_after_the_provider() {
    let page = fs::read_to_string(repository("docs/resources/server_maintenance.md")).unwrap();
    let line = page.lines().find(|line| line.contains("`timeouts.create` (String")).expect("documented");
    let hours = line.split("Default: `\"").nth(1).and_then(|rest| rest.split_once("h\"`")).expect("in hours").0;
    let longest_wait = hours.parse::<u64>().unwrap() * 60;
    let github = Forge::GitHub.file();
    let job = &github["jobs"]["maintain"];
    assert!(job["concurrency"]["group"].as_str().is_some_and(|group| !group.contains("${{")), "{job}");
    assert_eq!(job["concurrency"]["cancel-in-progress"], false);
    assert!(job["timeout-minutes"].as_u64().unwrap() > longest_wait);
    assert!(github["jobs"]["plan"]["concurrency"].is_null(), "a plan must not wait for an apply");
    assert!(github["on"]["workflow_dispatch"]["inputs"]["state_lock"].is_object());

    let gitlab = Forge::GitLab.file();
    let job = &gitlab[".maintain"];
    assert!(job["resource_group"].as_str().is_some_and(|group| !group.contains('$')), "{job}");
    assert_eq!(job["interruptible"], false);
    let minutes: u64 = job["timeout"].as_str().unwrap().trim_end_matches('m').parse().unwrap();
    assert!(minutes > longest_wait);
    for job in ["apply", "release"] {
        assert_eq!(gitlab[job]["extends"], ".maintain");
    }
}

for_each_host! {
    async fn github_plans_and_comments(host) {
        a_request_is_planned_and_commented(host, Forge::GitHub).await;
    }
}

for_each_host! {
    async fn gitlab_plans_and_comments(host) {
        a_request_is_planned_and_commented(host, Forge::GitLab).await;
    }
}

for_one_host! {
    async fn a_killed_job_of_github_goes_on_where_it_was(host) {
        a_job_waits_is_killed_and_goes_on(host, Forge::GitHub).await;
    }
}

for_one_host! {
    async fn a_killed_job_of_gitlab_goes_on_where_it_was(host) {
        a_job_waits_is_killed_and_goes_on(host, Forge::GitLab).await;
    }
}
