//! Checking a server before anything is asked of it: only reads.

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

/// What a server shows to a check.
#[derive(Debug)]
pub struct ServerCheck {
    /// Its configured name.
    pub server: String,
    /// Where it is reached.
    pub address: String,
    /// The certificate of its BMC; `None` without TLS, or where the BMC is not asked directly.
    pub certificate: Option<Certificate>,
    /// The server, or why it could not be read.
    pub view: Result<MachineView, BackendError>,
    /// The account in use, as far as it is shown.
    pub account: Option<Account>,
    /// What it can be told, where it could be read.
    pub capabilities: Option<Capabilities>,
    /// Its virtual drives that can be used.
    pub drives: Vec<MediaSlot>,
    /// Why its virtual drives cannot be used.
    pub no_drives: Option<String>,
    /// The lock key with the identifiers it rests on; `None` where the server could not be read.
    pub identity: Option<Result<(LockKey, Vec<String>), EngineError>>,
    /// Explains other names with the same lock.
    pub shared: Option<String>,
    /// Holder and waiters; `None` where the store could not be read.
    pub queue: Option<Vec<QueueRow>>,
    /// The time that its BMC took.
    pub timing: Option<Timing>,
    /// The kinds of maintenance, and what the server lacks for each.
    pub abilities: Vec<Ability>,
    /// Answers of its BMC that are not valid JSON.
    pub flaws: Vec<String>,
    /// Reads that failed beside the first.
    pub failures: Vec<BackendError>,
}

impl ServerCheck {
    /// Whether nothing stands against a maintenance that holds the server.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.problems().is_empty()
    }

    /// The same after all servers of a run were identified.
    #[must_use]
    pub fn among(mut self, engine: &Engine) -> Self {
        if let Some(Ok((key, _))) = &self.identity {
            self.shared = self.shared.or_else(|| engine.shared_lock(&self.server, &ServerLock::new(key.clone())));
        }
        self
    }

    /// What stands against any maintenance: what is wrong, and what to do.
    #[must_use]
    pub fn problems(&self) -> Vec<(String, &'static str)> {
        let mut problems = Vec::new();
        if let Err(error) = &self.view {
            problems.push((error.to_string(), advice(error)));
        }
        problems.extend(self.failures.iter().map(|error| (error.to_string(), advice(error))));
        if let Some(Err(error)) = &self.identity {
            let advice = match error {
                EngineError::Store(_) => "Check coordination_url and the rights of its user.",
                _ => "Set lock_key for the server, or move its identifiers with server rebind.",
            };
            problems.push((error.to_string(), advice));
        }
        if let Some(shared) = &self.shared {
            problems.push((shared.clone(), "If they are one machine, use one name and one address for it."));
        }
        if self.account.as_ref().is_some_and(|account| account.must_change_password) {
            problems.push((
                "the BMC asks for another password before it does anything".to_owned(),
                "Change the password of the account.",
            ));
        }
        problems
    }
}

/// What to do about a BMC that could not be read.
fn advice(error: &BackendError) -> &'static str {
    match error {
        BackendError::Unreachable { .. } => "Check the endpoint, and the network between this machine and the BMC.",
        BackendError::Unauthorized { .. } => {
            "Check user name and password. They were tried once, so that no account is locked out."
        }
        BackendError::Untrusted { .. } => {
            "Compare the SHA-256 with what the BMC itself shows, then set certificate_sha256; or set ca_certificate_file."
        }
        BackendError::NoSystem { .. } => "Set system_id.",
        BackendError::NoServer { .. } => "Check the server's name.",
        BackendError::NoLockKey { .. } => "Set a lock key for the server.",
        BackendError::Protocol { .. } => "Update the firmware of the BMC, or reset the BMC.",
        BackendError::UnknownServer { advice, .. } => advice,
        BackendError::Denied { .. } => "Grant the role that the message names.",
        _ => "The message is the BMC's own.",
    }
}

impl Engine {
    /// Checks a server. Changes nothing, neither on the server nor in the store.
    pub async fn check(&self, server: &str) -> Result<ServerCheck, EngineError> {
        let machine = self.machine(server)?;
        let bmc = machine.bmc();
        // Together: a BMC that does not answer costs one time limit, not two.
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
            // Only virtual media lack something.
            Err(BackendError::Unsupported { what, .. }) => check.no_drives = Some(what),
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
