//! A common trait for resources of any state type.
//!
//! Methods return `None` without a result from the provider; `service` then answers the host.
use std::{any::type_name, sync::OnceLock};

use async_trait::async_trait;
use prost::bytes::Bytes;
use tf_provider::{AttributePath, Diagnostics, Resource};

use super::{
    codec::{self, Received},
    diagnostics::{diagnostic, ensure_error, internal_error, known, path_to_wire},
    extension::{IdentitySchema, ResourceExt},
    moves::MovedState,
    present::Present,
    proto::tfplugin6 as wire,
    schema,
    shape::Shape,
};

/// A resource of any type, created by [`resource`]. Only this module implements it.
pub trait AnyResource: Erased {}

/// Wraps a resource for serving.
pub fn resource<R: ResourceExt + 'static>(resource: R) -> Box<dyn AnyResource> {
    Box::new(Adapter { inner: resource, described: OnceLock::new() })
}

/// A schema in all required forms.
#[derive(Debug)]
pub struct Described {
    pub(super) wire: wire::Schema,
    pub(super) shape: Shape,
}

impl Described {
    /// Converts the result of a `schema` method, or returns its errors.
    pub(super) fn new(
        produce: impl FnOnce(&mut Diagnostics) -> Option<tf_provider::schema::Schema>,
        write_only: &[&str],
        of: &str,
    ) -> Result<Self, Diagnostics> {
        let mut diags = Diagnostics::default();
        match produce(&mut diags) {
            Some(found) if diags.errors.is_empty() => {
                Ok(Self { wire: schema::to_wire(&found, write_only), shape: Shape::of_block(&found.block) })
            }
            _ => {
                super::diagnostics::ensure_error(&mut diags, || {
                    super::diagnostics::internal_error("GetProviderSchema", of, "The schema is missing.")
                });
                Err(diags)
            }
        }
    }
}

/// Result of a request about a resource.
#[derive(Debug)]
pub struct ResourceState {
    pub(super) state: wire::DynamicValue,
    pub(super) private: Bytes,
    pub(super) identity: Option<wire::ResourceIdentityData>,
}

/// Planned state of a resource.
#[derive(Debug)]
pub struct Planned {
    pub(super) state: wire::DynamicValue,
    pub(super) private: Bytes,
    pub(super) requires_replace: Vec<wire::AttributePath>,
    pub(super) identity: Option<wire::ResourceIdentityData>,
}

/// The object-safe interface of a resource.
#[async_trait]
pub trait Erased: Send + Sync {
    fn described(&self) -> Result<&Described, Diagnostics>;
    fn identity_schema(&self) -> Option<IdentitySchema>;
    async fn validate(&self, diags: &mut Diagnostics, request: &wire::validate_resource_config::Request) -> Option<()>;
    async fn read(&self, diags: &mut Diagnostics, request: &wire::read_resource::Request) -> Option<ResourceState>;
    async fn plan(&self, diags: &mut Diagnostics, request: &wire::plan_resource_change::Request) -> Option<Planned>;
    async fn apply(
        &self,
        diags: &mut Diagnostics,
        request: &wire::apply_resource_change::Request,
    ) -> Option<ResourceState>;
    async fn import(
        &self,
        diags: &mut Diagnostics,
        request: &wire::import_resource_state::Request,
    ) -> Option<ResourceState>;
    async fn upgrade(
        &self,
        diags: &mut Diagnostics,
        version: i64,
        state: &wire::RawState,
    ) -> Option<wire::DynamicValue>;
    async fn move_state(
        &self,
        diags: &mut Diagnostics,
        request: &wire::move_resource_state::Request,
    ) -> Option<ResourceState>;
}

struct Adapter<R> {
    inner: R,
    described: OnceLock<Result<Described, Diagnostics>>,
}

impl<R: ResourceExt + 'static> AnyResource for Adapter<R> {}

