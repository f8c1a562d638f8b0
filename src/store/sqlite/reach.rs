//! Warns if the file is on a network file system. SQLite's locks and shared memory do not work
//! across machines, so other machines would not see the locks.

use std::path::{Path, PathBuf};

/// File systems that several machines can mount, as named in `/proc/self/mountinfo`.
const SHARED: [&str; 30] = [
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "davfs",
    "fuse.beegfs",
    "fuse.ceph",
    "fuse.ceph-fuse",
    "fuse.cvmfs2",
    "fuse.davfs2",
    "fuse.glusterfs",
    "fuse.grpcfuse",
    "fuse.juicefs",
    "fuse.rclone",
    "fuse.s3fs",
    "fuse.sshfs",
    "gfs2",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "smb2",
    "smb3",
    "smbfs",
    "virtiofs",
];

/// Returns a warning if the file is on a file system that several machines can share.
pub(super) fn warning(path: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    warning_from(&mounts, path)
}

fn warning_from(mounts: &str, path: &Path) -> Option<String> {
    let (kind, mount) = file_system(mounts, path)?;
    SHARED.contains(&kind.as_str()).then(|| {
        format!(
            "{} is on a network file system ({kind} at {}), where SQLite cannot lock across machines: the lock covers \
             this machine only.",
            path.display(),
            mount.display()
        )
    })
}

/// Returns true if something is mounted at this very path.
pub(super) fn is_mount_point(path: &Path) -> bool {
    std::fs::read_to_string("/proc/self/mountinfo").is_ok_and(|mounts| is_mount_point_in(&mounts, path))
}

fn is_mount_point_in(mounts: &str, path: &Path) -> bool {
    file_system(mounts, path).is_some_and(|(_, point)| point == path)
}

/// Returns a path's file system: the longest mount point that contains it; among equals, the last
/// mounted. `proc_pid_mountinfo(5)` describes the format.
fn file_system(mounts: &str, path: &Path) -> Option<(String, PathBuf)> {
    let mut best: Option<(usize, String, PathBuf)> = None;
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let (Some(point), Some(kind)) = (left.split(' ').nth(4), right.split(' ').next()) else { continue };
        let point = PathBuf::from(unescape(point));
        let depth = point.components().count();
        if path.starts_with(&point) && best.as_ref().is_none_or(|(deepest, ..)| depth >= *deepest) {
            best = Some((depth, kind.to_owned(), point));
        }
    }
    best.map(|(_, kind, point)| (kind, point))
}

/// Space, tab, line feed and backslash are written as three octal digits.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:30 / /home rw,relatime shared:5 master:1 - nfs4 filer:/home rw,vers=4.2
31 30 254:1 / /home/local rw - xfs /dev/vdb rw
32 22 0:31 / /mnt/team\\040share rw - cifs //filer/team rw
33 22 254:2 / /srv rw - ext4 /dev/vdc rw
34 33 0:33 / /srv rw - fuse.sshfs filer:/srv rw
a line of the future";

    fn kind(path: &str) -> String {
        file_system(MOUNTS, Path::new(path)).unwrap().0
    }

    #[test]
    fn the_longest_mount_point_counts_and_the_last_one_hides_those_below() {
        assert_eq!(kind("/var/lib/x"), "ext4");
        assert_eq!(kind("/home/a/x"), "nfs4");
        assert_eq!(kind("/home/local/x"), "xfs");
        assert_eq!(kind("/homework/x"), "ext4");
        assert_eq!(kind("/mnt/team share/x"), "cifs");
        assert_eq!(kind("/srv/x"), "fuse.sshfs");
    }

    #[test]
    fn only_a_shared_file_system_is_warned_of() {
        assert_eq!(warning_from(MOUNTS, Path::new("/home/local/x.sqlite")), None);
        let warning = warning_from(MOUNTS, Path::new("/home/a/x.sqlite")).unwrap();
        assert!(warning.contains("nfs4 at /home") && warning.contains("/home/a/x.sqlite"), "{warning}");
    }

    #[test]
    fn a_file_that_is_mounted_alone_is_a_mount_point() {
        let mounts = format!("{MOUNTS}\n40 22 254:0 /srv/x.sqlite /data/x\\040y.sqlite rw - ext4 /dev/vda rw");
        assert!(is_mount_point_in(&mounts, Path::new("/data/x y.sqlite")));
        assert!(!is_mount_point_in(&mounts, Path::new("/data/x y.sqlite-wal")));
        assert!(!is_mount_point_in(&mounts, Path::new("/home/local/x.sqlite")));
    }

    #[test]
    fn the_list_is_sorted_so_that_a_reader_finds_an_entry() {
        assert!(SHARED.is_sorted());
    }
}
