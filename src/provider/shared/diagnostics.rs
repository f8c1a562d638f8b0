//! Converts errors of the lower layers to diagnostics: what failed on which server, the cause, the
//! current state, and the fix.

use tf_provider::{AttributePath, Diagnostic, Diagnostics};

use crate::provider::shared::identity::of_identity;
use crate::{
    backend::BackendError,
    engine::EngineError,
    maintenance::{location::Elsewhere, lock::Refusal, queue::shown_time},
    plugin::diagnostic,
    shown::shell_word,
    store::StoreError,
};

/// Nothing was done, and the server's state is unknown.
pub(in crate::provider) const NOTHING_DONE: &str = "Nothing was done to the server.";

/// The fix if the configuration reaches a different backend than the record's.
const ELSEWHERE: &str = "Nothing was done to any server, and the state is kept. Configure the provider for the backend and \
                         cluster of the maintenance; its namespace is taken from the record.";

/// The fix for a store that lost commits.
pub(in crate::provider) const AFTER_A_RESTORE: &str = "A backup, a snapshot or a standby replaced newer data. Stop all runs, then follow \
    the guide \"After a restore\": `terraform-provider-metal store restored --reason TEXT`.";

/// Returns an operation's value, or adds the diagnostic for its failure.
pub(in crate::provider) fn value_or_error<T>(
    diags: &mut Diagnostics,
    server: &str,
    result: Result<T, EngineError>,
) -> Option<T> {
    result.map_err(|error| diags.add_error(of_engine(server, &error))).ok()
}

/// Builds the diagnostic for a failed operation on a server.
pub(in crate::provider) fn of_engine(server: &str, error: &EngineError) -> Diagnostic {
    match error {
        EngineError::Store(error) => of_store(server, error, NOTHING_DONE),
        EngineError::StoreLost { id, cause } => {
            let kept =
                format!("The record of {id} contains every completed step, and the next run continues from there.");
            of_store(server, cause, &kept)
        }
        EngineError::Machine(error) => of_machine(server, error),
        EngineError::Refused(refusal) => of_refusal(server, refusal),
        EngineError::Identity(error) => of_identity(server, error),
        EngineError::UnknownIdentifier { .. } => diagnostic(
            format!("{server} does not have this identifier"),
            format!("{error}. {NOTHING_DONE}"),
            AttributePath::root(),
        ),
        EngineError::LeaseLost(_) => diagnostic(
            format!("The right to act on {server} was lost"),
            format!(
                "{error}. The process stopped before its next step; the record and the lock are unchanged. Apply again \
                 to resume."
            ),
            AttributePath::root(),
        ),
        EngineError::Stopped => diagnostic(
            format!("Waiting for {server} was interrupted"),
            "The server is unchanged, and the request has left the queue.",
            AttributePath::root(),
        ),
        EngineError::NotFound { id, store } => diagnostic(
            format!("{id} does not exist"),
            format!("The coordination store {store} does not contain a maintenance with this name."),
            AttributePath::root(),
        ),
        EngineError::AddressUnknown { .. } => diagnostic(
            format!("The image address for {server} is not known"),
            format!("{error}. {NOTHING_DONE}"),
            AttributePath::root(),
        ),
        EngineError::Over(record) => diagnostic(
            format!("{} has ended", record.id),
            format!("Its state is {}.", record.phase.name()),
            AttributePath::root(),
        ),
    }
}

