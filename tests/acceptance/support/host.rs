//! The two programs that run a provider, in the pinned versions that `make setup` brings.

use std::path::{Path, PathBuf};

/// A host of the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// OpenTofu 1.6: the oldest protocol client that is supported (no functions, ephemeral
    /// resources or write-only attributes).
    OpenTofu,
    /// Terraform 1.15: knows everything of the protocol.
    Terraform,
}

impl Host {
    /// The program.
    ///
    /// # Panics
    /// When it is not there: a missing host must never turn into a skipped test.
    pub fn binary(self) -> PathBuf {
        tool(match self {
            Self::OpenTofu => "bin/tofu",
            Self::Terraform => "bin/terraform",
        })
    }

    /// The hosts of a test that needs only one: the one that its name gives, or both with
    /// `EVERY_HOST=1`.
    pub fn of_turn(name: &str) -> Vec<Self> {
        let both = [Self::OpenTofu, Self::Terraform];
        if std::env::var_os("EVERY_HOST").is_some() {
            return both.to_vec();
        }
        let sum: usize = name.bytes().map(usize::from).sum();
        vec![both[sum % both.len()]]
    }

    /// Whether this host calls provider functions, ephemeral resources and write-only attributes.
    pub fn knows_functions(self) -> bool {
        self == Self::Terraform
    }
}

/// A file below `.tools/`, where `make setup` puts what the tests run against.
///
/// # Panics
/// When it is missing.
pub fn tool(path: &str) -> PathBuf {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools").join(path);
    assert!(file.exists(), "{} is missing: run `make setup`", file.display());
    file
}
