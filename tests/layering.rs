//! Checks the dependencies between modules within a crate (DESIGN.md, "Modules") by reading the
//! sources.
//!
//! The table below defines the architecture. `layering/` contains the path reader and the checker;
//! their tests run on samples.
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

/// Crate with the pure rules.
const RULES: &str = "crates/maintenance-protocol";

/// Maximum lines per file, without inline tests.
const LONGEST: usize = 450;

/// Files with a higher limit, each with the limit and the reason.
const LONGER: &[(&str, usize, &str)] = &[];

/// Allowed dependencies of each module. A module without an entry fails the test. `maintenance`,
/// `plugin` and `shown` are separate crates, which the compiler already isolates.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("clock", &[]),
    ("files", &["shown"]),
    ("loopback", &[]),
    // Pure rules: callers pass the time.
    ("maintenance", &[]),
    // Where credentials can go, and every client that carries them.
    ("outbound", &[]),
    // TLS for clients: trusted certificates.
    ("tls", &[]),
    ("probe", &["clock", "tls"]),
    // Access to a cluster's API. No record, no machine.
    ("kubernetes", &["clock", "files", "outbound", "shown"]),
    ("store", &["maintenance", "kubernetes", "clock", "files", "loopback", "outbound", "shown", "tls"]),
    // From `maintenance`, only names and descriptions of machines. No queue, lock or window.
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
    ("engine", &["maintenance", "store", "backend", "probe", "clock", "shown"]),
    // Composition root: builds an engine's parts from the decoded configuration.
    ("settings", &["engine", "maintenance", "store", "backend", "kubernetes", "probe", "clock", "files", "shown"]),
    (
        "provider",
        &["settings", "engine", "maintenance", "store", "backend", "probe", "clock", "files", "plugin", "shown"],
    ),
    ("cli", &["settings", "engine", "maintenance", "store", "backend", "clock", "files", "shown"]),
    // Program entry points.
    ("program", &["cli", "provider", "plugin", "settings"]),
    ("main", &["program"]),
];

/// Data types and the only module they can use. Rules depend on data, never the reverse.
const DATA: (&str, &[&str]) = ("maintenance/model/", &["maintenance::model"]);

/// Crates that only some modules can use.
const CRATES: &[(&str, &[&str])] = &[
    ("tf_provider", &["provider"]),
    ("sqlx", &["store", "outbound"]),
    ("object_store", &["store"]),
    ("kube", &["kubernetes", "store", "backend", "outbound"]),
    ("k8s_openapi", &["kubernetes", "store", "backend"]),
    ("clap", &["cli"]),
];

/// The only dependencies of the pure rules, next to the pure parts of the standard library.
const PURE_CRATES: &[&str] = &["jiff", "serde", "serde_json", "sha2", "shown_text", "thiserror", "url", "uuid"];

/// Path suffixes that read or wait for time, allowed only in `clock`.
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

/// Ends of paths that read a file directly or through a library. `files` reads trusted files,
/// secrets and programs, and checks their paths.
const READS: &[&str] = &[
    "fs::read",
    "fs::read_to_string",
    "File::open",
    "File::options",
    "OpenOptions::new",
    "tokio::fs",
    "files::read_text",
    "files::read_bytes",
    "Kubeconfig::read",
    "Kubeconfig::read_from",
    "Kubeconfig::from_env",
    "Config::infer",
    "Config::from_kubeconfig",
    "Config::incluster",
    "Config::incluster_env",
];

/// Files that read past `files`, each with the reason.
const MAY_READ: &[(&str, &str)] = &[
    ("cli/stores.rs", "an export that the command names"),
    ("clock.rs", "kernel data"),
    ("engine/liveness.rs", "kernel data, and files in this user's folder, which it checks"),
    ("engine/renames.rs", "files in the same folder"),
    ("kubernetes/kubeconfig.rs", "checks each file with `files` before the client reads it"),
    ("provider/shared/boot.rs", "Ignition file, as trusted as the configuration that names it"),
    ("provider/shared/window.rs", "calendar file, as trusted as the configuration that names it"),
    ("settings/identity.rs", "system data"),
    ("store/sqlite/file.rs", "the store, which `files` has checked"),
    ("store/sqlite/paths.rs", "the store, which `files` has checked"),
    ("store/sqlite/reach.rs", "kernel data"),
];

