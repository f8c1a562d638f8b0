//! Files that the configuration or the command line names: what is read of them, and, where they
//! decide who is trusted or hold secrets, who else may change or read them.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _},
    path::Path,
};

const MIB: u64 = 1 << 20;
/// The limit of files that are written by hand or by an authority: passwords, certificates,
/// kubeconfigs.
pub const SMALL: u64 = 4 * MIB;
/// The limit of an inventory: about 100 000 servers.
pub const INVENTORY: u64 = 32 * MIB;
/// The limit of a calendar.
pub const CALENDAR: u64 = 4 * MIB;
/// The limit of an ignition file: a Secret of Kubernetes holds no more.
pub const IGNITION: u64 = MIB;
/// The limit of an export of a store.
pub const EXPORT: u64 = 1024 * MIB;

/// What may be read besides a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pipes {
    /// Pipes, as of `<(command)` in a shell: what they hold is read once.
    Allowed,
    /// Nothing: the file is read in each run, and again in the same run.
    Refused,
}

/// Why a file is not used.
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
    #[error("the name of the file is empty")]
    Unnamed,
    /// It is not a file: a read of it may never end.
    #[error("{path} is {found}, not a regular file")]
    NotAFile {
        /// The path.
        path: String,
        /// Its kind, with an article.
        found: &'static str,
    },
    /// It is larger than such files are.
    #[error("{path} is larger than {} MiB, the limit of such a file", most / MIB)]
    TooLarge {
        /// The file.
        path: String,
        /// The limit in bytes.
        most: u64,
    },
    /// A pipe into which nothing is written.
    #[error("{path} is a pipe into which nothing was written for {} s", SILENCE.as_secs())]
    Silent {
        /// The pipe.
        path: String,
    },
    /// Other users may change it, or what is found under its name.
    #[error("{path} {why}. {advice}")]
    Writable {
        /// The file.
        path: String,
        /// Who may change it.
        why: String,
        /// What to do.
        advice: String,
    },
}

/// How long a pipe may be silent.
const SILENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// Reads a file that decides who is trusted, or that holds a secret: at most `most` bytes. Refused
/// when other users may change it. It may be a pipe.
pub fn read(path: &str, most: u64) -> Result<String, FileError> {
    refuse_writable(Path::new(path))?;
    read_text(Path::new(path), most, Pipes::Allowed)
}

/// Reads a text of at most `most` bytes.
pub fn read_text(path: &Path, most: u64, pipes: Pipes) -> Result<String, FileError> {
    let bytes = read_bytes(path, most, pipes)?;
    String::from_utf8(bytes).map_err(|_| {
        let source = io::Error::new(io::ErrorKind::InvalidData, "it is not text in UTF-8");
        FileError::Unreadable { path: path.display().to_string(), source }
    })
}

/// Reads at most `most` bytes.
pub fn read_bytes(path: &Path, most: u64, pipes: Pipes) -> Result<Vec<u8>, FileError> {
    let unreadable = |source| FileError::Unreadable { path: path.display().to_string(), source };
    // Before it is opened: opening a device may do something, opening a pipe may wait.
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

/// Checks what a library reads by itself: that it is a file of at most `most` bytes. Tells whether
/// it is a pipe.
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

/// Tells whether it is a pipe; refuses everything else that is not a regular file.
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

/// Refuses a file that other users may change: one that its group or everybody may write, one in a
/// folder in which everybody may rename, and one that another user placed in a folder where every
/// user may place files.
///
/// What is not a file, such as a pipe of the shell, is not judged.
#[cfg(unix)]
pub fn refuse_writable(path: &Path) -> Result<(), FileError> {
    use std::os::unix::fs::MetadataExt as _;

    let shown = path.display().to_string();
    let unreadable = |source| FileError::Unreadable { path: shown.clone(), source };
    let refused = |why: String, advice: String| FileError::Writable { path: shown.clone(), why, advice };
    let found = metadata(path)?;
    if !found.is_file() {
        return Ok(());
    }
    // Many systems give each user a group of the same number, and let it write what the user makes.
    let private = found.uid() != 0 && found.gid() == found.uid();
    if found.mode() & 0o002 != 0 || (found.mode() & 0o020 != 0 && !private) {
        let who = if found.mode() & 0o002 != 0 { "every user" } else { "its group" };
        let why = format!("can be changed by {who} (mode {:04o})", found.mode() & 0o7777);
        return Err(refused(why, format!("Run: chmod go-w {shown}")));
    }
    let real = fs::canonicalize(path).map_err(unreadable)?;
    let Some(folder) = real.parent() else { return Ok(()) };
    let of_folder = fs::metadata(folder).map_err(unreadable)?;
    let (open, sticky) = (of_folder.mode() & 0o002 != 0, of_folder.mode() & 0o1000 != 0);
    let (own, owner) = (rustix::process::geteuid().as_raw(), found.uid());
    let advice = "Put it into a folder that only you may write".to_owned();
    if open && !sticky {
        return Err(refused(format!("is in {}, where every user may replace it", folder.display()), advice));
    }
    if open && owner != own && owner != 0 {
        let why = format!("is in {}, where every user may place files, and belongs to user {owner}", folder.display());
        return Err(refused(why, advice));
    }
    Ok(())
}

/// Refuses a file outside of the user's profile. Windows keeps other users away from a profile, and
/// lets every user change what is in most other folders. The access control list of a file is not
/// read.
#[cfg(not(unix))]
pub fn refuse_writable(path: &Path) -> Result<(), FileError> {
    refuse_outside(path, std::env::home_dir().as_deref())
}

/// The rule of [`refuse_writable`] where rights are not those of Unix. Links count where they lead.
#[cfg(any(not(unix), test))]
fn refuse_outside(path: &Path, profile: Option<&Path>) -> Result<(), FileError> {
    let shown = path.display().to_string();
    let unreadable = |source| FileError::Unreadable { path: shown.clone(), source };
    if !metadata(path)?.is_file() {
        return Ok(());
    }
    let real = fs::canonicalize(path).map_err(unreadable)?;
    let profile = profile.filter(|profile| profile.parent().is_some());
    let within = profile.and_then(|profile| fs::canonicalize(profile).ok());
    if within.is_some_and(|profile| real.starts_with(profile)) {
        return Ok(());
    }
    let place = profile.map_or_else(|| "which is not known".to_owned(), |profile| profile.display().to_string());
    Err(FileError::Writable {
        path: shown,
        why: format!(
            "is not in your profile ({place}): elsewhere other users may change it, and Windows rights are not read"
        ),
        advice: "Put it into a folder of your profile".to_owned(),
    })
}

/// Whether other users may read a file that holds a secret.
#[cfg(unix)]
#[must_use]
pub fn others_may_read(path: &str) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & 0o044 != 0)
}

