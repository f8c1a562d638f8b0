//! Preconditions besides the queue: an existing record with the name, a forced release of the
//! name, or a blocked server.

use crate::{
    engine::{EarlierInvocation, Engine},
    maintenance::{
        queue::shown_time,
        restrictions::{Block, ReleasedName},
        state::Maintenance,
    },
    store::LockView,
};

use crate::provider::shared::prospect::PlannedRequest;

/// Summary of a warning: the name belongs to another state.
const MANAGED_ELSEWHERE: &str = "Another state manages a maintenance";
/// Summary of a warning: it is taken from another state.
pub(in crate::provider) const TAKEN_OVER: &str = "A maintenance is taken over from another state";
/// Summary of an error, before the server: a person released the name.
const NAME_REFUSED: &str = "A released name is refused";

/// The store's data about a name and its server.
#[derive(Clone, Debug, Default)]
pub(in crate::provider) struct NameStatus {
    /// The record that the next run continues.
    pub(in crate::provider) continued: Option<Box<Maintenance>>,
    /// An action's previous invocation, which this invocation continues or ends first.
    earlier: Option<EarlierInvocation>,
    /// True if the configuration adopts the record from another state.
    adopt: bool,
    /// The forced release that refuses the name.
    pub(in crate::provider) released: Option<ReleasedName>,
    /// True if this run's state had the released maintenance.
    released_here: bool,
    /// The server's block.
    pub(in crate::provider) block: Option<Block>,
}

impl NameStatus {
    /// Reads the status from the server's lock.
    pub(in crate::provider) fn of(engine: &Engine, asked: &PlannedRequest<'_>, view: &LockView) -> Self {
        let PlannedRequest { spec, id, adopt, .. } = *asked;
        let digest = engine.as_asked_here(spec).digest();
        // A record with another owner or specification is refused, and the error shows both.
        let same = |record: &Maintenance| {
            let ours = record.owner == engine.owner() && record.digest == digest;
            // A replaced record is not taken over, and an operation that was already performed does
            // not need the server.
            Some(&record.id) == id && ours && !engine.manages(&record.uid) && !record.is_made()
        };
        let released = id.and_then(|id| view.lock.released(id, &spec.triggers)).cloned();
        let found = || view.lock.active.iter().find(|record| same(record)).map(|record| Box::new((**record).clone()));
        Self {
            continued: match asked.earlier {
                Some(EarlierInvocation::Unfinished(record)) => Some(record.clone()),
                Some(_) => None,
                None => found(),
            },
            earlier: asked.earlier.cloned(),
            adopt,
            released_here: released.as_ref().is_some_and(|released| engine.manages(&released.uid)),
            released,
            block: view.lock.block(view.now).cloned(),
        }
    }

    /// Returns true if the continued record was admitted to the server.
    pub(in crate::provider) fn holds(&self) -> bool {
        self.continued.as_ref().is_some_and(|record| record.admitted_at.is_some())
    }

    /// Returns refusals that do not depend on the queue, each with its warning summary.
    pub(in crate::provider) fn refusals(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        if let Some(record) = self.continued.as_ref().filter(|record| record.known_to.is_some()) {
            let summary = if self.adopt { TAKEN_OVER } else { MANAGED_ELSEWHERE };
            found.push((summary, self.takeover(record)));
        }
        // Hosts plan creations before a destroy. An error would prevent the destroy of all other
        // resources.
        found.extend(self.name_refused().filter(|_| self.released_here));
        found
    }

    /// Returns the error that a released name causes, as summary and detail.
    pub(in crate::provider) fn refused_for_good(&self) -> Option<(&'static str, String)> {
        self.name_refused().filter(|_| !self.released_here)
    }

    fn name_refused(&self) -> Option<(&'static str, String)> {
        let released = self.released.as_ref()?;
        let why = format!(
            "{released}. To run the work again, change triggers or the name. To allow this configuration to lock the \
             server again: terraform-provider-metal release --allow {}",
            released.id
        );
        Some((NAME_REFUSED, why))
    }

    /// In sentences, for a reviewer.
    pub(in crate::provider) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        match &self.earlier {
            Some(earlier) => lines.push(becomes_of(earlier)),
            None => lines.extend(self.continued.iter().map(|record| self.takeover(record))),
        }
        lines.extend(self.released.iter().map(|released| format!("Refused: {released}.")));
        if let Some(block) = &self.block {
            lines.push(format!("Block: {block}."));
        }
        lines
    }

    fn takeover(&self, record: &Maintenance) -> String {
        let (id, by, at) = (&record.id, &record.requester, shown_time(record.requested_at));
        match (&record.known_to, self.adopt) {
            (Some(known), false) => format!(
                "Another state has managed {id} since {} ({}): apply fails. Destroy it there. If that state is lost, \
                 set adopt = true or add an import block.",
                shown_time(known.since),
                known.by
            ),
            (Some(known), true) => format!(
                "Takes over {id}, requested by {by} at {at}, from another state ({}, since {}): adopt = true.",
                known.by,
                shown_time(known.since)
            ),
            (None, _) => {
                format!("Takes over {id}, requested by {by} at {at} ({}): no state has it yet.", record.phase.name())
            }
        }
    }
}

/// Describes how an action's previous invocation continues or ends.
pub(in crate::provider) fn becomes_of(earlier: &EarlierInvocation) -> String {
    let (EarlierInvocation::Made(record) | EarlierInvocation::Unfinished(record) | EarlierInvocation::Other(record)) =
        earlier;
    let (id, state) = (&record.id, record.phase.name());
    match earlier {
        EarlierInvocation::Made(_) => format!("{id} already ran {}.", record.made()),
        EarlierInvocation::Unfinished(_) => {
            let at = shown_time(record.requested_at);
            format!("Continues {id}, the invocation of {} requested at {at} ({state}).", record.requester)
        }
        EarlierInvocation::Other(_) if record.is_made() => {
            format!("Ends {id} first, an earlier invocation: it ran {}.", record.made())
        }
        EarlierInvocation::Other(_) => {
            format!("Ends {id} first, an earlier invocation: {} ({state}).", record.spec.summary())
        }
    }
}
