//! Detects whether a process on this machine still runs, by a mark in the store and a file lock.
//!
//! Each process keeps a file locked while it lives (flock(2)); its mark identifies the file by a
//! random nonce. The kernel releases the lock when the process ends, and never earlier. So only a
//! lock that can be acquired proves the end. These prove nothing: a `/proc` without the process
//! (`hidepid`, `ProtectProc`, another PID namespace), a file that cannot be opened (another user,
//! file descriptors exhausted), and a missing file. The nonce distinguishes machines that were
//! cloned while running and share a boot ID: the file is missing on the clone.
//!
//! Processes on systems other than Linux leave no mark. Their end is detected when their lease
//! expires.
#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "the rule is pure, and tested everywhere"))]

use uuid::Uuid;

use crate::clock::Boot;
pub use crate::maintenance::report::Liveness;

/// Format of marks that this version writes. Marks in other formats prove nothing.
const FORM: &str = "2";

/// Identifies a process to other processes on the same machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    /// The machine's ID; can be empty.
    machine: String,
    /// The boot ID.
    boot: String,
    /// The PID namespace.
    pids: String,
    /// The file's owner.
    user: u32,
    /// The PID in that namespace.
    pid: u32,
    /// Start time in clock ticks after boot (proc(5), field 22 of `stat`).
    started: String,
    /// Identifies the locked file.
    nonce: Uuid,
}

impl Mark {
    fn text(&self) -> String {
        let Self { machine, boot, pids, user, pid, started, nonce } = self;
        format!("{FORM}/{machine}/{boot}/{pids}/{user}/{pid}/{started}/{}", nonce.simple())
    }

    /// Returns `None` for another format.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split('/').collect();
        let [FORM, machine, boot, pids, user, pid, started, nonce] = fields[..] else { return None };
        Some(Self {
            machine: machine.to_owned(),
            boot: boot.to_owned(),
            pids: pids.to_owned(),
            user: user.parse().ok()?,
            pid: pid.parse().ok()?,
            started: started.to_owned(),
            nonce: Uuid::try_parse(nonce).ok()?,
        })
    }
}

/// State of a mark's lock file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockFile {
    /// A process has locked it.
    Locked,
    /// No process has locked it.
    Free,
    /// The file does not exist.
    Absent,
    /// It cannot be opened or locked, or has another owner.
    Unreadable,
}

/// A mark's PID in `/proc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// The same process: same PID and start time, not a zombie.
    Running,
    /// Another process, a zombie, or nothing readable.
    Otherwise,
}

/// Applies the rule. `pids`: our own PID namespace, if available.
fn judge(mark: &Mark, here: &Boot, pids: Option<&str>, file: LockFile, shown: Shown) -> Liveness {
    if mark.machine != here.machine || mark.boot != here.id {
        return Liveness::Unknown;
    }
    // A network file system can lose locks when its server restarts. A running process in `/proc`
    // exposes that.
    let contradicted = pids == Some(mark.pids.as_str()) && shown == Shown::Running;
    match file {
        LockFile::Locked => Liveness::Alive,
        LockFile::Free if !contradicted => Liveness::Gone,
        LockFile::Free | LockFile::Absent | LockFile::Unreadable => Liveness::Unknown,
    }
}

#[cfg(target_os = "linux")]
pub use linux::{end_mark, liveness, own_mark, private_folder};
#[cfg(target_os = "linux")]
pub(super) use linux::{host_process, living_texts, write_own};

/// Returns an error, because this system does not use private files.
#[cfg(not(target_os = "linux"))]
pub fn private_folder() -> std::io::Result<std::path::PathBuf> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Returns an empty mark, because this system cannot detect whether a process runs.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn own_mark() -> String {
    String::new()
}

/// Does nothing on this system.
#[cfg(not(target_os = "linux"))]
pub fn end_mark(_mark: &str) {}

