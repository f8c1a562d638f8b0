//! Whether the audit log is as it was written.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

/// A line of a chain: to add the next one, and to recognise the chain later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainEnd {
    /// Its place; 0: before the first line.
    pub number: u64,
    /// The hash of it and of all before it; empty before the first line.
    pub hash: String,
}

/// The ends of the chains of a store, by the names of the chains. Kept outside of the store they
/// are an anchor: who may write everything in the store can compute new chains, and not ones that
/// go on from these.
pub type ChainEnds = BTreeMap<String, ChainEnd>;

/// What a look at all lines of the audit log found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditProof {
    /// The store keeps no chain.
    None(&'static str),
    /// Each line fits.
    Whole {
        /// How many lines are in the chain.
        lines: u64,
        /// How many older ones were pruned.
        forgotten: u64,
        /// How many are not in the chain yet.
        waiting: u64,
        /// The end of each chain, by the name of the chain.
        ends: ChainEnds,
    },
    /// A line does not fit.
    Broken(BrokenLine),
}

impl AuditProof {
    /// Whether the store keeps a chain.
    #[must_use]
    pub fn is_chained(&self) -> bool {
        !matches!(self, Self::None(_))
    }
}

/// The first line that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenLine {
    /// The chain, where a store has several.
    pub chain: Option<String>,
    /// Its place in the chain; `None`: it has none.
    pub number: Option<u64>,
    /// What of it does not fit.
    pub problem: &'static str,
    /// When it was written, by which role, and about which maintenance; nothing where it is
    /// missing.
    pub line: Option<String>,
}

impl fmt::Display for BrokenLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "line {number}")?,
            None => f.write_str("a line")?,
        }
        if let Some(chain) = &self.chain {
            write!(f, " of the chain of {chain}")?;
        }
        write!(f, " {}", self.problem)?;
        self.line.as_ref().map_or(Ok(()), |line| write!(f, ": {line}"))
    }
}
