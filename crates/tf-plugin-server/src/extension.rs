//! Extensions of `tf_provider::Resource`.
use async_trait::async_trait;
use serde_json::Value;
use tf_provider::{AttributePath, Diagnostics, Resource, schema::AttributeType};

use super::{diagnostics::diagnostic, moves::MovedState};

/// Extends tf-provider's [`Resource`]. Every method has a default: a plain resource uses `impl
/// ResourceExt for MyResource {}`.
#[async_trait]
pub trait ResourceExt: Resource {
    /// Returns the attributes that the host passes in configuration and never stores, as dotted
    /// paths (`"ignition.content"`).
    ///
    /// Their values are null in plan and state and must be read from the configuration. A host
    /// without support for write-only attributes would store them, so a configuration that sets one
    /// is then rejected before it reaches the resource.
    fn write_only(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns true if the state from [`Resource::read`] shows that the resource no longer exists.
    ///
    /// The host then drops the resource from its state, so this requires an authoritative answer
    /// and not a failed read. If `read` returns `None`, the state is kept and the answer is an
    /// error.
    fn is_gone(&self, state: &Self::State<'_>) -> bool {
        let _ = state;
        false
    }

    /// Converts a state from a lower schema `version` to the current schema.
    ///
    /// `state` is the state file's JSON. Omitted attributes in the result become null. `None`
    /// requires an error in `diags`.
    async fn upgrade_json(&self, diags: &mut Diagnostics, version: i64, state: Value) -> Option<Value> {
        let _ = state;
        diags.add_error(diagnostic(
            "State cannot be upgraded",
            format!("This provider no longer reads states of schema version {version}."),
            AttributePath::root(),
        ));
        None
    }

    /// Converts another type's state to this type, for a `moved` block across types.
    ///
    /// Hosts call this before they configure the provider, so only the given state is available.
    /// `None` requires an error in `diags`.
    async fn move_state<'a>(
        &self,
        diags: &mut Diagnostics,
        from: MovedState,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        diags.add_error(diagnostic(
            format!("A {} cannot be moved here", from.type_name),
            "This resource type cannot take over another type's state. Remove the moved block. A removed block or \
             `state rm` forgets the old resource without destroying it; then add an import block or a new resource.",
            AttributePath::root(),
        ));
        None
    }

    /// Completes lost or outdated private state. Called before each request about an existing
    /// resource. It only reads, and returns `private` unless it finds a better value.
    ///
    /// Hosts send no private state when they destroy tainted resources. If such a destroy fails,
    /// the host stores the completed private state for later requests.
    async fn recover<'a>(&self, state: Self::State<'a>, private: Self::PrivateState<'a>) -> Self::PrivateState<'a> {
        drop(state);
        private
    }

    /// Returns the resource's identity schema; `None` without identities.
    fn identity_schema(&self) -> Option<IdentitySchema> {
        None
    }

    /// Returns this state's identity: an object with the attributes in
    /// [`identity_schema`](Self::identity_schema). It must never change during the resource's life.
    fn identity(&self, state: &Self::State<'_>) -> Option<Value> {
        let _ = state;
        None
    }

    /// Returns the import ID for an identity, for hosts that import by identity.
    fn import_id(&self, identity: &Value) -> Option<String> {
        let _ = identity;
        None
    }
}

/// The attributes that identify a resource, see [`ResourceExt::identity_schema`].
#[derive(Clone, Debug)]
pub struct IdentitySchema {
    /// Increases when the attributes change.
    pub version: i64,
    /// The attributes, in any order.
    pub attributes: Vec<IdentityAttribute>,
}

/// An identity attribute.
#[derive(Clone, Debug)]
pub struct IdentityAttribute {
    /// Its name.
    pub name: &'static str,
    /// Its type; only a primitive or a list of primitives is allowed.
    pub attr_type: AttributeType,
    /// Its description in Markdown.
    pub description: &'static str,
    /// True if an import by identity must set it. The provider determines the others.
    pub required_for_import: bool,
}
