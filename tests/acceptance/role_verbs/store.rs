//! Roles of a coordination store in Kubernetes: of a runner, an approver and a reviewer, with the
//! admission policy.

use std::{path::Path, pin::pin};

use bmc_simulator::{SimulatorConfig, SystemConfig};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{Resource, User, applied, destroyed, each_permission_counts, maintenance};
use crate::{
    each_request::provider::redfish,
    servers::{kubernetes::Kubernetes, roles::Roles},
    support::{
        simulator::{Fleet, SOON},
        wait::eventually,
    },
};

/// Tasks in parallel.
const AT_ONCE: usize = 4;

/// Namespace of the roles.
const NAMESPACE: &str = "metal";

const FILE: &str = "kubernetes.yaml";

fn roles_of(name: &str) -> Roles {
    Roles::of_files(&[FILE], None).only(name)
}

/// Returns the shared API server with the whole file, and a store that a runner has opened.
async fn cluster() -> &'static Kubernetes {
    static READY: OnceCell<()> = OnceCell::const_new();
    let cluster = tokio::task::spawn_blocking(Kubernetes::shared).await.unwrap();
    READY
        .get_or_init(async || {
            let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("roles").join(FILE)).unwrap();
            tokio::task::block_in_place(|| cluster.apply(&text));
        })
        .await;
    cluster
}

fn url(user: &User) -> String {
    Kubernetes::store_of(NAMESPACE, &user.kubeconfig)
}

/// Returns a user's arguments for machines whose inventory is in this folder.
fn config(user: &User, fleet: &Fleet, folder: &Path) -> Value {
    json!({"coordination_url": url(user), "redfish": redfish(&fleet.simulator, folder)})
}

