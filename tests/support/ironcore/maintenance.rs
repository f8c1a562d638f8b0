//! Controllers of `ServerMaintenance`: the old group by version, and the maintenance operator.

use std::{cmp::Reverse, sync::Arc};

use kube::{
    ResourceExt as _,
    runtime::{
        controller::{Action, Controller},
        watcher,
    },
};
use serde_json::{Value, json};

use super::{
    Context,
    api::{self, Key, Kind, Object, text},
    bmc::Failure,
    family::{APPROVAL, APPROVED, Family, MAINTENANCE, METAL, NEEDED, Place, REASON},
};

pub fn controller(context: &Context, group: &str) -> Controller<Object> {
    let kind = Kind::maintenance(group);
    let controller = super::controller(context, kind);
    let (by_server, by_claim) = (controller.store(), controller.store());
    let family = context.family;
    let of_server = move |all: Vec<Arc<Object>>, name: &str| -> Vec<_> {
        let ours = all.into_iter().filter(|one| !name.is_empty() && text(one, "/spec/serverRef/name") == name);
        ours.map(|one| Key::of(&one).reference(kind)).collect()
    };
    controller
        .watches_with(
            context.cluster.all(Kind::Server),
            Kind::Server.resource(),
            watcher::Config::default(),
            move |server: Object| {
                // Except in v0.7, a server in `Initial` does not trigger its requests.
                if family != Family::V0_7 && text(&server, "/status/state") == "Initial" {
                    return Vec::new();
                }
                of_server(by_server.state(), &server.name_any())
            },
        )
        .watches_with(
            context.cluster.all(Kind::Claim),
            Kind::Claim.resource(),
            watcher::Config::default(),
            move |claim: Object| {
                let place = if family.respects_others() { Place::Label } else { Place::Annotation };
                if !has(&claim, place, NEEDED) {
                    return Vec::new();
                }
                of_server(by_claim.state(), text(&claim, "/spec/serverRef/name"))
            },
        )
        .watches_with(
            context.cluster.all(Kind::Boot),
            Kind::Boot.resource(),
            watcher::Config::default(),
            move |configuration: Object| {
                let owner = configuration.owner_references().iter().find(|owner| owner.kind == "ServerMaintenance")?;
                let namespace = configuration.namespace().unwrap_or_default();
                Some(Key::within(&namespace, &owner.name).reference(kind))
            },
        )
}

fn has(claim: &Object, place: Place, key: &str) -> bool {
    match place {
        Place::Label => claim.labels().contains_key(key),
        Place::Annotation => claim.annotations().contains_key(key),
    }
}

/// Returns true if the claim's owner approved maintenance. The value is ignored.
pub fn is_approved(family: Family, claim: &Object) -> bool {
    family.approvals().iter().any(|(place, key)| has(claim, *place, key))
}

pub async fn reconcile_legacy(seen: Arc<Object>, ctx: Arc<Context>) -> Result<Action, Failure> {
    reconcile(&seen, &ctx, METAL).await
}

pub async fn reconcile_new(seen: Arc<Object>, ctx: Arc<Context>) -> Result<Action, Failure> {
    reconcile(&seen, &ctx, MAINTENANCE).await
}

struct Turn<'a> {
    ctx: &'a Context,
    kind: Kind,
    /// Rules of the family, or of the separate maintenance operator.
    family: Family,
    request: Object,
    key: Key,
}

async fn reconcile(seen: &Object, ctx: &Context, group: &str) -> Result<Action, Failure> {
    let (kind, key) = (Kind::maintenance(group), Key::of(seen));
    if ctx.options.maintenance.is_closed() {
        return Ok(Action::requeue(ctx.options.power_polling));
    }
    let Some(request) = ctx.cluster.get(kind, &key).await? else { return Ok(Action::await_change()) };
    let family = if group == MAINTENANCE { Family::MaintenanceGroup } else { ctx.family };
    let mut turn = Turn { ctx, kind, family, request, key };
    if turn.request.metadata.deletion_timestamp.is_some() {
        turn.delete().await?;
    } else if !ctx.ignored(&turn.request) && !turn.text("/spec/serverRef/name").is_empty() {
        turn.act().await?;
    }
    Ok(Action::await_change())
}

