//! The seam for the project's own BMC simulator (crate `bmc-simulator`): its handle, ready for a
//! workspace's inventory, comes here with the crate.