/// Returns [`Liveness::Unknown`] on this system.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn liveness(_mark: &str) -> Liveness {
    Liveness::Unknown
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        fs::{self, DirBuilder, File, OpenOptions},
        io,
        os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
        path::{Path, PathBuf},
        sync::{Mutex, PoisonError},
        time::Duration,
    };

    use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
    use uuid::Uuid;

    use super::{Liveness, LockFile, Mark, Shown, judge};
    use crate::clock::this_boot;

    /// Parent of the per-user folders. `TMPDIR` is not used, because it differs between jobs.
    const BASE: &str = "/tmp";

    /// Age at which a killed process's file is removed.
    const STALE: Duration = Duration::from_hours(24);

    /// Maximum number of files per sweep.
    const MOST_SWEPT: usize = 64;

    /// Longest text read from another process, in bytes.
    const MOST_READ: u64 = 1 << 20;

    /// This process's mark and its file.
    #[derive(Debug)]
    struct OwnMark {
        mark: String,
        path: PathBuf,
        /// This open file carries the lock.
        _file: File,
        users: usize,
    }

    static OWN: Mutex<Option<OwnMark>> = Mutex::new(None);

    /// Returns this process's mark; empty if it could not be created. Release it with [`end_mark`].
    #[must_use]
    pub fn own_mark() -> String {
        let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
        if own.is_none() {
            match make(Path::new(BASE)) {
                Ok(made) => *own = made,
                Err(error) => tracing::debug!(%error, "other processes will detect this process's end late"),
            }
        }
        own.as_mut().map_or_else(String::new, |own| {
            own.users += 1;
            own.mark.clone()
        })
    }

    /// Releases a mark from [`own_mark`]. The last release removes its file.
    pub fn end_mark(mark: &str) {
        let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ours) = own.as_mut().filter(|own| own.mark == mark) else { return };
        ours.users -= 1;
        if ours.users == 0 {
            // A later sweep removes a file that stays.
            let _ = fs::remove_file(&ours.path);
            *own = None;
        }
    }

    /// Writes a text into our mark's file, for this user's other processes.
    pub(in crate::engine) fn write_own(text: &[u8]) {
        let own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = own.as_ref()
            && let Err(error) = fs::write(&own.path, text)
        {
            tracing::debug!(%error, "other provider configurations cannot find this store");
        }
    }

    /// Returns texts from this user's other living processes.
    pub(in crate::engine) fn living_texts() -> Vec<Vec<u8>> {
        let folder = folder(Path::new(BASE), rustix::process::geteuid().as_raw());
        if !belongs_to(&folder, rustix::process::geteuid().as_raw()) {
            return Vec::new();
        }
        let own = OWN.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|own| own.path.clone());
        let paths = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let others = paths.filter(|path| Some(path) != own.as_ref()).filter_map(|path| File::open(path).ok());
        let locked = |file: &File| flock(file, FlockOperation::NonBlockingLockShared).is_err();
        others.filter(locked).filter_map(|file| read_up_to(&file, MOST_READ).ok()).collect()
    }

    fn read_up_to(file: &File, most: u64) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, most), &mut text)?;
        Ok(text)
    }

    /// Returns the parent process's PID and start time.
    pub(in crate::engine) fn host_process() -> Option<String> {
        let parent = std::os::unix::process::parent_id();
        Some(format!("{parent}/{}", started(parent)?))
    }

    /// Checks the process with this mark.
    #[must_use]
    pub fn liveness(mark: &str) -> Liveness {
        let Some((mark, here)) = Mark::parse(mark).zip(this_boot()) else { return Liveness::Unknown };
        let file = look(&folder(Path::new(BASE), mark.user), &mark);
        judge(&mark, &here, pids().as_deref(), file, shown(&mark))
    }

    fn folder(base: &Path, user: u32) -> PathBuf {
        base.join(format!("terraform-provider-metal-{user}"))
    }

    fn file(folder: &Path, nonce: Uuid) -> PathBuf {
        folder.join(format!("{}.alive", nonce.simple()))
    }

    fn pids() -> Option<String> {
        Some(fs::read_link("/proc/self/ns/pid").ok()?.to_string_lossy().into_owned())
    }

    /// Creates and locks our process's file. `None`: the system does not provide the values for a
    /// mark.
    fn make(base: &Path) -> io::Result<Option<OwnMark>> {
        let Some(((boot, pids), started)) = this_boot().zip(pids()).zip(started(std::process::id())) else {
            return Ok(None);
        };
        let (folder, user) = (own_folder(base)?, rustix::process::geteuid().as_raw());
        let nonce = Uuid::new_v4();
        let path = file(&folder, nonce);
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        flock(&made, FlockOperation::NonBlockingLockExclusive)?;
        sweep(&folder, &made);
        let mark = Mark { machine: boot.machine, boot: boot.id, pids, user, pid: std::process::id(), started, nonce };
        Ok(Some(OwnMark { mark: mark.text(), path, _file: made, users: 0 }))
    }

    /// Returns the folder for this user's files. A sweep removes them after a day.
    pub fn private_folder() -> io::Result<PathBuf> {
        own_folder(Path::new(BASE))
    }

    fn own_folder(base: &Path) -> io::Result<PathBuf> {
        let user = rustix::process::geteuid().as_raw();
        let folder = folder(base, user);
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if !belongs_to(&folder, user) {
            let problem = format!("{} belongs to another user, or other users can access it", folder.display());
            return Err(io::Error::other(problem));
        }
        Ok(folder)
    }

    /// Returns true if only this user can create files in the folder. Other writers could fake an
    /// unlocked file.
    fn belongs_to(folder: &Path, user: u32) -> bool {
        fs::symlink_metadata(folder).is_ok_and(|it| it.is_dir() && it.uid() == user && it.mode() & 0o022 == 0)
    }

    /// Tests the lock on a mark's file. The test lock is shared, so concurrent tests do not
    /// conflict.
    fn look(folder: &Path, mark: &Mark) -> LockFile {
        // The flags prevent blocking on a FIFO and following a symbolic link.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = match open(file(folder, mark.nonce), flags, Mode::empty()) {
            Ok(opened) => File::from(opened),
            Err(rustix::io::Errno::NOENT) => return LockFile::Absent,
            Err(_) => return LockFile::Unreadable,
        };
        let theirs = opened.metadata().is_ok_and(|it| it.is_file() && it.uid() == mark.user);
        if !theirs || !belongs_to(folder, mark.user) {
            return LockFile::Unreadable;
        }
        match flock(&opened, FlockOperation::NonBlockingLockShared) {
            Ok(()) => LockFile::Free,
            Err(rustix::io::Errno::WOULDBLOCK) => LockFile::Locked,
            Err(_) => LockFile::Unreadable,
        }
    }

    /// Removes stale files of killed processes. `ours` was created just now.
    fn sweep(folder: &Path, ours: &File) {
        let Ok(now) = ours.metadata().and_then(|it| it.modified()) else { return };
        let Ok(entries) = fs::read_dir(folder) else { return };
        for entry in entries.flatten().take(MOST_SWEPT) {
            let made = entry.metadata().and_then(|it| it.modified());
            let stale = made.is_ok_and(|made| now.duration_since(made).is_ok_and(|age| age > STALE));
            let locked = |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive).is_err();
            if stale && File::open(entry.path()).is_ok_and(|file| !locked(&file)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn shown(mark: &Mark) -> Shown {
        if started(mark.pid).is_some_and(|started| started == mark.started) { Shown::Running } else { Shown::Otherwise }
    }

    /// Returns a process's start time in clock ticks after boot; `None` for a zombie or an
    /// unreadable entry.
    fn started(pid: u32) -> Option<String> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field is the program's name in parentheses, which can contain spaces and
        // parentheses.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_whitespace();
        let state = fields.next()?;
        if matches!(state, "Z" | "X") { None } else { fields.nth(18).map(str::to_owned) }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::clock::{Clock as _, SystemClock};

        #[test]
        fn what_was_killed_long_ago_is_swept_and_what_runs_stays() {
            let base = tempfile::tempdir().unwrap();
            let user = rustix::process::geteuid().as_raw();
            let folder = folder(base.path(), user);
            let first = make(base.path()).unwrap().unwrap();
            let old = |path: &Path| {
                let file = File::options().write(true).open(path).unwrap();
                let made = file.metadata().unwrap().modified().unwrap();
                file.set_modified(made - STALE * 2).unwrap();
            };
            let (dead, fresh) = (file(&folder, Uuid::new_v4()), file(&folder, Uuid::new_v4()));
            for path in [&dead, &fresh] {
                File::create(path).unwrap();
            }
            old(&dead);
            old(&first.path);
            let second = make(base.path()).unwrap().unwrap();
            assert!(!dead.exists() && fresh.exists() && first.path.exists() && second.path.exists());
            let mark = Mark::parse(&first.mark).unwrap();
            assert_eq!(look(&folder, &mark), LockFile::Locked);
            drop(first);
            until_free(&folder, &mark);
        }

        /// Waits until the lock is free. A program that another test spawns inherits every open
        /// file, with its lock, between fork and exec.
        fn until_free(folder: &Path, mark: &Mark) {
            let clock = SystemClock::default();
            while look(folder, mark) != LockFile::Free {
                assert!(clock.monotonic() < Duration::from_secs(30), "the lock is still {:?}", look(folder, mark));
                std::thread::yield_now();
            }
        }

        #[test]
        fn a_folder_that_others_may_write_to_proves_nothing() {
            use std::os::unix::fs::PermissionsExt as _;
            let base = tempfile::tempdir().unwrap();
            let own = make(base.path()).unwrap().unwrap();
            let mark = Mark::parse(&own.mark).unwrap();
            let folder = folder(base.path(), mark.user);
            drop(own);
            until_free(&folder, &mark);
            assert_eq!(look(&folder, &Mark { user: mark.user + 1, ..mark.clone() }), LockFile::Unreadable);
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
            assert_eq!(look(&folder, &mark), LockFile::Unreadable);
            assert!(make(base.path()).is_err(), "nor is a mark put there");
            fs::remove_dir_all(&folder).unwrap();
            std::os::unix::fs::symlink("/", &folder).unwrap();
            assert!(make(base.path()).is_err());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> Mark {
        Mark {
            machine: "m".into(),
            boot: "b".into(),
            pids: "pid:[1]".into(),
            user: 0,
            pid: 4711,
            started: "99".into(),
            nonce: Uuid::from_u128(7),
        }
    }

    #[test]
    fn a_mark_is_read_back_and_others_are_not_understood() {
        assert_eq!(Mark::parse(&mark().text()), Some(mark()));
        let nameless = Mark { machine: String::new(), ..mark() };
        assert_eq!(Mark::parse(&nameless.text()), Some(nameless));
        let path = mark().text().replace(&mark().nonce.simple().to_string(), "..");
        for other in ["", "b/pid:[1]/4711/99", "3/m/b/pid:[1]/0/4711/99/x", &path, &format!("{}/", mark().text())] {
            assert_eq!(Mark::parse(other), None, "{other}");
        }
    }

    /// Covers all cases. Only a lock that can be acquired is proof: on the mark's machine and boot,
    /// and if `/proc` does not show the process running.
    #[test]
    fn only_proof_is_proof() {
        let here = Boot { machine: "m".into(), id: "b".into(), namespace: "time:[1]".into() };
        let boots = [("m", "b", true), ("", "b", false), ("m", "x", false), ("x", "b", false), ("x", "x", false)];
        let namespaces = [(Some("pid:[1]"), true), (Some("pid:[2]"), false), (None, false)];
        let files = [LockFile::Locked, LockFile::Free, LockFile::Absent, LockFile::Unreadable];
        let mut seen = Vec::new();
        for (machine, boot, local) in boots {
            for (pids, same_numbers) in namespaces {
                for file in files {
                    for shown in [Shown::Running, Shown::Otherwise] {
                        let mark = Mark { machine: machine.into(), boot: boot.into(), ..mark() };
                        let contradicted = same_numbers && shown == Shown::Running;
                        let expected = match (local, file, contradicted) {
                            (true, LockFile::Locked, _) => Liveness::Alive,
                            (true, LockFile::Free, false) => Liveness::Gone,
                            _ => Liveness::Unknown,
                        };
                        let judged = judge(&mark, &here, pids, file, shown);
                        assert_eq!(judged, expected, "{mark:?} {pids:?} {file:?} {shown:?}");
                        seen.push(judged);
                    }
                }
            }
        }
        let gone = seen.iter().filter(|judged| **judged == Liveness::Gone).count();
        assert_eq!((seen.len(), gone), (5 * 3 * 4 * 2, 5));
    }
}
