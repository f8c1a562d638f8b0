//! The API calls that controllers and tests need, on untyped objects.

use kube::{
    Client, ResourceExt as _,
    api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    discovery::ApiResource,
    runtime::reflector::ObjectRef,
};
use serde_json::{Value, json};

use super::family::{MAINTENANCE, METAL};

pub type Object = DynamicObject;

/// Kinds that the controllers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Server,
    Claim,
    Boot,
    Bmc,
    BmcSecret,
    /// `ServerMaintenance` of the old group.
    Legacy,
    /// `ServerMaintenance` of the maintenance operator.
    Maintenance,
    Secret,
    Event,
    Namespace,
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version,
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// Resource of custom resource definitions.
pub fn definition() -> ApiResource {
    resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
}

impl Kind {
    pub fn resource(self) -> ApiResource {
        match self {
            Self::Server => resource(METAL, "v1alpha1", "Server", "servers"),
            Self::Claim => resource(METAL, "v1alpha1", "ServerClaim", "serverclaims"),
            Self::Boot => resource(METAL, "v1alpha1", "ServerBootConfiguration", "serverbootconfigurations"),
            Self::Bmc => resource(METAL, "v1alpha1", "BMC", "bmcs"),
            Self::BmcSecret => resource(METAL, "v1alpha1", "BMCSecret", "bmcsecrets"),
            Self::Legacy => resource(METAL, "v1alpha1", "ServerMaintenance", "servermaintenances"),
            Self::Maintenance => resource(MAINTENANCE, "v1alpha1", "ServerMaintenance", "servermaintenances"),
            Self::Secret => resource("", "v1", "Secret", "secrets"),
            Self::Event => resource("events.k8s.io", "v1", "Event", "events"),
            Self::Namespace => resource("", "v1", "Namespace", "namespaces"),
        }
    }

    /// Returns the `ServerMaintenance` kind of a group.
    pub fn maintenance(group: &str) -> Self {
        if group == METAL { Self::Legacy } else { Self::Maintenance }
    }
}

/// Identity of an object within a kind, without a namespace if the object is cluster-scoped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: Option<String>,
    pub name: String,
}

impl Key {
    pub fn cluster(name: &str) -> Self {
        Self { namespace: None, name: name.to_owned() }
    }

    pub fn within(namespace: &str, name: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), name: name.to_owned() }
    }

    pub fn of(object: &Object) -> Self {
        Self { namespace: object.namespace(), name: object.name_any() }
    }

    /// Returns the key from a reference inside an object.
    pub fn referred(object: &Object, pointer: &str) -> Option<Self> {
        let reference = object.data.pointer(pointer).filter(|reference| !reference.is_null())?;
        let name = reference["name"].as_str()?.to_owned();
        Some(Self { namespace: reference["namespace"].as_str().map(str::to_owned), name })
    }

    pub fn reference(&self, kind: Kind) -> ObjectRef<Object> {
        let reference = ObjectRef::new_with(&self.name, kind.resource());
        match &self.namespace {
            Some(namespace) => reference.within(namespace),
            None => reference,
        }
    }
}

/// Returns a text inside an object, empty if missing.
pub fn text<'a>(object: &'a Object, pointer: &str) -> &'a str {
    object.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// An API server.
#[derive(Clone)]
pub struct Cluster {
    pub client: Client,
}

/// Returns true if a concurrent write won.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

fn is_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

impl Cluster {
    pub fn all(&self, kind: Kind) -> Api<Object> {
        Api::all_with(self.client.clone(), &kind.resource())
    }

    fn at(&self, kind: Kind, key: &Key) -> Api<Object> {
        match &key.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind.resource()),
            None => self.all(kind),
        }
    }

    pub async fn get(&self, kind: Kind, key: &Key) -> Result<Option<Object>, kube::Error> {
        self.at(kind, key).get_opt(&key.name).await
    }

    pub async fn list(&self, kind: Kind) -> Result<Vec<Object>, kube::Error> {
        Ok(self.all(kind).list(&ListParams::default()).await?.items)
    }

    /// Merges a change into an object; null removes.
    pub async fn merge(&self, kind: Kind, key: &Key, change: Value) -> Result<Object, kube::Error> {
        self.at(kind, key).patch(&key.name, &PatchParams::default(), &Patch::Merge(change)).await
    }

    pub async fn merge_status(&self, kind: Kind, key: &Key, status: Value) -> Result<Object, kube::Error> {
        let change = json!({"status": status});
        self.at(kind, key).patch_status(&key.name, &PatchParams::default(), &Patch::Merge(change)).await
    }

    /// Replaces an object, unless it changed since the read.
    pub async fn update(&self, kind: Kind, object: &Object) -> Result<Object, kube::Error> {
        let key = Key::of(object);
        self.at(kind, &key).replace(&key.name, &PostParams::default(), object).await
    }

    pub async fn create(&self, kind: Kind, object: Value) -> Result<Object, kube::Error> {
        let resource = kind.resource();
        let mut object = object;
        object["apiVersion"] = resource.api_version.into();
        object["kind"] = resource.kind.into();
        let object: Object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
        self.at(kind, &Key::of(&object)).create(&PostParams::default(), &object).await
    }

    /// Deletes an object; a missing object is fine.
    pub async fn delete(&self, kind: Kind, key: &Key) -> Result<(), kube::Error> {
        match self.at(kind, key).delete(&key.name, &DeleteParams::default()).await {
            Err(error) if !is_missing(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Adds or removes a finalizer. Returns true if that was needed.
    pub async fn finalizer(&self, kind: Kind, object: &Object, name: &str, wanted: bool) -> Result<bool, kube::Error> {
        let mut all = object.finalizers().to_vec();
        if all.iter().any(|one| one == name) == wanted {
            return Ok(false);
        }
        if wanted {
            all.push(name.to_owned());
        } else {
            all.retain(|one| one != name);
        }
        let metadata = json!({"finalizers": all, "resourceVersion": object.resource_version()});
        match self.merge(kind, &Key::of(object), json!({"metadata": metadata})).await {
            Err(error) if !wanted && is_missing(&error) => Ok(true),
            done => done.map(|_| true),
        }
    }
}
