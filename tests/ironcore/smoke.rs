//! A server comes up and goes through a maintenance in every family that has one.

use bmc_simulator::{Simulator, SimulatorConfig};

use crate::support::ironcore::{Options, family::Family, world::World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn comes_up() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    for family in Family::ALL {
        let simulator = Simulator::start(SimulatorConfig::with_systems(1)).await.unwrap();
        let world = World::start(family, Options::default(), &simulator).await;
        world.claim("node1", "owners", "claim1").await;
        println!("{family:?} {}", world.requests().len());
    }
}
