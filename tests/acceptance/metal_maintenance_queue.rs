//! `data.metal_maintenance_queue`: holders and waiters.

use serde_json::json;

use crate::support::{
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

for_each_host! {
    async fn it_lists_holders_and_waiters_in_order(host) {
        let (fleet, first) = (Fleet::new(2).await, Workspace::new(host));
        fleet.configure(&first, &maintenance("node1", "first", ""));
        first.apply().await.succeeded();
        for (name, priority) in [("second", 0), ("third", 5)] {
            let waiter = first.beside();
            let more = format!("wait_for = \"Enqueued\"\n  priority = {priority}");
            fleet.configure(&waiter, &maintenance("node1", name, &more));
            waiter.apply().await.succeeded();
        }
        let looker = first.beside();
        fleet.configure(
            &looker,
            "data \"metal_maintenance_queue\" \"q\" {\n  server = \"node1\"\n}\noutput \"q\" {\n  value = data.metal_maintenance_queue.q.entries\n}\n",
        );
        looker.apply().await.succeeded();
        let queue = looker.json(&["output", "-json", "q"]).await;
        let ids: Vec<_> = queue.as_array().unwrap().iter().map(|entry| &entry["id"]).collect();
        assert_eq!(ids, ["tests/first", "tests/third", "tests/second"]);
        assert_eq!((&queue[0]["position"], &queue[1]["position"]), (&json!(0), &json!(1)));
        assert!(queue[1]["waiting_for"].as_str().unwrap().contains("tests/first"));
    }
}
