//! The command line.

use std::{fs, path::Path};

use crate::support::{
    host::Host,
    simulator::{Fleet, SOON, maintenance},
    wait::eventually,
    workspace::Workspace,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_arguments_it_says_how_it_is_installed() {
    let workspace = Workspace::new(Host::OpenTofu);
    workspace.metal(&[]).await.succeeded().says("make install").says("required_providers");
    workspace.metal(&["--help"]).await.succeeded().says("release").says("prune");
    workspace.metal(&["nonsense"]).await.failed();
    workspace.metal(&["show", "tests/nothing"]).await.failed().says("no coordination store exists yet at sqlite://");
    workspace.metal(&["show", "nonsense"]).await.failed().says("must have the form NAMESPACE/NAME");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_shown_can_be_read_by_people_and_by_scripts() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    fleet.configure(&workspace, &maintenance("node1", "m", "reason = \"swap disk 3\"\n  expires_after = \"2h\""));
    workspace.apply().await.succeeded();
    workspace.metal(&["queue"]).await.succeeded().says("node1").says("InMaintenance").says("1h59m");
    let shown = workspace.metal(&["show", "tests/m"]).await.succeeded();
    shown.says("before On, boot override Disabled").says("enqueued").says("admitted").says("prepared");
    let json = workspace.metal(&["show", "tests/m", "--json"]).await.succeeded();
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["maintenance"]["state"], "InMaintenance");
    assert_eq!(json["maintenance"]["previous_power_state"], "On");
    assert_eq!(json["audit"][0]["what"], "enqueued");
    workspace.destroy().await.succeeded();
}

/// A missing store or an unknown server must not be reported as free servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_makes_no_store_and_knows_no_server_that_was_never_asked_for() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    for command in [["claims"].as_slice(), &["queue", "--server", "node1"], &["store", "check"], &["store", "export"]] {
        workspace.metal(&["queue"]).await.succeeded().says("No queue: no coordination store exists yet at sqlite://");
        workspace
            .metal(&["queue", "--json"])
            .await
            .succeeded()
            .says("\"queue\": []")
            .says("\"format_version\": \"1.0\"");
        // On every call, because reading creates no store.
        workspace.metal(command).await.failed().says("no coordination store exists yet at sqlite://");
    }
    fleet.configure(&workspace, &maintenance("node1", "m", ""));
    workspace.apply().await.succeeded();
    workspace
        .metal(&["queue", "--server", "node2"])
        .await
        .failed()
        .says("does not contain a server \"node2\" of owner");
    workspace.metal(&["queue", "--server", "node1"]).await.succeeded().says("InMaintenance");
    workspace.metal(&["show", "tests/nothing"]).await.failed().says("tests/nothing is not in sqlite://");
    workspace.destroy().await.succeeded();
    workspace.metal(&["queue", "--server", "node1"]).await.succeeded().says("No server is held");
    workspace.metal(&["queue"]).await.succeeded().says("waited for in sqlite://");
}

