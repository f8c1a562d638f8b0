//! Kinds that are known only when the cluster was asked.

use std::future::Future;

use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject},
};

use super::{Cluster, ClusterError, RequestInfo};

/// What a request is about: one object, or with no name all of them.
#[derive(Clone, Copy, Debug)]
pub struct ResourceRef<'a> {
    /// Their kind.
    pub kind: &'a ApiResource,
    /// Where; `None` for all namespaces, and for what belongs to the whole cluster.
    pub namespace: Option<&'a str>,
    /// Which one, when it is one.
    pub name: Option<&'a str>,
}

impl Cluster {
    /// Makes a request about a kind as [`Cluster::call`] does.
    pub async fn ask<T, F>(
        &self,
        verb: &'static str,
        about: ResourceRef<'_>,
        make: impl Fn(Api<DynamicObject>) -> F + Send,
    ) -> Result<T, ClusterError>
    where
        F: Future<Output = Result<T, kube::Error>> + Send,
        T: Send,
    {
        let ResourceRef { kind, namespace, name } = about;
        let resource = named(kind);
        let request = RequestInfo { verb, resource: &resource, namespace, name };
        self.call(request, move |client| make(objects(client, kind, namespace))).await
    }
}

/// A kind as a role names it.
pub(super) fn named(kind: &ApiResource) -> String {
    if kind.group.is_empty() { kind.plural.clone() } else { format!("{}.{}", kind.plural, kind.group) }
}

fn objects(client: Client, kind: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, kind),
        None => Api::all_with(client, kind),
    }
}
