//! Builds and sends diagnostics.
use std::borrow::Cow;

use tf_provider::{AttributePath, AttributePathStep, Diagnostic, Diagnostics};

use super::proto::tfplugin6 as wire;
use shown_text as shown;

/// Builds a diagnostic with exactly this text.
///
/// Use this (with [`Diagnostics::add_error`] and [`Diagnostics::add_warning`]) instead of
/// `Diagnostic::new`, `root_error`, `root_warning` and similar functions. Those append a backtrace
/// to the detail if `RUST_BACKTRACE` is set, which hides the message. [`AttributePath::root`] means
/// no specific attribute.
#[must_use]
pub fn diagnostic<S, D>(summary: S, detail: D, attribute: AttributePath) -> Diagnostic
where
    S: Into<Cow<'static, str>>,
    D: Into<Cow<'static, str>>,
{
    Diagnostic { summary: summary.into(), detail: detail.into(), attribute }
}

/// Returns a value that was created once for all requests; `None` after adding its errors.
pub(super) fn known<T>(diags: &mut Diagnostics, made: Result<T, Diagnostics>) -> Option<T> {
    made.map_err(|errors| diags.add_diagnostics(errors)).ok()
}

/// Adds an error if none exists, for answers that must not look like success.
pub(super) fn ensure_error(diags: &mut Diagnostics, error: impl FnOnce() -> Diagnostic) {
    if diags.errors.is_empty() {
        diags.add_error(error());
    }
}

/// Returns an error for a provider bug in `rpc` on `subject`.
pub(super) fn internal_error(rpc: &str, subject: &str, what: impl std::fmt::Display) -> Diagnostic {
    let of = if subject.is_empty() { "" } else { " of " };
    diagnostic(
        format!("Internal error in {rpc}{of}{subject}"),
        format!("{what}\nThis is a bug in the provider; please report it."),
        AttributePath::root(),
    )
}

/// Converts errors, then warnings, each in their order.
pub(super) fn to_wire(diags: Diagnostics) -> Vec<wire::Diagnostic> {
    // Hosts show only the outermost attribute's line.
    sent(diags, 2)
}

/// Converts provider-block diagnostics, whose attribute hosts do not show.
pub(super) fn to_wire_of_provider(diags: Diagnostics) -> Vec<wire::Diagnostic> {
    sent(diags, 1)
}

/// Adds the attribute to the text if its path has at least `steps` steps.
fn sent(diags: Diagnostics, steps: usize) -> Vec<wire::Diagnostic> {
    use wire::diagnostic::Severity;
    let errors = diags.errors.into_iter().map(|d| (Severity::Error, d));
    let warnings = diags.warnings.into_iter().map(|d| (Severity::Warning, d));
    errors
        .chain(warnings)
        .map(|(severity, diagnostic)| wire::Diagnostic {
            severity: severity.into(),
            summary: shown::line(&diagnostic.summary).into_owned(),
            detail: placed(shown::lines(&diagnostic.detail).into_owned(), &diagnostic.attribute, steps),
            // Hosts would show an empty path; an absent path means the whole object.
            attribute: (!diagnostic.attribute.steps.is_empty()).then(|| path_to_wire(diagnostic.attribute)),
        })
        .collect()
}

fn placed(detail: String, path: &AttributePath, steps: usize) -> String {
    if path.steps.len() < steps { detail } else { format!("Attribute {path}: {detail}") }
}

pub(super) fn path_to_wire(path: AttributePath) -> wire::AttributePath {
    use wire::attribute_path::{Step, step::Selector};
    let step = |step| Step {
        selector: Some(match step {
            AttributePathStep::Attribute(name) => Selector::AttributeName(name.into_owned()),
            AttributePathStep::Key(key) => Selector::ElementKeyString(key.into_owned()),
            AttributePathStep::Index(index) => Selector::ElementKeyInt(index),
        }),
    };
    wire::AttributePath { steps: path.steps.into_iter().map(step).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_come_before_warnings_and_roots_have_no_path() {
        let mut diags = Diagnostics::default();
        diags.add_warning(diagnostic("w", "", AttributePath::new("a").key("k").index(3)));
        diags.add_error(diagnostic("e", "because", AttributePath::root()));
        let sent = to_wire(diags);
        assert_eq!(sent[0].severity(), wire::diagnostic::Severity::Error);
        assert_eq!(sent[0].detail, "because");
        assert_eq!(sent[1].detail, "Attribute a[\"k\"][3]: ");
        assert!(sent[0].attribute.is_none());
        assert_eq!(sent[1].severity(), wire::diagnostic::Severity::Warning);
        assert_eq!(sent[1].attribute.as_ref().map(|path| path.steps.len()), Some(3));
    }

    #[test]
    fn the_attribute_is_in_the_text_where_hosts_do_not_show_it() {
        let detail = |path: AttributePath, of_provider: bool| {
            let mut diags = Diagnostics::default();
            diags.add_error(diagnostic("e", "because", path));
            let sent = if of_provider { to_wire_of_provider(diags) } else { to_wire(diags) };
            sent[0].detail.clone()
        };
        let nested = AttributePath::new("redfish").attribute("servers").key("a").attribute("endpoint");
        assert_eq!(detail(nested, true), "Attribute redfish.servers[\"a\"].endpoint: because");
        assert_eq!(detail(AttributePath::new("boot").attribute("method"), false), "Attribute boot.method: because");
        assert_eq!(detail(AttributePath::new("server"), false), "because");
        assert_eq!(detail(AttributePath::new("owner"), true), "Attribute owner: because");
        assert_eq!(detail(AttributePath::root(), true), "because");
    }

    #[test]
    fn an_error_is_ensured_only_where_none_is() {
        let mut diags = Diagnostics::default();
        ensure_error(&mut diags, || internal_error("ReadResource", "x_y", "nothing came back"));
        ensure_error(&mut diags, || internal_error("ReadResource", "x_y", "again"));
        assert_eq!(diags.errors.len(), 1);
        assert_eq!(diags.errors[0].summary, "Internal error in ReadResource of x_y");
    }
}
