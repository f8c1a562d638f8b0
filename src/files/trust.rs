//! Checks that other users cannot change a file, any folder on its path, or any link on the way.

use std::{fs, path::Path};

use super::{FileError, metadata};
use crate::shown::shell_word;

/// Whether files that other users can change are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathTrust {
    /// They are rejected.
    #[default]
    Checked,
    /// They are accepted, because the configuration opts in.
    WorldWritable,
}

impl PathTrust {
    /// The environment variable with `true` or `false`, for commands without a provider block.
    pub const VARIABLE: &str = "METAL_TRUST_WORLD_WRITABLE_PATHS";

    /// Converts the variable's value. Everything except `true` keeps the check.
    #[must_use]
    pub fn of(value: Option<&str>) -> Self {
        if value == Some("true") { Self::WorldWritable } else { Self::Checked }
    }
}

/// Rejects a path that another user can change or redirect.
///
/// Every folder, link and file must belong to root or to this user. A folder in which every user
/// can write must be sticky, so that only an entry's owner can replace it. The file itself must not
/// be writable by its group or by every user. A shell's anonymous pipe is accepted.
#[cfg(unix)]
pub fn refuse_writable(path: &Path, trust: PathTrust) -> Result<(), FileError> {
    use std::{collections::VecDeque, ffi::OsString, os::unix::fs::MetadataExt as _, path::PathBuf};

    /// The kernel follows as many links (path_resolution(7)).
    const LINKS: u32 = 40;

    metadata(path)?;
    if trust == PathTrust::WorldWritable {
        return Ok(());
    }
    let shown = path.display().to_string();
    let unreadable = |source| FileError::Unreadable { path: shown.clone(), source };
    let parts = |path: &Path| path.iter().map(OsString::from).collect::<VecDeque<_>>();
    let mut left = parts(&std::path::absolute(path).map_err(unreadable)?);
    let (mut real, mut links) = (PathBuf::from("/"), 0);
    while let Some(part) = left.pop_front() {
        if part == ".." {
            real.pop();
        }
        if part == "." || part == ".." {
            continue;
        }
        let next = real.join(&part);
        let found = fs::symlink_metadata(&next).map_err(unreadable)?;
        refuse_entry(&shown, &next, &found)?;
        if !found.is_symlink() {
            real = next;
            continue;
        }
        let target = fs::read_link(&next).map_err(unreadable)?;
        // The kernel's link to an open pipe: it is not a path.
        if real.starts_with("/proc") && target.to_string_lossy().starts_with("pipe:[") {
            return Ok(());
        }
        links += 1;
        if links > LINKS {
            return Err(unreadable(std::io::Error::from_raw_os_error(rustix::io::Errno::LOOP.raw_os_error())));
        }
        let mut rest = parts(&target);
        rest.append(&mut left);
        left = rest;
    }
    let of_file = fs::symlink_metadata(&real).map_err(unreadable)?;
    // Many systems create a group per user with the same number, which can write new files.
    let private = of_file.uid() != 0 && of_file.gid() == of_file.uid();
    let by_everyone = of_file.mode() & 0o002 != 0;
    if of_file.is_dir() || !(by_everyone || (of_file.mode() & 0o020 != 0 && !private)) {
        return Ok(());
    }
    let who = if by_everyone { "every user" } else { "its group" };
    let why = format!("can be changed by {who} (mode {:04o})", of_file.mode() & 0o7777);
    Err(FileError::Writable { advice: format!("Run: chmod go-w {}", shell_word(&shown)), path: shown, why })
}

/// Rejects a path entry with another owner, and a folder where every user can replace entries.
#[cfg(unix)]
fn refuse_entry(shown: &str, entry: &Path, found: &fs::Metadata) -> Result<(), FileError> {
    use std::os::unix::fs::MetadataExt as _;

    let place = entry.display();
    let owner = found.uid();
    let why = if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        let what = if place.to_string() == shown { String::new() } else { format!("depends on {place}, which ") };
        format!("{what}belongs to user {owner}")
    } else if found.is_dir() && found.mode() & 0o002 != 0 && found.mode() & 0o1000 == 0 {
        format!("is in {place}, where every user can replace it")
    } else {
        return Ok(());
    };
    let advice = "Put it into a folder that only you can write".to_owned();
    Err(FileError::Writable { path: shown.to_owned(), why, advice })
}

