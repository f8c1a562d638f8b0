//! Maps cluster errors to store errors.

use std::ops::Deref;

use crate::{
    kubernetes::{ClusterError, QUOTA_EXCEEDED},
    store::{StoreError, fault::StoreErrors},
};

/// Creates one store's errors.
#[derive(Clone, Debug)]
pub(super) struct ErrorMapper {
    about: StoreErrors,
    namespace: String,
}

impl ErrorMapper {
    pub(super) fn new(address: &str, namespace: &str) -> Self {
        Self { about: StoreErrors::new(address), namespace: namespace.to_owned() }
    }

    pub(super) fn cluster(&self, error: &ClusterError) -> StoreError {
        match error {
            // The next read shows whether the change was applied.
            ClusterError::Unreachable { .. }
            | ClusterError::ReplyLost { .. }
            | ClusterError::Busy { .. }
            | ClusterError::Conflict { .. }
            | ClusterError::Expired { .. } => self.unavailable(error.to_string()),
            // Admission checks quotas before storing; etcd rejects every write when its space is
            // used up.
            ClusterError::Denied { message, .. } | ClusterError::Rejected { message, .. }
                if message.raw().contains(QUOTA_EXCEEDED) || message.raw().contains("database space exceeded") =>
            {
                self.unwritable(error.to_string())
            }
            // An admission policy's own message explains the rejection.
            ClusterError::Denied { message, .. } => self.forbidden(message.clone()),
            ClusterError::Forbidden { .. } => {
                self.forbidden(format!("{error}; the guide about many runners lists each role's permissions"))
            }
            ClusterError::NotFound { .. } => self.forbidden(format!(
                "{error}; check that the namespace {:?} exists (kubectl create namespace {0})",
                self.namespace
            )),
            ClusterError::Invalid { message, .. } | ClusterError::Rejected { message, .. }
                if is_size(message.raw()) =>
            {
                self.forbidden(format!(
                    "{error}; a ConfigMap is limited to 1 MiB, which is several thousand waiters for one server; the \
                     change was not stored"
                ))
            }
            ClusterError::Rejected { code, .. } if *code >= 500 => self.unavailable(error.to_string()),
            ClusterError::Protocol { .. } => self.unreadable(error.to_string()),
            ClusterError::Configuration { .. }
            | ClusterError::Unauthorized { .. }
            | ClusterError::AlreadyExists { .. }
            | ClusterError::Invalid { .. }
            | ClusterError::Rejected { .. } => self.forbidden(error.to_string()),
        }
    }
}

/// Returns true if the API server (422, 413) or its etcd (500) rejected an object as too large.
fn is_size(message: &str) -> bool {
    ["Too long", "too large", "must have at most"].iter().any(|sign| message.contains(sign))
}

impl Deref for ErrorMapper {
    type Target = StoreErrors;

    fn deref(&self) -> &StoreErrors {
        &self.about
    }
}
