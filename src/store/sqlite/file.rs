//! The database file: its default path, its permissions and its identity.

use std::{
    env,
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

/// Returns the default store in the user's state directory, or `None` without a home directory.
#[must_use]
pub fn default_path() -> Option<PathBuf> {
    path_in(env::var_os("XDG_STATE_HOME").map(PathBuf::from), env::home_dir())
}

/// Returns the default store by the XDG base directory rules: a relative `XDG_STATE_HOME` is
/// ignored, and `~/.local/state` is the default.
#[must_use]
pub fn path_in(state_home: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let state = state_home
        .filter(|path| path.is_absolute())
        .or_else(|| home.filter(|path| path.is_absolute()).map(|home| home.join(".local/state")))?;
    Some(state.join("terraform-provider-metal").join("coordination.sqlite"))
}

/// Returns why a file that does not exist cannot be created, if that can be determined without
/// trying: its nearest existing parent is not a folder, or this user cannot write to it.
#[must_use]
pub fn cannot_be_created(path: &Path) -> Option<String> {
    let above = path.ancestors().skip(1).find(|above| above.symlink_metadata().is_ok())?;
    if !above.is_dir() {
        return Some(format!("it cannot be created: {} is not a folder", above.display()));
    }
    let problem = not_writable(above)?;
    Some(format!("it cannot be created in {}: {problem}", above.display()))
}

#[cfg(unix)]
fn not_writable(folder: &Path) -> Option<io::Error> {
    use rustix::fs::{Access, access};
    access(folder, Access::WRITE_OK | Access::EXEC_OK).err().map(io::Error::from)
}

#[cfg(not(unix))]
fn not_writable(_: &Path) -> Option<io::Error> {
    None
}

/// A file's identity. A replaced or deleted file must be noticed, because other processes would not
/// see our changes in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    #[cfg(unix)]
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let found = fs::metadata(path)?;
        Ok(Self { device: found.dev(), inode: found.ino() })
    }

    /// On other systems, an open file cannot be removed.
    #[cfg(not(unix))]
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|_| Self { device: 0, inode: 0 })
    }
}

/// Creates a missing folder and an empty file, accessible to this user only, and returns the real
/// path. SQLite copies the permissions to its own files.
pub(super) fn prepare(path: &Path) -> io::Result<PathBuf> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    make_folder(folder)?;
    match new_file().open(path) {
        // The name must survive a power loss before any process relies on the contents.
        Ok(file) => file.sync_all().and_then(|()| sync_folder(folder))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    if fs::metadata(path)?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    fs::canonicalize(path)
}

#[cfg(unix)]
fn make_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(not(unix))]
fn make_folder(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)
}

fn new_file() -> OpenOptions {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_a_place_that_is_not_a_folder_cannot_be_created() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(cannot_be_created(&folder.path().join("new/x.sqlite")), None);
        let file = folder.path().join("file");
        File::create(&file).unwrap();
        let problem = cannot_be_created(&file.join("deeper/x.sqlite")).unwrap();
        assert!(problem.ends_with("file is not a folder"), "{problem}");
    }

    #[test]
    fn the_default_follows_the_base_directory_rules() {
        let at = |state: Option<&str>, home: Option<&str>| path_in(state.map(PathBuf::from), home.map(PathBuf::from));
        let file = "terraform-provider-metal/coordination.sqlite";
        assert_eq!(at(Some("/s"), Some("/home/a")), Some(Path::new("/s").join(file)));
        assert_eq!(at(None, Some("/home/a")), Some(Path::new("/home/a/.local/state").join(file)));
        assert_eq!(at(Some("relative"), Some("/home/a")), at(None, Some("/home/a")));
        assert_eq!(at(Some(""), Some("/home/a")), at(None, Some("/home/a")));
        assert_eq!(at(None, None), None);
    }
}
