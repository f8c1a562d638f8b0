//! Requests for kinds that are discovered at run time.

use std::future::Future;

use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject},
};

use super::{Cluster, ClusterError, RequestInfo};

/// A request's subject: an object or, without a name, all objects.
#[derive(Clone, Copy, Debug)]
pub struct ResourceRef<'a> {
    /// The kind.
    pub kind: &'a ApiResource,
    /// The namespace; `None` for all namespaces, and for cluster-scoped kinds.
    pub namespace: Option<&'a str>,
    /// The object's name, if it is a single object.
    pub name: Option<&'a str>,
}

impl Cluster {
    /// Sends a request for a kind, like [`Cluster::call`].
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

/// Returns the kind's name as roles contain it.
pub(super) fn named(kind: &ApiResource) -> String {
    if kind.group.is_empty() { kind.plural.clone() } else { format!("{}.{}", kind.plural, kind.group) }
}

fn objects(client: Client, kind: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, kind),
        None => Api::all_with(client, kind),
    }
}
