//! Reads files named in the configuration or on the command line.
//!
//! A file that carries trust, a secret or a program is read through [`read`], or checked with
//! [`check_trusted`] before a library reads it. Both check the whole path (`files/trust.rs`).
//! `tests/layering.rs` rejects other reads.

mod trust;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

pub use trust::{PathTrust, refuse_writable};

const MIB: u64 = 1 << 20;
/// The limit for passwords, certificates and kubeconfigs.
pub const SMALL: u64 = 4 * MIB;
/// The limit for an inventory: about 100 000 servers.
pub const INVENTORY: u64 = 32 * MIB;
/// The limit for a calendar.
pub const CALENDAR: u64 = 4 * MIB;
/// The limit for an ignition file: the maximum size of a Kubernetes Secret.
pub const IGNITION: u64 = MIB;
/// The limit for a store export.
pub const EXPORT: u64 = 1024 * MIB;

/// Whether pipes are accepted in place of a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pipes {
    /// Accepts pipes, for example a shell's `<(command)`. A pipe can be read once.
    Allowed,
    /// Pipes are rejected: the file is read in each run, and several times per run.
    Refused,
}

/// An unusable file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The name is empty.
    #[error("the file name is empty")]
    Unnamed,
    /// It is not a file: reading it could block forever.
    #[error("{path} is {found}, not a regular file")]
    NotAFile {
        /// The path.
        path: String,
        /// Its kind, with an article.
        found: &'static str,
    },
    /// It exceeds the limit for such files.
    #[error("{path} is larger than {} MiB, the limit of such a file", most / MIB)]
    TooLarge {
        /// The file.
        path: String,
        /// The limit in bytes.
        most: u64,
    },
    /// A pipe without data.
    #[error("{path} is a pipe that received no data for {} s", SILENCE.as_secs())]
    Silent {
        /// The pipe.
        path: String,
    },
    /// Other users can change it or replace it.
    #[error(
        "{path} {why}. {advice}. If every path is writable by other users on purpose, as in some CI executors, set \
         trust_world_writable_paths (or {})",
        PathTrust::VARIABLE
    )]
    Writable {
        /// The file.
        path: String,
        /// The users who can change it.
        why: String,
        /// The fix.
        advice: String,
    },
}

/// How long a pipe can stay silent.
const SILENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// Reads at most `most` bytes from a file or pipe that carries trust, a secret or a program.
/// Rejects a path that other users can change.
pub fn read(path: impl AsRef<Path>, most: u64, trust: PathTrust) -> Result<String, FileError> {
    refuse_writable(path.as_ref(), trust)?;
    read_text(path.as_ref(), most, Pipes::Allowed)
}

/// Checks such a file before a library reads it. Returns true for a pipe.
pub fn check_trusted(path: &Path, pipes: Pipes, trust: PathTrust) -> Result<bool, FileError> {
    let is_pipe = check(path, SMALL, pipes)?;
    refuse_writable(path, trust)?;
    Ok(is_pipe)
}

