//! Rejects a file that two processes can reach without seeing each other's locks.
//!
//! SQLite finds its log (`-wal`) and the log's shared memory (`-shm`) by the database path.
//! Two processes write separate logs if they use different names for one file, or if one lost its
//! log. Each then grants every lock.
//!
//! | check | where it works |
//! |---|---|
//! | device and inode of the file, the log and the shared memory stay the same | Unix |
//! | each of them has one name (link count) | Unix |
//! | none of them is mounted as a single file | Linux (`/proc/self/mountinfo`) |
//! | no other process uses the file without a log (record locks) | Unix |
//! | the log was written for this store | all |
//!
//! On Windows an open file cannot be deleted or replaced; hard links are not noticed there.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use super::{file::FileId, reach};
use crate::shown::shell_word;

/// The files that SQLite keeps next to a database in WAL mode.
const SUFFIXES: [&str; 2] = ["-wal", "-shm"];

/// How much of a file is searched for its store id, which the first migration writes.
const SEARCHED: usize = 1 << 20;

fn sidecar(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns the database and its sidecars, as far as they exist.
fn existing(path: &Path) -> impl Iterator<Item = (PathBuf, fs::Metadata)> {
    let all = std::iter::once(path.to_owned()).chain(SUFFIXES.map(|suffix| sidecar(path, suffix)));
    all.filter_map(|path| fs::symlink_metadata(&path).ok().map(|found| (path, found)))
}

/// Returns the reason if other processes can reach the file, its log or its shared memory under
/// another name. `path` must not contain symbolic links.
pub(super) fn second_name(path: &Path) -> Option<String> {
    for (path, found) in existing(path) {
        let shown = path.display();
        if found.is_symlink() {
            return Some(format!("{shown} is a symbolic link. Replace it by the file"));
        }
        let links = links(&found);
        if links > 1 {
            return Some(format!(
                "{shown} has {links} names (hard links), and runs that use different names do not see each other's locks. \
                 Keep one name; find FOLDER -samefile {} lists them",
                shell_word(&path.to_string_lossy())
            ));
        }
        if reach::is_mount_point(&path) {
            return Some(format!(
                "{shown} is mounted as a single file, and runs outside this mount do not see the locks. Mount its \
                 folder instead"
            ));
        }
    }
    None
}

/// Returns the reason if the file itself has more than one name. Cheap enough for every request.
pub(super) fn second_link(path: &Path) -> Option<String> {
    let several = fs::metadata(path).is_ok_and(|found| links(&found) > 1);
    several.then(|| second_name(path)).flatten()
}

#[cfg(unix)]
fn links(found: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(found)
}

/// Windows shows link counts only to unsafe code.
#[cfg(not(unix))]
fn links(_: &fs::Metadata) -> u64 {
    1
}

/// A connection's log and shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogId([Option<FileId>; 2]);

impl LogId {
    /// Returns the files currently at the path.
    pub(super) fn of(path: &Path) -> Self {
        Self(SUFFIXES.map(|suffix| FileId::of(&sidecar(path, suffix)).ok()))
    }

    /// Returns the files that the connection opened with its first transaction.
    pub(super) fn or_now(self, path: &Path) -> Self {
        if self == Self::default() { Self::of(path) } else { self }
    }

    /// Returns true if the path still leads to this connection's files.
    pub(super) fn is_current(&self, path: &Path) -> bool {
        let now = Self::of(path);
        self.0.iter().zip(&now.0).all(|(opened, now)| opened.is_none() || opened == now)
    }
}

/// How other processes use a file, according to SQLite's record locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(unix), allow(dead_code, reason = "only Unix shows record locks"))]
enum Users {
    /// No other process, or the system does not report it.
    None,
    /// At least one process with shared access.
    Shared,
    /// One process with exclusive access.
    Exclusive,
}

/// Returns true if another process uses the file while its log or shared memory is missing from the
/// folder. That also happens for a moment while a process opens or closes the file.
pub(super) fn lacks_log(path: &Path) -> io::Result<bool> {
    let complete = LogId::of(path).0.iter().all(Option::is_some);
    Ok(!complete && users(path)? == Users::Shared)
}

/// Returns true if the log belongs to another store. A log in use is skipped.
pub(super) fn has_foreign_log(path: &Path) -> io::Result<bool> {
    // Another process can delete its log at any time, so one call both finds and opens it.
    let log = match fs::File::open(sidecar(path, "-wal")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        log => log?,
    };
    if log.metadata()?.len() == 0 || users(path)? != Users::None {
        return Ok(false);
    }
    let (log, file) = (beginning(&log)?, beginning(&*kept(path)?)?);
    let (of_log, of_file) = (store_ids(&log), store_ids(&file));
    Ok(!of_log.is_empty() && !of_file.is_empty() && of_log.is_disjoint(&of_file))
}

fn beginning(file: &fs::File) -> io::Result<Vec<u8>> {
    use io::{Read as _, Seek as _};
    let mut file = file;
    file.seek(io::SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.take(SEARCHED as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Finds store ids in pages of the table `meta`, where key and value are adjacent.
fn store_ids(bytes: &[u8]) -> BTreeSet<&[u8]> {
    const KEY: &[u8] = b"store_id";
    const LENGTH: usize = 32;
    let places = bytes.windows(KEY.len()).enumerate().filter(|(_, window)| *window == KEY);
    let values = places.filter_map(|(at, _)| bytes.get(at + KEY.len()..at + KEY.len() + LENGTH));
    values.filter(|value| value.iter().all(u8::is_ascii_hexdigit)).collect()
}

/// Returns an open file per database, kept until the process ends. Closing it would release
/// SQLite's locks on the database in this process (fcntl(2), "record locks").
fn kept(path: &Path) -> io::Result<std::sync::Arc<fs::File>> {
    use std::sync::{Arc, Mutex, PoisonError};
    static KEPT: Mutex<Vec<(PathBuf, FileId, Arc<fs::File>)>> = Mutex::new(Vec::new());
    let id = FileId::of(path)?;
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((.., file)) = kept.iter().find(|(known, its, _)| known == path && *its == id) {
        return Ok(Arc::clone(file));
    }
    let file = Arc::new(fs::File::open(path)?);
    kept.push((path.to_owned(), id, Arc::clone(&file)));
    Ok(file)
}

/// SQLite's `SHARED_FIRST` and `SHARED_SIZE` (os.h): each process that has a database in WAL mode
/// open keeps a read lock there.
#[cfg(unix)]
fn users(path: &Path) -> io::Result<Users> {
    use rustix::process::{Flock, FlockOffsetType, FlockType, fcntl_getlk};
    let file = kept(path)?;
    let blocked = |typ: FlockType| {
        let range = Flock { start: 0x4000_0002, length: 510, pid: None, typ, offset_type: FlockOffsetType::Set };
        fcntl_getlk(&*file, &range).map(|other| other.is_some())
    };
    Ok(match (blocked(FlockType::ReadLock)?, blocked(FlockType::WriteLock)?) {
        (true, _) => Users::Exclusive,
        (false, true) => Users::Shared,
        (false, false) => Users::None,
    })
}

#[cfg(not(unix))]
fn users(_: &Path) -> io::Result<Users> {
    Ok(Users::None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_pages_and_nowhere_else() {
        let id = b"0123456789abcdef0123456789abcdef";
        let page =
            [b"\x03\x17\x55audit", &b"store_id"[..], id, b"\x00", b"store_id and more text that is not one"].concat();
        assert_eq!(store_ids(&page), BTreeSet::from([&id[..]]));
        assert!(store_ids(b"store_id0123").is_empty());
    }

    #[test]
    fn a_log_that_another_process_deletes_meanwhile_is_no_error() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("metal.db");
        fs::write(&store, "store").unwrap();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::SeqCst) {
                    fs::write(sidecar(&store, "-wal"), "log").unwrap();
                    fs::remove_file(sidecar(&store, "-wal")).unwrap();
                }
            });
            let found: io::Result<Vec<bool>> = (0..20_000).map(|_| has_foreign_log(&store)).collect();
            ended.store(true, Ordering::SeqCst);
            assert!(found.unwrap().iter().all(|foreign| !foreign));
        });
    }
}
