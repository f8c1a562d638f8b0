//! A backend that is one folder and one line of registration: every resource works with it, and
//! nothing else knows it.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::support::{
    host::Host,
    images::Images,
    provider,
    run::Run,
    simulator::{SOON, maintenance},
    workspace::Workspace,
};

/// A user whose provider has the example backend, and a server of it.
fn example(workspace: &Workspace, power: &str) -> PathBuf {
    let program = provider::binary().with_file_name("examples").join("example-backend");
    assert!(program.exists(), "{} is built by `cargo test`", program.display());
    let place = workspace.root().join("plugins/terraform-provider-metal");
    fs::remove_file(&place).unwrap();
    symlink(program, place).unwrap();
    let file = workspace.root().join("node1.json");
    let server = json!({
        "uuid": "4c4c4544-0051-3010-8032-b4c04f4a5931", "power": power, "drive": null, "history": [],
        "boot": {"enabled": "Disabled", "target": "None", "mode": null, "http_boot_uri": null},
    });
    fs::write(&file, server.to_string()).unwrap();
    file
}

fn configure(workspace: &Workspace, file: &Path, body: &str) {
    let provider =
        format!("provider \"metal\" {{\n  example_file = {{ servers = {{ node1 = \"{}\" }} }}\n}}\n", file.display());
    workspace.configure(&(provider + body));
}

/// Runs the program that has the example backend by hand.
async fn by_hand(workspace: &Workspace, arguments: &[&str]) -> Run {
    let program = workspace.root().join("plugins/terraform-provider-metal").display().to_string();
    workspace.start_program(&program, arguments).wait(SOON).await
}

