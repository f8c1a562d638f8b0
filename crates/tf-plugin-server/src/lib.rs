//! The wire: go-plugin's handshake and provider protocol 6.
//!
//! Uses tf-provider's traits and is independent of maintenances. tf-provider has its own server,
//! but that loses state and stops in ways that this provider cannot accept; `DESIGN.md` lists them.
//!
//! * `handshake`, `tls`, `listener`, `controller`: connection and authentication between host and
//!   plugin
//! * `serve`, `ends`: the process's life from start to an orderly end
//! * `service`, `running`, `served`: handling of each request; `resource`, `data_source`,
//!   `function`, `list_resource`, `action`, `ephemeral`: the provider's part of it
//! * `codec`, `numbers`, `shape`, `schema`, `diagnostics`: conversion of values and schemas
//! * `deferral`: requests that are deferred while the provider's configuration is unknown
//! * `panics`, `logging`: failures in the host's format
#![deny(clippy::print_stdout, clippy::print_stderr, reason = "these macros panic when the output cannot be written")]
#![allow(clippy::doc_markdown, reason = "OpenTofu and MessagePack are names, not code")]

mod action;
mod bounds;
mod codec;
mod controller;
mod data_source;
mod deferral;
mod diagnostics;
mod ends;
mod ephemeral;
mod error;
mod extension;
mod function;
mod handshake;
mod list_resource;
mod listener;
mod logging;
mod moves;
mod numbers;
mod panics;
mod present;
pub mod proto;
mod resource;
mod running;
mod schema;
mod serve;
mod served;
mod service;
mod service_list;
mod shape;
mod tls;

pub use action::{Action, AnyAction, Progress, action};
pub use data_source::{AnyDataSource, data_source};
pub use diagnostics::diagnostic;
pub use ephemeral::{AnyEphemeral, EphemeralResource, Opened, ephemeral};
pub use error::PluginError;
pub use extension::{IdentityAttribute, IdentitySchema, ResourceExt};
pub use function::{AnyFunction, function};
pub use handshake::is_plugin_start;
pub use list_resource::{AnyListResource, FoundResource, FoundResources, ListResource, list_resource};
pub use logging::install_logging;
pub use moves::MovedState;
pub use resource::{AnyResource, resource};
pub use serve::{ServeOptions, serve};

/// A provider with everything that it offers. Names are complete, with the provider's prefix
/// (`metal_server`). Function names are without a prefix.
///
/// The server uses `schema`, `validate` and `configure` from tf-provider's trait. It ignores that
/// trait's resource lists and `meta_schema`.
pub trait ServedProvider: tf_provider::Provider {
    /// Returns the resources, created with [`resource`]. Called once before [`configure`], so
    /// resources share its settings and must work without them.
    ///
    /// [`configure`]: tf_provider::Provider::configure
    fn resources(&self) -> Vec<(&'static str, Box<dyn AnyResource>)>;

    /// Returns the data sources, created with [`data_source`]. See [`resources`](Self::resources).
    fn data_sources(&self) -> Vec<(&'static str, Box<dyn AnyDataSource>)> {
        Vec::new()
    }

    /// Returns the functions, created with [`function`]. Hosts call them without `configure`.
    fn functions(&self) -> Vec<(&'static str, Box<dyn AnyFunction>)> {
        Vec::new()
    }

    /// Returns the actions, created with [`action`]. See [`resources`](Self::resources).
    fn actions(&self) -> Vec<(&'static str, Box<dyn AnyAction>)> {
        Vec::new()
    }

    /// Returns the ephemeral resources, created with [`ephemeral`]. See
    /// [`resources`](Self::resources).
    fn ephemeral_resources(&self) -> Vec<(&'static str, Box<dyn AnyEphemeral>)> {
        Vec::new()
    }

    /// Ends everything that is still open when the host requests the process's end. The host waits
    /// for it.
    ///
    /// Terraform 1.15.5 does not close ephemeral resources after a failed or interrupted apply.
    fn before_end(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Returns true if the provider's configuration is unknown in this run. Hosts that allow
    /// deferral then defer their requests.
    fn is_deferred(&self) -> bool {
        false
    }

    /// Returns the schema of `provider_meta` blocks in modules. Without a schema, provider metadata
    /// decodes to null.
    fn provider_meta_schema(&self) -> Option<tf_provider::schema::Schema> {
        None
    }

    /// Returns lists of existing resources, created with [`list_resource`], by resource name. See
    /// [`resources`](Self::resources).
    fn list_resources(&self) -> Vec<(&'static str, Box<dyn AnyListResource>)> {
        Vec::new()
    }
}
