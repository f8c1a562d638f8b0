//! `effect`: apply's effect on a server, known during the plan.
//!
//! It depends on configuration and state only, never on a BMC or the store. Hosts plan again during
//! apply and reject a different plan.

use tf_provider::{AttributePath, Diagnostics, value::Value};

use crate::maintenance::{
    machine::PowerState,
    spec::{BootMethod, MaintenanceKind, Spec, WaitFor},
};

use crate::provider::{
    maintenance::model::MaintenanceModel,
    shared::boot::BootModel,
    shared::values::{Text, given, power},
};

/// Returns [`Spec::effect`] with the server's name. If apply only locks the server, it reports that
/// the server stays unchanged.
pub(in crate::provider) fn of(spec: &Spec) -> String {
    format!("{} {}", spec.server, spec.stated_effect(None).trim_end_matches('.'))
}

/// The same text for a server whose power was read; another text stays.
pub(in crate::provider) fn on(spec: &Spec, effect: &str, power: Option<PowerState>) -> String {
    if effect == of(spec) {
        format!("{} {}", spec.server, spec.stated_effect(power).trim_end_matches('.'))
    } else {
        effect.to_owned()
    }
}

/// Returns the effect of carrying out a specification; unknown while a part is unknown.
pub(in crate::provider) fn planned(spec: Option<&Spec>) -> Text {
    spec.map_or(Value::Unknown, |spec| Value::Value(of(spec)))
}

/// Returns the effect of resuming an interrupted run.
pub(in crate::provider) fn resumed(spec: Option<&Spec>) -> Text {
    spec.map_or(Value::Unknown, |spec| Value::Value(format!("resumes: {}", of(spec))))
}

/// Returns a specification's parts that affect a server; `None` while one is unknown.
pub(in crate::provider) fn acting(
    kind: MaintenanceKind,
    server: &Text,
    server_power: &Text,
    boot: Option<&BootModel>,
) -> Option<Spec> {
    let mut diags = Diagnostics::default();
    let boot = match boot {
        Some(boot) => Some(boot.check(&mut diags, &AttributePath::root())?),
        None => None,
    };
    let server_power = match server_power {
        Value::Null => None,
        other => Some(power(&mut diags, other, AttributePath::root())?),
    };
    let known = boot
        .as_ref()
        .is_none_or(|boot| boot.image.is_some() || matches!(boot.method, BootMethod::Pxe | BootMethod::Disk));
    known.then_some(Spec { server_power, boot, ..Spec::new(kind, given(server)?) })
}

/// Returns a maintenance's parts that affect the server.
fn acting_of(model: &MaintenanceModel) -> Option<Spec> {
    let boot = match &model.boot_configuration {
        Value::Value(boot) => Some(boot),
        Value::Null => None,
        Value::Unknown => return None,
    };
    acting(MaintenanceKind::Maintenance, &model.server, &model.server_power, boot)
}

/// Returns the effect of creating a maintenance.
pub(in crate::provider) fn of_create(model: &MaintenanceModel) -> Text {
    let spec = acting_of(model);
    if model.wait_for.is_unknown() {
        return Value::Unknown;
    }
    match spec {
        Some(spec) if model.wait_for() == WaitFor::Enqueued => {
            Value::Value(format!("{} is not touched yet. After a later apply: {}", spec.server, of(&spec)))
        }
        spec => planned(spec.as_ref()),
    }
}

/// Returns the effect of updating a maintenance; the previous effect if the server is not touched.
pub(in crate::provider) fn of_update(prior: &MaintenanceModel, model: &MaintenanceModel, goes_on: bool) -> Text {
    let spec = acting_of(model);
    if let (Some(power), Some(spec)) = (drifted(prior, model), &spec) {
        return Value::Value(format!("{} again, because its power is {power}", of(spec)));
    }
    match given(&prior.state) {
        Some("Preparing") => resumed(spec.as_ref()),
        Some("Releasing") => {
            let server = given(&model.server).unwrap_or_default();
            Value::Value(format!("resumes: {server} is restored and released"))
        }
        Some("Pending") if !goes_on => of_create(model),
        Some("Pending") => planned(spec.as_ref()),
        _ if acts(prior, model) => planned(spec.as_ref()),
        _ => prior.effect.clone(),
    }
}

