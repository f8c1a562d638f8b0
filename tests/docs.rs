//! Checks that the documentation matches the provider.
//!
//! Compares the host's schema with the pages of `docs/`, and requires an example and an acceptance
//! test for every type. `docs/page.rs` defines the page format.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]

#[path = "docs/compare.rs"]
mod compare;
#[path = "docs/hosts.rs"]
mod hosts;
#[path = "docs/links.rs"]
mod links;
#[path = "docs/messages.rs"]
mod messages;
#[path = "docs/page.rs"]
mod page;
#[path = "docs/pages.rs"]
mod pages;
#[path = "docs/promises.rs"]
mod promises;
#[path = "docs/samples.rs"]
mod samples;
#[path = "docs/schema.rs"]
mod schema;

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use serde_json::Value;

/// Made-up address that is never resolved.
const SOURCE: &str = "example.com/metal/metal";

/// Returns the output of `providers schema -json` for the built provider.
///
/// From Terraform, because OpenTofu 1.6 omits functions.
fn schema_of_the_provider() -> Value {
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/bin/terraform");
    assert!(host.exists(), "{} is missing: run `make setup`", host.display());
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let write = |name: &str, text: String| fs::write(folder.path().join(name), text).expect("writable");
    let program = folder.path().join("terraform-provider-metal");
    symlink(env!("CARGO_BIN_EXE_terraform-provider-metal"), program).expect("writable");
    write(
        "cli.tfrc",
        format!("provider_installation {{ dev_overrides {{ \"{SOURCE}\" = \"{}\" }} }}\n", folder.path().display()),
    );
    write(
        "main.tf",
        format!("terraform {{\n  required_providers {{\n    metal = {{ source = \"{SOURCE}\" }}\n  }}\n}}\n"),
    );
    let output = Command::new(host)
        .args(["providers", "schema", "-json"])
        .current_dir(folder.path())
        .env("TF_CLI_CONFIG_FILE", folder.path().join("cli.tfrc"))
        .env("CHECKPOINT_DISABLE", "1")
        .output()
        .expect("the host starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    all["provider_schemas"][SOURCE].take()
}

#[test]
fn pages_and_schema_are_the_same() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let types = schema::read(&schema_of_the_provider());
    let found = compare::compare(&types, root);
    assert!(types.len() > 1, "the provider offers nothing");
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn every_page_is_what_a_registry_needs() {
    let found = pages::check(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn versions_of_hosts_are_those_of_the_guide() {
    let found = hosts::check(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn links_lead_somewhere_and_pages_are_small_enough() {
    let (found, links) = links::check(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(found.is_empty(), "\n{}", found.join("\n"));
    assert!(links > 50, "the links were not found: {links}");
}

#[test]
fn the_page_of_the_provider_leads_to_every_feature() {
    let found = links::unlinked(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn the_page_of_messages_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (page, now) = (root.join(messages::PAGE), messages::generate(root));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&page, &now).expect("writable");
    }
    let written = fs::read_to_string(&page).unwrap_or_default();
    let missing: Vec<&str> = now.lines().filter(|line| !written.contains(line)).collect();
    let old: Vec<&str> = written.lines().filter(|line| !now.contains(line)).collect();
    assert!(written == now, "run UPDATE_DOCS=1 cargo test --test docs\nmissing: {missing:#?}\nold: {old:#?}");
}

#[test]
fn every_promise_names_a_test_that_exists() {
    let (problems, named) = promises::check(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
    assert!(named > 30, "the table of promises was not found: {named}");
}

#[test]
fn the_files_that_the_design_names_are_there() {
    let (missing, named) = promises::missing_files(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(missing.is_empty(), "DESIGN.md names files that do not exist: {missing:?}");
    assert!(named > 40, "the files were not found in the text: {named}");
}

#[test]
fn the_costs_of_additions_are_those_of_today() {
    let (outdated, folders) = promises::outdated_costs(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(folders >= 6, "{folders} rows name a folder");
    assert!(outdated.is_empty(), "sizes of folders in DESIGN.md:\n{}", outdated.join("\n"));

    let root = tempfile::tempdir().expect("the temporary folder is writable");
    fs::create_dir(root.path().join("one")).expect("writable");
    fs::write(root.path().join("one/mod.rs"), "//! A.\n".repeat(20)).expect("writable");
    for (said, is_outdated) in [("1, 20", false), ("1, 22", false), ("1, 23", true), ("2, 20", true), ("–", true)] {
        let table = format!("## What an addition costs\n\n| a | b | c |\n|---|---|---|\n| x (`one`) | {said} | y |\n");
        fs::write(root.path().join("DESIGN.md"), table).expect("writable");
        let (outdated, folders) = promises::outdated_costs(root.path());
        assert_eq!((outdated.len(), folders), (usize::from(is_outdated), 1), "{said}");
    }
}

#[test]
fn a_promise_without_a_test_is_found() {
    let root = tempfile::tempdir().expect("the temporary folder is writable");
    for folder in ["src", "crates", "tests"] {
        fs::create_dir(root.path().join(folder)).expect("writable");
    }
    fs::write(root.path().join("tests/one.rs"), "#[test]\nfn it_holds() {}\n").expect("writable");
    let table = "## Promises\n\n| promise | rests on | shown by |\n|---|---|---|\n\
                 | one | a | `it_holds` |\n| two | b | `it_is_gone` |\n| three | c | nothing |\n\n## Next\n| x | y | z |\n";
    fs::write(root.path().join("DESIGN.md"), table).expect("writable");
    let (problems, named) = promises::check(root.path());
    assert_eq!((problems.len(), named), (2, 2), "{problems:?}");
    fs::write(root.path().join("DESIGN.md"), "`tests/one.rs` and `tests/two.rs`, `not a/file.rs`").expect("writable");
    assert_eq!(promises::missing_files(root.path()), (vec!["tests/two.rs".to_owned()], 2));
}
