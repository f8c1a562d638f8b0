//! Helpers with which backends read and change Kubernetes objects.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace, Secret},
};
use kube::{
    api::{ListParams, Patch, PatchParams},
    core::{ApiResource, DynamicObject},
};
use secrecy::SecretString;
use serde_json::{Value, json};

use crate::{
    kubernetes::{Cluster, ClusterError, FieldProblem, ResourceRef},
    maintenance::gate::ExternalRequest,
    shown::OneLine,
};

use super::{BackendError, before_change};

/// The field manager of every change, and the prefix of our annotations.
pub(super) const MANAGER: &str = "terraform-provider-metal";
/// Our annotation with the maintenance's incarnation.
pub(super) const OUR_UID: &str = "terraform-provider-metal/uid";
/// Our annotation with the maintenance, as `namespace/name`.
pub(super) const OUR_ID: &str = "terraform-provider-metal/maintenance";
/// Our annotation with the provider's `owner`.
pub(super) const OUR_OWNER: &str = "terraform-provider-metal/owner";
/// Our annotation with the requesting run, host and person.
pub(super) const OUR_RUN: &str = "terraform-provider-metal/run";
/// Our annotation with the ticket.
pub(super) const OUR_TICKET: &str = "terraform-provider-metal/ticket";
/// Our annotation with the coordination store that has the record.
pub(super) const OUR_STORE: &str = "terraform-provider-metal/store";

/// All of our annotations.
pub(super) const MARKS: [&str; 6] = [OUR_UID, OUR_ID, OUR_OWNER, OUR_RUN, OUR_TICKET, OUR_STORE];

/// The namespace where kubelets renew their Nodes' Leases.
const HEARTBEATS: &str = "kube-node-lease";

/// Returns the annotations that identify an external request's maintenance, without its reason.
pub(super) fn marks(wish: &ExternalRequest) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([
        (OUR_UID.to_owned(), wish.uid.clone()),
        (OUR_ID.to_owned(), wish.id.clone()),
        (OUR_OWNER.to_owned(), wish.owner.clone().into_raw()),
        (OUR_RUN.to_owned(), wish.run.clone().into_raw()),
        (OUR_STORE.to_owned(), wish.store.clone()),
    ]);
    if let Some(ticket) = &wish.ticket {
        all.insert(OUR_TICKET.to_owned(), ticket.clone().into_raw());
    }
    all
}

/// Returns the text at a JSON pointer; `None` if it is absent or empty.
pub(super) fn text<'a>(object: &'a DynamicObject, pointer: &str) -> Option<&'a str> {
    object.data.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
}

pub(super) fn annotation<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

pub(super) fn name(object: &DynamicObject) -> &str {
    object.metadata.name.as_deref().unwrap_or_default()
}

/// Reads an object; `None` if it does not exist.
pub(super) async fn now(
    cluster: &Cluster,
    kind: &ApiResource,
    namespace: Option<&str>,
    name: &str,
) -> Result<Option<DynamicObject>, ClusterError> {
    let about = ResourceRef { kind, namespace, name: Some(name) };
    cluster
        .ask("get", about, |api| async move { api.get(name).await.map(Some).or_else(|error| absent(error, name)) })
        .await
}

/// Converts a 404 that names the object into `None`. Any other 404 concerns the kind or the
/// namespace.
fn absent(error: kube::Error, name: &str) -> Result<Option<DynamicObject>, kube::Error> {
    match error {
        kube::Error::Api(status)
            if status.code == 404 && status.details.as_ref().is_some_and(|details| details.name == name) =>
        {
            Ok(None)
        }
        error => Err(error),
    }
}

/// Converts a 404 for a whole kind. It does not prove that the object is absent.
pub(super) fn unserved(problem: ClusterError) -> Result<BackendError, ClusterError> {
    match problem {
        ClusterError::NotFound { address, request } => Ok(BackendError::Rejected {
            address,
            request,
            status: 404,
            message: "the API server does not serve this kind now".into(),
            retry_after: None,
            transient: true,
        }),
        problem => Err(problem),
    }
}

/// Lists all objects of a kind, in one namespace or in all.
pub(super) async fn list(
    cluster: &Cluster,
    kind: &ApiResource,
    namespace: Option<&str>,
) -> Result<Vec<DynamicObject>, ClusterError> {
    list_of(cluster, kind, namespace, &ListParams::default()).await
}

/// Lists the objects that a selector matches.
pub(super) async fn list_of(
    cluster: &Cluster,
    kind: &ApiResource,
    namespace: Option<&str>,
    selected: &ListParams,
) -> Result<Vec<DynamicObject>, ClusterError> {
    let about = ResourceRef { kind, namespace, name: None };
    let listed = cluster.ask("list", about, |all| async move { all.list(selected).await });
    Ok(listed.await?.items)
}

/// Patches an object if it has not changed since it was read, and returns the result. A change or a
/// deletion since then is a transient error. `meaning` converts the others into machine errors.
pub(super) async fn patched(
    cluster: &Cluster,
    kind: &ApiResource,
    read: &DynamicObject,
    mut change: Value,
    meaning: impl FnOnce(ClusterError) -> BackendError,
) -> Result<DynamicObject, BackendError> {
    let (namespace, name) = (read.metadata.namespace.as_deref(), name(read));
    if let Some(metadata) = change.as_object_mut().map(|it| it.entry("metadata").or_insert_with(|| json!({}))) {
        metadata["resourceVersion"] = json!(read.metadata.resource_version);
        metadata["uid"] = json!(read.metadata.uid);
    }
    let params = &PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let change = &Patch::Merge(change);
    before_change(&format!("patch {} {name}", kind.kind)).await?;
    let patched = cluster.ask("patch", ResourceRef { kind, namespace, name: Some(name) }, |api| async move {
        api.patch(name, params, change).await
    });
    patched.await.map_err(|problem| match problem {
        // Its next look decides, as after any other change by someone else.
        ClusterError::NotFound { address, request } => not_now(address, request, "it was deleted since it was read"),
        problem => meaning(problem),
    })
}

