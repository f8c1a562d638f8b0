//! What the guide says: its example works, and its policy file is one that Ironic reads.

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

#[tokio::test]
async fn the_policy_file_of_the_ironic_guide_allows_what_is_called_and_nothing_else() {
    let guide = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides/ironic.md")).unwrap();
    let policy = guide.split("```yaml\n").nth(1).unwrap().split_once("```").unwrap().0;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    fs::write(&file, policy).unwrap();
    let script = r#"
import sys
from oslo_config import cfg
from ironic.common import policy
cfg.CONF([], project="ironic")
from oslo_policy import opts
opts.set_defaults(cfg.CONF)
cfg.CONF.set_override("enforce_new_defaults", True, group="oslo_policy")
policy.init_enforcer(policy_file=sys.argv[1])
runner = {"roles": ["metal_runner"], "project_id": "p", "user_id": "u"}
other = {"roles": ["member"], "project_id": "p", "user_id": "u"}
target = {"node.owner": "q", "node.lessee": None}
import yaml
rules = yaml.safe_load(open(sys.argv[1]))
needed = [name for name, check in rules.items() if name.startswith("baremetal:") and ("metal_" in check)]
for rule in policy.list_policies():
    def may(who):
        return policy.check(rule.name, target, who)
    if rule.name in needed:
        assert may(runner), f"{rule.name} is denied to the role"
        assert not may(other) or rule.name == "baremetal:node:list", f"{rule.name} is allowed to others"
    elif rule.name.startswith(("baremetal:node:", "baremetal:port:", "baremetal:chassis:")):
        assert not may(runner) or rule.check_str == "", f"{rule.name} is allowed and not needed"
print(len(needed))
"#;
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/ironic/bin/python");
    let output = tokio::process::Command::new(python).args(["-c", script]).arg(&file).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
