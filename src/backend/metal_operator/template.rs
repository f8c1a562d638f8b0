//! The boot template in our `ServerMaintenance`, and its boot configuration's readiness. The
//! operator creates the configuration from the template.

use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::{backend::BackendError, maintenance::gate::BootReadiness};

use super::{
    objects::{METAL, OUR_BOOT, OUR_OLD_BOOT, annotation, full_name, reference, resource, text},
    request::ServerMaintenanceRequest,
};

/// A request's desired boot template.
#[derive(Debug)]
pub(super) struct Template {
    pub(super) spec: Value,
    /// The template's source, which observations report.
    pub(super) made_from: String,
}

impl ServerMaintenanceRequest<'_> {
    /// Returns the object's current fields, which a change must repeat.
    pub(super) fn said(object: &DynamicObject) -> (Option<&str>, Option<Template>, Option<&str>) {
        let template = object.data.pointer("/spec/serverBootConfigurationTemplate/spec").map(|spec| Template {
            spec: spec.clone(),
            made_from: annotation(object, OUR_BOOT).unwrap_or_default().to_owned(),
        });
        (text(object, "/spec/serverPower"), template, annotation(object, OUR_OLD_BOOT))
    }

    /// Sets the operator's boot template; `None` removes it, and the server boots its default.
    pub(super) async fn set_template(&self, template: Option<Template>) -> Result<(), BackendError> {
        let object = self.held().await?;
        let (power, before, stale) = Self::said(&object);
        let mut stale = stale.map(str::to_owned);
        let same = before.as_ref().zip(template.as_ref()).is_some_and(|(before, now)| before.spec == now.spec);
        if before.is_some() && !same {
            // The operator creates a new configuration, whose `Ready` applies to the new template.
            let without = self.wanted(power, None, stale.as_deref()).await?;
            self.apply(without, Some(&object)).await?;
            stale = self.remove_boot_configuration().await?.or(stale);
        }
        if template.is_some() || stale.is_some() {
            let wanted = self.wanted(power, template.as_ref(), stale.as_deref()).await?;
            self.apply(wanted, Some(&object)).await?;
        }
        Ok(())
    }

    /// Removes the boot configuration that the operator created for us, and the reference to it.
    /// Returns its name.
    async fn remove_boot_configuration(&self) -> Result<Option<String>, BackendError> {
        let boots = resource(METAL, "ServerBootConfiguration");
        let (space, name) = (Some(self.namespace()), self.name());
        if let Some(server) = self.fleet.server(self.server, true).await?
            && reference(&server, "/spec/maintenanceBootConfigurationRef") == Some(self.full_name())
        {
            let change = json!({ "spec": { "maintenanceBootConfigurationRef": null } });
            self.fleet.patch(&resource(METAL, "Server"), &server, change).await?;
        }
        let Some(boot) = self.fleet.get(&self.fleet.boots, &boots, space, &name, true).await? else { return Ok(None) };
        self.fleet.delete(&boots, &boot, false).await?;
        Ok(boot.metadata.uid.clone())
    }

    /// Returns the boot operator's readiness for exactly the current configuration.
    pub(super) async fn boot(
        &self,
        object: &DynamicObject,
        fresh: bool,
    ) -> Result<Option<BootReadiness>, BackendError> {
        let Some(wanted) = object.data.pointer("/spec/serverBootConfigurationTemplate/spec") else { return Ok(None) };
        let boots = resource(METAL, "ServerBootConfiguration");
        let (space, name) = (Some(self.namespace()), self.name());
        let boot = self.fleet.get(&self.fleet.boots, &boots, space, &name, fresh).await?;
        let pending = |words: String| Ok(Some(BootReadiness::Pending(words.into())));
        let Some(boot) = boot else {
            // Up to v0.7, the operator ignores a failed object (`handleFailedState`).
            if text(object, "/status/state") == Some("Failed") {
                return Ok(Some(BootReadiness::Error(format!(
                    "ServerMaintenance {} is Failed, so metal-operator no longer boots anything for it: release this \
                     maintenance and apply again",
                    full_name(object)
                ).into())));
            }
            return pending("metal-operator has not created the ServerBootConfiguration yet".to_owned());
        };
        let full = full_name(&boot);
        let stale = boot.metadata.uid.as_deref() == annotation(object, OUR_OLD_BOOT);
        let other = ["/image", "/ignitionSecretRef/name"]
            .iter()
            .any(|field| boot.data.pointer(&format!("/spec{field}")) != wanted.pointer(field));
        if stale || other || boot.metadata.deletion_timestamp.is_some() {
            return pending(format!("ServerBootConfiguration {full} does not match the request yet"));
        }
        let (failed, done) = conditions(&boot);
        Ok(Some(match text(&boot, "/status/state") {
            Some("Ready") => BootReadiness::Ready,
            Some("Error") => BootReadiness::Error(
                format!(
                    "ServerBootConfiguration {full} is in Error: {}",
                    failed.unwrap_or_else(|| "the boot operator did not give a reason".to_owned())
                )
                .into(),
            ),
            other => BootReadiness::Pending(
                format!(
                    "ServerBootConfiguration {full} is {}{}",
                    other.unwrap_or("without a state"),
                    if done.is_empty() { String::new() } else { format!(" ({})", done.join(", ")) }
                )
                .into(),
            ),
        }))
    }
}

/// Returns failures and progress from a boot configuration's conditions.
fn conditions(boot: &DynamicObject) -> (Option<String>, Vec<String>) {
    let all = boot.data.pointer("/status/conditions").and_then(Value::as_array);
    let part = |condition: &Value, key: &str| condition.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (mut failed, mut done) = (None, Vec::new());
    for condition in all.into_iter().flatten() {
        let kind = part(condition, "type");
        match part(condition, "status").as_str() {
            "True" => done.push(kind),
            "False" => {
                failed.get_or_insert(format!("{kind}: {} ({})", part(condition, "message"), part(condition, "reason")));
            }
            _ => {}
        }
    }
    (failed, done)
}
