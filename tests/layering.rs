//! Holds the walls between the rooms (see DESIGN.md, "Modules") by reading the sources, where no
//! crate lets the compiler hold them.
//!
//! The table below is the architecture: who may know whom. `layering/` holds the reader of paths
//! and the checker; the samples at its end prove that it finds what it must.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]

#[path = "layering/check.rs"]
mod check;
#[path = "layering/cycles.rs"]
mod cycles;
#[path = "layering/paths.rs"]
mod paths;
#[path = "layering/quoted.rs"]
mod quoted;
#[path = "layering/samples.rs"]
mod samples;

use std::{fs, path::Path};

use check::{Rules, Source};

/// The crate of the rules.
const RULES: &str = "crates/maintenance-protocol";

/// Longest file, in lines; tests inside it do not count.
const LONGEST: usize = 450;

/// Files that may be longer, each with its limit and the reason.
const LONGER: &[(&str, usize, &str)] = &[];

/// Which rooms each room may name. A room that is missing here fails the test: decide first.
/// `maintenance`, `plugin` and `shown` are crates of their own: the compiler keeps them from naming
/// a room.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("clock", &[]),
    ("files", &[]),
    ("loopback", &[]),
    // Pure rules: they are given the time.
    ("maintenance", &[]),
    // Where credentials may go, and every client that carries them.
    ("outbound", &[]),
    // TLS of clients: what the machine trusts.
    ("tls", &[]),
    ("probe", &["clock", "tls"]),
    // How a cluster is reached and what its API says; no record, no machine.
    ("kubernetes", &["clock", "files", "outbound"]),
    ("store", &["maintenance", "kubernetes", "clock", "files", "loopback", "outbound"]),
    // Of the words of maintenance only names, and what a machine, its place and its own maintenance
    // system are; no queue, lock or window.
    (
        "backend",
        &[
            "maintenance::aliases",
            "maintenance::boot_method",
            "maintenance::drain",
            "maintenance::ids",
            "maintenance::location",
            "maintenance::node",
            "maintenance::machine",
            "maintenance::gate",
            "maintenance::refusal",
            "maintenance::service",
            "kubernetes",
            "clock",
            "tls",
            "files",
            "shown",
            "loopback",
            "outbound",
        ],
    ),
    ("engine", &["maintenance", "store", "backend", "probe", "clock"]),
    // The composition root: decoded configuration becomes the parts of an engine.
    ("settings", &["engine", "maintenance", "store", "backend", "kubernetes", "probe", "clock", "files", "shown"]),
    (
        "provider",
        &["settings", "engine", "maintenance", "store", "backend", "probe", "clock", "files", "plugin", "shown"],
    ),
    ("cli", &["settings", "engine", "maintenance", "store", "backend", "clock", "files", "shown"]),
    // The program and the map: they start what there is.
    ("program", &["cli", "provider", "plugin", "settings"]),
    ("main", &["program"]),
];

/// What is recorded, and what it may name of its room: data knows no rule, so that rules and data
/// are no cycle.
const DATA: (&str, &[&str]) = ("maintenance/model/", &["maintenance::model"]);

/// Crates that only some rooms may name.
const CRATES: &[(&str, &[&str])] = &[
    ("tf_provider", &["provider"]),
    ("sqlx", &["store", "outbound"]),
    ("kube", &["kubernetes", "store", "backend", "outbound"]),
    ("k8s_openapi", &["kubernetes", "store", "backend"]),
    ("clap", &["cli"]),
];

/// The only crates the pure rules may depend on, beside the standard library's pure parts.
const PURE_CRATES: &[&str] = &["jiff", "serde", "serde_json", "sha2", "shown_text", "thiserror", "url", "uuid"];

/// Ends of paths that read or wait for time; `clock` alone may.
const TIME: &[&str] = &[
    "SystemTime::now",
    "Instant::now",
    "Timestamp::now",
    "Zoned::now",
    "Utc::now",
    "Local::now",
    "tokio::time::Instant",
    "time::sleep",
    "time::sleep_until",
    "time::interval",
    "time::interval_at",
    "thread::sleep",
];