/// Elsewhere a file that other users may read is refused before ([`refuse_writable`]).
#[cfg(not(unix))]
#[must_use]
pub fn others_may_read(_: &str) -> bool {
    false
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn with_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the file is ours");
    }

    #[test]
    fn what_others_may_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        fs::write(&file, "x").unwrap();
        for (of_file, of_folder, refused) in [
            (0o600, 0o700, None),
            (0o644, 0o755, None),
            (0o644, 0o775, None),
            (0o644, 0o1777, None),
            (0o664, 0o700, Some("by its group (mode 0664)")),
            (0o666, 0o700, Some("by every user")),
            (0o602, 0o700, Some("by every user")),
            (0o600, 0o777, Some("every user may replace it")),
        ] {
            with_mode(&file, of_file);
            with_mode(folder.path(), of_folder);
            let said = read(&file.display().to_string(), SMALL).map_err(|error| error.to_string());
            match refused {
                None => assert_eq!(said, Ok("x".to_owned()), "{of_file:o} {of_folder:o}"),
                Some(why) => assert!(said.clone().unwrap_err().contains(why), "{of_file:o} {of_folder:o}: {said:?}"),
            }
        }
        with_mode(folder.path(), 0o700);
        with_mode(&file, 0o640);
        assert!(others_may_read(&file.display().to_string()));
        with_mode(&file, 0o600);
        assert!(!others_may_read(&file.display().to_string()));
    }

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
        assert_eq!(said(Path::new(""), MIB, Pipes::Refused), Err("the name of the file is empty".to_owned()));
        // A file without a length of its own.
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

    #[test]
    fn without_rights_of_unix_only_the_profile_is_believed() {
        let folder = tempfile::tempdir().unwrap();
        let (profile, other) = (folder.path().join("ada"), folder.path().join("ada-2"));
        for (user, file) in [(&profile, "own.pem"), (&other, "ca.pem")] {
            fs::create_dir(user).unwrap();
            fs::write(user.join(file), "x").unwrap();
        }
        std::os::unix::fs::symlink(other.join("ca.pem"), profile.join("link.pem")).unwrap();
        let refused = |path: &Path, profile: Option<&Path>| {
            refuse_outside(path, profile).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(refused(&profile.join("own.pem"), Some(&profile)), "");
        assert_eq!(refused(&other, Some(&profile)), "", "a folder is not judged");
        let place = format!("is not in your profile ({})", profile.display());
        for elsewhere in [other.join("ca.pem"), profile.join("link.pem")] {
            assert!(refused(&elsewhere, Some(&profile)).contains(&place), "{}", refused(&elsewhere, Some(&profile)));
        }
        // The root is the profile of nobody.
        for unknown in [None, Some(Path::new("/"))] {
            assert!(refused(&profile.join("own.pem"), unknown).contains("your profile (which is not known)"));
        }
    }

    #[test]
    fn a_file_that_another_user_placed_where_everybody_may_is_refused() {
        // Only root can place one.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("coordination.sqlite");
        fs::write(&file, "").unwrap();
        with_mode(&file, 0o600);
        with_mode(folder.path(), 0o1777);
        let other = rustix::fs::Uid::from_raw(4711);
        rustix::fs::chown(&file, Some(other), None).unwrap();
        assert!(refuse_writable(&file).unwrap_err().to_string().contains("belongs to user 4711"));
        with_mode(folder.path(), 0o755);
        refuse_writable(&file).unwrap();
    }
}
