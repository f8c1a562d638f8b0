//! The matrix of owner actions: each action on a held server, in each maintenance system, with a
//! plan, a dependent's apply, a destroy and a forced release.
//!
//! A test plays all actions of one system together, with one server per action. Ironic runs for
//! real; `tests/README.md` lists the recorded versions of the other systems' stand-ins.

mod ironic;
mod metal3;
mod metal_operator;

use std::{cell::RefCell, time::Instant};

use serde_json::Value;

use crate::support::{
    host::Host,
    run::Run,
    simulator::SOON,
    wait::eventually,
    workspace::{Plan, Workspace},
};

/// Time limit of a wait that is expected to fail. On a busy machine, successful waits need a part
/// of it.
const LIMIT: &str = "45s";

/// An action of a held server's owner, or of another team.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Delete,
    Undeploy,
    Rebuild,
    Power,
    Unpark,
    Unflag,
    Claim,
    Rename,
    Pause,
    NewBmcAddress,
}

const ALL: [Action; 10] = [
    Action::Delete,
    Action::Undeploy,
    Action::Rebuild,
    Action::Power,
    Action::Unpark,
    Action::Unflag,
    Action::Claim,
    Action::Rename,
    Action::Pause,
    Action::NewBmcAddress,
];

/// The maintenance's state after an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Nothing changes: the plan is empty, and a dependent runs.
    Held,
    /// Revoked. The plan replaces it, and a dependent runs under the replacement's lock.
    LockedAgain,
    /// Revoked. The replacement does not get the server for this reason, and no dependent runs.
    Refused(&'static str),
}

/// A server's state after its maintenance ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    On,
    Off,
    Deleted,
}

/// Expected reactions. Texts are fragments of messages about the server.
#[derive(Clone, Copy, Debug)]
struct Expected {
    fate: Fate,
    plan: &'static str,
    destroy: &'static str,
    release: &'static str,
    /// Why no release can end until the owner ends the action.
    blocked: Option<&'static str>,
    after: After,
}

/// A server that returns to its prior state without a message about the action.
const RESTORED: Expected = Expected {
    fate: Fate::Held,
    plan: "",
    destroy: "",
    release: "is in its prior state (On)",
    blocked: None,
    after: After::On,
};

/// A maintenance that an action revokes for the reason `why`, without a restore.
const fn revoked(fate: Fate, why: &'static str, after: After) -> Expected {
    Expected { fate, plan: why, destroy: why, release: why, blocked: None, after }
}

/// A maintenance system with servers, and the owner's access to it.
trait Site: Sized {
    /// Flags with which the command line reaches the system.
    const FLAGS: &'static [&'static str];

    /// Returns the reactions to an action, or why the system does not have it.
    fn expected(action: Action) -> Result<Expected, &'static str>;

    /// Starts the system with each cell's server, which is on.
    async fn start(cells: &[Cell]) -> Self;

    /// Returns the system's block of the provider's configuration.
    fn block(&self) -> String;

    /// Sets the command line's variables.
    fn reaches(&self, workspace: &mut Workspace);

    async fn act(&self, action: Action, server: &str);

    /// Ends a blocking action.
    async fn resume(&self, server: &str) {
        panic!("{server}: no action of this system blocks a release");
    }

    async fn after(&self, server: &str) -> After;

    /// Returns true if the system contains our request for the server.
    async fn is_marked(&self, server: &str) -> bool;
}

/// An action on its own server.
struct Cell {
    action: Action,
    server: String,
    expected: Expected,
}

impl Cell {
    fn name(&self) -> String {
        format!("{:?}", self.action).to_lowercase()
    }

    fn address(&self) -> String {
        format!("metal_server_maintenance.{}", self.name())
    }

    /// Limits the waits that are expected to end without success.
    fn timeouts(&self) -> String {
        match (self.expected.fate, self.expected.blocked) {
            (Fate::Refused(_), _) => format!("timeouts = {{ create = \"{LIMIT}\" }}"),
            (_, Some(_)) => format!("timeouts = {{ delete = \"{LIMIT}\" }}"),
            _ => String::new(),
        }
    }

    fn maintenance(&self, more: &str) -> String {
        let (name, server, timeouts) = (self.name(), &self.server, self.timeouts());
        format!(
            r#"
resource "metal_server_maintenance" "{name}" {{
  server       = "{server}"
  namespace    = "ops"
  name         = "{name}"
  policy       = "Enforced"
  server_power = "Off"
  {timeouts}
  {more}
}}
"#
        )
    }

    fn dependent(&self) -> String {
        let name = self.name();
        format!(
            r#"
resource "terraform_data" "{name}" {{
  depends_on = [metal_server_maintenance.{name}]
  provisioner "local-exec" {{
    command = "touch worked-{name}"
  }}
}}
"#
        )
    }
}

