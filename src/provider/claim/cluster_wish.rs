//! Converts between the configuration and a cluster's claim.

use tf_provider::{AttributePath, Diagnostics, value::Value};

use crate::{
    backend::{ExternalClaim, ExternalClaimView},
    engine::Engine,
    maintenance::{
        approval::PendingMaintenance,
        ids::LockKey,
        machine::{Ignition, PowerTarget},
    },
};

use crate::provider::{
    claim::model::ClaimModel,
    shared::boot::IgnitionModel,
    shared::toleration,
    shared::values::{Text, bad, given, known},
    shared::write_only::sha256,
};

/// Converts the known configuration; reports missing attributes.
pub(super) fn wanted(diags: &mut Diagnostics, engine: &Engine, model: &ClaimModel) -> Option<ExternalClaim> {
    for (name, value) in [("image", &model.image), ("server_power", &model.server_power)] {
        if value.is_null() {
            let detail = "With this backend, a claim boots its server for its owner. Set image and server_power.";
            bad(diags, AttributePath::new(name), "Required for a claim that boots its server", detail);
        }
    }
    let power = match given(&model.server_power)? {
        "Off" => PowerTarget::Off,
        _ => PowerTarget::On,
    };
    Some(ExternalClaim {
        namespace: given(&model.namespace)?.to_owned(),
        name: given(&model.name)?.to_owned(),
        server: given(&model.server)?.to_owned(),
        owner: engine.owner().to_owned(),
        run: engine.runner().to_string(),
        contact: given(&model.contact).map(str::to_owned),
        image: given(&model.image)?.to_owned(),
        ignition: ignition(engine, model)?,
        power,
        tolerations: toleration::meant(&model.tolerations)?,
    })
}

/// Returns the ignition, and passes its content to the backend. Outer `None`: unknown or invalid.
#[allow(clippy::option_option, reason = "not known, none, or one")]
pub(super) fn ignition(engine: &Engine, model: &ClaimModel) -> Option<Option<Ignition>> {
    match &model.ignition {
        Value::Null if !model.ignition_wo.is_absent() => written_only(engine, model).map(Some),
        Value::Null => Some(None),
        Value::Unknown => None,
        Value::Value(ignition) => {
            let at = AttributePath::new("ignition");
            let (ignition, content) = ignition.check(&mut Diagnostics::default(), &at)?;
            if let (Ignition::Content(sha256), Some(content)) = (&ignition, content) {
                engine.backend().keep(sha256.clone(), content);
            }
            Some(Some(ignition))
        }
    }
}

/// Returns the write-only ignition. If the plan kept the current Secret, the new content is
/// ignored.
fn written_only(engine: &Engine, model: &ClaimModel) -> Option<Ignition> {
    if let Some(kept) = given(&model.ignition_secret) {
        return Some(Ignition::Secret(kept.to_owned()));
    }
    let content = model.ignition_wo.content()?;
    let sha256 = sha256(content);
    engine.backend().keep(sha256.clone(), content.clone());
    Some(Ignition::Content(sha256))
}

impl ClaimModel {
    /// Copies the write-only values from the configuration.
    pub(super) fn take_write_only(&mut self, config: &Value<Self>) {
        if let Value::Value(config) = config {
            self.ignition_wo = config.ignition_wo.clone();
        }
    }

    /// Returns true if the version is unchanged, so the current ignition stays.
    pub(super) fn keeps_ignition(&self, prior: &Self) -> bool {
        !self.ignition_wo.is_absent()
            && self.ignition_wo_version == prior.ignition_wo_version
            && given(&prior.ignition_secret).is_some()
    }

    /// Copies the claim's gates and requests into the computed attributes.
    pub(super) fn show_gates(
        &mut self,
        claim: &ExternalClaimView,
        asked: &[PendingMaintenance],
        key: Option<&LockKey>,
    ) {
        self.id = Value::Value(claim.id.clone());
        self.owner = known(claim.owner.as_ref().map(|text| text.raw().to_owned()));
        self.claimed_at = known(claim.since.clone());
        self.phase = known(claim.phase.clone());
        self.ignition_secret = known(claim.ignition_secret.clone());
        if let Some(key) = key {
            self.lock_key = Value::Value(key.raw().to_owned());
        }
        self.set_pending(asked.to_vec());
        self.maintenance_needed = Value::Value(claim.needed || !asked.is_empty());
    }

    /// Copies a cluster's claim into the configured attributes, so that a plan shows drift. `made`
    /// is the name prefix of Secrets that this provider creates for ignition files.
    pub(super) fn take_over(&mut self, claim: &ExternalClaimView, made: &str) {
        self.image = known(claim.image.clone());
        self.server_power = known(claim.power.clone());
        self.tolerations = toleration::seen(&self.tolerations, &claim.tolerations);
        let from_file = matches!(&self.ignition, Value::Value(ignition) if ignition.is_file());
        let from_content = !self.ignition_wo_version.is_null();
        match &claim.ignition_secret {
            // The plan compares the Secret's name, which detects changed file content.
            Some(secret) if (from_file || from_content) && !made.is_empty() && secret.starts_with(made) => {}
            other => {
                self.ignition = other.as_deref().map_or(Value::Null, |it| Value::Value(IgnitionModel::of_secret(it)));
                // A different version than the configured value, so the content is written again.
                self.ignition_wo_version = Value::Null;
            }
        }
    }

    /// Replaces these values by known planned values.
    pub(super) fn with_planned(self, planned: &Self) -> Self {
        let keep = |planned: &Text, now: Text| if planned.is_unknown() { now } else { planned.clone() };
        Self {
            owner: keep(&planned.owner, self.owner),
            claimed_at: keep(&planned.claimed_at, self.claimed_at),
            lock_key: keep(&planned.lock_key, self.lock_key),
            phase: keep(&planned.phase, self.phase),
            ignition_secret: keep(&planned.ignition_secret, self.ignition_secret),
            maintenance_needed: planned.maintenance_needed,
            pending: planned.pending.clone(),
            ..planned.clone()
        }
    }
}
