//! Controller of `ServerClaim`: binds claims to free servers and passes their settings on.

use std::sync::Arc;

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
    api::{Key, Kind, Object, text},
    bmc::Failure,
    family::{Family, METAL, OPERATION, PARKED},
};

const FINALIZER: &str = "metal.ironcore.dev/serverclaim";

pub fn controller(context: &Context) -> Controller<Object> {
    let controller = super::controller(context, Kind::Claim);
    let claims = controller.store();
    controller
        .watches_with(
            context.cluster.all(Kind::Server),
            Kind::Server.resource(),
            watcher::Config::default(),
            move |server: Object| {
                if in_maintenance(&server) {
                    return Vec::new();
                }
                let name = server.name_any();
                let wants = |claim: &Arc<Object>| ["", &name].contains(&text(claim, "/spec/serverRef/name"));
                let ours = claims.state().into_iter().filter(wants);
                ours.map(|claim| Key::of(&claim).reference(Kind::Claim)).collect()
            },
        )
        .watches_with(
            context.cluster.all(Kind::Boot),
            Kind::Boot.resource(),
            watcher::Config::default(),
            |configuration: Object| {
                let owner = configuration.owner_references().iter().find(|owner| owner.kind == "ServerClaim")?;
                let namespace = configuration.namespace().unwrap_or_default();
                Some(Key::within(&namespace, &owner.name).reference(Kind::Claim))
            },
        )
}

fn in_maintenance(server: &Object) -> bool {
    text(server, "/status/state") == "Maintenance" || Key::referred(server, "/spec/serverMaintenanceRef").is_some()
}

pub async fn reconcile(seen: Arc<Object>, ctx: Arc<Context>) -> Result<Action, Failure> {
    let key = Key::of(&seen);
    let Some(claim) = ctx.cluster.get(Kind::Claim, &key).await? else { return Ok(Action::await_change()) };
    if claim.metadata.deletion_timestamp.is_some() {
        delete(&ctx, &claim).await?;
    } else if !ctx.ignored(&claim) {
        act(&ctx, claim, &key).await?;
    }
    Ok(Action::await_change())
}

async fn delete(ctx: &Context, claim: &Object) -> Result<(), Failure> {
    let server = Key::cluster(text(claim, "/spec/serverRef/name"));
    if !server.name.is_empty() && claim.finalizers().iter().any(|one| one == FINALIZER) {
        // Until v0.5 this controller releases the server itself.
        let lets_go = matches!(ctx.family, Family::V0_1 | Family::V0_3 | Family::V0_5);
        let exists = lets_go && ctx.cluster.get(Kind::Server, &server).await?.is_some();
        if exists {
            ctx.cluster.merge(Kind::Server, &server, json!({"spec": {"serverClaimRef": null}})).await?;
        }
        ctx.cluster.delete(Kind::Boot, &Key::of(claim)).await?;
        if exists {
            let change = json!({"spec": {"bootConfigurationRef": null, "power": "Off"}});
            ctx.cluster.merge(Kind::Server, &server, change).await?;
        }
    }
    ctx.cluster.finalizer(Kind::Claim, claim, FINALIZER, false).await?;
    Ok(())
}

async fn act(ctx: &Context, claim: Object, key: &Key) -> Result<(), Failure> {
    if text(&claim, "/status/phase").is_empty() {
        ctx.cluster.merge_status(Kind::Claim, key, json!({"phase": "Unbound"})).await?;
        return Ok(());
    }
    let named = text(&claim, "/spec/serverRef/name");
    if ctx.family.can_park()
        && !named.is_empty()
        && let Some(server) = ctx.cluster.get(Kind::Server, &Key::cluster(named)).await?
        && is_parked(&server)
    {
        return Ok(());
    }
    if ctx.cluster.finalizer(Kind::Claim, &claim, FINALIZER, true).await? {
        return Ok(());
    }
    let Some(server) = find(ctx, &claim, key).await? else { return Ok(()) };
    if named.is_empty() {
        let change = json!({"spec": {"serverRef": {"name": server.name_any()}}});
        ctx.cluster.merge(Kind::Claim, key, change).await?;
        return Ok(());
    }
    if text(&server, "/status/state") != "Reserved" {
        return Ok(());
    }
    let server = boot(ctx, &claim, key, server).await?;
    if text(&claim, "/status/phase") != "Bound" {
        ctx.cluster.merge_status(Kind::Claim, key, json!({"phase": "Bound"})).await?;
        return Ok(());
    }
    let power = text(&claim, "/spec/power");
    if !ctx.family.power_from_claim() && text(&server, "/spec/power") != power {
        ctx.cluster.merge(Kind::Server, &Key::of(&server), json!({"spec": {"power": power}})).await?;
    }
    Ok(())
}