impl Turn<'_> {
    fn text(&self, pointer: &str) -> &str {
        text(&self.request, pointer)
    }

    fn finalizer(&self) -> String {
        format!("{}/servermaintenance", if self.kind == Kind::Legacy { METAL } else { MAINTENANCE })
    }

    fn is_ours(&self, reference: &Key) -> bool {
        *reference == self.key
    }

    async fn server(&self) -> Result<Option<Object>, Failure> {
        Ok(self.ctx.cluster.get(Kind::Server, &Key::cluster(self.text("/spec/serverRef/name"))).await?)
    }

    async fn say(&mut self, state: &str) -> Result<bool, Failure> {
        if self.text("/status/state") == state {
            return Ok(false);
        }
        self.request = self.ctx.cluster.merge_status(self.kind, &self.key, json!({"state": state})).await?;
        Ok(true)
    }

    async fn act(&mut self) -> Result<(), Failure> {
        let Some(server) = self.server().await? else {
            if self.family == Family::V0_7 {
                self.say("Pending").await?;
            }
            return Ok(());
        };
        let held = Key::referred(&server, "/spec/serverMaintenanceRef");
        let by_another = held.is_some_and(|held| !self.is_ours(&held));
        if by_another && self.family.respects_others() {
            // After a lost race, the request reports `InMaintenance` once more before the next
            // reconcile.
            let raced = self.ctx.options.both_in_maintenance && self.text("/status/state") == "Pending";
            self.say(if raced { "InMaintenance" } else { "Pending" }).await?;
            return Ok(());
        }
        if self.ctx.cluster.finalizer(self.kind, &self.request, &self.finalizer(), true).await? {
            return Ok(());
        }
        if self.text("/status/state").is_empty() && self.say("Pending").await? {
            return Ok(());
        }
        match self.text("/status/state") {
            "Pending" if by_another && self.ctx.options.both_in_maintenance => {
                self.say("InMaintenance").await.map(|_| ())
            }
            "Pending" if by_another => Ok(()),
            "Pending" => self.pending(server).await,
            "InMaintenance" => self.in_maintenance(server).await,
            _ => Ok(()),
        }
    }

    async fn pending(&mut self, server: Object) -> Result<(), Failure> {
        if self.family.has_priority() && self.is_behind_another().await? {
            return Ok(());
        }
        let Some(claim) = Key::referred(&server, "/spec/serverClaimRef") else {
            return self.take(server).await;
        };
        let Some(claim) = self.ctx.cluster.get(Kind::Claim, &claim).await? else { return Ok(()) };
        let claim = self.tell(&claim).await?;
        match self.text("/spec/policy") {
            "OwnerApproval" if is_approved(self.family, &claim) => self.take(server).await,
            "Enforced" => self.take(server).await,
            _ => Ok(()),
        }
    }

    /// Marks the claim as in need of maintenance.
    async fn tell(&self, claim: &Object) -> Result<Object, Failure> {
        let mut metadata = json!({});
        for place in self.family.needed() {
            let field = if *place == Place::Label { "labels" } else { "annotations" };
            metadata[field][NEEDED] = "true".into();
        }
        if !self.family.respects_others()
            && let Some(reason) = self.request.annotations().get(REASON)
        {
            metadata["annotations"][REASON] = reason.as_str().into();
        }
        Ok(self.ctx.cluster.merge(Kind::Claim, &Key::of(claim), json!({"metadata": metadata})).await?)
    }

    /// Returns true if another waiting request comes first, whether or not it is approved.
    async fn is_behind_another(&self) -> Result<bool, Failure> {
        let ours = rank(self.family, &self.request);
        let server = self.text("/spec/serverRef/name");
        let all = self.ctx.cluster.list(self.kind).await?;
        Ok(all.iter().any(|other| {
            Key::of(other) != self.key
                && text(other, "/spec/serverRef/name") == server
                && other.metadata.deletion_timestamp.is_none()
                && matches!(text(other, "/status/state"), "" | "Pending")
                && rank(self.family, other) < ours
        }))
    }

    /// Acquires the lock. The full update succeeds for only one of two writers.
    async fn take(&mut self, mut server: Object) -> Result<(), Failure> {
        if Key::referred(&server, "/spec/serverMaintenanceRef").is_none() {
            let mut reference = json!({"name": self.key.name, "namespace": self.key.namespace});
            if self.family.refers_by_uid() {
                reference["apiVersion"] = "metal.ironcore.dev/v1alpha1".into();
                reference["kind"] = "ServerMaintenance".into();
                reference["uid"] = self.request.uid().into();
            }
            server.data["spec"]["serverMaintenanceRef"] = reference;
            match self.ctx.cluster.update(Kind::Server, &server).await {
                // The maintenance operator retries on the server's next event.
                Err(error) if api::is_conflict(&error) && self.kind == Kind::Maintenance => return Ok(()),
                written => written?,
            };
        }
        self.say("InMaintenance").await.map(|_| ())
    }

    async fn in_maintenance(&mut self, server: Object) -> Result<(), Failure> {
        let key = Key::of(&server);
        if self.kind == Kind::Maintenance {
            if !text(&server, "/spec/power").is_empty() {
                self.ctx.cluster.merge(Kind::Server, &key, json!({"spec": {"power": null}})).await?;
            }
            return Ok(());
        }
        match self.boot(&server).await?.as_deref() {
            Some("" | "Pending") => return Ok(()),
            Some("Error") => return self.say("Failed").await.map(|_| ()),
            _ => {}
        }
        let mut spec = json!({"power": self.request.data.pointer("/spec/serverPower").cloned().unwrap_or_default()});
        if !self.text("/spec/locatorLED").is_empty() {
            spec["indicatorLED"] = self.text("/spec/locatorLED").into();
        }
        self.change(&server, spec).await
    }

    /// Merges changed fields into the server's spec.
    async fn change(&self, server: &Object, mut spec: Value) -> Result<(), Failure> {
        let has = server.data["spec"].clone();
        spec.as_object_mut().unwrap().retain(|field, value| has.get(field).unwrap_or(&Value::Null) != value);
        if spec.as_object().unwrap().is_empty() {
            return Ok(());
        }
        self.ctx.cluster.merge(Kind::Server, &Key::of(server), json!({"spec": spec})).await?;
        Ok(())
    }

    /// Creates the request's boot configuration if needed, and returns its state.
    async fn boot(&self, server: &Object) -> Result<Option<String>, Failure> {
        let template = &self.request.data["spec"]["serverBootConfigurationTemplate"];
        if template.is_null() {
            return Ok(None);
        }
        let cluster = &self.ctx.cluster;
        let owner = json!({
            "apiVersion": "metal.ironcore.dev/v1alpha1",
            "kind": "ServerMaintenance",
            "name": self.key.name,
            "uid": self.request.uid(),
            "controller": true,
            "blockOwnerDeletion": true,
        });
        let metadata = json!({"name": self.key.name, "namespace": self.key.namespace, "ownerReferences": [owner]});
        let found = match cluster.get(Kind::Boot, &self.key).await? {
            None => cluster.create(Kind::Boot, json!({"metadata": metadata, "spec": template["spec"]})).await?,
            Some(found) if found.data["spec"] != template["spec"] => {
                cluster.merge(Kind::Boot, &self.key, json!({"spec": template["spec"]})).await?
            }
            Some(found) => found,
        };
        let mut reference = json!({"name": self.key.name, "namespace": self.key.namespace});
        if self.family.refers_by_uid() {
            reference["apiVersion"] = "metal.ironcore.dev/v1alpha1".into();
            reference["kind"] = "ServerBootConfiguration".into();
            reference["uid"] = found.uid().into();
        }
        self.change(server, json!({"maintenanceBootConfigurationRef": reference})).await?;
        Ok(Some(text(&found, "/status/state").to_owned()))
    }

    async fn delete(&mut self) -> Result<(), Failure> {
        if !self.request.finalizers().contains(&self.finalizer()) {
            return Ok(());
        }
        match self.server().await? {
            Some(server) => self.clean_up(server).await?,
            None if self.family.respects_others() => {}
            None => return Err(Failure::Bmc("the server was deleted".to_owned())),
        }
        self.ctx.cluster.finalizer(self.kind, &self.request, &self.finalizer(), false).await?;
        Ok(())
    }

    async fn clean_up(&self, mut server: Object) -> Result<(), Failure> {
        let cluster = &self.ctx.cluster;
        let key = Key::of(&server);
        let held = Key::referred(&server, "/spec/serverMaintenanceRef");
        if self.family.respects_others() && !held.as_ref().is_some_and(|held| self.is_ours(held)) {
            return Ok(());
        }
        if self.kind == Kind::Legacy && !self.text("/spec/locatorLED").is_empty() {
            cluster.merge(Kind::Server, &key, json!({"spec": {"indicatorLED": "Off"}})).await?;
        }
        // Until v0.5 deleting a request removes any holder's lock.
        if held.is_some() {
            server = cluster.merge(Kind::Server, &key, json!({"spec": {"serverMaintenanceRef": null}})).await?;
        }
        if let Some(configuration) = Key::referred(&server, "/spec/maintenanceBootConfigurationRef") {
            cluster.delete(Kind::Boot, &configuration).await?;
            let change = json!({"spec": {"maintenanceBootConfigurationRef": null}});
            server = cluster.merge(Kind::Server, &key, change).await?;
        }
        let Some(claim) = Key::referred(&server, "/spec/serverClaimRef") else { return Ok(()) };
        if self.family.respects_others() && self.others_are_there(&server).await? {
            return Ok(());
        }
        if cluster.get(Kind::Claim, &claim).await?.is_none() {
            return Err(Failure::Bmc("the claim was deleted".to_owned()));
        }
        let labels = json!({NEEDED: null, APPROVED: null, APPROVAL: null});
        let annotations = json!({NEEDED: null, APPROVED: null, APPROVAL: null, REASON: null});
        let metadata = match self.family {
            Family::V0_1 => json!({"annotations": {NEEDED: null, APPROVAL: null, REASON: null}}),
            Family::V0_3 | Family::V0_5 => json!({"labels": labels, "annotations": annotations}),
            _ => json!({"labels": {NEEDED: null, APPROVED: null}}),
        };
        cluster.merge(Kind::Claim, &claim, json!({"metadata": metadata})).await?;
        Ok(())
    }

    async fn others_are_there(&self, server: &Object) -> Result<bool, Failure> {
        let all = self.ctx.cluster.list(self.kind).await?;
        Ok(all.iter().any(|other| {
            Key::of(other) != self.key
                && text(other, "/spec/serverRef/name") == server.name_any()
                && other.metadata.deletion_timestamp.is_none()
        }))
    }
}

/// Queue order; the smallest is next. Creation times are rounded to seconds.
fn rank(family: Family, request: &Object) -> (Reverse<i64>, bool, Option<i64>, Key) {
    let priority = request.data.pointer("/spec/priority").and_then(Value::as_i64).unwrap_or_default();
    let by_approval = family.respects_others() && text(request, "/spec/policy") != "Enforced";
    let created = request.metadata.creation_timestamp.as_ref().map(|time| time.0.as_second());
    (Reverse(priority), by_approval, created, Key::of(request))
}
