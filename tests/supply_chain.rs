//! Checks the program's crates: their source, licences and duplicate versions.
//!
//! `cargo metadata` reads them from the lock file, without a network. `tools/deny` checks
//! advisories.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use serde_json::Value;

/// The only allowed source of crates.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Licences that are compatible with shipping the program under its own licence.
const LICENCES: [&str; 12] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "0BSD",
    "BSL-1.0",
    "Unlicense",
    "Unicode-3.0",
    "CDLA-Permissive-2.0",
];

/// Protocol and cryptography crates, allowed in one version only.
const ONCE: [&str; 12] = [
    "tonic",
    "rustls",
    "rustls-webpki",
    "tokio-rustls",
    "rcgen",
    "ring",
    "aws-lc-rs",
    "h2",
    "hyper",
    "reqwest",
    "sqlx-core",
    "rustls-pemfile",
];

/// Known duplicates with the crate that causes each. tf-provider 0.2.2 cannot omit its own server;
/// the linker drops that unused code ([`the_program_holds_no_code_of_the_second_ones`]).
const TWICE: [(&str, &str); 2] = [("tonic", "tf-provider"), ("rcgen", "tf-provider")];

/// Unmaintained crates, each with its dependent.
const UNMAINTAINED: [(&str, &str); 1] = [("rustls-pemfile", "tf-provider")];

struct Graph {
    packages: BTreeMap<String, Value>,
    /// Dependencies of each crate on this platform.
    uses: BTreeMap<String, Vec<String>>,
    /// IDs of the crates linked into the program.
    linked: BTreeSet<String>,
}

impl Graph {
    fn read() -> Self {
        let arguments = ["metadata", "--format-version=1", "--locked", "--filter-platform=x86_64-unknown-linux-gnu"];
        let output = Command::new(env!("CARGO"))
            .args(arguments)
            .arg("--offline")
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        let id = |of: &Value| of["id"].as_str().unwrap().to_owned();
        let packages: BTreeMap<_, _> =
            all["packages"].as_array().unwrap().iter().map(|package| (id(package), package.clone())).collect();
        let mut graph = BTreeMap::new();
        for node in all["resolve"]["nodes"].as_array().unwrap() {
            let normal =
                |uses: &&Value| uses["dep_kinds"].as_array().unwrap().iter().any(|kind| kind["kind"].is_null());
            let used = node["deps"].as_array().unwrap().iter().filter(normal);
            graph.insert(id(node), used.map(|used| used["pkg"].as_str().unwrap().to_owned()).collect::<Vec<_>>());
        }
        let root =
            packages.iter().find(|(_, package)| package["name"] == "terraform-provider-metal").unwrap().0.clone();
        let (mut linked, mut open) = (BTreeSet::new(), vec![root]);
        while let Some(next) = open.pop() {
            if linked.insert(next.clone()) {
                open.extend(graph[&next].iter().cloned());
            }
        }
        Self { packages, uses: graph, linked }
    }

    fn name(&self, id: &str) -> &str {
        self.packages[id]["name"].as_str().unwrap()
    }

    fn versions(&self, name: &str) -> Vec<&String> {
        self.linked.iter().filter(|id| self.name(id) == name).collect()
    }

    fn users(&self, id: &str) -> Vec<&String> {
        self.linked.iter().filter(|user| self.uses[*user].iter().any(|used| used == id)).collect()
    }

    /// Returns true if every dependency path to a crate passes through `through`.
    fn only_through(&self, id: &str, through: &str) -> bool {
        let users = self.users(id);
        !users.is_empty() && users.iter().all(|user| self.name(user) == through || self.only_through(user, through))
    }
}

/// Returns true if the licences above can satisfy an expression.
fn allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    let parts = top_level(&expression, " AND ");
    if parts.len() > 1 {
        return parts.iter().all(|part| allowed(part));
    }
    let parts = top_level(&expression, " OR ");
    if parts.len() > 1 {
        return parts.iter().any(|part| allowed(part));
    }
    let one = expression.trim();
    match one.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
        Some(inner) => allowed(inner),
        None => LICENCES.contains(&one),
    }
}

/// Splits outside parentheses.
fn top_level(text: &str, word: &str) -> Vec<String> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 && at >= start && text[at..].starts_with(word) => {
                parts.push(text[start..at].to_owned());
                start = at + word.len();
            }
            _ => {}
        }
    }
    parts.push(text[start..].to_owned());
    parts
}

#[test]
fn crates_come_from_one_registry_under_known_licences() {
    let graph = Graph::read();
    assert!(graph.linked.len() > 100, "{}", graph.linked.len());
    for (id, package) in &graph.packages {
        let (source, local) = (&package["source"], package["source"].is_null());
        assert!(local || source == REGISTRY, "{id} comes from {source}");
        if graph.linked.contains(id) && !local {
            let licence = package["license"].as_str().unwrap_or("none");
            assert!(allowed(licence), "{id} has the licence {licence}");
        }
    }
}

