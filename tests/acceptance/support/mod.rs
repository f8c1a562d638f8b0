//! The harness: what a test needs around the provider, and nothing that knows what it does.
#![allow(dead_code, reason = "each helper is there for the tests to come, not only for today's")]

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

/// Writes the test twice, once for each host: `name::opentofu` and `name::terraform`.
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

/// Writes the test once, `name::one_host`, for the host whose turn it is: half of such tests run
/// under OpenTofu and half under Terraform, each always under the same one. With `EVERY_HOST=1`
/// (`make soak`) it runs under both.
///
/// For what no host can change: crashes, losses and flows of the systems behind a server. Their
/// plans, errors and resource types are shown under both hosts by other tests.
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
