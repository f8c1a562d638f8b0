//! The patches that request a Machine and withdraw the request. Each patch applies only to the
//! Machine version that was judged. No I/O.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{
    backend::cluster::{OUR_ID, OUR_OWNER, OUR_RUN, OUR_STORE, OUR_TICKET, OUR_UID, annotation, marks},
    maintenance::gate::{ExternalRequest, ExternalState},
};

use super::{
    machine::{
        Author, GUARDS, HOOK, HookValue, LabelValue, MAINTENANCE, Machine, OUR_SERVER, RELEASED, REQUESTED,
        SKIP_REMEDIATION,
    },
    standing::{ClusterView, standing},
};

/// All our annotations except the guards.
const MARKS: [&str; 9] = [OUR_UID, OUR_ID, OUR_OWNER, OUR_RUN, OUR_STORE, OUR_TICKET, OUR_SERVER, GUARDS, RELEASED];

/// The value of [`GUARDS`] if health checks already skipped the Machine.
const HOOK_ONLY: &str = "pre-terminate";
/// The value of [`GUARDS`] if we added the skip annotation.
const BOTH: &str = "pre-terminate,skip-remediation";

/// Builds the patch that requests a Machine. Guards, marks and label form one patch, so that none
/// exists without the others. `Ok(None)` if the request exists; `Err` is the state that prevents a
/// request.
pub(super) fn enter(
    seen: &ClusterView<'_>,
    place: &str,
    server: &str,
    wish: &ExternalRequest,
    now: Timestamp,
) -> Result<Option<Value>, ExternalState> {
    // Our request can exist even if the reply to its patch was lost.
    let ours = |machine: Machine<'_>| machine.marked() == Some(Author::of(wish)) && machine.released().is_none();
    if seen.machine.is_some_and(ours) {
        return Ok(None);
    }
    let fresh = ExternalRequest { asked: false, ..wish.clone() };
    match standing(seen, place, &fresh, now) {
        ExternalState::Absent => {}
        standing => return Err(standing),
    }
    let skipped = seen.machine.is_some_and(Machine::skips_remediation);
    let mut annotations: Map<String, Value> =
        marks(wish).into_iter().map(|(key, value)| (key, Value::String(value))).collect();
    annotations.insert(OUR_SERVER.to_owned(), json!(server));
    let guards = if skipped { HOOK_ONLY } else { BOTH };
    let hook = HookValue {
        maintenance: wish.id.clone(),
        uid: wish.uid.clone(),
        store: wish.store.clone(),
        server: server.to_owned(),
        guards: guards.to_owned(),
    };
    annotations.insert(HOOK.to_owned(), Value::String(json!(hook).to_string()));
    annotations.insert(GUARDS.to_owned(), json!(guards));
    if !skipped {
        annotations.insert(SKIP_REMEDIATION.to_owned(), json!(""));
    }
    Ok(Some(json!({ "metadata": { "annotations": annotations, "labels": { MAINTENANCE: REQUESTED } } })))
}

/// Builds the patch that withdraws a request or removes its leftovers; `None` without a change now.
pub(super) fn leave(seen: &ClusterView<'_>, place: &str, wish: &ExternalRequest, now: Timestamp) -> Option<Value> {
    let left = seen.machine.filter(|machine| machine.is_left_by(wish));
    if let Some(machine) = left {
        return Some(marked_again(machine, wish, now));
    }
    let machine = seen.machine.filter(|machine| machine.marked() == Some(Author::of(wish)))?;
    let ours = is_our_label(machine);
    if ours || machine.released().is_none() {
        let mut metadata = json!({ "annotations": { RELEASED: now.to_string() } });
        if ours {
            metadata["labels"] = json!({ MAINTENANCE: null });
        }
        return Some(json!({ "metadata": metadata }));
    }
    if !matches!(standing(seen, place, wish, now), ExternalState::Leftovers(_)) {
        return None;
    }
    let there = |key: &&str| annotation(machine.0, key).is_some();
    // A skip annotation with another value belongs to another author.
    let ours = annotation(machine.0, GUARDS) == Some(BOTH) && annotation(machine.0, SKIP_REMEDIATION) == Some("");
    let guards = [HOOK].into_iter().chain([SKIP_REMEDIATION].into_iter().filter(|_| ours));
    let removed: Map<String, Value> =
        MARKS.into_iter().chain(guards).filter(there).map(|key| (key.to_owned(), Value::Null)).collect();
    Some(json!({ "metadata": { "annotations": removed } }))
}

/// Returns true if the label is ours. Another author's label stays: after our withdrawal, only
/// an approval can answer us.
fn is_our_label(machine: Machine<'_>) -> bool {
    match machine.asked() {
        LabelValue::Approved => true,
        LabelValue::Requested => machine.released().is_none(),
        LabelValue::No | LabelValue::Other(_) => false,
    }
}

/// Withdraws the request of a Machine without our marks. The patch writes the marks again, so that
/// the usual watch and release apply.
fn marked_again(machine: Machine<'_>, wish: &ExternalRequest, now: Timestamp) -> Value {
    let hook = machine.hook();
    let kept = |key: &str| annotation(machine.0, key).map(str::to_owned);
    // Without a record, a guard counts as another author's and stays.
    let guards = kept(GUARDS).or_else(|| hook.as_ref().map(|hook| hook.guards.clone()));
    let id = hook.map_or_else(|| wish.id.clone(), |hook| hook.maintenance);
    let annotations = json!({
        OUR_UID: wish.uid,
        OUR_STORE: wish.store,
        OUR_ID: id,
        GUARDS: guards.unwrap_or_else(|| HOOK_ONLY.to_owned()),
        RELEASED: machine.released().unwrap_or(now).to_string(),
    });
    let mut metadata = json!({ "annotations": annotations });
    if is_our_label(machine) {
        metadata["labels"] = json!({ MAINTENANCE: null });
    }
    json!({ "metadata": metadata })
}

