//! Sorts the findings from a server's external systems for a plan.

use tf_provider::{AttributePath, Diagnostics};

use crate::{
    backend::{Outlook, PlanWarning, Rejection, UnaskedConsumer},
    maintenance::spec::Spec,
    plugin::diagnostic,
};

use super::{
    prospect::{AHEAD, APPROVAL_MISSING},
    values::bad,
};

/// Summary of a warning: the external system would reject the request now.
const REJECTED: &str = "A request will be rejected";

/// An outlook, sorted by where the plan shows it.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// Sentences next to the effect.
    pub(super) lines: Vec<String>,
    /// Warnings, each with its own summary.
    pub(super) obstacles: Vec<(&'static str, String)>,
    /// The consumer that does not approve the maintenance.
    pub(super) unasked: Option<UnaskedConsumer>,
}

/// Sorts an outlook. `None`: only another configuration helps, and the error was reported.
pub(super) fn sorted(diags: &mut Diagnostics, spec: &Spec, outlook: Outlook) -> Option<Shown> {
    let server = &spec.server;
    let there = [(APPROVAL_MISSING, outlook.approval_missing), (AHEAD, outlook.ahead)];
    let there = there.into_iter().filter_map(|(summary, why)| Some((summary, format!("{server}: {}.", why?))));
    let mut obstacles: Vec<_> = there.collect();
    match outlook.rejection {
        Some(Rejection { why, by_configuration: true }) => {
            let summary = format!("{server} does not support this request");
            bad(diags, AttributePath::new("server"), &summary, format!("{why}."));
            return None;
        }
        Some(Rejection { why, by_configuration: false }) => {
            obstacles.push((REJECTED, format!("{server}: {why}. Apply fails while this cause exists.")));
        }
        None => {}
    }
    Some(Shown { lines: outlook.lines, obstacles, unasked: outlook.unasked })
}

/// Warns about a consumer that does not approve. `drained`: its Node is drained first.
pub(super) fn warn_unasked(diags: &mut Diagnostics, server: &str, consumer: UnaskedConsumer, drained: bool) {
    let undrained = Some(consumer.undrained).filter(|_| !drained);
    for PlanWarning { summary, detail } in undrained.into_iter().chain(consumer.more) {
        diags.add_warning(diagnostic(summary, format!("{server}: {detail}"), AttributePath::root()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance::spec::MaintenanceKind;

    #[test]
    fn a_rejection_is_an_error_only_where_the_configuration_causes_it() {
        let spec = Spec::new(MaintenanceKind::Maintenance, "node1");
        for by_configuration in [true, false] {
            let mut diags = Diagnostics::default();
            let rejection = Some(Rejection { why: "it is odd".to_owned(), by_configuration });
            let shown = sorted(&mut diags, &spec, Outlook { rejection, ..Outlook::default() });
            assert_eq!(diags.errors.len(), usize::from(by_configuration));
            assert_eq!(shown.is_none(), by_configuration);
            let warned = shown.is_some_and(|shown| shown.obstacles.iter().any(|(summary, _)| *summary == REJECTED));
            assert_eq!(warned, !by_configuration);
        }
    }
}
