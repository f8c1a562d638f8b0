//! What an older version left behind: servers that it holds, its state and its store. This version
//! refreshes them, plans nothing, changes a hold in place, and releases everything.
//!
//! Each folder below `previous` was written by one older program, and is never changed.
//! `RECORD=NAME PREVIOUS_PROGRAM=/path/to/program cargo test --test acceptance previous` writes the
//! folder of another one, with the name of this machine in it: give it one that may be read. So no
//! test has to build an old commit, which takes minutes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use bmc_simulator::{BootOverride, PowerState, SystemChange};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::support::{host::Host, simulator::Fleet, workspace::Workspace};

/// What the next folder is recorded with: what the last one was. Each folder keeps its own.
const HOLDS: &str = include_str!("previous/25cc96c/holds.tf");

const SERVERS: usize = 4;
const STORE: &str = "terraform-provider-metal/coordination.sqlite";
/// Python reads and writes SQLite as text.
const AS_TEXT: &str = "
import sqlite3, sys
store = sqlite3.connect(sys.argv[1])
number = store.execute('PRAGMA application_id').fetchone()[0]
print(f'PRAGMA application_id = {number};')
print('\\n'.join(store.iterdump()))
";
const FROM_TEXT: &str = "
import sqlite3, sys
store = sqlite3.connect(sys.argv[1])
store.execute('PRAGMA journal_mode = WAL')
store.executescript(sys.stdin.read())
store.close()
";

/// How a server was left.
#[derive(Serialize, Deserialize)]
struct Left {
    power: PowerState,
    boot: BootOverride,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/acceptance/previous")
}

/// The folder of each older version.
fn recorded() -> Vec<PathBuf> {
    let found: Vec<_> = fs::read_dir(folder()).unwrap().map(|found| found.unwrap().path()).collect();
    assert!(!found.is_empty());
    found
}

fn names() -> impl Iterator<Item = String> {
    (1..=SERVERS).map(|number| format!("node{number}"))
}

fn python(script: &str, store: &Path, input: &str) -> String {
    let written = tempfile::NamedTempFile::new().unwrap();
    fs::write(written.path(), input).unwrap();
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(store).stdin(fs::File::open(written.path()).unwrap());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The default owner has the name of the machine in it.
fn configure(fleet: &Fleet, workspace: &Workspace, holds: &str) {
    fleet.configure_with(workspace, "owner = \"team-storage\"", holds);
}

/// Another wish for a server that is held.
fn changed(holds: &str) -> String {
    holds.replace("BIOS 2.19", "BIOS 2.20")
}

fn plan_of(host: Host) -> &'static str {
    match host {
        Host::OpenTofu => "opentofu.plan",
        Host::Terraform => "terraform.plan",
    }
}

/// Lets the older program hold servers, and writes what it leaves.
async fn record(name: &str, program: &str) {
    let (fleet, workspace) = (Fleet::new(SERVERS).await, Workspace::new(Host::OpenTofu));
    let plugin = workspace.root().join("plugins/terraform-provider-metal");
    fs::remove_file(&plugin).unwrap();
    symlink(program, &plugin).unwrap();
    configure(&fleet, &workspace, HOLDS);
    workspace.apply().await.succeeded();
    workspace.plan().await.is_empty();
    let folder = folder().join(name);
    fs::create_dir_all(folder.parent().unwrap()).unwrap();
    fs::create_dir(&folder).expect("what an older version left is never written again");
    let left: BTreeMap<String, Left> = names()
        .map(|name| fleet.system(&name))
        .map(|system| (system.name, Left { power: system.power, boot: system.boot }))
        .collect();
    let state = fs::read_to_string(workspace.folder().join("terraform.tfstate")).unwrap();
    configure(&fleet, &workspace, &changed(HOLDS));
    for host in [Host::OpenTofu, Host::Terraform] {
        let plan = workspace.on(host).plan().await;
        fs::copy(plan.file, folder.join(plan_of(host))).unwrap();
    }
    let store = python(AS_TEXT, &workspace.state_home().join(STORE), "");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    // Its process shall be one of another machine, wherever this is read.
    let store = store.replace(boot.trim(), &uuid::Uuid::nil().to_string());
    for (file, text) in [
        ("holds.tf", HOLDS.to_owned()),
        ("state.json", state),
        ("store.sql", store),
        ("servers.json", format!("{:#}\n", serde_json::to_value(&left).unwrap())),
    ] {
        let account = fleet.simulator.credentials();
        assert!(!text.contains(secrecy::ExposeSecret::expose_secret(&account.password)), "{file}");
        fs::write(folder.join(file), text).unwrap();
    }
    workspace.destroy().await.succeeded();
}

/// Places what the older version left, as if its run had just ended.
fn place(folder: &Path, fleet: &Fleet, workspace: &Workspace) {
    let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap();
    configure(fleet, workspace, &read("holds.tf"));
    workspace.write("terraform.tfstate", &read("state.json"));
    let store = workspace.state_home().join(STORE);
    fs::create_dir_all(store.parent().unwrap()).unwrap();
    python(FROM_TEXT, &store, &read("store.sql"));
    let left: BTreeMap<String, Left> = serde_json::from_str(&read("servers.json")).unwrap();
    for (name, left) in left {
        let change = SystemChange { power: Some(left.power), boot: Some(left.boot), ..SystemChange::default() };
        fleet.simulator.change_system(&name, change).unwrap();
    }
}

