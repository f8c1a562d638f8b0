//! The provider binary.
#![deny(clippy::print_stdout, clippy::print_stderr, reason = "these macros panic when the output cannot be written")]

use std::process::ExitCode;

use terraform_provider_metal::program;

fn main() -> ExitCode {
    program::run()
}
