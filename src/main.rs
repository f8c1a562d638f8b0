//! The provider binary.

use std::process::ExitCode;

use terraform_provider_metal::program;

fn main() -> ExitCode {
    program::run()
}
