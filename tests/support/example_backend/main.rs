//! The provider with one backend more, which is in this folder and nowhere else: what a new backend
//! costs.
//!
//! Its servers are files. A server has a power state, one drive and one way to boot, and writes
//! down what it was told to do, so that a test can read it with its own eyes.

mod machine;
mod plugin;

use std::process::ExitCode;

use terraform_provider_metal::program;

fn main() -> ExitCode {
    program::run(&[&plugin::ExamplePlugin])
}
