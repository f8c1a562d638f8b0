//! The provider built by cargo for this test run.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Source address of the provider in test configurations. The host name is fictitious and never
/// resolved.
pub const SOURCE: &str = "example.com/metal/metal";

/// Path of the built program, without symbolic links.
pub fn binary() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_terraform-provider-metal"));
    built.canonicalize().expect("cargo has built the provider")
}

/// Block at the start of every configuration with the provider.
pub fn required_providers() -> String {
    format!("terraform {{\n  required_providers {{\n    metal = {{ source = \"{SOURCE}\" }}\n  }}\n}}\n")
}

/// Installs the provider into `folder` and returns a CLI configuration that uses it without `init`
/// or downloads.
pub fn development_override(folder: &Path) -> String {
    let program = folder.join("terraform-provider-metal");
    symlink(binary(), &program).expect("the plugin folder is writable");
    format!(
        "disable_checkpoint = true\nprovider_installation {{\n  dev_overrides {{\n    \"{SOURCE}\" = \"{}\"\n  }}\n}}\n",
        folder.display()
    )
}
