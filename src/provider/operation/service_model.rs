//! `service` of an operation: work that the external system carries out.

use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::{Attribute, AttributeType},
    value::{Value, ValueList},
};

use crate::provider::{
    shared::diagnostics::of_machine,
    shared::schema::{attributes, optional, required},
    shared::values::{Text, bad, given, short},
};
use crate::{
    backend::{BackendError, Machine},
    engine::Engine,
    maintenance::{
        limits,
        service::{ServiceSpec, ServiceStep},
        spec::Spec,
    },
    plugin::diagnostic,
    shown::OneLine,
};

/// The most steps of one service.
const MOST_STEPS: usize = 64;
/// The most characters in a step's arguments.
const MOST_ARGS: usize = 16 * 1024;

/// The object `service`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct ServiceModel {
    #[serde(default)]
    steps: ValueList<Value<StepModel>>,
    #[serde(default)]
    runbook: Text,
}

/// A service step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct StepModel {
    interface: Text,
    step: Text,
    #[serde(default)]
    args: Text,
}

/// Builds the attribute's schema.
pub(in crate::provider) fn service_attribute() -> Attribute {
    use AttributeType::{AttributeList, AttributeSingle, String};
    let step = attributes([
        ("interface", required(String, "The step's interface, for example `bios` or `firmware`.")),
        ("step", required(String, "The step's name in that interface, for example `apply_configuration`.")),
        (
            "args",
            optional(
                String,
                "The step's arguments as a JSON object, from `jsonencode({ … })`. The state and the coordination store contain them, so do not put secrets here. At most 16384 characters.",
            ),
        ),
    ]);
    optional(
        AttributeSingle(attributes([
            ("steps", optional(AttributeList(step), "Steps, in order. Set exactly one of `steps` and `runbook`.")),
            (
                "runbook",
                optional(
                    String,
                    "Name or UUID of a runbook in the external system. Set exactly one of `steps` and `runbook`.",
                ),
            ),
        ])),
        "Work that the external system performs once, instead of `operation`. The provider waits for its end. With `ironic`: service steps (API 1.87) or a runbook (API 1.92) on an active node. Changing it replaces the resource.",
    )
}

impl ServiceModel {
    /// Checks the known parts; returns the service if it is valid and complete.
    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics) -> Option<ServiceSpec> {
        let at = |name: &'static str| AttributePath::new("service").attribute(name);
        short(diags, &self.runbook, at("runbook"), limits::SERVER);
        if self.runbook.is_unknown() || self.steps.is_unknown() {
            return None;
        }
        let steps = match &self.steps {
            Value::Value(steps) => steps.as_slice(),
            _ => &[],
        };
        if steps.is_empty() == self.runbook.is_null() {
            let detail = "Set steps or runbook, but not both.";
            bad(diags, AttributePath::new("service"), "Exactly one of steps and runbook", detail);
            return None;
        }
        if steps.len() > MOST_STEPS {
            let detail = format!("It has {} steps; at most {MOST_STEPS} are allowed.", steps.len());
            bad(diags, at("steps"), "Limit exceeded", detail);
        }
        let mut all = Vec::new();
        for (index, step) in (0i64..).zip(steps) {
            all.push(check_step(diags, step, &at("steps").index(index)));
        }
        let steps = all.into_iter().collect::<Option<Vec<ServiceStep>>>()?;
        Some(ServiceSpec { steps, runbook: given(&self.runbook).map(OneLine::from) })
    }
}

