//! Runs inputs in a child process, in order to detect aborts, stack overflows and endless loops.
use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

use sha2::{Digest as _, Sha256};

/// Environment variable with the target's name.
pub const TARGET: &str = "FUZZ_TARGET";
/// Environment variable with the corpus folder.
pub const CORPUS: &str = "FUZZ_CORPUS";
/// Environment variable with the file for the current input.
pub const CURRENT: &str = "FUZZ_CURRENT";
/// Environment variable with the time for mutated inputs, in seconds.
pub const SECONDS: &str = "FUZZ_SECONDS";
/// Environment variable with the seed, to repeat a run.
pub const SEED: &str = "FUZZ_SEED";

/// Silence after which the child counts as hanging. It prints at least every second between
/// inputs.
const SILENCE: Duration = Duration::from_secs(20);

/// Fuzzes a target for the default time. Panics on a violation.
pub fn passes(target: &str) {
    let seconds = std::env::var(SECONDS).map_or(12.0, |text| text.parse().expect("FUZZ_SECONDS is a number"));
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    match fuzz(target, &corpus, seconds) {
        Ok(summary) => println!("{target}: {summary}"),
        Err(found) => panic!("{target}: {found}"),
    }
}

/// Fuzzes a target. An input that causes a violation is written to `corpus`.
pub fn fuzz(target: &str, corpus: &Path, seconds: f64) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let current = folder.path().join("current");
    let seed = std::env::var(SEED).unwrap_or_else(|_| {
        use std::hash::BuildHasher as _;
        std::collections::hash_map::RandomState::new().hash_one(()).to_string()
    });
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child", "--nocapture"])
        .env(TARGET, target)
        .env(CORPUS, corpus)
        .env(CURRENT, &current)
        .env(SECONDS, seconds.to_string())
        .env(SEED, &seed)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::from(fs::File::create(folder.path().join("stderr")).unwrap()))
        .spawn()
        .unwrap();
    let (say, said) = channel();
    let output = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            let _ = say.send(line);
        }
    });
    let mut last = String::new();
    let mut found = None;
    loop {
        match said.recv_timeout(SILENCE) {
            Ok(line) => {
                if let Some(reason) = line.strip_prefix("FOUND ") {
                    found = Some(reason.to_owned());
                } else if line.starts_with("tried ") {
                    last = line;
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                found = Some("it hangs".to_owned());
                child.kill().unwrap();
                break;
            }
        }
    }
    let status = child.wait().unwrap();
    // A grandchild can keep a killed child's pipe open.
    drop(reader);
    if found.is_none() && !status.success() {
        let error = fs::read_to_string(folder.path().join("stderr")).unwrap_or_default();
        let end: Vec<&str> = error.lines().rev().take(6).collect();
        let signal = status.signal().map_or_else(|| status.to_string(), |signal| format!("signal {signal}"));
        found =
            Some(format!("the process ended by {signal}: {}", end.into_iter().rev().collect::<Vec<_>>().join(" | ")));
    }
    let Some(reason) = found else { return Ok(last) };
    let kept = keep(corpus, &current);
    Err(format!("{reason}\n  seed {seed}, after: {last}\n  the input is kept in {}", kept.display()))
}

/// Moves the current input into the corpus.
fn keep(corpus: &Path, current: &Path) -> PathBuf {
    let input = fs::read(current).unwrap_or_default();
    fs::create_dir_all(corpus).unwrap();
    let digest = Sha256::digest(&input);
    let name = digest[..6].iter().fold("found-".to_owned(), |name, byte| format!("{name}{byte:02x}"));
    let same = fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path());
    if let Some(known) = same.into_iter().find(|path| fs::read(path).is_ok_and(|known| known == input)) {
        return known;
    }
    fs::write(corpus.join(&name), input).unwrap();
    corpus.join(name)
}
