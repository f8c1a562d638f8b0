//! Fuzzers for external input.
//!
//! Each target reads data from another party: host requests, BMC responses, an inventory file or a
//! calendar file. Inputs can be rejected, but must not panic, end the process, take too much time
//! or memory, or reveal the password. `FUZZ_SECONDS` is the time per target; `FUZZ_SEED` repeats a
//! run. Violating inputs are saved to `corpus/<target>/`, which is replayed first.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]
#![cfg(target_os = "linux")]

mod calendar;
mod child;
mod defects;
#[path = "../../crates/tf-plugin-server/tests/wire/host.rs"]
#[allow(dead_code, reason = "only a part is used here")]
mod host;
mod inventory;
mod mutate;
mod redfish;
mod render;
mod supervise;
mod wire;

use supervise::{fuzz, passes};

/// Password that must never appear in output. Mutations can insert it but never read its text.
const SENTINEL: &str = "sentinel-5d0c-password";

#[test]
fn requests_of_a_host() {
    passes("wire");
}

#[test]
fn answers_of_a_bmc() {
    passes("redfish");
}

#[test]
fn inventory_files() {
    passes("inventory");
}

#[test]
fn calendar_files() {
    passes("calendar");
}

/// The child process that runs the inputs.
#[test]
#[ignore = "started by the other tests"]
fn child() {
    let Ok(target) = std::env::var(supervise::TARGET) else { return };
    rustls::crypto::aws_lc_rs::default_provider().install_default().unwrap();
    match target.as_str() {
        "wire" => child::run(&mut wire::Wire::new()),
        "redfish" => child::run(&mut redfish::Redfish::new()),
        "inventory" => child::run(&mut inventory::Inventory),
        "calendar" => child::run(&mut calendar::Calendar),
        defect => child::run(&mut defects::Defect::named(defect)),
    }
}

#[test]
fn each_kind_of_defect_is_found_and_its_input_kept() {
    for (defect, words) in defects::KINDS {
        let kept = tempfile::tempdir().unwrap();
        let found = fuzz(defect, kept.path(), 20.0).expect_err(defect);
        assert!(found.contains(words), "{defect}: {found}");
        let inputs: Vec<_> = std::fs::read_dir(kept.path()).unwrap().collect();
        assert_eq!(inputs.len(), 1, "{defect}: {inputs:?}");
        // The saved input is replayed first, so no fuzzing time is needed.
        let again = fuzz(defect, kept.path(), 0.0).expect_err(defect);
        assert!(again.contains(words), "{defect}: {again}");
    }
}
