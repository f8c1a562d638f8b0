//! `audit export` in shell commands.

use std::{
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use terraform_provider_metal::store::Store as _;

use crate::{
    bench::{HandClock, finish, hold, sqlite},
    records::{key, request},
};

/// Runs a shell command in which `$METAL` is the program with the store's URL.
fn shell(url: &str, command: &str) -> Output {
    let program = format!("{} --coordination-url {url}", env!("CARGO_BIN_EXE_terraform-provider-metal"));
    let mut child = Command::new("bash")
        .args(["-c", &format!("set -o pipefail; {command}")])
        .env("METAL", program)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_mins(1), "{command} did not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn an_export_ends_with_its_reader_and_with_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    let url = format!("sqlite://{}", path.display());
    let store = sqlite(&path, HandClock::new()).await.unwrap();
    let (uid, fence) = hold(&store, &key("k"), &request("a", 1)).await;
    finish(&store, &key("k"), &uid, fence).await.unwrap();
    store.close().await;

    let all = shell(&url, "$METAL audit export");
    assert!(all.status.success(), "{all:?}");
    let lines: Vec<serde_json::Value> =
        text(&all.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let words: Vec<_> =
        lines.iter().map(|line| (line["id"].as_str().unwrap(), line["what"].as_str().unwrap())).collect();
    assert_eq!(words, [("1", "enqueued"), ("2", "admitted"), ("3", "released")]);
    assert!(lines.iter().all(|line| line["maintenance"] == "ops/a" && line["store"].is_string()), "{lines:#?}");

    // The reader ends after all lines, or after the first.
    for count in [3, 1] {
        let head = shell(&url, &format!("$METAL audit export --follow | head -{count}"));
        assert!(head.status.success(), "{head:?}");
        let logged = |line: &str| line.starts_with(" INFO the coordination store is ");
        assert!(text(&head.stderr).lines().all(logged), "{head:?}");
        assert_eq!(text(&head.stdout).lines().count(), count);
    }
    let after = shell(&url, "$METAL audit export --since 2");
    assert_eq!(text(&after.stdout), format!("{}\n", text(&all.stdout).lines().last().unwrap()));
    for follow in ["", "--follow"] {
        let full = shell(&url, &format!("$METAL audit export {follow} >/dev/full"));
        let error = text(&full.stderr);
        assert_eq!(full.status.code(), Some(1), "{full:?}");
        assert!(error.contains("No space left on device") && error.contains("Next: audit export"), "{error}");
    }
    let unknown = shell(&url, "$METAL audit export --since 99");
    assert!(text(&unknown.stderr).contains("does not contain audit line \"99\""), "{unknown:?}");
}
