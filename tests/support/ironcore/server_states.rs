//! Server controller: the reconcile for each server state.

use kube::ResourceExt as _;
use serde_json::json;

use super::{
    api::{Key, Kind, Object, text},
    bmc::Failure,
    family::Family,
    server::Turn,
};

/// Marks the boot configuration that the server controller creates for discovery.
const INTERNAL: &str = "metal.ironcore.dev/type";

impl Turn<'_> {
    /// Runs the state-specific part of a reconcile.
    pub async fn act(&mut self) -> Result<(), Failure> {
        match self.state() {
            "Initial" => self.initial().await,
            "Discovery" => self.discovery().await,
            "Available" => self.available().await,
            "Reserved" => self.reserved().await,
            "Released" => self.released().await,
            "Maintenance" => self.maintenance().await,
            "Parked" => self.parked().await,
            _ => Ok(()),
        }
    }

    fn legacy_power(&self) -> bool {
        !self.ctx.family.power_from_claim()
    }

    /// Applies `spec.power`, which other controllers set.
    async fn switch_as_told(&mut self) -> Result<(), Failure> {
        let wanted = self.text("/spec/power").to_owned();
        self.switch(&wanted).await
    }

    async fn initial(&mut self) -> Result<(), Failure> {
        if self.legacy_power() && self.text("/spec/power").is_empty() && self.power() == "Off" {
            return self.merge(json!({"spec": {"power": "Off"}})).await;
        }
        if self.power() == "On" && self.ctx.options.enforce_first_boot {
            if !self.legacy_power() {
                return self.switch("Off").await;
            }
            if self.text("/spec/power") != "Off" {
                self.merge(json!({"spec": {"power": "Off"}})).await?;
                // A later reconcile observes a slow shutdown.
                let _ = self.switch("Off").await;
                return Ok(());
            }
        }
        if self.legacy_power() {
            self.switch_as_told().await?;
        }
        self.refresh_all().await?;
        self.discovery_boot().await?;
        self.machine.network_once(&self.path()).await?;
        self.enter("Discovery").await.map(|_| ())
    }

    /// Creates the discovery boot configuration and its ignition.
    async fn discovery_boot(&mut self) -> Result<(), Failure> {
        let name = self.server.name_any();
        let key = Key::within(&self.ctx.options.namespace, &name);
        let metadata = json!({"name": name, "namespace": key.namespace, "annotations": {INTERNAL: "Internal"}});
        let spec = json!({"serverRef": {"name": name}, "ignitionSecretRef": {"name": name}, "image": "probe-os"});
        let cluster = &self.ctx.cluster;
        if cluster.get(Kind::Boot, &key).await?.is_none() {
            cluster.create(Kind::Boot, json!({"metadata": metadata, "spec": spec})).await?;
        } else {
            cluster.merge(Kind::Boot, &key, json!({"metadata": metadata, "spec": spec})).await?;
        }
        self.refer("bootConfigurationRef", "ServerBootConfiguration", &key).await?;
        let secret = json!({
            "metadata": {"name": name, "namespace": key.namespace},
            "stringData": {"ignition": "{}", "format": "fcos"},
        });
        match self.ctx.cluster.get(Kind::Secret, &key).await? {
            Some(_) => Ok(()),
            None => Ok(self.ctx.cluster.create(Kind::Secret, secret).await.map(|_| ())?),
        }
    }

    /// Sets a server field to a reference to an object.
    async fn refer(&mut self, field: &str, kind: &str, key: &Key) -> Result<(), Failure> {
        let mut reference = json!({"name": key.name, "namespace": key.namespace});
        if self.ctx.family.refers_by_uid() {
            let object = self.ctx.cluster.get(Kind::Boot, key).await?;
            reference["apiVersion"] = "metal.ironcore.dev/v1alpha1".into();
            reference["kind"] = kind.into();
            reference["uid"] = object.and_then(|object| object.uid()).into();
        }
        self.merge(json!({"spec": {field: reference}})).await
    }

    async fn boot_configuration(&self) -> Result<Option<Object>, Failure> {
        match self.refers("bootConfigurationRef") {
            Some(key) => match self.ctx.cluster.get(Kind::Boot, &key).await? {
                Some(found) => Ok(Some(found)),
                None => Err(Failure::Bmc(format!("boot configuration {key:?} does not exist"))),
            },
            None => Ok(None),
        }
    }

    async fn boot_is_ready(&self) -> Result<bool, Failure> {
        let found = self.boot_configuration().await?;
        Ok(found.is_some_and(|configuration| text(&configuration, "/status/state") == "Ready"))
    }

    async fn discovery(&mut self) -> Result<(), Failure> {
        if !self.boot_is_ready().await? {
            return Ok(());
        }
        if self.legacy_power() {
            self.merge(json!({"spec": {"power": "On"}})).await?;
        }
        self.switch("On").await?;
        // The probe reports its findings once it runs; here it runs on every powered machine.
        if self.ctx.options.discovery.is_closed() {
            return Ok(());
        }
        let found = json!([{"name": "eth0", "macAddress": "02:00:00:00:00:01", "ips": ["192.0.2.1"]}]);
        self.merge_status(json!({"networkInterfaces": found})).await?;
        self.enter("Available").await.map(|_| ())
    }

    async fn available(&mut self) -> Result<(), Failure> {
        if self.power() != "Off" {
            if self.legacy_power() {
                self.merge(json!({"spec": {"power": "Off"}})).await?;
            }
            self.switch("Off").await?;
        }
        if let Some(configuration) = self.boot_configuration().await?
            && configuration.annotations().get(INTERNAL).is_some_and(|value| value == "Internal")
        {
            self.ctx.cluster.delete(Kind::Boot, &Key::of(&configuration)).await?;
            self.merge(json!({"spec": {"bootConfigurationRef": null}})).await?;
        }
        self.light().await?;
        if self.ctx.family == Family::V0_1 {
            return Ok(());
        }
        let Some(fresh) = self.ctx.cluster.get(Kind::Server, &self.key()).await? else { return Ok(()) };
        self.server = fresh;
        if self.refers("serverClaimRef").is_some() {
            self.enter("Reserved").await?;
        }
        Ok(())
    }

    async fn light(&mut self) -> Result<(), Failure> {
        // Before v0.6 the operator read this field without acting on it.
        let wanted = self.text("/spec/indicatorLED");
        if !self.ctx.family.respects_others() && self.ctx.family != Family::Parked {
            return Ok(());
        }
        if wanted.is_empty() || wanted == self.text("/status/indicatorLED") {
            return Ok(());
        }
        self.machine.light(&self.path(), matches!(wanted, "Lit" | "Blinking")).await
    }

    async fn reserved(&mut self) -> Result<(), Failure> {
        let Some(reference) = self.refers("serverClaimRef") else {
            return self.enter("Available").await.map(|_| ());
        };
        let Some(claim) = self.ctx.cluster.get(Kind::Claim, &reference).await? else {
            return self.claim_is_gone().await;
        };
        if !self.boot_is_ready().await? {
            return Ok(());
        }
        if self.power() == "Off" {
            self.machine.network_once(&self.path()).await?;
        }
        if self.legacy_power() {
            self.switch_as_told().await?;
        } else {
            self.switch(text(&claim, "/spec/power")).await?;
        }
        self.light().await
    }

    async fn claim_is_gone(&mut self) -> Result<(), Failure> {
        match self.ctx.family {
            Family::V0_1 | Family::V0_3 | Family::V0_5 => {
                return self.merge(json!({"spec": {"serverClaimRef": null}})).await;
            }
            // Sets the power and switches off once, without waiting for the result.
            Family::V0_6 => {
                if self.text("/spec/power") != "Off" || self.refers("bootConfigurationRef").is_some() {
                    self.merge(json!({"spec": {"power": "Off", "bootConfigurationRef": null}})).await?;
                    return self.switch("Off").await;
                }
            }
            _ => {
                if !self.is_off().await? {
                    return Ok(());
                }
            }
        }
        if self.text("/spec/reclaimPolicy") == "Retain" {
            return self.enter("Released").await.map(|_| ());
        }
        self.merge(json!({"spec": {"serverClaimRef": null}})).await
    }

    /// Requests a shutdown until the BMC reports the machine as off.
    async fn is_off(&mut self) -> Result<bool, Failure> {
        let power = if self.legacy_power() { "Off" } else { "" };
        if self.text("/spec/power") != power || self.refers("bootConfigurationRef").is_some() {
            let wish = if power.is_empty() { json!({}) } else { json!({"power": power}) };
            let mut spec = wish;
            spec["bootConfigurationRef"] = serde_json::Value::Null;
            self.merge(json!({"spec": spec})).await?;
        }
        if self.power() == "Off" {
            return Ok(true);
        }
        self.machine.reset(&self.path(), "GracefulShutdown").await?;
        self.condition("WaitingForPowerOff", "True", "WaitingForPowerOff").await?;
        Ok(false)
    }

    async fn released(&mut self) -> Result<(), Failure> {
        if self.is_off().await? && self.refers("serverClaimRef").is_none() {
            self.enter("Available").await?;
        }
        Ok(())
    }

    async fn maintenance(&mut self) -> Result<(), Failure> {
        if let Some(reference) = self.refers("serverMaintenanceRef") {
            let lost = self.ctx.family.heals() && self.ctx.cluster.get(Kind::Legacy, &reference).await?.is_none();
            if !lost {
                return self.switch_as_told().await;
            }
            let version = self.server.resource_version();
            let change = json!({"metadata": {"resourceVersion": version}, "spec": {"serverMaintenanceRef": null}});
            self.merge(change).await?;
        }
        let waiting = self.others_wait().await?;
        self.refresh_all().await?;
        if waiting {
            return Ok(());
        }
        let next = if self.refers("serverClaimRef").is_some() { "Reserved" } else { "Initial" };
        self.enter(next).await.map(|_| ())
    }

    /// Returns true if the server stays in maintenance for the next requests. Only requests of its
    /// own group count.
    async fn others_wait(&self) -> Result<bool, Failure> {
        if !matches!(self.ctx.family, Family::V0_6 | Family::V0_7) {
            return Ok(false);
        }
        let name = self.server.name_any();
        let all = self.ctx.cluster.list(Kind::Legacy).await?;
        let mut ours = all
            .iter()
            .filter(|one| text(one, "/spec/serverRef/name") == name && one.metadata.deletion_timestamp.is_none());
        let Some(claim) = self.refers("serverClaimRef") else {
            return Ok(ours.any(|one| matches!(text(one, "/spec/policy"), "Enforced" | "OwnerApproval")));
        };
        let mut by_approval = false;
        for one in ours {
            match text(one, "/spec/policy") {
                "Enforced" => return Ok(true),
                "OwnerApproval" => by_approval = true,
                _ => {}
            }
        }
        let claim = self.ctx.cluster.get(Kind::Claim, &claim).await?;
        Ok(by_approval && claim.is_some_and(|claim| super::maintenance::is_approved(self.ctx.family, &claim)))
    }

    /// Without the marker, returns the server to the state implied by its claim.
    async fn parked(&mut self) -> Result<(), Failure> {
        let next = if self.refers("serverClaimRef").is_some() { "Reserved" } else { "Available" };
        self.refresh_all().await?;
        if self.enter(next).await? {
            self.ctx.event(&self.server, false, "Resumed", "Resume", format!("no longer parked, {next}")).await;
        }
        Ok(())
    }
}
