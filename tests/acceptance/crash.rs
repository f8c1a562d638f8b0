//! Kills host and provider at every request of a maintenance: nothing is lost or repeated.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use bmc_simulator::{Fault, HeldQuery, JournalQuery, Phase, PowerState, SimulatorConfig};

use crate::support::{
    host::Host,
    images::Images,
    simulator::{Fleet, SOON, maintenance},
    wait::eventually,
    workspace::Workspace,
};

/// Upper bound for a run's requests.
const MANY: usize = 60;
/// Number of parallel runs.
const AT_ONCE: usize = 4;

/// Requests of a walk: the method (`None` for any) and the distance between two kills.
type Steps = [(Option<&'static str>, usize)];
/// Each changing request. Kills after the last change, when only the record advances, are covered
/// by [`EACH`].
const CHANGES: [(Option<&str>, usize); 2] = [(Some("POST"), 1), (Some("PATCH"), 1)];
/// Every request (`EVERY_REQUEST=1`, for the soak test).
const EACH: [(Option<&str>, usize); 1] = [(None, 1)];

struct Walk {
    fleet: Fleet,
    used: AtomicUsize,
    images: Images,
    host: Host,
}

/// Command that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum During {
    Apply,
    Destroy,
}

impl Walk {
    async fn new(host: Host) -> Self {
        let fleet = Fleet::with(SimulatorConfig::with_systems(MANY)).await;
        Self { fleet, used: AtomicUsize::new(0), images: Images::start().await, host }
    }

    fn body(&self, node: &str) -> String {
        let more = format!(
            "server_power = \"On\"\n  boot_configuration = {{ method = \"virtual_media\", image = \"{}\" }}",
            self.images.url("rescue.iso")
        );
        maintenance(node, node, &more)
    }

    /// Kills a run for a new server at its `nth` request of this method. Returns false if there
    /// are fewer.
    async fn dies_at(&self, (method, nth): (Option<&str>, usize), during: During, phase: Phase) -> bool {
        let node = format!("node{}", self.used.fetch_add(1, Relaxed) + 1);
        let what = format!("{during:?} killed at {} {nth}, {phase:?}", method.unwrap_or("request"));
        let workspace = Workspace::new(self.host);
        self.fleet.configure(&workspace, &self.body(&node));
        let before = self.fleet.system(&node);
        if during == During::Destroy {
            workspace.apply().await.succeeded();
        }
        let plan = if during == During::Apply { Some(workspace.plan().await) } else { None };
        let skip = u64::try_from(nth).unwrap();
        let mut fault = Fault::hold(phase).on_system(&node).skip(skip).times(1);
        fault.method = method.map(str::to_owned);
        let fault = self.fleet.simulator.inject(fault);
        let run = match &plan {
            Some(plan) => workspace.start(&["apply", "-input=false", "-no-color", &plan.file.to_string_lossy()]),
            None => workspace.start(&["destroy", "-refresh=false", "-auto-approve", "-input=false", "-no-color"]),
        };
        let query = HeldQuery { system: Some(node.clone()), ..HeldQuery::default() };
        let held = eventually("a blocked request or the end of the run", SOON, async || {
            let held = self.fleet.simulator.held(&query).into_iter().next();
            if held.is_some() {
                return Some(held);
            }
            (!crate::support::process::is_alive(run.pid())).then_some(None)
        })
        .await;
        let Some(held) = held else {
            run.wait(SOON).await.succeeded();
            return false;
        };
        run.kill_everything();
        self.fleet.simulator.remove_fault(fault).unwrap();
        let _ = self.fleet.simulator.release(held.sequence);
        drop(run);
        if during == During::Apply {
            workspace.apply().await.succeeded();
            let boots = self.boots(&node);
            assert_eq!(boots.iter().filter(|boot| boot.contains("rescue.iso")).count(), 1, "{what}: {boots:?}");
            assert_eq!(self.applied(&node, "On"), 1, "{what}: {:?}", self.fleet.resets(&node));
            let offs = self.applied(&node, "GracefulShutdown") + self.applied(&node, "ForceOff");
            assert_eq!(offs, 1, "{what}: {:?}", self.fleet.resets(&node));
        }
        workspace.destroy().await.succeeded();
        self.fleet.until(&node, PowerState::On).await;
        let after = self.fleet.system(&node);
        assert_eq!((&after.boot, &after.media), (&before.boot, &before.media), "{what}");
        assert!(self.fleet.runs(&node).contains("Disk"), "{what}: {}", self.fleet.runs(&node));
        assert_eq!(self.applied(&node, "On"), 2, "{what}: {:?}", self.fleet.resets(&node));
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
        true
    }

    fn boots(&self, node: &str) -> Vec<String> {
        self.fleet.simulator.boots(node).unwrap().iter().map(|boot| format!("{:?}", boot.booted_from)).collect()
    }

    /// Counts the resets that took effect.
    fn applied(&self, node: &str, reset: &str) -> usize {
        let journal = self.fleet.simulator.journal(&JournalQuery::system(node));
        let resets = journal.iter().filter(|entry| entry.applied && entry.path.contains("ComputerSystem.Reset"));
        resets.filter(|entry| entry.body.as_ref().is_some_and(|body| body["ResetType"] == reset)).count()
    }

    /// Kills at each step from the first request to the last.
    async fn walk(&self, during: During, phase: Phase, steps: &Steps) {
        for (method, step) in steps {
            let mut walked = 0;
            loop {
                let batch = (0..AT_ONCE).map(|n| self.dies_at((*method, (walked + n) * step), during, phase));
                let died = futures_util::future::join_all(batch).await.into_iter().filter(|died| *died).count();
                walked += died;
                if died < AT_ONCE {
                    break;
                }
            }
            println!("{during:?}, {phase:?}: killed at {walked} of {method:?}, every {step}");
            let least = match method {
                None => 10 / step,
                Some("PATCH") if during == During::Destroy => 0,
                Some("PATCH") => 1,
                Some(_) => 3_usize.div_ceil(*step),
            };
            assert!(walked >= least, "only {walked} of {method:?} were walked");
        }
    }
}

fn steps() -> &'static Steps {
    if std::env::var_os("EVERY_REQUEST").is_some() { &EACH } else { &CHANGES }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_apply_killed_before_a_request_is_continued() {
    Walk::new(Host::OpenTofu).await.walk(During::Apply, Phase::Before, steps()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_apply_killed_after_a_request_is_continued() {
    Walk::new(Host::OpenTofu).await.walk(During::Apply, Phase::After, steps()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destroy_killed_after_a_request_is_continued() {
    Walk::new(Host::OpenTofu).await.walk(During::Destroy, Phase::After, steps()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terraform_continues_a_killed_apply_too() {
    Walk::new(Host::Terraform).await.walk(During::Apply, Phase::After, &[(Some("POST"), 2)]).await;
}

for_one_host! {
    async fn a_host_that_is_killed_alone_takes_its_provider_along(host) {
        let mut config = SimulatorConfig::with_systems(1);
        config.behaviour.graceful_shutdown = Duration::from_secs(2);
        let (fleet, workspace) = (Fleet::with(config).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\""));
        let run = workspace.start_apply();
        run.until_it_logs("GracefulShutdown", SOON).await;
        let providers = run.providers();
        run.kill_host();
        eventually("the provider exits", SOON, async || {
            providers.iter().all(|pid| !crate::support::process::is_alive(*pid)).then_some(())
        })
        .await;
        workspace.apply().await.succeeded();
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown"]);
        workspace.destroy().await.succeeded();
    }
}
