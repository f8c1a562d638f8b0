//! Derives a host's progress from its cluster object. No I/O.
//!
//! The operator's logic is in `internal/controller/metal3.io/host_state_machine.go`
//! (`checkDetachedHost`) and `baremetalhost_controller.go` (`manageHostPower`) of
//! baremetal-operator v0.14. `tests/metal3/versions.txt` lists the differences in v0.11 to v0.13.

use jiff::{SignedDuration, Timestamp};

use crate::{
    backend::cluster_api,
    maintenance::{
        gate::{BootReadiness, ExternalRequest, ExternalState, PowerAfter},
        machine::PowerTarget,
    },
};

use super::host::{Author, Before, Hold, Host, REBOOT, reboot_key};

/// How long after a release an unproven host is assumed to be registered. An operator can reuse the
/// node's old ID, and it does not write to a host that was released before it left Ironic.
const UNPROVEN: SignedDuration = SignedDuration::from_mins(3);

/// How long Ironic takes to verify the BMC of a new node. The operator writes the node's ID first,
/// and a failure only afterwards (4 s later with v0.14 and Ironic 39).
const VERIFIED: SignedDuration = SignedDuration::from_secs(10);

/// Returns a maintenance's progress. `hold` is the configured mode; an entered host's own mode
/// overrides it.
pub(super) fn standing(host: Host<'_>, wish: &ExternalRequest, hold: Hold, now: Timestamp) -> ExternalState {
    let ours = Author::of(wish);
    if !wish.enters {
        // The operation has ended. If the operator has not yet performed the reboot, it would do so
        // later.
        if wish.asked && host.rebooted_by().as_ref() == Some(&ours) {
            return ExternalState::Leftovers(format!("our annotation {REBOOT} is still on {}", host.shown()).into());
        }
        return beside(host, wish);
    }
    let marked = host.marked().as_ref() == Some(&ours);
    match (if marked { host.hold().unwrap_or(hold) } else { hold }, marked) {
        (Hold::Detach, true) => detached(host, &ours, now),
        (Hold::PowerOff, true) => kept_off(host, wish, now),
        (Hold::Image, true) => imaged(host, wish, now),
        // A person removed our annotations, but the detached annotation still names us.
        (_, false) if host.detached_by().as_ref() == Some(&ours) => {
            ExternalState::Lost("our annotations were removed from the host".into())
        }
        (_, false) if wish.asked && host.is_left_by(&wish.uid) => {
            ExternalState::Lost("our annotations were removed from the host".into())
        }
        (_, false) if wish.asked => ExternalState::Absent,
        (Hold::Detach, false) => beside(host, wish),
        (Hold::Image, false) => match beside(host, wish) {
            ExternalState::Absent => match not_by_image(host) {
                Some(why) => ExternalState::Refused(why.into()),
                None if host.status() != "OK" => {
                    ExternalState::Waiting(format!("{} to be OK (now {})", host.shown(), host.error_text()).into())
                }
                None => ExternalState::Absent,
            },
            standing => standing,
        },
        (Hold::PowerOff, false) => match beside(host, wish) {
            ExternalState::Absent if host.disables_power_off() => ExternalState::Refused(
                "with spec.disablePowerOff the operator restarts the host repeatedly instead of switching it off, so \
                 hold = \"power_off\" does not work; use hold = \"detach\""
                    .into(),
            ),
            ExternalState::Absent if !host.is_provisioned() => ExternalState::Refused(format!(
                "reboot annotations act only on provisioned hosts (now {}), so hold = \"power_off\" does not work; use \
                 hold = \"detach\"",
                host.state()
            ).into()),
            standing => standing,
        },
    }
}

