//! A worker process: holds servers with a real engine and real BMC calls until it is killed or its
//! input ends.
//!
//! The supervisor sends orders on standard input, one line each; the worker answers on standard
//! output. A worker that was stopped and continued starts nothing without an order.

use std::{collections::BTreeMap, env, str::FromStr, sync::Arc, time::Duration};

use futures_util::future::join_all;
use secrecy::SecretString;
use terraform_provider_metal::{
    backend::redfish::{Authentication, MediaSettings, RedfishBackend, RedfishSettings, ServerSettings, Trust},
    clock::Clock,
    engine::{Control, Engine, EngineError, MaintenanceRequest, Nodes, Parts, ReconcileResult, Tuning},
    maintenance::{
        decide::Finish,
        ids::{MaintenanceId, Uid},
        lock::AskingState,
        machine::PowerTarget,
        power::Limits,
        spec::{BootMethod, BootSpec, MaintenanceKind, Spec, WaitFor},
        state::{Ending, Phase},
    },
    probe::{HttpProbe, ProbeSettings},
    settings::{open_store, runner},
    store::Store,
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, stdin},
    sync::{
        mpsc::{UnboundedReceiver, unbounded_channel},
        watch,
    },
};
use tokio_util::sync::CancellationToken;

use crate::{hidden, support::bucket::environment, wall::Wall};

pub const URL: &str = "HAMMER_WORKER_URL";
pub const SERVERS: &str = "HAMMER_WORKER_SERVERS";
pub const PASSWORD: &str = "HAMMER_WORKER_PASSWORD";
pub const LEASE: &str = "HAMMER_WORKER_LEASE_MS";

/// Scope for all names of a run. The store can contain earlier runs.
pub const RUN: &str = "HAMMER_WORKER_RUN";

/// File with the wall clock's error.
pub const WALL: &str = "HAMMER_WORKER_WALL";

/// Text of the `ready` line from a process that cannot see others in `/proc`.
pub const HIDDEN: &str = "hidden";

/// Order to read everything in the store during other work.
pub const LOOK: &str = "look";

/// Start point of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// Joins the queue, prints the record's uid, then waits for the server. First attempts only.
    Ask,
    /// Acquires the server, or adopts an earlier attempt's record. No earlier attempt is alive.
    Hold,
    /// Resumes an earlier attempt's record. That attempt can still be alive.
    Resume,
    /// Releases the server. An earlier attempt already received this order.
    Release,
}

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Ask, Self::Hold, Self::Resume, Self::Release]
            .into_iter()
            .find(|from| format!("{from:?}") == text)
            .ok_or_else(|| text.to_owned())
    }
}

/// An order to work on one hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub number: u64,
    pub attempt: u64,
    pub server: String,
    pub from: From,
    /// Record uid, if known.
    pub uid: Option<Uid>,
    /// True to pose as a process on another machine, whose liveness cannot be checked.
    pub elsewhere: bool,
}

impl Order {
    pub fn text(&self) -> String {
        let Self { number, attempt, server, from, uid, elsewhere } = self;
        let uid = uid.as_ref().map_or("-", |uid| uid.raw());
        format!("{number} {attempt} {server} {from:?} {uid} {elsewhere}")
    }

    fn of(text: &str) -> Self {
        let words: Vec<&str> = text.split(' ').collect();
        Self {
            number: words[0].parse().unwrap(),
            attempt: words[1].parse().unwrap(),
            server: words[2].to_owned(),
            from: words[3].parse().unwrap(),
            uid: Some(words[4]).filter(|uid| *uid != "-").map(Uid::new),
            elsewhere: words[5].parse().unwrap(),
        }
    }

    pub fn hold(&self) -> String {
        format!("hold-{}", self.number)
    }

    /// BMC account of this attempt.
    pub fn account(&self) -> String {
        format!("{}.{}", self.hold(), self.attempt)
    }

    /// Rotates between changing power and boot, power alone, and boot alone.
    fn spec(&self) -> Spec {
        let boot = BootSpec {
            ignition: None,
            method: BootMethod::Pxe,
            image: None,
            image_sha256: None,
            once: false,
            boot_mode: None,
            ready_when: None,
        };
        let (server_power, boot) = match self.number % 4 {
            1 => (Some(PowerTarget::Off), None),
            3 => (None, Some(boot)),
            _ => (Some(PowerTarget::On), Some(boot)),
        };
        Spec { server_power, boot, ..Spec::new(MaintenanceKind::Maintenance, &self.server) }
    }
}

