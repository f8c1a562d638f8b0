//! A server that a `ServerMaintenance` holds (metal-operator v0.7), and a parked server (the
//! metal-operator without `ServerMaintenance`). `tests/README.md` lists the recordings.

use std::sync::Mutex;

use bmc_simulator::PowerState;
use futures_util::future::join_all;
use serde_json::{Map, Value, json};

use super::{Action, After, Cell, Expected, Fate, RESTORED, Site, matrix, revoked};
use crate::{
    metal_operator::{
        cluster,
        strangers::{OTHERS, change, hand_to, ours, request, withdraw},
    },
    servers::{
        ironcore::{
            Options,
            api::{Key, Kind, text},
            family::{Family, OPERATION},
            world::World,
        },
        toxiproxy::Toxiproxy,
    },
    support::workspace::Workspace,
};

/// Namespace of the owners' claims, which have their servers' names.
const OWNERS: &str = "owners";

struct Servers {
    world: World,
    /// New BMC addresses.
    ways: Mutex<Vec<Toxiproxy>>,
}

impl Servers {
    /// Starts a cluster whose servers run for their owners, except one for a later claim.
    async fn start(family: Family, cells: &[Cell], unclaimed: Option<Action>) -> Self {
        let world = cluster(family, cells.len(), Options::default()).await;
        let claimed = cells.iter().filter(|cell| Some(cell.action) != unclaimed);
        join_all(claimed.map(|cell| world.claim(&cell.server, OWNERS, &cell.server))).await;
        Self { world, ways: Mutex::default() }
    }

    fn reaches(&self, workspace: &mut Workspace) {
        let kubeconfig = self.world.kubernetes.user("admin", &["system:masters"]).display().to_string();
        workspace.set("METAL_KUBECONFIG", kubeconfig);
    }

    async fn operates(&self, server: &str, operation: Value) {
        change(&self.world, server, json!({ "metadata": { "annotations": { OPERATION: operation } } })).await;
    }

    /// Actions that are the same in both families.
    async fn act(&self, action: Action, server: &str) {
        let (world, claim) = (&self.world, Key::within(OWNERS, server));
        let owner = async |spec: Value| {
            world.cluster.merge(Kind::Claim, &claim, json!({ "spec": spec })).await.unwrap();
        };
        match action {
            Action::Delete => world.cluster.delete(Kind::Server, &Key::cluster(server)).await.unwrap(),
            Action::Undeploy => {
                world.cluster.delete(Kind::Claim, &claim).await.unwrap();
                world.until_gone(Kind::Claim, &claim).await;
            }
            Action::Rebuild => owner(json!({ "image": "registry.example/os:2" })).await,
            Action::Power => owner(json!({ "power": "Off" })).await,
            Action::Pause => self.operates(server, json!("ignore")).await,
            Action::NewBmcAddress => {
                let bmc = Key::cluster(&world.simulator.bmc_of(server).unwrap());
                let found = world.object(Kind::Bmc, &bmc).await;
                let (ip, port) = (&found.data["spec"]["access"]["ip"], &found.data["spec"]["protocol"]["port"]);
                let way = Toxiproxy::to(&format!("{}:{port}", ip.as_str().unwrap()));
                let port: u16 = way.host().rsplit(':').next().unwrap().parse().unwrap();
                self.ways.lock().unwrap().push(way);
                let spec = json!({ "spec": { "protocol": { "port": port } } });
                world.cluster.merge(Kind::Bmc, &bmc, spec).await.unwrap();
            }
            Action::Unpark | Action::Unflag | Action::Claim | Action::Rename => unreachable!("{action:?}"),
        }
    }

    async fn after(&self, server: &str) -> After {
        let found = self.world.find(Kind::Server, &Key::cluster(server)).await;
        match (found, self.world.simulator.system(server).unwrap().power) {
            (None, _) => After::Deleted,
            (_, PowerState::On) => After::On,
            _ => After::Off,
        }
    }

    /// Returns our annotations on a server, each with the value null.
    async fn marks(&self, server: &str) -> Map<String, Value> {
        let found = self.world.find(Kind::Server, &Key::cluster(server)).await;
        let annotations = found.and_then(|server| server.metadata.annotations).unwrap_or_default();
        let ours = annotations.into_keys().filter(|key| key.starts_with("terraform-provider-metal/"));
        ours.map(|key| (key, Value::Null)).collect()
    }
}

