//! Server controller: the state-independent part of a reconcile.

use std::sync::Arc;

use kube::{
    ResourceExt as _,
    runtime::controller::{Action, Controller},
    runtime::watcher,
};
use serde_json::{Value, json};

use super::{
    Context,
    api::{Key, Kind, Object, text},
    bmc::{Failure, Machine},
    family::Family,
    operation,
};

pub const FINALIZER: &str = "metal.ironcore.dev/server";

pub fn controller(context: &Context) -> Controller<Object> {
    let configurations = context.cluster.all(Kind::Boot);
    let by_name = |name: &str| (!name.is_empty()).then(|| Key::cluster(name).reference(Kind::Server));
    let controller = super::controller(context, Kind::Server).watches_with(
        configurations,
        Kind::Boot.resource(),
        watcher::Config::default(),
        move |configuration: Object| by_name(text(&configuration, "/spec/serverRef/name")),
    );
    if !context.family.power_from_claim() {
        return controller;
    }
    controller.watches_with(
        context.cluster.all(Kind::Claim),
        Kind::Claim.resource(),
        watcher::Config::default(),
        move |claim: Object| by_name(text(&claim, "/spec/serverRef/name")),
    )
}

/// Reconcile of a server: its current object and its machine.
pub struct Turn<'a> {
    pub ctx: &'a Context,
    pub server: Object,
    pub machine: Machine,
}

impl Turn<'_> {
    pub fn key(&self) -> Key {
        Key::of(&self.server)
    }

    pub fn text(&self, pointer: &str) -> &str {
        text(&self.server, pointer)
    }

    pub fn state(&self) -> &str {
        self.text("/status/state")
    }

    pub fn power(&self) -> &str {
        self.text("/status/powerState")
    }

    pub fn path(&self) -> String {
        self.text("/spec/systemURI").to_owned()
    }

    pub fn refers(&self, field: &str) -> Option<Key> {
        Key::referred(&self.server, &format!("/spec/{field}"))
    }

    /// Merges a change into the server.
    pub async fn merge(&mut self, change: Value) -> Result<(), Failure> {
        self.server = self.ctx.cluster.merge(Kind::Server, &self.key(), change).await?;
        Ok(())
    }

    pub async fn merge_status(&mut self, status: Value) -> Result<(), Failure> {
        self.server = self.ctx.cluster.merge_status(Kind::Server, &self.key(), status).await?;
        Ok(())
    }

    /// Enters a state, unless the server changed since the read. Returns true if that was needed.
    pub async fn enter(&mut self, state: &str) -> Result<bool, Failure> {
        enter(self.ctx, &mut self.server, state).await
    }

    /// Copies the machine's state into the status.
    pub async fn refresh(&mut self) -> Result<(), Failure> {
        let system = self.machine.system(&self.path()).await?;
        let light = match system["LocationIndicatorActive"].as_bool() {
            Some(true) => "Lit",
            Some(false) => "Off",
            None => "",
        };
        if system["PowerState"] == self.power() && light == self.text("/status/indicatorLED") {
            return Ok(());
        }
        self.merge_status(json!({"powerState": system["PowerState"], "indicatorLED": light})).await
    }

    /// Copies all machine data into the status.
    pub async fn refresh_all(&mut self) -> Result<(), Failure> {
        let system = self.machine.system(&self.path()).await?;
        let memory = system["MemorySummary"]["TotalSystemMemoryGiB"].as_u64().unwrap_or_default();
        let status = json!({
            "powerState": system["PowerState"],
            "manufacturer": system["Manufacturer"],
            "model": system["Model"],
            "serialNumber": system["SerialNumber"],
            "biosVersion": system["BiosVersion"],
            "totalSystemMemory": format!("{memory}Gi"),
        });
        self.merge_status(status).await
    }

    /// Changes the machine's power and waits for it; an empty value does nothing.
    pub async fn switch(&mut self, wanted: &str) -> Result<(), Failure> {
        let options = &self.ctx.options;
        let (path, pause, limit) = (self.path(), options.power_polling, options.power_timeout);
        match (wanted, self.power()) {
            ("On", power) if !matches!(power, "On" | "PoweringOn") => {
                if self.machine.system(&path).await?["PowerState"] != "On" {
                    self.machine.reset(&path, "On").await?;
                }
                self.machine.until(&path, "On", pause, limit).await?;
                self.condition("PoweringOn", "True", "ServerPowerOn").await
            }
            ("Off", power) if !matches!(power, "Off" | "PoweringOff") => {
                self.machine.reset(&path, "GracefulShutdown").await?;
                let off = self.machine.until(&path, "Off", pause, limit).await;
                if off.is_ok() || !options.enforce_power_off {
                    return off;
                }
                self.machine.reset(&path, "ForceOff").await?;
                self.machine.until(&path, "Off", pause, limit).await
            }
            _ => Ok(()),
        }
    }

    /// Sets one server condition.
    pub async fn condition(&mut self, kind: &str, status: &str, reason: &str) -> Result<(), Failure> {
        let conditions = with_condition(&self.server, kind, status, reason, "set by the stand-in");
        self.merge_status(json!({"conditions": conditions})).await
    }
}

