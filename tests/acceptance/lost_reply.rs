//! Lost replies to executed requests: the result is observed, and no request is repeated.

use bmc_simulator::{Fault, JournalQuery};

use crate::support::{
    images::Images,
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

for_one_host! {
    async fn a_lost_reply_is_answered_by_looking(host) {
        for path in ["*ComputerSystem.Reset", "/redfish/v1/Systems/1", "*VirtualMedia.InsertMedia"] {
            let (fleet, images, workspace) = (Fleet::new(1).await, Images::start().await, Workspace::new(host));
            let more = format!(
                "server_power = \"On\"\n  boot_configuration = {{ method = \"virtual_media\", image = \"{}\" }}",
                images.url("rescue.iso")
            );
            fleet.configure(&workspace, &maintenance("node1", "m", &more));
            let method = if path.contains('*') { "POST" } else { "PATCH" };
            let _ = fleet.simulator.inject(Fault::lose_reply().on_request(method, path).times(2));
            workspace.apply().await.succeeded();
            assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"], "{path}");
            assert!(fleet.runs("node1").contains("rescue.iso"), "{path}");
            let inserts = fleet.simulator.journal(&JournalQuery::system("node1").request("POST", "*InsertMedia"));
            assert_eq!(inserts.len(), 1, "{path}");
            workspace.destroy().await.succeeded();
            assert_eq!(fleet.resets("node1").len(), 4, "{path}: {:?}", fleet.resets("node1"));
        }
    }
}
