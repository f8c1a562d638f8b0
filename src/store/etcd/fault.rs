//! What etcd says, in the words of a store.

use std::{error::Error as _, ops::Deref};

use etcd_client::Error;

use crate::store::{StoreError, fault::StoreErrors};

/// How a server looks that ends a connection instead of saying what it wants: TLS tells of a
/// missing client certificate only after the connection counts as made.
const CLOSED: [&str; 5] = ["connection closed", "reset", "roken pipe", "frame", "alert"];

/// Makes errors of one store. The numbers are gRPC's status codes,
/// <https://grpc.io/docs/guides/status-codes/>.
#[derive(Clone, Debug)]
pub(super) struct ErrorMapper {
    about: StoreErrors,
    /// What a cluster may want that ends connections without a word.
    may_want: &'static str,
}

/// The error of a cluster whose quota is used up: it takes deletes and no puts.
const FULL: &str = "it has no space left";

/// Whether a change was refused for that.
pub(super) fn is_full(error: &StoreError) -> bool {
    matches!(error, StoreError::Forbidden { cause, .. } if cause.starts_with(FULL))
}

impl ErrorMapper {
    pub(super) fn new(address: &str, may_want: &'static str) -> Self {
        Self { about: StoreErrors::new(address), may_want }
    }

    pub(super) fn etcd(&self, error: &Error) -> StoreError {
        match error {
            Error::GRpcStatus(status) => {
                let message = status.message();
                match status.code() as i32 {
                    // etcd refuses a wrong password as an invalid argument.
                    3 if message.contains("authentication failed") => {
                        self.forbidden(format!("the login was refused ({message})"))
                    }
                    3 if message.contains("user name is empty") => {
                        self.forbidden("it wants a login: write etcd://USER:PASSWORD@HOST:2379/prefix")
                    }
                    3 if message.contains("too many operations") => self.forbidden(format!(
                        "one change is more than it takes in one transaction, nothing of it was stored ({message}); \
                         raise --max-txn-ops of its members"
                    )),
                    // It can be read, so whoever waits until it is back would wait for ever.
                    8 if message.contains("space exceeded") => self.forbidden(format!(
                        "{FULL} and takes no changes ({message}): compact and defragment it, or raise \
                         --quota-backend-bytes; then disarm its alarm"
                    )),
                    7 => self.forbidden(format!(
                        "the user may not do this ({message}); see the guide about many runners for what each role needs"
                    )),
                    16 => self.forbidden(format!("the login was refused ({message})")),
                    3 | 11 | 12 => self.unreadable(message),
                    _ => {
                        let deeper = status.source().map(|source| format!(": {}", deepest(source))).unwrap_or_default();
                        let mut cause = format!("it cannot be reached ({message}{deeper})");
                        if CLOSED.iter().any(|sign| cause.contains(sign)) {
                            cause.push_str(&format!("; if it stays so, {}", self.may_want));
                        }
                        self.unavailable(cause)
                    }
                }
            }
            Error::InvalidArgs(cause) => self.forbidden(format!("its URL cannot be used ({cause})")),
            Error::InvalidUri(cause) => self.forbidden(format!("its URL cannot be used ({cause})")),
            other => self.unavailable(other.to_string()),
        }
    }
}

impl Deref for ErrorMapper {
    type Target = StoreErrors;

    fn deref(&self) -> &StoreErrors {
        &self.about
    }
}

fn deepest(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
