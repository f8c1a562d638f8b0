//! Tests each verb in the guide's roles: a task fails without the verb, or the guide marks it as
//! optional and states its cost.

use std::{collections::BTreeSet, fs, path::Path};

use futures_util::StreamExt as _;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::{Api, PostParams};
use regex::Regex;
use serde_json::json;

use super::{cluster, maintenance};
use crate::{
    servers::{
        ironcore::{Options, family::Family, world::World},
        kubernetes::Kubernetes,
    },
    support::{host::Host, simulator::SOON, wait::eventually, workspace::Workspace},
};

/// How many tasks run together.
const AT_ONCE: usize = 3;

/// One verb on one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    group: String,
    kind: String,
    verb: String,
}

/// Reads a role from the guide: its rights, and those marked as optional.
fn role(name: &str) -> (BTreeSet<Right>, BTreeSet<(String, String)>) {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides/metal-operator.md");
    let guide = fs::read_to_string(guide).unwrap();
    let mut blocks = guide.split("```yaml\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    let text = blocks.find(|block| block.contains(&format!("  name: {name}\n"))).expect("the guide has the role");
    let words = |text: &str| text.split(',').map(|word| word.trim().trim_matches('"').to_owned()).collect::<Vec<_>>();
    let rule = Regex::new(r"apiGroups: \[(.*)\]\n\s+resources: \[(.*)\]\n\s+verbs: \[(.*)\]").unwrap();
    let mut rights = BTreeSet::new();
    for found in rule.captures_iter(text) {
        for group in words(&found[1]) {
            for kind in words(&found[2]).into_iter().filter(|kind| serves(&group, kind)) {
                let all = words(&found[3]).into_iter();
                rights.extend(all.map(|verb| Right { group: group.clone(), kind: kind.clone(), verb }));
            }
        }
    }
    let optional = Regex::new(r"# optional ([a-z, ]+) of ([a-z, ]+): .+").unwrap();
    let mut marked = BTreeSet::new();
    for found in optional.captures_iter(text) {
        for kind in words(&found[2]) {
            marked.extend(words(&found[1]).into_iter().map(|verb| (verb, kind.clone())));
        }
    }
    (rights, marked)
}

/// A rule lists groups and kinds; not every group has every kind.
fn serves(group: &str, kind: &str) -> bool {
    match group {
        "metal.ironcore.dev" => kind != "serverwirings",
        "maintenance.metal.ironcore.dev" => kind == "servermaintenances",
        "readiness.metal.ironcore.dev" => kind == "serverwirings",
        _ => true,
    }
}

/// Gives a user these rights, and waits until they count.
async fn give(world: &World, user: &str, rights: &[&Right]) -> String {
    let rules: Vec<_> =
        rights.iter().map(|it| json!({"apiGroups": [it.group], "resources": [it.kind], "verbs": [it.verb]})).collect();
    let api = "rbac.authorization.k8s.io";
    let role =
        json!({"apiVersion": format!("{api}/v1"), "kind": "ClusterRole", "metadata": {"name": user}, "rules": rules});
    let binding = json!({
        "apiVersion": format!("{api}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": user},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": user},
        "subjects": [{"kind": "User", "apiGroup": api, "name": user}],
    });
    world.kubernetes.apply(&format!("{role}\n---\n{binding}"));
    let kubeconfig = world.kubernetes.user(user, &[]);
    let reviews: Api<SelfSubjectAccessReview> = Api::all(Kubernetes::client(&kubeconfig).await);
    let last = rights.last().unwrap();
    let asked = ResourceAttributes {
        group: Some(last.group.clone()),
        resource: Some(last.kind.clone()),
        verb: Some(last.verb.clone()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(asked), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..Default::default() };
    eventually("the rights count", SOON, async || {
        let answer = reviews.create(&PostParams::default(), &review).await.ok()?;
        answer.status.is_some_and(|status| status.allowed).then_some(())
    })
    .await;
    kubeconfig.display().to_string()
}

/// A task from the guide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// On a claimed server: a maintenance with a boot, an operation, and a withdrawn request.
    Run,
    /// A parked server, driven over Redfish.
    Park,
    /// A claim with an ignition, and approvals on the claim and on a Node.
    Own,
    /// The same next to metal-maintenance-operator.
    OwnNextToIt,
}

impl Task {
    const fn family(self) -> Family {
        if matches!(self, Self::Park | Self::OwnNextToIt) { Family::Parked } else { Family::V0_7 }
    }

    /// Carries the task out on a server. The step that failed, if one did.
    async fn carry_out(self, world: &World, number: usize, kubeconfig: &str) -> Result<(), &'static str> {
        let node = format!("node{number}");
        let workspace = Workspace::new(Host::OpenTofu);
        workspace.write("it.ign", "{\"ignition\":{\"version\":\"3.3.0\"}}");
        let configure = |body: &str| {
            workspace.configure(&format!(
                "provider \"metal\" {{\n  power_timeout = \"4s\"\n  graceful_shutdown_timeout = \"4s\"\n  metal_operator = {{\n    \
                 kubeconfig = \"{kubeconfig}\"\n    bmc_insecure = true\n  }}\n}}\n{}",
                body.replace("node1", &node).replace("\"db\"", &format!("\"db{number}\""))
            ));
        };
        let limits = "timeouts = { create = \"20s\", delete = \"20s\" }";
        let step = async |name: &'static str, arguments: &[&str]| {
            let all = [arguments, &["-auto-approve", "-input=false", "-no-color"]].concat();
            if workspace.run(&all).await.status.success() { Ok(()) } else { Err(name) }
        };
        match self {
            Self::Run => {
                let ignition = "ignition = { file = \"${path.module}/it.ign\" }";
                let boot = format!(
                    "server_power = \"On\"\n  {limits}\n  boot_configuration = {{ method = \"boot_operator\", image = \
                     \"registry.example/bios:2\", {ignition} }}"
                );
                let hold = maintenance("Enforced", &boot);
                configure(&hold);
                step("hold", &["apply"]).await?;
                configure(&(hold + super::guide::RESCUE));
                step("boot", &["apply"]).await?;
                let undo = ["destroy", "-target=metal_server_boot_configuration.rescue"];
                step("boot again", &undo).await?;
                step("release", &["destroy"]).await?;
                configure(&format!(
                    "resource \"metal_server_operation\" \"now\" {{\n  server = \"node1\"\n  namespace = \"ops\"\n  name = \"now\"\n  \
                     policy = \"Enforced\"\n  operation = \"ForceRestart\"\n  {limits}\n}}\n"
                ));
                step("operation", &["apply"]).await?;
                configure(&maintenance("OwnerApproval", &limits.replace("20s", "5m")));
                let waiting = workspace.start_apply();
                waiting.until_it_logs_one_of_or_ends(&["approval on ServerClaim"], SOON).await;
                waiting.interrupt_from_terminal();
                waiting.wait(SOON).await;
                let marks = world.marks("owners", &format!("claim{number}")).await;
                if marks.is_empty() { Ok(()) } else { Err("withdraw") }
            }
            Self::Park => {
                configure(&maintenance("Enforced", &format!("server_power = \"On\"\n  {limits}")));
                step("park", &["apply"]).await?;
                step("unpark", &["destroy"]).await
            }
            Self::Own | Self::OwnNextToIt => {
                configure(super::guide::OWNED);
                step("own", &["apply"]).await?;
                configure(&super::guide::OWNED.replace("os:1", "os:2"));
                step("change", &["apply"]).await?;
                let on_claim = super::guide::OWNED.replace("  node       = \"worker-7\"\n", "");
                configure(&on_claim);
                step("approve", &["apply"]).await?;
                step("give up", &["destroy"]).await
            }
        }
    }
}

