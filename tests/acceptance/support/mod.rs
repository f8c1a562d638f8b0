//! Test harness around the provider, independent of the provider's features.
#![allow(dead_code, reason = "future tests can use every helper")]

pub mod certificates;
pub mod host;
pub mod images;
pub mod independent;
pub mod mirror;
pub mod plan_writes;
pub mod process;
pub mod provider;
pub mod run;
pub mod simulator;
pub mod state_server;
pub mod sushy;
pub mod wait;
pub mod workspace;

/// Defines the test once per host: `name::opentofu` and `name::terraform`.
///
/// ```ignore
/// for_each_host! {
///     async fn plan_after_apply_is_empty(host) { ... }
/// }
/// ```
macro_rules! for_each_host {
    ($(#[$attribute:meta])* async fn $name:ident($host:ident) $body:block) => {
        mod $name {
            #[allow(unused_imports, reason = "not every body uses its surroundings")]
            use super::*;

            async fn body($host: $crate::support::host::Host) $body

            $(#[$attribute])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn opentofu() {
                body($crate::support::host::Host::OpenTofu).await;
            }

            $(#[$attribute])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn terraform() {
                body($crate::support::host::Host::Terraform).await;
            }
        }
    };
}

/// Defines the test once as `name::one_host`. The name selects the host, so half of these tests
/// run under OpenTofu and half under Terraform. `EVERY_HOST=1` (soak test) runs both.
///
/// Use it for behaviour that does not depend on the host: crashes, losses and flows of the systems
/// behind a server. Other tests cover plans, errors and resource types with both hosts.
macro_rules! for_one_host {
    ($(#[$attribute:meta])* async fn $name:ident($host:ident) $body:block) => {
        mod $name {
            #[allow(unused_imports, reason = "not every body uses its surroundings")]
            use super::*;

            async fn body($host: $crate::support::host::Host) $body

            $(#[$attribute])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn one_host() {
                for host in $crate::support::host::Host::of_turn(module_path!()) {
                    println!("under {host:?}");
                    body(host).await;
                }
            }
        }
    };
}