#[cfg(test)]
mod tests {
    use kube::core::DynamicObject;

    use super::*;
    use crate::backend::cluster_api::{
        machine::Node,
        testing::{self, machine, node},
    };

    /// Applies a merge patch to an object's metadata.
    fn patched(object: &Value, patch: &Value) -> Value {
        let mut object = object.clone();
        for part in ["annotations", "labels"] {
            for (key, value) in patch["metadata"][part].as_object().into_iter().flatten() {
                let all = object["metadata"][part].as_object_mut().unwrap();
                if value.is_null() {
                    all.remove(key)
                } else {
                    all.insert(key.clone(), value.clone())
                };
            }
        }
        object
    }

    fn with<T>(machine: &Value, node: &Value, then: impl FnOnce(&ClusterView<'_>) -> T) -> T {
        let machine: DynamicObject = serde_json::from_value(machine.clone()).unwrap();
        let node: DynamicObject = serde_json::from_value(node.clone()).unwrap();
        let (machine, node) = (Some(Machine(&machine)), Some(Node(&node)));
        then(&ClusterView { machine, node, used_by: None, is_other: false, stays_outdated: false })
    }

    /// A requested and released Machine equals its original, whatever was on it.
    #[test]
    fn a_machine_is_left_as_it_was_found() {
        let (wish, now) = (testing::wish(), Timestamp::from_second(1_000).unwrap());
        let asked = ExternalRequest { asked: true, ..wish.clone() };
        let mut skipped = machine();
        skipped["metadata"]["annotations"][SKIP_REMEDIATION] = json!("theirs");
        skipped["metadata"]["annotations"]["pre-terminate.delete.hook.machine.cluster.x-k8s.io/other"] =
            json!("theirs");
        for before in [machine(), skipped] {
            let enter = with(&before, &node(), |seen| enter(seen, "caph/m1", "node1", &wish, now)).unwrap().unwrap();
            let held = patched(&before, &enter);
            assert!(held["metadata"]["annotations"][SKIP_REMEDIATION].is_string());
            let again = with(&held, &node(), |seen| super::enter(seen, "caph/m1", "node1", &wish, now));
            assert_eq!(again, Ok(None), "asked for twice");
            let mut left = patched(&held, &json!({ "metadata": { "labels": { MAINTENANCE: "approved" } } }));
            for wait in [0, 0, 60, 60] {
                let now = now.checked_add(jiff::SignedDuration::from_secs(wait)).unwrap();
                if let Some(patch) = with(&left, &node(), |seen| leave(seen, "caph/m1", &asked, now)) {
                    left = patched(&left, &patch);
                }
                if wait == 0 {
                    assert!(left["metadata"]["annotations"][HOOK].is_string(), "guarded until the Node is free");
                }
            }
            assert_eq!(left, before);
        }
    }

    /// A person removed our annotations but not the hook.
    #[test]
    fn a_machine_whose_marks_were_removed_is_found_and_left_as_it_was() {
        let (wish, now) = (testing::wish(), Timestamp::from_second(1_000).unwrap());
        let asked = ExternalRequest { asked: true, ..wish.clone() };
        let mut skipped = machine();
        skipped["metadata"]["annotations"][SKIP_REMEDIATION] = json!("theirs");
        for before in [machine(), skipped] {
            let enter = with(&before, &node(), |seen| enter(seen, "caph/m1", "node1", &wish, now)).unwrap().unwrap();
            let mut left = patched(&before, &enter);
            let all = left["metadata"]["annotations"].as_object_mut().unwrap();
            all.retain(|key, _| !key.starts_with("terraform-provider-metal/"));
            left["metadata"]["labels"][MAINTENANCE] = json!("approved");
            let found = serde_json::from_value(left.clone()).unwrap();
            let found = super::super::clusters::request(&found);
            let named = found.map(|found| (found.uid, found.store, found.server));
            assert_eq!(named, Some(("u".to_owned(), "s".to_owned(), "node1".to_owned())));
            let other = ExternalRequest { uid: "other".to_owned(), id: "ops/other".to_owned(), ..asked.clone() };
            assert_eq!(with(&left, &node(), |seen| leave(seen, "caph/m1", &other, now)), None);
            let ended = ExternalRequest { id: String::new(), ..asked.clone() };
            for wait in [0, 60] {
                let now = now.checked_add(jiff::SignedDuration::from_secs(wait)).unwrap();
                let patch = with(&left, &node(), |seen| leave(seen, "caph/m1", &ended, now)).unwrap();
                left = patched(&left, &patch);
            }
            assert_eq!(left, before);
        }
    }

    #[test]
    fn what_is_not_ours_is_not_touched() {
        let (wish, now) = (testing::wish(), Timestamp::from_second(1_000).unwrap());
        let theirs = patched(&machine(), &json!({ "metadata": { "labels": { MAINTENANCE: "approved" } } }));
        assert!(with(&theirs, &node(), |seen| enter(seen, "caph/m1", "node1", &wish, now)).is_err());
        assert_eq!(with(&theirs, &node(), |seen| leave(seen, "caph/m1", &wish, now)), None);
    }
}
