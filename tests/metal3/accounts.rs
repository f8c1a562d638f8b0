//! Secrets with unusable BMC accounts are reported before any BMC request.

use serde_json::{Value, json};
use terraform_provider_metal::backend::{Backend as _, metal3::Hold};

use super::holds::backend;
use crate::support::metal3::{operator::Options, world::World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_of_an_account_is_told_before_the_bmc_is_asked() {
    let world = World::start(1, Options::default()).await;
    let secret = |data: Value| json!({ "data": data });
    let (user, password) = ("YWRtaW4=", "c2VjcmV0");
    let cases = [
        (secret(json!({"username": user, "password": null})), "Secret", "has no password"),
        (secret(json!({"username": null, "password": password})), "Secret", "has no username"),
        // Only a line break, as from `echo | base64`.
        (secret(json!({"username": user, "password": "Cg=="})), "Secret", "has an empty password"),
        (secret(json!({"username": "", "password": password})), "Secret", "has an empty username"),
        (json!({"spec": {"bmc": {"credentialsName": "another"}}}), "BareMetalHost", "another does not exist"),
        (json!({"spec": {"bmc": {"credentialsName": ""}}}), "BareMetalHost", "spec.bmc.credentialsName"),
    ];
    world.running.stop();
    let before = world.simulator.sequence();
    for (change, kind, says) in cases {
        world.merge(kind, if kind == "Secret" { "node1-bmc" } else { "node1" }, change).await;
        let told = backend(&world, Hold::Detach).machine("node1").unwrap().identify().await.unwrap_err().to_string();
        assert!(told.contains(says), "{says}: {told}");
        assert!(!told.contains("s3cret") && !told.contains(password), "{told}");
    }
    assert_eq!(world.simulator.sequence(), before, "a BMC received a request");
}
