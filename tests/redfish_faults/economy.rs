//! Counts one process's requests for a hold, and another's for the release.
//!
//! Slow BMCs take one to three seconds per request. System reads during a power change are polls
//! and do not count; drive reads during a shutdown do.

use bmc_simulator::{JournalEntry, JournalQuery, Personality, PowerState};

use crate::{bench::Bench, flows::Flow};

/// Returns the requests without polls, in order. A poll repeats the system read after a power
/// change.
fn counted(journal: &[JournalEntry]) -> Vec<String> {
    let mut resets = false;
    let mut counted = Vec::new();
    for entry in journal {
        let name = format!("{} {}", entry.method, entry.path);
        let system = entry.path.trim_end_matches('/').ends_with("/Systems/1");
        if resets && entry.method == "GET" && system {
            continue;
        }
        resets |= entry.path.ends_with("ComputerSystem.Reset");
        counted.push(name);
    }
    counted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flow_costs_few_requests() {
    for (flow, hold, release) in
        [(Flow::Hold, 8, 4), (Flow::PowerOff, 9, 9), (Flow::Pxe, 11, 11), (Flow::VirtualMedia, 15, 14)]
    {
        let bench = Bench::of(flow, Personality::generic(), PowerState::On).await;
        let between = bench.play_and_mark().await;
        let journal = bench.simulator.journal(&JournalQuery::default());
        let (first, second): (Vec<_>, Vec<_>) = journal.into_iter().partition(|entry| entry.sequence <= between);
        for (what, requests, most) in [("hold", counted(&first), hold), ("release", counted(&second), release)] {
            println!("{flow:?} {what}: {}\n  {}", requests.len(), requests.join("\n  "));
            assert!(requests.len() <= most, "{flow:?} {what}: {} requests", requests.len());
        }
    }
}
