//! The observed state of a machine and of the systems that can block its maintenance.

use std::collections::BTreeMap;

use shown_text::OneLine;

use super::{
    drain::DrainView,
    gate::GateView,
    machine::{BootOption, Capabilities, MachineView, MediaSlot},
    node::SeenLease,
    service::ServiceView,
};

/// Observations of one round. `None` means "not read yet".
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The machine.
    pub machine: Option<MachineView>,
    /// Its virtual drives.
    pub media: Option<Vec<MediaSlot>>,
    /// The firmware's boot menu before a virtual drive was loaded.
    pub menu_before: Option<Vec<BootOption>>,
    /// The firmware's boot menu.
    pub menu: Option<Vec<BootOption>>,
    /// Its capabilities.
    pub capabilities: Option<Capabilities>,
    /// Result of the image check, with the problem on failure.
    pub image: Option<Result<(), OneLine>>,
    /// Result of the preparer's URL, with its response on failure.
    pub preparer: Option<Result<(), OneLine>>,
    /// Result of `complete_when`'s URL.
    pub completion: Option<Result<(), OneLine>>,
    /// Number of the holder's gates that precede the record's own; see [`Self::gates`].
    pub outer_gates: usize,
    /// The gates, by index in the holder's record.
    pub gates: BTreeMap<usize, GateView>,
    /// The Lease of its Kubernetes Node.
    pub node: Option<SeenLease>,
    /// The state of that Node and its Pods.
    pub drain: Option<Box<DrainView>>,
    /// The external service's progress.
    pub service: Option<Box<ServiceView>>,
}
