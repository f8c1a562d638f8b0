//! Runs the demo script unchanged.

use std::{env, process::Command};

use crate::support::{host::tool, provider};

#[test]
fn the_demo_holds_a_server_queues_a_second_run_and_restores_it() {
    let built = provider::binary();
    let target = built.parent().unwrap().parent().unwrap();
    assert!(target.join("debug/bmc-simulator").exists(), "run cargo build --workspace --bins first, as make test does");
    let hosts = tool("bin/tofu");
    let path = format!("{}:{}", hosts.parent().unwrap().display(), env::var("PATH").unwrap());
    let run = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tools/demo/run"))
        .env("CARGO_TARGET_DIR", target)
        .env("PATH", path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{said}\n{}", String::from_utf8_lossy(&run.stderr));
    assert!(said.contains("log: guide/second-maintenance on rack1-node7: queued, 1 ahead"), "{said}");
    assert_eq!(said.matches("Destroy complete! Resources: 1 destroyed.").count(), 2, "{said}");
    let machine: Vec<&str> = said.lines().filter(|line| line.trim_start().starts_with("power ")).collect();
    assert_eq!(machine.first(), machine.last(), "as before: {said}");
}
