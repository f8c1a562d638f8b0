//! Writes answers, and the flags that a suggested command repeats.

use std::io::{ErrorKind, Write};

use url::Url;

use crate::shown::shell_word;

use super::{Cli, Command, Exit, GlobalArgs, ServerCommand, StoreCommand, approvals};

/// Writes an answer and returns the command's status. Only a pure query fails without its output; a
/// reader that closed its end (`| head -1`) has read enough.
pub(super) fn answered(text: &str, exit: Exit, only_answers: bool, out: &mut dyn Write, err: &mut dyn Write) -> Exit {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let done = if only_answers { "" } else { ". The command itself succeeded" };
            print(err, &format!("Standard output cannot be written: {error}{done}\n"));
            if only_answers { Exit::Failure } else { exit }
        }
        _ => exit,
    }
}

/// Writes a text for people and ignores errors.
pub(super) fn print(to: &mut dyn Write, text: &str) {
    let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
}

impl Command {
    /// Returns true if the answer is the command's only purpose.
    pub(super) fn only_answers(&self) -> bool {
        match self {
            Self::Check { .. }
            | Self::Queue { .. }
            | Self::Show { .. }
            | Self::Why { .. }
            | Self::History { .. }
            | Self::Watch { .. }
            | Self::Completion { .. }
            | Self::Version
            | Self::Claims { .. }
            | Self::Audit { .. }
            | Self::Store { command: StoreCommand::Roles { .. } | StoreCommand::Check | StoreCommand::Export }
            | Self::Server { command: ServerCommand::History { .. } } => true,
            Self::Drive { .. }
            | Self::Approve { .. }
            | Self::Withdraw { .. }
            | Self::Release(_)
            | Self::Prune { .. }
            | Self::Server { command: ServerCommand::Rebind { .. } }
            | Self::Store {
                command: StoreCommand::Import { .. } | StoreCommand::Restored { .. } | StoreCommand::Inspected { .. },
            } => false,
        }
    }
}

impl Cli {
    /// Returns true if a command only reads the coordination store: then it does not create a
    /// store.
    pub(super) fn only_reads_store(&self) -> bool {
        let claims_elsewhere =
            matches!(self.command, Command::Claims { .. }) && !approvals::in_store(self.common.backend.plugin);
        self.command.only_answers() && !claims_elsewhere
    }
}

impl GlobalArgs {
    /// Returns this call's flags for the store and the servers, for a suggested command. Omits an
    /// address with a password.
    pub(super) fn repeated(&self) -> String {
        let is_secret = |url: &&String| Url::parse(url).is_ok_and(|url| url.password().is_some());
        let store = self.coordination_url.as_ref().filter(|url| !is_secret(url));
        let store = store.map(|url| format!(" --coordination-url {}", shell_word(url))).unwrap_or_default();
        format!("{store}{}", self.backend.repeated())
    }
}
