//! The two supported hosts, in pinned versions.

use std::path::{Path, PathBuf};

/// A host program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// OpenTofu 1.6: the oldest supported protocol client, without functions, ephemeral resources
    /// or write-only attributes.
    OpenTofu,
    /// Terraform 1.15: supports all protocol features.
    Terraform,
}

impl Host {
    /// Returns the program's path.
    ///
    /// # Panics
    /// If it is missing, because a missing host must not skip a test.
    pub fn binary(self) -> PathBuf {
        tool(match self {
            Self::OpenTofu => "bin/tofu",
            Self::Terraform => "bin/terraform",
        })
    }

    /// Returns the hosts for a single-host test: one chosen by its name, or both with
    /// `EVERY_HOST=1`.
    pub fn of_turn(name: &str) -> Vec<Self> {
        let both = [Self::OpenTofu, Self::Terraform];
        if std::env::var_os("EVERY_HOST").is_some() {
            return both.to_vec();
        }
        let sum: usize = name.bytes().map(usize::from).sum();
        vec![both[sum % both.len()]]
    }

    /// Returns true if this host supports functions, ephemeral resources and write-only
    /// attributes.
    pub fn knows_functions(self) -> bool {
        self == Self::Terraform
    }
}

/// Returns a file below `.tools/`, the folder with all test programs.
///
/// # Panics
/// If it is missing.
pub fn tool(path: &str) -> PathBuf {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools").join(path);
    assert!(file.exists(), "{} is missing: run `make setup`", file.display());
    file
}
