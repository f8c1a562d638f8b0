//! Every example is valid on both hosts, and the guide's example is applied.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::support::{host::Host, images::Images, provider, simulator::Fleet, workspace::Workspace};

fn examples() -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "tf") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples"), &mut found);
    found.sort();
    found
}

/// Copies the example, with the provider's address in the tests.
fn place(workspace: &Workspace, example: &Path) {
    let text = fs::read_to_string(example).unwrap();
    let text = text.replace("localhost/metal-maintenance/metal", provider::SOURCE);
    if text.contains("required_providers") {
        fs::write(workspace.folder().join("main.tf"), text).unwrap();
    } else {
        workspace.configure(&text);
    }
}

for_each_host! {
    async fn every_example_is_valid(host) {
        let examples = examples();
        assert!(examples.len() >= 6, "{examples:?}");
        let workspace = Workspace::new(host);
        workspace.write("bmc-ca.pem", "");
        for example in examples {
            // This OpenTofu version does not support these.
            let newer = ["functions", "actions", "ephemeral-resources"];
            let is_newer = example.components().any(|part| newer.iter().any(|kind| part.as_os_str() == *kind));
            if host == Host::OpenTofu && is_newer {
                continue;
            }
            // Nor does it support ephemeral variables and identities.
            let newer = ["ephemeral.tf", "import-by-identity.tf"];
            if host == Host::OpenTofu && newer.iter().any(|name| example.ends_with(name)) {
                continue;
            }
            place(&workspace, &example);
            let run = workspace.run(&["validate", "-no-color"]).await;
            assert!(run.status.success(), "{}:\n{}", example.display(), run.output);
        }
    }
}

for_each_host! {
    async fn the_first_fifteen_minutes_of_the_guide_work(host) {
        let (fleet, images, mut workspace) = (Fleet::new(1).await, Images::start().await, Workspace::new(host));
        fleet.configure(&workspace, "");
        let folder = workspace.folder().to_owned();
        place(&workspace, &Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/guides/first-maintenance/main.tf"));
        for (name, value) in [
            ("server", "node1".to_owned()),
            ("inventory_file", folder.join("servers.yaml").display().to_string()),
            ("bmc_ca_certificate_file", folder.join("bmc-ca.pem").display().to_string()),
        ] {
            workspace.set(&format!("TF_VAR_{name}"), value);
        }
        fleet.command_line(&mut workspace);
        workspace.metal(&["check", "node1"]).await.succeeded().says("node1: usable").says("virtual_media: yes");
        // Held and unchanged.
        workspace.apply().await.succeeded().says("state = \"InMaintenance\"").says("was = \"On\"");
        workspace.metal(&["queue"]).await.succeeded().says("guide/first-maintenance");
        assert_eq!(fleet.changes("node1"), [""; 0]);
        workspace.set("TF_VAR_image", images.url("rescue.iso"));
        workspace.apply().await.succeeded().says("state = \"InMaintenance\"").says("was = \"On\"");
        assert!(fleet.runs("node1").contains("rescue.iso"));
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        assert!(fleet.runs("node1").contains("Disk"));
    }
}

for_each_host! {
    async fn the_comment_of_the_guide_is_made_from_a_plan(host) {
        let (fleet, workspace) = (Fleet::new(2).await, Workspace::new(host));
        fleet.configure(&workspace, &crate::support::simulator::maintenance("node1", "before", "reason = \"disk\""));
        workspace.apply().await.succeeded();
        let mut review = workspace.beside();
        fleet.configure(&review, "");
        fleet.command_line(&mut review);
        let folder = review.folder().to_owned();
        let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/guides/pull-request-comment");
        place(&review, &guide.join("main.tf"));
        for (name, value) in [
            ("servers", "[\"node1\", \"node2\"]".to_owned()),
            ("inventory_file", folder.join("servers.yaml").display().to_string()),
            ("bmc_ca_certificate_file", folder.join("bmc-ca.pem").display().to_string()),
        ] {
            review.set(&format!("TF_VAR_{name}"), value);
        }
        let plan = review.plan().await;
        let shown = review.run(&["show", "-json", &plan.file.to_string_lossy()]).await.succeeded();
        review.write("plan.json", &shown.stdout);
        let comment = std::process::Command::new("python3")
            .arg(guide.join("comment.py"))
            .stdin(fs::File::open(folder.join("plan.json")).unwrap())
            .output()
            .unwrap();
        let text = String::from_utf8(comment.stdout).unwrap();
        assert!(comment.status.success(), "{}", String::from_utf8_lossy(&comment.stderr));
        assert!(text.contains("### Maintenance of 2 servers"), "{text}");
        assert!(text.contains("| node1 | is switched off. | behind tests/before"), "{text}");
        assert!(text.contains("| node2 | is switched off. | free | - | 20"), "{text}");
        workspace.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn the_work_of_the_guide_runs_between_hold_and_release(host) {
        let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, "");
        fleet.command_line(&mut workspace);
        let folder = workspace.folder().to_owned();
        place(&workspace, &Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/guides/work-under-a-hold/main.tf"));
        for (name, value) in [
            ("server", "node1".to_owned()),
            ("inventory_file", folder.join("servers.yaml").display().to_string()),
            ("bmc_ca_certificate_file", folder.join("bmc-ca.pem").display().to_string()),
        ] {
            workspace.set(&format!("TF_VAR_{name}"), value);
        }
        workspace.apply().await.succeeded().says("flashing 2.19 over https://127.0.0.1:");
        // A new firmware version replaces the hold and repeats the work.
        workspace.set("TF_VAR_firmware", "2.20");
        let again = workspace.apply().await.succeeded();
        let order = [
            "the server is still held",
            "metal_server_maintenance.bios: Destruction complete",
            "metal_server_maintenance.bios: Creation complete",
            "flashing 2.20",
        ];
        let places: Vec<usize> = order.iter().map(|line| again.output.rfind(line).expect(line)).collect();
        assert!(places.is_sorted(), "{places:?}:\n{}", again.output);
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.changes("node1"), [""; 0]);
    }
}