/// `check` is a new user's first command: read-only, without creating a store, and with the failed
/// checks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_tells_what_a_server_can_take_and_what_stands_against_it() {
    let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    fleet.configure(&workspace, "");
    fleet.command_line(&mut workspace);
    let run = workspace.metal(&["check"]).await.succeeded();
    for line in [
        "does not exist yet: the first apply creates it",
        "node1: usable",
        "certificate_sha256 = \"",
        "judged by ca_certificate_file",
        "accepted: admin, role Administrator",
        "ConfigureComponents",
        "derived from uuid:",
        "On, health OK",
        "GracefulShutdown",
        "UefiHttp",
        "slowest read",
        "hold: yes",
        "virtual_media: yes",
    ] {
        run.says(line);
    }
    // The first call created no store.
    let json = workspace.metal(&["check", "node1", "--json"]).await.succeeded();
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&json["usable"], &json["store"]["exists"]), (&true.into(), &false.into()), "{json}");
    let sha256 = json["servers"][0]["certificate"]["sha256"].as_str().unwrap().to_owned();
    assert_eq!(sha256.len(), 64);
    assert_eq!(fleet.changes("node1"), [""; 0]);

    // The printed fingerprint can be copied into the inventory.
    let endpoint = json["servers"][0]["endpoint"].as_str().unwrap().to_owned();
    workspace.set("METAL_REDFISH_CA_CERTIFICATE_FILE", "");
    workspace.write("servers.yaml", &format!("node1: {{endpoint: '{endpoint}', certificate_sha256: {sha256}}}\n"));
    workspace.metal(&["check"]).await.succeeded().says("judged by certificate_sha256");

    workspace.write("servers.yaml", &format!("node1: {{endpoint: '{endpoint}'}}\n"));
    let untrusted = workspace.metal(&["check"]).await;
    assert_eq!(untrusted.status.code(), Some(3), "{}", untrusted.stdout);
    untrusted.says("node1: NOT usable").says(&sha256).says("is not trusted").says("Compare the SHA-256");

    let wrong = format!("node1: {{endpoint: '{endpoint}', system_id: nine, insecure: true}}\n");
    workspace.write("servers.yaml", &wrong);
    workspace.metal(&["check"]).await.failed().says("it does not have a system \"nine\"; set system_id to one of: 1");
    workspace.metal(&["check", "node9"]).await.failed().says("server \"node9\" is not configured");

    workspace.write("servers.yaml", &wrong.replace("system_id: nine, ", ""));
    workspace.set("METAL_REDFISH_PASSWORD", "wrong");
    workspace.metal(&["check"]).await.failed().says("refused the credentials").says("tried them only once");
}

/// On a terminal `watch` redraws in place, and Ctrl-C ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_on_a_terminal_shows_the_queue_in_one_place() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    fleet.configure(&workspace, &maintenance("node1", "first", ""));
    workspace.apply().await.succeeded();
    let binary = crate::support::provider::binary();
    let watch = workspace.start_program("script", &["-qefc", &format!("exec {} watch", binary.display()), "/dev/null"]);
    watch.until_it_says("tests/first", SOON).await;
    assert!(watch.output().contains("\u{1b}[H\u{1b}[J"), "{:?}", watch.output());
    assert!(watch.output().contains("(Ctrl-C ends)"), "{}", watch.output());
    workspace.destroy().await.succeeded();
    watch.until_it_says("No server is held", SOON).await;
    watch.terminate();
    watch.wait(SOON).await;
}

/// Installation puts the command on the PATH, and hosts find the provider without configuration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_installed_is_found_by_the_host_and_on_the_path() {
    let mut workspace = Workspace::new(Host::OpenTofu);
    let (root, home) = (Path::new(env!("CARGO_MANIFEST_DIR")), workspace.root().join("home"));
    let built = workspace.root().join("target/release");
    fs::create_dir_all(&built).unwrap();
    fs::copy(crate::support::provider::binary(), built.join("terraform-provider-metal")).unwrap();
    workspace.set("CARGO_TARGET_DIR", workspace.root().join("target").display().to_string());
    let install = root.join("tools/install").display().to_string();
    let installed = workspace.start_program(&install, &[]).wait(SOON).await.succeeded();
    installed.says("NOT on the PATH yet: export PATH=").says("localhost/metal-maintenance/metal");
    let path = format!("{}:{}", home.join(".local/bin").display(), std::env::var("PATH").unwrap());
    workspace.set("PATH", path);
    workspace.start_program(&install, &[]).wait(SOON).await.succeeded().says("(on the PATH)");
    workspace.start_program("terraform-provider-metal", &["--version"]).wait(SOON).await.succeeded().says("0.1.0");
    // The host's own configuration, without a development override.
    fs::write(workspace.root().join("cli.tfrc"), "").unwrap();
    workspace.write(
        "main.tf",
        "terraform {\n  required_providers {\n    metal = {\n      source  = \"localhost/metal-maintenance/metal\"\n   \
            version = \"0.1.0\"\n    }\n  }\n}\n",
    );
    workspace.run(&["init", "-no-color"]).await.succeeded().says("has been successfully initialized");
    workspace.run(&["providers", "schema", "-json"]).await.succeeded().says("metal_server_maintenance");
}