/// Checks a file that this user can reach. The library reports every other error.
pub fn check_existing(path: &Path, trust: PathTrust) -> Result<(), FileError> {
    match check_trusted(path, Pipes::Allowed, trust) {
        Ok(_) | Err(FileError::Unreadable { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Checks files and folders of authorities. A missing one contains no authority.
pub fn check_authorities(paths: &[PathBuf], trust: PathTrust) -> Result<(), FileError> {
    for path in paths.iter().filter(|path| path.exists()) {
        refuse_writable(path, trust)?;
        for entry in fs::read_dir(path).into_iter().flatten().flatten().filter(|entry| entry.path().is_file()) {
            refuse_writable(&entry.path(), trust)?;
        }
    }
    Ok(())
}

/// Reads a text of at most `most` bytes.
pub fn read_text(path: &Path, most: u64, pipes: Pipes) -> Result<String, FileError> {
    let bytes = read_bytes(path, most, pipes)?;
    String::from_utf8(bytes).map_err(|_| {
        let source = io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text");
        FileError::Unreadable { path: path.display().to_string(), source }
    })
}

/// Reads at most `most` bytes.
pub fn read_bytes(path: &Path, most: u64, pipes: Pipes) -> Result<Vec<u8>, FileError> {
    let unreadable = |source| FileError::Unreadable { path: path.display().to_string(), source };
    // Check first: opening a device can have side effects, and opening a pipe can block.
    check(path, most, pipes)?;
    let mut options = OpenOptions::new();
    options.read(true);
    without_waiting(&mut options);
    let file = options.open(path).map_err(unreadable)?;
    let is_pipe = check_kind(path, &file.metadata().map_err(unreadable)?, pipes)?;
    let mut content = Vec::new();
    if is_pipe {
        read_pipe(path, &file, most, &mut content)?;
    } else {
        (&file).take(most.saturating_add(1)).read_to_end(&mut content).map_err(unreadable)?;
    }
    if u64::try_from(content.len()).is_ok_and(|length| length <= most) {
        Ok(content)
    } else {
        Err(FileError::TooLarge { path: path.display().to_string(), most })
    }
}

/// Checks a file that a library reads: it must have at most `most` bytes. Returns true for a pipe.
pub fn check(path: &Path, most: u64, pipes: Pipes) -> Result<bool, FileError> {
    let shown = || path.display().to_string();
    let found = metadata(path)?;
    let is_pipe = check_kind(path, &found, pipes)?;
    if found.is_file() && found.len() > most { Err(FileError::TooLarge { path: shown(), most }) } else { Ok(is_pipe) }
}

fn metadata(path: &Path) -> Result<fs::Metadata, FileError> {
    if path.as_os_str().is_empty() {
        return Err(FileError::Unnamed);
    }
    fs::metadata(path).map_err(|source| FileError::Unreadable { path: path.display().to_string(), source })
}

/// Returns true for a pipe; rejects everything else that is not a regular file.
fn check_kind(path: &Path, found: &fs::Metadata, pipes: Pipes) -> Result<bool, FileError> {
    let kind = if found.is_file() {
        return Ok(false);
    } else if found.is_dir() {
        "a folder"
    } else if is_pipe(found) {
        if pipes == Pipes::Allowed {
            return Ok(true);
        }
        "a pipe"
    } else {
        "a device or a socket"
    };
    Err(FileError::NotAFile { path: path.display().to_string(), found: kind })
}

#[cfg(unix)]
fn is_pipe(found: &fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&found.file_type())
}

#[cfg(not(unix))]
fn is_pipe(_: &fs::Metadata) -> bool {
    false
}

/// Opens a pipe without waiting for its writer.
#[cfg(unix)]
fn without_waiting(options: &mut OpenOptions) {
    use rustix::fs::OFlags;
    let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or_default();
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, flags);
}

#[cfg(not(unix))]
fn without_waiting(_: &mut OpenOptions) {}

/// Reads a pipe to its end, or until it is larger than `most`.
#[cfg(unix)]
fn read_pipe(path: &Path, mut file: &File, most: u64, content: &mut Vec<u8>) -> Result<(), FileError> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let shown = || path.display().to_string();
    let unreadable = |source| FileError::Unreadable { path: shown(), source };
    let silence = Timespec { tv_sec: i64::try_from(SILENCE.as_secs()).unwrap_or(i64::MAX), tv_nsec: 0 };
    let mut part = [0; 8192];
    while u64::try_from(content.len()).is_ok_and(|length| length <= most) {
        match poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&silence)) {
            Ok(0) => return Err(FileError::Silent { path: shown() }),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(unreadable(error.into())),
        }
        match file.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(length) => content.extend(part.iter().take(length)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(unreadable(error)),
        }
    }
    Ok(())
}

#[cfg(not(unix))]
fn read_pipe(_: &Path, _: &File, _: u64, _: &mut Vec<u8>) -> Result<(), FileError> {
    Ok(())
}

/// Returns true if other users can read a file that contains a secret.
#[cfg(unix)]
#[must_use]
pub fn others_may_read(path: &str) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & 0o044 != 0)
}

/// On other systems, [`refuse_writable`] has already rejected such a file.
#[cfg(not(unix))]
#[must_use]
pub fn others_may_read(_: &str) -> bool {
    false
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_file_or_too_large_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link, pipe) = (folder.path().join("file"), folder.path().join("link"), folder.path().join("pipe"));
        fs::write(&file, "x".repeat(1 << 20)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let said = |path: &Path, most, pipes| {
            read_text(path, most, pipes).map(|text| text.len()).map_err(|error| error.to_string())
        };
        let is = |path: &Path, what: &str| Err(format!("{} is {what}", path.display()));
        for (path, most, wanted) in [
            (file.as_path(), MIB, Ok(1 << 20)),
            (&link, MIB, Ok(1 << 20)),
            (&file, 0, is(&file, "larger than 0 MiB, the limit of such a file")),
            (&pipe, MIB, is(&pipe, "a pipe, not a regular file")),
            (folder.path(), MIB, is(folder.path(), "a folder, not a regular file")),
            (Path::new("/dev/zero"), MIB, is(Path::new("/dev/zero"), "a device or a socket, not a regular file")),
        ] {
            assert_eq!(said(path, most, Pipes::Refused), wanted);
        }
        assert_eq!(said(Path::new(""), MIB, Pipes::Refused), Err("the file name is empty".to_owned()));
        // A file that reports length 0.
        assert!(said(Path::new("/proc/self/status"), 10, Pipes::Refused).unwrap_err().contains("larger than"));
        let zero = said(Path::new("/dev/zero"), MIB, Pipes::Allowed);
        assert_eq!(zero, is(Path::new("/dev/zero"), "a device or a socket, not a regular file"));
    }

    #[test]
    fn a_pipe_is_read_to_its_end_and_no_further_than_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for (script, most, wanted) in [
            ("exec > \"$0\"; printf hun; printf ter2", 7, Some("hunter2")),
            ("exec > \"$0\"; printf hunter2", 6, None),
            ("exec yes > \"$0\"", 1 << 16, None),
        ] {
            let mut writer = std::process::Command::new("sh").args(["-c", script]).arg(&pipe).spawn().unwrap();
            let read = read_text(&pipe, most, Pipes::Allowed);
            match wanted {
                Some(wanted) => assert_eq!(read.unwrap(), wanted),
                None => assert!(matches!(read, Err(FileError::TooLarge { .. })), "{read:?}"),
            }
            writer.wait().unwrap();
        }
    }
}
