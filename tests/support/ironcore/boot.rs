//! boot-operator for a `ServerBootConfiguration`: validates image and ignition, and reports
//! fetches.

use std::sync::Arc;

use kube::runtime::{
    controller::{Action, Controller},
    watcher,
};
use serde_json::{Value, json};

use super::{
    Context,
    api::{Key, Kind, Object, text},
    bmc::Failure,
    server::with_condition,
};

pub fn controller(context: &Context) -> Controller<Object> {
    let controller = super::controller(context, Kind::Boot);
    let configurations = controller.store();
    controller.watches_with(
        context.cluster.all(Kind::Secret),
        Kind::Secret.resource(),
        watcher::Config::default(),
        move |secret: Object| {
            let secret = Key::of(&secret);
            let ours = configurations.state().into_iter().filter(|one| {
                text(one, "/spec/ignitionSecretRef/name") == secret.name && Key::of(one).namespace == secret.namespace
            });
            ours.map(|one| Key::of(&one).reference(Kind::Boot)).collect::<Vec<_>>()
        },
    )
}

pub async fn reconcile(seen: Arc<Object>, ctx: Arc<Context>) -> Result<Action, Failure> {
    let key = Key::of(&seen);
    let Some(configuration) = ctx.cluster.get(Kind::Boot, &key).await? else { return Ok(Action::await_change()) };
    if configuration.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    if text(&configuration, "/status/state").is_empty() {
        // This step belongs to metal-operator itself.
        ctx.cluster.merge_status(Kind::Boot, &key, json!({"state": "Pending"})).await?;
        return Ok(Action::await_change());
    }
    if ctx.options.boot.is_closed() {
        return Ok(Action::requeue(ctx.options.power_polling));
    }
    let server = Key::cluster(text(&configuration, "/spec/serverRef/name"));
    let Some(server) = ctx.cluster.get(Kind::Server, &server).await? else {
        return Ok(Action::requeue(ctx.options.resync));
    };
    let status = judge(&ctx, &configuration, &server).await?;
    let changed =
        status.as_object().unwrap().iter().any(|(field, value)| {
            configuration.data.pointer(&format!("/status/{field}")).unwrap_or(&Value::Null) != value
        });
    if changed {
        ctx.cluster.merge_status(Kind::Boot, &key, status).await?;
    }
    // Errors can be corrected, and a booting machine contacts only its boot server.
    Ok(Action::requeue(ctx.options.resync))
}

/// Returns a configuration's status.
async fn judge(ctx: &Context, configuration: &Object, server: &Object) -> Result<Value, Failure> {
    let image = text(configuration, "/spec/image");
    if let Err(why) = judge_image(image) {
        let message = format!("{image:?} is not an image: {why}");
        let conditions = with_condition(configuration, "ImageValidation", "False", "ValidationFailed", &message);
        return Ok(json!({"state": "Error", "conditions": conditions}));
    }
    let key = Key::of(configuration);
    let secret = text(configuration, "/spec/ignitionSecretRef/name");
    if !secret.is_empty() {
        let namespace = key.namespace.clone().unwrap_or_default();
        let found = ctx.cluster.get(Kind::Secret, &Key::within(&namespace, secret)).await?;
        if found.is_none_or(|found| found.data.pointer("/data/ignition").is_none()) {
            return Ok(json!({"state": "Error"}));
        }
    }
    let mut now = configuration.clone();
    if let Some(conditions) = now.data.pointer_mut("/status/conditions").and_then(Value::as_array_mut) {
        conditions.retain(|one| one["type"] != "ImageValidation");
    }
    let mut status = json!({"state": "Ready"});
    if let Some(boots) = network_boots(ctx, server) {
        let before = ctx.boots_before(&key, boots);
        if boots > before && is_served(configuration, server) {
            for (kind, reason) in
                [("IPXEScriptFetched", "IPXEScriptDelivered"), ("IgnitionDataFetched", "IgnitionDataDelivered")]
            {
                now.data["status"]["conditions"] = with_condition(&now, kind, "True", reason, "fetched by the machine");
            }
        }
    }
    if let Some(conditions) = now.data.pointer("/status/conditions") {
        status["conditions"] = conditions.clone();
    }
    Ok(status)
}

fn network_boots(ctx: &Context, server: &Object) -> Option<usize> {
    ctx.options.network_boots.as_ref().map(|boots| boots(&Key::of(server).name))
}

/// Returns true if the boot server would serve this configuration: the maintenance's configuration
/// during maintenance, otherwise the claim's.
fn is_served(configuration: &Object, server: &Object) -> bool {
    let ours = Some(Key::of(configuration));
    let maintenance = Key::referred(server, "/spec/maintenanceBootConfigurationRef");
    if text(server, "/status/state") == "Maintenance" && maintenance.is_some() {
        return maintenance == ours;
    }
    Key::referred(server, "/spec/bootConfigurationRef") == ours
}

/// Validates an image name: `[registry/]name[:tag][@digest]`.
fn judge_image(image: &str) -> Result<(), &'static str> {
    let (image, digest) = image.split_once('@').map_or((image, None), |(image, digest)| (image, Some(digest)));
    if let Some(digest) = digest {
        let hexadecimal = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !digest.strip_prefix("sha256:").is_some_and(hexadecimal) {
            return Err("invalid digest");
        }
    }
    let (path, last) = image.rsplit_once('/').map_or((None, image), |(path, last)| (Some(path), last));
    let (last, tag) = last.split_once(':').map_or((last, None), |(last, tag)| (last, Some(tag)));
    let word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if tag.is_some_and(|tag| tag.is_empty() || tag.len() > 128 || !tag.bytes().all(word)) {
        return Err("invalid tag");
    }
    let mut parts = path.into_iter().flat_map(|path| path.split('/')).chain([last]);
    let fine = |part: &str| !part.is_empty() && part.bytes().all(|byte| word(byte) || byte == b':');
    if !parts.all(fine) || last.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err("invalid name");
    }
    // Simulates an image that is missing in its registry.
    if last.starts_with("missing") { Err("no registry has it") } else { Ok(()) }
}
