//! Schema and model of `metal_server_boot_configuration`.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::{AttributeType, Schema},
    value::{Value, ValueBool, ValueList, ValueNumber},
};

use crate::provider::{
    shared::boot::{self, BootModel, IgnitionModel, UrlModel},
    shared::effect,
    shared::outputs::outputs,
    shared::own_turn::{HOLD_PLACE_FOR, OwnTurn, turn_attributes},
    shared::private::{Mark, Remembered},
    shared::schema::{attributes, object, optional, required, schema, timeouts},
    shared::values::{Text, Timeouts, bad, check_timeouts, given, known, or_default, power, short, shown_duration},
    shared::window::WindowModel,
    shared::write_only::{self, WriteOnly},
};
use crate::{
    engine::Engine,
    maintenance::{
        ids::{MaintenanceId, check_name},
        limits,
        machine::{BootOverride, shown_url},
        spec::{MaintenanceKind, Policy, Spec},
        state::{Maintenance, Phase},
    },
    shown::{AsRaw, OneLine},
};

/// The object `previous_boot_override`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct OverrideModel {
    enabled: Text,
    target: Text,
    mode: Text,
    http_boot_uri: Text,
}

/// A `metal_server_boot_configuration` in configuration, plan and state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct BootConfigurationModel {
    pub(in crate::provider) id: Text,
    pub(in crate::provider) server: Text,
    pub(in crate::provider) maintenance_id: Text,
    pub(in crate::provider) method: Text,
    pub(in crate::provider) image: Text,
    pub(in crate::provider) image_sha256: Text,
    pub(in crate::provider) ignition: Value<IgnitionModel>,
    pub(in crate::provider) ignition_wo: WriteOnly,
    pub(in crate::provider) ignition_wo_version: ValueNumber,
    pub(in crate::provider) once: ValueBool,
    pub(in crate::provider) boot_mode: Text,
    pub(in crate::provider) ready_when: Value<UrlModel>,
    pub(in crate::provider) server_power: Text,
    pub(in crate::provider) policy: Text,
    pub(in crate::provider) require_claim: ValueBool,
    pub(in crate::provider) escalate_after: Text,
    pub(in crate::provider) reason: Text,
    pub(in crate::provider) ticket: Text,
    pub(in crate::provider) priority: ValueNumber,
    pub(in crate::provider) window: Value<WindowModel>,
    pub(in crate::provider) hold_place_for: Text,
    pub(in crate::provider) timeouts: Value<Timeouts>,
    pub(in crate::provider) effect: Text,
    pub(in crate::provider) state: Text,
    pub(in crate::provider) message: Text,
    pub(in crate::provider) managed_by: Text,
    pub(in crate::provider) lock_key: Text,
    pub(in crate::provider) previous_boot_override: Value<OverrideModel>,
    pub(in crate::provider) previous_media: ValueList<Text>,
}

outputs!(BootConfigurationModel {
    at_plan {
        effect: String, "The effect of apply on the server, shown in the plan. An update that does not change the effect does not touch the server.";
    }
    after_apply {
        id: String, "`namespace/name` of the record in the coordination store.";
        state: String, "`Pending`, `Ready` or `Error`. Unknown in a plan that resumes after an interruption.";
        message: String, "Why it is not `Ready`; null if it is `Ready`.";
        managed_by: String, "The managing state's random number; null after an import until apply takes the resource over.";
        lock_key: String, "The server's hardware identity, which is the lock key.";
        previous_boot_override: object([
                    ("enabled", computed(String, "`Disabled`, `Once` or `Continuous`.")),
                    ("target", computed(String, "The boot source.")),
                    ("mode", computed(String, "`UEFI` or `Legacy`.")),
                    ("http_boot_uri", computed(String, "The HTTP boot address.")),
                ]), "The prior boot override; restored at destroy.";
        previous_media: List(Box::new(String)), "The virtual drives' prior media, one entry per drive, empty for an empty drive; restored at destroy.";
    }
});