impl<R: ResourceExt + 'static> Adapter<R> {
    fn shape(&self, diags: &mut Diagnostics) -> Option<&Shape> {
        Some(&known(diags, self.described())?.shape)
    }

    /// Returns an existing resource's private state, see [`ResourceExt::recover`].
    async fn recover<'a>(
        &self,
        diags: &mut Diagnostics,
        state: &'a Received<'_>,
        private: &'a Received<'_>,
    ) -> Option<R::PrivateState<'a>> {
        let (state, private) = (state.decode(diags)?, private.decode(diags)?);
        Some(ResourceExt::recover(&self.inner, state, private).await)
    }

    /// Like `recover`, but for a plan, which follows a refresh: keeps private state that the host
    /// sent.
    async fn complete<'a>(
        &self,
        diags: &mut Diagnostics,
        state: &'a Received<'_>,
        private: &'a Received<'_>,
    ) -> Option<R::PrivateState<'a>> {
        if private.is_null() { self.recover(diags, state, private).await } else { private.decode(diags) }
    }

    /// Returns a state's identity in wire form; the outer `None` follows an error.
    #[allow(clippy::option_option, reason = "no identity is not the same as one that cannot be encoded")]
    fn identity_of(&self, diags: &mut Diagnostics, state: &R::State<'_>) -> Option<Option<wire::ResourceIdentityData>> {
        match ResourceExt::identity(&self.inner, state) {
            Some(identity) => {
                let identity_data = Some(codec::send(diags, &identity)?);
                Some(Some(wire::ResourceIdentityData { identity_data }))
            }
            None => Some(None),
        }
    }

    fn outcome(
        &self,
        diags: &mut Diagnostics,
        state: &R::State<'_>,
        private: &R::PrivateState<'_>,
    ) -> Option<ResourceState> {
        let identity = self.identity_of(diags, state)?;
        Some(ResourceState { state: codec::send(diags, state)?, private: codec::keep(diags, private)?, identity })
    }

    async fn plan_destroy(
        &self,
        diags: &mut Diagnostics,
        request: &wire::plan_resource_change::Request,
    ) -> Option<Planned> {
        let shape = self.shape(diags)?;
        let prior = Received::new(request.prior_state.as_ref(), shape, "prior state");
        let private = Received::own(&request.prior_private, "private state");
        let meta = Received::meta(request.provider_meta.as_ref());
        let private = self.complete(diags, &prior, &private).await?;
        let (prior, meta) = (prior.decode(diags)?, meta.decode(diags)?);
        let private = Resource::plan_destroy(&self.inner, diags, prior, private, meta).await?;
        Some(Planned {
            state: codec::null(),
            private: codec::keep(diags, &private)?,
            requires_replace: Vec::new(),
            identity: request.prior_identity.clone(),
        })
    }

    async fn plan_create(
        &self,
        diags: &mut Diagnostics,
        request: &wire::plan_resource_change::Request,
    ) -> Option<Planned> {
        let shape = self.shape(diags)?;
        let proposed = Received::new(request.proposed_new_state.as_ref(), shape, "proposed state");
        let config = Received::new(request.config.as_ref(), shape, "configuration");
        let meta = Received::meta(request.provider_meta.as_ref());
        let (proposed, config, meta) = (proposed.decode(diags)?, config.decode(diags)?, meta.decode(diags)?);
        let (state, private) = Resource::plan_create(&self.inner, diags, proposed, config, meta).await?;
        let mut private = codec::keep(diags, &private)?;
        if private.is_empty() {
            // A replacement is planned as a creation, including for tainted resources and
            // `-replace`. The host passes the planned private state to the old resource's destroy,
            // which needs its record.
            private = request.prior_private.clone();
        }
        // A new identity, because a replacement can have another name.
        let identity = self.identity_of(diags, &state)?;
        Some(Planned { state: codec::send(diags, &state)?, private, requires_replace: Vec::new(), identity })
    }

    async fn plan_update(
        &self,
        diags: &mut Diagnostics,
        request: &wire::plan_resource_change::Request,
    ) -> Option<Planned> {
        let shape = self.shape(diags)?;
        let prior = Received::new(request.prior_state.as_ref(), shape, "prior state");
        let proposed = Received::new(request.proposed_new_state.as_ref(), shape, "proposed state");
        let config = Received::new(request.config.as_ref(), shape, "configuration");
        let private = Received::own(&request.prior_private, "private state");
        let meta = Received::meta(request.provider_meta.as_ref());
        let (private, meta) = (self.complete(diags, &prior, &private).await?, meta.decode(diags)?);
        let (prior, proposed, config) = (prior.decode(diags)?, proposed.decode(diags)?, config.decode(diags)?);
        let (state, private, replace) =
            Resource::plan_update(&self.inner, diags, prior, proposed, config, private, meta).await?;
        // An identity never changes, so keep the existing identity. A host without identities sends
        // none.
        let known = request.prior_identity.as_ref().filter(|known| !codec::is_null(known.identity_data.as_ref()));
        let identity = match known {
            Some(known) if replace.is_empty() => Some(known.clone()),
            _ => self.identity_of(diags, &state)?,
        };
        Some(Planned {
            state: codec::send(diags, &state)?,
            private: codec::keep(diags, &private)?,
            requires_replace: replace.into_iter().map(path_to_wire).collect(),
            identity,
        })
    }

    async fn destroy(
        &self,
        diags: &mut Diagnostics,
        request: &wire::apply_resource_change::Request,
    ) -> Option<ResourceState> {
        let shape = self.shape(diags)?;
        let prior = Received::new(request.prior_state.as_ref(), shape, "prior state");
        let private = Received::own(&request.planned_private, "private state");
        let meta = Received::meta(request.provider_meta.as_ref());
        let private = self.recover(diags, &prior, &private).await?;
        let kept = codec::keep(diags, &private)?;
        let (prior, meta) = (prior.decode(diags)?, meta.decode(diags)?);
        let done = Resource::destroy(&self.inner, diags, prior, private, meta).await;
        if done.is_some() && diags.errors.is_empty() {
            return Some(ResourceState { state: codec::null(), private: Bytes::new(), identity: None });
        }
        // Until a destroy succeeds, keep the state, including private state that the host did not
        // send.
        ensure_error(diags, || {
            internal_error("ApplyResourceChange", &request.type_name, "The destroy failed without a reason.")
        });
        let (state, identity) = (request.prior_state.clone()?, request.planned_identity.clone());
        Some(ResourceState { state, private: kept, identity })
    }

    async fn create(
        &self,
        diags: &mut Diagnostics,
        request: &wire::apply_resource_change::Request,
    ) -> Option<ResourceState> {
        let shape = self.shape(diags)?;
        let planned = Received::new(request.planned_state.as_ref(), shape, "planned state");
        let config = Received::new(request.config.as_ref(), shape, "configuration");
        let private = Received::own(&request.planned_private, "private state");
        let meta = Received::meta(request.provider_meta.as_ref());
        let (planned, config) = (planned.decode(diags)?, config.decode(diags)?);
        let (private, meta) = (private.decode(diags)?, meta.decode(diags)?);
        let (state, private) = Resource::create(&self.inner, diags, planned, config, private, meta).await?;
        self.outcome(diags, &state, &private)
    }

    async fn update(
        &self,
        diags: &mut Diagnostics,
        request: &wire::apply_resource_change::Request,
    ) -> Option<ResourceState> {
        let shape = self.shape(diags)?;
        let prior = Received::new(request.prior_state.as_ref(), shape, "prior state");
        let planned = Received::new(request.planned_state.as_ref(), shape, "planned state");
        let config = Received::new(request.config.as_ref(), shape, "configuration");
        let private = Received::own(&request.planned_private, "private state");
        let meta = Received::meta(request.provider_meta.as_ref());
        let (private, meta) = (self.recover(diags, &prior, &private).await?, meta.decode(diags)?);
        let (prior, planned, config) = (prior.decode(diags)?, planned.decode(diags)?, config.decode(diags)?);
        let (state, private) = Resource::update(&self.inner, diags, prior, planned, config, private, meta).await?;
        self.outcome(diags, &state, &private)
    }

    /// Rejects write-only values that a host would store. An unknown value can still become null;
    /// the host validates again with its value before it applies.
    fn refuse_stored_secrets(&self, diags: &mut Diagnostics, config: &Received<'_>) -> Option<()> {
        let present: Present = config.decode(diags)?;
        for path in self.inner.write_only() {
            if present.has(path) {
                let mut at = AttributePath::root();
                path.split('.').for_each(|name| {
                    at.add_attribute(name.to_owned());
                });
                diags.add_error(diagnostic(
                    "Write-only attribute not supported by this host",
                    format!(
                        "{path} must not be stored, and this version of Terraform or OpenTofu would \
                         store it. Version 1.11 or newer of either is needed to set it."
                    ),
                    at,
                ));
            }
        }
        Some(())
    }
}

