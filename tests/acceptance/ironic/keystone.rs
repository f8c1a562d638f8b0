//! A cloud: a real Keystone, `clouds.yaml`, and the repository's roles.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use reqwest::Method;
use serde_json::json;

use super::{
    HELD, configure_with, drive_is_filled, maintenance, rescue,
    services::{ADDRESS, service},
    simulated,
};
use crate::{
    servers::{
        ironic::{Ironic, Options},
        keystone::{Keystone, PASSWORD, PROJECT, REGION},
    },
    support::{images::Images, workspace::Workspace},
};

/// Policy for runs, from the repository.
const RUNNER: &str = include_str!("../../../roles/ironic.yaml");
/// Additional policy for services.
const SERVICES: &str = include_str!("../../../roles/ironic-services.yaml");

/// Accounts of the runs with their roles.
const ACCOUNTS: [(&str, &[&str]); 3] =
    [("ci", &["metal_runner"]), ("firmware", &["metal_runner", "metal_servicer"]), ("viewer", &["reader"])];

/// An Ironic with a `clouds.yaml` with a cloud per account.
struct Cloud {
    keystone: Arc<Keystone>,
    ironic: Ironic,
    clouds: String,
}

impl Cloud {
    /// Starts with one active node in the runs' project.
    async fn new() -> Self {
        let this = Self::without_nodes().await;
        this.ironic.active_node("n1").await;
        this.own_node().await;
        this
    }

    /// Moves `n1` to the runs' project.
    async fn own_node(&self) {
        let project = self.keystone.call(Method::GET, &format!("/projects?name={PROJECT}"), json!(null)).await;
        let owner = json!([{ "op": "add", "path": "/owner", "value": project["projects"][0]["id"] }]);
        self.ironic.call(Method::PATCH, "/v1/nodes/n1", Some(owner)).await;
    }

    async fn without_nodes() -> Self {
        let keystone = Arc::new(Keystone::start(Duration::from_hours(1)).await);
        for (account, roles) in ACCOUNTS {
            keystone.account(account, PROJECT, roles).await;
        }
        let options =
            Options { keystone: Some(Arc::clone(&keystone)), policies: &[RUNNER, SERVICES], ..Options::default() };
        let ironic = Ironic::start(options).await;
        let mut clouds = String::from("clouds:\n");
        let url = keystone.url();
        for (name, user, password) in
            ACCOUNTS.iter().map(|(name, _)| (*name, *name, PASSWORD)).chain([("wrong", "ci", "hunter2")])
        {
            writeln!(
                clouds,
                "  {name}: {{ region_name: {REGION}, auth: {{ auth_url: \"{url}\", username: {user}, password: \"{password}\", \
                 user_domain_name: Default, project_name: {PROJECT}, project_domain_name: Default }} }}"
            )
            .unwrap();
        }
        let credential = keystone.credential("ci").await;
        writeln!(
            clouds,
            "  credential: {{ region_name: {REGION}, auth_type: v3applicationcredential, auth: {{ auth_url: \"{url}\", \
             application_credential_id: {}, application_credential_secret: \"{}\" }} }}",
            credential.id, credential.secret
        )
        .unwrap();
        Self { keystone, ironic, clouds }
    }

    /// Writes `clouds.yaml` and a configuration that uses one of its clouds.
    fn configure(&self, workspace: &Workspace, cloud: &str, body: &str) {
        workspace.write("clouds.yaml", &self.clouds);
        let reach = format!("cloud = \"{cloud}\"\n    clouds_file = \"clouds.yaml\"");
        configure_with(&reach, workspace, body);
    }
}

for_one_host! {
    async fn a_node_of_a_cloud_is_held_and_released_by_password_and_by_credential(host) {
        let cloud = Cloud::new().await;
        for name in ["ci", "credential"] {
            let workspace = Workspace::new(host);
            cloud.configure(&workspace, name, &maintenance("server_power = \"Off\""));
            workspace.apply().await.succeeded();
            let held = workspace.resource(HELD).await.unwrap();
            assert_eq!((&held["state"], &held["power_state"]), (&"InMaintenance".into(), &"Off".into()), "{held}");
            let node = cloud.ironic.node("n1").await;
            assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(true), &json!("power off")));
            assert!(workspace.plan().await.changes().is_empty());
            workspace.destroy().await.succeeded();
            let node = cloud.ironic.node("n1").await;
            assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(false), &json!("power on")));
            for (path, content) in workspace.everything_written() {
                let text = String::from_utf8_lossy(&content);
                let told = text.contains(PASSWORD) && !path.ends_with("clouds.yaml");
                assert!(!told, "the password is in {}", path.display());
            }
        }
    }
}

