//! A configuration folder and its host: one user's checkout, isolated from the rest of the
//! machine.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;
use tokio::{process::Command, time::timeout};

use super::{
    host::Host,
    plan_writes, provider,
    run::{Run, Running},
};

/// Default limit for one host run.
///
/// A call with an unknown outcome is observed for up to two minutes before a retry.
pub const RUN_LIMIT: Duration = Duration::from_mins(5);

/// Returns a configuration with one maintenance for each of the servers `node1`, `node2`, ...
pub fn maintenances(count: usize) -> String {
    format!(
        r#"
resource "metal_server_maintenance" "all" {{
  count     = {count}
  server    = "node${{count.index + 1}}"
  namespace = "ops"
  name      = "m${{count.index + 1}}"
  policy    = "Enforced"
}}
"#
    )
}

/// A user's home folder, with the default coordination store and the provider. Workspaces can
/// share a user.
#[derive(Debug)]
struct User {
    root: TempDir,
    workspaces: AtomicUsize,
    /// Cloned into each running host.
    running: Arc<()>,
    started: AtomicUsize,
}

impl Drop for User {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("KEEP_WORKSPACES").is_some() {
            self.root.disable_cleanup(true);
            eprintln!("kept: {}", self.root.path().display());
        }
    }
}

/// One configuration with its own state.
#[derive(Debug)]
pub struct Workspace {
    host: Host,
    user: Arc<User>,
    folder: PathBuf,
    environment: BTreeMap<String, String>,
    runs: AtomicUsize,
}

/// A finished plan.
#[derive(Debug)]
pub struct Plan {
    /// The run of `plan`.
    pub run: Run,
    /// File for [`Workspace::apply_saved`].
    pub file: PathBuf,
    /// Output of `show -json` for the plan.
    pub json: Value,
}

impl Plan {
    /// Returns the addresses and actions of all changed resources.
    pub fn changes(&self) -> Vec<(String, Vec<String>)> {
        let resources = self.json["resource_changes"].as_array();
        resources
            .into_iter()
            .flatten()
            .map(|change| {
                let actions = change["change"]["actions"].as_array().expect("actions");
                let actions = actions.iter().map(text).collect::<Vec<_>>();
                (text(&change["address"]), actions)
            })
            .filter(|(_, actions)| actions != &["no-op"] && actions != &["read"])
            .collect()
    }

    /// # Panics
    /// If the plan contains a change.
    #[track_caller]
    pub fn is_empty(&self) -> &Self {
        assert_eq!(self.changes(), [], "{}", self.run.output);
        self
    }

    /// # Panics
    /// Unless the plan replaces this resource and changes nothing else.
    #[track_caller]
    pub fn only_replaces(&self, address: &str) -> &Self {
        let replaced = (address.to_owned(), vec!["delete".to_owned(), "create".to_owned()]);
        assert_eq!(self.changes(), [replaced], "{}", self.run.output);
        self
    }

