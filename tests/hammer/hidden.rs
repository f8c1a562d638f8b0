//! Workers that cannot see each other: `/proc` mounted with `hidepid=2`, and two users.

use std::{env, fs, io, os::unix::fs::PermissionsExt as _, process::Command};

use tempfile::NamedTempFile;

/// Users without access to other processes: 65534, and an unnamed user.
pub const USERS: [u32; 2] = [65534, 65533];

/// Runs in a new mount namespace, with the program bind-mounted where every user can run it.
const SCRIPT: &str = "set -e; mount -t proc -o hidepid=2 proc /proc; mount --bind \"$1\" \"$2\"; user=$3; program=$2; \
                      shift 3; exec setpriv --reuid=\"$user\" --regid=\"$user\" --clear-groups \"$program\" \"$@\"";

/// Path at which these workers run their program.
pub struct Hidden(NamedTempFile);

impl Hidden {
    /// Prepares the path, or returns why this is impossible here.
    pub fn possible() -> Result<Self, String> {
        let place = NamedTempFile::new().map_err(|error| error.to_string())?;
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())?;
        let this = Self(place);
        let tried = this.command(USERS[0]).and_then(|mut command| command.args(["--list", "none-of-them"]).output());
        match tried {
            Ok(output) if output.status.success() => Ok(this),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns a command that runs this test program as the user. It uses `exec`, so signals reach
    /// the program.
    pub fn command(&self, user: u32) -> io::Result<Command> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", SCRIPT, "sh"]).arg(env::current_exe()?).arg(self.0.path());
        command.arg(user.to_string()).current_dir("/");
        Ok(command)
    }
}

/// Returns true if this process cannot see process 1.
pub fn sees_nothing() -> bool {
    fs::read_to_string("/proc/1/stat").is_err()
}
