//! Pods that end with their namespace while a Node is drained.

use bmc_simulator::PowerState;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::DeleteParams};
use serde_json::json;

use super::{OFF, Place};
use crate::support::{
    simulator::{Fleet, SOON, maintenance},
    workspace::Workspace,
};

for_one_host! {
    async fn a_pod_whose_namespace_is_deleted_is_waited_for(host) {
        let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        place.pod("app", Some("ReplicaSet"), json!({})).await;
        // Without a namespace controller, the namespace stays in deletion.
        let namespaces: Api<Namespace> = Api::all(place.client.clone());
        namespaces.delete(&place.namespace, &DeleteParams::default()).await.unwrap();
        fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", OFF));
        let apply = workspace.start_apply();
        apply.until_it_logs(&format!("remaining: {}/app (", place.namespace), SOON).await;
        assert_eq!(fleet.system("node1").power, PowerState::On);
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        place.pods().delete("app", &now).await.unwrap();
        apply.wait(SOON * 2).await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::Off);
        workspace.destroy().await.succeeded();
        assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
    }
}