/// Builds the schema.
pub(in crate::provider) fn boot_configuration_schema() -> Schema {
    use AttributeType::String;
    let mut all = BootConfigurationModel::with_outputs(attributes([
        (
            "server",
            required(String, "The server's name in the provider's configuration. Changing it replaces the resource."),
        ),
        (
            "maintenance_id",
            optional(
                String,
                "The `id` of a `metal_server_maintenance` that holds this server: the change happens under that lock. Without it, the change waits in the queue and locks the server only during the change. If an external system manages the server (`metal_operator`, `metal3`, `ironic`), this lock lasts as long as the resource. The same applies with `server_power` if the server has a Machine in `cluster_api`. Changing it replaces the resource. Replacing that maintenance also replaces the boot configuration, which ends with it.",
            ),
        ),
        ("method", required(String, &boot::method_text())),
        (
            "server_power",
            optional(
                String,
                "The power state after the configuration is `Ready`: `On` or `Off`. The server is switched off first, so that it boots the configured source. Default: the power is not changed, and the configuration takes effect at the server's next start.",
            ),
        ),
        (
            "policy",
            optional(
                String,
                "`OwnerApproval` (the default without `maintenance_id`) or `Enforced`, as for `metal_server_maintenance`. Each change to the boot queues again and needs a new approval; destroy does not. With `maintenance_id`, no approval is needed by default; `OwnerApproval` requires the owner's approval even under that maintenance.",
            ),
        ),
        (
            "timeouts",
            timeouts([
                (
                    "create",
                    "Limit for waiting and preparing. Default: `\"1h\"`. If it ends during the preparation, the prior state is restored.",
                ),
                ("update", "Limit for changes and for resuming after an interruption. Default: `\"1h\"`."),
                ("delete", "Limit for restoring the prior state. Default: `\"30m\"`."),
            ]),
        ),
    ]));
    all.extend(attributes(boot::attributes()));
    all.extend(attributes(write_only::attributes()));
    all.extend(turn_attributes());
    schema(
        "Configures a server's boot: checks the image, sets the boot override or inserts the image, waits until the boot \
         environment is ready, and then sets the power. Destroy restores override, media and power.",
        all,
    )
}

