//! Records the controllers' behaviour, to create a table or to compare with the real controllers.
//! Run manually:
//!
//! - `cargo test --test cluster_api record::ours -- --ignored --nocapture`; with `OLDER=1` for the
//!   older controllers
//! - `EXTENSION=… MAINTENANCE_CONTROLLER=… cargo test --test cluster_api record::theirs --
//!   --ignored --nocapture`: with programs that run these controllers in the foreground. Both read
//!   `KUBECONFIG`; the second also reads `config/maintenance.yaml` in its working directory. It
//!   takes 40 minutes.

use std::time::Duration;

use crate::{
    compare, scenario,
    stage::{Controllers, End, Programs, Stage, write},
    support::{
        cluster_api::{
            APPROVE_MAINTENANCE,
            journal::Change,
            world::{Options, World, install},
        },
        ironcore::patience,
        kubernetes::Kubernetes,
    },
};

/// End condition of a step: no change for longer than a lease, or in slow steps for longer than
/// the extension's resync interval of a minute.
fn quiet() -> End {
    let seconds = |name: &str, otherwise| std::env::var(name).ok().map_or(otherwise, |text| text.parse().unwrap());
    End::Quiet { normal: Duration::from_secs(seconds("QUIET", 6)), slow: Duration::from_secs(seconds("SLOW", 75)) }
}

async fn theirs_on_a_cluster() -> (Kubernetes, tempfile::TempDir, Programs) {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let kubernetes = tokio::task::spawn_blocking(|| {
        let kubernetes = Kubernetes::start();
        install(&kubernetes);
        kubernetes
    })
    .await
    .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let programs = Programs {
        extension: variable("EXTENSION"),
        maintenance: variable("MAINTENANCE_CONTROLLER"),
        folder: folder.path().to_owned(),
        extension_runs: None,
        maintenance_runs: None,
    };
    (kubernetes, folder, programs)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "only records"]
async fn ours() {
    print!("{}", compare::play(quiet(), std::env::var_os("OLDER").is_some()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real controllers"]
async fn theirs() {
    let (kubernetes, _folder, programs) = theirs_on_a_cluster().await;
    let namespace = tokio::task::block_in_place(|| kubernetes.namespace());
    let world = World::bare(&kubernetes, &kubernetes, &namespace, Options::default()).await;
    let mut stage = Stage::new(world, Controllers::Real(programs), quiet());
    scenario::play(&mut stage).await;
    print!("{}", write(&stage.played));
}

/// Counts approvals that reappear after the request was removed, if the label is removed just as
/// the Node is approved (`ROUNDS` attempts).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real controllers; measures"]
async fn approvals_that_come_back() {
    let (kubernetes, _folder, programs) = theirs_on_a_cluster().await;
    let namespace = tokio::task::block_in_place(|| kubernetes.namespace());
    let world = World::bare(&kubernetes, &kubernetes, &namespace, Options::default()).await;
    let mut stage = Stage::new(world, Controllers::Real(programs), quiet());
    stage.start_extension(false);
    stage.start_maintenance();
    let world = &stage.world;
    world.add("m1").await;
    let rounds: u32 = std::env::var("ROUNDS").map_or(100, |text| text.parse().unwrap());
    let (mut came_back, node) = (0, world.node_name("m1"));
    for _ in 0..rounds {
        stage.label("m1", Some("requested")).await;
        while world.journal.now("Node", &node).is_none_or(|node| node.label(APPROVE_MAINTENANCE).is_none()) {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        stage.label("m1", None).await;
        let settled = patience::until("approved or returned", async || {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let approved = world.maintenance("m1").await.is_some();
            let (node, free) = (world.node("m1").await, &serde_json::Value::Null);
            let returned = &node["metadata"]["labels"][APPROVE_MAINTENANCE] == free;
            (approved || returned).then_some(approved)
        });
        if settled.await {
            came_back += 1;
            stage.label("m1", None).await;
            let returned = |node: &serde_json::Value| node["metadata"]["labels"][APPROVE_MAINTENANCE].is_null();
            world.until_node("m1", "returned", returned).await;
        }
    }
    let changes = world.journal.changes();
    let labels =
        |change: &Change| change.kind == "Machine" && change.words.iter().any(|word| word.contains(" maintenance"));
    let ours: Vec<&Change> = changes.iter().filter(|change| labels(change)).collect();
    let late = ours
        .windows(2)
        .filter(|pair| pair[0].words == ["-label maintenance"] && pair[1].words == ["label maintenance=approved"]);
    let late: Vec<Duration> = late.map(|pair| pair[1].heard.saturating_duration_since(pair[0].heard)).collect();
    println!("{came_back} of {rounds} approvals came back, after {late:?}");
}
