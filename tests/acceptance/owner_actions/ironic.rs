//! A node with our maintenance flag, in a real Ironic 39.0.0 with fake hardware.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use super::{Action, After, Cell, Expected, Fate, RESTORED, Site, matrix, revoked};
use crate::{
    servers::ironic::{Ironic, Options},
    support::workspace::Workspace,
};

struct Nodes {
    ironic: Ironic,
    /// Configured system UUIDs, which fake hardware does not report.
    lock_keys: String,
    /// UUIDs by name, because an owner can rename a node.
    uuids: Vec<(String, String)>,
}

impl Site for Nodes {
    const FLAGS: &'static [&'static str] = &["--backend", "ironic"];

    fn expected(action: Action) -> Result<Expected, &'static str> {
        Ok(match action {
            Action::Delete => Expected {
                destroy: "revoked the server",
                release: "was not restored",
                ..revoked(
                    Fate::Refused("Check its name, or create it first"),
                    "was deleted from Ironic",
                    After::Deleted,
                )
            },
            // The undeployment switched the node off.
            Action::Undeploy => revoked(Fate::LockedAgain, "the node's provision state is available", After::Off),
            Action::Power => Expected { plan: "its power is On, server_power is Off", ..RESTORED },
            Action::Unflag => revoked(Fate::LockedAgain, "the external request is", After::Off),
            Action::Claim => revoked(Fate::LockedAgain, "the node's owner is now team-db", After::Off),
            // Ironic rejects a rebuild in maintenance; a recorded UUID finds a renamed node; only
            // Ironic uses the BMC.
            Action::Rebuild | Action::Rename | Action::NewBmcAddress => RESTORED,
            Action::Unpark => return Err("Ironic does not park nodes"),
            Action::Pause => return Err("Ironic does not pause nodes"),
        })
    }

    async fn start(cells: &[Cell]) -> Self {
        let ironic = Ironic::start(Options::default()).await;
        join_all(cells.iter().map(|cell| ironic.active_node(&cell.server))).await;
        let mut uuids = Vec::new();
        for cell in cells {
            let uuid = ironic.node(&cell.server).await["uuid"].as_str().unwrap().to_owned();
            uuids.push((cell.server.clone(), uuid));
        }
        let keys = cells.iter().map(|cell| format!("{} = \"{}\"", cell.server, uuid::Uuid::new_v4()));
        let lock_keys = keys.collect::<Vec<_>>().join(", ");
        Self { ironic, lock_keys, uuids }
    }

    fn block(&self) -> String {
        let (url, keys) = (self.ironic.url(), &self.lock_keys);
        format!("ironic = {{\n  endpoint = \"{url}\"\n  soft_power_timeout = \"5s\"\n  lock_keys = {{ {keys} }}\n}}")
    }

    fn reaches(&self, workspace: &mut Workspace) {
        workspace.set("METAL_IRONIC_ENDPOINT", self.ironic.url());
    }

    async fn act(&self, action: Action, server: &str) {
        let node = format!("/v1/nodes/{server}");
        let provision = async |target: &str| {
            let target = Some(json!({ "target": target }));
            self.ironic.try_call(Method::PUT, &format!("{node}/states/provision"), target).await
        };
        let set = async |path: &str, value: &str| {
            let patch = json!([{ "op": "add", "path": path, "value": value }]);
            self.ironic.call(Method::PATCH, &node, Some(patch)).await;
        };
        match action {
            Action::Delete => {
                let (status, answer) = self.ironic.try_call(Method::DELETE, &node, None).await;
                assert_eq!(status, 204, "{answer}");
            }
            Action::Undeploy => {
                assert_eq!(provision("deleted").await.0, 202);
                let settled = |node: &Value| node["provision_state"] == "available" && node["reservation"].is_null();
                self.ironic.await_node(server, "the undeployment ended", settled).await;
            }
            Action::Rebuild => assert_eq!(provision("rebuild").await.0, 400),
            Action::Power => self.ironic.power(server, "power on").await,
            Action::Unflag => self.ironic.maintenance(server, None).await,
            Action::Claim => set("/owner", "team-db").await,
            Action::Rename => set("/name", "renamed").await,
            Action::NewBmcAddress => set("/driver_info/redfish_address", "https://192.0.2.1").await,
            Action::Unpark | Action::Pause => unreachable!("{action:?}"),
        }
    }

    async fn after(&self, server: &str) -> After {
        match self.node(server).await {
            None => After::Deleted,
            Some(node) if node["power_state"] == "power on" => After::On,
            Some(_) => After::Off,
        }
    }

    async fn is_marked(&self, server: &str) -> bool {
        self.node(server).await.is_some_and(|node| node["maintenance"] == true)
    }
}

impl Nodes {
    async fn node(&self, server: &str) -> Option<Value> {
        let (_, uuid) = self.uuids.iter().find(|(name, _)| name == server).unwrap();
        let (status, node) = self.ironic.try_call(Method::GET, &format!("/v1/nodes/{uuid}"), None).await;
        (status == 200).then_some(node)
    }
}

matrix!(Nodes);
