//! Compares the stand-ins with the tables.

use std::sync::Arc;

use bmc_simulator::{Simulator, SimulatorConfig};

use crate::{
    scenario,
    stage::{End, Stage, read, write},
    support::ironcore::{Options, family::Family, world::World},
};

fn table(family: Family) -> String {
    let path = format!("{}/tests/ironcore/tables/{family:?}.txt", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Plays the scenario with the stand-ins.
pub async fn play(family: Family, end: End) -> String {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let simulator = Simulator::start(SimulatorConfig::with_systems(1)).await.unwrap();
    // The stage acts as boot operator.
    let options = Options::default();
    options.boot.close();
    let world = World::empty(family, options, &simulator).await;
    let mut stage = Stage::new(world.cluster.clone(), family, "node1", end);
    scenario::play(&mut stage, async |_: &Stage| world.add_server("node1").await).await;
    write(&stage.played)
}

async fn holds(family: Family) {
    let table = table(family);
    let played = play(family, End::Table(Arc::new(read(&table)))).await;
    // Each step's states were compared while it was played.
    let steps =
        |text: &str| -> Vec<String> { text.lines().filter(|line| !line.starts_with(' ')).map(str::to_owned).collect() };
    assert_eq!(steps(&played), steps(&table));
}

macro_rules! families {
    ($($name:ident $family:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                holds(Family::$family).await;
            }
        )*
    };
}

families! {
    v0_1 V0_1,
    v0_3 V0_3,
    v0_5 V0_5,
    v0_6 V0_6,
    v0_7 V0_7,
    maintenance_group MaintenanceGroup,
    parked Parked,
}
