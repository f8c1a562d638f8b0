//! The rules of a maintenance: pure, without I/O and without a clock.

pub mod machine;
