//! The `example_file` block: which servers there are, and in which file each of them is.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use terraform_provider_metal::{
    backend::{
        Backend, BackendError, Machine,
        plug::{
            AttributeKind, BackendFlag, BackendPlugin, Block, Connected, ExternalBootMethod, Problem, Setting,
            Variables,
        },
    },
    clock::Clock,
    maintenance::location::Location,
};

use crate::machine::FileMachine;

/// Servers that are files.
#[derive(Debug)]
pub struct ExamplePlugin;

const FILE: Setting = Setting::new("server_file", AttributeKind::Name, "The file of the server `node1`.")
    .or_env("METAL_EXAMPLE_SERVER_FILE", "");

const SETTINGS: &[Setting] =
    &[Setting::new("servers", AttributeKind::Texts, "The file of each server, by the server's name."), FILE];

const FLAGS: &[BackendFlag] = &[BackendFlag::file("example-server", &FILE, "The file of the server node1")];

/// The server boots what its shelf has by that name.
pub const SHELF: ExternalBootMethod = ExternalBootMethod {
    name: "shelf_image",
    text: "where a file stands for the server, `shelf_image`",
    image: "For `shelf_image` a name on the shelf.",
    takes_ignition: false,
};

impl BackendPlugin for ExamplePlugin {
    fn name(&self) -> &'static str {
        "example_file"
    }

    fn description(&self) -> &'static str {
        "Servers that are files on this machine. Exactly one backend per provider configuration."
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn flags(&self) -> &'static [BackendFlag] {
        FLAGS
    }

    fn boot_methods(&self) -> &'static [&'static ExternalBootMethod] {
        &[&SHELF]
    }

    fn check(&self, block: &Block) -> Vec<Problem> {
        let relative = block.texts("servers").into_iter().filter(|(_, file)| !file.starts_with('/'));
        relative
            .map(|(name, file)| Problem::of(&["servers", &name], format!("{file:?} is not an absolute path")))
            .collect()
    }

    fn connect(&self, block: &Block, env: Variables<'_>, _clock: &Arc<dyn Clock>) -> Result<Connected, Problem> {
        let one = FILE.value(block, env).map(|file| ("node1".to_owned(), file));
        let servers = block.texts("servers").into_iter().chain(one);
        let servers = servers.map(|(name, file)| (name, PathBuf::from(file))).collect();
        Ok(Connected::quiet(ExampleBackend { servers }))
    }

    fn reach(&self) -> String {
        format!("--backend example_file, and --example-server or {}", FILE.variable())
    }
}

#[derive(Debug)]
struct ExampleBackend {
    servers: BTreeMap<String, PathBuf>,
}

#[async_trait]
impl Backend for ExampleBackend {
    fn servers(&self) -> Vec<String> {
        self.servers.keys().cloned().collect()
    }

    fn machine(&self, server: &str) -> Result<Arc<dyn Machine>, BackendError> {
        match self.servers.get(server) {
            Some(file) => Ok(Arc::new(FileMachine { file: file.clone() })),
            None => Err(BackendError::UnknownServer {
                server: server.to_owned(),
                known: self.servers().join(", "),
                advice: "Add it to example_file.servers.",
            }),
        }
    }

    async fn location(&self, _server: &str) -> Result<Location, BackendError> {
        Ok(Location::direct(ExamplePlugin.name()))
    }

    async fn close(&self) {}
}