/// What an older version looks at before it reads a record, and what it would have to know then.
#[derive(Debug, PartialEq)]
struct Gate {
    schema: i64,
    /// The greatest number of a form, of a lock or what lies beside it.
    format: u64,
    /// The fields of records, with the path to each.
    fields: BTreeSet<String>,
}

/// Fields that an older version may drop when it writes a record: which state manages a hold is
/// only unknown then, and the next apply of a newer version writes it again.
const DROPPED: [&str; 1] = ["/known_to"];

const ROWS: &str = "
import json, sqlite3, sys
store = sqlite3.connect(sys.argv[1])
schema = store.execute('SELECT max(version) FROM _sqlx_migrations').fetchone()[0]
locks = [value for row in store.execute('SELECT * FROM locks') for value in row]
bodies = [json.loads(row[0]) for row in store.execute('SELECT body FROM maintenances WHERE active = 1')]
print(json.dumps({'schema': schema, 'locks': locks, 'bodies': bodies}))
";

impl Gate {
    fn of(store: &Path) -> Self {
        let rows: Value = serde_json::from_str(&python(ROWS, store, "")).unwrap();
        let format = |value: &Value| {
            let text = value.as_str().unwrap_or_default();
            let value: Value = serde_json::from_str(text).unwrap_or_default();
            value["format"].as_u64().unwrap_or_default()
        };
        let mut fields = BTreeSet::new();
        for body in rows["bodies"].as_array().unwrap() {
            fields_of(body, "", &mut fields);
        }
        Self {
            schema: rows["schema"].as_i64().unwrap(),
            format: rows["locks"].as_array().unwrap().iter().map(format).max().unwrap(),
            fields,
        }
    }
}

fn fields_of(value: &Value, path: &str, fields: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let path = format!("{path}/{name}");
                fields_of(value, &path, fields);
                fields.insert(path);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| fields_of(value, path, fields)),
        _ => {}
    }
}

async fn goes_on(folder: &Path, host: Host) {
    let (fleet, workspace) = (Fleet::new(SERVERS).await, Workspace::new(host));
    let before: Vec<_> = names().map(|name| fleet.system(&name)).collect();
    place(folder, &fleet, &workspace);
    let store = workspace.state_home().join(STORE);
    let gate = Gate::of(&store);

    workspace.plan().await.is_empty();
    workspace.refresh().await.succeeded();
    workspace.plan().await.is_empty();
    let queue = workspace.metal(&["queue", "--json"]).await.succeeded();
    let queue: Value = serde_json::from_str(&queue.stdout).unwrap();
    let held = queue["queue"].as_array().unwrap().iter().map(|row| (&row["id"], &row["state"]));
    let held: Vec<String> = held.map(|(id, state)| format!("{id} {state}")).collect();
    assert_eq!(held.len(), 4, "{held:?}");

    // A change in place is written so that the older version still reads it.
    configure(&fleet, &workspace, &changed(&fs::read_to_string(folder.join("holds.tf")).unwrap()));
    workspace.apply().await.succeeded().says("1 changed");
    let now = Gate::of(&store);
    assert_eq!((now.schema, now.format), (gate.schema, gate.format), "an older version would be locked out");
    let new = now.fields.difference(&gate.fields).filter(|field| !DROPPED.iter().any(|path| field.starts_with(path)));
    let new: Vec<_> = new.collect();
    assert_eq!(new, [""; 0], "what becomes of a field that an older version drops? (`is_extended`)");
    for name in names() {
        assert_eq!(fleet.changes(&name), [""; 0], "{name}: an upgrade leaves the server alone");
    }

    workspace.destroy().await.succeeded();
    for was in before {
        let system = fleet.system(&was.name);
        assert_eq!((system.power, &system.boot), (was.power, &was.boot), "{} is restored", was.name);
    }
    let queue = workspace.metal(&["queue", "--json"]).await.succeeded();
    let queue: Value = serde_json::from_str(&queue.stdout).unwrap();
    assert_eq!(queue["queue"], serde_json::json!([]));
}

/// A host reads a saved plan by the schema of the provider that it starts. With other attributes it
/// refuses the plan before it asks the provider for anything.
async fn a_saved_plan_is_refused_whole_or_applied(folder: &Path, host: Host) {
    let (fleet, workspace) = (Fleet::new(SERVERS).await, Workspace::new(host));
    place(folder, &fleet, &workspace);
    let state = || fs::read_to_string(workspace.folder().join("terraform.tfstate")).unwrap();
    let before = state();
    let saved = folder.join(plan_of(host)).display().to_string();
    let run = workspace.run(&["apply", "-input=false", "-no-color", &saved]).await;
    if run.status.success() {
        run.says("1 changed");
    } else {
        run.says("attributes is required");
        assert_eq!(state(), before);
    }
    for name in names() {
        assert_eq!(fleet.changes(&name), [""; 0], "{name}");
    }
}

for_each_host! {
    async fn what_an_older_version_holds_is_read_changed_and_released(host) {
        if let (Ok(name), Ok(program), Host::OpenTofu) = (std::env::var("RECORD"), std::env::var("PREVIOUS_PROGRAM"), host) {
            record(&name, &program).await;
        }
        for folder in recorded() {
            goes_on(&folder, host).await;
            a_saved_plan_is_refused_whole_or_applied(&folder, host).await;
        }
    }
}