/// Returns an object's conditions with one set; its time changes together with its status.
pub fn with_condition(object: &Object, kind: &str, status: &str, reason: &str, message: &str) -> Value {
    let mut all = object.data.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let same = all.iter().find(|one| one["type"] == kind && one["status"] == status);
    let since = same.map_or_else(
        || json!(jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        |one| one["lastTransitionTime"].clone(),
    );
    all.retain(|one| one["type"] != kind);
    all.push(json!({
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    }));
    Value::from(all)
}

async fn enter(ctx: &Context, server: &mut Object, state: &str) -> Result<bool, Failure> {
    if text(server, "/status/state") == state {
        return Ok(false);
    }
    let change = json!({"metadata": {"resourceVersion": server.resource_version()}, "status": {"state": state}});
    let all = ctx.cluster.all(Kind::Server);
    let how = kube::api::PatchParams::default();
    *server = all.patch_status(&server.name_any(), &how, &kube::api::Patch::Merge(change)).await?;
    Ok(true)
}

pub async fn reconcile(seen: Arc<Object>, ctx: Arc<Context>) -> Result<Action, Failure> {
    let key = Key::of(&seen);
    let Some(mut server) = ctx.cluster.get(Kind::Server, &key).await? else { return Ok(Action::await_change()) };
    if server.metadata.deletion_timestamp.is_some() && !deletion_is_postponed(&ctx, &server).await? {
        return delete(&ctx, &server).await;
    }
    if ctx.ignored(&server) {
        return Ok(Action::await_change());
    }
    if text(&server, "/status/state").is_empty() {
        let claimed = ctx.family == Family::Parked && !server.data["spec"]["serverClaimRef"].is_null();
        enter(&ctx, &mut server, if claimed { "Reserved" } else { "Initial" }).await?;
        return Ok(Action::await_change());
    }
    if ctx.family.power_from_claim() && !text(&server, "/spec/power").is_empty() {
        server = ctx.cluster.merge(Kind::Server, &key, json!({"spec": {"power": null}})).await?;
    }
    let Some(machine) = Machine::of(&ctx, &server).await? else { return Ok(Action::requeue(ctx.options.resync)) };
    let mut turn = Turn { ctx: &ctx, server, machine };
    if turn.path().is_empty() {
        let uuid = if turn.text("/spec/systemUUID").is_empty() { "/spec/uuid" } else { "/spec/systemUUID" };
        let found = turn.machine.find(turn.text(uuid)).await?;
        turn.merge(json!({"spec": {"systemURI": found}})).await?;
        return Ok(Action::await_change());
    }
    if let Some(done) = operation::handle(&mut turn).await? {
        return Ok(done);
    }
    if ctx.cluster.finalizer(Kind::Server, &turn.server, FINALIZER, true).await? {
        return Ok(Action::await_change());
    }
    if references(&mut turn).await? {
        return Ok(Action::await_change());
    }
    turn.refresh().await?;
    turn.act().await?;
    turn.refresh().await?;
    Ok(Action::requeue(ctx.options.resync))
}

/// Applies state changes that depend on references alone.
async fn references(turn: &mut Turn<'_>) -> Result<bool, Failure> {
    let maintained = turn.refers("serverMaintenanceRef").is_some();
    if turn.ctx.family != Family::V0_1 {
        return if maintained && turn.state() != "Initial" { turn.enter("Maintenance").await } else { Ok(false) };
    }
    if maintained {
        return turn.enter("Maintenance").await;
    }
    match turn.refers("serverClaimRef") {
        Some(_) => turn.enter("Reserved").await,
        None if turn.state() == "Reserved" => turn.enter("Available").await,
        None => Ok(false),
    }
}

/// A server stays in maintenance while its end remains possible.
async fn deletion_is_postponed(ctx: &Context, server: &Object) -> Result<bool, Failure> {
    if text(server, "/status/state") != "Maintenance" || !server.finalizers().iter().any(|one| one == FINALIZER) {
        return Ok(false);
    }
    if let Some(bmc) = Key::referred(server, "/spec/bmcRef") {
        return Ok(ctx.cluster.get(Kind::Bmc, &Key::cluster(&bmc.name)).await?.is_some());
    }
    let secret = Key::cluster(text(server, "/spec/bmc/bmcSecretRef/name"));
    Ok(ctx.cluster.get(Kind::BmcSecret, &secret).await?.is_some())
}

async fn delete(ctx: &Context, server: &Object) -> Result<Action, Failure> {
    if let Some(configuration) = Key::referred(server, "/spec/bootConfigurationRef") {
        ctx.cluster.delete(Kind::Boot, &configuration).await?;
    }
    ctx.cluster.finalizer(Kind::Server, server, FINALIZER, false).await?;
    Ok(Action::await_change())
}
