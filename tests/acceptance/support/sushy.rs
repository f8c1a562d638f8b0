//! sushy-emulator, OpenStack's Redfish service, with machines in its own memory or in libvirt's.
//!
//! Features (2.2.0): power, boot targets and virtual media work. Power changes take effect up to
//! 11 s after the response. `BootSourceOverrideEnabled` always reads `Continuous`. Sessions,
//! tasks, events and `ETag`s are missing. With libvirt's test driver, power changes immediately,
//! and a boot target requires a matching device: its only machine has a disk and a network card,
//! but no drive.

use std::{
    fs::{self, File},
    process::Stdio,
    time::Duration,
};

use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::{certificates::Certificates, host::tool, independent::IndependentClient, process, wait::eventually};

/// The only account.
pub const USERNAME: &str = "admin";

/// Type of its machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// In the emulator's memory.
    Fake,
    /// In libvirt's test driver, part of the library (`test:///default`), with one running
    /// machine.
    Libvirt,
}

/// Start options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Type of the machines.
    pub driver: Driver,
    /// Number of machines.
    pub systems: usize,
    /// True for HTTPS with a separate authority; false for HTTP.
    pub tls: bool,
    /// Password of the account; `None` disables authentication.
    pub password: Option<String>,
    /// True if the machines start powered on.
    pub powered_on: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            driver: Driver::Fake,
            systems: 1,
            tls: true,
            password: Some("correct horse".to_owned()),
            powered_on: false,
        }
    }
}

/// A running emulator. It stops on drop.
#[derive(Debug)]
pub struct Sushy {
    child: Child,
    folder: TempDir,
    options: Options,
    certificates: Option<Certificates>,
    url: String,
}