fn read(file: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

for_one_host! {
    async fn a_server_of_it_is_held_booted_and_returned(host) {
        let images = Images::start().await;
        let image = images.url("rescue.iso");
        for power in ["On", "Off"] {
            let workspace = Workspace::new(host);
            let file = example(&workspace, power);
            let before = read(&file);
            let boot = format!("server_power = \"On\"\n  boot_configuration = {{ method = \"virtual_media\", image = {image:?} }}");
            configure(&workspace, &file, &maintenance("node1", "m", &boot));
            workspace.apply().await.succeeded();
            let held = read(&file);
            assert_eq!((&held["power"], &held["drive"]), (&json!("On"), &json!(image)), "{held}");
            assert_eq!(held["history"].as_array().unwrap().last(), Some(&json!(format!("boots {image}"))), "{held}");
            workspace.plan().await.is_empty();
            workspace.metal(&["queue"]).await.succeeded().says("tests/m");
            workspace.destroy().await.succeeded();
            let after = read(&file);
            for part in ["power", "drive"] {
                assert_eq!(after[part], before[part], "{part}: {after}");
            }
            assert_eq!(after["boot"]["enabled"], "Disabled", "{after}");
        }
    }
}

for_one_host! {
    async fn a_boot_method_of_its_own_is_configured_booted_and_undone(host) {
        let workspace = Workspace::new(host);
        let file = example(&workspace, "On");
        let before = read(&file);
        let boot = |attributes: &str| {
            let boot = format!("server_power = \"On\"\n  boot_configuration = {{ method = \"shelf_image\"{attributes} }}");
            maintenance("node1", "m", &boot)
        };
        for (attributes, why) in [("", "An image is needed"), (", image = \"a\", image_sha256 = \"00\"", "Not with shelf_image")] {
            configure(&workspace, &file, &boot(attributes));
            workspace.run(&["validate", "-no-color"]).await.failed().says(why);
        }
        let ignition = ", image = \"rescue-3\", ignition = { secret_name = \"a\" }";
        configure(&workspace, &file, &boot(ignition));
        workspace.run(&["validate", "-no-color"]).await.failed().says("Only method = \"boot_operator\"");
        // Continuous, so that there is an override to undo.
        configure(&workspace, &file, &boot(", image = \"rescue-3\", once = false"));
        workspace.apply().await.succeeded();
        let held = read(&file);
        assert_eq!(held["history"].as_array().unwrap().last(), Some(&json!("boots rescue-3")), "{held}");
        assert_eq!((&held["boot"]["target"], &held["drive"]), (&json!("ShelfImage"), &Value::Null), "{held}");
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        assert_eq!(read(&file)["boot"], before["boot"]);
    }
}

for_one_host! {
    async fn what_it_cannot_do_is_an_error_of_the_plan(host) {
        let (images, workspace) = (Images::start().await, Workspace::new(host));
        let file = example(&workspace, "On");
        let boot = format!("boot_configuration = {{ method = \"http\", image = {:?} }}", images.url("rescue.efi"));
        configure(&workspace, &file, &maintenance("node1", "m", &boot));
        workspace.try_plan().await.failed().says("virtual_media");
        configure(&workspace, &file, &maintenance("node2", "m", ""));
        workspace.try_plan().await.failed().says("node2");
        configure(&workspace, Path::new("node1.json"), &maintenance("node1", "m", ""));
        workspace.run(&["validate", "-no-color"]).await.failed().says("not an absolute path");
        assert_eq!(read(&file)["history"], json!([]));
    }
}

for_one_host! {
    async fn an_operation_under_the_lock_is_made_by_it(host) {
        let workspace = Workspace::new(host);
        let file = example(&workspace, "On");
        let body = "resource \"metal_server_operation\" \"off\" {\n  namespace = \"tests\"\n  name      = \"off\"\n  server    = \"node1\"\n  operation = \"ForceOff\"\n  policy    = \"Enforced\"\n}\n\
                    data \"metal_server\" \"node\" {\n  name = \"node1\"\n  depends_on = [metal_server_operation.off]\n}\n\
                    output \"node\" {\n  value = data.metal_server.node\n}\n";
        configure(&workspace, &file, body);
        workspace.apply().await.succeeded();
        assert_eq!(read(&file)["history"], json!(["is switched off"]));
        let node = workspace.json(&["output", "-json", "node"]).await;
        assert_eq!((&node["power_state"], &node["reachable"]), (&json!("Off"), &json!(true)), "{node}");
    }
}

/// The command line has its flags, and reaches its servers by them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_brings_its_flags_to_the_command_line() {
    let workspace = Workspace::new(Host::OpenTofu);
    let file = example(&workspace, "On");
    configure(&workspace, &file, &maintenance("node1", "m", "server_power = \"Off\""));
    workspace.apply().await.succeeded();
    by_hand(&workspace, &["--help"])
        .await
        .succeeded()
        .says("--example-server <FILE>")
        .says("METAL_EXAMPLE_SERVER_FILE");
    let path = file.display().to_string();
    by_hand(&workspace, &["check", "--example-server", &path]).await.failed().says("of the backend example_file");
    by_hand(&workspace, &["check", "--backend", "example_file"])
        .await
        .failed()
        .says("--example-server or METAL_EXAMPLE");
    let reached = ["--backend", "example_file", "--example-server", &path];
    by_hand(&workspace, &[&reached[..], &["check"]].concat()).await.succeeded().says("node1");
    let complete = [&reached[..], &["complete", "tests/m"]].concat();
    by_hand(&workspace, &complete).await.succeeded();
    assert_eq!(read(&file)["power"], "On", "it was restored by hand");
}

/// What the example costs outside of its folder: where cargo builds it, and its tests.
#[test]
fn it_is_one_folder() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut touched = Vec::new();
    for top in ["Cargo.toml", "src", "crates", "tests", "docs", "examples", "roles", "benches"] {
        named(&root.join(top), &mut touched);
    }
    let mut touched: Vec<String> =
        touched.iter().map(|path| path.strip_prefix(root).unwrap().to_string_lossy().into_owned()).collect();
    touched.sort();
    let expected = [
        "Cargo.toml",
        "tests/acceptance/example_backend.rs",
        "tests/acceptance/main.rs",
        "tests/support/example_backend/main.rs",
        "tests/support/example_backend/plugin.rs",
    ];
    assert_eq!(touched, expected);
}

fn named(path: &Path, touched: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            named(&entry.unwrap().path(), touched);
        }
        return;
    }
    let Ok(text) = fs::read_to_string(path) else { return };
    if ["example_file", "example_backend", "example-backend", "ExamplePlugin"].iter().any(|name| text.contains(name)) {
        touched.push(path.to_owned());
    }
}