/// State shared by all engines of a process.
struct Worker {
    url: String,
    run: String,
    servers: BTreeMap<String, url::Url>,
    password: String,
    lease: Duration,
    clock: Arc<dyn Clock>,
    probe: Arc<HttpProbe>,
    told: UnboundedReceiver<String>,
    /// Store of the current order.
    store: watch::Sender<Option<Arc<dyn Store>>>,
}

/// Executes orders until standard input closes.
pub async fn work() {
    let Ok(url) = env::var(URL) else { return };
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    if let Ok(filter) = env::var("HAMMER_LOG") {
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    }
    let servers = env::var(SERVERS).unwrap();
    let (store, opened) = watch::channel(None);
    let mut worker = Worker {
        url,
        run: env::var(RUN).unwrap(),
        servers: servers
            .split_whitespace()
            .map(|pair| pair.split_once('=').unwrap())
            .map(|(name, endpoint)| (name.to_owned(), endpoint.parse().unwrap()))
            .collect(),
        password: env::var(PASSWORD).unwrap(),
        lease: Duration::from_millis(env::var(LEASE).unwrap().parse().unwrap()),
        clock: Arc::new(Wall::at(env::var(WALL).unwrap().as_ref())),
        probe: Arc::new(HttpProbe::new(&ProbeSettings::default()).unwrap()),
        told: hear(opened),
        store,
    };
    println!("<ready> {}", if hidden::sees_nothing() { HIDDEN } else { "" });
    while let Some(line) = worker.told.recv().await {
        let order = Order::of(&line);
        let said = match worker.engine(&order).await {
            Ok(engine) => {
                let said = Box::pin(worker.carry_out(&engine, &order))
                    .await
                    .unwrap_or_else(|error| format!("<failed> {error}"));
                worker.store.send_replace(None);
                engine.close().await;
                said
            }
            Err(error) => format!("<failed> {error}"),
        };
        println!("{said}");
    }
}

/// Reads orders from standard input. `look` orders run concurrently with the current order.
fn hear(opened: watch::Receiver<Option<Arc<dyn Store>>>) -> UnboundedReceiver<String> {
    let (tell, told) = unbounded_channel();
    tokio::spawn(async move {
        let mut lines = BufReader::new(stdin()).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if line == LOOK {
                tokio::spawn(look(opened.clone()));
            } else if tell.send(line).is_err() {
                return;
            }
        }
    });
    told
}

/// Reads every lock through the cache that later reads are compared with.
async fn look(mut opened: watch::Receiver<Option<Arc<dyn Store>>>) {
    loop {
        let Ok(store) = opened.wait_for(Option::is_some).await.map(|store| store.clone()) else { return };
        let Some(store) = store else { continue };
        if let Ok(all) = store.view_all().await {
            let reads = all.iter().map(|view| store.view(&view.lock.key));
            if join_all(reads).await.iter().all(Result::is_ok) {
                println!("<looked>");
                return;
            }
        }
        tokio::task::yield_now().await;
    }
}

impl Worker {
    /// Builds an engine like `settings::build`, with shorter timeouts and one BMC account per
    /// attempt.
    async fn engine(&self, order: &Order) -> Result<Engine, String> {
        let account = order.account();
        let server = |(name, endpoint): (&String, &url::Url)| {
            let settings = ServerSettings {
                endpoint: endpoint.clone(),
                system_id: None,
                lock_key: None,
                media: MediaSettings::default(),
                labels: BTreeMap::new(),
                username: account.clone(),
                password: SecretString::from(self.password.clone()),
                trust: Trust::System,
            };
            (name.clone(), settings)
        };
        let settings = RedfishSettings {
            servers: self.servers.iter().filter(|(name, _)| **name == order.server).map(server).collect(),
            request_timeout: self.lease / 2,
            // Killed processes never close their sessions, and a BMC supports few.
            authentication: Authentication::Basic,
            read_timeout: self.lease / 2,
            ..RedfishSettings::default()
        };
        let env = environment();
        let (store, _) =
            open_store(Some(&self.url), &env, Arc::clone(&self.clock)).await.map_err(|error| error.to_string())?;
        self.store.send_replace(Some(Arc::clone(&store)));
        let mut runner = runner(&env, None);
        if order.elsewhere {
            runner.process = String::new();
        }
        Ok(Engine::new(Parts {
            store,
            backend: Arc::new(RedfishBackend::new(settings, &self.clock)?),
            probe: Arc::clone(&self.probe) as _,
            clock: Arc::clone(&self.clock),
            runner,
            owner: self.run.clone(),
            windows: BTreeMap::new(),
            always_perform: false,
            nodes: Nodes::default(),
            gates: Vec::new(),
            tuning: self.tuning(),
        }))
    }

