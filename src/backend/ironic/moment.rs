//! Short-lived cache of node reads, so that a single look needs a single request.
//!
//! The engine's look consists of several questions: flag progress, power, capabilities. They
//! concern the same moment, so one read answers them all. Each question about the flag, its reason
//! and faults reads again, as does each change beforehand. A sent change invalidates its node.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::maintenance::machine::BootOverride;

use super::node::Node;

/// How long a read is valid: as long as the engine treats an observation as current.
const MOMENT: Duration = Duration::from_secs(1);

/// A boot device reading.
#[derive(Clone, Debug)]
pub(super) struct Boot {
    pub(super) device: Option<BootOverride>,
    /// The device as Ironic reports it, also after a clear that sent nothing.
    pub(super) reported: Option<BootOverride>,
    /// True if the BMC could not report the device.
    pub(super) unclear: bool,
    /// The monotonic time at which the read started.
    begun: Duration,
}

impl Boot {
    pub(super) fn new(device: Option<BootOverride>, begun: Duration) -> Self {
        Self::of_reported(device.clone(), device, begun)
    }

    /// Returns a reading whose device can differ from the one that Ironic reports.
    pub(super) fn of_reported(reported: Option<BootOverride>, device: Option<BootOverride>, begun: Duration) -> Self {
        Self { device, reported, unclear: false, begun }
    }

    /// Returns a reading without a result from the BMC.
    pub(super) fn unclear(begun: Duration) -> Self {
        Self { device: None, reported: None, unclear: true, begun }
    }
}

#[derive(Debug)]
struct Kept {
    node: Arc<Node>,
    begun: Duration,
    /// True if this read already served one question about facts other than the flag. The next such
    /// question is a poll.
    taken: bool,
}

#[derive(Debug, Default)]
struct Recent {
    /// Reads by the name or UUID in the request.
    nodes: BTreeMap<String, Kept>,
    /// When the last change was answered, by node UUID.
    changed: BTreeMap<String, Duration>,
    /// When the last change that could affect the boot device was answered.
    booted: BTreeMap<String, Duration>,
}

#[derive(Debug, Default)]
pub(super) struct Moment(Mutex<Recent>);

impl Moment {
    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a read that started at `begun`.
    pub(super) fn keep(&self, server: &str, begun: Duration, node: &Arc<Node>) {
        let kept = Kept { node: Arc::clone(node), begun, taken: false };
        self.recent().nodes.insert(server.to_owned(), kept);
    }

    /// Invalidates a node's reads, and its boot device if the change could affect it.
    pub(super) fn changed(&self, uuid: &str, now: Duration, boots: bool) {
        let mut known = self.recent();
        known.changed.insert(uuid.to_owned(), now);
        if boots {
            known.booted.insert(uuid.to_owned(), now);
        }
    }

    /// Returns the node from a recent read.
    pub(super) fn known(&self, server: &str, now: Duration) -> Option<Arc<Node>> {
        let known = self.recent();
        let kept = known.nodes.get(server)?;
        is_of_now(kept.begun, known.changed.get(&kept.node.uuid), now).then(|| Arc::clone(&kept.node))
    }

    /// Returns the node once per read, for the first question about facts other than the flag.
    pub(super) fn take(&self, server: &str, now: Duration) -> Option<Arc<Node>> {
        let node = self.known(server, now)?;
        let mut known = self.recent();
        let kept = known.nodes.get_mut(server)?;
        (!std::mem::replace(&mut kept.taken, true)).then_some(node)
    }

    /// Returns true if a boot device reading is still valid.
    pub(super) fn holds(&self, uuid: &str, boot: &Boot, now: Duration) -> bool {
        is_of_now(boot.begun, self.recent().booted.get(uuid), now)
    }
}

/// Returns true if a read is recent and started after the last change.
fn is_of_now(begun: Duration, changed: Option<&Duration>, now: Duration) -> bool {
    now.saturating_sub(begun) < MOMENT && changed.is_none_or(|changed| begun > *changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_read_serves_a_moment_and_not_beyond_a_change() {
        let moment = Moment::default();
        let node = Arc::new(Node { uuid: "u".into(), ..Node::default() });
        moment.keep("n1", at(100), &node);
        assert!(moment.known("n1", at(1000)).is_some() && moment.known("n2", at(1000)).is_none());
        assert!(moment.known("n1", at(1100)).is_none(), "too old");
        moment.changed("u", at(200), false);
        assert!(moment.known("n1", at(300)).is_none(), "read before a change");
        moment.keep("n1", at(150), &node);
        assert!(moment.known("n1", at(300)).is_none(), "begun before the change, and answered after it");
        moment.keep("n1", at(250), &node);
        assert!(moment.known("n1", at(300)).is_some());
    }

    #[test]
    fn what_a_node_shows_is_told_once_for_each_read() {
        let moment = Moment::default();
        let node = Arc::new(Node { uuid: "u".into(), ..Node::default() });
        moment.keep("n1", at(100), &node);
        assert!(moment.take("n1", at(200)).is_some());
        assert!(moment.take("n1", at(200)).is_none(), "a poll reads again");
        assert!(moment.known("n1", at(200)).is_some(), "what does not move is known");
    }

    #[test]
    fn a_boot_device_holds_until_what_may_change_it() {
        let moment = Moment::default();
        let boot = Boot::new(None, at(100));
        moment.changed("u", at(200), false);
        assert!(moment.holds("u", &boot, at(300)), "a flag changes no boot device");
        assert!(!moment.holds("u", &boot, at(1100)));
        moment.changed("u", at(250), true);
        assert!(!moment.holds("u", &boot, at(300)));
    }
}
