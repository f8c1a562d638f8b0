//! `kill -9` at each step of entering and leaving both gates: the next run goes on, nothing is done twice, and nothing of ours
//! stays.

use bmc_simulator::PowerState;

use super::{
    HELD,
    chain::{configure, place},
    traces,
};
use crate::{
    servers::{
        cluster_api::{MAINTENANCE, world::World},
        metal3,
    },
    support::{
        simulator::{Fleet, SOON, maintenance},
        workspace::Workspace,
    },
};

/// What a run says when it has come to where it is killed.
const ON_THE_WAY_IN: [&str; 5] = [
    "ask Cluster API for it",
    "granted by Cluster API",
    "lock acquired",
    "taking it out of service in its own system",
    "setting the power",
];
const ON_THE_WAY_OUT: [&str; 3] =
    ["putting the power back", "giving it back to its own system", "take the request back from"];

/// Nothing is detached that is not approved, and no server is off whose Node is not drained.
async fn kept_order(hosts: &metal3::world::World, machines: &World) {
    machines
        .always("a detached host is approved", |moment| {
            let mut hosts = moment.iter().filter(|((kind, _), _)| *kind == "BareMetalHost");
            let detached = hosts.any(|(_, marks)| marks.annotations.contains_key(metal3::world::DETACHED));
            let machine = moment.get(&("Machine", "m1".to_owned()));
            !detached || machine.and_then(|it| it.label(MAINTENANCE)) == Some("approved")
        })
        .await;
    assert_eq!(traces(machines, "m1").await, Vec::<String>::new());
    assert_eq!(hosts.traces("node1").await, Vec::<String>::new());
}

for_each_host! {
    async fn a_run_that_is_killed_anywhere_in_the_chain_is_continued(host) {
        let (hosts, machines) = place(false).await;
        let fleet = Fleet { simulator: hosts.simulator.clone() };
        let workspace = Workspace::new(host);
        configure(&hosts, &workspace, &maintenance("node1", "bios", "server_power = \"Off\""));
        for said in ON_THE_WAY_IN {
            let apply = workspace.start_apply();
            apply.until_it_logs(said, SOON * 2).await;
            apply.kill_everything();
        }
        workspace.apply().await.succeeded();
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        assert_eq!(fleet.system("node1").power, PowerState::Off);
        let offs = fleet.resets("node1").into_iter().filter(|kind| kind.contains("Shutdown") || kind == "ForceOff");
        assert_eq!(offs.count(), 1, "{:?}", fleet.resets("node1"));
        for said in ON_THE_WAY_OUT {
            let destroy = workspace.start_destroy();
            destroy.until_it_logs(said, SOON * 2).await;
            destroy.kill_everything();
        }
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
        kept_order(&hosts, &machines).await;
    }
}
