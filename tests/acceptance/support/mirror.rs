//! Provider mirrors with archives from the release's packaging code: a folder and an HTTPS server.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, OnceLock},
    time::UNIX_EPOCH,
};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use super::{certificates::Certificates, provider, workspace::Workspace};

/// Two versions, both with this build's program.
pub const VERSIONS: [&str; 2] = ["0.0.9", env!("CARGO_PKG_VERSION")];
/// Platform of the tests.
pub const HERE: &str = "linux_amd64";
/// All release platforms. Archives for other platforms contain a text file, which is enough for
/// hashes.
pub const PLATFORMS: [&str; 5] = [HERE, "linux_arm64", "darwin_amd64", "darwin_arm64", "windows_amd64"];

/// Returns a filesystem mirror's folder: `HOST/NAMESPACE/TYPE/` with archives.
///
/// It is created once per build, because packing the program takes seconds.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let programs = VERSIONS.map(|_| provider::binary());
        let packager = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/packaging/package.py");
        let mut content = Sha256::new();
        content.update(fs::read(&packager).expect("the packager exists"));
        for program in &programs {
            let data = fs::metadata(program).expect("the program is built");
            let changed = data.modified().expect("known").duration_since(UNIX_EPOCH).expect("after 1970");
            content.update(format!("{} {} {changed:?}", program.display(), data.len()));
        }
        let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("provider-mirror");
        let made = all.join(format!("{:x}", content.finalize()));
        if !made.exists() {
            // The rename is atomic, so concurrent test processes never see a partial folder.
            fs::create_dir_all(&all).expect("writable");
            let new = tempfile::tempdir_in(&all).expect("writable");
            fill(&packager, new.path(), &programs);
            if fs::rename(new.path(), &made).is_ok() {
                let _ = new.keep();
            }
        }
        made
    })
}

fn fill(packager: &Path, folder: &Path, programs: &[PathBuf; 2]) {
    let (archives, small) = (folder.join(provider::SOURCE), folder.join("program"));
    fs::create_dir_all(&archives).expect("writable");
    for (version, program) in VERSIONS.into_iter().zip(programs) {
        for platform in PLATFORMS {
            if platform == HERE {
                // As in a release: without symbols, which dominate a test build.
                run(Command::new("strip").arg("-o").arg(&small).arg(program));
            } else {
                fs::write(&small, format!("the program for {platform}")).expect("writable");
            }
            let mut command = Command::new("python3");
            command.arg("-B").arg(packager).args(["archive", version]).arg(&archives).arg(platform).arg(&small);
            run(&mut command);
        }
    }
    fs::remove_file(small).expect("just written");
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Configures a workspace to install only from the folder, without development override or
/// registry.
pub fn install_from_folder(workspace: &mut Workspace) {
    install(workspace, &format!("filesystem_mirror {{\n    path = \"{}\"\n  }}", folder().display()));
}

fn install(workspace: &mut Workspace, method: &str) {
    let file = workspace.folder().join("mirror.tfrc");
    let text = format!("disable_checkpoint = true\nprovider_installation {{\n  {method}\n}}\n");
    fs::write(&file, text).expect("the workspace is writable");
    workspace.set("TF_CLI_CONFIG_FILE", file.display().to_string());
}

/// A network mirror over HTTPS. It stops on drop.
#[derive(Debug)]
pub struct NetworkMirror {
    address: SocketAddr,
    certificates: Certificates,
    _folder: tempfile::TempDir,
    asked: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl NetworkMirror {
    /// Serves the folder. With `exchanged`, another version's archive replaces this version's, with
    /// matching hashes in the mirror. (An extra byte after the archive would not count: hosts lock
    /// the content's hash.)
    pub async fn start(exchanged: bool) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let certificates = Certificates::new(folder.path());
        let chain = vec![CertificateDer::from_pem_file(&certificates.certificate).expect("just written")];
        let key = PrivateKeyDer::from_pem_file(&certificates.key).expect("just written");
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("the key matches the certificate");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut request = Vec::new();
                    let mut part = [0; 1024];
                    while !request.windows(4).any(|window| window == b"\r\n\r\n") {
                        match stream.read(&mut part).await {
                            Ok(0) | Err(_) => return,
                            Ok(read) => request.extend_from_slice(&part[..read]),
                        }
                    }
                    let line = String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned();
                    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
                    let (status, kind, body) = match answer(&path, exchanged) {
                        Some((kind, body)) => ("200 OK", kind, body),
                        None => ("404 Not Found", "text/plain", Vec::new()),
                    };
                    seen.lock().expect("no panic").push(path);
                    let length = body.len();
                    let head = format!(
                        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                    );
                    let _ = stream.write_all(head.as_bytes()).await;
                    let _ = stream.write_all(&body).await;
                    let _ = stream.shutdown().await;
                });
            }
        });
        Self { address, certificates, _folder: folder, asked, task }
    }

    /// URL for a host's configuration.
    pub fn url(&self) -> String {
        format!("https://{}/providers/", self.address)
    }

    /// Configures a workspace to install only from this mirror.
    pub fn install_from(&self, workspace: &mut Workspace) {
        install(workspace, &format!("network_mirror {{\n    url = \"{}\"\n  }}", self.url()));
        workspace.set("SSL_CERT_FILE", self.certificates.authority.display().to_string());
    }

    /// Requested paths, in order.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no panic").clone()
    }
}

impl Drop for NetworkMirror {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns a mirror protocol response: versions, a version's archives, or an archive.
fn answer(path: &str, exchanged: bool) -> Option<(&'static str, Vec<u8>)> {
    let file = path.strip_prefix("/providers/")?.strip_prefix(provider::SOURCE)?.strip_prefix('/')?;
    let archive = |name: &str| {
        let name = if exchanged { name.replace(VERSIONS[1], VERSIONS[0]) } else { name.to_owned() };
        fs::read(folder().join(provider::SOURCE).join(name)).ok()
    };
    let document = |document: serde_json::Value| Some(("application/json", document.to_string().into_bytes()));
    if file == "index.json" {
        let versions = VERSIONS.map(|version| (version.to_owned(), json!({})));
        return document(json!({ "versions": versions.into_iter().collect::<serde_json::Map<_, _>>() }));
    }
    if let Some(version) = file.strip_suffix(".json") {
        let mut archives = serde_json::Map::new();
        for platform in PLATFORMS {
            let name = format!("terraform-provider-metal_{version}_{platform}.zip");
            let hash = format!("zh:{:x}", Sha256::digest(archive(&name)?));
            archives.insert(platform.to_owned(), json!({ "url": name, "hashes": [hash] }));
        }
        return document(json!({ "archives": archives }));
    }
    let plain = file.strip_suffix(".zip").is_some() && !file.contains('/');
    if plain { Some(("application/zip", archive(file)?)) } else { None }
}
