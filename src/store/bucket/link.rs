//! Requests to the bucket. This layer repeats none: only the caller can distinguish a repeated
//! write from a conflict.

use std::sync::Arc;

use futures_util::TryStreamExt as _;
use jiff::Timestamp;
use object_store::{
    Error, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, RetryConfig, UpdateVersion,
    aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut},
    path::Path,
};
use secrecy::ExposeSecret as _;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    connector::Connector,
    fault::{ErrorMapper, cause},
    objects,
    url::{BucketOptions, Parsed},
};
use crate::{
    clock::Clock,
    store::{StoreError, patience::Patience, told::ToldTime},
};

/// An object's version: its `ETag`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version(UpdateVersion);

impl Version {
    /// Returns a text that changes with each new content.
    pub(super) fn text(&self) -> String {
        self.0.e_tag.clone().unwrap_or_default()
    }
}

/// A conditional read's outcome.
#[derive(Debug)]
pub(super) enum ReadResult {
    /// The object has the known version.
    Unchanged,
    Missing,
    Found(Vec<u8>, Version),
}

/// A conditional write's outcome.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WriteResult {
    /// The object was written, with this version.
    Done(Version),
    /// Another process was first, or this process's own write was repeated on the way.
    Moved,
}

/// Access to a bucket.
#[derive(Debug)]
pub(super) struct StoreClient {
    objects: Arc<dyn ObjectStore>,
    place: Parsed,
    time: Arc<ToldTime>,
    pub(super) faults: ErrorMapper,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) patience: Patience,
}

impl StoreClient {
    pub(super) fn new(
        place: Parsed,
        time: Arc<ToldTime>,
        clock: Arc<dyn Clock>,
        options: &BucketOptions,
    ) -> Result<Self, StoreError> {
        let faults = ErrorMapper::new(&place);
        let connector = Connector::new(&place, Arc::clone(&time)).map_err(|error| faults.forbidden(error))?;
        let objects = opened(&place, connector, options).map_err(|error| faults.forbidden(cause(&error)))?;
        let patience = Patience::new(faults.address(), Arc::clone(&clock), options.patience);
        Ok(Self { objects, place, time, faults, clock, patience })
    }

    fn path(&self, name: &str) -> Path {
        Path::from(self.place.path(name))
    }

    /// Reads an object, unless it still has the `known` version.
    pub(super) async fn look(&self, name: &str, known: Option<&Version>) -> Result<ReadResult, StoreError> {
        let if_none_match = known.and_then(|known| known.0.e_tag.clone());
        let options = GetOptions { if_none_match, ..GetOptions::default() };
        let found = match Box::pin(self.objects.get_opts(&self.path(name), options)).await {
            Ok(found) => found,
            Err(Error::NotModified { .. }) => return Ok(ReadResult::Unchanged),
            Err(error @ Error::NotFound { .. }) if is_object(&error) => return Ok(ReadResult::Missing),
            Err(error) => return Err(self.faults.object(&error)),
        };
        let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let bytes = found.bytes().await.map_err(|error| self.faults.object(&error))?;
        Ok(ReadResult::Found(bytes.into(), Version(version)))
    }

    /// Reads and parses an object, or returns `None` if it does not exist.
    pub(super) async fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<(T, Version)>, StoreError> {
        match self.look(name, None).await? {
            ReadResult::Found(bytes, version) => {
                let read = serde_json::from_slice(&bytes);
                Ok(Some((read.map_err(|error| self.faults.record(name, error))?, version)))
            }
            ReadResult::Missing | ReadResult::Unchanged => Ok(None),
        }
    }

    async fn write(
        &self,
        name: &str,
        object: &(impl Serialize + Sync + ?Sized),
        mode: PutMode,
    ) -> Result<WriteResult, StoreError> {
        let body = serde_json::to_vec(object).map_err(|error| self.faults.record(name, error))?;
        let options = PutOptions { mode, ..PutOptions::default() };
        match Box::pin(self.objects.put_opts(&self.path(name), body.into(), options)).await {
            Ok(put) => Ok(WriteResult::Done(Version(UpdateVersion { e_tag: put.e_tag, version: put.version }))),
            // S3 answers 409 if a concurrent write of the object is not finished. The next read
            // shows which write was stored.
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(WriteResult::Moved),
            Err(error) => Err(self.faults.object(&error)),
        }
    }

