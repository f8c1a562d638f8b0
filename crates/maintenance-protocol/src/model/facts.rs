//! The facts that a look at a machine, and at all that has a word on it, brings.

use std::collections::BTreeMap;

use super::{
    drain::DrainView,
    gate::GateView,
    machine::{BootOption, Capabilities, MachineView, MediaSlot},
    node::SeenLease,
    service::ServiceView,
};

/// What a look at the outside brought. `None` is "not looked yet".
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The machine.
    pub machine: Option<MachineView>,
    /// Its virtual drives.
    pub media: Option<Vec<MediaSlot>>,
    /// The firmware's boot menu before a virtual drive was filled.
    pub menu_before: Option<Vec<BootOption>>,
    /// The firmware's boot menu.
    pub menu: Option<Vec<BootOption>>,
    /// What it can be told.
    pub capabilities: Option<Capabilities>,
    /// The image's check: `Err` tells what is wrong with it.
    pub image: Option<Result<(), String>>,
    /// The preparer's word: `Err` tells what it said instead.
    pub preparer: Option<Result<(), String>>,
    /// The word of `complete_when`'s URL.
    pub completion: Option<Result<(), String>>,
    /// How many gates the holder has before those of the record: see [`Self::gates`].
    pub outer_gates: usize,
    /// The gates, by their places in the record of the holder.
    pub gates: BTreeMap<usize, GateView>,
    /// The Lease of its Kubernetes Node.
    pub node: Option<SeenLease>,
    /// That Node and its Pods.
    pub drain: Option<Box<DrainView>>,
    /// The work of the external system.
    pub service: Option<Box<ServiceView>>,
}
