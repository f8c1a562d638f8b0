//! A detached BareMetalHost. The stand-in replays baremetal-operator v0.14.

use std::sync::Mutex;

use bmc_simulator::PowerState;
use serde_json::{Map, Value, json};

use super::{Action, After, Cell, Expected, Fate, RESTORED, Site, matrix, revoked};
use crate::{
    servers::{
        metal3::{
            operator::Options,
            world::{DETACHED, World},
        },
        toxiproxy::Toxiproxy,
    },
    support::workspace::Workspace,
};

const PAUSED: &str = "baremetalhost.metal3.io/paused";

struct Hosts {
    world: World,
    /// New BMC addresses.
    ways: Mutex<Vec<Toxiproxy>>,
}

impl Site for Hosts {
    const FLAGS: &'static [&'static str] = &["--backend", "metal3"];

    fn expected(action: Action) -> Result<Expected, &'static str> {
        let changed = "another author changed it";
        Ok(match action {
            // The operator delays the deletion until the release.
            Action::Delete => Expected {
                plan: "is being deleted: its operator deprovisions it and switches it off after the release",
                release: "has ended",
                after: After::Deleted,
                ..RESTORED
            },
            // The operator reads the new image after the release.
            Action::Undeploy | Action::Rebuild => Expected { destroy: changed, release: changed, ..RESTORED },
            // The owner wants the host off after the maintenance.
            Action::Power => Expected { release: "its power, which stays Off", after: After::Off, ..RESTORED },
            Action::Unflag => revoked(Fate::LockedAgain, "our annotations were removed", After::On),
            Action::Claim => {
                revoked(Fate::Refused("which another author detached"), "our annotations were removed", After::Off)
            }
            Action::Pause => Expected { blocked: Some("is still paused by another author"), ..RESTORED },
            Action::NewBmcAddress => RESTORED,
            Action::Unpark => return Err("a host is not parked; its owner attaches it again (Unflag)"),
            Action::Rename => return Err("a BareMetalHost's name cannot change"),
        })
    }

    async fn start(cells: &[Cell]) -> Self {
        Self { world: World::start(cells.len(), Options::default()).await, ways: Mutex::default() }
    }

    fn block(&self) -> String {
        let kubeconfig = self.world.kubernetes.user("ci", &["system:masters"]);
        format!("metal3 = {{ kubeconfig = \"{}\", namespace = \"{}\" }}", kubeconfig.display(), self.world.namespace)
    }

    fn reaches(&self, workspace: &mut Workspace) {
        let kubeconfig = self.world.kubernetes.user("admin", &["system:masters"]).display().to_string();
        workspace.set("METAL_KUBECONFIG", kubeconfig).set("METAL_KUBE_NAMESPACE", &self.world.namespace);
    }

    async fn act(&self, action: Action, server: &str) {
        let world = &self.world;
        let spec = async |spec: Value| world.merge("BareMetalHost", server, json!({ "spec": spec })).await;
        match action {
            Action::Delete => world.delete(server).await,
            Action::Undeploy => spec(json!({ "image": null })).await,
            Action::Rebuild => spec(json!({ "image": { "url": "https://images.example/next.raw" } })).await,
            Action::Power => spec(json!({ "online": false })).await,
            Action::Unflag => self.attach(server).await,
            Action::Claim => {
                self.attach(server).await;
                world.annotate(server, json!({ DETACHED: "disk swap by carol" })).await;
            }
            Action::Pause => world.annotate(server, json!({ PAUSED: "" })).await,
            Action::NewBmcAddress => {
                let host = world.simulator.url(server).unwrap().parse::<url::Url>().unwrap();
                let before = format!("{}:{}", host.host_str().unwrap(), host.port_or_known_default().unwrap());
                let way = Toxiproxy::to(&before);
                let address = world.address(server).replace(&before, &way.host());
                self.ways.lock().unwrap().push(way);
                spec(json!({ "bmc": { "address": address } })).await;
            }
            Action::Unpark | Action::Rename => unreachable!("{action:?}"),
        }
    }

    async fn resume(&self, server: &str) {
        self.world.annotate(server, json!({ PAUSED: null })).await;
    }

    async fn after(&self, server: &str) -> After {
        match (self.world.find(server).await, self.world.simulator.system(server).unwrap().power) {
            (None, _) => After::Deleted,
            (_, PowerState::On) => After::On,
            _ => After::Off,
        }
    }

    async fn is_marked(&self, server: &str) -> bool {
        let host = self.world.find(server).await;
        host.is_some_and(|host| host["metadata"]["annotations"].to_string().contains("terraform-provider-metal"))
    }
}

impl Hosts {
    /// Removes every annotation of a host.
    async fn attach(&self, server: &str) {
        let all = self.world.host(server).await["metadata"]["annotations"].clone();
        let none: Map<String, Value> = all.as_object().unwrap().keys().map(|key| (key.clone(), Value::Null)).collect();
        self.world.annotate(server, Value::Object(none)).await;
    }
}

matrix!(Hosts);
