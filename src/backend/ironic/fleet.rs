//! Nodes as they are read: one by one, or in one list where many are asked for at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::Value;

use crate::backend::BackendError;

use super::{
    IronicSettings,
    accepted::Accepted,
    answer::is_no_node,
    client::Client,
    identity::HardwareFacts,
    moment::{Boot, Moment},
    node::{Node, fields, version_for_nodes},
};

/// For how long a list serves reads that may be a little old.
const FRESH: Duration = Duration::from_secs(1);
/// So many reads within that time go one by one; further ones share a list.
const ONE_BY_ONE: usize = 6;
/// Nodes in one page.
const PAGE: usize = 500;
/// Pages that are read at most.
const MOST_PAGES: usize = 2000;

/// Boot devices by the UUID of a node and its management interface, to which they belong.
type SettableDevices = BTreeMap<(String, Option<String>), Vec<String>>;

/// The nodes of one Ironic.
#[derive(Debug)]
pub(super) struct IronicNodes {
    pub(super) client: Client,
    pub(super) lock_keys: BTreeMap<String, String>,
    pub(super) soft_power_timeout: Duration,
    pub(super) image_download_source: String,
    /// See [`IronicSettings::protect`].
    pub(super) protect: bool,
    /// The boot devices as they were read last, by the UUID of the node: reading one needs the
    /// node's lock.
    pub(super) boots: Mutex<BTreeMap<String, Boot>>,
    /// The boot devices that can be set.
    pub(super) devices: Mutex<SettableDevices>,
    /// The nodes, by UUID, whose boot device was set to the disk because none was set before.
    cleared: Mutex<BTreeSet<String>>,
    /// What was read of single nodes a moment ago.
    pub(super) moment: Moment,
    /// Changes that had not ended when their calls returned, by the name of the server.
    pub(super) unsettled: Mutex<BTreeMap<String, Accepted>>,
    /// Identities that were found, by the UUID of the node: an inventory is what an inspection
    /// recorded once.
    pub(super) identities: Mutex<BTreeMap<String, HardwareFacts>>,
    /// The UUIDs that maintenances recorded, by the name of the server: a node may be renamed.
    recorded: Mutex<BTreeMap<String, String>>,
    reads: Mutex<Reads>,
    listing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Reads {
    /// When single reads were made, on our own clock.
    single: Vec<Duration>,
    /// A list and when it was begun.
    list: Option<(Duration, Arc<Vec<Arc<Node>>>)>,
    /// Counts changes: a list that was begun before one is not used after it.
    changes: u64,
}

impl IronicNodes {
    pub(super) fn new(client: Client, settings: IronicSettings) -> Self {
        let IronicSettings { lock_keys, soft_power_timeout, image_download_source, protect, .. } = settings;
        Self {
            client,
            lock_keys,
            soft_power_timeout,
            image_download_source,
            protect,
            boots: Mutex::default(),
            devices: Mutex::default(),
            cleared: Mutex::default(),
            moment: Moment::default(),
            unsettled: Mutex::default(),
            identities: Mutex::default(),
            recorded: Mutex::default(),
            reads: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn cleared(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.cleared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_cleared(&self, uuid: &str) -> bool {
        self.cleared().contains(uuid)
    }

    fn reads(&self) -> MutexGuard<'_, Reads> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the UUID that a maintenance recorded of a server.
    pub(super) fn remember(&self, server: &str, uuid: &str) {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.insert(server.to_owned(), uuid.to_owned());
    }

    fn recorded(&self, server: &str) -> Option<String> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).get(server).cloned()
    }

    /// A node by its name or UUID, as it was a moment ago or is now.
    pub(super) async fn node(&self, server: &str) -> Result<Arc<Node>, BackendError> {
        match self.moment.known(server, self.client.clock.monotonic()) {
            Some(node) => Ok(node),
            None => self.node_of(server, false).await,
        }
    }

    /// A node by its name or UUID. `fresh`: not older than this call.
    async fn node_of(&self, server: &str, fresh: bool) -> Result<Arc<Node>, BackendError> {
        if fresh || self.goes_alone() {
            return self.read(server).await;
        }
        let list = self.shared_list().await?;
        match list.iter().find(|node| node.is_called(server)) {
            Some(node) => Ok(Arc::clone(node)),
            // Ironic's database may compare names otherwise, and a node may be newer than the list.
            None => self.read(server).await,
        }
    }

    /// A node for what it shows beside its flag. The read that just judged its flag serves for
    /// that, once; a poll reads again.
    pub(super) async fn seen(&self, server: &str, fresh: bool) -> Result<Arc<Node>, BackendError> {
        if let Some(node) = self.moment.take(server, self.client.clock.monotonic()) {
            return Ok(node);
        }
        let node = self.node_of(server, fresh).await?;
        self.moment.take(server, self.client.clock.monotonic());
        Ok(node)
    }

    /// Reads one node now. Where Ironic has none of that name, by the UUID that a maintenance
    /// recorded: it may have been renamed.
    pub(super) async fn read(&self, server: &str) -> Result<Arc<Node>, BackendError> {
        let begun = self.client.clock.monotonic();
        let node = match (self.ask(server).await, self.recorded(server)) {
            (Err(BackendError::NoServer { .. }), Some(uuid)) => self.ask(&uuid).await?,
            (node, _) => node?,
        };
        self.moment.keep(server, begun, &node);
        Ok(node)
    }

    /// Asks for one node. [`BackendError::NoServer`] only where Ironic itself says that it has
    /// none: what a proxy before it answers tells nothing of nodes.
    async fn ask(&self, ident: &str) -> Result<Arc<Node>, BackendError> {
        let version = version_for_nodes(self.client.newest().await?);
        let path = format!("{}?fields={}", path(ident, ""), fields(version, false));
        match self.client.get(&path, version).await {
            Ok(body) => Node::from_answer(body)
                .map(Arc::new)
                .map_err(|error| self.client.odd(&Method::GET, &path, &format!("the answer is not a node: {error}"))),
            Err(error) if is_no_node(&error) => Err(self.no_node(ident)),
            Err(error) => Err(error),
        }
    }

    fn no_node(&self, server: &str) -> BackendError {
        BackendError::NoServer {
            address: self.client.address(),
            what: format!(
                "no node that this account may see has the name or UUID {server:?} (openstack baremetal node list shows them)"
            ),
        }
    }

    /// Whether a read may go alone, because few are made.
    fn goes_alone(&self) -> bool {
        let now = self.client.clock.monotonic();
        let mut reads = self.reads();
        reads.single.retain(|at| now.saturating_sub(*at) < FRESH);
        let alone = reads.single.len() < ONE_BY_ONE;
        if alone {
            reads.single.push(now);
        }
        alone
    }

    async fn shared_list(&self) -> Result<Arc<Vec<Arc<Node>>>, BackendError> {
        let asked = self.client.clock.monotonic();
        let known = |fleet: &Self| {
            let reads = fleet.reads();
            reads.list.as_ref().filter(|(at, _)| asked.saturating_sub(*at) < FRESH).map(|(_, list)| Arc::clone(list))
        };
        if let Some(list) = known(self) {
            return Ok(list);
        }
        let _turn = self.listing.lock().await;
        if let Some(list) = known(self) {
            return Ok(list);
        }
        let (begun, changes) = (self.client.clock.monotonic(), self.reads().changes);
        let list = Arc::new(self.list("").await?);
        let mut reads = self.reads();
        if reads.changes == changes {
            reads.list = Some((begun, Arc::clone(&list)));
        }
        Ok(list)
    }

    /// Nodes, of all pages. `filter`: further parameters of the query, each with `&` before it.
    pub(super) async fn list(&self, filter: &str) -> Result<Vec<Arc<Node>>, BackendError> {
        let version = version_for_nodes(self.client.newest().await?);
        let first = format!("/v1/nodes?limit={PAGE}&fields={}{filter}", fields(version, true));
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        for _ in 0..MOST_PAGES {
            let path = match nodes.last() {
                Some(last) => format!("{first}&marker={}", last.uuid),
                None => first.clone(),
            };
            let body = self.client.get(&path, version).await?;
            let odd = |what: &str| self.client.odd(&Method::GET, &path, what);
            let listed = body["nodes"].as_array().ok_or_else(|| odd("the answer is not a list of nodes"))?;
            let page = listed.iter().cloned().map(Node::from_answer).collect::<Result<Vec<Node>, _>>();
            let page = page.map_err(|error| odd(&format!("the answer holds what is not a node: {error}")))?;
            let ended = page.is_empty() || !body["next"].is_string();
            nodes.extend(page.into_iter().map(Arc::new));
            if ended {
                return Ok(nodes);
            }
        }
        Err(self.client.odd(&Method::GET, &first, "the list of nodes does not end"))
    }

    /// Sends a change to a node, after which no list from before serves any more.
    pub(super) async fn change(
        &self,
        method: Method,
        node: &Node,
        part: &str,
        minor: u32,
        body: Option<&Value>,
    ) -> Result<Value, BackendError> {
        let result = self.client.change(method, &path(&node.uuid, part), minor, body).await;
        // The flag alone changes no boot device.
        self.moment.changed(&node.uuid, self.client.clock.monotonic(), part != "/maintenance");
        let mut reads = self.reads();
        reads.changes += 1;
        reads.list = None;
        result
    }

    /// Reads a part of a node.
    pub(super) async fn part(&self, node: &Node, part: &str, minor: u32) -> Result<Value, BackendError> {
        self.client.get(&path(&node.uuid, part), minor).await
    }

    /// Waits until a power change of a node ended, as long as a call waits for its lock, and
    /// returns the node as it is then.
    pub(super) async fn powered(&self, node: Arc<Node>) -> Result<Arc<Node>, BackendError> {
        let until = self.client.clock.monotonic() + self.client.lock_patience;
        let mut seen = node;
        while seen.target_power_state.is_some() && self.client.clock.monotonic() < until {
            self.client.clock.sleep(Duration::from_millis(500)).await;
            seen = self.read(&seen.uuid).await?;
        }
        Ok(seen)
    }

    /// Waits until the conductor works on a node no more, at most for a while, and returns it as it
    /// is then.
    pub(super) async fn settled(&self, node: &Node, limit: Duration) -> Result<Arc<Node>, BackendError> {
        let until = self.client.clock.monotonic() + limit;
        let mut pause = Duration::from_millis(100);
        loop {
            self.client.clock.sleep(pause).await;
            let seen = self.read(&node.uuid).await?;
            if !seen.is_changing() || self.client.clock.monotonic() >= until {
                return Ok(seen);
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}

/// What a segment of a path may not hold as it is (RFC 3986, section 2.3).
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The path of a node, or of a part of it.
pub(super) fn path(ident: &str, part: &str) -> String {
    format!("/v1/nodes/{}{part}", utf8_percent_encode(ident, SEGMENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_part_of_a_path() {
        assert_eq!(path("metal3~host.1", "/states"), "/v1/nodes/metal3~host.1/states");
        assert_eq!(path("a/../b?c", ""), "/v1/nodes/a%2F..%2Fb%3Fc");
    }
}
