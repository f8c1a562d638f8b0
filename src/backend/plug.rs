//! What makes a backend configurable. A backend brings all of it in its own folder; the one line
//! outside is its entry in [`PLUGINS`].

use std::{fmt::Debug, sync::Arc, time::Duration};

use crate::{
    clock::Clock,
    files,
    maintenance::{boot_method::BootMethod, location::Location},
};

use super::{Backend, ironic, metal_operator, metal3, redfish};

pub use super::block::{AttributeKind, Block, Given, Problem, Setting, Variables};

/// The backends. The first is used unless the configuration names another.
static PLUGINS: &[&dyn BackendPlugin] = &[&redfish::Plugin, &metal_operator::Plugin, &metal3::Plugin, &ironic::Plugin];

/// All backends. The first one is used where the configuration names none.
#[must_use]
pub fn plugins() -> &'static [&'static dyn BackendPlugin] {
    PLUGINS
}

/// The longest request that may change something: half of a lease, which is what is left of it when
/// a call begins in time (`engine/lease.rs`), so that the call ends before another process can
/// conclude that its process is gone.
const LONGEST_REQUEST: Duration = Duration::from_secs(15);

/// The backend of that name.
#[must_use]
pub fn plugin(name: &str) -> Option<&'static dyn BackendPlugin> {
    plugins().iter().find(|plugin| plugin.name() == name).copied()
}

/// The backend that reaches a place; `None`: none is recorded, or this version has none of that
/// name.
#[must_use]
pub fn plugin_at(location: Option<&Location>) -> Option<&'static dyn BackendPlugin> {
    plugin(location?.backend.name())
}

/// What a backend brings besides its machines.
pub trait BackendPlugin: Sync + Debug {
    /// Its name: the block in the provider configuration, and the `backend` of records and data
    /// sources.
    fn name(&self) -> &'static str;

    /// What the block is for, in Markdown.
    fn description(&self) -> &'static str;

    /// The attributes of the block.
    fn settings(&self) -> &'static [Setting];

    /// The flags that it brings to the command line.
    fn flags(&self) -> &'static [BackendFlag] {
        &[]
    }

    /// Everything that is wrong with a block as it is written: found without the environment, files
    /// or the network, so that `validate` reports it. A value that is not known yet is never wrong.
    fn check(&self, block: &Block) -> Vec<Problem>;

    /// The backend of a block that was checked. Reads the environment and files; asks no server.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    fn connect(&self, block: &Block, env: Variables<'_>, clock: &Arc<dyn Clock>) -> Result<Connected, Problem>;

    /// The boot methods that it brings: its external system boots the server.
    fn boot_methods(&self) -> &'static [&'static ExternalBootMethod] {
        &[]
    }

    /// How the command line reaches servers of this backend: completes "Run it with".
    fn reach(&self) -> String;

    /// How a person finds a request of ours in the servers' external system and takes it back,
    /// where this process does not reach that; `None`: there is none, or it is not known by hand.
    fn by_hand(&self, _server: &str) -> Option<String> {
        None
    }

    /// Whether claims are kept by the servers' external system, and not in the coordination store.
    fn has_own_claims(&self) -> bool {
        false
    }
}

/// A boot method of a backend. Its external system knows what the image stands for and boots it;
/// two backends may bring the same one.
#[derive(Debug)]
pub struct ExternalBootMethod {
    /// Its name in the configuration, for example `boot_operator`.
    pub name: &'static str,
    /// Where it is possible, in Markdown: completes "the method, …".
    pub text: &'static str,
    /// What `image` is for it, in Markdown: a whole sentence.
    pub image: &'static str,
    /// Whether it hands an ignition file to the booted system.
    pub takes_ignition: bool,
}

impl ExternalBootMethod {
    /// The boot source by which a machine lists it.
    #[must_use]
    pub fn target(&self) -> String {
        BootMethod::External(self.name.to_owned()).target().into_owned()
    }
}

/// The backends whose external system keeps the claims, for messages.
#[must_use]
pub fn with_own_claims() -> String {
    let names: Vec<&str> = plugins().iter().filter(|it| it.has_own_claims()).map(|it| it.name()).collect();
    names.join(" or ")
}

/// The boot methods that backends of this program bring, each once.
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

/// A flag of the command line: one that selects its backend, or one whose value is an attribute of
/// the backend's block.
#[derive(Debug)]
pub struct BackendFlag {
    /// Its name, without the dashes.
    pub name: &'static str,
    /// The attribute that its value, the path of a file, sets; `None`: it has no value and selects
    /// the backend.
    pub setting: Option<&'static Setting>,
    text: &'static str,
}

impl BackendFlag {
    /// A flag that selects its backend. `text`: what it says.
    #[must_use]
    pub const fn selects(name: &'static str, text: &'static str) -> Self {
        Self { name, setting: None, text }
    }

    /// A flag that names a file for an attribute of the block.
    #[must_use]
    pub const fn file(name: &'static str, setting: &'static Setting, text: &'static str) -> Self {
        Self { name, setting: Some(setting), text }
    }

    /// What it says, with the variable that holds where it is not given.
    #[must_use]
    pub fn help(&self) -> String {
        match self.setting {
            Some(setting) => format!("{} [default: {}]", self.text, setting.variable()),
            None => self.text.to_owned(),
        }
    }
}

/// Something that a user should know although it works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Constant words, without names: hosts fold equal summaries.
    pub summary: &'static str,
    /// More.
    pub detail: String,
}

/// A backend, and what its user should know.
#[derive(Debug)]
pub struct Connected {
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// What its user should know.
    pub warnings: Vec<Warning>,
}

impl Connected {
    /// A backend of which its user has to know nothing.
    pub fn quiet(backend: impl Backend + 'static) -> Self {
        Self { backend: Arc::new(backend), warnings: Vec::new() }
    }
}

/// Refuses a `request_timeout` that could outlive the right to make the request.
#[must_use]
pub fn check_request_timeout(block: &Block) -> Option<Problem> {
    block.duration("request_timeout").filter(|limit| *limit > LONGEST_REQUEST).map(|_| {
        let problem = "a request may take at most 15s: longer ones could outlive the right to make them";
        Problem::of(&["request_timeout"], problem)
    })
}

/// Reads a file that the configuration names in the attribute `at`.
///
/// # Errors
/// It cannot be read, or is not safe to trust (`files.rs`).
pub fn read_file(path: &str, at: &[&str]) -> Result<String, Problem> {
    files::read(path, files::SMALL).map_err(|error| Problem::of(at, error.to_string()))
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
