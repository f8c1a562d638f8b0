//! Records the operators' behaviour, to create a table or to compare with real operators. Run
//! manually:
//!
//! - `FAMILY=V0_7 cargo test --test ironcore record::ours -- --ignored --nocapture`
//! - `FAMILY=V0_7 KUBECONFIG=… BMC_PORT=… BMC_USERNAME=… BMC_PASSWORD=… BMC_PROTOCOL=… cargo test
//!   --test ironcore record::theirs -- --ignored --nocapture`: with an otherwise empty cluster
//!   that runs this family's operators except boot-operator, and a BMC on loopback over HTTP.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::json;

use crate::{
    compare, scenario,
    stage::{End, Stage, write},
    support::{
        ironcore::{
            api::{Cluster, Kind},
            family::Family,
        },
        kubernetes::Kubernetes,
    },
};

/// End condition of a step: no change for `QUIET` seconds, longer than any operator sleeps here.
fn quiet() -> End {
    let seconds = std::env::var("QUIET").ok().map_or(6, |text| text.parse().expect("QUIET is not a valid number"));
    End::Quiet(Duration::from_secs(seconds))
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

fn family() -> Family {
    Family::named(&variable("FAMILY")).expect("FAMILY is not a known family")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "only records"]
async fn ours() {
    print!("{}", compare::play(family(), quiet()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real operators"]
async fn theirs() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let cluster = Cluster { client: Kubernetes::client(variable("KUBECONFIG").as_ref()).await };
    // The operator itself creates a server for each system of a BMC.
    let mut stage = Stage::new(cluster, family(), "bmc-system-0", quiet());
    let arrive = async |on: &Stage| {
        let word = |name: &str| BASE64_STANDARD.encode(variable(name));
        let data = json!({"username": word("BMC_USERNAME"), "password": word("BMC_PASSWORD")});
        on.cluster.create(Kind::BmcSecret, json!({"metadata": {"name": "bmc"}, "data": data})).await.unwrap();
        let port: u16 = variable("BMC_PORT").parse().unwrap();
        let spec = json!({
            "access": {"ip": "127.0.0.1", "macAddress": "23:11:8a:33:cf:ea"},
            "bmcSecretRef": {"name": "bmc"},
            "protocol": {"name": variable("BMC_PROTOCOL"), "port": port, "scheme": "http"},
        });
        on.cluster.create(Kind::Bmc, json!({"metadata": {"name": "bmc"}, "spec": spec})).await.unwrap();
    };
    scenario::play(&mut stage, arrive).await;
    print!("{}", write(&stage.played));
}
