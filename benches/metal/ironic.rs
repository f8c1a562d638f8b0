//! OpenStack Ironic: API load of holds, releases and refreshes, compared with openstacksdk.
//! Requests are counted in Ironic's log.
use std::{
    path::Path,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream};
use serde_json::{Map, json};
use tokio::process::Command;

use crate::{
    measure::{ms, ratio},
    provider::{Held, Provider},
    support::ironic::{Ironic, Options},
    table::Row,
};

/// Number of listed nodes.
const NODES: usize = 1000;
/// Default number of held nodes (`BENCH_IRONIC_HELD`): 200 take six minutes on two cores.
const HELD: usize = 200;
/// As `-parallelism=50`.
const AT_ONCE: usize = 50;

/// Same parallelism as the provider uses for one Ironic. With 50, Ironic resets connections, and
/// openstacksdk fails because it does not retry.
const SDK_AT_ONCE: usize = 16;

/// The same steps with openstacksdk: maintenance, power off, power on, end of maintenance. Reset
/// connections are counted, and the idempotent call is retried.
const SDK: &str = r#"
import sys, time, openstack
from concurrent.futures import ThreadPoolExecutor
from keystoneauth1.exceptions import ConnectFailure
cloud = openstack.connect(auth_type="none", baremetal_endpoint_override=sys.argv[1], baremetal_api_version="1.95")
nodes = [f"node{n}" for n in range(1, int(sys.argv[2]) + 1)]
resets = []
def call(what, *arguments, **options):
    for _ in range(20):
        try:
            return what(*arguments, **options)
        except ConnectFailure as error:
            resets.append(error)
    raise resets[-1]
def hold(node):
    call(cloud.baremetal.set_node_maintenance, node, "bench")
    call(cloud.baremetal.set_node_power_state, node, "power off", wait=True)
def release(node):
    call(cloud.baremetal.set_node_power_state, node, "power on", wait=True)
    call(cloud.baremetal.unset_node_maintenance, node)
with ThreadPoolExecutor(int(sys.argv[3])) as pool:
    for work in hold, release:
        list(pool.map(work, nodes))
print(len(resets))
"#;

/// Requests to Ironic.
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

/// Script that copies a node in the database.
const COPY: &str = r#"
import sqlite3, sys, uuid
db = sqlite3.connect(sys.argv[1], timeout=30)
db.row_factory = sqlite3.Row
node = dict(db.execute("SELECT * FROM nodes").fetchone())
del node["id"]
for number in range(2, int(sys.argv[2]) + 1):
    node.update(uuid=str(uuid.uuid4()), name=f"node{number}")
    db.execute(f"INSERT INTO nodes ({','.join(node)}) VALUES ({','.join('?' * len(node))})", list(node.values()))
db.commit()
"#;

/// Script that lists the nodes with openstacksdk, with all fields.
const LIST: &str = r#"
import sys, openstack
cloud = openstack.connect(auth_type="none", baremetal_endpoint_override=sys.argv[1], baremetal_api_version="1.95")
print(len(list(cloud.baremetal.nodes(details=True))))
"#;

async fn python(script: &str, arguments: &[String]) -> String {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/ironic/bin/python");
    let run = Command::new(python).args(["-c", script]).args(arguments).output().await.unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

async fn fleet() -> Ironic {
    let ironic = Ironic::start(Options::default()).await;
    ironic.active_node("node1").await;
    let database = ironic.folder().join("ironic.sqlite").display().to_string();
    python(COPY, &[database, NODES.to_string()]).await;
    ironic
}

pub async fn measure() -> Vec<Row> {
    let ironic = fleet().await;
    let held_nodes = std::env::var("BENCH_IRONIC_HELD").map_or(HELD, |number| number.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let keys: Map<String, serde_json::Value> =
        (1..=held_nodes).map(|number| (format!("node{number}"), json!(uuid::Uuid::new_v4().to_string()))).collect();
    let provider = Provider::configured(&json!({
        "coordination_url": format!("sqlite://{}", folder.path().join("metal.db").display()),
        "owner": "bench",
        "ironic": { "endpoint": ironic.url(), "lock_keys": keys, "soft_power_timeout": "10s" },
    }))
    .await;

    // Warm-up, without counting.
    assert_eq!(provider.names().await.len(), NODES);
    let (before, begin) = (asked(&ironic), Instant::now());
    assert_eq!(provider.names().await.len(), NODES);
    let (listed, listing) = (asked(&ironic).since(before), begin.elapsed());
    let (before, begin) = (asked(&ironic), Instant::now());
    assert_eq!(python(LIST, &[ironic.url()]).await.trim(), NODES.to_string());
    let (sdk_listed, sdk_listing) = (asked(&ironic).since(before), begin.elapsed());

    let (before, begin) = (asked(&ironic), Instant::now());
    let more = json!({
        "server_power": "Off", "timeouts": { "create": "30m", "update": null, "delete": "30m" },
    });
    let holds = stream::iter(1..=held_nodes)
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
    println!("ours: {} and {}", ours.text(held_nodes, holding), released.text(held_nodes, releasing));

    let (before, begin) = (asked(&ironic), Instant::now());
    let resets = python(SDK, &[ironic.url(), held_nodes.to_string(), SDK_AT_ONCE.to_string()]).await;
    let (theirs, took) = (asked(&ironic).since(before), begin.elapsed());

    let both = Asked { requests: ours.requests + released.requests, locked: ours.locked + released.locked };
    vec![
        Row::new(
            format!("`metal_servers` of an Ironic with {NODES} nodes"),
            format!("{} requests, {}", listed.requests, ms(listing)),
        )
        .against(
            format!(
                "openstacksdk, list with details, its start included: {} requests, {}",
                sdk_listed.requests,
                ms(sdk_listing)
            ),
            ratio(listing, sdk_listing),
        ),
        Row::new(
            format!("refresh of {held_nodes} held nodes of an Ironic with {NODES}"),
            format!("{} requests, {}", refreshed.requests, ms(refreshing)),
        ),
        Row::new(
            format!("{held_nodes} nodes of Ironic held off and released, {AT_ONCE} in parallel"),
            both.text(held_nodes, holding + releasing),
        )
        .against(
            format!(
                "openstacksdk, {SDK_AT_ONCE} in parallel: maintenance, off, on, out of maintenance: {}; {} connections reset",
                theirs.text(held_nodes, took),
                resets.trim()
            ),
            ratio(holding + releasing, took),
        ),
    ]
}
