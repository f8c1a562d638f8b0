//! Checks the guide: its examples work, and Ironic reads its policy files.

use std::{fs, path::Path};

use reqwest::Method;
use serde_json::json;

use crate::{
    servers::ironic::{Ironic, Options},
    support::{provider, workspace::Workspace},
};

use super::SYSTEM;

for_each_host! {
    async fn the_example_of_the_ironic_guide_works(host) {
        let ironic = Ironic::start(Options::default()).await;
        ironic.active_node("rack1-node7").await;
        let mut workspace = Workspace::new(host);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/guides/ironic/main.tf");
        let text = fs::read_to_string(path).unwrap().replace("localhost/metal-maintenance/metal", provider::SOURCE);
        fs::write(workspace.folder().join("main.tf"), text).unwrap();
        workspace.set("METAL_IRONIC_ENDPOINT", ironic.url());
        workspace.set("TF_VAR_server", "rack1-node7");
        workspace.set("TF_VAR_lock_keys", format!("{{\"rack1-node7\":\"{SYSTEM}\"}}"));
        workspace.apply().await.succeeded();
        assert_eq!(ironic.node("rack1-node7").await["power_state"], "power off");
        workspace.destroy().await.succeeded();
        assert_eq!(ironic.node("rack1-node7").await["power_state"], "power on");
    }
}

for_each_host! {
    async fn the_service_example_of_the_ironic_guide_works(host) {
        let ironic = Ironic::start(Options::default()).await;
        ironic.active_node("rack1-node7").await;
        let book = json!({ "name": "CUSTOM_FIRMWARE", "steps": [
            { "interface": "vendor", "step": "log_passthrough", "args": {}, "order": 1 },
        ] });
        ironic.call(Method::POST, "/v1/runbooks", Some(book)).await;
        ironic.call(Method::PUT, "/v1/nodes/rack1-node7/traits/CUSTOM_FIRMWARE", None).await;
        let mut workspace = Workspace::new(host);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/guides/ironic-service/main.tf");
        let text = fs::read_to_string(path).unwrap().replace("localhost/metal-maintenance/metal", provider::SOURCE);
        fs::write(workspace.folder().join("main.tf"), text).unwrap();
        workspace.set("METAL_IRONIC_ENDPOINT", ironic.url());
        workspace.set("TF_VAR_server", "rack1-node7");
        workspace.set("TF_VAR_runbook", "CUSTOM_FIRMWARE");
        workspace.set("TF_VAR_lock_keys", format!("{{\"rack1-node7\":\"{SYSTEM}\"}}"));
        workspace.apply().await.succeeded().says("Proven");
        assert_eq!(ironic.history("rack1-node7", "servicing_start").await.len(), 1);
        workspace.destroy().await.succeeded();
    }
}

/// Queries Ironic's own enforcer for a role with combined policy files, and compares the result
/// with the files.
async fn check_policy(files: &[&str], roles: &[&str], marks: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("policy.d")).unwrap();
    for (number, file) in files.iter().enumerate() {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("roles").join(file)).unwrap();
        let name = if number == 0 { "policy.yaml".to_owned() } else { format!("policy.d/{number}.yaml") };
        fs::write(folder.path().join(name), text).unwrap();
    }
    let script = r#"
import glob, sys, yaml
from oslo_config import cfg
from oslo_policy import opts
from ironic.common import policy
folder, roles, marks = sys.argv[1], sys.argv[2].split(","), sys.argv[3].split(",")
cfg.CONF([], project="ironic")
opts.set_defaults(cfg.CONF)
cfg.CONF.set_override("enforce_new_defaults", True, group="oslo_policy")
cfg.CONF.set_override("policy_dirs", [folder + "/policy.d"], group="oslo_policy")
policy.init_enforcer(policy_file=folder + "/policy.yaml")
runner = {"roles": roles, "project_id": "p", "user_id": "u"}
other = {"roles": ["member"], "project_id": "p", "user_id": "u"}
target = {"node.owner": "q", "node.lessee": None, "runbook.owner": "q"}
rules = {}
for file in [folder + "/policy.yaml", *sorted(glob.glob(folder + "/policy.d/*.yaml"))]:
    rules.update(yaml.safe_load(open(file)))
needed = [name for name, check in rules.items() if name.startswith("baremetal:") and any(mark in check for mark in marks)]
known = {rule.name: rule for rule in policy.list_policies()}
for name in rules:
    assert name.startswith("metal_") or name in known, f"{name} is not a rule of Ironic"
for rule in known.values():
    def may(who):
        return policy.check(rule.name, target, who)
    if rule.name in needed:
        assert may(runner), f"{rule.name} is denied to the role"
        assert not may(other) or rule.name == "baremetal:node:list", f"{rule.name} is allowed to others"
    elif rule.name.startswith(("baremetal:node:", "baremetal:port:", "baremetal:chassis:", "baremetal:runbook:")):
        assert not may(runner) or rule.check_str == "", f"{rule.name} is allowed but not needed"
assert len(needed) > 4
"#;
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/ironic/bin/python");
    let arguments = [folder.path().display().to_string(), roles.join(","), marks.join(",")];
    let output = tokio::process::Command::new(python).args(["-c", script]).args(arguments).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn the_policy_files_of_the_ironic_guide_allow_what_is_called_and_nothing_else() {
    let guide = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides/ironic.md")).unwrap();
    let files = ["ironic.yaml", "ironic-services.yaml", "ironic-protect.yaml"];
    assert!(files.iter().all(|file| guide.contains(&format!("roles/{file}"))), "the guide names the files");
    check_policy(&files[..1], &["metal_runner"], &["metal_"]).await;
    let (protect, files) = ([files[0], files[2]], &files[..2]);
    check_policy(&protect, &["metal_runner"], &["metal_"]).await;
    check_policy(files, &["metal_runner"], &["rule:metal_reads", "rule:metal_changes", "role:metal_runner"]).await;
    check_policy(files, &["metal_runner", "metal_servicer"], &["metal_"]).await;
}
