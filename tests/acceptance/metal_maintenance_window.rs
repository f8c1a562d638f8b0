//! `data.metal_maintenance_window`: a window's next opening.

use serde_json::json;

use crate::support::{simulator::Fleet, workspace::Workspace};

for_each_host! {
    async fn it_tells_the_next_openings(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let body = r#"
data "metal_maintenance_window" "w" {
  window = { schedule = "0 22 * * SAT", duration = "4h", time_zone = "Europe/Berlin", exclude = ["2026-11-28"] }
  from   = "2026-11-21T21:30:00Z"
  limit  = 2
}
data "metal_maintenance_window" "named" {
  window = { name = "night" }
  from   = "2026-11-21T12:00:00Z"
}
output "w" {
  value = [data.metal_maintenance_window.w, data.metal_maintenance_window.named.openings[0].start]
}
"#;
        let windows = "windows = {\n    night = { schedule = \"0 1 * * *\", duration = \"2h\" }\n  }";
        fleet.configure_with(&workspace, windows, body);
        workspace.apply().await.succeeded();
        let told = workspace.json(&["output", "-json", "w"]).await;
        assert_eq!(told[0]["open"], json!(true));
        assert_eq!(told[0]["openings"], json!([
            { "start": "2026-11-21T21:00:00Z", "end": "2026-11-22T01:00:00Z", "local_start": "Sat 2026-11-21 22:00 CET" },
            { "start": "2026-12-05T21:00:00Z", "end": "2026-12-06T01:00:00Z", "local_start": "Sat 2026-12-05 22:00 CET" },
        ]));
        assert_eq!(told[1], json!("2026-11-22T01:00:00Z"));
        for (body, says) in [
            ("limit = 0", "not between 1 and 1000"),
            ("from = \"soon\"", "is not a valid RFC 3339 timestamp"),
        ] {
            let window = "window = { schedule = \"0 1 * * *\", duration = \"2h\" }";
            fleet.configure(&workspace, &format!("data \"metal_maintenance_window\" \"w\" {{\n  {window}\n  {body}\n}}\n"));
            workspace.try_plan().await.failed().says(says);
        }
    }
}
