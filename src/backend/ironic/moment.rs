//! What was read of a node a moment ago, so that one look at it is one request.
//!
//! A look of the engine is several questions: where our flag stands, whether the node is on, what
//! it can do. They are about the same moment, so one read answers them. The flag, its reason and
//! faults are read again for each question about them, and right before each change; a change that
//! was sent ends what is known of its node.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::maintenance::machine::BootOverride;

use super::node::Node;

/// For how long a read tells how a node is: as long as what the engine saw counts as seen just now.
const MOMENT: Duration = Duration::from_secs(1);

/// A boot device as it was read.
#[derive(Clone, Debug)]
pub(super) struct Boot {
    pub(super) device: Option<BootOverride>,
    /// Whether the BMC could not tell it.
    pub(super) unclear: bool,
    /// When the read began, on our own clock.
    begun: Duration,
}

impl Boot {
    pub(super) fn new(device: Option<BootOverride>, begun: Duration) -> Self {
        Self { device, unclear: false, begun }
    }

    /// One that the BMC could not tell.
    pub(super) fn unclear(begun: Duration) -> Self {
        Self { device: None, unclear: true, begun }
    }
}

#[derive(Debug)]
struct Kept {
    node: Arc<Node>,
    begun: Duration,
    /// Whether what it shows beside its flag was asked for already: the next such question is a
    /// poll.
    taken: bool,
}

#[derive(Debug, Default)]
struct Recent {
    /// By the name or UUID that it was read by.
    nodes: BTreeMap<String, Kept>,
    /// When the last change to a node was sent and answered, by its UUID.
    changed: BTreeMap<String, Duration>,
    /// When the last one that may change its boot device was.
    booted: BTreeMap<String, Duration>,
}

/// The reads of a moment.
#[derive(Debug, Default)]
pub(super) struct Moment(Mutex<Recent>);

impl Moment {
    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a read that began at this time.
    pub(super) fn keep(&self, server: &str, begun: Duration, node: &Arc<Node>) {
        let kept = Kept { node: Arc::clone(node), begun, taken: false };
        self.recent().nodes.insert(server.to_owned(), kept);
    }

    /// Ends what is known of a node, and of its boot device where the change may have touched it.
    pub(super) fn changed(&self, uuid: &str, now: Duration, boots: bool) {
        let mut known = self.recent();
        known.changed.insert(uuid.to_owned(), now);
        if boots {
            known.booted.insert(uuid.to_owned(), now);
        }
    }

    /// The node as it was read a moment ago.
    pub(super) fn known(&self, server: &str, now: Duration) -> Option<Arc<Node>> {
        let known = self.recent();
        let kept = known.nodes.get(server)?;
        is_of_now(kept.begun, known.changed.get(&kept.node.uuid), now).then(|| Arc::clone(&kept.node))
    }

    /// The node, once for each read: for the first question about what it shows beside its flag.
    pub(super) fn take(&self, server: &str, now: Duration) -> Option<Arc<Node>> {
        let node = self.known(server, now)?;
        let mut known = self.recent();
        let kept = known.nodes.get_mut(server)?;
        (!std::mem::replace(&mut kept.taken, true)).then_some(node)
    }

    /// Whether a boot device that was read still holds.
    pub(super) fn holds(&self, uuid: &str, boot: &Boot, now: Duration) -> bool {
        is_of_now(boot.begun, self.recent().booted.get(uuid), now)
    }
}

/// Whether a read is of this moment, and began after the last change.
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
