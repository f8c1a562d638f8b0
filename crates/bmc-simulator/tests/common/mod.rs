//! A simulator with a client that trusts it.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "tests may stop")]

use std::sync::Once;
use std::time::Duration;

use bmc_simulator::{Personality, Simulator, SimulatorConfig};
use reqwest::{Certificate, Client, Response};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

/// Long enough for any machine under any load; successful tests never wait this long.
pub const LONG: Duration = Duration::from_secs(20);

pub const SYSTEM: &str = "/redfish/v1/Systems/1";

pub struct Bench {
    pub simulator: Simulator,
    pub client: Client,
    pub url: String,
}

pub fn client(simulator: &Simulator) -> Client {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        rustls::crypto::aws_lc_rs::default_provider().install_default().unwrap();
    });
    let mut builder = Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy();
    if let Some(trust) = simulator.trust() {
        let ca = Certificate::from_pem(trust.ca_pem.as_bytes()).unwrap();
        builder = builder.tls_certs_only([ca]);
    }
    builder.build().unwrap()
}

impl Bench {
    pub async fn start(config: SimulatorConfig) -> Self {
        let simulator = Simulator::start(config).await.unwrap();
        let first = simulator.systems()[0].clone();
        Self { client: client(&simulator), url: simulator.url(&first).unwrap(), simulator }
    }

    /// Starts one machine, `node1`, over plain HTTP.
    pub async fn one() -> Self {
        Self::start(SimulatorConfig::with_systems(1).without_tls()).await
    }

    pub async fn with(personality: Personality) -> Self {
        let config = SimulatorConfig::with_systems(1).without_tls().with_personality(personality);
        Self::start(config).await
    }

    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let credentials = self.simulator.credentials();
        self.client
            .request(method.parse().unwrap(), format!("{}{path}", self.url))
            .basic_auth(&credentials.username, Some(credentials.password.expose_secret()))
    }

    pub async fn get(&self, path: &str) -> Value {
        let response = self.request("GET", path).send().await.unwrap();
        assert_eq!(response.status(), 200, "GET {path}");
        response.json().await.unwrap()
    }

    pub async fn send(&self, method: &str, path: &str, body: Value) -> Response {
        self.request(method, path).json(&body).send().await.unwrap()
    }

    pub async fn post(&self, path: &str, body: Value) -> u16 {
        self.send("POST", path, body).await.status().as_u16()
    }

    pub async fn patch(&self, path: &str, body: Value) -> u16 {
        self.send("PATCH", path, body).await.status().as_u16()
    }

    pub async fn reset(&self, kind: &str) -> u16 {
        self.post(&format!("{SYSTEM}/Actions/ComputerSystem.Reset"), json!({ "ResetType": kind })).await
    }

    pub async fn set_boot(&self, enabled: &str, target: &str) -> u16 {
        let boot = json!({
            "BootSourceOverrideEnabled": enabled,
            "BootSourceOverrideTarget": target,
        });
        self.patch(SYSTEM, json!({ "Boot": boot })).await
    }

    pub async fn insert(&self, device: &str, image: &str) -> u16 {
        let path = format!("{SYSTEM}/VirtualMedia/{device}/Actions/VirtualMedia.InsertMedia");
        self.post(&path, json!({ "Image": image })).await
    }

    pub async fn eject(&self, device: &str) -> u16 {
        let path = format!("{SYSTEM}/VirtualMedia/{device}/Actions/VirtualMedia.EjectMedia");
        self.post(&path, json!({})).await
    }
}

/// Returns the message keys in an error response.
pub async fn messages(response: Response) -> Vec<String> {
    let body: Value = response.json().await.unwrap();
    body["error"]["@Message.ExtendedInfo"]
        .as_array()
        .unwrap()
        .iter()
        .map(|info| {
            let id = info["MessageId"].as_str().unwrap();
            id.rsplit('.').next().unwrap().to_owned()
        })
        .collect()
}
