//! The maintenance rules: pure functions without I/O and clock.
//!
//! [`decide`] returns a process's next action. [`lock`] contains a machine's state and the
//! transitions that stores apply atomically. [`queue`] orders requests. [`prepare`], [`restore`]
//! and [`power`] contain the rules of single steps.
#![deny(clippy::print_stdout, clippy::print_stderr, reason = "these macros panic when the output cannot be written")]

pub mod ability;
pub mod access;
pub mod address;
mod apply;
pub mod approval;
pub mod blocker;
pub mod boot;
pub mod change;
pub mod decide;
pub mod digest;
pub mod drain;
pub mod effects;
mod enqueue;
pub mod forecast;
pub mod gate;
pub mod gate_chain;
pub mod hand_over;
mod held;
pub mod identity;
pub mod inspection;
pub mod invariants;
pub mod limits;
pub mod lock;
pub mod media;
mod midway;
pub mod model;
pub mod node;
pub mod operate;
pub mod ownership;
pub mod pattern;
pub mod power;
pub mod prepare;
pub mod prior;
mod pursuit;
pub mod quarantine;
pub mod queue;
pub mod rebind;
pub mod refusal;
pub mod report;
pub mod restore;
pub mod restrictions;
mod seize;
pub mod service;
mod situation;
pub mod store_failure;
mod transitions;
mod undriven;
pub mod update;
pub mod window;

pub use model::{aliases, boot_method, extension, ids, location, machine, shared, spec, state, step};
