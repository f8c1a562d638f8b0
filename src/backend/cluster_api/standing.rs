//! Derives a Machine request's progress from both clusters' state. No I/O.

use jiff::{SignedDuration, Timestamp};

use crate::maintenance::{
    gate::{ExternalRequest, ExternalState},
    ids::Uid,
};

use super::machine::{Author, LabelValue, Machine, Node};

/// How long after our withdrawal a late approval can appear. The runtime extension patches Machines
/// unconditionally (`state/state.go:155`), from two controllers.
pub(super) const LATE_APPROVAL: SignedDuration = SignedDuration::from_secs(3);

/// Both clusters' state. `None` means that the object does not exist.
#[derive(Clone, Copy)]
pub(super) struct ClusterView<'a> {
    pub(super) machine: Option<Machine<'a>>,
    pub(super) node: Option<Node<'a>>,
    /// The Machine that uses the server according to its backend, as `namespace/name`, if the
    /// backend supports this.
    pub(super) used_by: Option<&'a str>,
    /// True if the Machine's provider ID names another server, according to its backend.
    pub(super) is_other: bool,
    /// True if the Machine is outdated but is not replaced until a person acts.
    pub(super) stays_outdated: bool,
}

/// Returns a request's progress.
pub(super) fn standing(seen: &ClusterView<'_>, place: &str, wish: &ExternalRequest, now: Timestamp) -> ExternalState {
    let Some(machine) = seen.machine else {
        // The deletion removed our marks too.
        return if wish.asked {
            ExternalState::Absent
        } else {
            ExternalState::Refused(format!("Machine {place} does not exist").into())
        };
    };
    if machine.is_left_by(wish) {
        return ExternalState::Leftovers(format!("our annotations were removed from {machine}").into());
    }
    if machine.marked().as_ref() != Some(&Author::of(wish)) {
        return beside(seen, machine, place);
    }
    if let Some(at) = machine.released() {
        return returning(machine, seen.node, at, now);
    }
    match machine.asked() {
        LabelValue::Approved => approved(machine, seen.node, wish),
        LabelValue::Requested => {
            let node = seen.node.map_or_else(|| "its Node was deleted".to_owned(), Node::shown);
            ExternalState::Entering(format!("the maintenance controller to approve {machine} ({node})").into())
        }
        LabelValue::No => {
            ExternalState::Lost(format!("the maintenance label of {machine} was removed by another author").into())
        }
        LabelValue::Other(value) => ExternalState::Lost(
            format!("the maintenance label of {machine} was set to {value:?} by another author").into(),
        ),
    }
}

/// Checks an approved Machine together with its Node, because the approval does not follow the
/// Node.
fn approved(machine: Machine<'_>, node: Option<Node<'_>>, wish: &ExternalRequest) -> ExternalState {
    // A deleted Node does not run workloads.
    let Some(node) = node else { return ExternalState::Granted };
    // If the Machine is disabled, the extension removes the Node's label and the Node
    // returns to service.
    if wish.entered && !node.is_asked() {
        let enabled = if machine.is_enabled() { "" } else { "; the Machine is no longer enabled" };
        return ExternalState::Lost(
            format!("{node} returned to service (label machine-maintenance was removed{enabled})").into(),
        );
    }
    // A person or a maintenance controller profile can return the Node to service despite the
    // label.
    if wish.entered && node.is_back() {
        return ExternalState::Lost(format!("{node} returned to service ({})", node.shown()).into());
    }
    // The extension accepts an earlier maintenance's approval on the Node before it is drained.
    if !wish.entered && !node.is_in_maintenance() {
        return ExternalState::Entering(
            format!(
                "the maintenance controller to drain {node}, which is approved but not in maintenance ({})",
                node.shown()
            )
            .into(),
        );
    }
    ExternalState::Granted
}

/// Returns a withdrawn request's progress. It ends when the Node has lost both labels and a late
/// approval is ruled out.
fn returning(machine: Machine<'_>, node: Option<Node<'_>>, released: Timestamp, now: Timestamp) -> ExternalState {
    match machine.asked() {
        LabelValue::No => {}
        LabelValue::Approved => {
            return ExternalState::Leftovers(format!("{machine} was approved after the request was withdrawn").into());
        }
        // Only an approval can arrive late. This is another author's request, so its Node is not
        // awaited.
        LabelValue::Requested | LabelValue::Other(_) => {
            return ExternalState::Leftovers(format!("our annotations are still on {machine}").into());
        }
    }
    if let Some((node, left)) = node.and_then(|node| Some((node, node.labels_left()?))) {
        // The extension ignores Nodes in a cluster without an enabled Machine.
        let hint = if machine.is_enabled() { "" } else { "; set the Machine's label enabled again" };
        return ExternalState::Returning(format!("{node} still has the label {left} ({}{hint})", node.shown()).into());
    }
    if now.duration_since(released).abs() < LATE_APPROVAL {
        return ExternalState::Returning(format!("{machine} is watched for a late approval").into());
    }
    ExternalState::Leftovers(format!("our annotations are still on {machine}").into())
}