/// Returns `Absent` if a host without our request can be entered or operated on now, otherwise the
/// obstacle.
pub(super) fn beside(host: Host<'_>, wish: &ExternalRequest) -> ExternalState {
    let shown = host.shown();
    let waits = |why: String| ExternalState::Waiting(why.into());
    if host.is_deleting() {
        return ExternalState::Refused(format!("{shown} is being deleted").into());
    }
    if host.is_unmanaged() {
        return ExternalState::Refused(format!("{shown} is unmanaged: it does not name a BMC").into());
    }
    if host.detaches() {
        return waits(format!("{shown}, which {} detached", author(host)));
    }
    if host.is_paused() {
        return waits(format!("{shown}, which another author paused"));
    }
    // The runtime extension keeps the host off after the approval that allowed this request.
    let approved = wish.outer.iter().any(|gate| gate == cluster_api::ID);
    let ours = !wish.uid.is_empty() && host.rebooted_by() == Some(Author::of(wish));
    let reboots = host.reboots(if approved { cluster_api::EXTENSION_KEY } else { "" });
    if let Some(key) = reboots.into_iter().find(|key| !(ours && *key == REBOOT)) {
        return waits(format!("{shown}, which has the annotation {key} of another author"));
    }
    if host.marked().is_some() {
        return waits(format!("{shown}, which returns from another maintenance"));
    }
    match host.status() {
        "detached" => return waits(format!("{shown} to be managed again (still detached)")),
        status @ ("servicing" | "delayed") => return waits(format!("{shown} to be OK (now {status})")),
        _ => {}
    }
    if !host.is_settled() {
        let state = if host.state().is_empty() { "new" } else { host.state() };
        return waits(format!("{shown} to be provisioned, externally provisioned, ready or available (now {state})"));
    }
    if host.inspects() {
        return waits(format!("the inspection of {shown}, which another author requested"));
    }
    if host.will_change() {
        let next = if host.is_provisioned() { "deprovisioned" } else { "provisioned" };
        return waits(format!("{shown}, which is about to be {next}"));
    }
    ExternalState::Absent
}

/// Returns a host's progress in mode `detach`, after our annotations were written.
fn detached(host: Host<'_>, ours: &Author, now: Timestamp) -> ExternalState {
    let shown = host.shown();
    match host.detached_by() {
        // Some versions do not delay a deletion: up to v0.12 for available hosts, up to
        // v0.14.0-rc.0 if it precedes the detach. The operator then registers the host again and
        // powers it off.
        Some(author) if author == *ours && host.is_deleting() && !host.is_settled() => ExternalState::Lost(
            format!("the operator deletes {shown} despite its annotation to delay this (now {})", host.state()).into(),
        ),
        Some(author) if author == *ours => match host.status() {
            "detached" => ExternalState::Granted,
            _ if host.error() == "detach error" => ExternalState::Entering(
                format!("{shown} to be detached, which the operator retries ({})", host.error_text()).into(),
            ),
            _ if host.is_paused() => {
                ExternalState::Entering(format!("{shown} to be detached; another author has paused it").into())
            }
            _ => {
                ExternalState::Entering(format!("{shown} to be detached by the operator (now {})", host.state()).into())
            }
        },
        _ if host.detaches() => ExternalState::Lost(format!("another author detached {shown}").into()),
        _ if host.released().is_none() => ExternalState::Lost(format!("another author attached {shown} again").into()),
        _ => returning(host, true, now),
    }
}

/// Returns the power that the operator will enforce after an entered host's release; `None` if
/// unknown. In mode `image`, `None` means that the release restores the prior `spec.online`.
pub(super) fn power_after(host: Host<'_>, hold: Hold) -> Option<PowerAfter> {
    match hold {
        Hold::Image => None,
        _ if host.is_deleting() => Some(PowerAfter::EndsOff),
        _ if host.online() => Some(PowerAfter::Wanted(PowerTarget::On)),
        // The operator never powers the host off.
        _ if host.disables_power_off() => None,
        _ => Some(PowerAfter::Wanted(PowerTarget::Off)),
    }
}

/// Describes a requested deletion's effect on a held host; `None` without a deletion.
pub(super) fn deletion(host: Host<'_>) -> Option<String> {
    host.is_deleting().then(|| {
        format!("{} is being deleted: its operator deprovisions it and switches it off after the release", host.shown())
    })
}

/// Returns a host's progress in mode `power_off`, after our annotations were written.
fn kept_off(host: Host<'_>, wish: &ExternalRequest, now: Timestamp) -> ExternalState {
    let (shown, key) = (host.shown(), reboot_key(&wish.uid));
    let has_key = host.0.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(&key));
    if host.released().is_some() && !has_key {
        return returning(host, false, now);
    }
    if !has_key {
        return ExternalState::Lost(format!(
            "the annotation {key} was deleted from {shown}; baremetal-operator up to v0.13.2 deletes it when the host changes \
             its state"
        ).into());
    }
    // A host that is off stays off, but the operator restarts a running host forever.
    if host.disables_power_off() && host.powered_on() {
        return ExternalState::Lost(
            format!(
                "spec.disablePowerOff was set on {shown}, which is on: the operator restarts it repeatedly instead of \
             switching it off"
            )
            .into(),
        );
    }
    if host.detaches() {
        return ExternalState::Lost(format!("another author detached {shown}").into());
    }
    if host.status() == "servicing" {
        return ExternalState::Lost(format!("the operator services {shown}, which can switch it on").into());
    }
    if !host.is_provisioned() {
        return ExternalState::Lost(format!("{shown} left its provisioning state (now {})", host.state()).into());
    }
    // The operator powers a host off again after a manual power-on.
    if !host.powered_on() || wish.entered {
        return ExternalState::Granted;
    }
    let trouble = if host.error().is_empty() { String::new() } else { format!(" ({})", host.error_text()) };
    let paused = if host.is_paused() { "; another author has paused it" } else { "" };
    ExternalState::Entering(format!("{shown} to be switched off by the operator{paused}{trouble}").into())
}

