//! Reads a service's outcome from the node history. Pure.
//!
//! Ironic 39.0.0 records each start and end (conductor/utils.py, `log_step_flow_history`; enabled
//! by default, `[conductor]record_step_flows_in_history`). Without it, Ironic records only
//! failures.

use jiff::Timestamp;
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The steps, as listed in the start record.
    began: String,
    /// The outcome with Ironic's error; `None` without an end record.
    pub(super) end: Option<Result<(), String>>,
}

impl Run {
    pub(super) fn had(&self, step: &str) -> bool {
        self.began.contains(&format!("'step': '{step}'"))
    }
}

/// Returns the last service that started after `since`; `None` without a record.
pub(super) fn last_run(history: &Value, since: Timestamp) -> Option<Run> {
    let mut run: Option<Run> = None;
    for entry in history["history"].as_array()? {
        let text = |name: &str| entry[name].as_str().unwrap_or_default();
        if text("created_at").parse::<Timestamp>().ok().is_none_or(|at| at <= since) {
            continue;
        }
        match (text("event_type"), &mut run) {
            ("servicing_start", run) => *run = Some(Run { began: text("event").to_owned(), end: None }),
            ("servicing_end", Some(run)) if run.end.is_none() => {
                let failed = text("severity") == "ERROR" || !text("event").contains("completed");
                run.end = Some(if failed { Err(text("event").to_owned()) } else { Ok(()) });
            }
            // The step's own error follows the end record.
            ("servicing", Some(run)) if text("severity") == "ERROR" => run.end = Some(Err(text("event").to_owned())),
            _ => {}
        }
    }
    run
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(at: &str, kind: &str, severity: &str, event: &str) -> Value {
        json!({ "created_at": at, "event_type": kind, "severity": severity, "event": event })
    }

    fn began(at: &str) -> Value {
        let event = "Starting servicing with steps=[{'interface': 'vendor', 'step': 'log_passthrough', 'priority': 0}]";
        entry(at, "servicing_start", "INFO", event)
    }

    fn run(entries: &[Value]) -> Option<Run> {
        last_run(&json!({ "history": entries }), "2026-11-23T04:00:00.5+00:00".parse().unwrap())
    }

    const BEFORE: &str = "2026-11-23T03:59:59+00:00";
    const AT: &str = "2026-11-23T04:00:01+00:00";

    #[test]
    fn only_what_began_since_counts() {
        assert_eq!(run(&[]), None);
        assert_eq!(run(&[began(BEFORE)]), None);
        let end = entry(AT, "servicing_end", "INFO", "Servicing completed successfully with steps=[]");
        assert_eq!(run(&[began(BEFORE), end.clone()]), None);
        let seen = run(&[began(BEFORE), began(AT), end]).unwrap();
        assert_eq!(seen.end, Some(Ok(())));
        assert!(seen.had("log_passthrough") && !seen.had("hold"));
    }

    #[test]
    fn a_failure_has_the_words_of_its_step() {
        let end = entry(AT, "servicing_end", "ERROR", "Servicing aborted at step 'x' with steps=[]");
        assert_eq!(
            run(&[began(AT), end.clone()]).unwrap().end,
            Some(Err("Servicing aborted at step 'x' with steps=[]".into()))
        );
        let words = entry(AT, "servicing", "ERROR", "Node n failed step x: no such file");
        assert_eq!(run(&[began(AT), end, words]).unwrap().end, Some(Err("Node n failed step x: no such file".into())));
        assert_eq!(run(&[began(AT)]).unwrap().end, None);
    }
}
