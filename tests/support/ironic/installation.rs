//! A real Ironic (API, conductor and in-process messaging in one program), as in standalone
//! setups.
//!
//! It always ends with its test: a keeper process waits until the test's end of a pipe closes,
//! then kills the process group. Children of Ironic outlive a killed parent.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::{
    keystone::Keystone,
    server::{free_port, http_client},
};

/// Runs Ironic as a group leader and prints its process ID. At the end it kills the whole group.
const KEEPER: &str = r#"
trap '' INT TERM
setsid "$@" >>"$KEPT_FOLDER/log" 2>&1 </dev/null &
pid=$!
echo "$pid"
cat >/dev/null
kill -9 "-$pid" 2>/dev/null
wait "$pid" 2>/dev/null
"#;

/// Ironic looks up its connection to a BMC by a password digest with 600,000 rounds, almost one
/// CPU second per call. Test passwords are not secret, so one round is enough.
const SERVE: &str = r"
import hashlib, sys
digest = hashlib.pbkdf2_hmac
hashlib.pbkdf2_hmac = lambda name, password, salt, rounds: digest(name, password, salt, 1)
from ironic.command.singleprocess import main
sys.exit(main())
";

/// The only `http_basic` account.
pub const USERNAME: &str = "admin";
pub const PASSWORD: &str = "correct horse";
/// API version with everything that the tests use.
const VERSION: &str = "1.95";

/// Start options.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// True for HTTP basic; false for no authentication.
    pub basic: bool,
    /// Seconds per call of a fake interface, during which the node is locked.
    pub fake_delay: u32,
    /// Seconds per service step of the fake vendor interface.
    pub step_delay: u32,
    /// Seconds between two power synchronisations; 0 disables them.
    pub sync_power: u32,
    /// TLS certificate and key of the API.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Keystone for tokens, with Ironic in its catalog.
    pub keystone: Option<Arc<Keystone>>,
    /// True to validate the token on each request, instead of every five minutes.
    pub asks_each_time: bool,
    /// Policy files; later files override the first.
    pub policies: &'static [&'static str],
    /// True for the interfaces that baremetal-operator configures.
    pub operator: bool,
}

impl Options {
    /// Returns the options that distinguish reusable installations, or `None` if it cannot be
    /// reused.
    pub fn kind(&self) -> Option<(bool, u32, u32, u32, bool)> {
        // Destructure every field, so that a new option cannot be missed.
        match *self {
            Self {
                basic,
                fake_delay,
                step_delay,
                sync_power,
                tls: None,
                keystone: None,
                asks_each_time: _,
                policies: [],
                operator,
            } => Some((basic, fake_delay, step_delay, sync_power, operator)),
            Self { .. } => None,
        }
    }
}

/// A running Ironic.
pub struct Installation {
    keeper: Option<Child>,
    folder: TempDir,
    port: u16,
    options: Options,
    http: reqwest::Client,
}

fn client() -> reqwest::Client {
    http_client().tls_danger_accept_invalid_certs(true).build().unwrap()
}

fn tool(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/ironic").join(path);
    assert!(path.exists(), "{} is missing: run tools/setup/run ironic", path.display());
    path
}

impl Installation {
    /// Starts Ironic with an empty database and waits until its conductor has registered.
    pub async fn start(options: Options) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let folder = TempDir::with_prefix("ironic-").unwrap();
        fs::copy(tool("schema.sqlite"), folder.path().join("ironic.sqlite")).unwrap();
        for name in ["tftp", "http", "images", "master", "lock", "state"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        if options.basic {
            fs::write(folder.path().join("htpasswd"), password_file()).unwrap();
        }
        for (number, policy) in options.policies.iter().enumerate() {
            fs::create_dir_all(folder.path().join("policy.d")).unwrap();
            let name = if number == 0 { "policy.yaml".to_owned() } else { format!("policy.d/{number}.yaml") };
            fs::write(folder.path().join(name), policy).unwrap();
        }
        let port = free_port();
        fs::write(folder.path().join("ironic.conf"), configuration(folder.path(), port, &options)).unwrap();
        if let Some(keystone) = &options.keystone {
            keystone.list_ironic(&format!("http://127.0.0.1:{port}")).await;
        }
        let mut ironic = Self { keeper: None, folder, port, options, http: client() };
        ironic.run().await;
        ironic
    }

