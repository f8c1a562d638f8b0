//! `window`: permitted start times of a maintenance, the plan's report, and the effect of closing.

use jiff::{Timestamp, ToSpan as _, tz::TimeZone};

use crate::support::{
    simulator::{Fleet, SOON, maintenance},
    workspace::Workspace,
};

/// Returns a daily UTC window that opens in this many minutes, as a cron schedule.
fn opens_in(minutes: i64) -> String {
    let at = (Timestamp::now() + jiff::SignedDuration::from_mins(minutes)).to_zoned(TimeZone::UTC);
    format!("{} {} * * *", at.minute(), at.hour())
}

for_each_host! {
    async fn outside_of_its_window_it_waits_and_blocks_nobody(host) {
        let (fleet, first) = (Fleet::new(1).await, Workspace::new(host));
        let second = first.beside();
        // Opens in an hour, on any day.
        let window = format!("window = {{ schedule = \"{}\", duration = \"30m\" }}", opens_in(60));
        fleet.configure(&first, &maintenance("node1", "windowed", &format!("{window}\n  priority = 100\n  timeouts = {{ create = \"90m\" }}")));
        first.try_plan().await.succeeded().says("Window: opens").says("for 30m");
        let waiting = first.start_apply();
        let line = waiting.until_it_logs("waiting for its window, opens", SOON).await;
        assert!(line.contains("UTC"), "{line}");
        first.metal(&["queue"]).await.succeeded().says("window, opens");
        // Behind it with a lower priority, but admitted first.
        fleet.configure(&second, &maintenance("node1", "other", ""));
        second.apply().await.succeeded();
        second.destroy().await.succeeded();
        waiting.interrupt();
        waiting.wait(SOON).await;
        first.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

for_each_host! {
    async fn in_an_open_window_it_starts(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let body = maintenance("node1", "m", "window = { name = \"always\" }\n  on_window_close = \"release\"");
        fleet.configure_with(&workspace, "windows = {\n    always = { schedule = \"0 0 * * *\", duration = \"24h\", time_zone = \"Europe/Berlin\" }\n  }", &body);
        workspace.try_plan().await.succeeded().says("Window: open until");
        workspace.apply().await.succeeded();
        assert!(workspace.plan().await.changes().is_empty());
        // Overdue after the window closes, as after `expires_after`.
        workspace.metal(&["show", "tests/m"]).await.succeeded().says("expires");
        workspace.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn a_window_that_comes_too_late_is_an_error_of_the_plan(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let window = format!("window = {{ schedule = \"{}\", duration = \"30m\" }}", opens_in(120));
        fleet.configure(&workspace, &maintenance("node1", "m", &format!("{window}\n  timeouts = {{ create = \"30m\" }}")));
        let plan = workspace.try_plan().await.failed();
        plan.says("node1 cannot be locked in time").says("timeouts.create = 30m").says("Enqueued");
        // Joining the queue is possible at any time.
        fleet.configure(&workspace, &maintenance("node1", "m", &format!("{window}\n  wait_for = \"Enqueued\"")));
        workspace.apply().await.succeeded();
        let held = workspace.resource("metal_server_maintenance.held").await.unwrap();
        assert!(held["waiting_for"].as_str().unwrap().contains("waiting for its window, opens"), "{held}");
        workspace.destroy().await.succeeded();
        assert!(fleet.resets("node1").is_empty());
    }
}

for_each_host! {
    async fn a_window_in_which_nothing_could_start_is_refused_at_plan(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
        let far = today.checked_add(50.years()).unwrap();
        for (window, says) in [
            ("schedule = \"0 22 * *\", duration = \"1h\"".to_owned(), "has 4 fields"),
            ("schedule = \"0 22 30 2 *\", duration = \"1h\"".to_owned(), "never opens"),
            ("schedule = \"0 22 * * *\", duration = \"25h\"".to_owned(), "longer than the 24h"),
            ("schedule = \"0 22 * * *\", duration = \"soon\"".to_owned(), "Invalid duration"),
            ("schedule = \"0 22 * * *\"".to_owned(), "Set duration"),
            ("schedule = \"0 22 * * *\", duration = \"1h\", time_zone = \"Europe/Berlim\"".to_owned(), "is not a valid time zone"),
            ("schedule = \"0 22 * * *\", duration = \"1h\", min_remaining = \"2h\"".to_owned(), "no maintenance could ever start"),
            (format!("schedule = \"0 22 * * *\", duration = \"1h\", exclude = [\"{today}/{far}\"]"), "never opens"),
            ("schedule = \"0 22 * * *\", duration = \"1h\", exclude = [\"24.12.2026\"]".to_owned(), "is not a valid day"),
            ("schedule = \"0 22 * * *\", duration = \"1h\", exclude_calendar_file = \"no.ics\"".to_owned(), "cannot be read"),
            ("schedule = \"0 22 * * *\", duration = \"1h\", exclude_calendar_file = \"main.tf\"".to_owned(), "not an iCalendar file"),
            ("schedule = \"0 22 * * *\", duration = \"1h\", exclude_calendar_file = \"/dev/zero\"".to_owned(), "not a regular file"),
            ("name = \"weekend\"".to_owned(), "does not define the window \"weekend\""),
            ("name = \"weekend\", duration = \"1h\"".to_owned(), "A name and a definition"),
        ] {
            fleet.configure(&workspace, &maintenance("node1", "m", &format!("window = {{ {window} }}")));
            workspace.try_plan().await.failed().says(says).says("on main.tf line");
        }
        fleet.configure(&workspace, &maintenance("node1", "m", "on_window_close = \"release\""));
        workspace.try_plan().await.failed().says("Only with a window");
        assert_eq!(fleet.changes("node1"), [""; 0]);
    }
}

for_each_host! {
    async fn a_freeze_of_a_calendar_closes_it(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let event = |from: &str, until: &str| format!("BEGIN:VEVENT\nSUMMARY:change freeze\nDTSTART:{from}\nDTEND:{until}\nEND:VEVENT\n");
        let stamp = |at: Timestamp| at.strftime("%Y%m%dT%H%M%SZ").to_string();
        let now = Timestamp::now();
        let hours = |n| jiff::SignedDuration::from_hours(n);
        let calendar = |events: &str| format!("BEGIN:VCALENDAR\nVERSION:2.0\n{events}END:VCALENDAR\n");
        workspace.write("freeze.ics", &calendar(&event(&stamp(now - hours(48)), &stamp(now + hours(48)))));
        let window = "window = { schedule = \"0 * * * *\", duration = \"1h\", exclude_calendar_file = \"freeze.ics\" }";
        fleet.configure(&workspace, &maintenance("node1", "m", window));
        workspace.try_plan().await.failed().says("node1 cannot be locked in time");
        workspace.write("freeze.ics", &calendar(&event(&stamp(now - hours(48)), &stamp(now - hours(24)))));
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn a_held_server_is_changed_only_in_its_window(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let body = |minutes: i64, more: &str| {
            let window = format!("window = {{ schedule = \"{}\", duration = \"2h\" }}", opens_in(minutes));
            maintenance("node1", "m", &format!("{window}\n  {more}"))
        };
        fleet.configure(&workspace, &body(-60, ""));
        workspace.apply().await.succeeded();
        fleet.configure(&workspace, &body(180, "reason = \"disk\""));
        workspace.apply().await.succeeded();
        let off = |limit: &str| body(180, &format!("reason = \"disk\"\n  server_power = \"Off\"\n  timeouts = {{ update = \"{limit}\" }}"));
        fleet.configure(&workspace, &off("30m"));
        let late = workspace.try_plan().await.failed();
        late.says("node1 cannot be changed in time").says("timeouts.update = 30m");
        fleet.configure(&workspace, &off("6h"));
        workspace.try_plan().await.succeeded().says("A window is closed").says("Window: opens");
        let waiting = workspace.start_apply();
        waiting.until_it_logs("waiting for its window, opens", SOON).await;
        waiting.interrupt();
        waiting.wait(SOON).await;
        assert!(fleet.changes("node1").is_empty(), "{:?}", fleet.changes("node1"));
        assert_eq!(workspace.resource("metal_server_maintenance.held").await.unwrap()["state"], "InMaintenance");
        workspace.destroy().await.succeeded();
    }
}
