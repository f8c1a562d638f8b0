//! The provider binary.
fn main() {}
