//! Progress of our maintenance flag on a node. Pure.
//!
//! Measured with Ironic 39.0.0 and read in its source: PUT overwrites any existing reason but keeps
//! `fault`. Ironic clears a flag with the fault `power failure` when the BMC answers again, even if
//! the reason is ours (conductor/manager.py, `_power_failure_recovery`). Clearing the flag removes
//! reason and fault.

use std::collections::BTreeMap;

use crate::maintenance::{
    gate::{ExternalRequest, ExternalState},
    ids::Uid,
};

use super::{
    node::Node,
    reason::{Mark, read, shown_reason},
};

/// Memory key: the node's UUID.
pub(super) const NODE: &str = "node";
/// Memory key: the node's instance, or `none`.
pub(super) const INSTANCE: &str = "instance";
/// Memory key: the previous boot device if it was readable; `none` if Ironic reported none.
pub(super) const BOOT: &str = "boot_device";
/// Memory key: the provision state at entry.
pub(super) const STATE: &str = "provision_state";
/// Memory key: when Ironic last changed the provision state. Every deployment, rebuild and rescue
/// updates it, even if the state ends up the same (Ironic 39.0.0, db/sqlalchemy/api.py,
/// `_do_update_node`).
const SINCE: &str = "provision_updated_at";
/// Memory key: the node's owner.
const OWNER: &str = "owner";
/// Memory key: this maintenance protects the node. Recorded before the node is changed.
pub(super) const PROTECT: &str = "protect";
/// The value for a missing boot device, instance or owner.
pub(super) const NONE: &str = "none";

/// Returns the facts that later show if the node still serves the same purpose.
pub(super) fn purpose(node: &Node) -> BTreeMap<String, String> {
    let facts = [
        (INSTANCE, &node.instance_uuid),
        (STATE, &node.provision_state),
        (SINCE, &node.provision_updated_at),
        (OWNER, &node.owner),
    ];
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| NONE.to_owned());
    facts.into_iter().map(|(name, value)| (name.to_owned(), text(value))).collect()
}

/// Returns true if the node's protection was set for this maintenance.
pub(super) fn protects(node: &Node, wish: &ExternalRequest) -> bool {
    let mark = node.protected_reason.as_deref().filter(|_| node.protected).and_then(read);
    mark.is_some_and(|mark| mark.uid == wish.uid && mark.store == wish.store)
}

/// Returns the flag's author; `None` without a flag or if another tool set it.
pub(super) fn mark(node: &Node) -> Option<Mark> {
    node.maintenance_reason.as_deref().filter(|_| node.maintenance).and_then(read)
}

/// Returns true if this maintenance set the flag.
pub(super) fn is_ours(node: &Node, wish: &ExternalRequest) -> bool {
    mark(node).is_some_and(|mark| mark.uid == wish.uid && mark.store == wish.store)
}

/// Describes another author's flag or a fault that blocks the node; `None` if there is neither.
pub(super) fn foreign(node: &Node) -> Option<String> {
    if !node.maintenance && node.fault.is_none() {
        return None;
    }
    if let Some(mark) = mark(node) {
        return Some(format!("the node is in maintenance for {} (of this provider)", crate::shown::line(&mark.id)));
    }
    let reason = shown_reason(node.maintenance_reason.as_deref());
    Some(match &node.fault {
        Some(fault) => format!("Ironic recorded the fault {fault:?} on the node ({reason})"),
        None => format!("the node is in maintenance, which this provider did not set ({reason})"),
    })
}

/// Returns the reason if an entered node serves another purpose now. Ironic allows the owner to
/// undeploy, rebuild, rescue and reassign a node in maintenance.
pub(super) fn repurposed(node: &Node, wish: &ExternalRequest) -> Option<String> {
    if !wish.entered {
        return None;
    }
    let now = purpose(node);
    let changed = |name: &str| {
        let (before, now) = (wish.memory.get(name)?, now.get(name)?);
        (before != now).then_some((before, now))
    };
    // A reservation for a later instance does not change the node.
    if let Some((before, now)) = changed(INSTANCE).filter(|(before, _)| *before != NONE) {
        return Some(match now.as_str() {
            NONE => format!("instance {before} was removed from the node"),
            now => format!("the node now has instance {now}, previously {before}"),
        });
    }
    if node.provision_state.as_deref() == Some("clean wait") {
        return Some(
            "the node was undeployed and waits to be cleaned, which Ironic does not do in maintenance".to_owned(),
        );
    }
    if let Some((before, now)) = changed(STATE) {
        return Some(format!("the node's provision state is {now}; it was {before} when the maintenance started"));
    }
    if let Some((before, now)) = changed(OWNER) {
        return Some(format!("the node's owner is now {now}, previously {before}"));
    }
    changed(SINCE)
        .map(|(_, at)| format!("the node was deployed, rebuilt or rescued during the maintenance (at {at} UTC)"))
}