/// Builds a store error's diagnostic. `so` describes the server's current state.
fn of_store(server: &str, error: &StoreError, so: &str) -> Diagnostic {
    let (summary, detail) = match error {
        StoreError::Unavailable { .. } => (
            format!("The lock of {server} cannot be looked up"),
            format!("{error}. {so} Check coordination_url and try again."),
        ),
        StoreError::Unwritable { .. } => (
            format!("{server}: the coordination store accepts no changes"),
            format!(
                "Cause: {error}.\nServer: {so}\nNext: restore write access to the store (free space, raise the quota, or \
                 name the primary), then apply again."
            ),
        ),
        StoreError::Forbidden { .. } => (
            format!("The coordination store denied access for {server}"),
            format!("{error}. {so} Check coordination_url and its user's permissions."),
        ),
        StoreError::Untrusted { .. } => (
            format!("The coordination store of {server} is unsafe to use"),
            format!("{error}. {so} Then check the lock holders with: terraform-provider-metal queue"),
        ),
        StoreError::Unreadable { .. } => (
            format!("The lock of {server} cannot be read"),
            format!("{error}. {so} Use the provider version that wrote it, or a newer version."),
        ),
        StoreError::WentBack { .. } => (
            format!("The coordination store of {server} went back in time"),
            format!("{error}. {so} The state is kept. {AFTER_A_RESTORE}"),
        ),
        StoreError::InUse { .. } | StoreError::NoSuchLine { .. } => {
            (format!("The coordination store of {server} cannot be filled"), format!("{error}. {so}"))
        }
        StoreError::Refused(refusal) => return of_refusal(server, refusal),
        StoreError::NameTaken { id, key } => (
            format!("{id} is already used for another server"),
            format!(
                "It is active for the machine {key}. {so} The provider finds a maintenance by namespace and name, so \
                 both must be unique in a coordination store. Choose another name. If this resource replaces the \
                 active maintenance, remove create_before_destroy, so that the maintenance is released first."
            ),
        ),
        // Happens only if processes repeatedly claim one identifier at the same time.
        StoreError::OtherIdentity { .. } => (
            format!("{server} could not be identified"),
            format!("{error}, and another process changes it at the same time. {so} Apply again."),
        ),
    };
    diagnostic(summary, detail, AttributePath::root())
}

/// Returns the warning summary for a server that could not be read.
pub(in crate::provider) fn silent(error: &BackendError) -> &'static str {
    match error {
        BackendError::UnknownServer { .. } => "A server is not configured",
        BackendError::Elsewhere { .. } => "A maintenance is not reached by this configuration",
        // An HTTP 5xx status is not an answer to the request.
        BackendError::Unreachable { .. } | BackendError::Rejected { transient: true, .. } => "BMC did not answer",
        BackendError::ClusterAway { .. } => "The cluster did not answer",
        BackendError::Untrusted { .. } => "A BMC is not trusted",
        BackendError::Withheld { .. } => "Credentials were not sent",
        BackendError::Unauthorized { .. } => "A BMC refused the credentials",
        BackendError::NoSystem { .. } => "A system is not behind its BMC",
        BackendError::NoServer { .. } => "A server does not exist",
        BackendError::NoLockKey { .. } => "A server's lock key is missing",
        BackendError::Missing { .. } => "A required object of a server does not exist",
        BackendError::Rejected { transient: false, .. } => "A request about a server was refused",
        BackendError::Unsupported { .. } => "A server does not support a request",
        BackendError::Denied { .. } => "Access to a server was denied",
        BackendError::Invalid { .. } => "A server's configuration was refused",
        BackendError::Node { .. } => "A Node was not reached",
        BackendError::OtherServer { .. } => "A server was replaced by another server",
        BackendError::Protocol { .. } => "A BMC did not return a Redfish response",
        BackendError::TaskFailed { .. } => "A server's task failed",
        BackendError::ReplyLost { .. } | BackendError::OutcomeUnknown { .. } | BackendError::NotSent { .. } => {
            "A request to a server has an unknown outcome"
        }
    }
}

