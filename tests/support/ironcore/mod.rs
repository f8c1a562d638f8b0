//! Stand-ins for the IronCore operators: their kinds and controllers that behave like those of
//! metal-operator, metal-maintenance-operator and boot-operator, by family of versions, against a
//! real API server and real BMCs.
//!
//! Nothing here is their code. What each does was read from their sources and compared with what
//! they do when they run; tests/README.md says with which
//! versions. Controllers get the same events as the real ones and nothing more: what a real one
//! sleeps through, a stand-in sleeps through.

pub mod api;
pub mod bmc;
mod boot;
mod claim;
pub mod crds;
pub mod family;
mod lent;
mod maintenance;
mod operation;
pub mod patience;
mod server;
mod server_states;
pub mod world;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::StreamExt as _;
use kube::{
    Client, Resource as _,
    runtime::{
        controller::{Action, Config, Controller},
        events::{Event, EventType, Recorder, Reporter},
        watcher,
    },
};
use tokio::task::JoinHandle;

use self::{
    api::{Cluster, Key, Kind, Object},
    bmc::Failure,
    family::{Family, MAINTENANCE, METAL},
};
use super::gate::Gate;

/// How often the server of a name has booted from the network.
pub type NetworkBoots = Arc<dyn Fn(&str) -> usize + Send + Sync>;

/// How the operators are set up.
#[derive(Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Options {
    /// How often a server is looked at without a reason. Two minutes where people run it.
    pub resync: Duration,
    /// How often a power state that is waited for is looked at.
    pub power_polling: Duration,
    /// How long it is waited for; a turn that did not see it fails and is taken again.
    pub power_timeout: Duration,
    /// Whether a server that is new and on is switched off first, as `--enforce-first-boot` does.
    pub enforce_first_boot: bool,
    /// Whether a shutdown that did not happen is followed by force, as `--enforce-power-off` does.
    /// Never while parking.
    pub enforce_power_off: bool,
    /// Where the boot configurations of discovery live.
    pub namespace: String,
    /// The maintenance operator beside this family: kind and controller of its group too.
    pub maintenance_operator: bool,
    /// While closed, the boot operator does not look at boot configurations: a stale `Ready` stays
    /// `Ready`.
    pub boot: Gate,
    /// While closed, no server gets through its discovery.
    pub discovery: Gate,
    /// While closed, the maintenance controller sleeps.
    pub maintenance: Gate,
    /// The race of two requests that both saw the server free: whoever loses says `InMaintenance`
    /// too, until its controller has another look at it (v0.6 and later) or for good.
    pub both_in_maintenance: bool,
    /// What lets the boot operator know that a machine has fetched its script and its ignition.
    pub network_boots: Option<NetworkBoots>,
}

impl fmt::Debug for Options {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Options").field("resync", &self.resync).finish_non_exhaustive()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            resync: Duration::from_secs(1),
            power_polling: Duration::from_millis(50),
            power_timeout: Duration::from_secs(10),
            enforce_first_boot: true,
            enforce_power_off: false,
            namespace: "default".to_owned(),
            maintenance_operator: false,
            boot: Gate::default(),
            discovery: Gate::default(),
            maintenance: Gate::default(),
            both_in_maintenance: false,
            network_boots: None,
        }
    }
}

/// What every controller gets.
pub struct Context {
    pub cluster: Cluster,
    pub family: Family,
    pub options: Options,
    pub http: reqwest::Client,
    recorder: Recorder,
    /// How many boots from the network there were when a boot configuration was first found ready.
    boots: Mutex<HashMap<Key, usize>>,
}

impl Context {
    /// The boots from the network before a boot configuration was ready; `now` counts when it is
    /// asked for the first time.
    fn boots_before(&self, configuration: &Key, now: usize) -> usize {
        *self.boots.lock().unwrap().entry(configuration.clone()).or_insert(now)
    }

    /// Whether an object asks the controllers to look away.
    pub fn ignored(&self, object: &Object) -> bool {
        let operation = object.metadata.annotations.as_ref().and_then(|all| all.get(family::OPERATION));
        let words = self.family.ignores();
        operation.is_some_and(|word| words.contains(&word.as_str()) || word == "ignore-propagated")
    }

    /// Publishes an event about a server.
    pub async fn event(&self, server: &Object, warning: bool, reason: &str, action: &str, note: String) {
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            note: Some(note),
            action: action.to_owned(),
            secondary: None,
        };
        // As in the real ones, an event that is lost changes nothing.
        let _ = self.recorder.publish(&event, &server.object_ref(&Kind::Server.resource())).await;
    }
}

/// The operators of a family, running. They stop when this is dropped.
pub struct Operators {
    tasks: Vec<JoinHandle<()>>,
    pub context: Arc<Context>,
}

impl Operators {
    /// Starts the controllers; the definitions must be there ([`crds::install`]).
    pub fn start(client: Client, family: Family, options: Options) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let http = reqwest::Client::builder()
            .user_agent("metal-operator")
            .no_proxy()
            .tls_danger_accept_invalid_certs(true)
            .timeout(Duration::from_secs(10))
            .build()
            .unwrap();
        let recorder = Recorder::new(client.clone(), Reporter { controller: "metal-operator".into(), instance: None });
        let (cluster, boots) = (Cluster { client }, Mutex::default());
        let context = Arc::new(Context { cluster, family, options, http, recorder, boots });
        let mut this = Self { tasks: Vec::new(), context };
        this.run(server::controller(&this.context), 5, server::reconcile);
        this.run(claim::controller(&this.context), 5, claim::reconcile);
        this.run(boot::controller(&this.context), 1, boot::reconcile);
        let mut groups: Vec<&str> = family.group().into_iter().collect();
        if this.context.options.maintenance_operator && !groups.contains(&MAINTENANCE) {
            groups.push(MAINTENANCE);
        }
        for group in groups {
            let controller = maintenance::controller(&this.context, group);
            if group == METAL {
                this.run(controller, 1, maintenance::reconcile_legacy);
            } else {
                this.run(controller, 1, maintenance::reconcile_new);
            }
        }
        this
    }

    fn run<R, F>(&mut self, controller: Controller<Object>, at_once: u16, reconcile: R)
    where
        R: Fn(Arc<Object>, Arc<Context>) -> F + Send + 'static,
        F: Future<Output = Result<Action, Failure>> + Send + 'static,
    {
        let context = Arc::clone(&self.context);
        let controller = controller.with_config(Config::default().concurrency(at_once));
        self.tasks.push(tokio::spawn(async move {
            let again = |_: Arc<Object>, failure: &Failure, _: Arc<Context>| {
                if std::env::var_os("IRONCORE_LOG").is_some() {
                    eprintln!("controller: {failure}");
                }
                Action::requeue(Duration::from_millis(100))
            };
            let turns = controller.run(reconcile, again, context);
            turns.for_each(|_| std::future::ready(())).await;
        }));
    }

    /// Ends them; what they were about to do is left undone, as after a crash.
    pub fn stop(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
    }
}

impl Drop for Operators {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A controller of a kind, with nothing else to watch yet.
fn controller(context: &Context, kind: Kind) -> Controller<Object> {
    Controller::new_with(context.cluster.all(kind), watcher::Config::default(), kind.resource())
}
