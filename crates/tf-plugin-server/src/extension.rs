//! What a resource can say beyond `tf_provider::Resource`.
use async_trait::async_trait;
use serde_json::Value;
use tf_provider::{AttributePath, Diagnostics, Resource, schema::AttributeType};

use super::{diagnostics::diagnostic, moves::MovedState};

/// What tf-provider's [`Resource`] has no place for. Every method has a default: a plain resource
/// says `impl ResourceExt for MyResource {}`.
#[async_trait]
pub trait ResourceExt: Resource {
    /// Attributes the host passes in configuration and never stores, as dotted paths
    /// (`"ignition.content"`).
    ///
    /// Their values are null in plan and state and have to be read from the configuration. Where
    /// the host does not know write-only attributes, a configuration that sets one is refused
    /// before the resource sees it: that host would store the value.
    fn write_only(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether what [`Resource::read`] returned says that the resource exists no more.
    ///
    /// True makes the host drop the resource from its state. It must rest on an authoritative
    /// answer, never on a failure to ask. Returning `None` from `read` is not such an answer: the
    /// state is kept then, and the answer is an error.
    fn is_gone(&self, state: &Self::State<'_>) -> bool {
        let _ = state;
        false
    }

    /// Turns a state of an older schema `version` into one of the current schema.
    ///
    /// `state` is the JSON of the state file; what is returned may leave out attributes, which then
    /// are null. Called only for versions below the current one. `None` needs an error in `diags`.
    async fn upgrade_json(&self, diags: &mut Diagnostics, version: i64, state: Value) -> Option<Value> {
        let _ = state;
        diags.add_error(diagnostic(
            "State cannot be upgraded",
            format!("This provider no longer reads states of schema version {version}."),
            AttributePath::root(),
        ));
        None
    }

    /// Turns the state of another type into one of this type, for a `moved` block across types.
    ///
    /// Hosts ask this before they configure the provider, so that only the given state can be read.
    /// `None` needs an error in `diags`.
    async fn move_state<'a>(
        &self,
        diags: &mut Diagnostics,
        from: MovedState,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        diags.add_error(diagnostic(
            format!("A {} cannot be moved here", from.type_name),
            "This resource type takes no state of another type over. Remove the moved block; a removed block or `state rm` \
             forgets the old resource without destroying it, and an import block or a new resource follows.",
            AttributePath::root(),
        ));
        None
    }

    /// Completes private state that the host lost or that is outdated; called before each request
    /// about an existing resource. It only reads, and returns `private` unless it finds a better
    /// value.
    ///
    /// Hosts send no private state when they destroy tainted resources. If such a destroy fails,
    /// the host stores the completed private state for later requests.
    async fn recover<'a>(&self, state: Self::State<'a>, private: Self::PrivateState<'a>) -> Self::PrivateState<'a> {
        drop(state);
        private
    }

    /// What identifies a resource of this type to the host; `None`: no identity.
    fn identity_schema(&self) -> Option<IdentitySchema> {
        None
    }

    /// The identity of the resource with this state: an object with the attributes of
    /// [`identity_schema`](Self::identity_schema). It must never change while the resource lives.
    fn identity(&self, state: &Self::State<'_>) -> Option<Value> {
        let _ = state;
        None
    }

    /// The import id that stands for an identity, for hosts that import by identity.
    fn import_id(&self, identity: &Value) -> Option<String> {
        let _ = identity;
        None
    }
}

/// The attributes that identify a resource, see [`ResourceExt::identity_schema`].
#[derive(Clone, Debug)]
pub struct IdentitySchema {
    /// Grows when the attributes change.
    pub version: i64,
    /// In any order.
    pub attributes: Vec<IdentityAttribute>,
}

/// One attribute of an identity.
#[derive(Clone, Debug)]
pub struct IdentityAttribute {
    /// Its name.
    pub name: &'static str,
    /// Its type: a primitive or a list of primitives, no more is allowed.
    pub attr_type: AttributeType,
    /// Markdown.
    pub description: &'static str,
    /// Whether an import by identity has to give it; the provider finds out the others.
    pub required_for_import: bool,
}