/// Implements the methods of [`Site`] that are the same in both families.
macro_rules! servers {
    () => {
        const FLAGS: &'static [&'static str] = &["--metal-operator"];

        fn block(&self) -> String {
            let kubeconfig = self.0.world.kubernetes.user("ci", &["system:masters"]);
            format!("metal_operator = {{ kubeconfig = \"{}\", bmc_insecure = true }}", kubeconfig.display())
        }

        fn reaches(&self, workspace: &mut Workspace) {
            self.0.reaches(workspace);
        }

        async fn resume(&self, server: &str) {
            self.0.operates(server, Value::Null).await;
        }

        async fn after(&self, server: &str) -> After {
            self.0.after(server).await
        }
    };
}

struct Requests(Servers);

impl Site for Requests {
    servers!();

    fn expected(action: Action) -> Result<Expected, &'static str> {
        Ok(match action {
            // The operator delays the deletion until the release.
            Action::Delete => Expected { release: "has ended", after: After::Deleted, ..RESTORED },
            // Without its claim, the operator switches the server off after the release.
            Action::Undeploy | Action::Power => Expected { release: "has ended", after: After::Off, ..RESTORED },
            Action::Unflag => {
                Expected { release: "was not restored", ..revoked(Fate::LockedAgain, "revoked the server", After::On) }
            }
            Action::Claim => revoked(Fate::Refused("others/disk"), "others/disk", After::Off),
            Action::Pause => Expected { blocked: Some("restoring the power"), ..RESTORED },
            Action::Rebuild | Action::NewBmcAddress => RESTORED,
            Action::Unpark => return Err("a ServerMaintenance locks the server without parking it"),
            Action::Rename => return Err("a Server's name cannot change"),
        })
    }

    async fn start(cells: &[Cell]) -> Self {
        Self(Servers::start(Family::V0_7, cells, None).await)
    }

    async fn act(&self, action: Action, server: &str) {
        let world = &self.0.world;
        match action {
            Action::Unflag => withdraw(world, &Key::of(&ours(world, server).await.unwrap())).await,
            // Another request takes the server.
            Action::Claim => {
                let other = request(world, "disk", server, "Enforced", 9).await;
                hand_to(world, server, Some(&other)).await;
            }
            action => self.0.act(action, server).await,
        }
    }

    async fn is_marked(&self, server: &str) -> bool {
        // A waiting request keeps its queue position.
        ours(&self.0.world, server).await.is_some_and(|request| text(&request, "/status/state") != "Pending")
    }
}

matrix!(Requests);

struct Parking(Servers);

impl Site for Parking {
    servers!();

    fn expected(action: Action) -> Result<Expected, &'static str> {
        Ok(match action {
            Action::Delete => revoked(
                Fate::Refused("does not contain Server"),
                "the external request does not exist any more",
                After::Deleted,
            ),
            Action::Undeploy | Action::Power => Expected { release: "has ended", after: After::Off, ..RESTORED },
            Action::Unpark => revoked(Fate::LockedAgain, "our annotations are still on the Server", After::On),
            Action::Unflag => {
                let parked = "parked by an unnamed author";
                revoked(Fate::Refused(parked), parked, After::Off)
            }
            // The operator binds the claim after the release.
            Action::Claim => Expected { release: "has ended", ..RESTORED },
            Action::Pause => Expected { blocked: Some("the operation \"ignore\""), ..RESTORED },
            Action::Rebuild | Action::NewBmcAddress => RESTORED,
            Action::Rename => return Err("a Server's name cannot change"),
        })
    }

    async fn start(cells: &[Cell]) -> Self {
        Self(Servers::start(Family::Parked, cells, Some(Action::Claim)).await)
    }

    async fn act(&self, action: Action, server: &str) {
        let world = &self.0.world;
        match action {
            Action::Unpark => {
                self.0.operates(server, json!("unpark")).await;
                world.until_state(server, "Reserved").await;
            }
            Action::Unflag => {
                let marks = self.0.marks(server).await;
                change(world, server, json!({ "metadata": { "annotations": marks } })).await;
            }
            Action::Claim => world.request_claim(server, OTHERS, server).await,
            action => self.0.act(action, server).await,
        }
        if action == Action::Delete {
            world.until_gone(Kind::Server, &Key::cluster(server)).await;
        }
    }

    async fn is_marked(&self, server: &str) -> bool {
        !self.0.marks(server).await.is_empty()
    }
}

/// The same matrix for a parked server.
mod parked {
    use super::{Parking, matrix};

    matrix!(Parking);
}
