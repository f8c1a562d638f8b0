//! Build steps; the wire adds its protocol files here.
fn main() {}
