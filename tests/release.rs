//! Tests `tools/release` with a prebuilt program: packaging is real, but nothing is compiled.
//! `tools/packaging/reproduce` compares two real builds.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn succeeded(command: &mut Command) -> String {
    let output = run(command);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}:\n{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Returns true on success, and the command's complete output.
fn everything_said(command: &mut Command) -> (bool, String) {
    let output = run(command);
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.success(), said)
}

fn script(file: &Path, text: &str) {
    fs::write(file, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Creates a folder with these tools, for use as the entire PATH.
fn link_tools(folder: &Path, tools: &[&str]) {
    fs::create_dir(folder).unwrap();
    for tool in tools {
        let found = match *tool {
            // `python3` on the PATH can be a script that needs further tools.
            "python3" => succeeded(Command::new(tool).args(["-c", "import sys; print(sys.executable)"])),
            _ => succeeded(Command::new("sh").args(["-c", &format!("command -v {tool}")])),
        };
        symlink(found.trim(), folder.join(tool)).unwrap();
    }
}

/// A checkout clone with the work tree's tools and a stand-in for the built program.
struct Checkout {
    folder: TempDir,
    tree: PathBuf,
}

impl Checkout {
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let this = Self { tree: folder.path().join(name), folder };
        let clone = ["clone", "--quiet", "--shared", ROOT, &this.tree.display().to_string()];
        succeeded(
            Command::new("git")
                .args(clone)
                .env("GIT_CONFIG_COUNT", "1")
                .env("GIT_CONFIG_KEY_0", "safe.directory")
                .env("GIT_CONFIG_VALUE_0", "*"),
        );
        for path in [
            "tools/release",
            "tools/platform.sh",
            "tools/packaging",
            "tools/setup",
            "tools/soak",
            "Makefile",
            "CHANGELOG.md",
            "Cargo.toml",
            "Cargo.lock",
        ] {
            let to = this.tree.join(path);
            let _ = fs::remove_dir_all(&to);
            succeeded(Command::new("cp").arg("-R").arg(Path::new(ROOT).join(path)).arg(to));
        }
        // Remove Python's cache: it is not part of a commit.
        let _ = fs::remove_dir_all(this.tree.join("tools/packaging/__pycache__"));
        this.commit();
        fs::write(this.program(), "a program").unwrap();
        this
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    fn archives(&self) -> PathBuf {
        self.folder.path().join("target/release-archives")
    }

    fn commit(&self) {
        let git = |arguments: &[&str]| {
            let identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"];
            let dates = [("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z"), ("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z")];
            succeeded(Command::new("git").arg("-C").arg(&self.tree).args(identity).args(arguments).envs(dates));
        };
        git(&["add", "--all"]);
        git(&["commit", "--quiet", "--allow-empty", "--message", "As in the work tree"]);
    }

    /// `tools/release` without the environment variables that enable signing.
    fn release(&self, platforms: &[&str]) -> Command {
        let mut command = Command::new(self.tree.join("tools/release"));
        for platform in platforms {
            command.arg(format!("{platform}={}", self.program().display()));
        }
        command
            .env("CARGO_TARGET_DIR", self.folder.path().join("target"))
            .env("CARGO_NET_OFFLINE", "true")
            .env_remove("RELEASE_GPG_KEY")
            .env_remove("RELEASE_SOURCE")
            .env_remove("RELEASE_BUILDER");
        command
    }

    /// Runs a Makefile target in this checkout, without variables from an outer run.
    fn make(&self, target: &str) -> Command {
        let mut command = Command::new("make");
        command.arg("-C").arg(&self.tree).arg(target);
        for setting in ["MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "PLATFORM", "PLATFORMS", "ALLOW_NOT_RUN"] {
            command.env_remove(setting);
        }
        command
    }

    /// Returns true if `tools/packaging/try` accepts this program's archive with a PATH, and its
    /// output.
    fn tried(&self, platform: &str, program: &[u8], path: &str) -> (bool, String) {
        self.pack(platform, program);
        everything_said(self.try_it(platform).env("PATH", path))
    }

    /// Creates this program's archive and provides the hosts for the trial.
    fn pack(&self, platform: &str, program: &[u8]) {
        fs::create_dir_all(self.archives()).unwrap();
        fs::write(self.program(), program).unwrap();
        let package = self.tree.join("tools/packaging/package.py");
        let mut pack = Command::new("python3");
        pack.arg("-B").arg(package).args(["archive", VERSION]).arg(self.archives()).arg(platform).arg(self.program());
        succeeded(&mut pack);
        let hosts = self.tree.join(".tools");
        if !hosts.is_symlink() {
            symlink(Path::new(ROOT).join(".tools"), hosts).unwrap();
        }
    }

    fn try_it(&self, platform: &str) -> Command {
        let mut command = Command::new(self.tree.join("tools/packaging/try"));
        command.arg(self.archives()).arg(platform).env_remove("ALLOW_NOT_RUN");
        command
    }

    fn refuses(&self, reason: &str) {
        let output = run(&mut self.release(&["linux_amd64"]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{reason}: {said}");
        assert!(!self.archives().exists(), "the release was refused after it wrote archives");
    }
}

fn name(ending: &str) -> String {
    format!("terraform-provider-metal_{VERSION}_{ending}")
}

fn sha256(file: &Path) -> String {
    Sha256::digest(fs::read(file).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn json(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

fn files(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_release_has_the_files_that_registries_ask_for() {
    let checkout = Checkout::new("checkout");
    succeeded(&mut checkout.release(&["linux_amd64", "windows_amd64"]));
    let folder = checkout.archives();
    let expected: BTreeSet<String> = [
        "linux_amd64.zip",
        "linux_amd64.cdx.json",
        "windows_amd64.zip",
        "windows_amd64.cdx.json",
        "manifest.json",
        "SHA256SUMS",
        "provenance.intoto.json",
    ]
    .map(name)
    .into();
    assert_eq!(files(&folder), expected);

    let sums = fs::read_to_string(folder.join(name("SHA256SUMS"))).unwrap();
    let named: BTreeSet<_> = sums.lines().map(|line| line.split_once("  ").expect("two spaces")).collect();
    let archives = ["linux_amd64.zip", "windows_amd64.zip", "manifest.json"].map(name);
    let hashes: Vec<_> = archives.iter().map(|file| (sha256(&folder.join(file)), file.as_str())).collect();
    assert_eq!(named, hashes.iter().map(|(hash, file)| (hash.as_str(), *file)).collect());
    assert_eq!(json(&folder.join(name("manifest.json")))["metadata"]["protocol_versions"][0], "6.0");

    let listed = |archive: &str| {
        let script = "import sys, zipfile\nfor i in zipfile.ZipFile(sys.argv[1]).infolist(): print(i.filename, oct(i.external_attr >> 16), i.date_time[0])";
        succeeded(Command::new("python3").args(["-c", script]).arg(folder.join(name(archive))))
    };
    assert_eq!(
        listed("linux_amd64.zip"),
        format!("LICENSE 0o100644 1980\nterraform-provider-metal_v{VERSION} 0o100755 1980\n")
    );
    assert!(listed("windows_amd64.zip").contains(&format!("terraform-provider-metal_v{VERSION}.exe ")));
}

/// Includes everything that CONTRIBUTING.md, the mirror tests and the lock file tests need.
#[test]
fn a_release_without_names_is_of_every_platform() {
    let checkout = Checkout::new("checkout");
    let build = format!("echo '{}'", checkout.program().display());
    script(&checkout.tree.join("tools/packaging/build"), &build);
    checkout.commit();
    succeeded(&mut checkout.release(&[]));
    let made: BTreeSet<String> = files(&checkout.archives())
        .iter()
        .filter_map(|file| file.strip_prefix(&name(""))?.strip_suffix(".zip").map(str::to_owned))
        .collect();
    let guide = fs::read_to_string(Path::new(ROOT).join("CONTRIBUTING.md")).unwrap();
    let (_, table) = guide.split_once("| platform | target | state |\n|---|---|---|\n").unwrap();
    let rows = table.lines().map_while(|line| line.strip_prefix("| ")?.split(" |").next());
    let described: BTreeSet<String> = rows.flat_map(|row| row.split(", ")).map(str::to_owned).collect();
    assert_eq!(made, described);
    let mirror = fs::read_to_string(Path::new(ROOT).join("tests/acceptance/support/mirror.rs")).unwrap();
    let (_, constants) = mirror.split_once("pub const HERE").unwrap();
    let (constants, _) = constants.split_once("];").unwrap();
    let mirrored: BTreeSet<String> = constants.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    assert_eq!(made, mirrored);
}

#[test]
fn the_bill_names_what_is_linked_and_the_statement_how_it_was_made() {
    let checkout = Checkout::new("checkout");
    succeeded(checkout.release(&["linux_amd64"]).env("RELEASE_SOURCE", "https://git.example/metal"));
    let folder = checkout.archives();
    let bill = json(&folder.join(name("linux_amd64.cdx.json")));
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let components = bill["components"].as_array().unwrap();
    let scope =
        |name: &str| components.iter().find(|one| one["name"] == name).map(|one| one["scope"].as_str().unwrap());
    assert_eq!(scope("rustls"), Some("required"));
    assert_eq!(scope("aws-lc-sys"), Some("required"));
    assert_eq!(scope("protox"), Some("excluded"), "only builds");
    assert_eq!(scope("serde_derive"), Some("excluded"), "a macro");
    assert_eq!(scope("proptest"), None, "of the tests");
    assert_eq!(scope("security-framework"), None, "of another system");
    let lock = fs::read_to_string(Path::new(ROOT).join("Cargo.lock")).unwrap();
    let (of_registry, own): (Vec<_>, Vec<_>) = components.iter().partition(|one| one["hashes"].is_array());
    for component in of_registry {
        assert!(component["purl"].as_str().unwrap().starts_with("pkg:cargo/"), "{component}");
        assert!(lock.contains(component["hashes"][0]["content"].as_str().unwrap()), "{component}");
    }
    // The local crates use `pkg:generic`, because no registry contains them.
    let own: Vec<_> = own.iter().map(|one| one["purl"].as_str().unwrap()).collect();
    let expected =
        ["maintenance-protocol", "shown-text", "tf-plugin-server"].map(|name| format!("pkg:generic/{name}@{VERSION}"));
    assert_eq!(own, expected);
    let refs: BTreeSet<_> = components.iter().map(|one| one["bom-ref"].as_str().unwrap()).collect();
    let dependencies = bill["dependencies"].as_array().unwrap();
    assert_eq!(dependencies.len(), components.len() + 1);
    let all = dependencies.iter().flat_map(|one| one["dependsOn"].as_array().unwrap());
    assert!(all.map(|one| one.as_str().unwrap()).all(|one| refs.contains(one)));

    let statement = json(&folder.join(name("provenance.intoto.json")));
    assert_eq!(statement["_type"], "https://in-toto.io/Statement/v1");
    assert_eq!(statement["predicateType"], "https://slsa.dev/provenance/v1");
    let subjects = statement["subject"].as_array().unwrap();
    assert_eq!(subjects.len(), 4, "{statement:#}");
    for subject in subjects {
        assert_eq!(subject["digest"]["sha256"], sha256(&folder.join(subject["name"].as_str().unwrap())));
    }
    let build = &statement["predicate"]["buildDefinition"];
    let commit = succeeded(Command::new("git").arg("-C").arg(&checkout.tree).args(["rev-parse", "HEAD"]));
    let source = &build["resolvedDependencies"][0];
    assert_eq!(
        (&source["digest"]["gitCommit"], &source["uri"]),
        (&commit.trim().into(), &"https://git.example/metal".into())
    );
    assert!(build["externalParameters"]["command"].as_str().unwrap().starts_with("tools/release linux_amd64="));
    assert!(build["internalParameters"]["tools"]["rustc"].as_str().unwrap().starts_with("rustc 1."));
}

/// The folder, the time and the umask differ.
#[test]
fn the_same_commit_and_program_give_the_same_bytes() {
    let (one, other) = (Checkout::new("checkout"), Checkout::new("a checkout elsewhere"));
    fs::set_permissions(other.program(), fs::Permissions::from_mode(0o600)).unwrap();
    fs::File::options().write(true).open(other.program()).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    succeeded(&mut one.release(&["linux_amd64", "linux_arm64"]));
    succeeded(&mut other.release(&["linux_arm64", "linux_amd64"]));
    assert_eq!(files(&one.archives()), files(&other.archives()));
    for file in files(&one.archives()) {
        // The provenance contains the commands, which differ here.
        if file == name("provenance.intoto.json") {
            continue;
        }
        assert_eq!(sha256(&one.archives().join(&file)), sha256(&other.archives().join(&file)), "{file}");
    }
    for file in files(&other.archives())
        .iter()
        .filter(|file| file.strip_suffix(".json").is_some_and(|name| !name.contains("provenance")))
    {
        let text = fs::read_to_string(other.archives().join(file)).unwrap();
        assert!(!text.contains("elsewhere") && !text.contains(ROOT), "{file} names a path");
    }
}

/// Uses a release's environment: a signing key and a different target folder.
#[test]
fn two_builds_are_compared_without_their_signatures_and_each_in_its_own_folder() {
    let checkout = Checkout::new("checkout");
    fs::create_dir_all(checkout.tree.join("target/protoc")).unwrap();
    let compared = |build: &str| {
        script(&checkout.tree.join("tools/packaging/build"), build);
        checkout.commit();
        let mut reproduce = Command::new(checkout.tree.join("tools/packaging/reproduce"));
        reproduce
            .arg("linux_arm64")
            .env("CARGO_NET_OFFLINE", "true")
            .env("CARGO_TARGET_DIR", checkout.folder.path().join("another"))
            .env("RELEASE_GPG_KEY", "0123456789ABCDEF0123456789ABCDEF01234567");
        everything_said(&mut reproduce)
    };
    let (good, said) = compared("echo \"a program for $1\" >target/program; echo target/program");
    assert!(good && said.contains("have the same bytes"), "{said}");
    assert!(said.contains(&name("linux_arm64.zip")) && !said.contains(".sig"), "{said}");
    let (good, said) = compared("pwd >target/program; echo target/program");
    assert!(!good && said.contains("\n> ") && !said.contains("have the same bytes"), "{said}");
}

#[test]
fn a_checkout_with_changes_and_an_undescribed_version_are_refused() {
    let checkout = Checkout::new("checkout");
    fs::write(checkout.tree.join("src/forgotten.rs"), "").unwrap();
    checkout.refuses("src/forgotten.rs");
    fs::remove_file(checkout.tree.join("src/forgotten.rs")).unwrap();

    let changelog = fs::read_to_string(checkout.tree.join("CHANGELOG.md")).unwrap();
    assert!(changelog.contains(&format!("\n## {VERSION}")));
    // A version with the same prefix is a different version.
    fs::write(
        checkout.tree.join("CHANGELOG.md"),
        changelog.replace(&format!("\n## {VERSION}"), &format!("\n## {VERSION}-rc1")),
    )
    .unwrap();
    checkout.refuses("not committed");
    checkout.commit();
    checkout.refuses(&format!("no section '## {VERSION}'"));
}

/// A key ring for one test, with its gpg agent.
struct Keys(TempDir);

impl Keys {
    /// Creates a ring with one key and returns the key's fingerprint.
    fn with(algorithm: &str, passphrase: &str) -> (Self, String) {
        // A socket path has at most 107 bytes.
        let this = Self(tempfile::Builder::new().prefix("k").tempdir_in("/tmp").unwrap());
        fs::set_permissions(this.0.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let make = ["--batch", "--pinentry-mode", "loopback", "--passphrase", passphrase];
        succeeded(this.gpg().args(make).args([
            "--quick-generate-key",
            "Release <release@example.com>",
            algorithm,
            "sign",
            "never",
        ]));
        let listed = succeeded(this.gpg().args(["--batch", "--with-colons", "--list-keys"]));
        let fingerprint =
            listed.lines().find_map(|line| line.strip_prefix("fpr:")).unwrap().trim_matches(':').to_owned();
        (this, fingerprint)
    }

    fn gpg(&self) -> Command {
        let mut command = Command::new("gpg");
        command.env("GNUPGHOME", self.0.path());
        command
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = Command::new("gpgconf").args(["--kill", "all"]).env("GNUPGHOME", self.0.path()).output();
    }
}

#[test]
fn checksums_are_signed_with_the_key_of_the_environment() {
    let checkout = Checkout::new("checkout");
    let (keys, fingerprint) = Keys::with("rsa2048", "a passphrase");
    let mut release = checkout.release(&["linux_amd64"]);
    release.env("GNUPGHOME", keys.0.path()).env("RELEASE_GPG_KEY", &fingerprint);
    succeeded(release.env("RELEASE_GPG_PASSPHRASE", "a passphrase"));
    let folder = checkout.archives();

    // A host has only the public key.
    let public = folder.join("public.gpg");
    succeeded(keys.gpg().args(["--batch", "--output"]).arg(&public).args(["--export", &fingerprint]));
    for signed in ["SHA256SUMS", "provenance.intoto.json"].map(name) {
        let (file, signature) = (folder.join(&signed), folder.join(format!("{signed}.sig")));
        let verify = || {
            let mut command = Command::new("gpgv");
            command.arg("--keyring").arg(&public).arg(&signature).arg(&file);
            command
        };
        assert_eq!(fs::read(&signature).unwrap()[0] & 0x80, 0x80, "binary, not armoured");
        let guide = fs::read_to_string(Path::new(ROOT).join("docs/guides/installing.md")).unwrap();
        let documented = format!(
            "gpgv --keyring ./release-key.gpg terraform-provider-metal_0.1.0_{0}.sig terraform-provider-metal_0.1.0_{0}\n",
            signed.split_once(VERSION).unwrap().1.trim_start_matches('_')
        );
        assert!(guide.contains(&documented), "{documented}");
        succeeded(&mut verify());
        fs::write(&file, format!("{}\n", fs::read_to_string(&file).unwrap())).unwrap();
        assert!(!run(&mut verify()).status.success(), "a changed {signed} is noticed");
    }
    let sums = fs::read_to_string(folder.join(name("SHA256SUMS"))).unwrap();
    assert!(!sums.contains(".sig") && !sums.contains("provenance") && !sums.contains("cdx"), "{sums}");
}

#[test]
fn a_key_that_registries_refuse_and_a_missing_one_are_found_before_the_build() {
    let checkout = Checkout::new("checkout");
    let (keys, fingerprint) = Keys::with("ed25519", "");
    for (key, reason) in [
        (fingerprint.as_str(), "neither an RSA nor a DSA key"),
        ("0123456789ABCDEF0123456789ABCDEF01234567", "no secret key"),
    ] {
        let output =
            run(checkout.release(&["linux_amd64"]).env("GNUPGHOME", keys.0.path()).env("RELEASE_GPG_KEY", key));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{said}");
        assert!(!checkout.archives().exists());
    }
}

/// Covers only the report. Driving the programs with both hosts would need a build.
#[test]
fn a_program_is_started_before_it_is_released_or_named_as_not_run() {
    let checkout = Checkout::new("checkout");
    let path = std::env::var("PATH").unwrap();
    let (good, said) = checkout.tried("linux_amd64", &elf(X86_64, &FAILS, &[]), &path);
    assert!(!good && said.contains("linux_amd64 does not start"), "{said}");
    let other = elf(X86_64, &prints("terraform-provider-metal 0.0.1\n"), &[]);
    let (good, said) = checkout.tried("linux_amd64", &other, &path);
    assert!(!good && said.contains("linux_amd64 says 'terraform-provider-metal 0.0.1', and not"), "{said}");
    let (good, said) = checkout.tried("darwin_arm64", &mach_o(MACH_ARM64, &[], true), &path);
    assert!(
        good && said.contains("darwin_arm64 is for macOS 11.0") && said.contains("darwin_arm64 was NOT run"),
        "{said}"
    );

    let program = elf(AARCH64, b"a program", &[]);
    let emulators = checkout.folder.path().join("emulators");
    fs::create_dir(&emulators).unwrap();
    let emulator = emulators.join("qemu-aarch64-static");
    script(&emulator, "grep -q 'a program' \"$1\" && echo \"terraform-provider-metal 0.0.1 $2\"");
    let (good, said) = checkout.tried("linux_arm64", &program, &format!("{}:{path}", emulators.display()));
    assert!(!good && said.contains("linux_arm64 says 'terraform-provider-metal 0.0.1 --version'"), "{said}");

    let none = checkout.folder.path().join("no emulators");
    link_tools(&none, &["bash", "dirname", "sed", "uname", "mktemp", "mkdir", "rm", "python3"]);
    for (platform, program) in [("linux_arm64", program.as_slice()), ("windows_amd64", b"a program".as_slice())] {
        let not_run = format!("{platform} was NOT run: no emulator was found");
        let (good, said) = checkout.tried(platform, program, &none.display().to_string());
        assert!(!good && said.contains(&not_run) && said.contains(&format!("try: not run: {platform}.")), "{said}");
        let mut allowed = checkout.try_it(platform);
        let (good, said) = everything_said(allowed.env("PATH", &none).env("ALLOW_NOT_RUN", "1"));
        assert!(good && said.contains(&not_run), "{said}");
    }
}

/// Wine processes outlive their server briefly and still write files.
#[test]
fn nothing_is_left_of_wine_after_a_program_was_tried() {
    let checkout = Checkout::new("checkout");
    let (emulators, temporary) = (checkout.folder.path().join("emulators"), checkout.folder.path().join("temporary"));
    for folder in [&emulators, &temporary] {
        fs::create_dir(folder).unwrap();
    }
    script(
        &emulators.join("wine"),
        "(for i in 1 2 3 4 5 6 7 8 9; do mkdir -p \"$WINEPREFIX/$i\"; sleep 0.2; done; \
         echo >\"${0%/*}/ended\") >/dev/null 2>&1 &\n\
         echo another program",
    );
    script(&emulators.join("wineserver"), "echo \"$@\" >>\"${0%/*}/asked\"");
    let path = format!("{}:{}", emulators.display(), std::env::var("PATH").unwrap());
    checkout.pack("windows_amd64", b"a program");
    let mut tried = checkout.try_it("windows_amd64");
    let (good, said) = everything_said(tried.env("PATH", path).env("TMPDIR", &temporary));
    assert!(!good && said.contains("windows_amd64 says 'another program', and not"), "{said}");
    assert_eq!(fs::read_to_string(emulators.join("asked")).unwrap(), "-k\n");
    assert!(emulators.join("ended").exists(), "its files were removed while it was running: {said}");
    assert_eq!(files(&temporary), BTreeSet::new(), "{said}");
}

/// Covers the Debian packages that the set-up installs, given the CPU and existing emulators.
#[test]
fn emulators_that_a_release_needs_and_the_machine_lacks_are_installed() {
    let checkout = Checkout::new("checkout");
    let asked = |processor: &str, present: &[&str], settings: &[(&str, &str)]| {
        let machine = tempfile::tempdir_in(checkout.folder.path()).unwrap();
        let (tools, log) = (machine.path().join("tools"), machine.path().join("asked"));
        link_tools(&tools, &["bash", "dirname", "env", "flock", "mkdir", "mktemp", "rm", "sed"]);
        script(&tools.join("uname"), &format!("[ \"$1\" = -s ] && echo Linux || echo {processor}"));
        script(&tools.join("id"), "echo 0");
        script(&tools.join("apt-get"), &format!("echo \"$@\" >>'{}'", log.display()));
        for emulator in present {
            script(&tools.join(emulator), "");
        }
        let mut step = Command::new(checkout.tree.join("tools/setup/run"));
        step.arg("emulators").env("PATH", &tools).env_remove("PLATFORMS").env_remove("ALLOW_NOT_RUN");
        succeeded(step.envs(settings.iter().copied()));
        let asked = fs::read_to_string(log).unwrap_or_default();
        asked
            .split_once("--no-install-recommends ")
            .map_or_else(String::new, |(_, packages)| packages.trim().to_owned())
    };
    assert_eq!(asked("x86_64", &[], &[]), "qemu-user-static wine wine64");
    assert_eq!(asked("x86_64", &["qemu-aarch64-static"], &[]), "wine wine64");
    assert_eq!(asked("x86_64", &["qemu-aarch64", "wine"], &[]), "");
    assert_eq!(asked("aarch64", &[], &[]), "qemu-user-static");
    assert_eq!(asked("x86_64", &[], &[("PLATFORMS", "linux_amd64 darwin_arm64=PROGRAM")]), "");
    assert_eq!(asked("x86_64", &[], &[("PLATFORMS", "windows_amd64=PROGRAM")]), "wine wine64");
    assert_eq!(asked("x86_64", &[], &[("ALLOW_NOT_RUN", "1")]), "");
}

/// The check comes before the build, which takes hours. A build alone does not need an emulator.
#[test]
fn a_release_brings_its_emulators() {
    let checkout = Checkout::new("checkout");
    script(&checkout.tree.join("tools/setup/run"), "echo \"step $* of ${PLATFORMS:-all platforms}\"");
    let said = succeeded(&mut checkout.make("setup-release"));
    assert!(said.contains("step signing emulators opentofu terraform of all platforms\n"), "{said}");
    let said = succeeded(checkout.make("setup-release").arg("PLATFORMS=linux_amd64 linux_arm64"));
    assert!(said.contains("step signing emulators opentofu terraform of linux_amd64 linux_arm64\n"), "{said}");
    let said = succeeded(&mut checkout.make("setup-platforms"));
    assert!(said.contains("step release of") && !said.contains("emulators"), "{said}");
}

/// Clippy and the tests compile code for this system only.
#[test]
fn code_for_windows_and_macos_is_compiled_without_a_release() {
    let checkout = Checkout::new("checkout");
    let log = checkout.folder.path().join("log");
    script(&checkout.tree.join("tools/setup/run"), "");
    let build = format!("echo \"build $*\" >>'{}'; [ \"$1\" != \"${{BROKEN:-}}\" ]", log.display());
    script(&checkout.tree.join("tools/packaging/build"), &build);
    succeeded(&mut checkout.make("check-platforms"));
    assert_eq!(fs::read_to_string(&log).unwrap(), "build windows_amd64 check\nbuild darwin_arm64 check\n");
    for broken in ["windows_amd64", "darwin_arm64"] {
        let checked = run(checkout.make("check-platforms").env("BROKEN", broken));
        assert!(!checked.status.success(), "{broken} does not compile");
    }

    // The stand-ins only print their arguments.
    let tools = checkout.folder.path().join("tools");
    fs::create_dir(&tools).unwrap();
    for tool in ["cargo", "make"] {
        script(&tools.join(tool), &format!("echo \"{tool} $*\" >>'{}'", log.display()));
    }
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let called = |store: &str| {
        fs::remove_file(&log).unwrap();
        let mut soak = Command::new(checkout.tree.join("tools/soak"));
        succeeded(soak.env("PATH", &path).env("STORE", store));
        fs::read_to_string(&log).unwrap()
    };
    assert!(called("").contains("make check-platforms\n"), "part of the long tests");
    assert!(!called("postgres").contains("make"), "make ran for a single store");
}

/// C compiler flags form one string, separated by spaces.
#[test]
fn a_checkout_whose_path_has_spaces_is_named_to_the_c_compiler_whole() {
    let checkout = Checkout::new("a checkout");
    let (tools, log) = (checkout.folder.path().join("tools"), checkout.folder.path().join("log"));
    let zigbuild = checkout.tree.join(".tools/release/bin/cargo-zigbuild");
    for folder in [tools.as_path(), zigbuild.parent().unwrap()] {
        fs::create_dir_all(folder).unwrap();
    }
    script(&tools.join("rustup"), "echo x86_64-unknown-linux-musl");
    // Split like the crate `cc`.
    let split = "import os, shlex\n\
                 split = shlex.split if os.environ.get(\"CC_SHELL_ESCAPED_FLAGS\") else str.split\n\
                 print(*split(os.environ[\"CFLAGS\"]), sep=\"\\n\")";
    script(&zigbuild, &format!("python3 -c '{split}' >'{}'", log.display()));
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let mut build = Command::new(checkout.tree.join("tools/packaging/build"));
    succeeded(build.arg("linux_amd64").env("PATH", path).env_remove("CARGO_TARGET_DIR"));
    let flags = fs::read_to_string(&log).unwrap();
    let tree = format!("-ffile-prefix-map={}=/provider", checkout.tree.canonicalize().unwrap().display());
    assert!(flags.lines().any(|flag| flag == tree), "{flags}");
    assert!(flags.lines().all(|flag| flag.starts_with("-ffile-prefix-map=/")), "{flags}");
}

#[test]
fn help_lists_every_described_target_in_one_column() {
    let checkout = Checkout::new("checkout");
    let help = succeeded(checkout.make("help").arg("--no-print-directory"));
    let makefile = fs::read_to_string(checkout.tree.join("Makefile")).unwrap();
    let described: Vec<_> = makefile
        .lines()
        .filter(|line| !line.starts_with(['\t', '#']))
        .filter_map(|line| line.split_once("## "))
        .map(|(head, text)| (head.split(':').next().unwrap(), text))
        .collect();
    let width = described.iter().map(|(target, _)| target.len()).max().unwrap();
    let lines: Vec<_> = described.iter().map(|(target, text)| format!("  make {target:width$} {text}")).collect();
    assert!(described.iter().any(|(target, _)| *target == "check-platforms"), "{lines:#?}");
    assert_eq!(help.lines().collect::<Vec<_>>(), lines);
}

/// A dynamic program would run on the release machine. Without an emulator this check is the only
/// one.
#[test]
fn a_program_that_breaks_a_promise_is_refused_before_it_runs() {
    let checkout = Checkout::new("checkout");
    let path = std::env::var("PATH").unwrap();
    let said_version = prints(&format!("terraform-provider-metal {VERSION}\n"));
    for (platform, program, reason) in [
        ("linux_amd64", elf(X86_64, &said_version, &[(LOADER, GLIBC.to_vec())]), "linux_amd64: it is not static"),
        ("linux_arm64", elf(AARCH64, b"", &[(LOADER, GLIBC.to_vec())]), "linux_arm64: it is not static"),
        ("linux_amd64", b"#!/bin/sh\n".to_vec(), "linux_amd64: it is not a program for Linux"),
        ("darwin_arm64", b"a program".to_vec(), "darwin_arm64: it is not a program for macOS"),
    ] {
        let (good, said) = checkout.tried(platform, &program, &path);
        assert!(!good && said.starts_with(reason) && said.lines().count() == 1, "{reason}: {said}");
    }
}

/// Returns true if `tools/packaging/program.py` accepts a program, and its output.
fn judged(platform: &str, content: &[u8]) -> (bool, String) {
    let folder = TempDir::new().unwrap();
    let program = folder.path().join("program");
    fs::write(&program, content).unwrap();
    let script = Path::new(ROOT).join("tools/packaging/program.py");
    everything_said(Command::new("python3").arg("-B").arg(script).arg(platform).arg(program))
}

fn refused(programs: &[(&str, Vec<u8>, &str)]) {
    for (platform, content, reason) in programs {
        let (good, said) = judged(platform, content);
        assert!(!good && said.contains(reason) && !said.contains("Traceback"), "{reason}: {said}");
    }
}

const X86_64: u16 = 62;
const AARCH64: u16 = 183;
const DYNAMIC: u32 = 2;
const LOADER: u32 = 3;
const GLIBC: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
/// Load address of a file from `elf`.
const BASE: u64 = 0x40_0000;

/// A Linux program as in `<elf.h>`. Its first segment covers the file and starts with the code;
/// `more` lists further segments as kind and content.
fn elf(processor: u16, code: &[u8], more: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let heads = 64 + 56 * (more.len() + 1);
    let size = heads + code.len() + more.iter().map(|(_, content)| content.len()).sum::<usize>();
    // 64 bits, little-endian; a program at a fixed address.
    let mut file = [b"\x7fELF\x02\x01\x01".as_slice(), &[0; 9]].concat();
    file.extend([2, processor].map(u16::to_le_bytes).concat());
    file.extend(1_u32.to_le_bytes());
    file.extend([BASE + heads as u64, 64, 0].map(u64::to_le_bytes).concat());
    file.extend(0_u32.to_le_bytes());
    file.extend([64, 56, u16::try_from(more.len()).unwrap() + 1, 0, 0, 0].map(u16::to_le_bytes).concat());
    let mut at = heads + code.len();
    let mut segment = |kind: u32, offset: usize, size: usize| {
        file.extend([kind, 5].map(u32::to_le_bytes).concat());
        let (offset, size) = (offset as u64, size as u64);
        file.extend([offset, BASE + offset, BASE + offset, size, size, 0x1000].map(u64::to_le_bytes).concat());
    };
    segment(1, 0, size);
    for (kind, content) in more {
        segment(*kind, at, content.len());
        at += content.len();
    }
    file.extend(code);
    file.extend(more.iter().flat_map(|(_, content)| content));
    file
}

/// Code for x86-64 that exits with status 1.
const FAILS: [u8; 12] = [0xBF, 1, 0, 0, 0, 0xB8, 60, 0, 0, 0, 0x0F, 5];

/// Returns x86-64 code that prints a text and exits with status 0.
fn prints(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_le_bytes();
    // The text starts 21 bytes after the instruction that loads its address.
    let mut code = vec![0xBF, 1, 0, 0, 0, 0x48, 0x8D, 0x35, 21, 0, 0, 0, 0xBA];
    code.extend(length);
    code.extend([0xB8, 1, 0, 0, 0, 0x0F, 5, 0x31, 0xFF, 0xB8, 60, 0, 0, 0, 0x0F, 5]);
    code.extend(text.as_bytes());
    code
}

/// A dynamic section's entries, followed by their strings.
fn dynamic(entries: &[(u64, u64)], names: &[u8]) -> (u32, Vec<u8>) {
    let numbers = entries.iter().flat_map(|(tag, value)| [*tag, *value]);
    (DYNAMIC, numbers.flat_map(u64::to_le_bytes).chain(names.iter().copied()).collect())
}

#[test]
fn a_program_that_no_image_of_a_host_would_start_is_refused() {
    const NEEDED: u64 = 1;
    const NAMES: u64 = 5;
    const FLAGS: u64 = 30;
    for (platform, processor) in [("linux_amd64", X86_64), ("linux_arm64", AARCH64)] {
        // A static PIE, as linkers write it.
        let mut anywhere = elf(processor, b"", &[dynamic(&[(FLAGS, 8), (0, 0)], b"")]);
        anywhere[16] = 3;
        for whole in [elf(processor, b"", &[]), anywhere] {
            let (good, said) = judged(platform, &whole);
            assert!(good && said.contains("static: it needs no loader and no library"), "{said}");
        }
    }
    let whole = elf(X86_64, b"code", &[]);
    // The strings follow two segment headers and three entries.
    let names = BASE + 64 + 2 * 56 + 3 * 16;
    let library = dynamic(&[(NEEDED, 1), (NAMES, names), (0, 0)], b"\0libc.so.6\0");
    let nameless = dynamic(&[(NEEDED, 1), (0, 0)], b"");
    let mut sections = whole.clone();
    // A section table with one entry, past the file's end.
    sections[40..48].copy_from_slice(&(whole.len() as u64).to_le_bytes());
    sections[58..62].copy_from_slice(&[64, 0, 1, 0]);
    let mut object = whole.clone();
    object[16] = 1;
    let mut empty = whole.clone();
    empty[56] = 0;
    let mut narrow = whole.clone();
    narrow[4] = 1;
    refused(&[
        ("linux_arm64", whole.clone(), "it is for linux_amd64"),
        ("linux_amd64", elf(AARCH64, b"", &[]), "it is for linux_arm64"),
        ("linux_amd64", elf(243, b"", &[]), "it is for another processor"),
        ("linux_amd64", narrow, "it is not a program for Linux"),
        ("linux_amd64", object, "it is not a program for Linux"),
        ("linux_amd64", b"#!/bin/sh\nexec true\n".to_vec(), "it is not a program for Linux"),
        (
            "linux_amd64",
            elf(X86_64, b"", &[(LOADER, GLIBC.to_vec())]),
            "not static: it needs the loader /lib64/ld-linux-x86-64.so.2",
        ),
        ("linux_amd64", elf(X86_64, b"", &[library]), "not static: it needs libc.so.6"),
        ("linux_amd64", elf(X86_64, b"", &[nameless]), "not static: it needs a library whose name is not in it"),
        ("linux_amd64", empty, "it has no segment to load"),
        ("linux_amd64", whole[..40].to_vec(), "it ends within its head"),
        ("linux_amd64", whole[..100].to_vec(), "it ends within its head"),
        ("linux_amd64", whole[..whole.len() - 1].to_vec(), "it ends within a segment"),
        ("linux_amd64", sections, "it ends within its sections"),
    ]);
}

const MACH_AMD64: u32 = 0x0100_0007;
const MACH_ARM64: u32 = 0x0100_000C;

/// A macOS program's header, as in `<mach-o/loader.h>`.
fn mach_o(processor: u32, libraries: &[&str], signed: bool) -> Vec<u8> {
    let numbers = |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    // LC_BUILD_VERSION: macOS 11.0.
    let mut commands = vec![numbers(&[0x32, 24, 1, 11 << 16, 26 << 16, 0])];
    for library in libraries {
        let size = (24 + library.len()).next_multiple_of(8) + 8;
        let mut command = numbers(&[0x0C, u32::try_from(size).unwrap(), 24, 0, 0, 0]);
        command.extend(library.as_bytes());
        command.resize(size, 0);
        commands.push(command);
    }
    if signed {
        commands.push(numbers(&[0x1D, 16, 0, 0]));
    }
    let count = u32::try_from(commands.len()).unwrap();
    let commands = commands.concat();
    let size = u32::try_from(commands.len()).unwrap();
    [numbers(&[0xFEED_FACF, processor, 0, 2, count, size, 0, 0]), commands].concat()
}

#[test]
fn a_program_that_no_mac_would_start_is_refused() {
    let system = ["/usr/lib/libSystem.B.dylib", "/System/Library/Frameworks/Security.framework/Versions/A/Security"];
    let whole = mach_o(MACH_ARM64, &system, true);
    let (good, said) = judged("darwin_arm64", &whole);
    assert!(
        good && said.contains("for macOS 11.0 and later, signed by the linker, needs libSystem.B.dylib, Security"),
        "{said}"
    );
    let unsigned = mach_o(MACH_AMD64, &system, false);
    let (good, said) = judged("darwin_amd64", &unsigned);
    assert!(good && said.contains("not signed"), "{said}");
    // LC_VERSION_MIN_MACOSX, in which linkers write versions before 10.14.
    let mut older = unsigned;
    older[32..36].copy_from_slice(&0x24_u32.to_le_bytes());
    older[40..44].copy_from_slice(&((10_u32 << 16) | (12 << 8)).to_le_bytes());
    let (good, said) = judged("darwin_amd64", &older);
    assert!(good && said.contains("for macOS 10.12 and later"), "{said}");
    let needs_macos = |version: u32| {
        let mut program = whole.clone();
        program[44..48].copy_from_slice(&version.to_le_bytes());
        program
    };
    // LC_UUID, which contains no version.
    let mut silent = whole.clone();
    silent[32..36].copy_from_slice(&0x1B_u32.to_le_bytes());
    refused(&[
        ("darwin_arm64", mach_o(MACH_ARM64, &system, false), "it is not signed, and a Mac would end it at its start"),
        ("darwin_amd64", whole.clone(), "it is for darwin_arm64"),
        (
            "darwin_arm64",
            mach_o(MACH_ARM64, &["/opt/homebrew/lib/libiconv.2.dylib"], true),
            "needs /opt/homebrew/lib/libiconv.2.dylib",
        ),
        ("darwin_arm64", needs_macos(12 << 16), "it needs macOS 12.0, and a release promises macOS 11.0"),
        ("darwin_arm64", needs_macos((11 << 16) | (3 << 8)), "it needs macOS 11.3, and a release promises macOS 11.0"),
        ("darwin_arm64", silent, "it does not say which macOS it needs"),
        ("darwin_arm64", whole[..40].to_vec(), "it ends within its head"),
        ("darwin_arm64", b"\x7fELF and more than a head of thirty-two bytes".to_vec(), "it is not a program for macOS"),
    ]);
}