/// Returns the state of our flag on the node.
fn ours(node: &Node, wish: &ExternalRequest) -> ExternalState {
    if let Some(fault) = &node.fault {
        let why = format!(
            "Ironic recorded the fault {fault:?} on the node, and its recovery can clear our maintenance flag at any \
             time"
        );
        return if wish.entered { ExternalState::Lost(why.into()) } else { ExternalState::Failed(why.into()) };
    }
    if let Some(why) = repurposed(node, wish) {
        return ExternalState::Lost(why.into());
    }
    if !wish.entered && !wish.leaving && wish.memory.contains_key(PROTECT) && !node.protected {
        // The flag is set but the protection is missing: entering sends it.
        return ExternalState::Absent;
    }
    match node.busy() {
        // Leaving would collide with this work. Waiting for an agent is different: it cannot end
        // while the flag is set.
        Some(work) if wish.leaving && !node.waits_for_agent() => {
            ExternalState::Returning(format!("waiting for {work}").into())
        }
        // Another client's work started between our look and our flag. A lock alone does not count.
        Some(work) if !wish.entered && node.in_transition() => {
            ExternalState::Failed(format!("another client started work on the node: waiting for {work}").into())
        }
        _ => ExternalState::Granted,
    }
}

/// Returns the flag's progress. Without a flag, returns what blocks an operation.
pub(super) fn standing(node: &Node, wish: &ExternalRequest) -> ExternalState {
    if let Some(known) = wish.memory.get(NODE).filter(|known| **known != node.uuid && wish.asked) {
        return ExternalState::Refused(format!("it is a different node now ({}, was {known})", node.uuid).into());
    }
    if is_ours(node, wish) {
        return ours(node, wish);
    }
    if wish.asked && protects(node, wish) {
        return ExternalState::Leftovers("the node is still protected for this maintenance".into());
    }
    if wish.asked {
        return match (foreign(node), node.busy()) {
            (Some(why), _) => ExternalState::Refused(why.into()),
            // The node cannot be entered now; entering is retried after this work ends.
            (None, Some(work)) if !wish.entered && !wish.leaving => ExternalState::Entering(work.into()),
            (None, _) => ExternalState::Absent,
        };
    }
    if node.is_of_baremetal_operator() {
        return ExternalState::Refused(
            "the node is managed by baremetal-operator, which clears maintenance flags: use its BareMetalHost (backend metal3)"
                .into(),
        );
    }
    match (foreign(node), mark(node)) {
        // The other maintenance clears its flag when it ends.
        (Some(_), Some(mark)) => {
            ExternalState::Waiting(format!("maintenance {}, which set the node's maintenance flag", mark.id).into())
        }
        (Some(why), None) => ExternalState::Refused(format!(
            "{why}. The provider does not change it; clear it (openstack baremetal node maintenance unset) and apply \
             again"
        ).into()),
        (None, _) => node.busy().map_or(ExternalState::Absent, |why| ExternalState::Waiting(why.into())),
    }
}

/// Returns the same store's maintenance whose flag is the only blocker.
pub(super) fn behind(node: &Node, wish: &ExternalRequest) -> Option<Uid> {
    let mark = mark(node).filter(|mark| mark.store == wish.store && mark.uid != wish.uid)?;
    node.fault.is_none().then_some(Uid::new(mark.uid))
}

