//! Nodes of OpenStack Ironic: what holding, releasing and refreshing them costs Ironic's API, beside openstacksdk doing the
//! same. Requests are counted in Ironic's own log.
use std::{
    path::Path,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream};
use reqwest::Method;
use serde_json::{Map, json};
use tokio::process::Command;

use crate::{
    measure::{ms, ratio},
    provider::{Held, Provider},
    support::ironic::{Ironic, Options},
    table::Row,
};

/// Nodes that are listed.
const NODES: usize = 1000;
/// Nodes that are held.
const HELD: usize = 200;
/// As `-parallelism=50`.
const AT_ONCE: usize = 50;

/// The same by the client library of OpenStack: maintenance, power off, power on, out of maintenance.
const SDK: &str = r#"
import sys, time, openstack
from concurrent.futures import ThreadPoolExecutor
cloud = openstack.connect(auth_type="none", baremetal_endpoint_override=sys.argv[1], baremetal_api_version="1.95")
nodes = [f"node{n}" for n in range(1, int(sys.argv[2]) + 1)]
def hold(node):
    cloud.baremetal.set_node_maintenance(node, "bench")
    cloud.baremetal.set_node_power_state(node, "power off", wait=True)
def release(node):
    cloud.baremetal.set_node_power_state(node, "power on", wait=True)
    cloud.baremetal.unset_node_maintenance(node)
with ThreadPoolExecutor(int(sys.argv[3])) as pool:
    for work in hold, release:
        list(pool.map(work, nodes))
"#;

/// What Ironic was asked.
#[derive(Clone, Copy, Default)]
struct Asked {
    requests: usize,
    locked: usize,
}

/// Counts the requests in Ironic's log.
fn asked(ironic: &Ironic) -> Asked {
    let log = ironic.log();
    let lines = log.lines().filter(|line| line.contains("127.0.0.1 - ") && line.contains(" /v1"));
    lines.fold(Asked::default(), |all, line| Asked {
        requests: all.requests + 1,
        locked: all.locked + usize::from(line.contains(" - 409 ")),
    })
}

impl Asked {
    fn since(self, before: Self) -> Self {
        Self { requests: self.requests - before.requests, locked: self.locked - before.locked }
    }

    #[allow(clippy::cast_precision_loss, reason = "a few thousand")]
    fn text(self, nodes: usize, took: Duration) -> String {
        let each = |count: usize| count as f64 / nodes as f64;
        let per = ms(took / u32::try_from(nodes).unwrap());
        format!("per node {:.2} requests, {:.2} of them 409, {per}", each(self.requests), each(self.locked))
    }
}

async fn fleet() -> Ironic {
    let ironic = Ironic::start(Options::default()).await;
    let made = stream::iter(1..=NODES).map(async |number| {
        let node = json!({ "name": format!("node{number}"), "driver": "fake-hardware" });
        ironic.call(Method::POST, "/v1/nodes", Some(node)).await;
    });
    made.buffer_unordered(8).collect::<()>().await;
    ironic.sql("UPDATE nodes SET provision_state = 'active', power_state = 'power on'").await;
    ironic
}

pub async fn measure() -> Vec<Row> {
    let ironic = fleet().await;
    let folder = tempfile::tempdir().unwrap();
    let keys: Map<String, serde_json::Value> =
        (1..=HELD).map(|number| (format!("node{number}"), json!(uuid::Uuid::new_v4().to_string()))).collect();
    let provider = Provider::configured(&json!({
        "coordination_url": format!("sqlite://{}", folder.path().join("metal.db").display()),
        "owner": "bench",
        "ironic": { "endpoint": ironic.url(), "lock_keys": keys, "soft_power_timeout": "10s" },
    }))
    .await;

    let (before, begin) = (asked(&ironic), Instant::now());
    let more = json!({
        "server_power": "Off", "timeouts": { "create": "30m", "update": null, "delete": "30m" },
    });
    let holds = stream::iter(1..=HELD)
        .map(async |number| provider.create(&format!("node{number}"), &format!("held-{number}"), &more).await);
    let held: Vec<Held> = holds.buffer_unordered(AT_ONCE).collect().await;
    let (ours, holding) = (asked(&ironic).since(before), begin.elapsed());

    let (before, begin) = (asked(&ironic), Instant::now());
    provider.refresh_all(&held).await;
    let (refreshed, refreshing) = (asked(&ironic).since(before), begin.elapsed());

    let (before, begin) = (asked(&ironic), Instant::now());
    stream::iter(held).map(async |held| provider.destroy(held).await).buffer_unordered(AT_ONCE).collect::<()>().await;
    let (released, releasing) = (asked(&ironic).since(before), begin.elapsed());
    provider.end().await;

    let (before, begin) = (asked(&ironic), Instant::now());
    sdk(&ironic).await;
    let (theirs, took) = (asked(&ironic).since(before), begin.elapsed());

    let both = Asked { requests: ours.requests + released.requests, locked: ours.locked + released.locked };
    vec![
        Row::new(
            format!("refresh of {HELD} held nodes of an Ironic with {NODES}"),
            format!("{} requests, {}", refreshed.requests, ms(refreshing)),
        ),
        Row::new(
            format!("{HELD} nodes of Ironic held off and released, {AT_ONCE} at once"),
            both.text(HELD, holding + releasing),
        )
        .against(
            format!("openstacksdk: maintenance, off, on, out of maintenance: {}", theirs.text(HELD, took)),
            ratio(holding + releasing, took),
        ),
    ]
}

async fn sdk(ironic: &Ironic) {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/ironic/bin/python");
    let arguments = [ironic.url(), HELD.to_string(), AT_ONCE.to_string()];
    let run = Command::new(python).args(["-c", SDK]).args(arguments).output().await.unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}
