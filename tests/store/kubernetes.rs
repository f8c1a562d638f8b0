//! What the store in a Kubernetes cluster promises beyond what every store does.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;

use crate::support::kubernetes::Kubernetes;

/// A definition of a kind and one of that kind.
const THING: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec:
  group: example.org
  names: {kind: Thing, plural: things}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
---
apiVersion: example.org/v1
kind: Thing
metadata: {name: thing}
";

#[test]
fn the_test_cluster_keeps_its_data_and_knows_who_asks() {
    let mut cluster = Kubernetes::start();
    let namespace = cluster.namespace();
    cluster.apply_in(&namespace, "{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: {a: b}}");
    cluster.apply(THING);
    cluster.kill();
    cluster.start_again();
    let configs = [
        (cluster.kubeconfig(), "admin"),
        (cluster.kubeconfig_of("runner"), "User \"runner\" cannot"),
        (cluster.user("Zoë", &["one", "two"]), "User \"Zoë\" cannot"),
    ];
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        for (config, who) in configs {
            let all: Api<ConfigMap> = Api::namespaced(Kubernetes::client(&config).await, &namespace);
            match all.get("x").await {
                Ok(found) => assert_eq!((who, found.data.unwrap()["a"].as_str()), ("admin", "b")),
                Err(refused) => assert!(refused.to_string().contains(who), "{refused}"),
            }
        }
    });
}
