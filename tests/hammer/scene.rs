//! Special events of a run, in addition to kills and stops.

use crate::{arena::Kind, hidden::Hidden};

/// One run.
pub struct Scene {
    pub kind: Kind,
    /// Store restores, each with the processes' state.
    pub returns: Vec<Meanwhile>,
    /// Workers that cannot see each other in `/proc`.
    pub hidden: Option<Hidden>,
}

/// State of the processes during a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meanwhile {
    /// They continue: a fail-over, or an operator's mistake.
    Run,
    /// They were ended first, as the guide "After a restore" requires.
    Ended,
}

impl Scene {
    pub fn on(kind: Kind) -> Self {
        Self { kind, returns: Vec::new(), hidden: None }
    }

    /// Returns true for a run without special events.
    pub fn is_plain(&self) -> bool {
        self.returns.is_empty() && self.hidden.is_none()
    }
}