#[async_trait]
impl<R: ResourceExt + 'static> Erased for Adapter<R> {
    fn described(&self) -> Result<&Described, Diagnostics> {
        let described = self.described.get_or_init(|| {
            let produce = |diags: &mut Diagnostics| Resource::schema(&self.inner, diags);
            Described::new(produce, self.inner.write_only(), type_name::<R>())
        });
        described.as_ref().map_err(Clone::clone)
    }

    fn identity_schema(&self) -> Option<IdentitySchema> {
        ResourceExt::identity_schema(&self.inner)
    }

    async fn validate(&self, diags: &mut Diagnostics, request: &wire::validate_resource_config::Request) -> Option<()> {
        let shape = self.shape(diags)?;
        let config = Received::new(request.config.as_ref(), shape, "configuration");
        let capabilities = request.client_capabilities.unwrap_or_default();
        if !self.inner.write_only().is_empty() && !capabilities.write_only_attributes_allowed {
            self.refuse_stored_secrets(diags, &config)?;
        }
        let config = config.decode(diags)?;
        Resource::validate(&self.inner, diags, config).await
    }

    async fn read(&self, diags: &mut Diagnostics, request: &wire::read_resource::Request) -> Option<ResourceState> {
        let shape = self.shape(diags)?;
        let state = Received::new(request.current_state.as_ref(), shape, "state");
        let private = Received::own(&request.private, "private state");
        let meta = Received::meta(request.provider_meta.as_ref());
        let private = self.recover(diags, &state, &private).await?;
        let (state, meta) = (state.decode(diags)?, meta.decode(diags)?);
        let (state, private) = Resource::read(&self.inner, diags, state, private, meta).await?;
        let mut outcome = self.outcome(diags, &state, &private)?;
        // With an error, the absence is not certain.
        if ResourceExt::is_gone(&self.inner, &state) && diags.errors.is_empty() {
            outcome.state = codec::null();
        }
        Some(outcome)
    }

    async fn plan(&self, diags: &mut Diagnostics, request: &wire::plan_resource_change::Request) -> Option<Planned> {
        if codec::is_null(request.proposed_new_state.as_ref()) {
            self.plan_destroy(diags, request).await
        } else if codec::is_null(request.prior_state.as_ref()) {
            self.plan_create(diags, request).await
        } else {
            self.plan_update(diags, request).await
        }
    }

    async fn apply(
        &self,
        diags: &mut Diagnostics,
        request: &wire::apply_resource_change::Request,
    ) -> Option<ResourceState> {
        if codec::is_null(request.planned_state.as_ref()) {
            self.destroy(diags, request).await
        } else if codec::is_null(request.prior_state.as_ref()) {
            self.create(diags, request).await
        } else {
            self.update(diags, request).await
        }
    }

    async fn import(
        &self,
        diags: &mut Diagnostics,
        request: &wire::import_resource_state::Request,
    ) -> Option<ResourceState> {
        let mut id = request.id.clone();
        let identity = request.identity.as_ref().and_then(|of| of.identity_data.as_ref());
        if id.is_empty() && !codec::is_null(identity) {
            let identity = Received::identity(identity);
            let identity: serde_json::Value = identity.decode(diags)?;
            let Some(found) = ResourceExt::import_id(&self.inner, &identity) else {
                diags.add_error(diagnostic(
                    "Import by identity is not supported",
                    "Import this resource by its id.",
                    AttributePath::root(),
                ));
                return None;
            };
            id = found;
        }
        let (state, private) = Resource::import(&self.inner, diags, id).await?;
        self.outcome(diags, &state, &private)
    }

    async fn move_state(
        &self,
        diags: &mut Diagnostics,
        request: &wire::move_resource_state::Request,
    ) -> Option<ResourceState> {
        let from = MovedState::read(diags, request)?;
        let (state, private) = ResourceExt::move_state(&self.inner, diags, from).await?;
        self.outcome(diags, &state, &private)
    }

    async fn upgrade(
        &self,
        diags: &mut Diagnostics,
        version: i64,
        state: &wire::RawState,
    ) -> Option<wire::DynamicValue> {
        let described = known(diags, self.described())?;
        let current = described.wire.version;
        let mut refuse = |detail: String| {
            diags.add_error(diagnostic("State cannot be read", detail, AttributePath::root()));
        };
        if version > current {
            refuse(format!(
                "It was written by a newer version of the provider (schema version {version}; this version supports \
                 {current})."
            ));
            return None;
        }
        // serde_json errors contain a position, never the content.
        let parsed = serde_json::from_slice(&state.json);
        let mut json: serde_json::Value = parsed.map_err(|error| refuse(format!("{error}."))).ok()?;
        if version < current {
            json = ResourceExt::upgrade_json(&self.inner, diags, version, json).await?;
        }
        described.shape.retain_known(&mut json);
        Some(wire::DynamicValue { msgpack: Bytes::new(), json: json.to_string().into() })
    }
}
