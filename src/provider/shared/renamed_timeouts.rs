//! Renames time limits in diagnostics: actions and ephemeral resources use other names than
//! resources but share the checks.

use tf_provider::{AttributePathStep, Diagnostics};

/// Renames time limits in texts and paths: `("create", "invoke")` replaces `timeouts.create` by
/// `timeouts.invoke`.
pub(in crate::provider) fn rename_timeouts(diags: &mut Diagnostics, names: &[(&'static str, &'static str)]) {
    for problem in diags.errors.iter_mut().chain(&mut diags.warnings) {
        for (old, new) in names {
            let (from, to) = (format!("timeouts.{old}"), format!("timeouts.{new}"));
            if problem.detail.contains(&from) {
                problem.detail = problem.detail.replace(&from, &to).into();
            }
            if let [AttributePathStep::Attribute(outer), AttributePathStep::Attribute(inner)] =
                problem.attribute.steps.as_mut_slice()
                && outer == "timeouts"
                && inner == old
            {
                *inner = (*new).into();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tf_provider::AttributePath;

    use super::*;
    use crate::plugin::diagnostic;

    #[test]
    fn a_time_limit_has_the_name_of_the_configuration() {
        let mut diags = Diagnostics::default();
        let path = |name: &'static str| AttributePath::new("timeouts").attribute(name);
        diags.add_error(diagnostic("s", "raise timeouts.create", path("create")));
        diags.add_warning(diagnostic("s", "timeouts.delete", path("delete")));
        rename_timeouts(&mut diags, &[("create", "invoke")]);
        assert_eq!((&*diags.errors[0].detail, &diags.errors[0].attribute), ("raise timeouts.invoke", &path("invoke")));
        assert_eq!((&*diags.warnings[0].detail, &diags.warnings[0].attribute), ("timeouts.delete", &path("delete")));
    }
}