fn check_step(diags: &mut Diagnostics, step: &Value<StepModel>, at: &AttributePath) -> Option<ServiceStep> {
    let step = match step {
        Value::Value(step) => step,
        Value::Null => {
            bad(diags, at.clone(), "A step is null", "Set its interface and step, or remove the element.");
            return None;
        }
        Value::Unknown => return None,
    };
    for (name, value) in [("interface", &step.interface), ("step", &step.step)] {
        short(diags, value, at.clone().attribute(name), limits::SERVER);
    }
    let args = given(&step.args);
    if let Some(text) = args {
        let path = at.clone().attribute("args");
        if text.len() > MOST_ARGS {
            bad(
                diags,
                path,
                "Limit exceeded",
                format!("It has {} bytes; at most {MOST_ARGS} are allowed.", text.len()),
            );
        } else if !serde_json::from_str::<serde_json::Value>(text).is_ok_and(|value| value.is_object()) {
            bad(diags, path, "Not a JSON object", "Write the arguments as jsonencode({ name = value }).");
        }
    }
    if step.args.is_unknown() {
        return None;
    }
    let args = args.map(OneLine::from);
    Some(ServiceStep { interface: given(&step.interface)?.into(), step: given(&step.step)?.into(), args })
}

/// Checks that the server supports the service, and adds an error otherwise.
pub(in crate::provider) async fn review(
    diags: &mut Diagnostics,
    engine: &Engine,
    spec: &Spec,
    hold: Option<&str>,
) -> bool {
    let Some(service) = &spec.service else { return true };
    let Ok(machine) = engine.machine(spec.server.shown()) else { return true };
    let mut refuse = |detail: String| {
        bad(diags, AttributePath::new("service"), &format!("{} cannot be serviced", spec.server), detail);
        false
    };
    let Some(control) = machine.service() else {
        return refuse("Its backend does not support services. Use operation.".to_owned());
    };
    if hold.is_some() {
        let detail = "The external system does not service a server that is in maintenance. Remove maintenance_id: \
                      the service then waits in the queue itself.";
        return refuse(detail.to_owned());
    }
    match control.problems(service).await {
        Ok(problems) if problems.is_empty() => true,
        Ok(problems) => refuse(problems.join("\n")),
        Err(error) => not_checked(diags, machine.as_ref(), spec, &error),
    }
}

fn not_checked(diags: &mut Diagnostics, machine: &dyn Machine, spec: &Spec, error: &BackendError) -> bool {
    if !error.is_transient() && !matches!(error, BackendError::Denied { .. }) {
        diags.add_error(of_machine(spec.server.shown(), error));
        return false;
    }
    let detail = format!("{}: {error}. Whether {} can be serviced was not checked.", spec.server, machine.address());
    diags.add_warning(diagnostic("A server could not be checked", detail, AttributePath::new("service")));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Text {
        Value::Value(text.to_owned())
    }

    fn model(steps: Vec<(&str, &str, Option<&str>)>, runbook: Option<&str>) -> ServiceModel {
        let step = |(interface, step, args): (&str, &str, Option<&str>)| {
            let args = args.map_or(Value::Null, text);
            Value::Value(StepModel { interface: text(interface), step: text(step), args })
        };
        let steps = Value::Value(steps.into_iter().map(step).collect());
        ServiceModel { steps, runbook: runbook.map_or(Value::Null, text) }
    }

    fn check(model: &ServiceModel) -> (Option<ServiceSpec>, usize) {
        let mut diags = Diagnostics::default();
        let checked = model.check(&mut diags);
        (checked, diags.errors.len())
    }

    #[test]
    fn exactly_one_of_steps_and_runbook() {
        let steps = || vec![("bios", "apply_configuration", Some("{\"settings\": []}"))];
        let (checked, errors) = check(&model(steps(), None));
        assert_eq!((checked.unwrap().to_string().as_str(), errors), ("step bios.apply_configuration", 0));
        assert_eq!(check(&model(vec![], Some("CUSTOM_FW"))).0.unwrap().to_string(), "runbook CUSTOM_FW");
        assert_eq!(check(&model(steps(), Some("CUSTOM_FW"))).1, 1);
        assert_eq!(check(&model(vec![], None)).1, 1);
    }

    #[test]
    fn arguments_are_a_json_object() {
        for args in ["[]", "1", "settings", "{"] {
            assert_eq!(check(&model(vec![("bios", "x", Some(args))], None)).1, 1, "{args}");
        }
    }
}