/// Rejects a file outside the user's profile. Windows protects a profile from other users, but
/// every user can write to most other folders. Access control lists are not read.
#[cfg(not(unix))]
pub fn refuse_writable(path: &Path, trust: PathTrust) -> Result<(), FileError> {
    if trust == PathTrust::WorldWritable {
        return metadata(path).map(drop);
    }
    refuse_outside(path, std::env::home_dir().as_deref())
}

/// Implements [`refuse_writable`] for systems without Unix permissions. Links are resolved.
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
            "is not in your profile ({place}): elsewhere, other users could change it, and the provider does not \
             read Windows permissions"
        ),
        advice: "Put it into a folder of your profile".to_owned(),
    })
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::files::{SMALL, others_may_read, read};

    fn with_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the file is ours");
    }

    fn judged(path: &Path) -> Result<(), String> {
        refuse_writable(path, PathTrust::Checked).map_err(|error| error.to_string())
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
            (0o600, 0o777, Some("every user can replace it")),
        ] {
            with_mode(&file, of_file);
            with_mode(folder.path(), of_folder);
            let name = file.display().to_string();
            let said = read(&name, SMALL, PathTrust::Checked).map_err(|error| error.to_string());
            match refused {
                None => assert_eq!(said, Ok("x".to_owned()), "{of_file:o} {of_folder:o}"),
                Some(why) => assert!(said.clone().unwrap_err().contains(why), "{of_file:o} {of_folder:o}: {said:?}"),
            }
            assert_eq!(read(&name, SMALL, PathTrust::of(Some("true"))).unwrap(), "x", "the opt-in accepts it");
        }
        with_mode(folder.path(), 0o700);
        with_mode(&file, 0o640);
        assert!(others_may_read(&file.display().to_string()));
        with_mode(&file, 0o600);
        assert!(!others_may_read(&file.display().to_string()));
    }

    #[test]
    fn every_folder_and_link_of_a_path_is_judged() {
        let root = tempfile::tempdir().unwrap();
        let (open, inner, safe) = (root.path().join("open"), root.path().join("open/inner"), root.path().join("safe"));
        fs::create_dir_all(&inner).unwrap();
        fs::create_dir(&safe).unwrap();
        for folder in [&inner, &safe] {
            fs::write(folder.join("token"), "x").unwrap();
        }
        symlink(safe.join("token"), open.join("link")).unwrap();
        symlink("../open/inner/../../safe/./token", safe.join("detour")).unwrap();
        symlink("loop", safe.join("loop")).unwrap();
        for path in [inner.join("token"), open.join("link"), safe.join("detour")] {
            with_mode(&open, 0o755);
            assert_eq!(judged(&path), Ok(()), "{}", path.display());
            with_mode(&open, 0o1777);
            assert_eq!(judged(&path), Ok(()), "{}", path.display());
            with_mode(&open, 0o777);
            let why = judged(&path).unwrap_err();
            assert!(why.contains(&format!("is in {}, where every user", open.display())), "{why}");
            assert!(why.contains("trust_world_writable_paths"), "{why}");
        }
        assert!(judged(&safe.join("loop")).is_err());
    }

    /// The kubelet mounts tokens in a sticky folder that every user can write, behind two links.
    #[test]
    fn the_token_of_a_pod_is_accepted() {
        let mount = tempfile::tempdir().unwrap();
        let data = mount.path().join("..2026_11_27");
        fs::create_dir(&data).unwrap();
        fs::write(data.join("token"), "x").unwrap();
        symlink("..2026_11_27", mount.path().join("..data")).unwrap();
        symlink("..data/token", mount.path().join("token")).unwrap();
        with_mode(mount.path(), 0o1777);
        assert_eq!(judged(&mount.path().join("token")), Ok(()));
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
        // The root directory is never a profile.
        for unknown in [None, Some(Path::new("/"))] {
            assert!(refused(&profile.join("own.pem"), unknown).contains("your profile (which is not known)"));
        }
    }

    #[test]
    fn what_belongs_to_another_user_is_refused_wherever_it_is_on_the_path() {
        // Only root can create a file for another user.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let (folder, link) = (root.path().join("folder"), root.path().join("link"));
        let file = folder.join("ca.pem");
        fs::create_dir(&folder).unwrap();
        fs::write(&file, "").unwrap();
        symlink("folder", &link).unwrap();
        let path = link.join("ca.pem");
        for entry in [&folder, &link, &file] {
            assert_eq!(judged(&path), Ok(()));
            let give = |user| std::os::unix::fs::lchown(entry, Some(user), None).unwrap();
            give(4711);
            assert!(judged(&path).unwrap_err().contains("belongs to user 4711"), "{}", entry.display());
            give(0);
        }
    }
}
