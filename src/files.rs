//! Files that decide who is trusted, or that hold secrets: who else may change or read them.

use std::{fs, io, path::Path};

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

/// Reads a file that decides who is trusted, or that holds a secret. Refused when other users may
/// change it.
pub fn read(path: &str) -> Result<String, FileError> {
    let unreadable = |source| FileError::Unreadable { path: path.to_owned(), source };
    refuse_writable(Path::new(path)).map_err(|error| match error {
        FileError::Unreadable { source, .. } => unreadable(source),
        writable @ FileError::Writable { .. } => writable,
    })?;
    fs::read_to_string(path).map_err(unreadable)
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
    let found = fs::metadata(path).map_err(unreadable)?;
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
    let advice = "Put it into a folder that only you may write.".to_owned();
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
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
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
        advice: "Put it into a folder of your profile.".to_owned(),
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
            let said = read(&file.display().to_string()).map_err(|error| error.to_string());
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