/// Returns `Absent` if a Machine without our request can be requested now, otherwise the obstacle.
fn beside(seen: &ClusterView<'_>, machine: Machine<'_>, place: &str) -> ExternalState {
    if machine.is_deleting() {
        return ExternalState::Refused(format!("{machine} is being deleted").into());
    }
    if !machine.is_enabled() {
        return ExternalState::Refused(format!(
            "{machine} lacks the label {}=\"true\", so the maintenance controller never answers; set it, or remove the \
             server from cluster_api",
            super::machine::ENABLED
        ).into());
    }
    if let Some(used_by) = seen.used_by.filter(|used_by| *used_by != place) {
        return ExternalState::Refused(format!("the server is used by Machine {used_by}, not by {machine}").into());
    }
    if seen.is_other {
        let id = machine.provider_id().unwrap_or_default();
        return ExternalState::Refused(format!(
            "{machine} has the provider ID {id:?} of another server: name this server's Machine in cluster_api.machines"
        ).into());
    }
    if let (Some(of_machine), Some(of_node)) = (machine.provider_id(), seen.node.and_then(Node::provider_id))
        && of_machine != of_node
        // Some infrastructure providers write the ID in another form on the Node.
        && of_machine.split('/').count() == of_node.split('/').count()
    {
        return ExternalState::Refused(
            format!(
                "the Node of {machine} has the provider ID {of_node:?} in the workload cluster, but the Machine has \
             {of_machine:?}: cluster_api.workload_kubeconfig or workload_context names another cluster"
            )
            .into(),
        );
    }
    let taken = ExternalState::Taken;
    if let Some(id) = machine.marked_by() {
        return taken(match machine.released() {
            None => format!("{machine}, which is in the maintenance {id}").into(),
            Some(_) => format!("{machine}, which returns from the maintenance {id}").into(),
        });
    }
    if let Some(hook) = machine.hook() {
        return taken(format!("{machine}, which has the deletion hook of the maintenance {}", hook.maintenance).into());
    }
    match machine.asked() {
        LabelValue::No => {}
        LabelValue::Approved if seen.node.is_some_and(|node| !node.is_asked() && !node.is_in_maintenance()) => {
            // The extension can approve long after a withdrawal and then ignores the Machine:
            // nothing removes that label.
            return taken(format!(
                "{machine} to lose the label {}=approved, although its Node is not in maintenance ({}). If no other \
                 tool requested it, the approval arrived after the request was withdrawn: remove the label",
                super::machine::MAINTENANCE,
                seen.node.map(Node::shown).unwrap_or_default()
            ).into());
        }
        LabelValue::Approved | LabelValue::Requested | LabelValue::Other(_) => {
            return taken(format!("{machine}, for which another author requested maintenance").into());
        }
    }
    if let Some(what) = machine.under_way(seen.stays_outdated) {
        return taken(what.into());
    }
    let Some(name) = machine.node() else { return taken(format!("{machine} to have a Node").into()) };
    let Some(node) = seen.node else { return taken(format!("Node {name} of {machine} to exist").into()) };
    if node.state().is_none() {
        return taken(
            format!("the maintenance controller to label {node} (cloud.sap/maintenance-state is missing)").into(),
        );
    }
    // With a stale approval, the extension would approve the next request immediately, without a
    // drain (`state/state.go:63-75`).
    if let Some(left) = node.labels_left() {
        return taken(format!("{node} to lose the label {left} of an earlier maintenance").into());
    }
    ExternalState::Absent
}

/// Returns our other maintenance that has the Machine, if its end is the only condition.
pub(super) fn behind(seen: &ClusterView<'_>, wish: &ExternalRequest) -> Option<Uid> {
    let author = seen.machine?.author().filter(|author| author.store == wish.store && author.uid != wish.uid)?;
    Some(Uid::new(author.uid))
}

#[cfg(test)]
mod tests {
    use kube::core::DynamicObject;
    use serde_json::{Value, json};

