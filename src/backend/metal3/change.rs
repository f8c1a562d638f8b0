//! The changes of a host that enter and leave it: one patch each, on the condition that the host is as it was judged. No I/O.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{
    backend::cluster::{OUR_ID, OUR_OWNER, OUR_RUN, OUR_STORE, OUR_TICKET, OUR_UID, annotation, marks},
    maintenance::gate::{GateWish, Standing},
};

use super::{
    host::{
        Author, BEFORE, Before, DETACHED, HOLD, Hold, Host, REASON, RELEASED, consumer, detached_value, reboot_key,
    },
    standing::standing,
};

/// All our annotations but the one that acts.
const MARKS: [&str; 10] = [OUR_UID, OUR_ID, OUR_OWNER, OUR_RUN, OUR_STORE, OUR_TICKET, REASON, HOLD, BEFORE, RELEASED];

/// The change that enters a host; the error says why it is not possible now. `Ok(None)`: it was entered already.
pub(super) fn enter(host: Host<'_>, wish: &GateWish, hold: Hold, now: Timestamp) -> Result<Option<Value>, String> {
    // A reply that was lost may have left our request there.
    if host.marked().as_ref() == Some(&Author::of(wish)) {
        return Ok(None);
    }
    let fresh = GateWish { asked: false, ..wish.clone() };
    match standing(host, &fresh, hold, now) {
        Standing::Absent => {}
        standing => return Err(standing.to_string()),
    }
    let mut annotations: Map<String, Value> =
        marks(wish).into_iter().map(|(key, value)| (key, Value::String(value))).collect();
    let reason = wish.reason.clone().unwrap_or_else(|| format!("maintenance {}", wish.id));
    annotations.insert(REASON.to_owned(), Value::String(reason));
    annotations.insert(HOLD.to_owned(), Value::String(hold.to_string()));
    annotations.insert(BEFORE.to_owned(), Value::String(json!(host.as_before()).to_string()));
    // One of an earlier maintenance that was never removed would end this one.
    annotations.insert(RELEASED.to_owned(), Value::Null);
    let mut change = json!({});
    match hold {
        Hold::Detach => {
            annotations.insert(DETACHED.to_owned(), Value::String(detached_value(wish)));
            if host.consumer().is_none() {
                let namespace = host.0.metadata.namespace.as_deref().unwrap_or_default();
                change["spec"] = json!({ "consumerRef": consumer(wish, namespace) });
            }
        }
        Hold::PowerOff => {
            annotations.insert(reboot_key(&wish.uid), Value::String(json!({ "mode": "soft" }).to_string()));
        }
    }
    change["metadata"] = json!({ "annotations": annotations });
    Ok(Some(change))
}

/// The change that leaves a host, or removes what leaving it left; `None`: nothing of ours is to be changed now.
pub(super) fn leave(host: Host<'_>, wish: &GateWish, now: Timestamp) -> Option<Value> {
    let ours = Author::of(wish);
    let marked = host.marked().as_ref() == Some(&ours);
    let detached = host.detached_by().as_ref() == Some(&ours);
    let key = reboot_key(&wish.uid);
    let mut annotations = Map::new();
    if detached {
        annotations.insert(DETACHED.to_owned(), Value::Null);
    }
    if annotation(host.0, &key).is_some() {
        annotations.insert(key, Value::Null);
    }
    if marked {
        let acts = !annotations.is_empty();
        let foreign = host.detaches() && !detached;
        let hold = host.hold().unwrap_or_default();
        let over = matches!(standing(host, wish, hold, now), Standing::Leftovers(_));
        if !acts && (over || foreign) {
            let there = MARKS.iter().filter(|key| annotation(host.0, key).is_some());
            annotations.extend(there.map(|key| ((*key).to_owned(), Value::Null)));
        } else if acts || host.released().is_none() {
            annotations.insert(RELEASED.to_owned(), Value::String(now.to_string()));
            if detached && host.status() != "detached" {
                // Whether it ever leaves Ironic is not known: no other node proves that it is back.
                let before = Before { id: String::new(), ..host.before() };
                annotations.insert(BEFORE.to_owned(), Value::String(json!(before).to_string()));
            }
        }
    }
    let mut change = json!({});
    if host.consumer_is(&wish.uid) {
        change["spec"] = json!({ "consumerRef": null });
    }
    if annotations.is_empty() && change.get("spec").is_none() {
        return None;
    }
    change["metadata"] = json!({ "annotations": annotations });
    Some(change)
}
