//! Renames that a plan announces to an apply in the same folder.
//!
//! With `create_before_destroy` a create meets its predecessor, which is released only afterwards,
//! so it would wait in vain. Hosts pass no data about the predecessor to that create, and a plan
//! must not write into the store. So the plan writes a file, which only this user's runs in the
//! same folder with the same store read. Without the file (another machine) the create waits.

use std::{env, fs, io, path::Path};

use sha2::{Digest as _, Sha256};

use crate::maintenance::ids::{MaintenanceId, Uid};

use super::{Engine, liveness::private_folder};

/// Names the files.
const SUFFIX: &str = ".rename";

/// How many files are read.
const MOST: usize = 1024;

impl Engine {
    /// Announces the next name of a record's resource; `None`: the resource keeps its name.
    pub fn announce(&self, uid: &Uid, successor: Option<&MaintenanceId>) {
        if let Err(error) = self.write_announcement(uid, successor) {
            tracing::debug!(%error, "a create before its predecessor's destroy will wait");
        }
    }

    fn write_announcement(&self, uid: &Uid, successor: Option<&MaintenanceId>) -> io::Result<()> {
        let place = self.place()?;
        let file = private_folder()?.join(digest(&format!("{place}\n{}", uid.raw())) + SUFFIX);
        match successor {
            Some(id) => fs::write(file, format!("{place}\n{id}\n{}", uid.raw())),
            None => fs::remove_file(file).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
        }
    }

    /// The record whose resource a plan in this folder renames to `id`.
    #[must_use]
    pub fn predecessor(&self, id: &MaintenanceId) -> Option<Uid> {
        let (place, id) = (self.place().ok()?, id.to_string());
        let entries = fs::read_dir(private_folder().ok()?).ok()?;
        let files = entries.flatten().map(|entry| entry.path()).filter(|path| is_announcement(path)).take(MOST);
        files.filter_map(|path| fs::read_to_string(path).ok()).find_map(|text| {
            let [its_place, its_id, uid] = text.lines().collect::<Vec<_>>()[..] else { return None };
            (its_place == place && its_id == id).then(|| Uid::new(uid))
        })
    }

    /// Identifies the run's folder and store.
    fn place(&self) -> io::Result<String> {
        Ok(digest(&format!("{}\n{}", env::current_dir()?.display(), self.store().id())))
    }
}

fn is_announcement(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(SUFFIX))
}

fn digest(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}
