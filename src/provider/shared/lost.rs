//! Sentences about a run that ended early: how long it waited, and how it lost its maintenance.

use std::time::Duration;

use tf_provider::{AttributePath, Diagnostic};

use crate::{
    maintenance::{
        queue::shown_time,
        state::{Maintenance, Phase},
    },
    plugin::diagnostic,
};

use super::values::shown_duration;

/// A run that ends so shortly before its time limit used the whole limit.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Returns how long a run waited. `limit` is the time limit, set by `argument`.
pub(in crate::provider) fn waited(waited: Duration, limit: Duration, argument: &str) -> String {
    let shown = shown_duration(limit);
    if waited + TOLERANCE >= limit {
        format!("Waited {shown} ({argument}).")
    } else {
        format!("Waited {} of {shown} ({argument}).", shown_duration(waited))
    }
}

/// Returns a lost maintenance's summary and cause. A request that never held its server lost only
/// its queue position.
pub(in crate::provider) fn lost(server: &str, record: &Maintenance) -> (String, String) {
    let held = record.admitted_at.is_some();
    let id = &record.id;
    let how = match (&record.phase, &record.attachment) {
        (Phase::Completed { at, ending }, _) => format!("{id} was {ending} at {}", shown_time(*at)),
        (_, Some(by)) => format!("{} took over {id} ({})", by.runner, record.phase.name()),
        (phase, None) => format!("{id} is {} under generation {}", phase.name(), record.generation),
    };
    if held {
        (format!("Lost the lock on {server}"), how)
    } else {
        (format!("The request for {server} was ended"), format!("{how}. It waited and never held the server"))
    }
}

/// Reports a lost maintenance.
pub(in crate::provider) fn no_longer_ours(server: &str, record: &Maintenance) -> Diagnostic {
    let (summary, how) = lost(server, record);
    diagnostic(
        summary,
        format!("{how}. Nothing more was done to the server. The resource is dropped from the state."),
        AttributePath::root(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_states_the_time_that_it_waited() {
        let limit = Duration::from_mins(30);
        for (seconds, sentence) in [
            (1800, "Waited 30m (timeouts.create)."),
            (1799, "Waited 30m (timeouts.create)."),
            (95, "Waited 1m35s of 30m (timeouts.create)."),
        ] {
            assert_eq!(waited(Duration::from_secs(seconds), limit, "timeouts.create"), sentence);
        }
    }
}
