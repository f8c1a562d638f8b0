//! The provider as cargo built it for this test run.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// The source address under which the tests' configurations name the provider. The host name is
/// made up: nothing is ever looked up there.
pub const SOURCE: &str = "example.com/metal/metal";

/// The built program, as the system names it (without symbolic links).
pub fn binary() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_terraform-provider-metal"));
    built.canonicalize().expect("cargo has built the provider")
}

/// The block that every configuration with the provider begins with.
pub fn required_providers() -> String {
    format!("terraform {{\n  required_providers {{\n    metal = {{ source = \"{SOURCE}\" }}\n  }}\n}}\n")
}

/// Puts the provider into `folder` and returns the CLI configuration that takes it from there, so
/// that no `init` is needed and nothing is downloaded.
pub fn development_override(folder: &Path) -> String {
    let program = folder.join("terraform-provider-metal");
    symlink(binary(), &program).expect("the plugin folder is writable");
    format!(
        "disable_checkpoint = true\nprovider_installation {{\n  dev_overrides {{\n    \"{SOURCE}\" = \"{}\"\n  }}\n}}\n",
        folder.display()
    )
}