/// Carries a task out with a role, and once more without each candidate. Returns the candidates
/// that it does not need.
async fn unneeded(task: Task, rights: &BTreeSet<Right>, candidates: &BTreeSet<Right>) -> BTreeSet<Right> {
    let options = Options { maintenance_operator: task.family() == Family::Parked, ..Options::default() };
    let world = cluster(task.family(), candidates.len() + 1, options).await;
    world.kubernetes.apply("apiVersion: v1\nkind: Node\nmetadata: {name: worker-7}\n");
    let without: Vec<Option<&Right>> = std::iter::once(None).chain(candidates.iter().map(Some)).collect();
    let runs = without.into_iter().enumerate().map(|(at, left_out)| {
        let world = &world;
        async move {
            let number = at + 1;
            if task == Task::Run {
                world.claim(&format!("node{number}"), "owners", &format!("claim{number}")).await;
            }
            let given: Vec<&Right> = rights.iter().filter(|right| Some(*right) != left_out).collect();
            let kubeconfig = give(world, &format!("user-{task:?}-{number}").to_lowercase(), &given).await;
            let done = task.carry_out(world, number, &kubeconfig).await;
            println!("{task:?} without {left_out:?}: {done:?}");
            (left_out.cloned(), done)
        }
    });
    let done: Vec<_> = futures_util::stream::iter(runs).buffer_unordered(AT_ONCE).collect().await;
    let whole = done.iter().find(|(left_out, _)| left_out.is_none()).unwrap();
    assert_eq!(whole.1, Ok(()), "{task:?} with the whole role");
    done.into_iter().filter(|(_, done)| done.is_ok()).filter_map(|(left_out, _)| left_out).collect()
}

async fn every_verb_counts(name: &str, tasks: &[Task]) {
    let (rights, optional) = role(name);
    let mut unused = rights.clone();
    let is_optional = |right: &Right| optional.contains(&(right.verb.clone(), right.kind.clone()));
    for task in tasks {
        unused = unneeded(*task, &rights, &unused).await;
    }
    let unmarked: Vec<_> = unused.iter().filter(|right| !is_optional(right)).collect();
    assert!(unmarked.is_empty(), "no task of the guide needs {unmarked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verb_of_the_runner_is_needed_or_marked() {
    every_verb_counts("metal-maintenance", &[Task::Run, Task::Park]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verb_of_the_owner_is_needed_or_marked() {
    every_verb_counts("metal-owner", &[Task::Own, Task::OwnNextToIt]).await;
}