impl Sushy {
    /// Starts an emulator and waits until it answers.
    pub async fn start(options: Options) -> Self {
        let folder = TempDir::with_prefix("sushy-").expect("the temporary folder is writable");
        let certificates = options.tls.then(|| Certificates::new(folder.path()));
        let accounts = match &options.password {
            Some(password) => Some(password_file(password).await),
            None => None,
        };
        fs::create_dir(folder.path().join("state")).expect("just created");
        fs::create_dir(folder.path().join("tmp")).expect("just created");
        if let Some(accounts) = &accounts {
            fs::write(folder.path().join("accounts"), accounts).expect("just created");
        }
        let configuration = configuration(&folder, &options, certificates.as_ref());
        fs::write(folder.path().join("emulator.conf"), configuration).expect("just created");

        let log = File::create(folder.path().join("log")).expect("just created");
        let child = Command::new(tool("sushy/bin/sushy-emulator"))
            .arg("--config")
            .arg(folder.path().join("emulator.conf"))
            .env("TMPDIR", folder.path().join("tmp"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("the emulator starts");

        let mut this = Self { child, folder, options, certificates, url: String::new() };
        this.url = this.address().await;
        // The first request initialises data for later requests.
        this.client().get("/redfish/v1/").await;
        this
    }

    /// URL without a trailing slash.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Identity (`ComputerSystem.UUID` and `Id`) of a machine by number, from 1.
    pub fn system(&self, number: usize) -> String {
        assert!((1..=self.options.systems).contains(&number), "no machine {number}");
        uuid(self.options.driver, number)
    }

    /// Password; empty without authentication.
    pub fn password(&self) -> &str {
        self.options.password.as_deref().unwrap_or_default()
    }

    /// Certificates, with TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Returns a client that shares no code with the provider.
    pub fn client(&self) -> IndependentClient {
        IndependentClient {
            url: self.url.clone(),
            username: USERNAME.to_owned(),
            password: self.password().to_owned(),
            authority: self.certificates.as_ref().map(|c| c.authority.clone()),
        }
    }

    /// Returns every answered request in order, as `GET /redfish/v1/ 200`.
    pub fn requests(&self) -> Vec<String> {
        self.log().lines().filter_map(request).collect()
    }

    /// Returns its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Stops it, like a BMC that becomes unreachable.
    pub async fn stop(mut self) {
        self.child.kill().await.expect("our own child");
    }

    async fn address(&self) -> String {
        let pid = self.child.id().expect("not yet waited for");
        eventually("sushy-emulator listens", Duration::from_mins(1), async || {
            let log = self.log();
            assert!(process::is_alive(pid), "sushy-emulator ended:\n{log}");
            let line = log.lines().find_map(|l| l.split_once("Running on "))?;
            // Guards against a partially written line.
            let port = line.1.rsplit_once(':')?.1.trim();
            port.parse::<u16>().ok()?;
            Some(line.1.trim().to_owned())
        })
        .await
    }
}

fn uuid(driver: Driver, number: usize) -> String {
    match driver {
        Driver::Fake => format!("00000000-0000-4000-8000-{number:012}"),
        // UUID from libvirt's source (`test_driver.c`).
        Driver::Libvirt => "6695eb01-f6a4-8304-79aa-97f2502e193f".to_owned(),
    }
}

fn configuration(folder: &TempDir, options: &Options, tls: Option<&Certificates>) -> String {
    let folder = folder.path().display();
    let power = if options.powered_on { "On" } else { "Off" };
    let systems: Vec<String> = (1..=options.systems)
        .map(|number| {
            format!(
                "{{'uuid': '{}', 'name': 'node-{number}', 'power_state': '{power}', 'external_notifier': False, \
                 'nics': [{{'mac': '52:54:00:00:{:02x}:{:02x}', 'ip': '10.0.0.1'}}]}}",
                uuid(options.driver, number),
                number / 256,
                number % 256
            )
        })
        .collect();
    let mut lines = vec![
        "SUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'".to_owned(),
        "SUSHY_EMULATOR_LISTEN_PORT = 0".to_owned(),
        format!("SUSHY_EMULATOR_STATE_DIR = '{folder}/state'"),
        "SUSHY_EMULATOR_FEATURE_SET = 'full'".to_owned(),
    ];
    // Without STORAGE, a GET of Storage returns 500.
    match options.driver {
        Driver::Fake => lines.extend([
            "SUSHY_EMULATOR_FAKE_DRIVER = True".to_owned(),
            format!("SUSHY_EMULATOR_FAKE_SYSTEMS = [{}]", systems.join(", ")),
            "SUSHY_EMULATOR_STORAGE = {s['uuid']: [] for s in SUSHY_EMULATOR_FAKE_SYSTEMS}".to_owned(),
        ]),
        Driver::Libvirt => lines.extend([
            "SUSHY_EMULATOR_LIBVIRT_URI = 'test:///default'".to_owned(),
            format!("SUSHY_EMULATOR_STORAGE = {{'{}': []}}", uuid(options.driver, 1)),
        ]),
    }
    if let Some(tls) = tls {
        let (certificate, key) = (tls.certificate.display(), tls.key.display());
        lines.push(format!("SUSHY_EMULATOR_SSL_CERT = '{certificate}'"));
        lines.push(format!("SUSHY_EMULATOR_SSL_KEY = '{key}'"));
    }
    if options.password.is_some() {
        lines.push(format!("SUSHY_EMULATOR_AUTH_FILE = '{folder}/accounts'"));
    }
    lines.join("\n") + "\n"
}

/// One account in `htpasswd` format; the emulator accepts only bcrypt.
async fn password_file(password: &str) -> String {
    let script = "import bcrypt, sys\n\
                  hash = bcrypt.hashpw(sys.argv[1].encode(), bcrypt.gensalt(4)).decode()\n\
                  print(hash.replace('$2b$', '$2y$', 1))";
    let output =
        Command::new(tool("sushy/bin/python")).args(["-c", script, password]).output().await.expect("Python starts");
    assert!(output.status.success(), "{output:?}");
    format!("{USERNAME}:{}", String::from_utf8_lossy(&output.stdout))
}

/// Parses the access log's `... "GET /redfish/v1/ HTTP/1.1" 200 -`. Other status codes are
/// coloured.
fn request(line: &str) -> Option<String> {
    let (_, rest) = line.split_once('"')?;
    let (request, status) = rest.rsplit_once('"')?;
    let (request, _) = request.split_once(" HTTP/1.1")?;
    let request = request.rsplit('\u{1b}').next()?;
    let request = request.split_once('m').filter(|(colour, _)| colour.starts_with('[')).map_or(request, |(_, r)| r);
    let status = status.split_whitespace().next()?;
    Some(format!("{request} {status}"))
}

#[test]
fn access_log_lines_are_read_with_and_without_colour() {
    let plain = r#"127.0.0.1 - - [21/Nov/2026 04:00:00] "GET /redfish/v1/ HTTP/1.1" 200 -"#;
    assert_eq!(request(plain).as_deref(), Some("GET /redfish/v1/ 200"));
    let coloured = "127.0.0.1 - - [-] \"\u{1b}[35m\u{1b}[1mPOST /x HTTP/1.1\u{1b}[0m\" 204 -";
    assert_eq!(request(coloured).as_deref(), Some("POST /x 204"));
    assert_eq!(request(" * Running on http://127.0.0.1:1"), None);
}