/// Returns the replacement for our reason on a flag that Ironic keeps for its own fault.
pub(super) fn left_to_ironic(fault: &str, id: &str) -> String {
    format!(
        "fault {fault:?} recorded by Ironic while the node was in maintenance for {id}; this flag no longer belongs to terraform-provider-metal"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ironic::reason::{tests::wish, write};

    fn node() -> Node {
        Node { uuid: "n1".into(), provision_state: Some("active".into()), ..Node::default() }
    }

    fn flagged(reason: &str) -> Node {
        Node { maintenance: true, maintenance_reason: Some(reason.into()), ..node() }
    }

    fn asked() -> ExternalRequest {
        ExternalRequest { asked: true, ..wish() }
    }

    fn entered() -> ExternalRequest {
        ExternalRequest { entered: true, ..asked() }
    }

    #[test]
    fn a_flag_or_fault_of_others_is_refused_with_its_reason() {
        let ExternalState::Refused(why) = standing(&flagged("disk swap by carol"), &wish()) else { panic!() };
        assert!(why.shown().contains("disk swap by carol"), "{why}");
        let faulty = Node { fault: Some("power failure".into()), ..flagged("BMC away") };
        let ExternalState::Refused(why) = standing(&faulty, &wish()) else { panic!() };
        assert!(why.shown().contains("power failure") && why.shown().contains("BMC away"), "{why}");
        assert!(matches!(standing(&flagged(""), &asked()), ExternalState::Refused(_)), "while entering");
        assert!(matches!(standing(&flagged("x"), &entered()), ExternalState::Refused(_)), "our flag is not set");
    }

    #[test]
    fn ours_is_known_by_store_and_uid_and_only_without_a_fault() {
        let ours = flagged(&write(&wish()));
        assert_eq!(standing(&ours, &asked()), ExternalState::Granted);
        assert_eq!(standing(&ours, &entered()), ExternalState::Granted);
        let faulty = Node { fault: Some("power failure".into()), ..ours.clone() };
        assert!(matches!(standing(&faulty, &asked()), ExternalState::Failed(_)));
        assert!(matches!(standing(&faulty, &entered()), ExternalState::Lost(_)));
        let other = ExternalRequest { uid: "another".into(), ..wish() };
        assert!(matches!(standing(&ours, &other), ExternalState::Waiting(_)), "it ends automatically");
        assert_eq!(behind(&ours, &other), Some(Uid::new(wish().uid)));
        assert_eq!(behind(&ours, &ExternalRequest { store: "elsewhere".into(), ..other }), None);
        assert_eq!(behind(&ours, &wish()), None);
    }

    #[test]
    fn a_flag_that_is_gone_is_absent_whatever_the_node_does() {
        let busy = Node { provision_state: Some("cleaning".into()), ..node() };
        assert_eq!(standing(&busy, &entered()), ExternalState::Absent);
        let back = ExternalRequest { leaving: true, ..asked() };
        assert_eq!(standing(&busy, &back), ExternalState::Absent, "our flag is not set");
        assert!(matches!(standing(&busy, &wish()), ExternalState::Waiting(_)));
    }

    #[test]
    fn work_that_began_between_look_and_flag_is_not_run_into() {
        let ours = Node { provision_state: Some("inspecting".into()), ..flagged(&write(&wish())) };
        assert!(matches!(standing(&ours, &asked()), ExternalState::Failed(_)));
        assert_eq!(standing(&ours, &entered()), ExternalState::Granted, "the flag stays ours");
        let powering = Node { target_power_state: Some("power on".into()), ..flagged(&write(&wish())) };
        assert_eq!(standing(&powering, &asked()), ExternalState::Granted);
    }

    #[test]
    fn a_hold_ends_with_the_instance_that_it_was_for() {
        let ours = Node { instance_uuid: Some("i1".into()), ..flagged(&write(&wish())) };
        let known = |instance: &str| {
            let memory = BTreeMap::from([(INSTANCE.to_owned(), instance.to_owned())]);
            ExternalRequest { memory, ..entered() }
        };
        assert_eq!(standing(&ours, &known("i1")), ExternalState::Granted);
        assert_eq!(standing(&ours, &known(NONE)), ExternalState::Granted, "an instance that came");
        assert_eq!(standing(&ours, &entered()), ExternalState::Granted);
        let other = Node { instance_uuid: Some("i2".into()), ..ours.clone() };
        assert!(matches!(standing(&other, &known("i1")), ExternalState::Lost(_)));
        let gone = Node { instance_uuid: None, provision_state: Some("cleaning".into()), ..ours.clone() };
        let ExternalState::Lost(why) = standing(&gone, &known("i1")) else { panic!() };
        assert!(why.shown().contains("i1"), "{why}");
        let standalone = Node { provision_state: Some("clean wait".into()), ..gone };
        assert!(matches!(standing(&standalone, &known(NONE)), ExternalState::Lost(_)));
        assert!(repurposed(&standalone, &asked()).is_none(), "nothing was entered");
    }

    #[test]
    fn what_ends_by_itself_is_waited_for() {
        for node in [
            Node { reservation: Some("host".into()), ..node() },
            Node { target_power_state: Some("power off".into()), ..node() },
            Node { provision_state: Some("service wait".into()), ..node() },
        ] {
            assert!(matches!(standing(&node, &wish()), ExternalState::Waiting(_)), "{node:?}");
        }
        assert_eq!(standing(&node(), &wish()), ExternalState::Absent);
    }

    #[test]
    fn work_of_ironic_is_waited_for_without_calls_also_while_leaving() {
        let locked = |node: Node| Node { reservation: Some("c1".into()), ..node };
        assert!(matches!(standing(&locked(node()), &asked()), ExternalState::Entering(_)));
        let ours = flagged(&write(&wish()));
        let back = ExternalRequest { leaving: true, ..entered() };
        assert_eq!(standing(&locked(ours.clone()), &entered()), ExternalState::Granted, "a held node stays held");
        assert_eq!(standing(&ours, &back), ExternalState::Granted);
        let ExternalState::Returning(why) = standing(&locked(ours.clone()), &back) else { panic!() };
        assert!(why.shown().starts_with("waiting for") && why.shown().contains("c1"), "{why}");
        let powering = Node { target_power_state: Some("power on".into()), ..ours.clone() };
        assert!(matches!(standing(&powering, &back), ExternalState::Returning(_)));
        // Only clearing the flag ends this state.
        let inspected = Node { provision_state: Some("inspect wait".into()), ..ours };
        assert_eq!(standing(&inspected, &back), ExternalState::Granted);
    }

    #[test]
    fn nodes_of_baremetal_operator_and_exchanged_nodes_are_refused() {
        let bmo = Node { name: Some("metal3~host".into()), ..node() };
        assert!(matches!(standing(&bmo, &wish()), ExternalState::Refused(_)));
        let mut known = entered();
        known.memory.insert(NODE.into(), "n0".into());
        assert!(matches!(standing(&flagged(&write(&wish())), &known), ExternalState::Refused(_)));
    }

    #[test]
    fn a_reason_that_is_left_is_not_ours() {
        assert!(read(&left_to_ironic("power failure", "ops/a")).is_none());
    }

    #[test]
    fn every_change_of_purpose_ends_the_maintenance() {
        let at_entry = Node {
            owner: Some("team-db".into()),
            provision_updated_at: Some("2026-11-01T08:00:00".into()),
            ..flagged(&write(&wish()))
        };
        for instance in [None, Some("i1")] {
            let before = Node { instance_uuid: instance.map(str::to_owned), ..at_entry.clone() };
            let wish = ExternalRequest { memory: purpose(&before), ..entered() };
            assert_eq!(standing(&before, &wish), ExternalState::Granted);
            let reserved = Node { instance_uuid: Some("i2".into()), ..before.clone() };
            assert_eq!(matches!(standing(&reserved, &wish), ExternalState::Lost(_)), instance.is_some());
            let text = |value: &str| Some(value.to_owned());
            for (now, says) in [
                (Node { provision_state: text("deleting"), ..before.clone() }, "deleting"),
                (Node { provision_state: text("available"), ..before.clone() }, "available"),
                (Node { provision_state: text("cleaning"), ..before.clone() }, "cleaning"),
                (Node { provision_state: text("clean wait"), ..before.clone() }, "cleaned"),
                (Node { provision_state: text("rescue"), ..before.clone() }, "rescue"),
                (Node { provision_updated_at: text("2026-11-02T08:00:00"), ..before.clone() }, "rebuilt"),
                (Node { owner: None, ..before.clone() }, "owner"),
            ] {
                let ExternalState::Lost(why) = standing(&now, &wish) else { panic!("{now:?}") };
                assert!(why.shown().contains(says), "{why}");
            }
        }
    }

    #[test]
    fn a_protected_node_is_granted_after_its_protection_and_leaves_no_protection() {
        let reason = write(&wish());
        let memory = BTreeMap::from([(PROTECT.to_owned(), "true".to_owned())]);
        let flagged = flagged(&reason);
        let protected = Node { protected: true, protected_reason: Some(reason.clone()), ..flagged.clone() };
        let (asked, entered) =
            (ExternalRequest { memory: memory.clone(), ..asked() }, ExternalRequest { memory, ..entered() });
        assert_eq!(standing(&flagged, &asked), ExternalState::Absent, "the protection is missing");
        assert_eq!(standing(&protected, &asked), ExternalState::Granted);
        assert_eq!(standing(&flagged, &entered), ExternalState::Granted, "another author removed it later");
        let unflagged = Node { maintenance: false, maintenance_reason: None, ..protected };
        assert!(matches!(standing(&unflagged, &entered), ExternalState::Leftovers(_)));
        let of_others = Node { protected_reason: Some("do not touch".into()), ..unflagged };
        assert_eq!(standing(&of_others, &entered), ExternalState::Absent);
    }
}