/// An enqueued hold continues without a host: `drive` prepares it, `watch` and the history show
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_enqueued_hold_is_driven_watched_and_kept_in_the_history() {
    let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    fleet.configure(&workspace, &maintenance("node1", "first", ""));
    fleet.command_line(&mut workspace);
    workspace.apply().await.succeeded();
    let second = workspace.beside();
    fleet.configure(
        &second,
        &maintenance("node1", "second", "server_power = \"Off\"\n  wait_for = \"Enqueued\"\n  expires_after = \"2h\""),
    );
    second.apply().await.succeeded();
    let watch = workspace.start_metal(&["watch"]);
    watch.until_it_says("tests/second", SOON).await;
    workspace.metal(&["queue", "-o", "wide"]).await.succeeded().says("RUN URL").says("tests/second");
    let names = workspace.metal(&["queue", "-o", "name"]).await.succeeded().stdout;
    assert_eq!(names, "tests/first\ntests/second\n");
    let json: serde_json::Value =
        serde_json::from_str(&workspace.metal(&["queue", "-o", "json"]).await.succeeded().stdout).unwrap();
    assert_eq!(json["queue"][1]["id"], "tests/second", "{json}");
    let lines = workspace.start_metal(&["queue", "--watch", "--json"]);
    lines.until_it_says("tests/second", SOON).await;

    // An interrupted waiter keeps its queue position.
    let drive = workspace.start_metal(&["drive", "tests/second"]);
    drive.until_it_says("queued, ", SOON).await;
    drive.interrupt();
    drive.wait(SOON).await.failed().says("stays Pending");
    workspace.metal(&["queue"]).await.succeeded().says("tests/second");

    let drive = workspace.start_metal(&["drive", "tests/second", "--json"]);
    drive.until_it_says("queued, ", SOON).await;
    workspace.destroy().await.succeeded();
    let driven = drive.wait(SOON).await.succeeded();
    let driven: serde_json::Value = serde_json::from_str(&driven.stdout).unwrap();
    assert_eq!((&driven["state"], &driven["format_version"]), (&"InMaintenance".into(), &"1.0".into()), "{driven}");
    assert_eq!(fleet.system("node1").power, bmc_simulator::PowerState::Off);
    watch.until_it_says("InMaintenance  tests/second", SOON).await;
    watch.interrupt();
    let watched = watch.wait(SOON).await.succeeded();
    // An earlier line names both maintenances, and its holder is also InMaintenance.
    eventually("a line with tests/second as the holder", SOON, async || {
        let said = lines.output();
        let mut queues = said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        queues.find(|queue| queue["queue"][0]["id"] == "tests/second")
    })
    .await;
    lines.interrupt();
    let lines = lines.wait(SOON).await.succeeded().stdout;
    let parsed: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(parsed.len() > 1 && parsed.iter().all(|queue| queue["format_version"] == "1.0"), "{lines}");
    assert_eq!(parsed.last().unwrap()["queue"][0]["id"], "tests/second", "{lines}");
    assert!(!watched.output.contains('\u{1b}'), "escape sequences where no terminal is: {}", watched.output);

    second.destroy().await.succeeded();
    let history = workspace.metal(&["history"]).await.succeeded();
    history.says("tests/first").says("tests/second").says("Completed");
    let json = workspace.metal(&["history", "tests/second", "--json"]).await.succeeded();
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(
        (&json["history"][0]["id"], json["history"].as_array().map(Vec::len)),
        (&"tests/second".into(), Some(1))
    );
    assert_eq!(workspace.metal(&["queue", "--nonsense"]).await.status.code(), Some(2));
    workspace.metal(&["completion", "bash"]).await.succeeded().says("complete -F _terraform__provider__metal");
    workspace.metal(&["completion", "fish"]).await.succeeded().says("complete -c terraform-provider-metal");
    workspace.metal(&["completion", "zsh"]).await.succeeded().says("#compdef terraform-provider-metal");
}