/// Ends of paths that create a client or open a connection. `outbound` alone may, because it checks
/// where credentials go; `probe` has no credentials.
const CLIENTS: &[&str] = &[
    "reqwest::Client",
    "reqwest::get",
    "ClientBuilder::new",
    "ClientBuilder::try_from",
    "Client::try_from",
    "Client::try_default",
    "PgPoolOptions",
    "PgPool::connect",
    "PgPool::connect_with",
    "PgPool::connect_lazy",
    "PgPool::connect_lazy_with",
    "PgConnection::connect",
    "PgConnection::connect_with",
    "PgListener::connect",
    "TcpStream::connect",
];

/// Parts of the standard library that are not pure.
const IMPURE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "std::io::stdin",
    "std::io::stdout",
    "std::io::stderr",
    "std::time::SystemTime",
    "std::time::Instant",
    "std::os",
];

fn rules() -> Rules {
    Rules {
        may_know: MAY_KNOW,
        data: DATA,
        crates: CRATES,
        pure_room: "maintenance",
        impure: IMPURE,
        only: &[
            (&["clock"], TIME, "reads or waits for time"),
            (&["outbound", "probe"], CLIENTS, "creates a client"),
        ],
        longest: LONGEST,
        longer: LONGER,
    }
}

/// Every file of the rooms, by its path below them; `maintenance/` is a crate, which is read as the
/// room that it is.
fn rooms() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rules = Source::read_all(&root.join(RULES).join("src")).into_iter().map(|source| Source {
        file: format!("maintenance/{}", source.file),
        text: source.text.replace("crate::", "crate::maintenance::"),
    });
    Source::read_all(&root.join("src")).into_iter().chain(rules).collect()
}

/// A new backend is its folder, its `mod` line and its entry in `PLUGINS`. Other backends reach
/// BMCs through Redfish, so they can name its folder.
#[test]
fn a_backend_is_one_folder_and_one_registry_line() {
    let rooms = Source::read_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let folder = |source: &Source| Some(source.file.strip_prefix("backend/")?.strip_suffix("/plug.rs")?.to_owned());
    let is_backend = |source: &&Source| source.text.contains("impl BackendPlugin for ");
    let backends: Vec<String> = rooms.iter().filter(is_backend).filter_map(folder).collect();
    assert!(backends.len() >= 4, "{backends:?}");
    for backend in &backends {
        let names = |source: &&Source| {
            let (path, declared) = (format!("{backend}::"), format!("mod {backend};"));
            let code = source.text.lines().filter(|line| !line.trim_start().starts_with("//"));
            code.map(|line| line.split('"').step_by(2).collect::<String>())
                .any(|line| line.contains(&declared) || names_path(&line, &path))
        };
        let own = format!("backend/{backend}/");
        let others: Vec<&str> = rooms
            .iter()
            .filter(names)
            .map(|source| source.file.as_str())
            .filter(|file| !file.starts_with(&own))
            .collect();
        let (registry, more): (Vec<&str>, Vec<&str>) =
            others.into_iter().partition(|file| ["backend/mod.rs", "backend/plug.rs"].contains(file));
        assert_eq!(registry.len(), 2, "{backend}: {registry:?}");
        let allowed = backend == "redfish" && more.iter().all(|file| file.starts_with("backend/"));
        assert!(more.is_empty() || allowed, "{more:?} name the backend {backend}");
    }
}

/// Returns true if a line names a path, and not a longer word that ends like it.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

