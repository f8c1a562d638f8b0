//! What a run is about, beside the killing and the stopping.

use crate::{arena::Kind, hidden::Hidden};

/// One run.
pub struct Scene {
    pub kind: Kind,
    /// How often the store goes back in time, and whether the processes run meanwhile.
    pub returns: Vec<Meanwhile>,
    /// Workers that do not see each other in `/proc`.
    pub hidden: Option<Hidden>,
}

/// What the processes do while the store goes back in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meanwhile {
    /// They go on: a fail-over, or a person who forgot to stop them.
    Run,
    /// They were ended before, as the guide "After a restore" says.
    Ended,
}

impl Scene {
    pub fn on(kind: Kind) -> Self {
        Self { kind, returns: Vec::new(), hidden: None }
    }

    /// Whether only the usual goes wrong.
    pub fn is_plain(&self) -> bool {
        self.returns.is_empty() && self.hidden.is_none()
    }
}