/// Builds the diagnostic for a machine that could not be read or changed.
pub(in crate::provider) fn of_machine(server: &str, error: &BackendError) -> Diagnostic {
    let (summary, advice, path) = match error {
        BackendError::UnknownServer { advice, .. } => {
            (format!("{server} is not configured"), *advice, AttributePath::new("server"))
        }
        BackendError::Unreachable { .. } => {
            (format!("The BMC of {server} did not answer"), "Check its address and the network.", AttributePath::root())
        }
        BackendError::ClusterAway { .. } => (
            format!("The cluster of {server} did not answer"),
            "Check its address and the network.",
            AttributePath::root(),
        ),
        BackendError::ReplyLost { .. } | BackendError::OutcomeUnknown { .. } | BackendError::TaskFailed { .. } => (
            format!("Unknown outcome of a request about {server}"),
            "Apply again: the server's observed state decides which step follows.",
            AttributePath::root(),
        ),
        BackendError::NotSent { .. } => (
            format!("A change of {server} was interrupted"),
            "Apply again: the server's observed state decides which step follows.",
            AttributePath::root(),
        ),
        BackendError::Untrusted { .. } => (format!("The BMC of {server} is not trusted"), "", AttributePath::root()),
        BackendError::Withheld { .. } => (format!("No credentials were sent for {server}"), "", AttributePath::root()),
        BackendError::Unauthorized { .. } => (
            format!("The BMC of {server} refused the credentials"),
            "It was tried once, so that no account is locked out. Check the user name and password.",
            AttributePath::root(),
        ),
        BackendError::Rejected { .. } => (format!("A request about {server} was refused"), "", AttributePath::root()),
        BackendError::NoSystem { .. } => {
            (format!("{server} is not behind its BMC"), "Check system_id.", AttributePath::root())
        }
        BackendError::NoServer { .. } => {
            (format!("{server} does not exist"), "Check its name, or create it first.", AttributePath::new("server"))
        }
        BackendError::Unsupported { .. } => {
            (format!("{server} does not support this request"), "", AttributePath::root())
        }
        BackendError::NoLockKey { .. } => {
            (format!("The lock key of {server} is missing"), "", AttributePath::new("server"))
        }
        BackendError::Missing { .. } => {
            (format!("A required object of {server} does not exist"), "", AttributePath::root())
        }
        BackendError::Denied { .. } => (format!("Access to {server} was denied"), "", AttributePath::root()),
        BackendError::Node { .. } => (format!("The Node of {server} was not reached"), "", AttributePath::root()),
        BackendError::Elsewhere { .. } => {
            (format!("{server} is not reached by this configuration"), ELSEWHERE, AttributePath::root())
        }
        BackendError::OtherServer { .. } => (
            format!("{server} is another server than before"),
            "Change the configuration so that its name refers to the held server, and apply again. If that server \
             does not exist any more, end the maintenance without a restore: release --force --accept-as-is.",
            AttributePath::root(),
        ),
        BackendError::Invalid { attribute, .. } => {
            let mut steps = attribute.unwrap_or_default().split('.').filter(|step| !step.is_empty());
            let path = steps.next().map_or_else(AttributePath::root, AttributePath::new);
            let path = steps.fold(path, AttributePath::attribute);
            (format!("Configuration of {server} was refused"), "", path)
        }
        BackendError::Protocol { .. } => {
            (format!("The BMC of {server} did not return a Redfish response"), "", AttributePath::root())
        }
    };
    let detail = if advice.is_empty() { format!("{error}.") } else { format!("{error}. {advice}") };
    diagnostic(summary, detail, path)
}