    /// Creates an object that must not exist.
    pub(super) async fn create(
        &self,
        name: &str,
        object: &(impl Serialize + Sync + ?Sized),
    ) -> Result<WriteResult, StoreError> {
        self.write(name, object, PutMode::Create).await
    }

    /// Replaces an object that must have this version.
    pub(super) async fn replace(
        &self,
        name: &str,
        object: &(impl Serialize + Sync + ?Sized),
        version: &Version,
    ) -> Result<WriteResult, StoreError> {
        self.write(name, object, PutMode::Update(version.0.clone())).await
    }

    /// Writes an object whose only writer is this process, or whose writers write the same.
    pub(super) async fn put(&self, name: &str, object: &(impl Serialize + Sync + ?Sized)) -> Result<(), StoreError> {
        match self.write(name, object, PutMode::Overwrite).await? {
            WriteResult::Done(_) => Ok(()),
            WriteResult::Moved => Err(self.faults.unavailable("another write of the object was not finished")),
        }
    }

    /// Deletes an object that no condition refers to.
    pub(super) async fn delete(&self, name: &str) -> Result<(), StoreError> {
        match self.objects.delete(&self.path(name)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.faults.object(&error)),
        }
    }

    /// Lists a folder's objects in order, after a name.
    pub(super) async fn list(
        &self,
        folder: &str,
        after: Option<&str>,
    ) -> Result<Vec<(String, ObjectMeta)>, StoreError> {
        let prefix = self.path(folder);
        let listed = match after {
            Some(after) => self.objects.list_with_offset(Some(&prefix), &self.path(after)),
            None => self.objects.list(Some(&prefix)),
        };
        let mut found: Vec<ObjectMeta> = listed.try_collect().await.map_err(|error| self.faults.object(&error))?;
        found.sort_by(|one, other| one.location.cmp(&other.location));
        let root = self.path("").as_ref().len();
        let name = |meta: &ObjectMeta| meta.location.as_ref()[root..].trim_start_matches('/').to_owned();
        Ok(found.into_iter().map(|meta| (name(&meta), meta)).collect())
    }

    /// Returns the store's time, from the newest reply if it is recent.
    pub(super) async fn now(&self) -> Result<Timestamp, StoreError> {
        let told = async {
            self.look(objects::STORE, None).await?;
            self.time.carried().ok_or_else(|| self.faults.unavailable("its replies lack a Date header"))
        };
        self.time.now(told).await
    }

    /// Returns true if all times come from one clock, which a test controls.
    pub(super) fn one_clock(&self) -> bool {
        self.time.is_given()
    }
}

/// Returns true if the object is missing, and not its bucket.
fn is_object(error: &Error) -> bool {
    !error.to_string().contains("NoSuchBucket")
}

/// Opens the bucket with the settings and credentials in the environment. A place in it is ignored:
/// only the URL names the store.
fn opened(place: &Parsed, connector: Connector, options: &BucketOptions) -> object_store::Result<Arc<dyn ObjectStore>> {
    let mut builder = AmazonS3Builder::new();
    for (name, value) in &options.variables {
        match name.to_ascii_lowercase().parse() {
            Ok(AmazonS3ConfigKey::Endpoint | AmazonS3ConfigKey::S3Endpoint) | Err(_) => {}
            Ok(key) => builder = builder.with_config(key, value.expose_secret()),
        }
    }
    builder = builder
        .with_bucket_name(&place.bucket)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_disable_bulk_delete(true)
        .with_allow_http(true)
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_http_connector(connector);
    if let Some(region) = &place.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &place.endpoint {
        builder = builder.with_endpoint(endpoint.as_str().trim_end_matches('/'));
    }
    Ok(Arc::new(builder.build()?))
}
