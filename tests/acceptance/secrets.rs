//! Searches all written files and output for sentinel secrets.

use serde_json::Value;

use crate::{
    servers::{kubernetes::Kubernetes, postgres::Postgres},
    support::{
        host::Host,
        images::Images,
        simulator::{Fleet, maintenance},
        workspace::Workspace,
    },
};

const LOCK: &str = r#"
ephemeral "metal_server_lock" "run" {
  server    = "node1"
  namespace = "tests"
  name      = "run"
  policy    = "Enforced"
  applying  = terraform.applying
}
resource "terraform_data" "work" {
  depends_on = [ephemeral.metal_server_lock.run]
}
"#;

const ACTION: &str = r#"
action "metal_server_operation" "cycle" {
  config {
    server         = "node1"
    namespace      = "tests"
    name           = "cycle"
    operation      = "PowerCycle"
    maintenance_id = "tests/m"
  }
}
"#;

for_each_host! {
    async fn no_secret_is_written_anywhere(host) {
        const PASSWORD: &str = "sentinel-8c1f-password";
        let mut config = bmc_simulator::SimulatorConfig::with_systems(1);
        config.credentials.password = PASSWORD.into();
        let (fleet, images, mut workspace) = (Fleet::with(config).await, Images::start().await, Workspace::new(host));
        workspace.set("TF_LOG", "TRACE");
        workspace.set("TF_VAR_password", PASSWORD);
        let more = format!(
            "server_power = \"On\"\n  boot_configuration = {{ method = \"virtual_media\", image = \"{}\" }}",
            images.url("rescue.iso")
        );
        // The configuration must not contain the password either, or the search would prove
        // nothing.
        let place = |body: &str| {
            fleet.configure(&workspace, body);
            let text = std::fs::read_to_string(workspace.folder().join("main.tf")).unwrap();
            let text = text.replace(&format!("\"{PASSWORD}\""), "var.password");
            std::fs::write(workspace.folder().join("main.tf"), text + "\nvariable \"password\" {\n  sensitive = true\n}\n").unwrap();
        };
        let mut said = Vec::new();
        let mut body = maintenance("node1", "m", &more);
        if host == Host::Terraform {
            // Terraform-only features: a lock for the run, and an action under the maintenance.
            place(LOCK);
            said.push(workspace.apply().await.succeeded());
            body += ACTION;
        }
        place(&body);
        said.push(workspace.try_plan().await.succeeded());
        said.push(workspace.apply().await.succeeded());
        said.push(workspace.refresh().await.succeeded());
        if host == Host::Terraform {
            let invoke = ["apply", "-auto-approve", "-no-color", "-invoke=action.metal_server_operation.cycle"];
            said.push(workspace.run(&invoke).await.succeeded());
        }
        fleet.command_line(&mut workspace);
        said.push(workspace.metal(&["queue", "--json"]).await.succeeded());
        said.push(workspace.metal(&["show", "tests/m", "--json"]).await.succeeded());
        said.push(workspace.destroy().await.succeeded());
        workspace.set("TF_VAR_password", format!("{PASSWORD}-wrong"));
        said.push(workspace.apply().await.failed());
        for run in &said {
            assert!(!run.output.contains(PASSWORD), "{} said it:\n{}", run.command, run.output);
        }
        let written = workspace.everything_written();
        assert!(written.len() > 5, "{written:?}");
        for (file, content) in written {
            let found = content.windows(PASSWORD.len()).any(|window| window == PASSWORD.as_bytes());
            assert!(!found, "{} contains the password", file.display());
        }
    }
}

