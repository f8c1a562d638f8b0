//! API server requests.

use std::{future::Future, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    core::{ObjectMeta, PartialObjectMeta},
};
use serde_json::Value;

use super::{fault::ErrorMapper, objects::MANAGER};
use crate::{
    clock::Clock,
    kubernetes::{Cluster, ClusterError, RequestInfo},
    store::{StoreError, patience::Patience},
};

/// Resource names as used in roles.
const CONFIG_MAPS: &str = "configmaps";
const LEASES: &str = "leases.coordination.k8s.io";

/// Objects per page.
const PAGE: u32 = 250;

/// A conditional write's outcome.
#[derive(Debug)]
pub(super) enum WriteResult {
    /// The object was written.
    Done(Box<ConfigMap>),
    /// Another process was first: the object changed, already exists, or was deleted.
    Moved,
}

/// Access to a cluster.
#[derive(Debug)]
pub(super) struct StoreClient {
    pub(super) cluster: Cluster,
    pub(super) namespace: String,
    pub(super) faults: ErrorMapper,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) patience: Patience,
}

/// Returns an object's revision: its number in the cluster's store, which grows with every change.
/// Revisions are comparable by contract since Kubernetes 1.35, and in practice wherever etcd is
/// used: <https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>.
pub(super) fn revision(metadata: &ObjectMeta, faults: &ErrorMapper) -> Result<i64, StoreError> {
    let text = metadata.resource_version.as_deref().unwrap_or_default();
    text.parse().map_err(|_| faults.unreadable(format!("the resourceVersion {text:?} is not a number")))
}

impl StoreClient {
    pub(super) fn new(
        cluster: Cluster,
        namespace: String,
        faults: ErrorMapper,
        clock: Arc<dyn Clock>,
        limit: Duration,
    ) -> Self {
        let patience = Patience::new(faults.address(), Arc::clone(&clock), limit);
        Self { cluster, namespace, faults, clock, patience }
    }