/// Returns true if the server is parked or will be.
fn is_parked(server: &Object) -> bool {
    server.annotations().contains_key(PARKED)
        || server.annotations().get(OPERATION).is_some_and(|operation| operation == "park")
}

/// Returns the claim's server, or a free server that matches.
async fn find(ctx: &Context, claim: &Object, key: &Key) -> Result<Option<Object>, Failure> {
    let servers = ctx.cluster.list(Kind::Server).await?;
    let claimed_by = |server: &Object| Key::referred(server, "/spec/serverClaimRef");
    if let Some(ours) = servers.iter().find(|server| claimed_by(server).as_ref() == Some(key)) {
        return Ok(Some(ours.clone()));
    }
    let named = text(claim, "/spec/serverRef/name");
    for server in servers {
        if (!named.is_empty() && server.name_any() != named) || !selects(claim, &server) {
            continue;
        }
        if !is_free(ctx, &server).await? || !tolerates(claim, &server) {
            continue;
        }
        let mut reference = json!({"name": key.name, "namespace": key.namespace});
        if ctx.family.refers_by_uid() {
            reference["apiVersion"] = "metal.ironcore.dev/v1alpha1".into();
            reference["kind"] = "ServerClaim".into();
            reference["uid"] = claim.uid().into();
        }
        let metadata = json!({"resourceVersion": server.resource_version()});
        let change = json!({"metadata": metadata, "spec": {"serverClaimRef": reference}});
        return Ok(Some(ctx.cluster.merge(Kind::Server, &Key::of(&server), change).await?));
    }
    Ok(None)
}

fn selects(claim: &Object, server: &Object) -> bool {
    let wanted = claim.data.pointer("/spec/serverSelector/matchLabels").and_then(Value::as_object);
    wanted.is_none_or(|wanted| {
        wanted.iter().all(|(key, value)| server.labels().get(key).map(String::as_str) == value.as_str())
    })
}

async fn is_free(ctx: &Context, server: &Object) -> Result<bool, Failure> {
    if Key::referred(server, "/spec/serverClaimRef").is_some()
        || text(server, "/status/state") != "Available"
        || text(server, "/status/powerState") != "Off"
        || server.data["spec"]["unclaimable"] == true
        || in_maintenance(server)
    {
        return Ok(false);
    }
    if ctx.family == Family::Parked {
        return Ok(true);
    }
    // Waiting requests block too, but this controller cannot see the maintenance operator's.
    if ctx.family.group() != Some(METAL) {
        return Ok(true);
    }
    let name = server.name_any();
    Ok(!ctx.cluster.list(Kind::Legacy).await?.iter().any(|one| text(one, "/spec/serverRef/name") == name))
}

fn tolerates(claim: &Object, server: &Object) -> bool {
    let list = |object: &Object, pointer: &str| {
        object.data.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let tolerations = list(claim, "/spec/tolerations");
    list(server, "/spec/taints").iter().filter(|taint| taint["effect"] == "NoBind").all(|taint| {
        tolerations.iter().any(|one| {
            one["key"] == taint["key"]
                && (one["operator"] == "Exists" || one["value"] == taint["value"])
                && (one["effect"].is_null() || one["effect"] == taint["effect"])
        })
    })
}

/// Creates the claim's boot configuration and sets it on the server.
async fn boot(ctx: &Context, claim: &Object, key: &Key, server: Object) -> Result<Object, Failure> {
    let mut spec = json!({"serverRef": {"name": server.name_any()}, "image": claim.data["spec"]["image"]});
    if let Some(secret) = claim.data["spec"].get("ignitionSecretRef") {
        spec["ignitionSecretRef"] = secret.clone();
    }
    let owner = json!({
        "apiVersion": "metal.ironcore.dev/v1alpha1",
        "kind": "ServerClaim",
        "name": key.name,
        "uid": claim.uid(),
        "controller": true,
        "blockOwnerDeletion": true,
    });
    let found = match ctx.cluster.get(Kind::Boot, key).await? {
        None => {
            let metadata = json!({"name": key.name, "namespace": key.namespace, "ownerReferences": [owner]});
            ctx.cluster.create(Kind::Boot, json!({"metadata": metadata, "spec": spec})).await?
        }
        Some(found) if found.data["spec"] != spec => ctx.cluster.merge(Kind::Boot, key, json!({"spec": spec})).await?,
        Some(found) => found,
    };
    let mut reference = json!({"name": key.name, "namespace": key.namespace});
    if ctx.family.refers_by_uid() {
        reference["apiVersion"] = "metal.ironcore.dev/v1alpha1".into();
        reference["kind"] = "ServerBootConfiguration".into();
        reference["uid"] = found.uid().into();
    }
    if server.data["spec"]["bootConfigurationRef"] == reference {
        return Ok(server);
    }
    let change = json!({"spec": {"bootConfigurationRef": reference}});
    Ok(ctx.cluster.merge(Kind::Server, &Key::of(&server), change).await?)
}
