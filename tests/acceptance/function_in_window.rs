//! `in_window`, called by Terraform because the pinned OpenTofu does not support provider
//! functions.

use serde_json::json;

use crate::support::{host::Host, simulator::Fleet, workspace::Workspace};

fn call(arguments: &str) -> String {
    format!("output \"o\" {{\n  value = provider::metal::in_window({arguments})\n}}\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn it_answers() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::Terraform));
    for (moment, value) in [
        ("2026-11-21T20:59:59Z", json!(false)),
        ("2026-11-21T21:00:00Z", json!(true)),
        ("2026-11-22T01:00:00Z", json!(false)),
    ] {
        fleet.configure(&workspace, &call(&format!("\"0 22 * * SAT\", \"4h\", \"Europe/Berlin\", \"{moment}\"")));
        workspace.apply().await.succeeded();
        assert_eq!(workspace.json(&["output", "-json", "o"]).await, value, "{moment}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_is_refused() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::Terraform));
    for (arguments, says) in [
        (r#""0 22 * *", "4h", "UTC", "2026-11-20T00:00:00Z""#, "has 4 fields"),
        (r#""0 22 * * *", "long", "UTC", "2026-11-20T00:00:00Z""#, "is not a valid duration"),
        (r#""0 22 * * *", "4h", "Mars", "2026-11-20T00:00:00Z""#, "is not a valid time zone"),
        (r#""0 22 30 2 *", "4h", "UTC", "2026-11-20T00:00:00Z""#, "never opens"),
        (r#""0 22 * * *", "4h", "UTC", "later""#, "is not a valid RFC 3339 timestamp"),
    ] {
        fleet.configure(&workspace, &call(arguments));
        workspace.try_plan().await.failed().says(says);
    }
}
