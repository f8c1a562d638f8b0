//! The Redfish calls that Ironic sends for the operator.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::operator::{Operator, secret};

/// One machine behind its BMC.
pub struct Machine {
    http: reqwest::Client,
    system: String,
    base: String,
    username: String,
    password: String,
}

impl Machine {
    /// Returns a host's machine, or the error that Ironic would report.
    pub async fn of(operator: &Operator, host: &DynamicObject) -> Result<Self, String> {
        let address = host.data["spec"]["bmc"]["address"].as_str().unwrap_or_default();
        let (protocol, rest) = address.split_once("://").ok_or("unknown BMC type")?;
        let scheme = protocol.split_once('+').map_or("https", |(_, scheme)| scheme);
        let (authority, path) = rest.split_once('/').ok_or("no system")?;
        let name = host.data["spec"]["bmc"]["credentialsName"].as_str().unwrap_or_default();
        let found = secret(operator, name).await.map_err(|error| error.to_string())?.ok_or("no Secret")?;
        let part = |key: &str| {
            let bytes =
                BASE64_STANDARD.decode(found.data["data"][key].as_str().unwrap_or_default()).unwrap_or_default();
            // Like the real operator: `echo password | base64` leaves a line break.
            String::from_utf8(bytes).unwrap_or_default().trim().to_owned()
        };
        let http = reqwest::Client::builder()
            .user_agent("ironic")
            .no_proxy()
            .tls_danger_accept_invalid_certs(true)
            .timeout(Duration::from_secs(10))
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            http,
            system: format!("/{}", path.trim_end_matches('/')),
            base: format!("{scheme}://{authority}"),
            username: part("username"),
            password: part("password"),
        })
    }

    async fn send(&self, method: reqwest::Method, path: &str, body: Option<Value>) -> Result<Value, String> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        request = request.basic_auth(&self.username, Some(&self.password));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let reply = request.send().await.map_err(|error| error.to_string())?;
        let status = reply.status();
        let text = reply.text().await.map_err(|error| error.to_string())?;
        if !status.is_success() {
            return Err(format!("{path}: {status}"));
        }
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Returns true if the machine is on.
    pub async fn is_on(&self) -> Result<bool, String> {
        let system = self.send(reqwest::Method::GET, &self.system, None).await?;
        Ok(system["PowerState"] == "On")
    }

    /// Boots an ISO image, like Ironic for `live-iso`: powers off unconditionally, then boots from
    /// the drive at every start (`tests/metal3/iso.txt`).
    pub async fn boot_iso(&self, url: &str) -> Result<(), String> {
        self.reset("ForceOff").await?;
        while self.send(reqwest::Method::GET, &self.system, None).await?["PowerState"] != "Off" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let insert = format!("{}/VirtualMedia/Cd/Actions/VirtualMedia.InsertMedia", self.system);
        self.send(reqwest::Method::POST, &insert, Some(json!({"Image": url}))).await?;
        let boot = json!({"BootSourceOverrideEnabled": "Continuous", "BootSourceOverrideTarget": "Cd"});
        self.send(reqwest::Method::PATCH, &self.system, Some(json!({"Boot": boot}))).await?;
        self.reset("On").await
    }

    /// Undoes `boot_iso`, like Ironic for a deprovisioning without cleaning.
    pub async fn end_iso(&self) -> Result<(), String> {
        if self.is_on().await? {
            self.reset("ForceOff").await?;
        }
        let cd = format!("{}/VirtualMedia/Cd", self.system);
        if self.send(reqwest::Method::GET, &cd, None).await?["Inserted"] == true {
            let eject = format!("{cd}/Actions/VirtualMedia.EjectMedia");
            self.send(reqwest::Method::POST, &eject, Some(json!({}))).await?;
        }
        Ok(())
    }

    pub async fn reset(&self, kind: &str) -> Result<(), String> {
        let action = format!("{}/Actions/ComputerSystem.Reset", self.system);
        self.send(reqwest::Method::POST, &action, Some(json!({"ResetType": kind}))).await.map(|_| ())
    }
}
