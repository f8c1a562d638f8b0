//! The stand-ins against the table.

use std::{sync::Arc, time::Duration};

use crate::{
    scenario,
    stage::{Controllers, End, Stage, read, write},
    support::{
        cluster_api::world::{Options, World, install},
        kubernetes::Kubernetes,
    },
};

/// The table.
const TABLE: &str = include_str!("table.txt");

/// Plays the scenario with the stand-ins.
pub async fn play(end: End) -> String {
    let kubernetes = tokio::task::spawn_blocking(|| {
        let kubernetes = Kubernetes::shared();
        install(kubernetes);
        kubernetes
    })
    .await
    .unwrap();
    let namespace = tokio::task::spawn_blocking(|| kubernetes.namespace()).await.unwrap();
    let mut options = Options::default();
    options.extension.resync = Duration::from_millis(50);
    options.maintenance.requeue = Duration::from_millis(50);
    let world = World::bare(kubernetes, kubernetes, &namespace, options).await;
    let mut stage = Stage::new(world, Controllers::StandIns, end);
    scenario::play(&mut stage).await;
    write(&stage.played)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stand_ins_do_what_the_controllers_did() {
    let played = play(End::Table(Arc::new(read(TABLE)))).await;
    // What was written in each step was compared while it was played.
    let steps = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with([' ', '#']) && !line.is_empty()).map(str::to_owned).collect()
    };
    assert_eq!(steps(&played), steps(TABLE));
}