#[test]
fn what_speaks_protocols_or_holds_keys_is_there_once() {
    let graph = Graph::read();
    for name in ONCE {
        let versions = graph.versions(name);
        let twice = TWICE.iter().find(|(known, _)| *known == name);
        assert!(versions.len() <= 1 + usize::from(twice.is_some()), "{name} has several versions: {versions:?}");
        if let Some((_, by)) = twice {
            assert_eq!(versions.len(), 2, "{name} has a single version now: remove it from TWICE");
            let theirs = versions.iter().filter(|id| graph.only_through(id, by)).count();
            assert_eq!(theirs, 1, "{name} is used by other crates than {by}");
        }
    }
    for (name, by) in UNMAINTAINED {
        for id in graph.versions(name) {
            assert!(graph.only_through(id, by), "{name} is used by {:?}", graph.users(id));
        }
    }
}

/// A crate's source paths appear in the program wherever its code can panic.
#[test]
fn the_program_holds_no_code_of_the_second_ones() {
    let graph = Graph::read();
    let program = fs::read(env!("CARGO_BIN_EXE_terraform-provider-metal")).unwrap();
    let holds = |crate_of: &str| {
        let path = format!("{crate_of}/src/");
        program.windows(path.len()).any(|window| window == path.as_bytes())
    };
    let named = |id: &str| format!("{}-{}", graph.name(id), graph.packages[id]["version"].as_str().unwrap());
    for (name, by) in TWICE.into_iter().chain(UNMAINTAINED) {
        for id in graph.versions(name) {
            if graph.only_through(id, by) {
                assert!(!holds(&named(id)), "{} is in the program", named(id));
            } else {
                assert!(holds(&named(id)), "{} was not found in the program, so this test proves nothing", named(id));
            }
        }
    }
}

#[test]
fn python_packages_have_hashes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/setup");
    let mut packages = 0;
    for file in fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()) {
        if !file.file_name().unwrap().to_string_lossy().starts_with("requirements-") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap().replace("\\\n", " ");
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            packages += 1;
            assert!(line.contains("==") && line.contains("--hash=sha256:"), "{}: {line}", file.display());
        }
    }
    assert!(packages > 30, "{packages}");
    assert!(fs::read_to_string(folder.join("common.sh")).unwrap().contains("--require-hashes"));
}

/// Runs `tools/deny` with a stand-in for cargo-deny. Returns success and output.
#[cfg(unix)]
fn deny(script: &str) -> (bool, String) {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("cargo-deny");
    fs::write(&program, format!("#!/bin/sh\necho \"called: $*\"\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/deny"))
        .env("CARGO_DENY", &program)
        .env("CARGO_HOME", folder.path())
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[cfg(unix)]
#[test]
fn a_check_that_was_left_out_is_said_and_the_others_are_made() {
    const ALWAYS: &str = "called: --locked check licenses bans sources";
    const LEFT_OUT: &str = "advisories were NOT checked";
    let no_network = "case \"$*\" in *fetch*) exit 1 ;; esac";
    let (good, said) = deny(no_network);
    assert!(good && said.contains(ALWAYS) && said.contains(LEFT_OUT) && !said.contains("check --disable"), "{said}");
    let (good, said) = deny("");
    assert!(good && said.contains(ALWAYS) && said.contains("check --disable-fetch advisories"), "{said}");
    assert!(!said.contains(LEFT_OUT), "{said}");
    for fails in ["licenses", "advisories"] {
        let (good, said) = deny(&format!("case \"$*\" in *{fails}*) exit 1 ;; esac"));
        assert!(!good, "{fails}: {said}");
    }
    let makefile = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Makefile")).unwrap();
    let lint = makefile.split("\nlint:").nth(1).unwrap().split("\n\n").next().unwrap();
    assert!(lint.contains("@tools/deny"), "{lint}");
}

#[test]
fn both_lists_of_licences_are_one() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deny.toml")).unwrap();
    let list = text.split("\nallow = [").nth(1).unwrap().split(']').next().unwrap();
    let listed: BTreeSet<&str> = list.split('"').skip(1).step_by(2).collect();
    let ours = ["MPL-2.0"];
    assert_eq!(listed, LICENCES.into_iter().chain(ours).collect());
}

#[test]
fn licences_are_read_as_expressions() {
    for good in ["MIT", "MIT OR GPL-3.0", "MIT/Apache-2.0", "(MIT OR GPL-3.0) AND ISC", "ISC AND (Apache-2.0 OR ISC)"] {
        assert!(allowed(good), "{good}");
    }
    for bad in ["GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR AGPL-3.0) AND MIT", "none", ""] {
        assert!(!allowed(bad), "{bad}");
    }
}
