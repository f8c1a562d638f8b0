//! Ironic instances lent to one test at a time (`support/lent.rs`). Starting one takes five CPU
//! seconds; deleting a test's leftovers takes less than one.
//!
//! Instances with a Keystone, a certificate or a policy are not reused.

pub mod installation;

use installation::Installation;
pub use installation::Options;

use super::lent::{Lendable, Lent, Shelf};

/// A lent Ironic.
pub type Ironic = Lent<Installation>;

impl Lendable for Installation {
    fn shelf() -> &'static Shelf<Self> {
        // Each uses a fifth of a GiB.
        static SHELF: Shelf<Installation> = Shelf::of(5);
        &SHELF
    }
}

impl Ironic {
    /// Returns an Ironic without nodes.
    pub async fn start(options: Options) -> Self {
        let Some(kind) = options.kind() else { return Self::once(Installation::start(options).await) };
        while let Some(mut it) = Installation::shelf().take(|it| it.options().kind() == Some(kind)) {
            if it.clean().await {
                return Self::new(it);
            }
        }
        Self::new(Installation::start(options).await)
    }
}
