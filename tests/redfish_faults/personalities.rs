//! Runs every flow against every recorded BMC type, with the server initially on and off.
//!
//! The personalities are data (`crates/bmc-simulator/personalities`), one per vendor and
//! generation. Depending on the BMC's allowable values, a flow either works or is refused without
//! a change. The results are compared with the table next to this file.

use std::{fs, path::Path};

use bmc_simulator::{BootSource, EventKind, JournalQuery, Personality, PowerState};
use futures_util::{StreamExt as _, stream};
use terraform_provider_metal::maintenance::operate::OperationOutcome;

use crate::{
    bench::{Bench, reached},
    flows::Flow,
    judge,
    simulated::{forbidden, personalities, refused_twice},
};

/// Cases in parallel.
const AT_ONCE: usize = 16;

/// Returns a case's outcome in one word, and its problems.
async fn play(personality: Personality, flow: Flow, power: PowerState) -> (String, Vec<String>) {
    let bench = Bench::of(flow, personality, power).await;
    let (held, mut problems) = bench.play_to_end().await;
    // Refusals of values that a BMC does not list are judged below.
    problems.retain(|problem| !problem.starts_with(judge::MISSED));
    let events = bench.simulator.events(&bench.name, 0).unwrap();
    let changed = events.iter().any(|event| {
        matches!(event.kind, EventKind::Reset { .. } | EventKind::OverrideSet(_) | EventKind::MediaInserted { .. })
    });
    if !reached(&held) && changed {
        problems.push(format!("rejected after a change: {held:?}"));
    }
    let journal = bench.simulator.journal(&JournalQuery::default());
    problems.extend(refused_twice(&journal));
    problems.extend(forbidden(&journal));
    let bmc = bench.simulator.bmc_of(&bench.name).unwrap();
    let open = bench.simulator.bmc_status(&bmc).unwrap().sessions_open;
    if open > 0 {
        problems.push(format!("{open} sessions were not closed"));
    }
    let word = match &held {
        Ok(driven) if reached(&held) => {
            let from = bench.simulator.boots(&bench.name).unwrap().into_iter();
            let image = from.into_iter().any(|boot| matches!(boot.booted_from, BootSource::Media { .. }));
            match driven.record.outcome {
                Some(OperationOutcome::Proven) if flow == Flow::VirtualMedia && !image => {
                    problems.push("reported as proven, but the image was never booted".to_owned());
                    "wrong"
                }
                Some(OperationOutcome::Proven) => "proven",
                Some(OperationOutcome::Unproven) => "not proven",
                Some(OperationOutcome::Skipped) => "skipped",
                _ => "yes",
            }
        }
        _ => "no",
    };
    if !problems.is_empty() {
        problems.push(bench.story());
    }
    (word.to_owned(), problems)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_recorded_bmc_does_what_it_lists_or_refuses_before_anything_changes() {
    let mut cases = Vec::new();
    for personality in personalities() {
        for power in [PowerState::On, PowerState::Off] {
            for flow in Flow::ASKED {
                cases.push((personality.clone(), flow, power));
            }
        }
    }
    let only = std::env::var("PERSONALITY").ok();
    cases.retain(|(personality, flow, _)| {
        only.as_ref().is_none_or(|only| format!("{} {flow:?}", personality.name).contains(only.as_str()))
    });
    let played: Vec<(String, String, Vec<String>)> = stream::iter(cases)
        .map(|(personality, flow, power)| {
            let name = format!("{} ({power})", personality.name);
            let cell = format!("{flow:?}");
            let played = tokio::spawn(play(personality, flow, power));
            async move {
                let (word, problems) = played.await.unwrap();
                (name, format!("{cell}: {word}"), problems)
            }
        })
        .buffered(AT_ONCE)
        .collect()
        .await;
    let mut table: Vec<String> = Vec::new();
    let mut wrong = Vec::new();
    for (name, cell, problems) in played {
        match table.last_mut().filter(|line| line.starts_with(&format!("{name}:"))) {
            Some(line) => line.push_str(&format!(", {cell}")),
            None => table.push(format!("{name}: {cell}")),
        }
        if !problems.is_empty() {
            wrong.push(format!("{name} {cell}:\n  {}", problems.join("\n  ")));
        }
    }
    let table = format!("{}\n", table.join("\n"));
    assert!(wrong.is_empty(), "{} cases went wrong:\n{}\n{table}", wrong.len(), wrong.join("\n"));
    if only.is_some() {
        println!("{table}");
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redfish_faults/personalities.txt");
    if std::env::var("UPDATE_PERSONALITIES").is_ok() {
        fs::write(&path, &table).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), table, "UPDATE_PERSONALITIES=1 writes it");
}

#[test]
fn every_personality_says_where_it_is_known_from() {
    for personality in personalities() {
        let known = serde_json::to_value(&personality).unwrap();
        for (rule, source) in &personality.sources {
            let found = rule.split('.').try_fold(&known, |value, name| value.get(name));
            assert!(found.is_some(), "{}: unknown rule {rule}", personality.name);
            assert!(source.len() > 8, "{}: {rule} lacks a source", personality.name);
        }
        for room in ["power.reset_types", "boot.targets", "media.devices"] {
            assert!(personality.sources.contains_key(room), "{}: no source of {room}", personality.name);
        }
    }
}