/// Returns the effect when an update ends a revoked maintenance.
pub(in crate::provider) fn of_revoked(model: &MaintenanceModel) -> Text {
    given(&model.server)
        .map_or(Value::Unknown, |server| Value::Value(format!("{server} is released and not locked again")))
}

/// Returns true if a change affects a prepared server.
pub(in crate::provider) fn acts(prior: &MaintenanceModel, model: &MaintenanceModel) -> bool {
    model.server_power != prior.server_power || model.boot_configuration != prior.boot_configuration
}

/// Returns a held server's actual power, if it differs from the requested power and apply restores
/// it.
pub(in crate::provider) fn drifted<'a>(prior: &'a MaintenanceModel, model: &MaintenanceModel) -> Option<&'a str> {
    let held = given(&prior.state) == Some("InMaintenance");
    let power =
        given(&prior.power_state).filter(|power| given(&model.server_power).is_some_and(|asked| asked != *power));
    power.filter(|_| held && model.restores_drift() && !model.ends_by_power() && !acts(prior, model))
}

/// Returns true if an update changes neither the server nor its outputs, so the plan can show them.
pub(in crate::provider) fn is_quiet(prior: &MaintenanceModel, model: &MaintenanceModel) -> bool {
    let rests = given(&prior.state) == Some("InMaintenance") && !model.wait_for.is_unknown();
    rests && model.wait_for() != WaitFor::Completed && !acts(prior, model) && drifted(prior, model).is_none()
}

/// Fills in an effect that was unknown during the plan.
pub(in crate::provider) fn settle(effect: &mut Text, spec: &Spec) {
    if effect.is_unknown() {
        *effect = Value::Value(of(spec));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Text {
        Value::Value(text.to_owned())
    }

    fn model(state: &str, power: &str, wait_for: &str) -> MaintenanceModel {
        let effect = text("of before");
        let (server, server_power) = (text("node1"), if power.is_empty() { Value::Null } else { text(power) });
        MaintenanceModel {
            server,
            server_power,
            state: text(state),
            wait_for: text(wait_for),
            effect,
            ..MaintenanceModel::default()
        }
    }

    #[test]
    fn what_a_plan_does_is_told_by_configuration_and_state() {
        let created = |power: &str, wait_for: &str| of_create(&model("", power, wait_for));
        assert_eq!(created("", "InMaintenance"), text("node1 is locked; power and boot do not change"));
        assert_eq!(created("Off", "InMaintenance"), text("node1 is switched off"));
        let later = "node1 is not touched yet. After a later apply: node1 is switched off";
        assert_eq!(created("Off", "Enqueued"), text(later));
        for (state, before, after, goes_on, effect) in [
            ("InMaintenance", "Off", "Off", false, "of before"),
            ("InMaintenance", "Off", "On", false, "node1 is switched on"),
            ("InMaintenance", "Off", "", false, "node1 is locked; power and boot do not change"),
            ("Preparing", "Off", "Off", true, "resumes: node1 is switched off"),
            ("Releasing", "Off", "Off", true, "resumes: node1 is restored and released"),
            ("Pending", "Off", "Off", true, "node1 is switched off"),
            ("Pending", "Off", "On", false, "node1 is not touched yet. After a later apply: node1 is switched on"),
        ] {
            let (before, after) = (model(state, before, "Enqueued"), model("", after, "Enqueued"));
            assert_eq!(of_update(&before, &after, goes_on), text(effect), "{state}");
        }
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        let model = MaintenanceModel { server_power: Value::Unknown, ..model("", "Off", "InMaintenance") };
        assert!(of_create(&model).is_unknown());
    }
}