/// Returns a run's diagnostics and lines about a cell's server, without line breaks.
fn about(run: &Run, cell: &Cell) -> String {
    let address = cell.address();
    let names = |text: &str| text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == cell.server);
    let mut told = Vec::new();
    for line in run.stdout.lines().chain(run.stderr.lines()).chain(run.log.lines()) {
        let Ok(parsed) = serde_json::from_str::<Value>(line) else {
            told.extend(names(line).then(|| line.to_owned()));
            continue;
        };
        let diagnostic = &parsed["diagnostic"];
        let text =
            [&diagnostic["summary"], &diagnostic["detail"]].map(|part| part.as_str().unwrap_or_default()).join(": ");
        told.extend((diagnostic["address"] == *address || names(&text)).then_some(text));
    }
    told.join("\n").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cells<S: Site>() -> Vec<Cell> {
    let played = ALL.into_iter().filter_map(|action| S::expected(action).ok().map(|expected| (action, expected)));
    let numbered = played.zip(1..);
    numbered.map(|((action, expected), number)| Cell { action, server: format!("node{number}"), expected }).collect()
}

/// Servers under maintenance, after the owners' actions.
struct Play<S> {
    site: S,
    workspace: Workspace,
    cells: Vec<Cell>,
    /// Deviations of all cells, which fail the test together.
    problems: RefCell<Vec<String>>,
}

impl<S: Site> Play<S> {
    async fn start(host: Host, more: &str) -> Self {
        let cells = cells::<S>();
        let (site, mut workspace) = (S::start(&cells).await, Workspace::new(host));
        site.reaches(&mut workspace);
        let play = Self { site, workspace, cells, problems: RefCell::default() };
        play.configure(&play.cells.iter().map(|cell| cell.maintenance(more)).collect::<String>());
        play.workspace.apply().await.succeeded();
        for cell in &play.cells {
            play.site.act(cell.action, &cell.server).await;
        }
        play
    }

    fn configure(&self, body: &str) {
        let block = self.site.block();
        self.workspace.configure(&format!(
            r#"
provider "metal" {{
  graceful_shutdown_timeout = "4s"
  power_timeout             = "60s"
  {block}
}}
{body}
"#
        ));
    }

    /// Notes a deviation unless `right`.
    fn expects(&self, cell: &Cell, right: bool, what: &str, text: &str) {
        if !right {
            self.problems.borrow_mut().push(format!("{:?} on {}: {what}\n  {text}", cell.action, cell.server));
        }
    }

    /// Expects this sentence about the server in a run.
    fn reports(&self, cell: &Cell, run: &Run, sentence: &str) {
        let text = about(run, cell);
        let command = run.command.split_whitespace().skip(1).take(3).collect::<Vec<_>>().join(" ");
        self.expects(cell, text.contains(sentence), &format!("{command} lacks {sentence:?}"), &text);
    }

    /// Plans, and compares each cell's message and change. `revoked` is a revoked maintenance's
    /// change.
    async fn plans(&self, revoked: &[&str], next: &str) {
        let file = self.workspace.folder().join("planned");
        let out = format!("-out={}", file.display());
        let run = self.workspace.run(&["plan", "-input=false", "-json", &out]).await.succeeded();
        let json = self.workspace.json(&["show", "-json", &file.to_string_lossy()]).await;
        let plan = Plan { run, file, json };
        let changes = plan.changes();
        for cell in &self.cells {
            let change = changes.iter().find(|(address, _)| *address == cell.address());
            let change: Vec<&str> = change.iter().flat_map(|(_, actions)| actions).map(String::as_str).collect();
            let text = about(&plan.run, cell);
            self.reports(cell, &plan.run, cell.expected.plan);
            if cell.expected.fate == Fate::Held {
                self.expects(cell, change.is_empty(), &format!("the plan is {change:?}"), &text);
                self.expects(cell, !text.contains("revoked"), "the plan reports a revocation", &text);
            } else {
                self.expects(cell, change == revoked, &format!("the plan is {change:?}"), &text);
                self.reports(cell, &plan.run, next);
            }
        }
    }

    /// Expects each maintenance's state.
    async fn are(&self, states: impl Fn(&Fate) -> Option<&'static str>) {
        let shown = self.workspace.state().await;
        let resources = shown["values"]["root_module"]["resources"].as_array().cloned().unwrap_or_default();
        for cell in &self.cells {
            let Some(wanted) = states(&cell.expected.fate) else { continue };
            let found = resources.iter().find(|resource| resource["address"] == *cell.address());
            let state = found.map(|found| found["values"]["state"].clone()).unwrap_or_default();
            self.expects(cell, state == wanted, &format!("the state is {state}, not {wanted}"), "");
        }
    }

    async fn resume(&self) {
        for cell in self.cells.iter().filter(|cell| cell.expected.blocked.is_some()) {
            self.site.resume(&cell.server).await;
        }
    }

    async fn destroy(&self) -> Run {
        self.workspace.run(&["destroy", "-auto-approve", "-input=false", "-json"]).await
    }

