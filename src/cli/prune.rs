//! Cleans up after ended maintenances: external requests and cordoned Nodes.

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    backend::{Cordon, plug::plugin_at},
    engine::{DeletionResult, Engine, PruneSummary, PrunedNodes, Remaining},
    maintenance::state::Maintenance,
};

use super::{
    NAME,
    commands::{CommandError, pretty},
};

/// Withdraws orphaned requests.
pub(super) async fn run(
    engine: &Engine,
    server: Option<&str>,
    json: bool,
    stop: &CancellationToken,
) -> Result<String, CommandError> {
    match requests(engine, server, stop).await {
        Some(pruned) if pruned.left == 0 && !pruned.unlisted => Ok(told(&pruned, json)),
        Some(PruneSummary { unlisted: true, taken_back, .. }) => Err(CommandError::Other(format!(
            "the external requests of one system could not be listed: see above (deleted in the others: {taken_back})"
        ))),
        Some(PruneSummary { left, .. }) => {
            let requests = if left == 1 { "external request" } else { "external requests" };
            Err(CommandError::Other(format!("{left} {requests} could not be deleted: see above")))
        }
        None => Err(CommandError::Other(
            "no external system was searched: prune needs --backend, and an external system that answers".to_owned(),
        )),
    }
}

/// Uncordons Nodes that ended maintenances left cordoned.
pub(super) async fn nodes(engine: &Engine, json: bool, stop: &CancellationToken) -> Result<String, CommandError> {
    let pruned = tokio::select! {
        pruned = engine.prune_nodes() => pruned.map_err(CommandError::from)?,
        () = stop.cancelled() => return Err(CommandError::Other("stopped before all Nodes were checked".to_owned())),
    };
    outcome(&pruned, json)
}

/// Formats the result for Nodes; an error while a Node stays cordoned.
fn outcome(pruned: &PrunedNodes, json: bool) -> Result<String, CommandError> {
    let (text, answer) = (told_of_nodes(pruned), fields_of_nodes(pruned));
    if !pruned.kept.is_empty() {
        return Err(CommandError::NodesKept { text: text.trim_end().to_owned(), answer });
    }
    Ok(if json { pretty(&Value::Object(answer)) } else { text })
}

fn fields_of_nodes(pruned: &PrunedNodes) -> Map<String, Value> {
    let kept: Vec<Value> = pruned
        .kept
        .iter()
        .map(|(cordon, why)| json!({ "node": cordon.node, "maintenance": cordon.id, "why": why }))
        .collect();
    let removed: Vec<Value> = pruned
        .annotations_removed
        .iter()
        .map(|(node, cordoned)| json!({ "node": node, "cordoned": cordoned }))
        .collect();
    let fields =
        [("uncordoned", json!(pruned.uncordoned)), ("annotations_removed", json!(removed)), ("kept", json!(kept))];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn told_of_nodes(pruned: &PrunedNodes) -> String {
    if *pruned == PrunedNodes::default() {
        return "No Node is cordoned for a maintenance that has ended.\n".to_owned();
    }
    let mut text = String::new();
    for node in &pruned.uncordoned {
        text.push_str(&format!("Node {node}: uncordoned.\n"));
    }
    for (node, cordoned) in &pruned.annotations_removed {
        let now = if *cordoned { "it stays cordoned by another author" } else { "another author had uncordoned it" };
        text.push_str(&format!("Node {node}: annotations removed; {now}.\n"));
    }
    for (cordon, why) in &pruned.kept {
        let Cordon { node, id, by_hand, .. } = cordon;
        text.push_str(&format!("Node {node} stays cordoned for {id}, which has ended: {why}. By hand: {by_hand}\n"));
    }
    text
}

/// Withdraws orphaned requests; returns `None` if stopped first.
pub(super) async fn requests(engine: &Engine, server: Option<&str>, stop: &CancellationToken) -> Option<PruneSummary> {
    tokio::select! {
        pruned = engine.prune(server) => pruned,
        () = stop.cancelled() => None,
    }
}

/// Formats the result for orphaned requests, and for requests that are not orphaned yet.
fn told(pruned: &PruneSummary, json: bool) -> String {
    if json {
        let shown = |one: &Remaining| json!({ "id": one.id, "server": one.server, "request": one.name, "until": one.until, "why": one.why });
        let waiting: Vec<Value> = pruned.waiting.iter().map(shown).collect();
        return pretty(&json!({ "taken_back": pruned.taken_back, "waiting": waiting }));
    }
    let mut text = match pruned.taken_back {
        0 if pruned.waiting.is_empty() => "No orphaned requests.\n".to_owned(),
        0 => String::new(),
        n => format!("Orphaned requests deleted: {n}.\n"),
    };
    for one in &pruned.waiting {
        text.push_str(&format!("Kept: {} of {} on {}: {}.\n", one.name, one.id, one.server, one.why));
    }
    if pruned.waiting.iter().any(|one| one.until.is_some()) {
        text.push_str(
            "A kept request is deleted once its lease and its queue position have ended: run prune again then.\n",
        );
    }
    text
}

/// Formats the result of accepting a server unchanged, including its external request.
pub(super) fn accepted(record: &Maintenance, request: Option<&DeletionResult>, json: bool) -> String {
    let (id, server) = (&record.id, record.server());
    if json {
        let request = request.map(|request| match request {
            DeletionResult::Gone => json!({ "taken_back": true }),
            DeletionResult::Left { why, by_hand } => json!({ "taken_back": false, "why": why, "by_hand": by_hand }),
        });
        return pretty(&json!({ "id": id, "server": server, "finish": "AcceptedAsIs", "request": request }));
    }
    let mut text = format!("{id} has ended; {server} was not changed\n");
    let system = record.gates.iter().map(|gate| gate.system.name.shown()).collect::<Vec<_>>().join(", ");
    match request {
        None => {}
        Some(DeletionResult::Gone) => {
            text.push_str(&format!("External request deleted: {system}\n"));
        }
        Some(DeletionResult::Left { why, by_hand }) => {
            let way = plugin_at(record.location.as_ref())
                .map(|plugin| format!(" --backend {}", plugin.name()))
                .unwrap_or_default();
            text.push_str(&format!(
                "External request NOT deleted: {system}\n  because  {why}\n  by hand  {by_hand}\n  or       \
                 once that system responds: {NAME} prune{way}\n"
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_stays_cordoned_is_an_error_with_fields() {
        let cordon = Cordon {
            node: "worker1".to_owned(),
            store: "store".to_owned(),
            uid: "uid".to_owned(),
            id: "tests/m".to_owned(),
            by_hand: "kubectl uncordon worker1".to_owned(),
        };
        let kept = vec![(cordon, "it is not Ready".to_owned())];
        let pruned = PrunedNodes { uncordoned: vec!["worker2".to_owned()], kept, ..PrunedNodes::default() };
        for json in [true, false] {
            let error = outcome(&pruned, json).unwrap_err();
            assert!(error.to_string().contains("worker1 stays cordoned for tests/m"), "{error}");
            let fields = error.json();
            assert_eq!((&fields["kept"][0]["node"], &fields["uncordoned"][0]), (&"worker1".into(), &"worker2".into()));
            assert_eq!(fields["error"], error.to_string());
        }
        let gone = PrunedNodes { kept: Vec::new(), ..pruned };
        assert!(outcome(&gone, true).unwrap().contains("\"kept\": []"));
        assert_eq!(outcome(&gone, false).unwrap(), "Node worker2: uncordoned.\n");
    }
}
