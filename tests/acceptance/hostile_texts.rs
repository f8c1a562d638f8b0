//! Texts from other teams and BMCs cannot affect a terminal, a CI log or a comment.

use crate::support::{
    simulator::{Fleet, SOON, maintenance},
    workspace::Workspace,
};

/// Clears the screen, forges a queue line and a CI command, creates a link, reverses text
/// direction, and adds an approval in Markdown.
const HOSTILE: &str =
    "eve\u{1b}[2J\n::add-mask::on\nInMaintenance  tests/forged\u{1b}]8;;http://x\u{7}\u{202e}| **approved** @team |";

fn acts(text: &str) -> bool {
    let line_acts = |line: &str| line.starts_with("::") || line.trim_start().starts_with("InMaintenance  tests/forged");
    text.contains(['\u{1b}', '\u{7}', '\u{202e}']) || text.lines().any(line_acts)
}

for_one_host! {
    async fn the_name_of_another_user_is_shown_and_does_nothing(host) {
        let (fleet, mut eve) = (Fleet::new(1).await, Workspace::new(host));
        let mut ours = eve.beside();
        eve.set("USER", HOSTILE);
        eve.set("LOGNAME", HOSTILE);
        fleet.configure(&eve, &maintenance("node1", "theirs", "reason = \"b\""));
        eve.apply().await.succeeded();

        fleet.configure(&ours, &maintenance("node1", "ours", ""));
        fleet.command_line(&mut ours);
        let plan = ours.try_plan().await.succeeded();
        plan.says("eve\\u{1b}[2J\\n::add-mask::on");
        assert!(!acts(&plan.output), "{}", plan.output);
        let waiting = ours.start_apply();
        waiting.until_it_logs("queued, ", SOON).await;
        waiting.interrupt();
        let waited = waiting.wait(SOON).await;
        assert!(!acts(&waited.output), "{}", waited.output);
        for command in [&["queue"][..], &["show", "tests/theirs"], &["history"], &["check"]] {
            let shown = ours.metal(command).await;
            assert!(!acts(&shown.output), "{command:?}: {}", shown.output);
        }
        ours.metal(&["queue"]).await.succeeded().says("eve\\u{1b}[2J");

        // The pull request comment.
        let guide = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/guides/pull-request-comment");
        let preview = r#"{"prior_state": {"values": {"root_module": {"resources": [{"type": "metal_maintenance_preview", "values": {
            "previews": [{"server": "node1", "effect": "is locked.", "owner": "a | **approved**", "approval_missing": true,
            "contact": "<img src=x> [y](http://x)", "earliest_start": null, "problems": ["one\ntwo | @team"],
            "ahead": [{"id": "tests/theirs", "by": "HOSTILE"}]}]}}]}}}}"#;
        let by = serde_json::to_string(HOSTILE).unwrap();
        let preview = preview.replace("one\ntwo", "one\\ntwo").replace("\"HOSTILE\"", &by);
        ours.write("plan.json", &preview);
        let comment = std::process::Command::new("python3")
            .arg(guide.join("comment.py"))
            .stdin(std::fs::File::open(ours.folder().join("plan.json")).unwrap())
            .output()
            .unwrap();
        let text = String::from_utf8(comment.stdout).unwrap();
        assert!(comment.status.success(), "{}", String::from_utf8_lossy(&comment.stderr));
        assert!(!acts(&text) && !text.contains(['@', '<', '*', '[']), "{text}");
        let row = text.lines().last().unwrap();
        assert_eq!((row.matches('|').count(), text.lines().count()), (7, 5), "{text}");
        eve.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn what_others_would_read_differently_is_refused(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        for (more, attribute) in [
            ("reason = \"a\\nb\"", "reason"),
            ("ticket = \"OPS\\u202e1\"", "ticket"),
            ("reason = \"a\\u001b[2J\"", "reason"),
        ] {
            fleet.configure(&workspace, &maintenance("node1", "m", more));
            let refused = workspace.run(&["validate", "-no-color"]).await.failed();
            refused.says("Not plain text").says(attribute);
        }
        fleet.configure_with(&workspace, "owner = \"team\\nb\"", &maintenance("node1", "m", ""));
        workspace.run(&["validate", "-no-color"]).await.failed().says("Not plain text").says("owner");
        fleet.configure(&workspace, &maintenance("node1", "m", "reason = \"Müller: BIOS 2.19 (田中)\""));
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
    }
}
