//! `data.metal_servers` on a cluster: its Servers by name and label, for hosts and the command
//! line.

use serde_json::json;

use super::{cluster, configure};
use crate::{
    servers::ironcore::{
        Options,
        api::{Key, Kind},
        family::Family,
    },
    support::workspace::Workspace,
};

const LISTS: &str = r#"
data "metal_servers" "storage" {
  labels = { role = "storage" }
}
data "metal_servers" "all" {
  name_pattern = "node*"
}
output "storage" {
  value = data.metal_servers.storage.names
}
output "all" {
  value = data.metal_servers.all.servers
}
"#;

for_one_host! {
    async fn servers_of_a_cluster_are_listed_by_label_and_name(host) {
        let world = cluster(Family::V0_7, 2, Options::default()).await;
        let label = json!({"metadata": {"labels": {"role": "storage"}}});
        world.cluster.merge(Kind::Server, &Key::cluster("node2"), label).await.unwrap();
        let workspace = Workspace::new(host);
        configure(&world, &workspace, LISTS);
        workspace.apply().await.succeeded();
        assert_eq!(workspace.json(&["output", "-json", "storage"]).await, json!(["node2"]));
        let all = workspace.json(&["output", "-json", "all"]).await;
        assert_eq!((&all["node1"]["backend"], &all["node2"]["labels"]["role"]), (&json!("metal_operator"), &json!("storage")), "{all}");
    }
}
