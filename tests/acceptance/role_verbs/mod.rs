//! Plays each guide's tasks with its role, and again without each of the role's permissions.
//! Without one, a task must fail and name it, or the role marks the rule with `# optional: COST`.
//!
//! `ROLE_VERBS=TEXT` selects the permissions that contain this text.

mod clusters;
mod metal_operator;
mod store;

use std::path::{Path, PathBuf};

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::{
    each_request::provider::{Held, Provider},
    servers::{
        kubernetes::Kubernetes,
        roles::{Permission, Roles, judge},
    },
};

/// Type of a resource, and its configuration.
type Resource = (&'static str, Value);

const MAINTENANCE: &str = "metal_server_maintenance";

/// A user with a folder and access to a cluster. All its runs share a store.
struct User {
    name: String,
    kubeconfig: PathBuf,
    folder: tempfile::TempDir,
}

impl User {
    /// Creates a user with these roles, without one permission.
    async fn new(cluster: &Kubernetes, roles: &Roles, without: Option<&Permission>) -> Self {
        let name = format!("user-{}", uuid::Uuid::new_v4().simple());
        roles.give(cluster, &name, without).await;
        Self { kubeconfig: cluster.user(&name, &[]), name, folder: tempfile::tempdir().unwrap() }
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file and returns its path.
    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn url_of_file(&self) -> String {
        format!("sqlite://{}", self.folder().join("metal.db").display())
    }

    /// Starts the provider with these arguments in addition to the usual ones.
    async fn provider(&self, config: &Value) -> Provider {
        let mut all = json!({
            "coordination_url": self.url_of_file(), "owner": "ops",
            "graceful_shutdown_timeout": "4s", "power_timeout": "4s",
        });
        all.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
        Provider::configured(&all).await
    }

    /// Applies the resources in order. A new process then refreshes and destroys them in reverse.
    /// Returns the first errors.
    async fn plays(&self, config: &Value, resources: Vec<Resource>) -> Vec<String> {
        let provider = self.provider(config).await;
        let (made, errors) = applied(&provider, resources).await;
        provider.end().await;
        if !errors.is_empty() {
            return errors;
        }
        let provider = self.provider(config).await;
        let errors = destroyed(&provider, made).await;
        provider.end().await;
        errors
    }

    /// Runs a provider command with these variables. Returns its standard error if it fails.
    async fn command(&self, arguments: &[&str], variables: &[(&str, String)]) -> Vec<String> {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_terraform-provider-metal"));
        command.args(arguments).env_clear().env("HOME", self.folder()).kill_on_drop(true);
        command.env("METAL_COORDINATION_URL", self.url_of_file()).env("METAL_OWNER", "ops");
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let output = command.output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Vec::new() } else { vec![format!("{}: {text}", arguments.join(" "))] }
    }
}

/// Applies resources until the first error.
async fn applied(provider: &Provider, resources: Vec<Resource>) -> (Vec<Held>, Vec<String>) {
    let mut made = Vec::new();
    for (kind, config) in resources {
        let (held, errors) = provider.apply_as(kind, config).await;
        if !errors.is_empty() {
            return (made, errors);
        }
        made.push(held);
    }
    (made, Vec::new())
}

/// Refreshes and destroys resources in reverse until the first error.
async fn destroyed(provider: &Provider, made: Vec<Held>) -> Vec<String> {
    for held in made.into_iter().rev() {
        let (held, _) = provider.read(&held).await;
        let (_, errors) = provider.try_destroy(held).await;
        if !errors.is_empty() {
            return errors;
        }
    }
    Vec::new()
}

/// Returns a maintenance that powers a server off.
fn maintenance(server: &str, more: Value) -> Resource {
    let mut config = json!({
        "server": server, "namespace": "ops", "name": format!("bios-{server}"), "policy": "Enforced",
        "server_power": "Off", "timeouts": {"create": "2m", "delete": "2m"},
    });
    if let Value::Object(more) = more {
        config.as_object_mut().unwrap().extend(more);
    }
    (MAINTENANCE, config)
}

/// Plays `task` with the whole role and without each permission of `roles`, and panics with the
/// differences. `task` gets a number from 1 and returns its errors.
async fn each_permission_counts(
    roles: &Roles,
    at_once: usize,
    task: impl AsyncFn(usize, Option<&Permission>) -> Vec<String>,
) {
    let permissions = roles.permissions();
    let only = std::env::var("ROLE_VERBS").unwrap_or_default();
    let meant = permissions.keys().filter(|permission| permission.to_string().contains(&only)).cloned();
    let cells: Vec<_> = std::iter::once(None).chain(meant.map(Some)).enumerate().collect();
    let played = stream::iter(cells).map(async |(number, without)| {
        let began = std::time::Instant::now();
        let errors = task(number + 1, without.as_ref()).await;
        let name = without.as_ref().map_or_else(|| "nothing".to_owned(), Permission::to_string);
        println!(
            "without {name}: {} after {:.1?}: {errors:?}",
            if errors.is_empty() { "works" } else { "fails" },
            began.elapsed()
        );
        (without, errors)
    });
    let played: Vec<_> = played.buffer_unordered(at_once).collect().await;
    let wrong = judge(&permissions, &played);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_permission_without_effect_and_a_wrong_mark_are_found() {
    let text = "kind: Role\nmetadata: {name: a}\nrules:\n\
                - {apiGroups: [\"\"], resources: [secrets], verbs: [get, list]}\n\
                # optional: one more request\n\
                - {apiGroups: [x.y], resources: [hosts], verbs: [watch]}\n";
    let roles = Roles::of(text, None);
    let permissions = roles.permissions();
    let marks: Vec<bool> = permissions.values().copied().collect();
    assert_eq!(marks, [false, false, true]);
    let all: Vec<Permission> = permissions.keys().cloned().collect();
    let says = |verb: &str, kind: &str| vec![format!("the verb {verb:?} on {kind:?}")];
    let right = [
        (None, Vec::new()),
        (Some(all[0].clone()), says("get", "secrets")),
        (Some(all[1].clone()), says("list", "secrets")),
        (Some(all[2].clone()), Vec::new()),
    ];
    assert_eq!(judge(&permissions, &right), [""; 0]);
    for (at, errors) in
        [(0, says("get", "pods")), (1, Vec::new()), (2, says("get", "secrets")), (3, says("watch", "hosts"))]
    {
        let mut wrong = right.clone();
        wrong[at].1 = errors;
        assert_eq!(judge(&permissions, &wrong).len(), 1, "{at}");
    }
}
