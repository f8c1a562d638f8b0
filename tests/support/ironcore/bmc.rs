//! The server controller's real Redfish calls.

use std::{
    fmt,
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::{
    Context,
    api::{Key, Kind, Object, text},
};

/// Reason why a reconcile failed; it is retried.
#[derive(Debug)]
pub enum Failure {
    Api(kube::Error),
    Bmc(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Api(error) => write!(out, "{error}"),
            Self::Bmc(error) => write!(out, "BMC: {error}"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        Self::Api(error)
    }
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        Self::Bmc(error.to_string())
    }
}

/// One machine behind its BMC.
pub struct Machine {
    http: reqwest::Client,
    base: String,
    username: String,
    password: String,
}

impl Machine {
    /// Connects to a server's BMC. Returns `None` if the BMC is marked unreachable.
    pub async fn of(ctx: &Context, server: &Object) -> Result<Option<Self>, Failure> {
        let (address, protocol, secret) = if let Some(key) = Key::referred(server, "/spec/bmcRef") {
            let bmc = ctx.cluster.get(Kind::Bmc, &Key::cluster(&key.name)).await?;
            let bmc = bmc.ok_or_else(|| Failure::Bmc(format!("BMC {} does not exist", key.name)))?;
            if !matches!(text(&bmc, "/status/state"), "" | "Enabled") {
                return Ok(None);
            }
            let address = text(&bmc, "/spec/access/ip").to_owned();
            (address, bmc.data["spec"]["protocol"].clone(), text(&bmc, "/spec/bmcSecretRef/name").to_owned())
        } else {
            let inline = &server.data["spec"]["bmc"];
            let address = inline["address"].as_str().ok_or_else(|| Failure::Bmc("no BMC".to_owned()))?.to_owned();
            (address, inline["protocol"].clone(), text(server, "/spec/bmc/bmcSecretRef/name").to_owned())
        };
        let found = ctx.cluster.get(Kind::BmcSecret, &Key::cluster(&secret)).await?;
        let found = found.ok_or_else(|| Failure::Bmc(format!("BMCSecret {secret} does not exist")))?;
        let word = |name: &str| {
            let bytes = BASE64_STANDARD.decode(text(&found, &format!("/data/{name}"))).unwrap_or_default();
            String::from_utf8(bytes).unwrap_or_default()
        };
        let scheme = protocol["scheme"].as_str().filter(|scheme| !scheme.is_empty()).unwrap_or("https");
        Ok(Some(Self {
            http: ctx.http.clone(),
            base: format!("{scheme}://{address}:{}", protocol["port"]),
            username: word("username"),
            password: word("password"),
        }))
    }

    async fn send(&self, method: reqwest::Method, path: &str, body: Option<Value>) -> Result<Value, Failure> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        request = request.basic_auth(&self.username, Some(&self.password));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let reply = request.send().await?;
        let status = reply.status();
        let text = reply.text().await?;
        if !status.is_success() {
            return Err(Failure::Bmc(format!("{path}: {status} {text}")));
        }
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Returns a system's path by UUID.
    pub async fn find(&self, uuid: &str) -> Result<String, Failure> {
        let all = self.send(reqwest::Method::GET, "/redfish/v1/Systems", None).await?;
        for member in all["Members"].as_array().into_iter().flatten() {
            let path = member["@odata.id"].as_str().unwrap_or_default();
            let system = self.system(path).await?;
            if system["UUID"].as_str().is_some_and(|found| found.eq_ignore_ascii_case(uuid)) {
                return Ok(path.to_owned());
            }
        }
        Err(Failure::Bmc(format!("no system has the UUID {uuid}")))
    }

    pub async fn system(&self, path: &str) -> Result<Value, Failure> {
        self.send(reqwest::Method::GET, path, None).await
    }

    pub async fn reset(&self, path: &str, kind: &str) -> Result<(), Failure> {
        let action = format!("{path}/Actions/ComputerSystem.Reset");
        self.send(reqwest::Method::POST, &action, Some(json!({"ResetType": kind}))).await.map(|_| ())
    }

    /// Sets a one-time network boot.
    pub async fn network_once(&self, path: &str) -> Result<(), Failure> {
        let boot = json!({"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"});
        self.send(reqwest::Method::PATCH, path, Some(json!({"Boot": boot}))).await.map(|_| ())
    }

    pub async fn light(&self, path: &str, lit: bool) -> Result<(), Failure> {
        self.send(reqwest::Method::PATCH, path, Some(json!({"LocationIndicatorActive": lit}))).await.map(|_| ())
    }

    /// Waits for a power state.
    pub async fn until(&self, path: &str, power: &str, pause: Duration, limit: Duration) -> Result<(), Failure> {
        let end = Instant::now() + limit;
        while self.system(path).await?["PowerState"] != power {
            if Instant::now() >= end {
                return Err(Failure::Bmc(format!("{path} did not become {power}")));
            }
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }
}