    use super::*;
    use crate::backend::cluster_api::testing::{self, machine, node};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000 + seconds).unwrap()
    }

    fn stands(machine: &Value, node: Option<&Value>, wish: &ExternalRequest) -> ExternalState {
        let machine: DynamicObject = serde_json::from_value(machine.clone()).unwrap();
        let node: Option<DynamicObject> = node.map(|node| serde_json::from_value(node.clone()).unwrap());
        let node = node.as_ref().map(Node);
        let seen = ClusterView {
            machine: Some(Machine(&machine)),
            node,
            used_by: None,
            is_other: false,
            stays_outdated: false,
        };
        standing(&seen, "caph/m1", wish, at(0))
    }

    fn merged(mut object: Value, patch: &Value) -> Value {
        fn merge(into: &mut Value, from: &Value) {
            match (into, from) {
                (Value::Object(into), Value::Object(from)) => {
                    for (key, value) in from {
                        if value.is_null() {
                            into.remove(key);
                        } else {
                            merge(into.entry(key.clone()).or_insert(Value::Null), value);
                        }
                    }
                }
                (into, from) => *into = from.clone(),
            }
        }
        merge(&mut object, patch);
        object
    }

    /// One change per case to a Machine without a request, and the resulting state of our request.
    #[test]
    fn a_machine_is_asked_for_only_as_it_answers() {
        let wish = testing::wish();
        let label = |key: &str, value: &str| json!({ "metadata": { "labels": { key: value } } });
        let annotation = |key: &str| json!({ "metadata": { "annotations": { key: "" } } });
        let condition = |name: &str| json!({ "status": { "conditions": [{ "type": name, "status": "False" }] } });
        let changed = |change: Value| merged(machine(), &change);
        assert_eq!(stands(&machine(), Some(&node()), &wish), ExternalState::Absent);
        let refused = [
            changed(json!({ "metadata": { "deletionTimestamp": "2026-11-01T00:00:00Z" } })),
            changed(label("runtime-extension-maintenance-controller.cloud.sap/enabled", "yes")),
            changed(json!({ "spec": { "providerID": "metal3://caph/other/m9" } })),
        ];
        for machine in refused {
            let standing = stands(&machine, Some(&node()), &wish);
            assert!(matches!(standing, ExternalState::Refused(_)), "{machine}: {standing:?}");
        }
        let waits = [
            changed(label("runtime-extension-maintenance-controller.cloud.sap/maintenance", "requested")),
            changed(label("runtime-extension-maintenance-controller.cloud.sap/maintenance", "approved")),
            changed(annotation("in-place-updates.internal.cluster.x-k8s.io/update-in-progress")),
            changed(
                json!({ "metadata": { "annotations": { "runtime.cluster.x-k8s.io/pending-hooks": "A,UpdateMachine" } } }),
            ),
            changed(annotation("cluster.x-k8s.io/remediate-machine")),
            changed(condition("OwnerRemediated")),
            changed(condition("UpToDate")),
            changed(json!({ "status": { "v1beta2": { "conditions": [{ "type": "UpToDate", "status": "False" }] } } })),
            merged(
                changed(condition("HealthCheckSucceeded")),
                &json!({ "status": { "conditions": [
                { "type": "HealthCheckSucceeded", "status": "False" },
                { "type": "ExternallyRemediated", "status": "False" },
            ] } }),
            ),
            changed(json!({ "status": { "nodeRef": null } })),
            changed(json!({ "metadata": { "annotations": {
                "terraform-provider-metal/uid": "other", "terraform-provider-metal/store": "s",
                "terraform-provider-metal/maintenance": "ops/other" } } })),
        ];
        for machine in waits {
            let standing = stands(&machine, Some(&node()), &wish);
            assert!(matches!(standing, ExternalState::Taken(_)), "{machine}: {standing:?}");
        }
        assert!(matches!(stands(&machine(), None, &wish), ExternalState::Taken(_)), "the Node does not exist");
        // Unhealthy Machines qualify for maintenance unless they are being remediated.
        assert_eq!(stands(&changed(condition("HealthCheckSucceeded")), Some(&node()), &wish), ExternalState::Absent);
        let (other, its_node): (DynamicObject, DynamicObject) =
            (serde_json::from_value(machine()).unwrap(), serde_json::from_value(node()).unwrap());
        let seen = ClusterView {
            machine: Some(Machine(&other)),
            node: Some(Node(&its_node)),
            used_by: None,
            is_other: true,
            stays_outdated: false,
        };
        let refused = standing(&seen, "caph/m1", &wish, at(0));
        assert!(
            matches!(&refused, ExternalState::Refused(why) if why.shown().contains("of another server")),
            "{refused:?}"
        );
        // An orphaned late approval's state includes the remedy.
        let zombie = changed(label("runtime-extension-maintenance-controller.cloud.sap/maintenance", "approved"));
        let standing = stands(&zombie, Some(&node()), &wish);
        assert!(
            matches!(&standing, ExternalState::Taken(why) if why.shown().contains("remove the label")),
            "{standing:?}"
        );
        let busy = json!({ "metadata": { "labels": { "cloud.sap/maintenance-state": "in-maintenance" } } });
        let standing = stands(&zombie, Some(&merged(node(), &busy)), &wish);
        assert!(
            matches!(&standing, ExternalState::Taken(why) if why.shown().contains("another author")),
            "{standing:?}"
        );
        let stale = label("runtime-extension-maintenance-controller.cloud.sap/approve-maintenance", "true");
        let unknown = json!({ "metadata": { "labels": { "cloud.sap/maintenance-state": null } } });
        for change in [stale, unknown] {
            let node = merged(node(), &change);
            let standing = stands(&machine(), Some(&node), &wish);
            assert!(matches!(standing, ExternalState::Taken(_)), "{node}: {standing:?}");
        }
    }

    /// Covers a request until its last mark is removed.
    #[test]
    fn it_is_ours_until_the_node_is_free_and_stays_free() {
        let wish = ExternalRequest { asked: true, ..testing::wish() };
        let ours = merged(machine(), &testing::marks(&wish));
        let label = |value: Value| json!({ "metadata": { "labels": { "runtime-extension-maintenance-controller.cloud.sap/maintenance": value } } });
        let labelled = |value: &str| merged(ours.clone(), &label(json!(value)));
        assert!(matches!(stands(&labelled("requested"), Some(&node()), &wish), ExternalState::Entering(_)));
        let state = |state: &str, asked: Value| {
            let asked = json!({ "runtime-extension-maintenance-controller.cloud.sap/machine-maintenance": asked });
            let node = merged(node(), &json!({ "metadata": { "labels": asked } }));
            merged(node, &json!({ "metadata": { "labels": { "cloud.sap/maintenance-state": state } } }))
        };
        let drained = state("in-maintenance", json!("true"));
        assert_eq!(stands(&labelled("approved"), Some(&drained), &wish), ExternalState::Granted);
        assert_eq!(
            stands(&labelled("approved"), None, &wish),
            ExternalState::Granted,
            "a deleted Node does not run Pods"
        );
        let undrained = state("maintenance-required", json!("true"));
        assert!(
            matches!(stands(&labelled("approved"), Some(&undrained), &wish), ExternalState::Entering(_)),
            "nothing is drained"
        );
        let held = ExternalRequest { entered: true, ..wish.clone() };
        assert_eq!(stands(&labelled("approved"), Some(&drained), &held), ExternalState::Granted);
        let opened = state("operational", json!("true"));
        assert!(
            matches!(stands(&labelled("approved"), Some(&opened), &held), ExternalState::Lost(_)),
            "the Node returned to service although its Machine is marked"
        );
        let cordoned = merged(opened, &json!({ "spec": { "unschedulable": true } }));
        assert_eq!(stands(&labelled("approved"), Some(&cordoned), &held), ExternalState::Granted);
        let back = state("operational", Value::Null);
        assert!(
            matches!(stands(&labelled("approved"), Some(&back), &held), ExternalState::Lost(_)),
            "it runs Pods again"
        );
        assert!(matches!(stands(&ours, Some(&node()), &wish), ExternalState::Lost(_)));
        assert!(matches!(stands(&labelled("done"), Some(&node()), &wish), ExternalState::Lost(_)));

        let released = |seconds: i64| {
            let at = at(seconds).to_string();
            merged(ours.clone(), &json!({ "metadata": { "annotations": { RELEASED: at } } }))
        };
        let busy = |key: &str| {
            let key = format!("runtime-extension-maintenance-controller.cloud.sap/{key}");
            merged(node(), &json!({ "metadata": { "labels": { key: "true" } } }))
        };
        for key in ["machine-maintenance", "approve-maintenance"] {
            assert!(matches!(stands(&released(-60), Some(&busy(key)), &wish), ExternalState::Returning(_)), "{key}");
        }
        assert!(matches!(stands(&released(-1), Some(&node()), &wish), ExternalState::Returning(_)), "may come late");
        assert!(matches!(stands(&released(-60), Some(&node()), &wish), ExternalState::Leftovers(_)));
        assert!(matches!(stands(&released(-60), None, &wish), ExternalState::Leftovers(_)), "its Node was deleted");
        let zombie = merged(released(-60), &label(json!("approved")));
        assert!(matches!(stands(&zombie, Some(&node()), &wish), ExternalState::Leftovers(_)));
        assert_eq!(stands(&machine(), Some(&node()), &wish), ExternalState::Absent);
    }

    use crate::backend::cluster_api::machine::RELEASED;
}
