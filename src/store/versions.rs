//! Several provider versions on one store: which schemas each of them reads and writes, and which
//! of them are in use.
//!
//! A process opens a store as it is, as long as it can read and write its schema: a newer version
//! that only looks must not change the schema under older processes, which could then no longer
//! release their servers. `store migrate` does it.

use serde::{Deserialize, Serialize};

use super::{StoreError, fault::StoreErrors};
use crate::maintenance::ids::Runner;

/// The provider version of this process.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The schemas that this version reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Supported {
    pub(super) least: i64,
    pub(super) newest: i64,
}

impl Supported {
    /// Refuses a schema that this version cannot read and write. `migrating`: it is opened to be
    /// migrated.
    pub(super) fn check(self, found: i64, migrating: bool, about: &StoreErrors) -> Result<(), StoreError> {
        if found > self.newest {
            return Err(about.newer(found, self.newest));
        }
        if found >= self.least || migrating {
            return Ok(());
        }
        Err(about.unreadable(format!(
            "its schema is {found}, and this provider version reads and writes {} to {}. Nothing was changed. Run \
             `terraform-provider-metal store migrate`",
            self.least, self.newest
        )))
    }

    /// Refuses to write after a newer version has migrated the store since this process opened it.
    pub(super) fn check_open(self, found: i64, about: &StoreErrors) -> Result<(), StoreError> {
        if found <= self.newest {
            return Ok(());
        }
        Err(about.unreadable(format!(
            "a newer provider version migrated it to schema {found} while this process had it open, and this version writes \
             up to {}. Nothing was written, and what is stored stays. Run it again with the newer version",
            self.newest
        )))
    }
}

/// The program of a process, stored with its lease where version 0.1.0 ignores it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Program {
    /// Its version.
    pub(super) version: String,
    /// The newest schema that it reads and writes.
    pub(super) schema: i64,
}

impl Program {
    /// The program of this process.
    pub(super) fn own(newest: i64) -> Self {
        Self { version: VERSION.to_owned(), schema: newest }
    }
}

/// A process and its program, as one stored document.
#[derive(Serialize)]
pub(super) struct Stamped<'a> {
    #[serde(flatten)]
    pub(super) runner: &'a Runner,
    pub(super) program: Program,
}

/// Reads a stored process: who it is, for people, and its program, where it told it.
pub(super) fn stamped(text: &str) -> (String, Option<Program>) {
    #[derive(Deserialize)]
    struct Stamp {
        program: Option<Program>,
    }
    let program = serde_json::from_str::<Stamp>(text).ok().and_then(|stamp| stamp.program);
    let runner = serde_json::from_str::<Runner>(text).map_or_else(|_| text.to_owned(), |runner| runner.to_string());
    (runner, program)
}

/// A process with a lease in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AliveProcess {
    /// The process, for people.
    pub by: String,
    /// Its provider version; `None`: 0.1.0, which does not tell.
    pub version: Option<String>,
    /// The newest schema that it reads and writes; `None`: not told.
    pub schema: Option<i64>,
}

impl AliveProcess {
    pub(super) fn new(by: String, program: Option<Program>) -> Self {
        let (version, schema) = program.map(|program| (program.version, program.schema)).unzip();
        Self { by, version, schema }
    }
}

/// The schema of a store, and the processes that use it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// The schema that it has.
    pub schema: i64,
    /// The newest schema that this version reads and writes.
    pub newest: i64,
    /// The processes that are alive.
    pub alive: Vec<AliveProcess>,
}

impl Usage {
    /// The processes that could not use the store any more after a migration.
    pub fn too_old(&self) -> impl Iterator<Item = &AliveProcess> {
        self.alive.iter().filter(|process| process.schema.is_none_or(|schema| schema < self.newest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_used_as_it_is_refused_or_left_to_store_migrate() {
        let (both, about) = (Supported { least: 3, newest: 5 }, StoreErrors::new("sqlite:///x"));
        for (found, migrating, said) in [
            (2, false, Some("store migrate")),
            (2, true, None),
            (3, false, None),
            (5, false, None),
            (6, false, Some("newer version")),
            (6, true, Some("newer version")),
        ] {
            let refused = both.check(found, migrating, &about).err().map(|error| error.to_string());
            match said {
                None => assert_eq!(refused, None),
                Some(said) => assert!(refused.as_ref().is_some_and(|text| text.contains(said)), "{found}: {refused:?}"),
            }
        }
        assert!(both.check_open(5, &about).is_ok());
        assert!(both.check_open(6, &about).unwrap_err().to_string().contains("migrated it to schema 6"));
    }

    #[test]
    fn a_process_tells_its_version_where_version_0_1_0_reads_over_it() {
        let runner = Runner::new("r", "ada", "desk", 1);
        let text = serde_json::to_string(&Stamped { runner: &runner, program: Program::own(4) }).unwrap();
        assert_eq!(serde_json::from_str::<Runner>(&text).unwrap(), runner, "as version 0.1.0 reads it");
        assert_eq!(stamped(&text), (runner.to_string(), Some(Program::own(4))));
        let without = serde_json::to_string(&runner).unwrap();
        assert_eq!(stamped(&without), (runner.to_string(), None));
        let alive = |program| AliveProcess::new("ada".into(), program);
        let usage = |alive| Usage { schema: 3, newest: 4, alive };
        assert_eq!(usage(vec![alive(Some(Program::own(4)))]).too_old().count(), 0);
        assert_eq!(usage(vec![alive(Some(Program::own(3))), alive(None)]).too_old().count(), 2);
    }
}
