//! Reads nodes: individually, or with one shared list if many are needed together.

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

/// How long a list serves reads that accept slightly old data.
const FRESH: Duration = Duration::from_secs(1);
/// Individual reads within [`FRESH`] before further reads share a list.
const ONE_BY_ONE: usize = 6;
const PAGE: usize = 500;
const MOST_PAGES: usize = 2000;

/// Settable boot devices by node UUID and management interface, which determines them.
type SettableDevices = BTreeMap<(String, Option<String>), Vec<String>>;

#[derive(Debug)]
pub(super) struct IronicNodes {
    pub(super) client: Client,
    pub(super) lock_keys: BTreeMap<String, String>,
    pub(super) soft_power_timeout: Duration,
    pub(super) image_download_source: String,
    /// See [`IronicSettings::protect`].
    pub(super) protect: bool,
    /// The last boot devices, by node UUID. Reading a device needs the node's lock.
    pub(super) boots: Mutex<BTreeMap<String, Boot>>,
    pub(super) devices: Mutex<SettableDevices>,
    /// Nodes, by UUID, with the disk set as the replacement for no device.
    cleared: Mutex<BTreeSet<String>>,
    /// Recent reads of single nodes.
    pub(super) moment: Moment,
    /// Changes that outlived their calls, by server name.
    pub(super) unsettled: Mutex<BTreeMap<String, Accepted>>,
    /// Known identities, by node UUID. They are cached, because an inventory does not change
    /// without an inspection.
    pub(super) identities: Mutex<BTreeMap<String, HardwareFacts>>,
    /// UUIDs that maintenances recorded, by server name, because nodes can be renamed.
    recorded: Mutex<BTreeMap<String, String>>,
    reads: Mutex<Reads>,
    listing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Reads {
    /// The monotonic times of recent individual reads.
    single: Vec<Duration>,
    /// The last list and its start time.
    list: Option<(Duration, Arc<Vec<Arc<Node>>>)>,
    /// The number of changes. A list from before a change is discarded.
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

    /// Stores the UUID that a maintenance recorded for a server.
    pub(super) fn remember(&self, server: &str, uuid: &str) {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.insert(server.to_owned(), uuid.to_owned());
    }

    fn recorded(&self, server: &str) -> Option<String> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).get(server).cloned()
    }

    /// Returns a node by name or UUID, from a recent read if possible.
    pub(super) async fn node(&self, server: &str) -> Result<Arc<Node>, BackendError> {
        match self.moment.known(server, self.client.clock.monotonic()) {
            Some(node) => Ok(node),
            None => self.node_of(server, false).await,
        }
    }

    /// Returns a node by name or UUID. With `fresh`, it is not older than this call.
    async fn node_of(&self, server: &str, fresh: bool) -> Result<Arc<Node>, BackendError> {
        if fresh || self.goes_alone() {
            return self.read(server).await;
        }
        let list = self.shared_list().await?;
        match list.iter().find(|node| node.is_called(server)) {
            Some(node) => Ok(Arc::clone(node)),
            // Ironic's database can compare names differently, and the node can be newer than the
            // list.
            None => self.read(server).await,
        }
    }

    /// Returns a node for facts other than its flag. Reuses, once, the read that the flag check
    /// performed; a poll reads again.
    pub(super) async fn seen(&self, server: &str, fresh: bool) -> Result<Arc<Node>, BackendError> {
        if let Some(node) = self.moment.take(server, self.client.clock.monotonic()) {
            return Ok(node);
        }
        let node = self.node_of(server, fresh).await?;
        self.moment.take(server, self.client.clock.monotonic());
        Ok(node)
    }

    /// Reads a node. If its name is unknown to Ironic, a recorded UUID is tried, because the node
    /// could have been renamed.
    pub(super) async fn read(&self, server: &str) -> Result<Arc<Node>, BackendError> {
        let begun = self.client.clock.monotonic();
        let node = match (self.ask(server).await, self.recorded(server)) {
            (Err(BackendError::NoServer { .. }), Some(uuid)) => self.ask(&uuid).await?,
            (node, _) => node?,
        };
        self.moment.keep(server, begun, &node);
        Ok(node)
    }

    /// Requests a node. [`BackendError::NoServer`] only if Ironic itself reports it: a proxy's
    /// answer proves nothing about nodes.
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
            address: self.client.address().into(),
            what: format!(
                "this account cannot see a node with the name or UUID {server:?} (see openstack baremetal node list)"
            )
            .into(),
        }
    }

    /// Returns true if reads are rare enough for an individual request.
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

    /// Lists nodes from all pages. `filter` contains further query parameters, each with a leading
    /// `&`.
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
            let page = page.map_err(|error| odd(&format!("the answer contains an invalid node: {error}")))?;
            let ended = page.is_empty() || !body["next"].is_string();
            nodes.extend(page.into_iter().map(Arc::new));
            if ended {
                return Ok(nodes);
            }
        }
        Err(self.client.odd(&Method::GET, &first, "the node list does not end"))
    }

    /// Sends a change to a node and discards older lists.
    pub(super) async fn change(
        &self,
        method: Method,
        node: &Node,
        part: &str,
        minor: u32,
        body: Option<&Value>,
    ) -> Result<Value, BackendError> {
        let result = self.client.change(method, &path(&node.uuid, part), minor, body).await;
        // The maintenance flag does not affect the boot device.
        self.moment.changed(&node.uuid, self.client.clock.monotonic(), part != "/maintenance");
        let mut reads = self.reads();
        reads.changes += 1;
        reads.list = None;
        result
    }

    pub(super) async fn part(&self, node: &Node, part: &str, minor: u32) -> Result<Value, BackendError> {
        self.client.get(&path(&node.uuid, part), minor).await
    }

    /// Waits for a pending power change, up to the limit for node locks, and returns the node.
    pub(super) async fn powered(&self, node: Arc<Node>) -> Result<Arc<Node>, BackendError> {
        let until = self.client.clock.monotonic() + self.client.lock_patience;
        let mut seen = node;
        while seen.target_power_state.is_some() && self.client.clock.monotonic() < until {
            self.client.clock.sleep(Duration::from_millis(500)).await;
            seen = self.read(&seen.uuid).await?;
        }
        Ok(seen)
    }

    /// Waits until the conductor has finished with the node, up to `limit`, and returns the node.
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

/// Characters that a path segment must escape (RFC 3986, section 2.3).
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns a node's path, or a part's path.
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