    /// Removes all maintenances from the configuration, and compares every server's final state,
    /// without a lock or a request of ours.
    async fn ends(self) {
        self.resume().await;
        // A destroy would plan the deleted servers' maintenances again.
        self.configure("");
        let run = self.workspace.apply().await;
        self.problems.borrow_mut().extend((!run.status.success()).then(|| run.output.clone()));
        self.workspace.metal(&["queue"]).await.succeeded().is_silent_about("InMaintenance");
        let deadline = Instant::now() + SOON * 2;
        for cell in &self.cells {
            let (site, server, wanted) = (&self.site, &cell.server, (cell.expected.after, false));
            let (after, marked) = eventually("the server's final state", SOON * 4, async || {
                let seen = (site.after(server).await, site.is_marked(server).await);
                (seen == wanted || Instant::now() > deadline).then_some(seen)
            })
            .await;
            let right = (after, marked) == wanted;
            self.expects(cell, right, &format!("the server is {after:?} at the end (request of ours: {marked})"), "");
        }
        let problems = self.problems.take();
        assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
    }
}

/// A dependent runs under a lock only.
async fn runs_dependents<S: Site>(host: Host) {
    let play = Play::<S>::start(host, "").await;
    play.plans(&["delete", "create"], "The plan replaces the resource").await;
    let body = play.cells.iter().map(|cell| cell.maintenance("") + &cell.dependent()).collect::<String>();
    play.configure(&body);
    let run = play.workspace.run(&["apply", "-auto-approve", "-input=false", "-json"]).await;
    let refused = play.cells.iter().any(|cell| matches!(cell.expected.fate, Fate::Refused(_)));
    assert_eq!(run.status.success(), !refused, "{}", run.output);
    for cell in &play.cells {
        let worked = play.workspace.folder().join(format!("worked-{}", cell.name())).exists();
        if let Fate::Refused(why) = cell.expected.fate {
            play.reports(cell, &run, why);
            play.expects(cell, !worked, "the dependent ran on an unlocked server", "");
        } else {
            play.expects(cell, worked, "the dependent did not run", &about(&run, cell));
        }
    }
    play.are(|fate| (!matches!(fate, Fate::Refused(_))).then_some("InMaintenance")).await;
    play.ends().await;
}

/// A destroy ends every maintenance, after the owner ended a blocking action.
async fn destroys<S: Site>(host: Host) {
    let play = Play::<S>::start(host, "").await;
    let run = play.destroy().await;
    let blocked = play.cells.iter().any(|cell| cell.expected.blocked.is_some());
    assert_eq!(run.status.success(), !blocked, "{}", run.output);
    for cell in &play.cells {
        play.reports(cell, &run, cell.expected.blocked.unwrap_or(cell.expected.destroy));
        let stays = play.workspace.resource(&cell.address()).await.is_some();
        play.expects(cell, stays == cell.expected.blocked.is_some(), &format!("in the state: {stays}"), "");
    }
    play.ends().await;
}

/// A forced release ends every maintenance that no action blocks.
async fn releases<S: Site>(host: Host) {
    let play = Play::<S>::start(host, "").await;
    let release = async |cell: &Cell, limit: &str| {
        let id = format!("ops/{}", cell.name());
        let generation = play.workspace.generation(&id).await;
        let words =
            ["release", &id, "--force", "--generation", &generation, "--reason", "node needed", "--timeout", limit];
        play.workspace.metal(&[S::FLAGS, &words].concat()).await
    };
    for cell in &play.cells {
        if let Some(why) = cell.expected.blocked {
            let run = release(cell, LIMIT).await;
            play.reports(cell, &run, why);
            play.expects(cell, !run.status.success(), "the blocked release succeeded", &run.output);
            continue;
        }
        let run = release(cell, "5m").await;
        play.reports(cell, &run, cell.expected.release);
        let restored = cell.expected.fate == Fate::Held;
        play.expects(cell, run.status.success() == restored, "the release's exit code", &run.output);
    }
    play.ends().await;
}

/// With `on_end = "keep"`, apply ends a revoked maintenance and requests nothing.
async fn keeps<S: Site>(host: Host) {
    let play = Play::<S>::start(host, "on_end = \"keep\"").await;
    play.plans(&["update"], "does not lock a server").await;
    play.workspace.apply().await.succeeded();
    play.are(|fate| Some(if *fate == Fate::Held { "InMaintenance" } else { "Completed" })).await;
    play.workspace.plan().await.is_empty();
    play.ends().await;
}

/// Defines the tests of a [`Site`].
macro_rules! matrix {
    ($site:ty) => {
        for_one_host! {
            async fn a_dependent_runs_under_a_lock_only(host) {
                crate::owner_actions::runs_dependents::<$site>(host).await;
            }
        }
        for_one_host! {
            async fn every_destroy_ends(host) {
                crate::owner_actions::destroys::<$site>(host).await;
            }
        }
        for_one_host! {
            async fn every_forced_release_ends_or_is_blocked(host) {
                crate::owner_actions::releases::<$site>(host).await;
            }
        }
        for_one_host! {
            async fn a_revoked_maintenance_that_is_kept_ends(host) {
                crate::owner_actions::keeps::<$site>(host).await;
            }
        }
    };
}
use matrix;
