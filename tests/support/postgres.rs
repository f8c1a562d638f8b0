//! Real PostgreSQL servers, from the Debian package.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::server::{Server, free_port};

/// Returns the folder with `postgres` and `initdb`, by default of the newest installed version.
fn programs() -> PathBuf {
    if let Some(named) = std::env::var_os("POSTGRES_BIN") {
        return named.into();
    }
    let mut found: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .expect("PostgreSQL is not installed: run `make setup`")
        .map(|entry| entry.unwrap().path().join("bin"))
        .filter(|folder| folder.join("postgres").exists())
        .collect();
    found.sort();
    found.pop().expect("PostgreSQL is not installed: run `make setup`")
}

/// PostgreSQL refuses to run as root.
fn as_its_user(command: &[&str]) -> Vec<String> {
    let mut whole: Vec<&str> = Vec::new();
    if rustix::process::geteuid().is_root() {
        whole.extend(["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]);
    }
    whole.extend(command);
    whole.into_iter().map(str::to_owned).collect()
}

fn run(command: &[&str]) {
    let command = as_its_user(command);
    let done = Command::new(&command[0]).args(&command[1..]).current_dir("/").output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Returns TLS settings for this certificate, with files that only the server's user can read, and
/// their folder.
pub fn with_certificate(certificate: &Path, private: &Path) -> (TempDir, Vec<String>) {
    let folder = tempfile::Builder::new().prefix("metal-certificate-").tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut settings = vec!["ssl=on".to_owned()];
    for (name, file) in [("ssl_cert_file", certificate), ("ssl_key_file", private)] {
        let to = folder.path().join(file.file_name().unwrap());
        fs::copy(file, &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).unwrap();
        if rustix::process::geteuid().is_root() {
            let done = Command::new("chown").arg("postgres").arg(&to).status().unwrap();
            assert!(done.success());
        }
        settings.push(format!("{name}={}", to.display()));
    }
    (folder, settings)
}

/// A server whose superuser `postgres` connects on loopback without a password.
pub struct Postgres {
    pub server: Server,
    pub port: u16,
    data: PathBuf,
    more: Vec<String>,
}

impl Postgres {
    /// Returns the server shared by all tests of this process. It ends with the process.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(&[]))
    }

    /// Starts a separate server with extra settings (`name=value`).
    pub fn start(settings: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("metal-postgres-").tempdir().unwrap().keep();
        // The server's user needs access.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let data = folder.join("data");
        let programs = programs();
        let initdb = programs.join("initdb");
        run(&[
            initdb.to_str().unwrap(),
            "-D",
            data.to_str().unwrap(),
            "-U",
            "postgres",
            "--auth=trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]);
        let more: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        Self::run(&folder, &data, free_port(), &more)
    }

    /// Starts an asynchronous standby that replicates through `way` (`host:port`).
    pub fn standby(&self, way: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("metal-postgres-").tempdir().unwrap().keep();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let (data, program) = (folder.join("data"), programs().join("pg_basebackup"));
        let (host, port) = way.split_once(':').unwrap();
        let (program, to) = (program.to_str().unwrap(), data.to_str().unwrap());
        let from = ["-h", host, "-p", port, "-U", "postgres"];
        let how = ["-D", to, "-X", "stream", "-R", "-c", "fast", "--no-sync"];
        run(&[&[program], from.as_slice(), how.as_slice()].concat());
        Self::run(&folder, &data, free_port(), &self.more)
    }

    /// Starts a server with fsync, as in production. Benchmarks need it.
    pub fn durable(settings: &[&str]) -> Self {
        // The last setting of a name wins.
        let mut all = vec!["fsync=on", "synchronous_commit=on", "full_page_writes=on"];
        all.extend(settings);
        Self::start(&all)
    }

    fn run(folder: &Path, data: &Path, port: u16, more: &[String]) -> Self {
        let program = programs().join("postgres");
        let (port_text, socket) = (port.to_string(), format!("unix_socket_directories={}", folder.display()));
        let mut command = vec![program.to_str().unwrap(), "-D", data.to_str().unwrap(), "-p", &port_text];
        let settings = [
            "listen_addresses=127.0.0.1",
            &socket,
            "shared_buffers=32MB",
            "max_connections=400",
            // Test data does not have to survive a power cut.
            "fsync=off",
            "synchronous_commit=off",
            "full_page_writes=off",
        ];
        for setting in settings.into_iter().chain(more.iter().map(String::as_str)) {
            command.extend(["-c", setting]);
        }
        let began = Instant::now();
        loop {
            let server = Server::start(folder, "INT", &as_its_user(&command));
            let mut this = Self { server, port, data: data.to_owned(), more: more.to_owned() };
            if this.is_ready_before_it_ends() {
                return this;
            }
            // Children of a killed server briefly keep its shared memory, and a new server then
            // exits.
            assert!(began.elapsed() < Duration::from_secs(30), "PostgreSQL did not start: {}", this.server.log());
            this.server.kill();
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn is_ready_before_it_ends(&self) -> bool {
        let program = programs().join("pg_isready");
        let (port, process) = (self.port.to_string(), PathBuf::from(format!("/proc/{}/stat", self.server.pid)));
        loop {
            let asked = Command::new(&program).args(["-q", "-h", "127.0.0.1", "-p", &port]).status().unwrap();
            // An exited process is a zombie until its keeper reaps it.
            let ended = fs::read_to_string(&process).map_or(true, |stat| stat.contains(") Z "));
            if asked.success() || ended {
                return !ended;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the server, as in a power cut.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Restarts it with the same port and data.
    pub fn start_again(&mut self) {
        let (folder, data, more) = (self.server.folder.clone(), self.data.clone(), self.more.clone());
        *self = Self::run(&folder, &data, self.port, &more);
    }

    /// URL for a user and a database.
    pub fn url(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }

    /// Runs SQL as the superuser and returns the unaligned output.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        self.sql_as("postgres", database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Runs SQL as a role with `psql`. Returns the unaligned output or the error.
    pub fn sql_as(&self, role: &str, database: &str, sql: &str) -> Result<String, String> {
        let (program, port) = (programs().join("psql"), self.port.to_string());
        let done = Command::new(program)
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", role])
            .args(["-p", &port, "-d", database, "-c", sql])
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim().to_owned();
        if done.status.success() { Ok(text(done.stdout)) } else { Err(text(done.stderr)) }
    }

    /// Creates an empty database with a unique name.
    pub fn database(&self) -> String {
        let name = format!("d{}", uuid::Uuid::new_v4().simple());
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        name
    }
}

/// A transaction pooler: each transaction can use a different session.
pub struct Pooler {
    pub server: Server,
    pub port: u16,
}

impl Pooler {
    /// Returns the shared server's pooler. It ends with the process.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Pooler> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(Postgres::shared()))
    }

    fn start(before: &Postgres) -> Self {
        let folder = tempfile::Builder::new().prefix("metal-pgbouncer-").tempdir().unwrap().keep();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let (port, config, users) = (free_port(), folder.join("pgbouncer.ini"), folder.join("users"));
        fs::write(&users, "\"postgres\" \"\"\n").unwrap();
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\nmax_client_conn = 500\n\
             default_pool_size = 3\nserver_round_robin = 1\n",
            before.port,
            users.display()
        );
        fs::write(&config, text).unwrap();
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"];
        let program =
            program.into_iter().find(|path| Path::new(path).exists()).expect("pgbouncer is missing: run `make setup`");
        let server = Server::start(&folder, "INT", &as_its_user(&[program, config.to_str().unwrap()]));
        let began = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < Duration::from_secs(20), "the pooler did not start: {}", server.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { server, port }
    }
}