    pub(super) fn request<'a>(
        &'a self,
        verb: &'static str,
        resource: &'a str,
        name: Option<&'a str>,
    ) -> RequestInfo<'a> {
        RequestInfo { verb, resource, namespace: Some(&self.namespace), name }
    }

    /// Sends a request about ConfigMaps. Boxed, because the client's own futures are large.
    pub(super) async fn maps<T: Send, F: Future<Output = Result<T, kube::Error>> + Send>(
        &self,
        verb: &'static str,
        name: Option<&str>,
        make: impl Fn(Api<ConfigMap>) -> F + Send,
    ) -> Result<T, ClusterError> {
        let make = move |client: Client| make(Api::namespaced(client, &self.namespace));
        Box::pin(self.cluster.call(self.request(verb, CONFIG_MAPS, name), make)).await
    }

    async fn leases<T: Send, F: Future<Output = Result<T, kube::Error>> + Send>(
        &self,
        verb: &'static str,
        name: Option<&str>,
        make: impl Fn(Api<Lease>) -> F + Send,
    ) -> Result<T, ClusterError> {
        let make = move |client: Client| make(Api::namespaced(client, &self.namespace));
        Box::pin(self.cluster.call(self.request(verb, LEASES, name), make)).await
    }

    fn fault(&self, error: &ClusterError) -> StoreError {
        self.faults.cluster(error)
    }

    /// Reads an object, or returns `None` if it does not exist.
    pub(super) async fn get(&self, name: &str) -> Result<Option<ConfigMap>, StoreError> {
        let found = self.maps("get", Some(name), |all| async move { all.get(name).await }).await;
        match found {
            Ok(found) => Ok(Some(found)),
            Err(ClusterError::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.fault(&error)),
        }
    }

    /// Reads the object without its contents.
    pub(super) async fn get_metadata(&self, name: &str) -> Result<Option<ObjectMeta>, StoreError> {
        let found = self.maps("get", Some(name), |all| async move { all.get_metadata(name).await }).await;
        match found {
            Ok(found) => Ok(Some(found.metadata)),
            Err(ClusterError::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.fault(&error)),
        }
    }

    /// Creates an object that must not exist.
    pub(super) async fn create(&self, name: &str, object: Value) -> Result<WriteResult, StoreError> {
        let object: ConfigMap = serde_json::from_value(object).map_err(|error| self.faults.record(name, error))?;
        let how = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let (object, how) = (&object, &how);
        match self.maps("create", Some(name), |all| async move { all.create(how, object).await }).await {
            Ok(made) => Ok(WriteResult::Done(Box::new(made))),
            Err(ClusterError::AlreadyExists { .. }) => Ok(WriteResult::Moved),
            Err(error) => Err(self.fault(&error)),
        }
    }

    /// Applies a merge patch (RFC 7396). If it contains a resourceVersion, that is the condition.
    pub(super) async fn patch(&self, name: &str, patch: &Value) -> Result<WriteResult, StoreError> {
        let how = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let how = &how;
        let change = |all: Api<ConfigMap>| async move { all.patch(name, how, &Patch::Merge(patch)).await };
        match self.maps("patch", Some(name), change).await {
            Ok(written) => Ok(WriteResult::Done(Box::new(written))),
            Err(ClusterError::Conflict { .. } | ClusterError::NotFound { .. }) => Ok(WriteResult::Moved),
            Err(error) => Err(self.fault(&error)),
        }
    }

    /// Deletes an object if it is unchanged. Returns false if it changed.
    pub(super) async fn delete(&self, name: &str, resource_version: Option<String>) -> Result<bool, StoreError> {
        let preconditions =
            resource_version.map(|version| Preconditions { resource_version: Some(version), uid: None });
        let how = &DeleteParams { preconditions, ..DeleteParams::default() };
        match self.maps("delete", Some(name), |all| async move { all.delete(name, how).await }).await {
            Ok(_) => Ok(true),
            Err(ClusterError::Conflict { .. } | ClusterError::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.fault(&error)),
        }
    }

    /// Lists a selector's objects at one revision, page by page.
    pub(super) async fn list(&self, selector: &str) -> Result<Vec<ConfigMap>, StoreError> {
        let mut found = Vec::new();
        let mut page = ListParams::default().labels(selector).limit(PAGE);
        loop {
            let asked = &page;
            let answer = self.maps("list", None, |all| async move { all.list(asked).await }).await;
            let answer = answer.map_err(|error| self.fault(&error))?;
            found.extend(answer.items);
            match answer.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => page = page.continue_token(&next),
                None => return Ok(found),
            }
        }
    }

    /// Lists the objects without their contents.
    pub(super) async fn list_metadata(&self, selector: &str) -> Result<Vec<ObjectMeta>, StoreError> {
        let mut found = Vec::new();
        let mut page = ListParams::default().labels(selector).limit(PAGE * 2);
        loop {
            let asked = &page;
            let answer = self.maps("list", None, |all| async move { all.list_metadata(asked).await }).await;
            let answer = answer.map_err(|error| self.fault(&error))?;
            found.extend(answer.items.into_iter().map(|object: PartialObjectMeta<ConfigMap>| object.metadata));
            match answer.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => page = page.continue_token(&next),
                None => return Ok(found),
            }
        }
    }

    /// Reads a process's Lease.
    pub(super) async fn lease(&self, name: &str) -> Result<Option<Lease>, StoreError> {
        match self.leases("get", Some(name), |all| async move { all.get(name).await }).await {
            Ok(found) => Ok(Some(found)),
            Err(ClusterError::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.fault(&error)),
        }
    }

    pub(super) async fn all_leases(&self, selector: &str) -> Result<Vec<Lease>, StoreError> {
        let asked = &ListParams::default().labels(selector);
        let found = self.leases("list", None, |all| async move { all.list(asked).await }).await;
        Ok(found.map_err(|error| self.fault(&error))?.items)
    }

    /// Creates or updates a Lease. Idempotent, so it can be repeated.
    pub(super) async fn apply_lease(&self, name: &str, lease: &Value) -> Result<(), StoreError> {
        let how = &PatchParams::apply(MANAGER).force();
        let apply = |all: Api<Lease>| async move { all.patch(name, how, &Patch::Apply(lease)).await };
        self.leases("patch", Some(name), apply).await.map(drop).map_err(|error| self.fault(&error))
    }

    /// Creates a Lease, or replaces it at a resourceVersion. Returns false if another process was
    /// first.
    pub(super) async fn claim_lease(&self, name: &str, lease: &Value, seen: Option<&str>) -> Result<bool, StoreError> {
        let Some(version) = seen else {
            let object: Lease =
                serde_json::from_value(lease.clone()).map_err(|error| self.faults.record(name, error))?;
            let how = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
            let (object, how) = (&object, &how);
            return match self.leases("create", Some(name), |all| async move { all.create(how, object).await }).await {
                Ok(_) => Ok(true),
                Err(ClusterError::AlreadyExists { .. }) => Ok(false),
                Err(error) => Err(self.fault(&error)),
            };
        };
        let mut patch = lease.clone();
        patch["metadata"]["resourceVersion"] = version.into();
        let how = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let (how, patch) = (&how, &patch);
        let change = |all: Api<Lease>| async move { all.patch(name, how, &Patch::Merge(patch)).await };
        match self.leases("patch", Some(name), change).await {
            Ok(_) => Ok(true),
            Err(ClusterError::Conflict { .. } | ClusterError::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.fault(&error)),
        }
    }

    pub(super) async fn delete_lease(&self, name: &str, resource_version: Option<String>) -> Result<(), StoreError> {
        let preconditions =
            resource_version.map(|version| Preconditions { resource_version: Some(version), uid: None });
        let how = &DeleteParams { preconditions, ..DeleteParams::default() };
        match self.leases("delete", Some(name), |all| async move { all.delete(name, how).await }).await {
            Ok(_) | Err(ClusterError::Conflict { .. } | ClusterError::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.fault(&error)),
        }
    }

    /// Returns an API server's time.
    pub(super) async fn time(&self) -> Result<Timestamp, StoreError> {
        self.cluster.time().await.map_err(|error| self.fault(&error))
    }
}