/// Ends of paths that create a client or open a connection. Only `outbound` is allowed to, because
/// it checks where credentials go; `probe` does not use credentials.
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

/// Impure parts of the standard library.
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
        only: &[(&["clock"], TIME, "reads or waits for time"), (&["outbound", "probe"], CLIENTS, "creates a client")],
        longest: LONGEST,
        longer: LONGER,
    }
}

/// Returns every module's files. `maintenance/` is a crate, read here like a module.
fn rooms() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rules = Source::read_all(&root.join(RULES).join("src")).into_iter().map(|source| Source {
        file: format!("maintenance/{}", source.file),
        text: source.text.replace("crate::", "crate::maintenance::"),
    });
    Source::read_all(&root.join("src")).into_iter().chain(rules).collect()
}

/// A new backend consists of its folder, its `mod` line and its entry in `PLUGINS`. Other backends
/// can use the `redfish` folder to reach BMCs.
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
    let manifest = fs::read_to_string(manifest).expect("the manifest is readable");
    assert_eq!(check::dependencies(&manifest), PURE_CRATES.iter().map(|name| (*name).to_owned()).collect());
}

#[test]
fn no_rules_name_each_other_in_a_circle() {
    let circles = cycles::circles(&rooms(), "maintenance/", DATA.0);
    assert!(circles.is_empty(), "{circles:#?}");
}

fn reads_of(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    let mut unread = Vec::new();
    for (source, content) in check::without_tests(sources, &mut unread) {
        let room = source.file.starts_with("files");
        for named in content.named.iter().filter(|_| !room) {
            let path = named.segments.join("::");
            let reads = |end: &&&str| {
                path == **end || path.ends_with(&format!("::{end}")) || path.contains(&format!("{end}::"))
            };
            found.extend(READS.iter().find(reads).map(|_| format!("{}:{}: {path}", source.file, named.line)));
        }
    }
    assert!(unread.is_empty(), "{unread:?}");
    found
}

/// A file that carries trust, a secret or a program is read through `files`, which checks its path.
#[test]
fn files_are_read_in_one_place() {
    let found = reads_of(&rooms());
    let of = |line: &String, file: &str| line.starts_with(&format!("{file}:"));
    let past: Vec<&String> = found.iter().filter(|line| !MAY_READ.iter().any(|(file, _)| of(line, file))).collect();
    assert!(past.is_empty(), "{past:#?}");
    for (file, reason) in MAY_READ {
        assert!(found.iter().any(|line| of(line, file)), "{file} does not need its exception ({reason})");
    }
    for text in [
        "fn f() { std::fs::read(\"x\"); }",
        "use std::fs::read_to_string;",
        "fn f() { fs::File::open(x); }",
        "use crate::files; fn f() { files::read_text(x, y, z) }",
        "async fn f() { tokio::fs::read(x).await }",
        "use kube::Config; async fn f() { Config::infer().await }",
    ] {
        let source = Source { file: "backend/mod.rs".to_owned(), text: text.to_owned() };
        assert_eq!(reads_of(&[source]).len(), 1, "{text}");
    }
}

/// The compiler isolates the crate; rules for single files apply here too.
#[test]
fn the_wire_reads_no_time_and_has_files_of_a_length_that_can_be_read() {
    let sources = Source::read_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/tf-plugin-server/src"));
    assert!(!sources.is_empty(), "the crate does not contain sources");
    let found = check::violations(&rules(), &sources);
    let found: Vec<_> = found
        .iter()
        .filter(|why| why.contains("allowed only in `clock`") || why.contains("lines, more than"))
        .collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// Only the function that selects a port's implementation can query the place of claims and
/// approvals.
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

/// Messages show values in words for users, not in Rust names.
#[test]
fn nothing_is_shown_in_the_words_of_the_code() {
    let sources = rooms();
    let mut shown = sources.iter().filter(|source| source.text.contains("fmt::Debug::fmt(self"));
    assert!(shown.next().is_none(), "a Display implementation prints its Debug form");
    let told = quoted::violations(quoted::QUOTED, &sources);
    assert!(told.is_empty(), "\n{}", told.join("\n"));
}

/// The rules and the engine serve every backend. Terms of one system belong to its backend, which
/// supplies methods, remedies and commands (`backend/plug.rs`).
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
            "{file} does not need its exception (up to {limit})"
        );
    }
}
