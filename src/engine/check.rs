//! Read-only checks of a server before a maintenance.

use crate::{
    backend::{Account, BackendError, Certificate, Timing},
    maintenance::{
        ability::{Ability, abilities},
        ids::LockKey,
        lock::ServerLock,
        machine::{Capabilities, MachineView, MediaSlot},
        report::QueueRow,
    },
};

use super::{Engine, EngineError};

/// Result of a server check.
#[derive(Debug)]
pub struct ServerCheck {
    /// Its configured name.
    pub server: String,
    /// Its address.
    pub address: String,
    /// Certificate of the BMC; `None` without TLS or without a direct connection.
    pub certificate: Option<Certificate>,
    /// The server's state, or the read error.
    pub view: Result<MachineView, BackendError>,
    /// Account in use, if the BMC shows it.
    pub account: Option<Account>,
    /// Supported settings, if they could be read.
    pub capabilities: Option<Capabilities>,
    /// Usable virtual drives.
    pub drives: Vec<MediaSlot>,
    /// Why its virtual drives cannot be used.
    pub no_drives: Option<String>,
    /// The lock key with its identifiers; `None` if the server could not be read.
    pub identity: Option<Result<(LockKey, Vec<String>), EngineError>>,
    /// Explains other names with the same lock.
    pub shared: Option<String>,
    /// Holder and waiters; `None` if the store could not be read.
    pub queue: Option<Vec<QueueRow>>,
    /// Response times of the BMC.
    pub timing: Option<Timing>,
    /// Kinds of maintenance, each with its missing features.
    pub abilities: Vec<Ability>,
    /// BMC responses that are not valid JSON.
    pub flaws: Vec<String>,
    /// Errors of further reads.
    pub failures: Vec<BackendError>,
}

impl ServerCheck {
    /// Returns true if no problem blocks a maintenance.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.problems().is_empty()
    }

    /// Adds other names with the same lock, after all servers of a run were identified.
    #[must_use]
    pub fn among(mut self, engine: &Engine) -> Self {
        if let Some(Ok((key, _))) = &self.identity {
            self.shared = self.shared.or_else(|| engine.shared_lock(&self.server, &ServerLock::new(key.clone())));
        }
        self
    }

    /// Returns the problems that block any maintenance, each with a fix.
    #[must_use]
    pub fn problems(&self) -> Vec<(String, &'static str)> {
        let mut problems = Vec::new();
        if let Err(error) = &self.view {
            problems.push((error.to_string(), advice(error)));
        }
        problems.extend(self.failures.iter().map(|error| (error.to_string(), advice(error))));
        if let Some(Err(error)) = &self.identity {
            let advice = match error {
                EngineError::Store(_) => "Check coordination_url and its user's permissions.",
                _ => "Set lock_key for the server, or move its identifiers with server rebind.",
            };
            problems.push((error.to_string(), advice));
        }
        if let Some(shared) = &self.shared {
            problems.push((shared.clone(), "If they are one machine, use one name and one address for it."));
        }
        if self.account.as_ref().is_some_and(|account| account.must_change_password) {
            problems.push((
                "the BMC requires a password change before any other request".to_owned(),
                "Change the account's password.",
            ));
        }
        problems
    }
}

/// Returns the fix for a BMC that could not be read.
fn advice(error: &BackendError) -> &'static str {
    match error {
        BackendError::Unreachable { .. } => "Check the endpoint, and the network between this machine and the BMC.",
        BackendError::Unauthorized { .. } => {
            "Check user name and password. The provider tried them only once, to avoid an account lockout."
        }
        BackendError::Untrusted { .. } => {
            "Compare the SHA-256 with the value that the BMC itself shows, then set certificate_sha256; or set \
             ca_certificate_file."
        }
        BackendError::Withheld { .. } => "The BMC received no request.",
        BackendError::NoSystem { .. } => "Set system_id.",
        BackendError::NoServer { .. } => "Check the server's name.",
        BackendError::NoLockKey { .. } => "Set a lock key for the server.",
        BackendError::Protocol { .. } => "Update the BMC's firmware, or reset the BMC.",
        BackendError::UnknownServer { advice, .. } => advice,
        BackendError::Denied { .. } => "Grant the role that the message names.",
        _ => "The message is the BMC's own.",
    }
}

impl Engine {
    /// Checks a server. Changes nothing on the server or in the store.
    pub async fn check(&self, server: &str) -> Result<ServerCheck, EngineError> {
        let machine = self.machine(server)?;
        let bmc = machine.bmc();
        // Concurrent, so that a silent BMC costs one time limit and not two.
        let certificate = async {
            match bmc {
                Some(bmc) => bmc.certificate().await.ok().flatten(),
                None => None,
            }
        };
        let (certificate, view) = tokio::join!(certificate, machine.observe());
        let mut check = ServerCheck {
            server: server.to_owned(),
            address: machine.address(),
            certificate,
            view,
            account: None,
            capabilities: None,
            drives: Vec::new(),
            no_drives: None,
            identity: None,
            shared: None,
            queue: None,
            timing: None,
            abilities: Vec::new(),
            flaws: Vec::new(),
            failures: Vec::new(),
        };
        if check.view.is_err() {
            return Ok(check);
        }
        match machine.capabilities().await {
            Ok(capabilities) => check.capabilities = Some(capabilities),
            Err(error) => check.failures.push(error),
        }
        match machine.media(&[]).await {
            Ok(drives) => check.drives = drives,
            // Only virtual media is affected.
            Err(BackendError::Unsupported { what, .. }) => check.no_drives = Some(what.into_raw()),
            Err(error) => check.failures.push(error),
        }
        if let Some(bmc) = bmc {
            match bmc.account().await {
                Ok(account) => check.account = Some(account),
                Err(error) => check.failures.push(error),
            }
            check.timing = Some(bmc.timing());
            check.flaws = bmc.flaws();
        }
        let identity = self.identification(server).await;
        if let Ok((key, _)) = &identity
            && let Ok(view) = self.store().view(key).await
        {
            check.shared = self.shared_lock(server, &view.lock);
            check.queue = Some(self.lines(&view));
        }
        check.identity = Some(identity);
        if let Some(capabilities) = &check.capabilities {
            let privileges = check.account.as_ref().and_then(|account| account.privileges.as_deref());
            check.abilities = abilities(capabilities, &check.drives, privileges);
            let media = check.abilities.iter_mut().filter(|ability| ability.kind == "virtual_media");
            media.for_each(|ability| ability.lacks.extend(check.no_drives.clone()));
        }
        Ok(check)
    }
}
