//! Stand-ins for metal-operator, metal-maintenance-operator and boot-operator, by version family.
//! They run against a real API server and real BMC clients.
//!
//! The stand-ins share no code with the operators. Their behaviour was derived from the sources
//! and compared with the real programs; tests/README.md lists the versions. A stand-in receives
//! the same events as the real controller, so it misses the same changes.

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

/// Returns the number of network boots of a server, by name.
pub type NetworkBoots = Arc<dyn Fn(&str) -> usize + Send + Sync>;

/// Operator options.
#[derive(Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is an independent switch")]
pub struct Options {
    /// Interval between periodic reconciles. Two minutes in production.
    pub resync: Duration,
    /// Poll interval while waiting for a power state.
    pub power_polling: Duration,
    /// Limit of that wait, after which the reconcile fails and is retried.
    pub power_timeout: Duration,
    /// True to power a new running server off first, as with `--enforce-first-boot`.
    pub enforce_first_boot: bool,
    /// True to force a failed shutdown, as with `--enforce-power-off`. Never during parking.
    pub enforce_power_off: bool,
    /// Namespace of the discovery boot configurations.
    pub namespace: String,
    /// True to run the separate maintenance operator with its own group.
    pub maintenance_operator: bool,
    /// While closed, the boot operator ignores boot configurations, so a stale `Ready` stays.
    pub boot: Gate,
    /// While closed, no server completes discovery.
    pub discovery: Gate,
    /// While closed, the maintenance controller does nothing.
    pub maintenance: Gate,
    /// Race of two requests that both read the server as free. The loser also reports
    /// `InMaintenance`, until its controller reconciles again (v0.6 and later) or permanently.
    pub both_in_maintenance: bool,
    /// Source from which the boot operator detects a fetched script and ignition.
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

/// Context of every controller.
pub struct Context {
    pub cluster: Cluster,
    pub family: Family,
    pub options: Options,
    pub http: reqwest::Client,
    recorder: Recorder,
    /// Number of network boots at the time a boot configuration first became ready.
    boots: Mutex<HashMap<Key, usize>>,
}

impl Context {
    /// Returns the number of network boots before a boot configuration was ready, initially `now`.
    fn boots_before(&self, configuration: &Key, now: usize) -> usize {
        *self.boots.lock().unwrap().entry(configuration.clone()).or_insert(now)
    }

    /// Returns true if an object's annotation excludes it from reconciles.
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
        // As in the real operators, a failed event is ignored.
        let _ = self.recorder.publish(&event, &server.object_ref(&Kind::Server.resource())).await;
    }
}

/// A family's running operators. They stop on drop.
pub struct Operators {
    tasks: Vec<JoinHandle<()>>,
    pub context: Arc<Context>,
}

impl Operators {
    /// Starts the controllers. The CRDs must exist ([`crds::install`]).
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

    /// Aborts the controllers mid-work, as in a crash.
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

/// Creates a controller for a kind, without further watches.
fn controller(context: &Context, kind: Kind) -> Controller<Object> {
    Controller::new_with(context.cluster.all(kind), watcher::Config::default(), kind.resource())
}
