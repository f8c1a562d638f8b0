//! Files that other users can change, and secrets that a file can reference.
#![cfg(unix)]

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
};

use crate::support::{
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

const SENTINEL: &str = "sentinel-5c1f-of-another-service";

for_one_host! {
    async fn an_inventory_sends_no_other_secret_anywhere(host) {
        let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(host));
        workspace.set("AWS_SECRET_ACCESS_KEY", SENTINEL);
        fleet.configure(&workspace, &maintenance("node1", "m", ""));
        let inventory = fs::read_to_string(workspace.folder().join("servers.yaml")).unwrap();
        let secret = workspace.root().join("other-secret");
        fs::write(&secret, SENTINEL).unwrap();
        let elsewhere = format!("password_file: {}", secret.display());
        for (names, says) in [
            ("password_env: AWS_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY does not begin with METAL_"),
            (elsewhere.as_str(), "is not in"),
        ] {
            workspace.write("servers.yaml", &format!("{inventory}  {names}\n"));
            let refused = workspace.apply().await.failed();
            refused.says(says).says("inventory_password_").is_silent_about(SENTINEL);
            assert!(fleet.simulator.journal(&bmc_simulator::JournalQuery::default()).is_empty(), "{names}: a BMC received a request");
        }
        // An explicitly allowed variable works, but only at its place.
        workspace.set("METAL_NODE1", "simulated-password");
        workspace.write("servers.yaml", &format!("{inventory}  password_env: METAL_NODE1\n"));
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn what_others_may_change_is_not_believed(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", ""));
        workspace.apply().await.succeeded();
        let store = workspace.state_home().join("terraform-provider-metal/coordination.sqlite");
        for (file, mode, usual) in [
            (store.clone(), 0o666, 0o600),
            (store.clone(), 0o660, 0o600),
            (workspace.folder().join("bmc-ca.pem"), 0o666, 0o644),
            (workspace.folder().join("servers.yaml"), 0o662, 0o644),
        ] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let refused = workspace.run(&["plan", "-no-color", "-input=false"]).await.failed();
            refused.says("can be changed by").says("chmod go-w");
            fs::set_permissions(&file, Permissions::from_mode(usual)).unwrap();
        }
        workspace.plan().await.is_empty();
        // Users who share it must declare that, and get a warning.
        let url = format!("coordination_url = \"sqlite://{}?shared=true\"", store.display());
        fs::set_permissions(&store, Permissions::from_mode(0o666)).unwrap();
        fleet.configure_with(&workspace, &url, &maintenance("node1", "m", ""));
        workspace.try_plan().await.succeeded().says("can release or lock every server in it");
        fs::set_permissions(&store, Permissions::from_mode(0o600)).unwrap();
        fleet.configure(&workspace, &maintenance("node1", "m", ""));

        // A password readable by others works, with a warning.
        workspace.write("password", "simulated-password\n");
        let text = fs::read_to_string(workspace.folder().join("main.tf")).unwrap();
        let named = text.replace("password        = \"simulated-password\"", "password_file   = \"${path.module}/password\"");
        assert_ne!(named, text);
        fs::write(workspace.folder().join("main.tf"), named).unwrap();
        let file = workspace.folder().join("password");
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        workspace.try_plan().await.succeeded().says("Passwords can be read by others");
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        workspace.try_plan().await.succeeded().is_silent_about("Passwords can be read by others");
        workspace.destroy().await.succeeded();
    }
}