/// Returns the UID of the namespace `kube-system`, which identifies the cluster; `None` without
/// permission to read it. `meaning` converts cluster errors into machine errors.
pub(super) async fn uid(
    cluster: &Cluster,
    meaning: impl FnOnce(ClusterError) -> BackendError,
) -> Result<Option<String>, BackendError> {
    let kind = ApiResource::erase::<Namespace>(&());
    match now(cluster, &kind, None, "kube-system").await.map_err(meaning) {
        Ok(namespace) => Ok(namespace.and_then(|namespace| namespace.metadata.uid)),
        Err(BackendError::Denied { message }) => {
            tracing::debug!("the cluster's UID cannot be read: {message}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns true if a Node's conditions report it as Ready.
pub(super) fn node_is_ready(node: &DynamicObject) -> bool {
    let conditions = node.data.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Returns when a Node's kubelet last renewed its Lease; `None` without a Lease or without
/// permission to read it. `meaning` converts cluster errors into machine errors.
///
/// # Errors
/// The API server does not answer. Its view of the Node could then predate a restart.
pub(super) async fn node_heard(
    cluster: &Cluster,
    node: &str,
    meaning: impl FnOnce(ClusterError) -> BackendError,
) -> Result<Option<Timestamp>, BackendError> {
    let kind = ApiResource::erase::<Lease>(&());
    match now(cluster, &kind, Some(HEARTBEATS), node).await {
        Ok(lease) => Ok(lease.and_then(|lease| text(&lease, "/spec/renewTime")?.parse().ok())),
        Err(ClusterError::Forbidden { .. }) => Ok(None),
        Err(problem) => Err(meaning(problem)),
    }
}

/// Extracts a BMC's user name and password from a Secret, or from an object with the same `data`
/// encoding. `shown` names the object in errors.
pub(super) fn credentials(
    found: Option<&DynamicObject>,
    address: &str,
    shown: &str,
) -> Result<(String, SecretString), BackendError> {
    let missing =
        |what: &str| BackendError::Missing { address: address.into(), what: format!("{shown} {what}").into() };
    let found = found.ok_or_else(|| missing("does not exist"))?;
    let encoded = json!({ "data": found.data.get("data").cloned().unwrap_or_default() });
    let decoded: Secret = serde_json::from_value(encoded).map_err(|_| missing("contains data that is not base64"))?;
    let data = decoded.data.unwrap_or_default();
    let part = |key: &str| {
        let bytes = data.get(key).ok_or_else(|| missing(&format!("has no {key}")))?;
        String::from_utf8(bytes.0.clone()).map_err(|_| missing(&format!("has a {key} that is not UTF-8")))
    };
    Ok((part("username")?, SecretString::from(part("password")?)))
}

/// Returns the error for a change that another activity on the object currently prevents.
pub(super) fn not_now(
    address: impl Into<OneLine>,
    request: impl Into<OneLine>,
    message: impl Into<OneLine>,
) -> BackendError {
    BackendError::Rejected {
        address: address.into(),
        request: request.into(),
        status: 409,
        message: message.into(),
        retry_after: None,
        transient: true,
    }
}

/// Converts a cluster error into a machine error. `attribute` maps a rejected field to the
/// maintenance attribute that it came from.
pub(super) fn error(problem: ClusterError, attribute: impl Fn(&FieldProblem) -> Option<&'static str>) -> BackendError {
    let message = problem.to_string();
    match problem {
        ClusterError::Unreachable { address, cause } => BackendError::ClusterAway { address, cause },
        ClusterError::ReplyLost { address, request, cause } => BackendError::ReplyLost { address, request, cause },
        ClusterError::Forbidden { .. } | ClusterError::Denied { .. } | ClusterError::Unauthorized { .. } => {
            BackendError::Denied { message: message.into() }
        }
        ClusterError::Invalid { address, request, message, fields } => {
            let attribute = fields.iter().find_map(attribute);
            let said: Vec<String> = fields.iter().map(FieldProblem::to_string).collect();
            let message = if said.is_empty() { message } else { said.join("; ").into() };
            BackendError::Invalid { address, request, message, attribute }
        }
        ClusterError::Conflict { address, request, message } => not_now(address, request, message),
        ClusterError::Busy { address, request, message, retry_after } => {
            BackendError::Rejected { address, request, status: 429, message, retry_after, transient: true }
        }
        ClusterError::Expired { address, request, message } => {
            BackendError::Rejected { address, request, status: 410, message, retry_after: None, transient: true }
        }
        ClusterError::Rejected { address, request, code, message } => {
            let transient = code >= 500;
            BackendError::Rejected { address, request, status: code, message, retry_after: None, transient }
        }
        ClusterError::AlreadyExists { address, request } => not_now(address, request, "it already exists"),
        ClusterError::NotFound { address, request } => {
            BackendError::Missing { address, what: format!("{request}: not found").into() }
        }
        ClusterError::Configuration { address, cause } => {
            BackendError::Unsupported { address, what: cause.to_string().into() }
        }
        ClusterError::Protocol { address, request, what } => {
            BackendError::Protocol { address, what: format!("{request}: {what}").into() }
        }
    }
}