#[allow(clippy::too_many_lines, reason = "a table: one arm a refusal")]
fn of_refusal(server: &str, refusal: &Refusal) -> Diagnostic {
    let (summary, detail, path) = match refusal {
        Refusal::OtherSpec { id, existing, asked } => (
            format!("{id} exists with another specification"),
            format!(
                "It was requested with: {existing}.\nThis configuration requests: {asked}.\n{NOTHING_DONE} If the \
                 existing one is yours, destroy it or import it ({id}); otherwise choose another name."
            ),
            AttributePath::new("name"),
        ),
        Refusal::OtherOwner { id, existing, asked } => (
            format!("{id} belongs to another owner"),
            format!(
                "Its owner is {existing:?}; this provider's owner is {asked:?}. {NOTHING_DONE} If both are yours, set the \
                 provider's owner to {existing:?} until this maintenance has ended. Otherwise choose another namespace or name; \
                 in agreement with its owner, end it with: terraform-provider-metal release {id} --as-owner {} \
                 --reason TEXT",
                shell_word(existing.shown())
            ),
            AttributePath::new("name"),
        ),
        Refusal::NoNumberLeft(what) => (
            format!("The lock of {server} has reached its largest {what}"),
            format!(
                "The stored {what} has the largest possible value, so no process can act on the server. No process \
                 counts that far: someone with write access to the store set it. {NOTHING_DONE} \
                 `terraform-provider-metal store check` names the lock; a store administrator must repair it."
            ),
            AttributePath::new("server"),
        ),
        Refusal::InUse { id, by, until } => (
            format!("Another process works on {id}"),
            format!(
                "{by} works on it; its lease runs until {} and is renewed while it works. {NOTHING_DONE} Wait until \
                 that process ends. If it has already ended, apply again after that time.",
                shown_time(*until)
            ),
            AttributePath::new("name"),
        ),
        Refusal::Elsewhere { id, recorded, reached, why } => {
            let unproven = match why {
                Elsewhere::Unproven => {
                    " The provider cannot verify that both are one cluster: this requires a role that allows \"get\" \
                     on the namespace kube-system."
                }
                Elsewhere::Backend | Elsewhere::Cluster => "",
            };
            let detail =
                format!("{id} is active in {recorded}. This configuration reaches {reached}.{unproven} {ELSEWHERE}");
            (format!("{server} is not reached by this configuration"), detail, AttributePath::root())
        }
        Refusal::HeldByOurselves { holder } => (
            format!("{server} is held by {holder}"),
            format!(
                "A boot configuration or an operation without maintenance_id queues separately. It would wait for \
                 {holder}, which has the same owner, and never end if both are in one configuration. {NOTHING_DONE} \
                 Set maintenance_id = \"{holder}\", that metal_server_maintenance's id."
            ),
            AttributePath::new("maintenance_id"),
        ),
        Refusal::OwnPredecessor { holder, id } => (
            format!("{server} is held by the predecessor of {id}"),
            format!(
                "{id} replaces {holder} on the same server. With create_before_destroy it would wait for {holder}, which is only \
                 released after it. {NOTHING_DONE} Remove create_before_destroy from the resource and from what depends on \
                 it, apply that change alone, and rename afterwards."
            ),
            AttributePath::new("name"),
        ),
        Refusal::ParentNotHolding => (
            format!("{server} is not held by that maintenance"),
            format!("{NOTHING_DONE} Set maintenance_id to this server's current holder."),
            AttributePath::new("maintenance_id"),
        ),
        Refusal::KnownToAnother { id, known } => (
            format!("Another state manages {id}"),
            format!(
                "{} saved it at {}. {NOTHING_DONE} If two states managed one maintenance, each could release the \
                 server while the other uses it: destroy it where it is managed. If that state is lost or was not \
                 saved, take it over: set adopt = true, or add an import block with id = \"{id}\", and apply.",
                known.by,
                shown_time(known.since)
            ),
            AttributePath::new("name"),
        ),
        Refusal::ReleasedBefore { released } => (
            format!("{} was released by a person", released.id),
            format!(
                "{released}. {NOTHING_DONE} To run the work again, change triggers or the name. To allow this \
                 configuration to lock the server again, agree with that person and run: terraform-provider-metal \
                 release --allow {}",
                released.id
            ),
            AttributePath::new("triggers"),
        ),
        Refusal::NotAllowedUnder { holder, existing, asked } => (
            format!("{holder} belongs to another owner"),
            format!(
                "Its owner is {existing:?}; this provider's owner is {asked:?}. {NOTHING_DONE} To allow it, the \
                 owner of {holder} sets allow_under = [{asked:?}] there."
            ),
            AttributePath::new("maintenance_id"),
        ),
        Refusal::ToBeInspected { id, since, reason } => (
            format!("{id} waits for an inspection"),
            format!(
                "The coordination store was restored at {} ({reason:?}), so its last changes are lost: the server \
                 could be changed, and the recorded prior state could be wrong. {NOTHING_DONE} Inspect {server}, \
                 then run `terraform-provider-metal store inspected {id} --reason TEXT`.",
                shown_time(*since)
            ),
            AttributePath::root(),
        ),
        Refusal::Unreadable { id, why } => (
            format!("{id} cannot be read"),
            format!("{why}. {NOTHING_DONE} Use the provider version that wrote it, or a newer version."),
            AttributePath::new("name"),
        ),
        Refusal::Claimed { claim } => (
            format!("{server} is claimed already"),
            format!(
                "{claim} has claimed it as {} since {}. {NOTHING_DONE} A server has one owner; agree with them on \
                 the owner.",
                claim.id,
                shown_time(claim.since)
            ),
            AttributePath::new("server"),
        ),
        Refusal::NotClaimed => (
            format!("{server} is not claimed"),
            format!(
                "Only a claim's owner (metal_server_claim) approves. {NOTHING_DONE} An unclaimed server does not \
                 require approval."
            ),
            AttributePath::new("server"),
        ),
        Refusal::NotTheOwner { claim, asked } => (
            format!("{server} is claimed by another owner"),
            format!(
                "Its owner is {claim}, claimed as {}; this provider's owner is {asked:?}. {NOTHING_DONE} Only its \
                 owner can approve, or change or delete the claim; if you act for them, set the provider's owner.",
                claim.id
            ),
            AttributePath::new("server"),
        ),
        Refusal::AliasMoved { .. } | Refusal::LockInUse { .. } => (
            format!("{server} could not be identified"),
            format!("{refusal}. {NOTHING_DONE} Apply again."),
            AttributePath::new("server"),
        ),
        Refusal::Gone | Refusal::Fenced { .. } | Refusal::OtherGeneration { .. } | Refusal::WrongPhase(_) => (
            format!("Lost the lock on {server}"),
            format!("{refusal}. Nothing more was done to the server."),
            AttributePath::root(),
        ),
    };
    diagnostic(summary, detail, path)
}