impl BootConfigurationModel {
    /// Returns the attributes that identify its record.
    pub(in crate::provider) fn remembered(&self) -> Remembered<'_> {
        Remembered { id: &self.id, lock_key: &self.lock_key, mark: Mark::Number(&self.managed_by) }
    }

    pub(in crate::provider) fn boot(&self) -> BootModel {
        BootModel {
            method: self.method.clone(),
            image: self.image.clone(),
            image_sha256: self.image_sha256.clone(),
            ignition: self.ignition.clone(),
            ignition_wo: self.ignition_wo.clone(),
            ignition_wo_version: self.ignition_wo_version,
            once: self.once,
            boot_mode: self.boot_mode.clone(),
            ready_when: self.ready_when.clone(),
        }
    }

    /// Copies the write-only values from the configuration.
    pub(in crate::provider) fn take_write_only(&mut self, config: &Value<Self>) {
        if let Value::Value(config) = config {
            self.ignition_wo = config.ignition_wo.clone();
        }
    }

    /// Returns the parts that affect the server; `None` while one is unknown.
    pub(in crate::provider) fn acting(&self) -> Option<Spec> {
        effect::acting(MaintenanceKind::BootConfiguration, &self.server, &self.server_power, Some(&self.boot()))
    }

    pub(in crate::provider) fn set_defaults(&mut self) {
        let mut boot = self.boot();
        boot.set_defaults();
        self.once = boot.once;
        self.ready_when = boot.ready_when;
        or_default(&mut self.priority, 0);
        or_default(&mut self.hold_place_for, HOLD_PLACE_FOR.to_owned());
    }

    /// Returns the queue attributes.
    fn turn(&self) -> OwnTurn<'_> {
        OwnTurn {
            maintenance_id: &self.maintenance_id,
            policy: &self.policy,
            default_policy: Some(Policy::OwnerApproval),
            require_claim: &self.require_claim,
            escalate_after: &self.escalate_after,
            reason: &self.reason,
            ticket: &self.ticket,
            priority: &self.priority,
            window: &self.window,
            hold_place_for: &self.hold_place_for,
        }
    }

    /// Checks the known values and returns the specification, without the maintenance's uid, which
    /// only the store contains.
    ///
    /// Without the engine, named windows and opening times are not checked.
    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics, engine: Option<&Engine>) -> Option<Spec> {
        short(diags, &self.server, AttributePath::new("server"), limits::SERVER);
        let boot = self.boot().check(diags, &AttributePath::root());
        let server_power = power(diags, &self.server_power, AttributePath::new("server_power"));
        check_timeouts(diags, &self.timeouts);
        self.check_record_name(diags, engine.map(Engine::owner));
        let base = Spec::new(MaintenanceKind::BootConfiguration, given(&self.server).unwrap_or_default());
        let spec = self.turn().check(diags, engine, base)?;
        let reason = spec.reason.clone().or_else(|| Some(own_reason(given(&self.method)?).into()));
        Some(Spec { server: given(&self.server)?.into(), reason, server_power, boot: Some(boot?), ..spec })
    }

    /// Returns the record's name, which follows from the configuration. Without a maintenance it
    /// consists of owner and server, because server names belong to an owner.
    pub(in crate::provider) fn record_id(&self, owner: &str) -> Option<MaintenanceId> {
        let (namespace, name) = self.record_name(owner)?;
        MaintenanceId::new(&namespace, &name).ok()
    }

    /// Returns the record's namespace and name, of any length. `None` while they are unknown.
    fn record_name(&self, owner: &str) -> Option<(String, String)> {
        if matches!(self.maintenance_id, Value::Unknown) {
            return None;
        }
        Some(match given(&self.maintenance_id) {
            Some(hold) => {
                let hold: MaintenanceId = hold.parse().ok()?;
                (hold.namespace().to_owned(), format!("{}.boot", hold.name()))
            }
            None => ("boot-configuration".to_owned(), format!("{}.{}", plain(owner), plain(given(&self.server)?))),
        })
    }

    /// Reports a record name that is too long. Without a maintenance, the name contains the owner,
    /// which requires a configured provider.
    fn check_record_name(&self, diags: &mut Diagnostics, owner: Option<&str>) {
        let (attribute, made_of, owner) = match (&self.maintenance_id, owner) {
            (Value::Value(_), _) => ("maintenance_id", "the maintenance's name and .boot", ""),
            (Value::Null, Some(owner)) => ("server", "the provider's owner and the server's name", owner),
            _ => return,
        };
        if let Some((_, name)) = self.record_name(owner)
            && let Err(problem) = check_name(&name)
        {
            let detail = format!("It consists of {made_of}, and {problem}. Choose shorter names.");
            bad(diags, AttributePath::new(attribute), "Name of the boot configuration is too long", detail);
        }
    }

    pub(in crate::provider) fn show(&mut self, record: &Maintenance) {
        let (state, message) = match &record.phase {
            Phase::Pending => ("Pending", Some("waiting in the queue".to_owned())),
            Phase::Preparing(progress) => ("Pending", Some(format!("preparing {}", progress.text()))),
            Phase::InMaintenance { .. } => ("Ready", None),
            Phase::Releasing { stuck: Some(cause), .. } => {
                ("Error", Some(format!("restoring the prior state failed: {cause}")))
            }
            Phase::Releasing { progress, .. } => {
                ("Error", Some(format!("restoring the prior state, {}", progress.text())))
            }
            Phase::Completed { ending, .. } => ("Error", Some(format!("ended: {ending}"))),
            Phase::Failed { cause, .. } => ("Error", Some(cause.to_string())),
        };
        self.id = Value::Value(record.id.to_string());
        self.state = Value::Value(state.to_owned());
        self.message = known(message);
        self.lock_key = Value::Value(record.lock_key.to_string());
        let prior = record.prior.as_ref();
        self.previous_boot_override =
            prior.and_then(|prior| prior.boot.as_ref()).map_or(Value::Null, |boot| Value::Value(boot.into()));
        self.previous_media = prior.map_or(Value::Null, |prior| {
            let contents =
                prior.media.iter().map(|slot| Value::Value(shown_content(slot.content().unwrap_or_default())));
            Value::Value(contents.collect())
        });
    }

    /// Marks the boot configuration as ineffective after the external system revoked the server.
    pub(in crate::provider) fn lost(&mut self, why: &str) {
        self.state = Value::Value("Error".to_owned());
        self.message = Value::Value(format!("the external system revoked the server: {why}"));
    }

    /// Builds the model from a record; `hold` is the maintenance under which it acts.
    pub(in crate::provider) fn imported(record: &Maintenance, hold: Option<&MaintenanceId>) -> Self {
        let spec = &record.spec;
        let boot = spec.boot.as_ref().map(BootModel::from).unwrap_or_default();
        let own_turn = hold.is_none();
        let default = if own_turn { Policy::OwnerApproval } else { Policy::Enforced };
        let own_reason = own_reason(given(&boot.method).unwrap_or_default());
        let mut model = Self {
            effect: Value::Value(effect::of(spec)),
            server: Value::Value(spec.server.to_string()),
            maintenance_id: known(hold.map(ToString::to_string)),
            method: boot.method,
            image: boot.image,
            image_sha256: boot.image_sha256,
            ignition: boot.ignition,
            once: boot.once,
            boot_mode: boot.boot_mode,
            ready_when: boot.ready_when,
            server_power: known(spec.server_power.map(|power| power.to_string())),
            policy: known((spec.policy != default).then(|| spec.policy.to_string())),
            require_claim: if spec.require_claim { Value::Value(true) } else { Value::Null },
            escalate_after: known(spec.escalate_after.map(shown_duration)),
            reason: known(spec.reason.clone().filter(|reason| *reason != own_reason).map(OneLine::into_raw)),
            ticket: known(spec.ticket.clone().map(OneLine::into_raw)),
            priority: Value::Value(spec.priority),
            window: spec.window.as_ref().map_or(Value::Null, |window| Value::Value(WindowModel::of(window))),
            hold_place_for: Value::Value(shown_duration(spec.hold_place_for)),
            ..Self::default()
        };
        model.set_defaults();
        model.show(record);
        model
    }
}