    /// Simulated machines react within milliseconds, so longer waits mean failure.
    fn tuning(&self) -> Tuning {
        let limits = Limits {
            graceful_shutdown: Duration::from_secs(2),
            power_change: Duration::from_secs(2),
            boot_progress: Duration::from_secs(2),
            call: self.lease,
            settle: Duration::from_secs(2),
            attempts: 20,
            retry_pause: Duration::from_millis(200),
            media: Duration::from_secs(2),
            busy: Duration::from_secs(4),
            post: Duration::from_secs(4),
        };
        Tuning { lease: self.lease, limits, poll: Duration::from_millis(400), ..Tuning::default() }
    }

    /// Runs a hold and its release. Returns the final output line.
    async fn carry_out(&mut self, engine: &Engine, order: &Order) -> Result<String, EngineError> {
        let control = Control {
            stop: CancellationToken::new(),
            timeout: Duration::from_mins(5),
            release_timeout: Duration::from_mins(5),
        };
        let id = MaintenanceId::new(&self.run, &order.hold()).unwrap();
        let wish = |wait_for| MaintenanceRequest {
            id: id.clone(),
            spec: order.spec(),
            wait_for,
            asking: AskingState::default(),
        };
        let mut uid = order.uid.clone();
        if order.from == From::Ask {
            let asked = engine.hold(&wish(WaitFor::Enqueued), &control).await?;
            println!("<asked> {}", asked.record.uid);
            uid = Some(asked.record.uid);
        }
        let mut from = order.from;
        if from == From::Hold
            && let Some(held) = engine.held_by_name(&id).await?
        {
            // `hold` would start a new hold under the same name while the old record is releasing.
            match held.record.phase {
                _ if !held.active => return Ok(over(engine, &held.record.uid).await),
                Phase::Releasing { .. } => (from, uid) = (From::Resume, Some(held.record.uid)),
                _ => {}
            }
        }
        let wish = wish(WaitFor::InMaintenance);
        let driven = match (from, &uid) {
            (From::Release, _) => None,
            (From::Hold, _) => Some(engine.hold(&wish, &control).await?),
            (_, Some(uid)) => match engine.resume(uid, &wish, &control).await? {
                None => return Ok(over(engine, uid).await),
                driven => driven,
            },
            (_, None) => unreachable!("only a known record can be resumed"),
        };
        if let Some(ReconcileResult { record, finish, .. }) = driven {
            match finish {
                Finish::Reached => {}
                Finish::Over => return Ok(over(engine, &record.uid).await),
                other => return Ok(format!("<failed> {other:?}")),
            }
            println!("<held> {}", record.uid);
            uid = Some(record.uid);
            // The supervisor orders a replaced attempt to stop.
            match self.told.recv().await.as_deref() {
                Some("release") => {}
                _ => return Ok("<failed> replaced".to_owned()),
            }
        }
        let Some(uid) = uid else { unreachable!("a server that is held has a record") };
        let released = engine.release(&uid, &order.server, Ending::Completed, &control).await?;
        match released.map(|driven| driven.finish) {
            None | Some(Finish::Over) => Ok(over(engine, &uid).await),
            Some(other) => Ok(format!("<failed> {other:?}")),
        }
    }
}

/// Returns the final state of a record.
async fn over(engine: &Engine, uid: &Uid) -> String {
    match engine.held(uid).await {
        Ok(Some(held)) => match &held.record.phase {
            Phase::Completed { .. } => "<over> Completed".to_owned(),
            Phase::Failed { cause, .. } => format!("<over> Failed {cause}"),
            other => format!("<failed> still {}", other.name()),
        },
        Ok(None) => "<failed> record not found".to_owned(),
        Err(error) => format!("<failed> {error}"),
    }
}
