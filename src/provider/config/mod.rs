//! The provider block.

pub(super) mod plug_block;
pub(super) mod provider_block;
