//! Redfish access to a Server's BMC, for a server that only we control now.

use std::{collections::BTreeMap, sync::Arc};

use kube::core::DynamicObject;
use serde_json::Value;
use url::Url;

use crate::backend::{
    Backend, BackendError, Machine,
    redfish::{self, MediaSettings, RedfishBackend, ServerSettings},
};

use super::{
    fleet::ClusterObjects,
    objects::{METAL, resource, text},
};

/// Returns a Server's Redfish machine, with the BMC's own credentials.
pub(super) async fn machine(
    fleet: &ClusterObjects,
    server: &DynamicObject,
    name: &str,
) -> Result<(Arc<dyn Machine>, RedfishBackend), BackendError> {
    let (endpoint, secret) = endpoint(fleet, server, name).await?;
    let withheld = |cause| BackendError::Withheld { address: format!("Server {name}").into(), cause };
    fleet.route.check(&endpoint).await.map_err(|refused| withheld(refused.to_string().into()))?;
    let (username, password) = fleet.bmc_credentials(&secret).await?;
    let settings = ServerSettings {
        endpoint,
        system_id: system(server),
        lock_key: None,
        labels: BTreeMap::new(),
        username,
        password,
        media: MediaSettings::default(),
        trust: fleet.trust.clone(),
    };
    let unsupported =
        |what: String| BackendError::Unsupported { address: fleet.cluster.address().into(), what: what.into() };
    let backend = RedfishBackend::of_one(name, settings, &fleet.route, &fleet.clients, &fleet.clock);
    let backend = backend.map_err(unsupported)?;
    Ok((backend.machine(name)?, backend))
}

/// Returns the plan warning for a BMC that receives no credentials, or receives them unencrypted.
/// An unreadable BMC is reported by the apply.
pub(super) async fn in_clear(fleet: &ClusterObjects, server: &DynamicObject, name: &str) -> Option<String> {
    let (endpoint, _) = endpoint(fleet, server, name).await.ok()?;
    match fleet.route.check(&endpoint).await {
        Ok(()) => redfish::in_clear(&endpoint),
        Err(refused) => Some(format!("BMC: {refused}.")),
    }
}

/// Returns the Redfish endpoint of a Server's BMC, and the secret with its account.
async fn endpoint(fleet: &ClusterObjects, server: &DynamicObject, name: &str) -> Result<(Url, String), BackendError> {
    let (address, protocol, secret) = access(fleet, server, name).await?;
    let unsupported =
        |what: String| BackendError::Unsupported { address: fleet.cluster.address().into(), what: what.into() };
    let kind = protocol.pointer("/name").and_then(Value::as_str).unwrap_or_default();
    if !kind.starts_with("Redfish") {
        return Err(unsupported(format!(
            "the BMC of Server {name} uses {kind:?}, which this provider does not support"
        )));
    }
    let scheme = protocol.pointer("/scheme").and_then(Value::as_str).filter(|it| !it.is_empty()).unwrap_or("https");
    let port = protocol.pointer("/port").and_then(Value::as_i64).filter(|port| *port > 0);
    let host = if address.contains(':') && !address.starts_with('[') { format!("[{address}]") } else { address };
    let text_url = match port {
        Some(port) => format!("{scheme}://{host}:{port}"),
        None => format!("{scheme}://{host}"),
    };
    let endpoint = Url::parse(&text_url)
        .map_err(|_| unsupported(format!("the BMC of Server {name} does not have a valid address")))?;
    Ok((endpoint, secret))
}

/// Returns the Server's system behind its BMC; `None` if there is only one.
fn system(server: &DynamicObject) -> Option<String> {
    text(server, "/spec/systemURI").map(str::to_owned)
}

/// Returns address, protocol and secret, from the Server's BMC object or from the Server itself.
async fn access(
    fleet: &ClusterObjects,
    server: &DynamicObject,
    name: &str,
) -> Result<(String, Value, String), BackendError> {
    let missing = |what: String| BackendError::Missing { address: fleet.cluster.address().into(), what: what.into() };
    if let Some(inline) = server.data.pointer("/spec/bmc").filter(|inline| inline.is_object()) {
        let part = |pointer: &str| inline.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let protocol = inline.get("protocol").cloned().unwrap_or_default();
        return Ok((part("/address"), protocol, part("/bmcSecretRef/name")));
    }
    let bmc_name =
        text(server, "/spec/bmcRef/name").ok_or_else(|| missing(format!("Server {name} does not name a BMC")))?;
    let kind = resource(METAL, "BMC");
    let bmc = fleet.now(&kind, None, bmc_name).await?;
    let bmc = bmc.ok_or_else(|| missing(format!("BMC {bmc_name} of Server {name} does not exist")))?;
    let address =
        text(&bmc, "/spec/hostname").or_else(|| text(&bmc, "/spec/access/ip")).or_else(|| text(&bmc, "/status/ip"));
    let address = address.ok_or_else(|| missing(format!("BMC {bmc_name} does not have an address")))?.to_owned();
    let secret = text(&bmc, "/spec/bmcSecretRef/name").unwrap_or_default().to_owned();
    Ok((address, bmc.data.pointer("/spec/protocol").cloned().unwrap_or_default(), secret))
}
