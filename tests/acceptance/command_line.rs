//! The binary run by hand.

use crate::support::{host::Host, simulator::Fleet, simulator::maintenance, workspace::Workspace};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_arguments_it_says_how_it_is_installed() {
    let workspace = Workspace::new(Host::OpenTofu);
    workspace.metal(&[]).await.succeeded().says("make install").says("required_providers");
    workspace.metal(&["--help"]).await.succeeded().says("release").says("complete");
    workspace.metal(&["nonsense"]).await.failed();
    workspace.metal(&["show", "tests/nothing"]).await.failed().says("there is no coordination store yet at sqlite://");
    workspace.metal(&["show", "nonsense"]).await.failed().says("must have the form NAMESPACE/NAME");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_shown_can_be_read_by_people_and_by_scripts() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    fleet.configure(&workspace, &maintenance("node1", "m", "reason = \"swap disk 3\"\n  expires_after = \"2h\""));
    workspace.apply().await.succeeded();
    workspace.metal(&["queue"]).await.succeeded().says("node1").says("InMaintenance").says("expires in 1h 59m");
    let shown = workspace.metal(&["show", "tests/m"]).await.succeeded();
    shown.says("before On, boot override Disabled").says("enqueued").says("admitted").says("prepared");
    let json = workspace.metal(&["show", "tests/m", "--json"]).await.succeeded();
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["maintenance"]["state"], "InMaintenance");
    assert_eq!(json["maintenance"]["previous_power_state"], "On");
    assert_eq!(json["audit"][0]["what"], "enqueued");
    workspace.destroy().await.succeeded();
}

/// No false all-clear: a store that is not there, and a server that nobody knows, are not servers that are free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_makes_no_store_and_knows_no_server_that_was_never_asked_for() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    for command in [["claims"].as_slice(), &["queue", "--server", "node1"], &["store", "check"], &["store", "export"]] {
        workspace.metal(&["queue"]).await.succeeded().says("No queue: there is no coordination store yet at sqlite://");
        workspace.metal(&["queue", "--json"]).await.succeeded().says("[]");
        // Each time: the look before made none.
        workspace.metal(command).await.failed().says("there is no coordination store yet at sqlite://");
    }
    fleet.configure(&workspace, &maintenance("node1", "m", ""));
    workspace.apply().await.succeeded();
    workspace.metal(&["queue", "--server", "node2"]).await.failed().says("knows no server \"node2\" of owner");
    workspace.metal(&["queue", "--server", "node1"]).await.succeeded().says("InMaintenance");
    workspace.metal(&["show", "tests/nothing"]).await.failed().says("tests/nothing is not in sqlite://");
    workspace.destroy().await.succeeded();
    workspace.metal(&["queue", "--server", "node1"]).await.succeeded().says("Nobody holds a server");
    workspace.metal(&["queue"]).await.succeeded().says("waits for one in sqlite://");
}