for_one_host! {
    async fn the_role_of_the_guide_is_enough_to_boot_an_image_and_to_restore(host) {
        let cloud = Cloud::without_nodes().await;
        let (simulator, system) = simulated(&cloud.ironic).await;
        cloud.own_node().await;
        let images = Images::start().await;
        let workspace = Workspace::new(host);
        let body = rescue(&images.url("rescue.iso"));
        // A reader can see the drives and not fill them.
        cloud.configure(&workspace, "viewer", &body);
        workspace.apply().await.failed().says("baremetal:node:").says("lists the policy rules");
        assert!(!drive_is_filled(&cloud.ironic).await);
        cloud.configure(&workspace, "ci", &body);
        workspace.apply().await.succeeded();
        assert!(drive_is_filled(&cloud.ironic).await);
        let boots = simulator.boots(&system).unwrap();
        assert!(format!("{:?}", boots.last()).contains("/cdrom-"), "{boots:?}");
        workspace.destroy().await.succeeded();
        assert!(!drive_is_filled(&cloud.ironic).await);
        let node = cloud.ironic.node("n1").await;
        assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(false), &json!("power on")));
    }
}

for_one_host! {
    async fn an_account_without_the_right_or_with_a_wrong_password_is_told(host) {
        let cloud = Cloud::new().await;
        let workspace = Workspace::new(host);
        cloud.configure(&workspace, "wrong", &maintenance(""));
        let words = "the credentials were refused (";
        workspace.try_plan().await.succeeded().says(words).is_silent_about("hunter2");
        workspace.apply().await.failed().says(words).is_silent_about("hunter2");
        // A reader can read the node, and the error names the missing permission.
        cloud.configure(&workspace, "viewer", &maintenance(""));
        workspace.apply().await.failed().says("baremetal:node:").says("lists the policy rules");
        assert!(workspace.resource(HELD).await.is_none(), "the state contains the rejected maintenance");
        assert_eq!(cloud.ironic.node("n1").await["maintenance"], json!(false));
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
        // Disabling the account during a hold causes an error; re-enabled, it can release the
        // node.
        cloud.configure(&workspace, "ci", &maintenance(""));
        workspace.apply().await.succeeded();
        cloud.keystone.enable("ci", false).await;
        workspace.destroy().await.failed().says("requires authentication");
        assert_eq!(cloud.ironic.node("n1").await["maintenance"], json!(true));
        cloud.keystone.enable("ci", true).await;
        workspace.destroy().await.succeeded();
        assert_eq!(cloud.ironic.node("n1").await["maintenance"], json!(false));
    }
}

for_one_host! {
    async fn services_need_the_role_of_their_own_policy_file(host) {
        let cloud = Cloud::new().await;
        let step = json!({ "interface": "vendor", "step": "log_passthrough", "args": {}, "order": 1 });
        let book = json!({ "name": "CUSTOM_FW", "public": true, "steps": [step] });
        cloud.ironic.call(Method::POST, "/v1/runbooks", Some(book)).await;
        cloud.ironic.call(Method::PUT, "/v1/nodes/n1/traits/CUSTOM_FW", None).await;
        let workspace = Workspace::new(host);
        let (steps, book) = ("steps = [{ interface = \"vendor\", step = \"log_passthrough\" }]", "runbook = \"CUSTOM_FW\"");
        // The role for holds alone cannot start a service.
        cloud.configure(&workspace, "ci", &service(steps, ""));
        workspace.apply().await.failed().says("baremetal:node:set_provision_state").says("lists the policy rules");
        assert!(cloud.ironic.history("n1", "servicing_start").await.is_empty());
        for (number, what) in [steps, book].into_iter().enumerate() {
            cloud.configure(&workspace, "firmware", &service(what, ""));
            workspace.apply().await.succeeded();
            let made = workspace.resource(ADDRESS).await.unwrap();
            assert_eq!((&made["state"], &made["outcome"]), (&"Completed".into(), &"Proven".into()), "{made}");
            assert_eq!(cloud.ironic.history("n1", "servicing_start").await.len(), number + 1);
        }
        workspace.destroy().await.succeeded();
        // Holds work with the same account.
        cloud.configure(&workspace, "firmware", &maintenance(""));
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
    }
}
