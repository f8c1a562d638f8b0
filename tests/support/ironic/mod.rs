//! An Ironic that one test after the other has for itself (`support/lent.rs`). Starting one costs a
//! core five seconds; what a test left in it is deleted in less than one.
//!
//! One that something else than its options tells from others is not lent again: a Keystone, a
//! certificate, a policy.

pub mod installation;

use installation::Installation;
pub use installation::Options;

use super::lent::{Lendable, Lent, Shelf};

/// A lent Ironic.
pub type Ironic = Lent<Installation>;

impl Lendable for Installation {
    fn shelf() -> &'static Shelf<Self> {
        // Each takes a fifth of a GiB.
        static SHELF: Shelf<Installation> = Shelf::of(5);
        &SHELF
    }
}

impl Ironic {
    /// One without a node.
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
