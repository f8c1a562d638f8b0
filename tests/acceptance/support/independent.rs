//! Reads and prepares BMC state with DMTF's own client, which cannot share a bug with the
//! provider.

use std::{path::PathBuf, process::Stdio, time::Duration};

use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

use super::host::tool;

/// A client for one Redfish service.
#[derive(Clone, Debug)]
pub struct IndependentClient {
    /// Scheme, host and port.
    pub url: String,
    /// User name.
    pub username: String,
    /// Password.
    pub password: String,
    /// File with the trusted authority, for TLS.
    pub authority: Option<PathBuf>,
}

/// Machine state that a maintenance can change and must restore.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// `PowerState`.
    pub power: String,
    /// The `Boot` object without `…@Redfish.AllowableValues`.
    pub boot: Value,
    /// Virtual media slots: path, inserted image and `Inserted`.
    pub media: Vec<(String, Value, bool)>,
}

impl IndependentClient {
    /// Returns the machine at a system's path, for example `/redfish/v1/Systems/1`.
    pub async fn machine(&self, system: &str) -> Machine {
        let body = self.get(system).await;
        let mut boot = body["Boot"].clone();
        if let Some(boot) = boot.as_object_mut() {
            boot.retain(|name, _| !name.contains('@'));
        }
        Machine {
            power: body["PowerState"].as_str().unwrap_or_default().to_owned(),
            boot,
            media: self.media(&body).await,
        }
    }

    async fn media(&self, system: &Value) -> Vec<(String, Value, bool)> {
        let mut collections: Vec<&Value> = vec![&system["VirtualMedia"]];
        let managers = links(&system["Links"]["ManagedBy"]);
        let managers = self.get_all(&managers).await;
        collections.extend(managers.iter().map(|manager| &manager["VirtualMedia"]));
        let collections: Vec<String> = collections.into_iter().filter_map(link).collect();

        let mut slots: Vec<String> = Vec::new();
        for collection in self.get_all(&collections).await {
            slots.extend(links(&collection["Members"]));
        }
        let states = self.get_all(&slots).await;
        let states = slots.into_iter().zip(states);
        states
            .map(|(path, slot)| {
                let inserted = slot["Inserted"].as_bool().unwrap_or_default();
                (path, slot["Image"].clone(), inserted)
            })
            .collect()
    }

    /// Returns a resource's body.
    pub async fn get(&self, path: &str) -> Value {
        self.get_all(&[path.to_owned()]).await.remove(0)
    }

    async fn get_all(&self, paths: &[String]) -> Vec<Value> {
        if paths.is_empty() {
            return Vec::new();
        }
        let requests = paths.iter().map(|p| json!({ "method": "GET", "path": p }));
        self.send(requests.collect()).await
    }

    /// Sends a POST and asserts success.
    pub async fn post(&self, path: &str, body: Value) {
        let request = json!({ "method": "POST", "path": path, "body": body });
        self.send(vec![request]).await;
    }

    /// Sends a PATCH and asserts success.
    pub async fn patch(&self, path: &str, body: Value) {
        let request = json!({ "method": "PATCH", "path": path, "body": body });
        self.send(vec![request]).await;
    }

    /// Returns the response bodies.
    ///
    /// # Panics
    /// If a response is an error, because the test would continue from an unknown state.
    async fn send(&self, requests: Vec<Value>) -> Vec<Value> {
        let job = json!({
            "url": self.url,
            "username": self.username,
            "password": self.password,
            "authority": self.authority,
            "requests": requests,
        });
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/acceptance/support/redfish_client.py");
        let mut child = Command::new(tool("redfish/bin/python"))
            .args(["-I", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("Python starts");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(job.to_string().as_bytes()).await.expect("it reads its job");
        drop(stdin);
        let output = timeout(Duration::from_mins(1), child.wait_with_output())
            .await
            .expect("the independent client ends")
            .expect("a child can be waited for");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", self.url);
        let answers: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
        let answers = answers.into_iter().zip(&requests);
        answers
            .map(|(answer, request)| {
                let status = answer["status"].as_u64().unwrap_or_default();
                assert!((200..300).contains(&status), "{request}: {answer}");
                answer["body"].clone()
            })
            .collect()
    }
}

fn link(value: &Value) -> Option<String> {
    value["@odata.id"].as_str().map(str::to_owned)
}

fn links(values: &Value) -> Vec<String> {
    let values = values.as_array().into_iter().flatten();
    values.filter_map(link).collect()
}
