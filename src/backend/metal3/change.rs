//! The patches that enter and leave a host. Each patch applies only to the host version that was
//! judged. No I/O.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{
    backend::cluster::{OUR_ID, OUR_OWNER, OUR_RUN, OUR_STORE, OUR_TICKET, OUR_UID, annotation, marks},
    maintenance::{
        gate::{ExternalRequest, ExternalState},
        machine::BootOverride,
    },
};

use super::{
    host::{
        Author, BEFORE, Before, DETACHED, HOLD, Hold, Host, IMAGE, REASON, REBOOT, RELEASED, consumer, detached_value,
        reboot_key, reboot_value,
    },
    standing::standing,
};

/// All our annotations except those with an effect on the operator.
const MARKS: [&str; 11] =
    [OUR_UID, OUR_ID, OUR_OWNER, OUR_RUN, OUR_STORE, OUR_TICKET, REASON, HOLD, BEFORE, RELEASED, IMAGE];

/// Builds the patch that enters a host. `Ok(None)` if it was entered already; `Err` is the current
/// obstacle.
pub(super) fn enter(
    host: Host<'_>,
    wish: &ExternalRequest,
    hold: Hold,
    now: Timestamp,
) -> Result<Option<Value>, String> {
    // Our request can exist even if the reply to its patch was lost.
    if host.marked().as_ref() == Some(&Author::of(wish)) {
        return Ok(None);
    }
    let fresh = ExternalRequest { asked: false, ..wish.clone() };
    match standing(host, &fresh, hold, now) {
        ExternalState::Absent => {}
        standing => return Err(standing.to_string()),
    }
    let mut annotations: Map<String, Value> =
        marks(wish).into_iter().map(|(key, value)| (key, Value::String(value))).collect();
    let reason = wish.reason.clone().unwrap_or_else(|| format!("maintenance {}", wish.id).into());
    annotations.insert(REASON.to_owned(), Value::String(reason.into_raw()));
    annotations.insert(HOLD.to_owned(), Value::String(hold.to_string()));
    let online = (hold == Hold::Image).then(|| host.online());
    let before = Before { online, ..host.as_before() };
    annotations.insert(BEFORE.to_owned(), Value::String(json!(before).to_string()));
    // A leftover from an earlier maintenance would end this maintenance.
    annotations.insert(RELEASED.to_owned(), Value::Null);
    let mut change = json!({});
    let namespace = host.0.metadata.namespace.as_deref().unwrap_or_default();
    match hold {
        Hold::Detach => {
            annotations.insert(DETACHED.to_owned(), Value::String(detached_value(wish)));
            if host.consumer().is_none() {
                change["spec"] = json!({ "consumerRef": consumer(wish, namespace) });
            }
        }
        Hold::Image => change["spec"] = json!({ "consumerRef": consumer(wish, namespace) }),
        Hold::PowerOff => {
            annotations.insert(reboot_key(&wish.uid), Value::String(reboot_value(wish, "soft")));
        }
    }
    change["metadata"] = json!({ "annotations": annotations });
    Ok(Some(change))
}

/// Returns why a host is not released although its maintenance ended. Another author changed its
/// cleaning mode, so removing our image would clean its disks.
pub(super) fn cleans(host: Host<'_>, wish: &ExternalRequest) -> Option<String> {
    let ours = host.marked().as_ref() == Some(&Author::of(wish)) && host.has_our_image();
    (ours && !host.keeps_disks()).then(|| {
        format!(
            "spec.automatedCleaningMode of {} is no longer \"disabled\", so removing our image would clean its disks: \
             set it to \"disabled\" again, or remove spec.image by hand",
            host.shown()
        )
    })
}

/// Builds the patch that leaves a host or removes leftovers; `None` if our part is up to date.
pub(super) fn leave(host: Host<'_>, wish: &ExternalRequest, now: Timestamp) -> Option<Value> {
    let ours = Author::of(wish);
    let marked = host.marked().as_ref() == Some(&ours);
    let detached = host.detached_by().as_ref() == Some(&ours);
    let key = reboot_key(&wish.uid);
    let mut annotations = Map::new();
    let mut spec = Map::new();
    // A restoring release has already removed the image. Removal that would clean the disks is not
    // requested.
    if marked && host.has_our_image() {
        if !host.keeps_disks() {
            return None;
        }
        spec.insert("image".to_owned(), Value::Null);
        annotations.insert(IMAGE.to_owned(), Value::Null);
    }
    // A later value from another author stays, regardless of the image.
    if marked && let Some(before) = host.online_to_restore() {
        spec.insert("online".to_owned(), Value::Bool(before));
    }
    if detached {
        annotations.insert(DETACHED.to_owned(), Value::Null);
    }
    if annotation(host.0, &key).is_some() {
        annotations.insert(key, Value::Null);
    }
    if host.rebooted_by().as_ref() == Some(&ours) {
        annotations.insert(REBOOT.to_owned(), Value::Null);
    }
    if marked {
        let acts = !annotations.is_empty();
        let foreign = host.detaches() && !detached;
        let hold = host.hold().unwrap_or_default();
        let over = matches!(standing(host, wish, hold, now), ExternalState::Leftovers(_));
        if !acts && (over || foreign) {
            let there = MARKS.iter().filter(|key| annotation(host.0, key).is_some());
            annotations.extend(there.map(|key| ((*key).to_owned(), Value::Null)));
        } else if acts || host.released().is_none() {
            annotations.insert(RELEASED.to_owned(), Value::String(now.to_string()));
            if detached && host.status() != "detached" {
                // The host might never leave Ironic. After a failed detach, the operator's next
                // status write removes the error and proves nothing.
                let fails = host.error() == "detach error";
                let unseen = Some(if fails { String::new() } else { host.written().to_owned() });
                let before = Before { unseen, ..host.before() };
                annotations.insert(BEFORE.to_owned(), Value::String(json!(before).to_string()));
            }
        }
    }
    // Removing the consumer together with the image would free the host while it is still being
    // deprovisioned.
    if host.consumer_is(&wish.uid)
        && !spec.contains_key("image")
        && (host.hold() != Some(Hold::Image) || host.is_unbooted())
    {
        spec.insert("consumerRef".to_owned(), Value::Null);
    }
    if annotations.is_empty() && spec.is_empty() {
        return None;
    }
    let mut change = json!({ "metadata": { "annotations": annotations } });
    if !spec.is_empty() {
        change["spec"] = Value::Object(spec);
    }
    Some(change)
}

/// Builds the patch that boots a host from an image, or removes the image with `None`.
///
/// The patch removes our key too, because the key would keep a provisioned host off.
pub(super) fn boot(image: Option<(&str, &BootOverride)>, wish: &ExternalRequest) -> Value {
    let key = reboot_key(&wish.uid);
    match image {
        Some((url, wanted)) => json!({
            "metadata": { "annotations": { IMAGE: json!(wanted).to_string(), key: null } },
            "spec": { "image": { "url": url, "format": "live-iso" }, "online": true },
        }),
        None => json!({ "metadata": { "annotations": { IMAGE: null, key: null } }, "spec": { "image": null } }),
    }
}
