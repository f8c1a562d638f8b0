//! The wire: go-plugin's handshake, and the provider protocol 6 on it.
//!
//! Knows tf-provider's traits and nothing of maintenances. tf-provider serves them itself too, but
//! loses state and stops in ways this provider cannot afford; `DESIGN.md` lists them.
//!
//! * `handshake`, `tls`, `listener`, `controller`: how a host and a plugin find and trust each
//!   other
//! * `serve`, `ends`: from the start of the process to its end in order
//! * `service`, `running`, `served`: what each request means; `resource`, `data_source`,
//!   `function`, `list_resource`, `action`, `ephemeral`: the provider's part of it
//! * `codec`, `numbers`, `shape`, `schema`, `diagnostics`: values and schemas, there and back
//! * `deferral`: what is put off while the provider's configuration is not known
//! * `panics`, `logging`: what goes wrong, told in the host's terms
#![deny(clippy::print_stdout, clippy::print_stderr, reason = "these macros panic when the output cannot be written")]
#![deny(clippy::print_stdout)]
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

/// A provider with what it offers. Names are complete, with the provider's prefix
/// (`metal_server`), except for functions, which have none.
///
/// Of tf-provider's trait, the schema, `validate` and `configure` are used; its own lists of
/// resources and its `meta_schema` are not.
pub trait ServedProvider: tf_provider::Provider {
    /// The resources, made with [`resource`]. Called once, before [`configure`], so they share what
    /// `configure` sets, and have to work before that.
    ///
    /// [`configure`]: tf_provider::Provider::configure
    fn resources(&self) -> Vec<(&'static str, Box<dyn AnyResource>)>;

    /// The data sources, made with [`data_source`]. As for [`resources`](Self::resources).
    fn data_sources(&self) -> Vec<(&'static str, Box<dyn AnyDataSource>)> {
        Vec::new()
    }

    /// The functions, made with [`function`]. Hosts call them without `configure`.
    fn functions(&self) -> Vec<(&'static str, Box<dyn AnyFunction>)> {
        Vec::new()
    }

    /// The actions, made with [`action`]. As for [`resources`](Self::resources).
    fn actions(&self) -> Vec<(&'static str, Box<dyn AnyAction>)> {
        Vec::new()
    }

    /// The ephemeral resources, made with [`ephemeral`]. As for [`resources`](Self::resources).
    fn ephemeral_resources(&self) -> Vec<(&'static str, Box<dyn AnyEphemeral>)> {
        Vec::new()
    }

    /// Ends what is open and was not closed, when the host asks the process to end. The host waits
    /// for it.
    ///
    /// Terraform 1.15.5 closes no ephemeral resource of an apply that failed or was interrupted.
    fn before_end(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Whether its configuration is only known in a later run. Hosts that allow it then defer what
    /// they ask for.
    fn is_deferred(&self) -> bool {
        false
    }

    /// The schema of `provider_meta` blocks of modules. Without one, what is decoded as provider
    /// metadata is null.
    fn provider_meta_schema(&self) -> Option<tf_provider::schema::Schema> {
        None
    }

    /// The lists of existing resources, made with [`list_resource`], by the names of their
    /// resources. As for [`resources`](Self::resources).
    fn list_resources(&self) -> Vec<(&'static str, Box<dyn AnyListResource>)> {
        Vec::new()
    }
}