/// Runs the guide's `comment.py` on a plan's JSON.
fn comment(plan: &str) -> String {
    use std::io::Write as _;
    let script =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/guides/pull-request-comment/comment.py");
    let mut python = std::process::Command::new("python3")
        .arg(script)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(plan.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "the script did not write the comment");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns a saved plan: unpacked bytes and JSON.
async fn saved_plan(workspace: &Workspace) -> (Vec<u8>, String) {
    workspace.run(&["plan", "-input=false", "-out=saved.plan"]).await.succeeded();
    let file = workspace.folder().join("saved.plan");
    let mut raw = std::fs::read(&file).unwrap();
    let unpacked = std::process::Command::new("python3")
        .args(["-c", "import sys, zipfile\nz = zipfile.ZipFile(sys.argv[1])\nfor n in z.namelist(): sys.stdout.buffer.write(z.read(n))"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(unpacked.status.success() && unpacked.stdout.len() > 500, "{unpacked:?}");
    raw.extend(unpacked.stdout);
    let json = workspace.json(&["show", "-json", "saved.plan"]).await.to_string();
    std::fs::remove_file(file).unwrap();
    (raw, json)
}

fn holds(content: &[u8], secret: &str) -> bool {
    content.windows(secret.len()).any(|window| window == secret.as_bytes())
}

// The password comes from the environment, as in the guides, because a saved plan contains
// variables.
for_each_host! {
    async fn no_saved_plan_and_no_comment_holds_the_password(host) {
        const PASSWORD: &str = "sentinel-77e1-password";
        let mut config = bmc_simulator::SimulatorConfig::with_systems(1);
        config.credentials.password = PASSWORD.into();
        let (fleet, mut workspace) = (Fleet::with(config).await, Workspace::new(host));
        let preview = "\ndata \"metal_maintenance_preview\" \"p\" {\n  servers = [\"node1\"]\n  policy = \"Enforced\"\n  server_power = \"Off\"\n}\n";
        fleet.configure(&workspace, &(maintenance("node1", "m", "server_power = \"Off\"") + preview));
        let main = workspace.folder().join("main.tf");
        let text = std::fs::read_to_string(&main).unwrap();
        let without: String = text.lines().filter(|line| !line.contains(PASSWORD)).map(|line| format!("{line}\n")).collect();
        std::fs::write(main, without).unwrap();
        workspace.set("METAL_REDFISH_PASSWORD", PASSWORD);
        let (raw, json) = saved_plan(&workspace).await;
        assert!(json.contains("metal_server_maintenance"), "{json}");
        assert!(!holds(&raw, PASSWORD) && !json.contains(PASSWORD), "the saved plan contains the password");
        let comment = comment(&json);
        assert!(comment.contains("node1") && !comment.contains(PASSWORD), "{comment}");
    }
}

/// Removes the image URLs that the configuration itself contains.
fn without_images(plan: &mut Value) {
    match plan {
        Value::Object(fields) => {
            fields.retain(|name, _| !["image", "complete_when", "variables"].contains(&name.as_str()));
            fields.values_mut().for_each(without_images);
        }
        Value::Array(items) => items.iter_mut().for_each(without_images),
        _ => {}
    }
}

/// An image URL's signature reaches the BMC, but is not stored outside state and plan, which
/// contain every argument.
async fn no_signature_is_kept(url: Option<&str>) {
    const SIGNATURE: &str = "sentinel4a9fsignature";
    let (fleet, images) = (Fleet::new(1).await, Images::start().await);
    let mut workspace = Workspace::new(crate::support::host::Host::OpenTofu);
    if let Some(url) = url {
        workspace.set("METAL_COORDINATION_URL", url);
    }
    workspace.set("TF_LOG", "TRACE");
    // A readiness check's token is not stored either.
    let boot =
        "boot_configuration = { method = \"virtual_media\", image = var.image }\n  complete_when = { url = var.image }";
    let variable = "\nvariable \"image\" {\n  sensitive = true\n}\n";
    let hold = |more: &str| maintenance("node1", "m", &format!("{more}\n  {boot}")) + variable;
    let address =
        |signature: &str| format!("{}?X-Amz-Signature={signature}&X-Amz-Date=1&versionId=3", images.url("a.iso"));
    fleet.configure(&workspace, &hold("server_power = \"On\"\n  wait_for = \"Enqueued\""));
    workspace.set("TF_VAR_image", address(SIGNATURE));
    fleet.command_line(&mut workspace);
    let mut said = Vec::new();

    let (_, json) = saved_plan(&workspace).await;
    let mut plan: Value = serde_json::from_str(&json).unwrap();
    without_images(&mut plan);
    assert!(!plan.to_string().contains(SIGNATURE), "{plan}");
    assert!(!comment(&json).contains(SIGNATURE));
    said.push(workspace.apply().await.succeeded());

    // A process without the full URL reports it and changes nothing; a process with the URL
    // continues.
    let refused = workspace.metal(&["drive", "tests/m"]).await.failed();
    refused.says("without its signature").says("--image-addresses");
    said.push(refused);
    let before = fleet.changes("node1").len();
    let told = workspace.root().join("addresses");
    std::fs::write(&told, address(SIGNATURE)).unwrap();
    std::fs::set_permissions(&told, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    said.push(
        workspace.metal(&["drive", "tests/m", "--image-addresses", &told.display().to_string()]).await.succeeded(),
    );
    std::fs::remove_file(&told).unwrap();
    assert!(fleet.changes("node1").len() > before);
    let inserted = || format!("{:?}", fleet.simulator.journal(&bmc_simulator::JournalQuery::default()));
    assert!(inserted().contains("InsertMedia") || inserted().contains("VirtualMedia"), "{}", inserted());

    // A new signature for the same image does not change the server.
    let changes = fleet.changes("node1").len();
    workspace.set("TF_VAR_image", address("anothersignature"));
    said.push(workspace.apply().await.succeeded());
    assert_eq!(fleet.changes("node1").len(), changes, "{:?}", fleet.changes("node1"));
    for arguments in
        [&["queue", "--json"][..], &["show", "tests/m", "--json"], &["show", "tests/m"], &["history", "--json"]]
    {
        said.push(workspace.metal(arguments).await.succeeded());
    }
    said.push(workspace.destroy().await.succeeded());
    said.push(workspace.metal(&["store", "export"]).await.succeeded());
    assert!(said.last().unwrap().output.contains("#metal-sealed:"), "the record names the image");

    for run in &said {
        for signature in [SIGNATURE, "anothersignature"] {
            assert!(!run.output.contains(signature), "{} said it:\n{}", run.command, run.output);
        }
    }
    for (file, content) in workspace.everything_written() {
        let of_the_host = file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("terraform.tfstate"));
        assert!(of_the_host || !holds(&content, SIGNATURE), "{} contains the signature", file.display());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_signature_of_an_image_is_kept_in_a_file() {
    no_signature_is_kept(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_signature_of_an_image_is_kept_in_postgres() {
    let server = Postgres::shared();
    no_signature_is_kept(Some(&server.url("postgres", &server.database()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_signature_of_an_image_is_kept_in_kubernetes() {
    let cluster = Kubernetes::shared();
    no_signature_is_kept(Some(&cluster.store(&cluster.namespace()))).await;
}