    async fn run(&mut self) {
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(tool("bin/python"))
            .args(["-c", SERVE, "--config-file"])
            .arg(self.folder.path().join("ironic.conf"))
            .env("KEPT_FOLDER", self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid: i32 = line.trim().parse().unwrap();
        self.keeper = Some(keeper);
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        self.eventually("Ironic answers", Duration::from_mins(2), async || {
            assert!(rustix::process::test_kill_process(pid).is_ok(), "Ironic ended:\n{}", self.log());
            let (status, drivers) = self.ask(Method::GET, "/v1/drivers", None).await?;
            (status == 200 && drivers.to_string().contains("fake-hardware")).then_some(())
        })
        .await;
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Deletes a test's nodes, as an operator can: a node in maintenance is deletable in any state
    /// while unlocked. Returns false on a timeout.
    pub async fn clean(&mut self) -> bool {
        // A client's connections end with the test that opened them.
        self.http = client();
        let until = std::time::Instant::now() + Duration::from_secs(20);
        loop {
            let mut left = Vec::new();
            for kind in ["nodes", "runbooks"] {
                match self.ask(Method::GET, &format!("/v1/{kind}?fields=uuid"), None).await {
                    Some((200, found)) => left.extend(
                        found[kind]
                            .as_array()
                            .unwrap()
                            .iter()
                            .map(|one| format!("/v1/{kind}/{}", one["uuid"].as_str().unwrap())),
                    ),
                    _ => return false,
                }
            }
            if left.is_empty() {
                return true;
            }
            if std::time::Instant::now() > until {
                return false;
            }
            for path in left {
                if path.starts_with("/v1/nodes") {
                    self.ask(Method::PUT, &format!("{path}/maintenance"), Some(&json!({}))).await;
                }
                self.ask(Method::DELETE, &path, None).await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Kills it, as in a power cut. The database stays.
    pub fn kill(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            keeper.wait().unwrap();
        }
    }

    /// Kills and restarts it at the same address.
    pub async fn restart(&mut self) {
        self.kill();
        self.run().await;
    }

    pub fn url(&self) -> String {
        let scheme = if self.options.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Folder of the files served to BMCs.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Option<(u16, Value)> {
        let mut request = self.http.request(method, format!("{}{path}", self.url()));
        request = request.header("X-OpenStack-Ironic-API-Version", VERSION).timeout(Duration::from_mins(1));
        if self.options.basic {
            request = request.basic_auth(USERNAME, Some(PASSWORD));
        }
        if let Some(keystone) = &self.options.keystone {
            request = request.header("X-Auth-Token", keystone.operator().await);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        let text = response.text().await.ok()?;
        Some((status, serde_json::from_str(&text).unwrap_or(Value::Null)))
    }

    /// Sends a request as another client. Returns status and body.
    pub async fn try_call(&self, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
        self.ask(method, path, body.as_ref()).await.unwrap_or_else(|| panic!("Ironic does not answer:\n{}", self.log()))
    }

    /// Same as `try_call`, retried until the node's lock is free.
    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        self.eventually("the call is accepted", Duration::from_mins(4), async || {
            let (status, answer) = self.try_call(method.clone(), path, body.clone()).await;
            assert!(status < 300 || status == 409 || status == 503, "{method} {path}: {status} {answer}");
            (status < 300).then_some(answer)
        })
        .await
    }

    pub async fn node(&self, name: &str) -> Value {
        self.call(Method::GET, &format!("/v1/nodes/{name}"), None).await
    }

    /// Waits until a node matches.
    pub async fn await_node(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.eventually(what, Duration::from_mins(4), async || {
            let node = self.node(name).await;
            wanted(&node).then_some(node)
        })
        .await
    }

    /// Sends a provision verb and waits for its final state.
    pub async fn provision(&self, name: &str, verb: &str, state: &str) {
        self.call(Method::PUT, &format!("/v1/nodes/{name}/states/provision"), Some(json!({ "target": verb }))).await;
        self.await_node(name, state, |node| node["provision_state"] == state && node["reservation"].is_null()).await;
    }

    /// Changes power as another client, and waits for the change.
    pub async fn power(&self, name: &str, target: &str) {
        self.call(Method::PUT, &format!("/v1/nodes/{name}/states/power"), Some(json!({ "target": target }))).await;
        self.await_node(name, target, |node| node["power_state"] == target && node["target_power_state"].is_null())
            .await;
    }

    /// Creates a deployed fake node that is powered on.
    pub async fn active_node(&self, name: &str) {
        self.call(Method::POST, "/v1/nodes", Some(json!({ "name": name, "driver": "fake-hardware" }))).await;
        self.provision(name, "manage", "manageable").await;
        self.provision(name, "adopt", "active").await;
        self.power(name, "power on").await;
    }

    /// Creates a manageable node with a Redfish BMC and a known power state.
    pub async fn redfish_node(&self, name: &str, address: &str, system: &str, account: (&str, &str)) {
        let info = json!({
            "redfish_address": address, "redfish_system_id": system,
            "redfish_username": account.0, "redfish_password": account.1,
        });
        let node = json!({
            "name": name, "driver": "redfish", "driver_info": info, "inspect_interface": "redfish",
            "boot_interface": "redfish-virtual-media", "deploy_interface": "ramdisk",
        });
        self.call(Method::POST, "/v1/nodes", Some(node)).await;
        self.provision(name, "manage", "manageable").await;
    }

    /// Sets or clears maintenance, like an operator.
    pub async fn maintenance(&self, name: &str, reason: Option<&str>) {
        let path = format!("/v1/nodes/{name}/maintenance");
        match reason {
            Some(reason) => self.call(Method::PUT, &path, Some(json!({ "reason": reason }))).await,
            None => self.call(Method::DELETE, &path, None).await,
        };
    }

    /// Returns a node's history entries of one kind.
    pub async fn history(&self, name: &str, kind: &str) -> Vec<Value> {
        let history = self.call(Method::GET, &format!("/v1/nodes/{name}/history?detail=true"), None).await;
        let entries = history["history"].as_array().unwrap().iter();
        entries.filter(|entry| entry["event_type"] == kind).cloned().collect()
    }

    /// Changes the database, for states that the API cannot produce.
    pub async fn sql(&self, statement: &str) {
        let script = "import sqlite3, sys\n\
                      db = sqlite3.connect(sys.argv[1], timeout=30)\n\
                      db.execute(sys.argv[2])\n\
                      db.commit()";
        let output = tokio::process::Command::new(tool("bin/python"))
            .args(["-c", script])
            .arg(self.folder.path().join("ironic.sqlite"))
            .arg(statement)
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    async fn eventually<T>(&self, what: &str, limit: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let until = std::time::Instant::now() + limit;
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(std::time::Instant::now() < until, "not in time: {what}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One account in `htpasswd` format; Ironic accepts only bcrypt.
fn password_file() -> String {
    let script = "import bcrypt, sys\n\
                  hash = bcrypt.hashpw(sys.argv[1].encode(), bcrypt.gensalt(4)).decode()\n\
                  print(hash.replace('$2b$', '$2y$', 1))";
    let output = Command::new(tool("bin/python")).args(["-c", script, PASSWORD]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    format!("{USERNAME}:{}", String::from_utf8_lossy(&output.stdout))
}

fn configuration(folder: &Path, port: u16, options: &Options) -> String {
    let folder = folder.display();
    let delay = options.fake_delay;
    let strategy = match (&options.keystone, options.basic) {
        (Some(_), _) => "keystone",
        (None, true) => "http_basic",
        (None, false) => "noauth",
    };
    let keystone = options
        .keystone
        .as_ref()
        .map(|keystone| keystone.middleware(if options.asks_each_time { -1 } else { 300 }))
        .unwrap_or_default();
    let policy = match options.policies.len() {
        0 => String::new(),
        _ => format!("[oslo_policy]\npolicy_file = {folder}/policy.yaml\npolicy_dirs = {folder}/policy.d\n"),
    };
    let tls = options.tls.as_ref().map(|(certificate, key)| {
        format!("enable_ssl_api = true\ncert_file = {}\nkey_file = {}", certificate.display(), key.display())
    });
    let tls = tls.unwrap_or_default();
    let (sync, step) = (options.sync_power, options.step_delay);
    let (redfish, agent, deploy) =
        if options.operator { (",redfish", ",agent", ",direct,custom-agent") } else { ("", "", "") };
    format!(
        "[DEFAULT]
auth_strategy = {strategy}
http_basic_auth_user_file = {folder}/htpasswd
rpc_transport = none
use_stderr = true
host = conductor-1
state_path = {folder}/state
my_ip = 127.0.0.1
enabled_hardware_types = fake-hardware,redfish
default_network_interface = noop
enabled_network_interfaces = noop
enabled_power_interfaces = fake,redfish
enabled_management_interfaces = fake,redfish,noop
enabled_boot_interfaces = fake,redfish-virtual-media
enabled_deploy_interfaces = fake,noop,ramdisk{deploy}
enabled_bios_interfaces = fake,no-bios{redfish}
enabled_inspect_interfaces = fake,no-inspect,redfish{agent}
enabled_raid_interfaces = fake,no-raid{redfish}
enabled_rescue_interfaces = fake,no-rescue
enabled_storage_interfaces = fake,noop
enabled_vendor_interfaces = fake,no-vendor
enabled_firmware_interfaces = fake,no-firmware{redfish}
enabled_console_interfaces = fake,no-console
force_raw_images = false
minimum_required_memory = 0
[api]
host_ip = 127.0.0.1
api_workers = 1
port = {port}
public_endpoint = http://127.0.0.1:{port}
{tls}
[database]
connection = sqlite:///{folder}/ironic.sqlite
[oslo_messaging_notifications]
driver = noop
[oslo_concurrency]
lock_path = {folder}/lock
[conductor]
automated_clean = false
sync_power_state_interval = {sync}
heartbeat_interval = 5
power_state_change_timeout = 30
node_locked_retry_attempts = 1
node_locked_retry_interval = 1
[fake]
power_delay = {delay}
management_delay = 0
boot_delay = 0
deploy_delay = 0
vendor_delay = {step}
[redfish]
connection_attempts = 2
connection_retry_interval = 1
auth_type = basic
[dhcp]
dhcp_provider = none
[pxe]
tftp_root = {folder}/tftp
images_path = {folder}/images
tftp_master_path = {folder}/master
[deploy]
http_root = {folder}/http
http_url = http://127.0.0.1:1
[service_catalog]
auth_type = none
endpoint_override = http://127.0.0.1:{port}
{keystone}{policy}"
    )
}
