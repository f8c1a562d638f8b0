//! BMC passwords from files and environment variables.

use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret as _, SecretString};

use crate::{
    backend::plug::{Block, Problem, Variables, Warning, read_file},
    files,
};

use super::{
    attributes::{INVENTORY_PASSWORD_ENV_PREFIX, INVENTORY_PASSWORD_FOLDER, PASSWORD_FILE},
    inventory::InventoryServer,
};

/// The default prefix of environment variables that an inventory file can reference.
const ENV_PREFIX: &str = "METAL_";

/// Reads a password file without the line end that editors add.
pub(super) fn read_password(path: &str, at: &[&str], env: Variables<'_>) -> Result<SecretString, Problem> {
    let text = SecretString::from(read_file(path, at, env)?);
    Ok(SecretString::from(text.expose_secret().trim_end_matches(['\r', '\n'])))
}

/// Limits on the passwords that an inventory file can reference.
///
/// An inventory's editor is not necessarily allowed to read the process's secrets. An entry with
/// the editor's own address and any variable or file name would send a secret there.
#[derive(Debug)]
pub(super) struct InventoryLimits {
    prefix: String,
    folder: PathBuf,
}

impl InventoryLimits {
    /// Returns the limits for an inventory file. By default, variables must start with `METAL_`,
    /// and files must be in the inventory's folder.
    pub(super) fn new(inventory: &str, prefix: Option<String>, folder: Option<String>) -> Self {
        let beside = Path::new(inventory).parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.map_or_else(|| beside.unwrap_or(Path::new(".")).to_owned(), PathBuf::from);
        Self { prefix: prefix.unwrap_or_else(|| ENV_PREFIX.to_owned()), folder }
    }

    /// Rejects a server that references another variable or file.
    pub(super) fn check(&self, name: &str, server: &InventoryServer) -> Result<(), Problem> {
        let refused = |field: &str, problem: String| {
            let problem = format!("server {name:?} of the inventory file: {problem}");
            Err(Problem::of(&["servers", name, field], problem))
        };
        if let Some(variable) = server.password_env.as_ref().filter(|name| !name.starts_with(&self.prefix)) {
            let prefix = &self.prefix;
            return refused(
                "password_env",
                format!(
                    "{variable} does not begin with {prefix}. Rename it, or set {} in the provider block ({})",
                    INVENTORY_PASSWORD_ENV_PREFIX.name,
                    INVENTORY_PASSWORD_ENV_PREFIX.variable()
                ),
            );
        }
        if let Some(file) = server.password_file.as_ref().filter(|file| !self.holds(file)) {
            let folder = self.folder.display();
            return refused(
                "password_file",
                format!(
                    "{file} is not in {folder}. Move it, or set {} in the provider block ({})",
                    INVENTORY_PASSWORD_FOLDER.name,
                    INVENTORY_PASSWORD_FOLDER.variable()
                ),
            );
        }
        Ok(())
    }

    /// Returns true if a file is in the folder after resolving links. A missing file fails later,
    /// when it is read.
    fn holds(&self, file: &str) -> bool {
        let Ok(allowed) = self.folder.canonicalize() else { return false };
        let path = Path::new(file);
        if let Ok(real) = path.canonicalize() {
            return real.starts_with(allowed);
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        folder.canonicalize().is_ok_and(|folder| folder.starts_with(allowed))
    }
}

/// Warns of password files that other users can read.
pub(super) fn readable(block: &Block, env: Variables<'_>) -> Option<Warning> {
    let common = PASSWORD_FILE.value(block, env);
    let own = block.objects("servers").filter_map(|(_, server)| server.text("password_file"));
    let mut files: Vec<String> = common.into_iter().chain(own).filter(|file| files::others_may_read(file)).collect();
    files.sort();
    files.dedup();
    (!files.is_empty()).then(|| Warning {
        summary: "Passwords can be read by others",
        detail: format!(
            "Other users of this machine can read these password files: {}. Run chmod go-r on them.",
            files.join(", ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inventory_names_only_what_it_may() {
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("inside"), folder.path().join("outside"));
        for at in [&inside, &outside] {
            std::fs::create_dir(at).unwrap();
            std::fs::write(at.join("node"), "secret").unwrap();
        }
        #[cfg(unix)]
        std::os::unix::fs::symlink(outside.join("node"), inside.join("link")).unwrap();
        let inventory = inside.join("servers.yaml").display().to_string();
        let file = |path: &Path| InventoryServer {
            password_file: Some(path.display().to_string()),
            ..InventoryServer::default()
        };
        let variable =
            |name: &str| InventoryServer { password_env: Some(name.to_owned()), ..InventoryServer::default() };
        let limits = |prefix: Option<&str>, folder: Option<&Path>| {
            InventoryLimits::new(&inventory, prefix.map(str::to_owned), folder.map(|it| it.display().to_string()))
        };
        for (limits, server, allowed) in [
            (limits(None, None), variable("METAL_NODE1"), true),
            (limits(None, None), variable("AWS_SECRET_ACCESS_KEY"), false),
            (limits(Some("RACK1_"), None), variable("RACK1_NODE"), true),
            (limits(Some("RACK1_"), None), variable("METAL_NODE"), false),
            (limits(Some(""), None), variable("ANYTHING"), true),
            (limits(None, None), file(&inside.join("node")), true),
            (limits(None, None), file(&outside.join("node")), false),
            (limits(None, None), file(&inside.join("../outside/node")), false),
            (limits(None, Some(&outside)), file(&outside.join("node")), true),
            (limits(None, Some(&outside)), file(Path::new("/etc/shadow")), false),
            (limits(None, None), file(&inside.join("link")), false),
            (limits(None, None), file(&inside.join("missing")), true),
            (limits(None, None), InventoryServer::default(), true),
        ] {
            assert_eq!(limits.check("node1", &server).is_ok(), allowed, "{limits:?} {server:?}");
        }
    }
}