/// Returns variables with which a user's commands use the store.
fn variables(user: &User) -> [(&'static str, String); 1] {
    [("METAL_COORDINATION_URL", url(user))]
}

/// Name of the server that only this user's task uses. All tasks share a store.
fn server_of(user: &User) -> String {
    format!("server-of-{}", user.name)
}

async fn fleet_of(user: &User) -> Fleet {
    let systems = vec![SystemConfig::named(server_of(user))];
    Fleet::with(SimulatorConfig { systems, ..SimulatorConfig::default() }).await
}

/// Returns a maintenance for a user's server, and its id.
fn named(user: &User, name: &str, more: Value) -> (String, Resource) {
    let mut resource = maintenance(&server_of(user), more);
    let name = format!("{name}-{}", user.name);
    resource.1["name"] = json!(name);
    (format!("ops/{name}"), resource)
}

/// Waits until the store contains a maintenance. Returns the output of `request` if that ends
/// first.
async fn until_queued<T>(cluster: &Kubernetes, user: &User, id: &str, request: impl Future<Output = T>) -> Option<T> {
    let admin = [("METAL_COORDINATION_URL", Kubernetes::store_of(NAMESPACE, &cluster.kubeconfig()))];
    let seen = eventually("it is in the store", SOON * 2, async || {
        user.command(&["show", id], &admin).await.is_empty().then_some(())
    });
    tokio::select! {
        done = request => Some(done),
        () = seen => None,
    }
}

/// Processes from which on a reader lists the Leases, instead of one request for each.
const CROWD: usize = 9;

/// Runs `test` while [`CROWD`] processes request one server.
async fn crowded(cluster: &Kubernetes, runner: &User, test: impl Future<Output = ()>) {
    let fleet = fleet_of(runner).await;
    let config = config(runner, &fleet, runner.folder());
    let providers = join_all((0..CROWD).map(|_| runner.provider(&config))).await;
    let long = json!({"timeouts": {"create": "60m"}});
    let (ids, requests): (Vec<_>, Vec<_>) =
        (0..CROWD).map(|number| named(runner, &format!("crowd-{number}"), long.clone())).unzip();
    let requests = providers.iter().zip(requests).map(|(provider, request)| applied(provider, vec![request]));
    let mut waits = pin!(join_all(requests));
    for id in &ids {
        assert!(until_queued(cluster, runner, id, &mut waits).await.is_none(), "one process locks the server");
    }
    test.await;
}

/// Locks a server, starts a second maintenance that waits for it, and ends both.
async fn hands_over(cluster: &Kubernetes, user: &User) -> Vec<String> {
    let errors = commands(user, &[&["queue"]]).await;
    if !errors.is_empty() {
        return errors;
    }
    let fleet = fleet_of(user).await;
    let config = config(user, &fleet, user.folder());
    let (holder, waiter) = (user.provider(&config).await, user.provider(&config).await);
    let (_, first) = named(user, "first", json!({}));
    let (held, errors) = applied(&holder, vec![first]).await;
    if !errors.is_empty() {
        return errors;
    }
    let (id, second) = named(user, "second", json!({}));
    let mut waits = pin!(applied(&waiter, vec![second]));
    if let Some((_, errors)) = until_queued(cluster, user, &id, &mut waits).await {
        return errors;
    }
    let errors = destroyed(&holder, held).await;
    if !errors.is_empty() {
        return errors;
    }
    let (made, errors) = waits.await;
    if errors.is_empty() { destroyed(&waiter, made).await } else { errors }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_runner() {
    let (cluster, roles) = (cluster().await, roles_of("metal-runner"));
    let runner = User::new(cluster, &roles, None).await;
    let test = each_permission_counts(&roles, AT_ONCE, async |_, without| {
        let user = User::new(cluster, &roles, without).await;
        hands_over(cluster, &user).await
    });
    crowded(cluster, &runner, test).await;
}

/// Runs commands until the first error.
async fn commands(user: &User, all: &[&[&str]]) -> Vec<String> {
    for command in all {
        let errors = user.command(command, &variables(user)).await;
        if !errors.is_empty() {
            return errors;
        }
    }
    Vec::new()
}

/// Starts a runner's maintenance that waits for an approval, and plays a user's `task` with its id.
/// Ends the maintenance if the task starts it.
async fn beside_a_request(
    cluster: &Kubernetes,
    (runner, user): (&User, &User),
    task: impl AsyncFnOnce(&str, &Fleet) -> Vec<String>,
    starts: bool,
) -> Vec<String> {
    let fleet = fleet_of(user).await;
    let runs = runner.provider(&config(runner, &fleet, user.folder())).await;
    let claim = json!({"server": server_of(user), "namespace": "ops", "name": format!("claim-{}", user.name)});
    let (claims, errors) = applied(&runs, vec![("metal_server_claim", claim)]).await;
    assert_eq!(errors, [""; 0]);
    let (id, asks) = named(user, "asks", json!({"policy": "OwnerApproval", "timeouts": {"create": "60m"}}));
    let mut waits = pin!(applied(&runs, vec![asks]));
    assert!(until_queued(cluster, user, &id, &mut waits).await.is_none(), "it needs an approval");
    let errors = task(&id, &fleet).await;
    if errors.is_empty() && starts {
        let (made, errors) = waits.await;
        assert_eq!(errors, [""; 0]);
        assert_eq!(destroyed(&runs, [claims, made].concat()).await, [""; 0]);
    }
    errors
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_an_approver() {
    let (cluster, roles) = (cluster().await, roles_of("metal-approver"));
    let runner = User::new(cluster, &roles_of("metal-runner"), None).await;
    let test = each_permission_counts(&roles, AT_ONCE, async |_, without| {
        let user = User::new(cluster, &roles, without).await;
        let task = async |id: &str, fleet: &Fleet| {
            let errors =
                commands(&user, &[&["claims"], &["queue"], &["show", id], &["approve", id], &["withdraw", id]]).await;
            if !errors.is_empty() {
                return errors;
            }
            let provider = user.provider(&config(&user, fleet, user.folder())).await;
            let approval = ("metal_maintenance_approval", json!({"server": server_of(&user), "all": true}));
            let (approvals, errors) = applied(&provider, vec![approval]).await;
            if errors.is_empty() { destroyed(&provider, approvals).await } else { errors }
        };
        beside_a_request(cluster, (&runner, &user), task, true).await
    });
    crowded(cluster, &runner, test).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_reviewer() {
    let (cluster, roles) = (cluster().await, roles_of("metal-reviewer"));
    let runner = User::new(cluster, &roles_of("metal-runner"), None).await;
    let test = each_permission_counts(&roles, AT_ONCE, async |_, without| {
        let user = User::new(cluster, &roles, without).await;
        let task = async |id: &str, fleet: &Fleet| {
            let all: &[&[&str]] =
                &[&["claims"], &["queue"], &["show", id], &["history"], &["audit", "export"], &["store", "check"]];
            let errors = commands(&user, all).await;
            if !errors.is_empty() {
                return errors;
            }
            let provider = user.provider(&config(&user, fleet, user.folder())).await;
            let (kind, of) = named(&user, "planned", json!({})).1;
            let (errors, warnings) = provider.plan_as(kind, of).await;
            let missing = warnings.into_iter().filter(|warning| warning.contains("is not allowed"));
            errors.into_iter().chain(missing).collect()
        };
        beside_a_request(cluster, (&runner, &user), task, false).await
    });
    crowded(cluster, &runner, test).await;
}
