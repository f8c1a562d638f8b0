//! Counts one process's Ironic requests for a hold, and another's for the release.
//!
//! Repeated reads of the node after a change are polls; only the first is counted.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use terraform_provider_metal::{
    backend::ironic::IronicAccess,
    clock::{Clock, SystemClock},
    engine::{Control, Engine, MaintenanceRequest},
    maintenance::{
        decide::Finish,
        ids::MaintenanceId,
        lock::AskingState,
        machine::PowerTarget,
        spec::{MaintenanceKind, Spec, WaitFor},
        state::Ending,
    },
    store::{MemoryStore, Store},
};
use tokio_util::sync::CancellationToken;

use crate::{
    bench::{Bench, backend},
    proxy::Proxy,
    support::parts::parts,
};

/// Creates an engine like a new process.
fn process(url: &str, store: &Arc<dyn Store>, clock: &Arc<dyn Clock>) -> Engine {
    let key = "6f9619ff-8b86-d011-b42d-00c04fc964ff".to_owned();
    let ironic = backend(url, IronicAccess::Open, |settings| {
        settings.lock_keys = BTreeMap::from([("n1".to_owned(), key.clone())]);
    });
    Engine::new(parts(store, Arc::new(ironic), clock))
}

/// Returns the requests without repeated polls.
fn counted(requests: &[(String, String)]) -> Vec<String> {
    let mut counted: Vec<String> = Vec::new();
    let mut changes = false;
    for (method, path) in requests {
        let line = format!("{method} {}", path.split("fields=").next().unwrap_or(path));
        let polled = changes && line.ends_with('?') && counted.last() == Some(&line);
        changes |= method != "GET";
        if !polled {
            counted.push(line);
        }
    }
    counted
}

/// Returns the requests for a hold and for its release.
async fn play(power: Option<PowerTarget>) -> [Vec<String>; 2] {
    let bench = Bench::active().await;
    let proxy = Proxy::to(&bench.ironic.url()).await;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::clone(&clock)));
    let control = || Control {
        stop: CancellationToken::new(),
        timeout: Duration::from_mins(3),
        release_timeout: Duration::from_mins(3),
    };
    let wish = MaintenanceRequest {
        id: MaintenanceId::new("ops", "case").unwrap(),
        spec: Spec { server_power: power, ..Spec::new(MaintenanceKind::Maintenance, "n1") },
        wait_for: WaitFor::InMaintenance,
        asking: AskingState::default(),
    };
    let engine = process(&proxy.url(), &store, &clock);
    let held = engine.hold(&wish, &control()).await.unwrap();
    assert_eq!(held.finish, Finish::Reached);
    engine.close().await;
    let first = proxy.requests();
    let engine = process(&proxy.url(), &store, &clock);
    engine.release(&held.record.uid, "n1", Ending::Completed, &control()).await.unwrap();
    engine.close().await;
    let second = proxy.requests().split_off(first.len());
    assert_eq!(bench.ironic.node("n1").await["maintenance"], false);
    // Safety rule: the node is read right before each change, and between any two.
    for requests in [&first, &second] {
        for (at, (method, path)) in requests.iter().enumerate().filter(|(_, (method, _))| method != "GET") {
            let before = at.checked_sub(1).map(|before| &requests[before].1);
            assert!(
                before.is_some_and(|before| before.contains("maintenance_reason,fault")),
                "{method} {path}: {before:?}"
            );
        }
    }
    [counted(&first), counted(&second)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flow_costs_few_requests() {
    for (power, hold, release) in [(None, 10, 12), (Some(PowerTarget::Off), 16, 18)] {
        // Reads are cached for a second, which a flow on a busy machine can exceed.
        for left in (0..3).rev() {
            let played = Box::pin(play(power)).await;
            for (what, requests) in ["hold", "release"].into_iter().zip(&played) {
                println!("{power:?} {what}: {}\n  {}", requests.len(), requests.join("\n  "));
            }
            let [held, released] = played.map(|requests| requests.len());
            if held <= hold && released <= release {
                break;
            }
            assert!(left > 0, "{power:?}: {held} and {released} requests");
        }
    }
}