#[test]
fn the_rooms_keep_their_walls() {
    let sources = rooms();
    for room in ["engine", "maintenance"] {
        let read = sources.iter().filter(|source| source.file.starts_with(room)).count();
        assert!(read > 10, "{room} has {read} sources");
    }
    let found = check::violations(&rules(), &sources);
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn the_rules_depend_on_pure_crates_only() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join(RULES).join("Cargo.toml");
    let manifest = fs::read_to_string(manifest).expect("the manifest is there");
    assert_eq!(check::dependencies(&manifest), PURE_CRATES.iter().map(|name| (*name).to_owned()).collect());
}

#[test]
fn no_rules_name_each_other_in_a_circle() {
    let circles = cycles::circles(&rooms(), "maintenance/", DATA.0);
    assert!(circles.is_empty(), "{circles:#?}");
}

/// The compiler keeps a crate from naming a room; what holds for every file holds for those of the
/// wire too.
#[test]
fn the_wire_reads_no_time_and_has_files_of_a_length_that_can_be_read() {
    let sources = Source::read_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/tf-plugin-server/src"));
    assert!(!sources.is_empty(), "the crate holds no sources");
    let found = check::violations(&rules(), &sources);
    let found: Vec<_> =
        found.iter().filter(|why| why.contains("only `clock` may") || why.contains("lines, more than")).collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// Where claims and approvals are kept is asked where a port chooses its implementation, and
/// nowhere else.
#[test]
fn one_function_of_each_port_chooses_who_keeps_claims() {
    const QUESTIONS: [&str; 2] = [".ownership()", ".has_own_claims()"];
    const PORTS: [&str; 3] = ["cli/approvals.rs", "provider/approval/lifecycle.rs", "provider/claim/lifecycle.rs"];
    let sources = rooms();
    let above = sources.iter().filter(|source| ["cli/", "provider/"].iter().any(|room| source.file.starts_with(room)));
    let mut ask: Vec<&str> = above
        .filter(|source| QUESTIONS.iter().any(|one| source.text.contains(one)))
        .map(|source| source.file.as_str())
        .collect();
    ask.sort_unstable();
    assert_eq!(ask, PORTS);
}

/// A word of the code is not one for people and scripts: what shows a value says its own.
#[test]
fn nothing_is_shown_in_the_words_of_the_code() {
    let sources = rooms();
    let mut shown = sources.iter().filter(|source| source.text.contains("fmt::Debug::fmt(self"));
    assert!(shown.next().is_none(), "a Display that is the Debug of its type");
    let told = quoted::violations(quoted::QUOTED, &sources);
    assert!(told.is_empty(), "\n{}", told.join("\n"));
}

/// The rules and the engine serve every backend: a word of one system belongs to its backend, which
/// brings methods, remedies and commands (`backend/plug.rs`).
#[test]
fn no_neutral_room_speaks_of_one_system() {
    let words = [
        "kubectl",
        "metal_operator",
        "metal-operator",
        "metal3",
        "ironic",
        "sushy",
        "boot_operator",
        "BootOperator",
        "ServerMaintenance",
        "ServerClaim",
        "BareMetalHost",
        "redfish.servers",
    ];
    let mut found = Vec::new();
    let neutral = |file: &str| file.starts_with("maintenance/") || file.starts_with("engine/");
    for source in rooms().iter().filter(|source| neutral(&source.file) && !source.file.contains("/tests")) {
        let code = source.text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
        let named =
            lines.flat_map(|(n, line)| words.iter().filter(|word| line.contains(**word)).map(move |word| (n, word)));
        found.extend(named.map(|(n, word)| format!("{}:{}: {word}", source.file, n + 1)));
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn every_exception_is_still_needed() {
    let sources = rooms();
    for (file, limit, _) in LONGER {
        let source = sources.iter().find(|source| source.file == *file);
        let source = source.unwrap_or_else(|| panic!("{file} is excepted but does not exist"));
        let without = Rules { longer: &[], ..rules() };
        let found = check::violations(&without, std::slice::from_ref(source));
        assert!(
            found.iter().any(|why| why.contains("lines, more than")),
            "{file} needs no exception (up to {limit}) any more"
        );
    }
}