/// Builds the warning for a refresh without an answer from the store: known values are kept.
pub(in crate::provider) fn kept(server: &str, error: &EngineError) -> Diagnostic {
    diagnostic(
        "The coordination store did not answer",
        format!("{server}: {error}. Its last known values are kept."),
        AttributePath::root(),
    )
}

/// Builds the diagnostic for a maintenance that another state took over.
pub(in crate::provider) fn managed_elsewhere(server: &str, refusal: &Refusal) -> Diagnostic {
    let mut problem = of_refusal(server, refusal);
    problem.detail =
        format!("{server}: {refusal}. The server was not changed. The resource is dropped from this state.").into();
    problem.attribute = AttributePath::root();
    problem
}

/// Builds the diagnostic for a maintenance with another owner.
pub(in crate::provider) fn other_owner(server: &str, refusal: &Refusal) -> Diagnostic {
    let mut problem = of_refusal(server, refusal);
    problem.summary = "Maintenance belongs to another owner".into();
    problem.detail = format!("{server}: {refusal}. Every apply or destroy that acts on it is refused.").into();
    problem.attribute = AttributePath::root();
    problem
}

/// Builds the error for an update that was planned for a different state of the maintenance.
pub(in crate::provider) fn changed_since(server: &str) -> Diagnostic {
    diagnostic(
        format!("The maintenance of {server} changed since the plan"),
        format!("{NOTHING_DONE} The state keeps the previous values. Plan again."),
        AttributePath::root(),
    )
}
