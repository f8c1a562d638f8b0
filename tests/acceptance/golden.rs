//! Golden files of all texts for people: plans, the queue, a maintenance and every kind of error.
//! Review each change with `cargo insta review`.

use std::time::Duration;

use bmc_simulator::{Availability, Behaviour, Fault, Identity, SimulatorConfig, SystemChange, SystemUuid};
use serde_json::Value;

use crate::support::{
    host::Host,
    images::Images,
    simulator::{Fleet, SOON, maintenance},
    workspace::Workspace,
};

/// Compares a text with its golden file, ignoring variable parts.
macro_rules! golden {
    ($name:literal, $text:expr) => {
        insta::with_settings!({
            omit_expression => true,
            prepend_module_to_snapshot => false,
            filters => vec![
                (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "<moment>"),
                (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "<time>"),
                (r"[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d [A-Z]+", "<local time>"),
                (r"\(in \d+h(\d+m)?\)", "(in <while>)"),
                (r"\S+ on \S+ \(process \d+\)", "<user> on <host> (process <pid>)"),
                (r"\b[0-9a-f]{32}\b", "<digest>"),
                (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<uuid>"),
                (r"(127\.0\.0\.1|localhost):\d+", "<address>"),
                (r"\bsim[0-9a-f]{10}\b", "<serial>"),
                (r"/tmp/[^\s:,)]+", "<path>"),
                (r"\b\d+(\.\d+)?m?s\b", "<while>"),
                (r"os error \d+", "os error <n>"),
                (r#""(\d+ ){4}\*" UTC"#, "<schedule> UTC"),
                (r"\b\d+h ?\d+m\b", "<while>"),
                (r" {2,}", "  "),
                (r" +\n", "\n"),
            ],
        }, { insta::assert_snapshot!($name, $text) });
    };
}

/// Returns the provider's diagnostics in a command's JSON output, without duplicates, because an
/// apply plans too. They are sorted, because resources are planned in parallel.
pub fn diagnostics(output: &str) -> String {
    let mut found = std::collections::BTreeSet::new();
    for line in output.lines() {
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
        let diagnostic = &line["diagnostic"];
        let Some(summary) = diagnostic["summary"].as_str() else { continue };
        // The second warning depends on the account that runs the tests.
        if summary.contains("development overrides") || summary.contains("Another coordination store") {
            continue;
        }
        let severity = diagnostic["severity"].as_str().unwrap();
        let at = diagnostic["address"].as_str().unwrap_or("-");
        // `one_store.rs` compares the store line, which differs in each run.
        let detail = diagnostic["detail"].as_str().unwrap().lines().filter(|line| !line.starts_with("Store: "));
        let detail = detail.collect::<Vec<_>>().join("\n    ");
        found.insert(format!("{severity}: {summary}  [{at}]\n    {detail}\n"));
    }
    found.into_iter().collect()
}

async fn plan(workspace: &Workspace) -> String {
    diagnostics(&workspace.run(&["plan", "-input=false", "-json"]).await.stdout)
}

async fn destroy(workspace: &Workspace) -> String {
    diagnostics(&workspace.run(&["destroy", "-auto-approve", "-input=false", "-json"]).await.stdout)
}

async fn apply(workspace: &Workspace) -> String {
    diagnostics(&workspace.run(&["apply", "-auto-approve", "-input=false", "-json"]).await.stdout)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_night_with_owners_windows_and_a_queue() {
    let (fleet, holder) = (Fleet::new(4).await, Workspace::new(Host::OpenTofu));
    let owner = holder.beside();
    let claim = "resource \"metal_server_claim\" \"db\" {\n  server = \"node1\"\n  namespace = \"db\"\n  name = \"primary\"\n  contact = \"#db-oncall\"\n}\n";
    fleet.configure_with(&owner, "owner = \"team-db\"", claim);
    owner.apply().await.succeeded();
    fleet.configure(
        &holder,
        &maintenance(
            "node1",
            "disk-swap",
            "reason = \"swap disk 3\"\n  ticket = \"https://tickets.example/7\"\n  expires_after = \"4h\"",
        ),
    );
    let mut text = format!("# Enforced on a claimed server\n{}", plan(&holder).await);
    holder.apply().await.succeeded();

    let asker = holder.beside();
    let bios = maintenance(
        "node1",
        "bios-2-19",
        "reason = \"BIOS 2.19\"\n  server_power = \"Off\"\n  escalate_after = \"72h\"\n  wait_for = \"Enqueued\"",
    );
    let bios = bios.replace("Enforced", "OwnerApproval");
    fleet.configure_with(&asker, "owner = \"team-ops\"", &bios);
    text.push_str(&format!("\n# Held by another maintenance, approval missing\n{}", plan(&asker).await));
    asker.apply().await.succeeded();

    let windowed = holder.beside();
    let at = (jiff::Timestamp::now() + jiff::SignedDuration::from_hours(30)).to_zoned(jiff::tz::TimeZone::UTC);
    let window =
        format!("window = {{ schedule = \"0 {} {} {} *\", duration = \"2h\" }}", at.hour(), at.day(), at.month());
    fleet.configure(
        &windowed,
        &maintenance("node1", "nic-fw", &format!("{window}\n  wait_for = \"Enqueued\"\n  priority = 5")),
    );
    text.push_str(&format!("\n# A window that is closed\n{}", plan(&windowed).await));
    windowed.apply().await.succeeded();
    fleet.configure(&windowed, &maintenance("node1", "nic-fw", &format!("{window}\n  priority = 5")));
    let late = windowed.beside();
    fleet.configure(&late, &maintenance("node2", "late", &window));
    text.push_str(&format!("\n# A window that comes too late\n{}", plan(&late).await));

    let images = Images::start().await;
    let boots = holder.beside();
    let boot = format!(
        "server_power = \"On\"\n  boot_configuration = {{ method = \"virtual_media\", image = \"{}\" }}",
        images.url("rescue.iso")
    );
    fleet.configure(&boots, &maintenance("node3", "rescue", &boot));
    text.push_str(&format!("\n# Boots an image\n{}", plan(&boots).await));
    let restart = "resource \"metal_server_operation\" \"now\" {\n  server = \"node3\"\n  namespace = \"ops\"\n  name = \"restart\"\n  operation = \"PowerCycle\"\n  policy = \"Enforced\"\n}\n";
    fleet.configure(&boots, restart);
    text.push_str(&format!("\n# A power cycle\n{}", plan(&boots).await));
    text.push_str(&format!("\n# The owner's refresh\n{}", plan(&owner).await));
    let yes = "resource \"metal_maintenance_approval\" \"yes\" {\n  server = \"node1\"\n";
    fleet.configure_with(
        &owner,
        "owner = \"team-db\"",
        &format!("{claim}{yes}  maintenance = \"tests/bios-2-19\"\n}}\n"),
    );
    text.push_str(&format!("\n# Approving one\n{}", plan(&owner).await));
    fleet.configure_with(&owner, "owner = \"team-db\"", &format!("{claim}{yes}  all = true\n}}\n"));
    text.push_str(&format!("\n# Approving everything\n{}", plan(&owner).await));
    golden!("plans", text);

    let queue = holder.metal(&["queue"]).await.succeeded().stdout;
    let show = holder.metal(&["show", "tests/bios-2-19"]).await.succeeded().stdout;
    let claims = holder.metal(&["claims"]).await.succeeded().stdout;
    golden!("command-line", format!("$ queue\n{queue}\n$ show tests/bios-2-19\n{show}\n$ claims\n{claims}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_say_what_failed_why_and_what_to_do() {
    let (fleet, workspace) = (Fleet::with(SimulatorConfig::with_systems(6)).await, Workspace::new(Host::OpenTofu));
    let mut text = String::new();
    let mut note = |title: &str, said: String| {
        assert!(said.contains("error:"), "{title}: {said}");
        text.push_str(&format!("# {title}\n{said}\n"));
    };
    // Errors in the request.
    let usual = |more: &str| maintenance("node1", "m", more);
    for (title, body) in [
        ("An unknown server", maintenance("node9", "m", "")),
        ("A wrong duration", usual("expires_after = \"soon\"")),
        ("A wrong schedule", usual("window = { schedule = \"0 22 * *\", duration = \"1h\" }")),
        ("A window that never opens", usual("window = { schedule = \"0 22 30 2 *\", duration = \"1h\" }")),
        ("A window longer than its period", usual("window = { schedule = \"0 22 * * *\", duration = \"30h\" }")),
        ("Nothing can complete it", usual("wait_for = \"Completed\"")),
        ("Escalation without an approval policy", usual("escalate_after = \"1h\"")),
        (
            "An approval without a request",
            "resource \"metal_maintenance_approval\" \"a\" {\n  server = \"node1\"\n  maintenance = \"a/b\"\n}\n"
                .to_owned(),
        ),
    ] {
        fleet.configure(&workspace, &body);
        note(title, plan(&workspace).await);
    }
    // Name conflicts: a second hold, another owner's, one in use, and one held by this
    // configuration.
    fleet.configure(&workspace, &usual("reason = \"first\""));
    workspace.apply().await.succeeded();
    let other = workspace.beside();
    fleet.configure(&other, &usual("reason = \"second\""));
    note("The same name with a different request", apply(&other).await);
    fleet.configure_with(&other, "owner = \"others\"", &usual("reason = \"first\""));
    note("Another owner's maintenance of the same name", apply(&other).await);
    let own_turn = "resource \"metal_server_operation\" \"o\" {\n  server = \"node1\"\n  namespace = \"a\"\n  name = \"o\"\n  operation = \"On\"\n  policy = \"Enforced\"\n}\n";
    fleet.configure(&other, own_turn);
    note("An operation on a server held by the same owner", apply(&other).await);
    fleet.configure(&other, &maintenance("node1", "waits", "timeouts = { create = \"1s\" }"));
    note("Not available in time", apply(&other).await);
    let claim = |owner: &str| {
        format!(
            "resource \"metal_server_claim\" \"c\" {{\n  server = \"node2\"\n  namespace = \"{owner}\"\n  name = \"c\"\n  contact = \"#{owner}\"\n}}\n"
        )
    };
    let owner = workspace.beside();
    fleet.configure_with(&owner, "owner = \"team-db\"", &claim("db"));
    owner.apply().await.succeeded();
    fleet.configure_with(&other, "owner = \"others\"", &claim("others"));
    note("A second claim", apply(&other).await);
    let asks = maintenance("node2", "asks", "timeouts = { create = \"1s\" }").replace("Enforced", "OwnerApproval");
    fleet.configure(&other, &asks);
    note("No answer in time", apply(&other).await);
    // Errors of the machine.
    let bmc = |name: &str| fleet.simulator.bmc_of(name).unwrap();
    fleet.simulator.set_availability(&bmc("node3"), Availability::Refusing).await.unwrap();
    fleet.configure(&other, &maintenance("node3", "away", "timeouts = { create = \"1s\" }"));
    note("An unreachable BMC", apply(&other).await);
    let _ = fleet
        .simulator
        .inject(Fault::error(500, "The service failed.").on_bmc(&bmc("node4")).on_request("POST", "*Reset"));
    fleet.configure(
        &other,
        &maintenance("node4", "refused", "server_power = \"Off\"\n  timeouts = { create = \"8s\" }"),
    );
    note("A reset that is refused", apply(&other).await);
    fleet.simulator.clear_faults();
    fleet.configure(
        &other,
        &maintenance(
            "node5",
            "no-image",
            "boot_configuration = { method = \"virtual_media\", image = \"http://127.0.0.1:1/x.iso\" }",
        ),
    );
    note("An image that cannot be had", apply(&other).await);
    // A forced release during the hold.
    let mut workspace = workspace;
    fleet.command_line(&mut workspace);
    let show = workspace.metal(&["show", "tests/m", "--json"]).await.succeeded().stdout;
    let show: Value = serde_json::from_str(&show).unwrap();
    let generation = show["maintenance"]["generation"].to_string();
    workspace
        .metal(&["release", "tests/m", "--force", "--generation", &generation, "--reason", "node needed"])
        .await
        .succeeded();
    text.push_str(&format!("# Released by another user\n{}\n", plan(&workspace).await));
    golden!("errors", text);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_fail_releases_that_stand_and_other_states() {
    let (fleet, images) = (Fleet::new(2).await, Images::start().await);
    let mut holder = Workspace::new(Host::OpenTofu);
    let mut text = String::new();
    let boots = |image: &str, more: &str| {
        let boot = format!("{{ method = \"virtual_media\", image = \"{}\"{more} }}", images.url(image));
        let more = format!("server_power = \"On\"\n  boot_configuration = {boot}\n  timeouts = {{ update = \"4s\" }}");
        maintenance("node1", "m", &more)
    };
    fleet.configure(&holder, &boots("rescue.iso", ""));
    holder.apply().await.succeeded();
    fleet.configure(&holder, &boots("missing.bin", ""));
    text.push_str(&format!("# A change that is refused\n{}", apply(&holder).await));
    let never = format!(", ready_when = {{ url = \"{}\" }}", images.url("never"));
    fleet.configure(&holder, &boots("other.iso", &never));
    let failed = apply(&holder).await;
    // The step that times out depends on the machine's speed.
    let step = without_step(&failed);
    text.push_str(&format!("\n# A change that is undone\n{step}"));
    fleet.configure(&holder, &boots("rescue.iso", ""));
    holder.plan().await.is_empty();

    let copy = holder.beside();
    fleet.configure(&copy, &boots("rescue.iso", ""));
    text.push_str(&format!("\n# A second state: its plan\n{}", plan(&copy).await));
    text.push_str(&format!("\n# A second state: its apply\n{}", apply(&copy).await));
    let adopts = boots("rescue.iso", "").replace("policy", "adopt = true\n  policy");
    fleet.configure(&copy, &adopts);
    text.push_str(&format!("\n# A second state that adopts\n{}", plan(&copy).await));
    let restart = "resource \"metal_server_operation\" \"now\" {\n  server = \"node1\"\n  namespace = \"ops\"\n  name = \"restart\"\n  operation = \"PowerCycle\"\n  maintenance_id = \"tests/m\"\n}\n";
    fleet.configure_with(&copy, "owner = \"others\"", restart);
    text.push_str(&format!("\n# Under another owner's maintenance\n{}", plan(&copy).await));

    fleet.command_line(&mut holder);
    let show = holder.metal(&["show", "tests/m", "--json"]).await.succeeded().stdout;
    let show: Value = serde_json::from_str(&show).unwrap();
    let generation = show["maintenance"]["generation"].to_string();
    let release =
        ["release", "tests/m", "--force", "--generation", &generation, "--reason", "node needed", "--block", "4h"];
    holder.metal(&release).await.succeeded();
    text.push_str(&format!("\n# Released and blocked: the next plan\n{}", plan(&holder).await));
    text.push_str(&format!("\n# Released and blocked: the next apply\n{}", apply(&holder).await));
    let queue = holder.metal(&["queue"]).await.succeeded().stdout;
    let show = holder.metal(&["show", "tests/m"]).await.succeeded().stdout;
    let show: String = show.lines().take_while(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect();
    fleet.configure(&copy, &maintenance("node1", "other", "timeouts = { create = \"2s\" }"));
    text.push_str(&format!("\n# Blocked: another maintenance\n{}", apply(&copy).await));
    let allow = holder.metal(&["release", "--allow", "tests/m"]).await.succeeded().stdout;
    let twice = holder.metal(&["release", "--allow", "tests/m"]).await.failed().stderr;
    text.push_str(&format!(
        "\n$ queue\n{queue}\n$ show tests/m\n{show}\n$ release --allow tests/m\n{allow}\n$ release --allow tests/m\n{twice}"
    ));
    golden!("holds", text);
}

/// Two servers with one lock, and a call with a pending effect.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_change_their_identity_and_calls_that_are_late() {
    const NEW_BOARD: &str = "5d5d5544-0037-4010-8052-b4c04f4d3332";
    let mut config = SimulatorConfig::with_systems(3);
    config.systems[1].uuid = Some(SystemUuid::Nil);
    let fleet = Fleet::with(config).await;
    let holder = Workspace::new(Host::OpenTofu);
    fleet.configure(&holder, &maintenance("node2", "m", ""));
    let mut text = format!("# A server without UUID\n{}", apply(&holder).await);

    fleet.configure_with(&holder, "owner = \"team\"", &maintenance("node1", "m", ""));
    holder.apply().await.succeeded();
    let identity = Identity { uuid: SystemUuid::Real(NEW_BOARD.parse().unwrap()), ..fleet.system("node1").identity };
    let change = SystemChange { identity: Some(identity), ..SystemChange::default() };
    fleet.simulator.change_system("node1", change).unwrap();
    let other = holder.beside();
    fleet.configure_with(&other, "owner = \"team-b\"", &maintenance("node1", "w", ""));
    text.push_str(&format!("\n# After its mainboard was replaced: the plan\n{}", plan(&other).await));
    let refused = apply(&other).await;
    text.push_str(&format!("\n# After its mainboard was replaced: the apply\n{refused}"));
    let (_, serial) = refused.split_once("serial:").unwrap();
    let serial = format!("serial:{}", serial.split_once(" belongs to").unwrap().0);
    let rebind = ["server", "rebind", "team/node1", &serial, "--key", NEW_BOARD];
    let without = other.metal(&rebind).await.failed().stderr;
    text.push_str(&format!("\n$ server rebind, without a reason\n{without}"));
    let rebind: Vec<&str> = rebind.into_iter().chain(["--reason", "new mainboard"]).collect();
    let held = other.metal(&rebind).await.failed().stderr;
    text.push_str(&format!("\n$ server rebind, while the server is held\n{held}"));
    holder.destroy().await.succeeded();
    let moved = other.metal(&rebind).await.succeeded().stdout;
    text.push_str(&format!("\n$ server rebind\n{moved}"));

    let sluggish = Behaviour { graceful_shutdown: Duration::from_secs(3), ..Fleet::quick() };
    fleet.simulator.set_behaviour("node3", sluggish).unwrap();
    let mut holder = holder.beside();
    fleet.command_line(&mut holder);
    fleet.configure(&holder, &maintenance("node3", "late", "server_power = \"Off\""));
    let run = holder.start_apply();
    run.until_it_logs("GracefulShutdown", SOON).await;
    run.terminate();
    run.wait(SOON).await;
    // The pending shutdown completes first, and then the server is released.
    text.push_str(&format!("\n# Released during a shutdown\n{}", destroy(&holder).await));
    let show = holder.metal(&["show", "tests/late"]).await.succeeded().stdout;
    text.push_str(&format!("$ show tests/late\n{show}\n# Resets sent to the BMC\n{:?}\n", fleet.resets("node3")));
    golden!("identities", text);
}

/// Removes the step that timed out from a diagnostic.
fn without_step(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        match line.split_once("ended at step ") {
            Some((before, _)) => lines.push(format!("{before}ended at step <step>")),
            None => lines.push(line.to_owned()),
        }
    }
    lines.join("\n") + "\n"
}