    /// Returns one resource's planned change: `before`, `after`, `after_unknown`, `actions`.
    #[track_caller]
    pub fn change(&self, address: &str) -> &Value {
        let resources = self.json["resource_changes"].as_array();
        let mut resources = resources.into_iter().flatten();
        let found = resources.find(|change| change["address"] == address);
        &found.unwrap_or_else(|| panic!("{address} is not in the plan"))["change"]
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl Workspace {
    /// Creates a workspace for a new user, with an empty configuration.
    pub fn new(host: Host) -> Self {
        let root = tempfile::Builder::new().prefix("metal-").tempdir();
        let root = root.expect("the temporary folder is writable");
        for folder in ["home", "plugins", "tmp"] {
            fs::create_dir(root.path().join(folder)).expect("just created");
        }
        let configuration = provider::development_override(&root.path().join("plugins"));
        fs::write(root.path().join("cli.tfrc"), configuration).expect("just created");
        let user = Arc::new(User {
            root,
            workspaces: AtomicUsize::new(0),
            running: Arc::new(()),
            started: AtomicUsize::new(0),
        });
        Self::of(host, user)
    }

    /// Creates a second checkout for the same user: new configuration and state, same home folder
    /// and default store.
    pub fn beside(&self) -> Self {
        let mut other = Self::of(self.host, Arc::clone(&self.user));
        other.environment.clone_from(&self.environment);
        other
    }

    /// Returns the same checkout with another host.
    pub fn on(&self, host: Host) -> Self {
        let number = self.user.workspaces.fetch_add(1, Ordering::Relaxed);
        Self {
            host,
            user: Arc::clone(&self.user),
            folder: self.folder.clone(),
            environment: self.environment.clone(),
            // Separate number range for plan and log files.
            runs: AtomicUsize::new(1000 * (number + 1)),
        }
    }

    fn of(host: Host, user: Arc<User>) -> Self {
        let number = user.workspaces.fetch_add(1, Ordering::Relaxed);
        let folder = user.root.path().join(format!("workspace-{number}"));
        fs::create_dir(&folder).expect("a new number");
        Self { host, user, folder, environment: BTreeMap::new(), runs: AtomicUsize::new(0) }
    }

    /// Returns the host that runs this workspace.
    pub fn host(&self) -> Host {
        self.host
    }

    /// Folder with the configuration and the state.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The user's folder, which contains everything written by the user's runs.
    pub fn root(&self) -> &Path {
        self.user.root.path()
    }

    /// Folder in which programs store the user's state (`XDG_STATE_HOME`).
    pub fn state_home(&self) -> PathBuf {
        self.root().join("home/.local/state")
    }

    /// Sets an environment variable for all later runs. Runs inherit only `PATH` from the test.
    pub fn set(&mut self, name: &str, value: impl Into<String>) -> &mut Self {
        self.environment.insert(name.to_owned(), value.into());
        self
    }

    /// Writes `main.tf`, starting with the provider's source address.
    pub fn configure(&self, configuration: &str) -> &Self {
        let text = provider::required_providers() + configuration;
        self.write("main.tf", &text)
    }

    /// Writes a file into the workspace folder.
    pub fn write(&self, name: &str, content: &str) -> &Self {
        fs::write(self.folder.join(name), content).expect("the workspace is writable");
        self
    }

    /// Starts the host with the given arguments.
    pub fn start(&self, arguments: &[&str]) -> Running {
        let mut command = Command::new(self.host.binary());
        command.args(arguments);
        self.launch(command)
    }

    /// Starts an apply of all resources.
    pub fn start_apply(&self) -> Running {
        self.start(&APPLY)
    }

    /// Starts a destroy of all resources.
    pub fn start_destroy(&self) -> Running {
        self.start(&DESTROY)
    }

    /// Runs the host to its exit, and asserts that a plan writes only leases into the embedded
    /// store.
    pub async fn run(&self, arguments: &[&str]) -> Run {
        if arguments.first() != Some(&"plan") {
            return self.start(arguments).wait(RUN_LIMIT).await;
        }
        let (before, started) = (plan_writes::content(&self.store()).await, self.user.started.load(Ordering::Relaxed));
        let alone = Arc::strong_count(&self.user.running) == 1;
        let run = self.start(arguments).wait(RUN_LIMIT).await;
        // Other runs of this user can write.
        if alone && self.user.started.load(Ordering::Relaxed) == started + 1 {
            plan_writes::are_only_leases(&before, &plan_writes::content(&self.store()).await, &run.command);
        }
        run
    }

    /// Path of the user's embedded coordination store.
    pub fn store(&self) -> PathBuf {
        self.state_home().join("terraform-provider-metal/coordination.sqlite")
    }

    /// Applies all resources.
    pub async fn apply(&self) -> Run {
        self.run(&APPLY).await
    }

    /// Destroys all resources.
    pub async fn destroy(&self) -> Run {
        self.run(&DESTROY).await
    }

    /// Refreshes all resources and writes the state.
    pub async fn refresh(&self) -> Run {
        let mut arguments = APPLY.to_vec();
        arguments.push("-refresh-only");
        self.run(&arguments).await
    }

    /// Imports one resource.
    pub async fn import(&self, address: &str, id: &str) -> Run {
        let options = ["import", "-input=false", "-no-color"];
        self.run(&[options.as_slice(), &[address, id]].concat()).await
    }

    /// Plans and asserts success.
    pub async fn plan(&self) -> Plan {
        let number = self.runs.load(Ordering::Relaxed);
        let file = self.folder.join(format!("plan-{number}"));
        let out = format!("-out={}", file.display());
        let run = self.run(&["plan", "-input=false", "-no-color", &out]).await.succeeded();
        let json = self.json(&["show", "-json", &file.to_string_lossy()]).await;
        Plan { run, file, json }
    }

    /// Plans and returns only the run, for plans that should fail.
    pub async fn try_plan(&self) -> Run {
        self.run(&["plan", "-input=false", "-no-color"]).await
    }

    /// Applies a saved plan.
    pub async fn apply_saved(&self, plan: &Plan) -> Run {
        let file = plan.file.to_string_lossy().into_owned();
        self.run(&["apply", "-input=false", "-no-color", &file]).await
    }

    /// Returns the state as the host's JSON.
    pub async fn state(&self) -> Value {
        self.json(&["show", "-json"]).await
    }

    /// Returns a root module resource's attributes, or `None` if the state lacks it.
    pub async fn resource(&self, address: &str) -> Option<Value> {
        let state = self.state().await;
        let resources = state["values"]["root_module"]["resources"].as_array()?;
        let found = resources.iter().find(|r| r["address"] == address)?;
        Some(found["values"].clone())
    }

    /// Returns the provider's entry of `providers schema -json`.
    pub async fn schema(&self) -> Value {
        let mut all = self.json(&["providers", "schema", "-json"]).await;
        all["provider_schemas"][provider::SOURCE].take()
    }

    /// Runs the host successfully and parses its stdout as JSON.
    pub async fn json(&self, arguments: &[&str]) -> Value {
        let run = self.run(arguments).await.succeeded();
        serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{}: {error}:\n{}", run.command, run.output))
    }

    /// Runs the provider's command line as this user.
    pub async fn metal(&self, arguments: &[&str]) -> Run {
        self.start_metal(arguments).wait(RUN_LIMIT).await
    }

    /// Returns a maintenance's current generation, as passed to `release`.
    pub async fn generation(&self, id: &str) -> String {
        let shown = self.metal(&["show", id, "--json"]).await.succeeded();
        let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
        shown["maintenance"]["generation"].to_string()
    }

    /// Starts the provider's command line as this user.
    pub fn start_metal(&self, arguments: &[&str]) -> Running {
        let mut command = Command::new(provider::binary());
        command.args(arguments);
        self.launch(command)
    }

    /// Starts another program as this user.
    pub fn start_program(&self, program: &str, arguments: &[&str]) -> Running {
        let mut command = Command::new(program);
        command.args(arguments);
        self.launch(command)
    }

    /// Returns every file written by this user's runs: states, plans, logs and the store.
    pub fn everything_written(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        let mut folders = vec![self.root().to_path_buf()];
        while let Some(folder) = folders.pop() {
            let entries = fs::read_dir(&folder).expect("below the user's folder");
            for path in entries.map(|entry| entry.expect("readable").path()) {
                let kind = fs::symlink_metadata(&path).map(|data| data.file_type());
                match kind {
                    Ok(kind) if kind.is_dir() => folders.push(path),
                    Ok(kind) if kind.is_file() => {
                        let content = fs::read(&path).unwrap_or_default();
                        found.push((path, content));
                    }
                    _ => {}
                }
            }
        }
        found
    }

    fn launch(&self, mut command: Command) -> Running {
        let log = self.prepare(&mut command);
        Running::start(command, log, Arc::clone(&self.user.running))
    }

    /// Runs the provider's command line and returns its status. The caller sets output and
    /// variables.
    pub async fn metal_status(&self, arguments: &[&str], change: impl FnOnce(&mut Command)) -> ExitStatus {
        let mut command = Command::new(provider::binary());
        command.args(arguments);
        self.prepare(&mut command);
        change(command.stdin(Stdio::null()).kill_on_drop(true));
        timeout(RUN_LIMIT, command.status()).await.expect("the command ends in time").expect("it starts")
    }

    /// Runs the host with an environment variable that does not have to be UTF-8.
    pub async fn run_with(&self, arguments: &[&str], name: &str, value: &OsStr) -> Run {
        let mut command = Command::new(self.host.binary());
        command.args(arguments);
        let log = self.prepare(&mut command);
        command.env(name, value);
        Running::start(command, log, Arc::clone(&self.user.running)).wait(RUN_LIMIT).await
    }

    /// Sets this user's folder and environment. Returns the log file.
    fn prepare(&self, command: &mut Command) -> PathBuf {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let log = self.folder.join(format!("log-{number}.txt"));
        let root = self.root();
        command
            .current_dir(&self.folder)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("LANG", "C.UTF-8")
            .env("HOME", root.join("home"))
            .env("XDG_STATE_HOME", self.state_home())
            .env("TMPDIR", root.join("tmp"))
            .env("TF_CLI_CONFIG_FILE", root.join("cli.tfrc"))
            .env("TF_IN_AUTOMATION", "1")
            .env("CHECKPOINT_DISABLE", "1")
            .env("TF_LOG", "INFO")
            .env("TF_LOG_PATH", &log)
            .env("RUST_BACKTRACE", "1")
            // Fewer garbage collections save a tenth of the host's time.
            .envs(std::env::var_os("GOGC").map(|rarely| ("GOGC", rarely)))
            // No CA certificate is configured for the simulators.
            .envs([("METAL_BMC_NETWORKS", "127.0.0.0/8"), ("METAL_BMC_INSECURE", "true")])
            .envs(&self.environment);
        self.user.started.fetch_add(1, Ordering::Relaxed);
        log
    }
}

const APPLY: [&str; 4] = ["apply", "-auto-approve", "-input=false", "-no-color"];
const DESTROY: [&str; 4] = ["destroy", "-auto-approve", "-input=false", "-no-color"];
