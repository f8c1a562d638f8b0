//! Compares the stand-ins with the table.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    scenario,
    stage::{Controllers, End, Stage, read, write},
    support::{
        cluster_api::world::{Options, World, install},
        kubernetes::Kubernetes,
    },
};

const TABLE: &str = include_str!("table.txt");

/// Steps in which older controllers differ.
const OLDER: &str = include_str!("older.txt");

/// Plays the scenario with the newest or the older stand-ins.
pub async fn play(end: End, is_older: bool) -> String {
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
    options.maintenance.waits_for_drains = is_older;
    let world = World::bare(kubernetes, kubernetes, &namespace, options).await;
    let mut stage = Stage::new(world, Controllers::StandIns, end);
    scenario::play(&mut stage).await;
    write(&stage.played)
}

/// Each step's writes are compared while it is played.
async fn agrees(table: BTreeMap<String, Vec<String>>, is_older: bool) {
    let played = play(End::Table(Arc::new(table)), is_older).await;
    let steps = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with([' ', '#']) && !line.is_empty()).map(str::to_owned).collect()
    };
    assert_eq!(steps(&played), steps(TABLE));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stand_ins_do_what_the_controllers_did() {
    agrees(read(TABLE), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stand_ins_do_what_older_controllers_did() {
    let (mut table, older) = (read(TABLE), read(OLDER));
    assert!(older.iter().all(|(step, lines)| table.get(step).is_some_and(|now| now != lines)), "{older:?}");
    table.extend(older);
    agrees(table, true).await;
}