/// Returns the default reason.
fn own_reason(method: &str) -> String {
    format!("boot configuration {method}")
}

impl From<&BootOverride> for OverrideModel {
    fn from(boot: &BootOverride) -> Self {
        Self {
            enabled: known(boot.enabled.clone().map(OneLine::into_raw)),
            target: known(boot.target.clone().map(OneLine::into_raw)),
            mode: known(boot.mode.clone().map(OneLine::into_raw)),
            // It could contain another user's token; the record keeps the exact URL.
            http_boot_uri: known(boot.http_boot_uri.as_raw().map(shown_url)),
        }
    }
}

/// Returns a drive's content without secrets in its address.
fn shown_content(content: &str) -> String {
    if content.contains("://") { shown_url(content) } else { content.to_owned() }
}

/// Converts a text so that it can be used in a name. A digest distinguishes texts with replaced
/// characters.
fn plain(text: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let replaced: String = text.chars().map(|c| if fits(c) { c } else { '-' }).collect();
    let replaced = replaced.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if replaced == text {
        return replaced.to_owned();
    }
    let digest: String = Sha256::digest(text)[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}{digest}", if replaced.is_empty() { String::new() } else { format!("{replaced}-") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(maintenance_id: Text, server: &str) -> BootConfigurationModel {
        let (server, method) = (Value::Value(server.to_owned()), Value::Value("pxe".to_owned()));
        BootConfigurationModel { server, maintenance_id, method, ..BootConfigurationModel::default() }
    }

    #[test]
    fn a_record_that_could_have_no_name_is_refused_with_the_attribute() {
        for (length, refused) in [(248, false), (249, true)] {
            let hold = Value::Value(format!("tests/{}", "n".repeat(length)));
            let mut diags = Diagnostics::default();
            assert_eq!(model(hold, "node1").check(&mut diags, None).is_none(), refused, "{length}: {diags:?}");
            let paths: Vec<_> = diags.errors.iter().map(|error| error.attribute.clone()).collect();
            assert_eq!(paths.contains(&AttributePath::new("maintenance_id")), refused, "{length}");
        }
        let (long, short) = ("o".repeat(250), "o".repeat(200));
        for (maintenance_id, owner, refused) in [
            (Value::Null, Some(long.as_str()), true),
            (Value::Null, Some(short.as_str()), false),
            (Value::Null, None, false),
            (Value::Unknown, Some(long.as_str()), false),
        ] {
            let mut diags = Diagnostics::default();
            model(maintenance_id, "node1").check_record_name(&mut diags, owner);
            assert_eq!(!diags.errors.is_empty(), refused, "{owner:?}");
        }
    }
}
