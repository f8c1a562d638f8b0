//! Acceptance tests: the built provider under the pinned OpenTofu and Terraform, against Redfish
//! servers. An independent client reads the final state.
//!
//! All tests form one target, so that the harness is compiled and linked once. Each sibling file
//! covers one resource, data source or topic; `support/` contains the harness.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(
    clippy::disallowed_methods,
    reason = "test deadlines use real time; the provider's clock is not in this process"
)]

#[macro_use]
mod support;

mod action_server_operation;
mod authorities;
mod bad_input;
mod bmc_matrix;
mod boot_override;
mod broken_output;
mod buckets;
mod ci_examples;
mod cluster_api;
mod clusters;
mod command_line;
mod crash;
mod deferral;
mod degraded;
mod demo;
mod each_request;
mod effects;
mod ephemeral_server_lock;
mod examples;
mod files;
mod first_maintenance;
mod function_in_window;
mod function_next_window;
mod golden;
mod hand_over;
mod harness;
mod host_state;
mod hostile_texts;
mod hosts;
mod identity;
mod ignored_power;
mod installed;
mod interrupt;
mod ironic;
mod kubernetes_node;
mod lists;
mod lost_reply;
mod many_runs;
mod metal3;
mod metal_maintenance_approval;
mod metal_maintenance_preview;
mod metal_maintenance_queue;
mod metal_maintenance_window;
mod metal_operator;
mod metal_server;
mod metal_server_boot_configuration;
mod metal_server_claim;
mod metal_server_maintenance;
mod metal_server_operation;
mod metal_servers;
mod moved;
mod names;
mod neighbors;
mod night;
mod node_leases;
mod one_state;
mod one_store;
mod owner_actions;
mod owners;
mod plan_truth;
mod queue;
mod releases;
mod resource_identity;
mod restored;
mod role_verbs;
mod secrets;
#[path = "../support/mod.rs"]
mod servers;
mod stores;
mod suggestions;
mod under_holds;
mod unknown_values;
mod updates;
mod validate;
mod windows;