/// Returns why a host cannot boot our image.
fn not_by_image(host: Host<'_>) -> Option<String> {
    let instead = "use hold = \"detach\"";
    if host.is_provisioned() {
        let state = host.state();
        return Some(format!("hold = \"image\" boots available hosts only (now {state}): {instead}"));
    }
    if let Some(consumer) = host.consumer() {
        return Some(format!("the host already has the consumer {consumer}: {instead}"));
    }
    if host.has_image() {
        return Some(format!("the host already has another author's image: {instead}"));
    }
    if let Some(reuse) = host.reuse() {
        return Some(format!(
            "Cluster API reserves the host for reuse by {reuse} (label infrastructure.cluster.x-k8s.io/node-reuse) and \
             could mistake our image for its own: {instead}"
        ));
    }
    if host.disables_power_off() {
        return Some(format!("spec.disablePowerOff prevents the power-off before the boot: {instead}"));
    }
    (!host.keeps_disks()).then(|| {
        format!(
            "removing the image deprovisions the host, which cleans its disks unless spec.automatedCleaningMode is \
             \"disabled\": set that, or {instead}"
        )
    })
}

/// Returns a host's progress in mode `image`, after our annotations were written.
fn imaged(host: Host<'_>, wish: &ExternalRequest, now: Timestamp) -> ExternalState {
    let shown = host.shown();
    if host.released().is_some() {
        return returning(host, false, now);
    }
    if host.is_deleting() {
        return ExternalState::Lost(format!("{shown} is being deleted").into());
    }
    if host.detaches() {
        return ExternalState::Lost(format!("another author detached {shown}").into());
    }
    if !host.consumer_is(&wish.uid) {
        return ExternalState::Lost(format!("spec.consumerRef of {shown} no longer names this maintenance").into());
    }
    if (host.made_image().is_some() || host.has_image()) && !host.has_our_image() {
        let online = host.online_to_restore().map_or_else(String::new, |before| {
            format!("; this maintenance set spec.online to {} and restores {before} at its end", host.online())
        });
        return ExternalState::Lost(format!("another author changed the image of {shown}{online}").into());
    }
    let states = ["available", "ready", "preparing", "provisioning", "provisioned", "deprovisioning"];
    if !states.contains(&host.state()) {
        return ExternalState::Lost(format!("{shown} left its provisioning state (now {})", host.state()).into());
    }
    ExternalState::Granted
}

/// Returns the operator's progress in booting our image; `None` without an image.
pub(super) fn booted(host: Host<'_>) -> Option<BootReadiness> {
    host.made_image()?;
    let shown = host.shown();
    Some(match host.state() {
        _ if !host.error().is_empty() => {
            BootReadiness::Error(format!("the operator could not boot {shown} ({})", host.error_text()).into())
        }
        // The operator undoes a failed boot and then retries it.
        "deprovisioning" => {
            BootReadiness::Error(format!("the operator could not boot {shown} and is deprovisioning it").into())
        }
        "provisioned" => BootReadiness::Ready,
        state if host.is_paused() => {
            BootReadiness::Pending(format!("{shown} to be booted; another author has paused it (now {state})").into())
        }
        state => BootReadiness::Pending(format!("{shown} to be booted by its operator (now {state})").into()),
    })
}

/// Returns a released host's progress until the operator manages it again. `registers` is true if
/// it must first be registered in Ironic again.
fn returning(host: Host<'_>, registers: bool, now: Timestamp) -> ExternalState {
    let (shown, before) = (host.shown(), host.before());
    let leftovers = || ExternalState::Leftovers(format!("our annotations are still on {shown}").into());
    if host.is_deleting() {
        // The delayed deletion continues.
        return leftovers();
    }
    if host.is_paused() {
        return ExternalState::Returning(format!("{shown} is still paused by another author").into());
    }
    if host.detaches() {
        return leftovers();
    }
    match host.status() {
        "detached" => {
            return ExternalState::Returning(
                format!("the operator is attaching {shown} again (still detached)").into(),
            );
        }
        // The operator's next reconciliation clears this error before it registers the host.
        "error" if host.error() == "detach error" => {
            return ExternalState::Returning(
                format!("the operator is attaching {shown} again (still {})", host.error_text()).into(),
            );
        }
        "error" if host.error() != before.error => {
            let unregistered = host.error() == "registration error";
            let what = if unregistered { "could not register" } else { "has trouble with" };
            return ExternalState::Failed(format!("the operator {what} {shown} ({})", host.error_text()).into());
        }
        "OK" | "error" => {}
        status => return ExternalState::Returning(format!("{shown} is {status}").into()),
    }
    if registers && let Some(why) = unproven(host, &before, now) {
        return ExternalState::Returning(why.into());
    }
    let still_booted = host.hold() == Some(Hold::Image) && !host.is_unbooted();
    if !host.is_settled() || still_booted {
        let (state, was) = (host.state(), &before.state);
        return ExternalState::Returning(format!("{shown} is {state}, was {was}").into());
    }
    // A host with its prior error is excluded, because its power is unknown.
    let seen = if host.powered_on() { PowerTarget::On } else { PowerTarget::Off };
    if let Some(wanted) = host.kept_power().filter(|wanted| *wanted != seen) {
        return ExternalState::Returning(format!("{shown} is not yet {wanted} (spec.online), now {seen}").into());
    }
    leftovers()
}

