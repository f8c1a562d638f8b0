//! Configuration of backends. Each backend lives in its own folder; its entry in [`PLUGINS`]
//! registers it.

use std::{fmt::Debug, sync::Arc, time::Duration};

use crate::{
    clock::Clock,
    files::{self, PathTrust},
    maintenance::{boot_method::BootMethod, location::Location},
};

use super::{Backend, ironic, metal_operator, metal3, redfish};

pub use super::block::{AttributeKind, Block, Given, Problem, Setting, Variables};

/// The first backend is the default.
static PLUGINS: &[&dyn BackendPlugin] = &[&redfish::Plugin, &metal_operator::Plugin, &metal3::Plugin, &ironic::Plugin];

/// Returns all backends. The first is the default.
#[must_use]
pub fn plugins() -> &'static [&'static dyn BackendPlugin] {
    PLUGINS
}

/// The time limit of a request that can change something. A call starts with at least half of the
/// lease left (`engine/lease.rs`), so it ends before another process can conclude that its process
/// died.
const LONGEST_REQUEST: Duration = Duration::from_secs(15);

/// Returns the backend with this name.
#[must_use]
pub fn plugin(name: &str) -> Option<&'static dyn BackendPlugin> {
    plugins().iter().find(|plugin| plugin.name() == name).copied()
}

/// Returns the backend for a location; `None` if no location is recorded or this version lacks the
/// backend.
#[must_use]
pub fn plugin_at(location: Option<&Location>) -> Option<&'static dyn BackendPlugin> {
    plugin(location?.backend.name())
}

/// A backend's configuration interface.
pub trait BackendPlugin: Sync + Debug {
    /// Returns the provider block's name, which is also `backend` in records and data sources.
    fn name(&self) -> &'static str;

    /// Returns the block's Markdown description.
    fn description(&self) -> &'static str;

    /// Returns the block's attributes.
    fn settings(&self) -> &'static [Setting];

    /// Returns the backend's command-line flags.
    fn flags(&self) -> &'static [BackendFlag] {
        &[]
    }

    /// Validates a block without the environment, files or network, so that `validate` can report
    /// problems. Unknown values are never wrong.
    fn check(&self, block: &Block) -> Vec<Problem>;

    /// Connects a validated block. Reads the environment and files, but contacts no server.
    ///
    /// # Errors
    /// The first problem found.
    fn connect(&self, block: &Block, env: Variables<'_>, clock: &Arc<dyn Clock>) -> Result<Connected, Problem>;

    /// Returns the boot methods with which the backend's external system boots servers.
    fn boot_methods(&self) -> &'static [&'static ExternalBootMethod] {
        &[]
    }

    /// Returns how the command line reaches this backend's servers: completes "Run it with".
    fn reach(&self) -> String;

    /// Returns instructions for withdrawing our request manually, for processes that cannot reach
    /// the external system. `None` without such a system or without a manual way.
    fn by_hand(&self, _server: &str) -> Option<String> {
        None
    }

    /// Returns true if the servers' external system stores claims instead of the coordination
    /// store.
    fn has_own_claims(&self) -> bool {
        false
    }
}

/// A boot method in which an external system resolves and boots the image. Two backends can share
/// it.
#[derive(Debug)]
pub struct ExternalBootMethod {
    /// The configured name, for example `boot_operator`.
    pub name: &'static str,
    /// Where the method is available, in Markdown: completes "the methods; …".
    pub text: &'static str,
    /// The meaning of `image`, in Markdown: a whole sentence.
    pub image: &'static str,
    /// True if the booted system receives an ignition file.
    pub takes_ignition: bool,
}

impl ExternalBootMethod {
    /// Returns the boot source under which a machine lists this method.
    #[must_use]
    pub fn target(&self) -> String {
        BootMethod::External(self.name.to_owned()).target().into_owned()
    }
}

/// Returns the backends whose external system stores claims, for messages.
#[must_use]
pub fn with_own_claims() -> String {
    let names: Vec<&str> = plugins().iter().filter(|it| it.has_own_claims()).map(|it| it.name()).collect();
    names.join(" or ")
}

/// Returns the boot methods of all backends, without duplicates.
#[must_use]
pub fn boot_methods() -> Vec<&'static ExternalBootMethod> {
    let mut found: Vec<&'static ExternalBootMethod> = Vec::new();
    for method in plugins().iter().flat_map(|plugin| plugin.boot_methods()) {
        if !found.iter().any(|known| known.name == method.name) {
            found.push(method);
        }
    }
    found
}

/// A command-line flag that selects a backend, or whose value sets an attribute in its block.
#[derive(Debug)]
pub struct BackendFlag {
    /// The name, without dashes.
    pub name: &'static str,
    /// The attribute that receives the flag's value, a file path; `None` for a flag without value,
    /// which only selects the backend.
    pub setting: Option<&'static Setting>,
    text: &'static str,
}

impl BackendFlag {
    /// Returns a flag that selects its backend. `text` is its help.
    #[must_use]
    pub const fn selects(name: &'static str, text: &'static str) -> Self {
        Self { name, setting: None, text }
    }

    /// Returns a flag that sets a block attribute to a file path.
    #[must_use]
    pub const fn file(name: &'static str, setting: &'static Setting, text: &'static str) -> Self {
        Self { name, setting: Some(setting), text }
    }

    /// Returns the help text, including the default's environment variable.
    #[must_use]
    pub fn help(&self) -> String {
        match self.setting {
            Some(setting) => format!("{} [default: {}]", self.text, setting.variable()),
            None => self.text.to_owned(),
        }
    }
}

/// A user warning about something that works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// A constant text without names: hosts fold equal summaries.
    pub summary: &'static str,
    /// The details.
    pub detail: String,
}

/// A connected backend and its user warnings.
#[derive(Debug)]
pub struct Connected {
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// The warnings.
    pub warnings: Vec<Warning>,
}

impl Connected {
    /// Returns a connected backend without warnings.
    pub fn quiet(backend: impl Backend + 'static) -> Self {
        Self { backend: Arc::new(backend), warnings: Vec::new() }
    }
}

/// Rejects a `request_timeout` that could outlive the lock.
#[must_use]
pub fn check_request_timeout(block: &Block) -> Option<Problem> {
    block.duration("request_timeout").filter(|limit| *limit > LONGEST_REQUEST).map(|_| {
        let problem = "it must be at most 15s: a longer request could outlive the lock";
        Problem::of(&["request_timeout"], problem)
    })
}

/// Returns whether the configuration accepts files that other users can change. The provider
/// block's value replaces the environment variable's (`settings/mod.rs`).
#[must_use]
pub fn path_trust(env: Variables<'_>) -> PathTrust {
    PathTrust::of(env(PathTrust::VARIABLE).as_deref())
}

/// Reads a file that the configuration names in the attribute `at`.
///
/// # Errors
/// The file cannot be read or is not safe to trust (`files.rs`).
pub fn read_file(path: &str, at: &[&str], env: Variables<'_>) -> Result<String, Problem> {
    files::read(path, files::SMALL, path_trust(env)).map_err(|error| Problem::of(at, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_and_described() {
        let names: std::collections::BTreeSet<_> = PLUGINS.iter().map(|plugin| plugin.name()).collect();
        assert_eq!(names.len(), PLUGINS.len());
        for one in PLUGINS {
            assert_eq!(plugin(one.name()).map(BackendPlugin::name), Some(one.name()));
            let attributes: std::collections::BTreeSet<_> = one.settings().iter().map(|it| it.name).collect();
            assert_eq!(attributes.len(), one.settings().len(), "{}", one.name());
        }
        assert!(plugin("none").is_none());
    }

    #[test]
    fn who_has_requests_in_an_external_system_says_how_a_person_takes_one_back() {
        for (name, command) in [
            ("metal_operator", "kubectl annotate server node1"),
            ("metal3", "kubectl annotate baremetalhost node1"),
            ("ironic", "maintenance unset node1"),
        ] {
            let said = plugin(name).and_then(|plugin| plugin.by_hand("node1")).unwrap_or_default();
            assert!(said.contains(command), "{name}: {said}");
        }
        assert_eq!(plugin("redfish").and_then(|plugin| plugin.by_hand("node1")), None);
    }
}