/// Returns true if a released host has another node in Ironic than before.
fn is_renamed(host: Host<'_>, before: &Before) -> bool {
    !before.id.is_empty() && host.node() != before.id
}

/// Returns true if a released host shows that the operator registered it in Ironic.
fn is_proven(host: Host<'_>, before: &Before, now: Timestamp) -> bool {
    if is_renamed(host, before) {
        let written = host.written().parse::<Timestamp>();
        return written.is_ok_and(|at| now.duration_since(at) >= VERIFIED);
    }
    before.unseen.as_deref().is_some_and(|last| !last.is_empty() && host.written() != last)
}

/// Returns the proof that a host lacks although it is about to count as managed again; `None` in
/// any other case.
pub(super) fn believed(host: Host<'_>, wish: &ExternalRequest, now: Timestamp) -> Option<String> {
    let over = host.hold() == Some(Hold::Detach) && host.released().is_some() && !host.is_deleting();
    let left = over && matches!(standing(host, wish, Hold::Detach, now), ExternalState::Leftovers(_));
    (left && !host.detaches() && !is_proven(host, &host.before(), now)).then(|| {
        format!(
            "{} does not show that its operator manages it again, {} min after its release: the operator could be \
             stopped",
            host.shown(),
            UNPROVEN.as_mins()
        )
    })
}

/// Describes a changed provisioning state when the host is managed again; `None` if it is unchanged
/// or the host is not yet managed. The owner can have changed or ended its use, which is not
/// undone.
pub(super) fn became(host: Host<'_>, wish: &ExternalRequest, now: Timestamp) -> Option<String> {
    let (hold, before) = (host.hold()?, host.before());
    let over = host.released().is_some() && !host.is_deleting() && !host.detaches();
    let changes = host.will_change();
    let differs = !before.state.is_empty() && (changes || host.state() != before.state);
    let left = over && differs && matches!(standing(host, wish, hold, now), ExternalState::Leftovers(_));
    left.then(|| {
        let (next, was) = (if changes { ", about to change" } else { "" }, &before.state);
        let (shown, state) = (host.shown(), host.state());
        format!("{shown} is {state}{next}, but was {was} before this maintenance: another author changed it")
    })
}

/// Returns the missing proof that a released host is registered in Ironic; `None` if it exists or
/// enough time has passed.
fn unproven(host: Host<'_>, before: &Before, now: Timestamp) -> Option<String> {
    let late = host.released().is_none_or(|at| now.duration_since(at) >= UNPROVEN);
    if late || is_proven(host, before, now) {
        return None;
    }
    let (shown, minutes) = (host.shown(), UNPROVEN.as_mins());
    Some(if is_renamed(host, before) {
        format!("{shown} is being registered again: Ironic verifies its new node")
    } else if before.unseen.is_some() {
        format!(
            "{shown} was released before its operator showed it detached, and the operator has written nothing since: \
             it is slow, stopped, or has nothing to do (assumed to manage the host {minutes} min after the release)"
        )
    } else {
        format!(
            "{shown} is being registered again (its node in Ironic has the old id; assumed registered {minutes} min \
             after the release)"
        )
    })
}

/// Returns a detached annotation's author, for display.
fn author(host: Host<'_>) -> String {
    use crate::backend::cluster::{OUR_ID, OUR_RUN, annotation};
    let said = |key: &str, word: &str| annotation(host.0, key).map(|text| format!("{word} {text}"));
    let said: Vec<String> = [said(OUR_ID, "maintenance"), said(OUR_RUN, "by")].into_iter().flatten().collect();
    if said.is_empty() { "another author".to_owned() } else { said.join(" ") }
}
