//! The operator's reconcile of one host.

use std::time::{Duration, Instant};

use kube::{
    ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    bmc::Machine,
    operator::{Call, Node, Operator, Version},
};

const FINALIZER: &str = "baremetalhost.metal3.io";
const DETACHED: &str = "baremetalhost.metal3.io/detached";
const PAUSED: &str = "baremetalhost.metal3.io/paused";
const REBOOT: &str = "reboot.metal3.io";

const NOW: Option<Duration> = Some(Duration::ZERO);

type Turn = Result<Option<Duration>, Box<dyn std::error::Error + Send + Sync>>;

fn at<'a>(host: &'a DynamicObject, pointer: &str) -> &'a str {
    host.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn is(host: &DynamicObject, pointer: &str) -> bool {
    host.data.pointer(pointer).and_then(Value::as_bool).unwrap_or_default()
}

fn settled(state: &str) -> bool {
    matches!(state, "provisioned" | "externally provisioned" | "ready" | "available")
}

/// Reconciles a host. Returns the delay until the next reconcile without an event.
pub async fn turn(operator: &Operator, name: &str) -> Turn {
    let Some(host) = operator.api("BareMetalHost").get_opt(name).await? else { return Ok(None) };
    let annotations = host.annotations();
    if annotations.contains_key(PAUSED) {
        return Ok(None);
    }
    let deleting = host.metadata.deletion_timestamp.is_some();
    if !deleting && !host.finalizers().iter().any(|one| one == FINALIZER) {
        labels_secret(operator, &host).await?;
        operator.update(&host, json!({"metadata": {"finalizers": [FINALIZER]}})).await?;
        return Ok(NOW);
    }
    let (state, status) = (at(&host, "/status/provisioning/state"), at(&host, "/status/operationalStatus"));
    let detach = annotations.get(DETACHED);
    if deleting && let Some(to) = initiates(operator.options.version, &host) {
        operator.status(&host, json!({"provisioning": {"state": to}})).await?;
        return Ok(NOW);
    }
    if detach.is_some() && settled(state) {
        return detached(operator, &host).await;
    }
    if at(&host, "/status/errorType") == "detach error" {
        operator.status(&host, ok()).await?;
        return Ok(NOW);
    }
    if status == "detached" {
        let error = !at(&host, "/status/errorType").is_empty();
        operator.status(&host, json!({"operationalStatus": if error { "error" } else { "OK" }})).await?;
        return Ok(NOW);
    }
    if !matches!(state, "" | "unmanaged" | "deleting")
        && let Some(next) = registered(operator, &host).await?
    {
        return Ok(next);
    }
    if matches!(state, "inspecting" | "provisioning" | "deprovisioning") && clears_keys(operator, &host).await? {
        return Ok(NOW);
    }
    if deleting && matches!(state, "deprovisioning" | "powering off before delete" | "deleting") {
        return leaves(operator, &host, state).await;
    }
    moves(operator, &host, state).await
}

/// `claimSecret`: adds the label through which the operator watches its Secrets.
async fn labels_secret(operator: &Operator, host: &DynamicObject) -> Result<(), kube::Error> {
    let name = at(host, "/spec/bmc/credentialsName");
    let label = json!({"metadata": {"labels": {"environment.metal3.io": "baremetal"}}});
    match operator.api("Secret").patch(name, &PatchParams::default(), &Patch::Merge(label)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        done => done.map(drop),
    }
}

/// `checkInitiateDelete`: returns the first state of a deletion, or `None` if it has begun or is
/// delayed.
fn initiates(version: Version, host: &DynamicObject) -> Option<&'static str> {
    let (state, detach) = (at(host, "/status/provisioning/state"), host.annotations().get(DETACHED));
    let is_detached = at(host, "/status/operationalStatus") == "detached";
    let arguments: Value = detach.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    // Without the annotation, the host is attached first.
    let delays = if detach.is_some() { arguments["deleteAction"] == "delay" } else { is_detached };
    let asked = match version {
        Version::V0_11 => is_detached && matches!(state, "provisioning" | "provisioned" | "externally provisioned"),
        Version::V0_13 | Version::V0_14 => is_detached,
        Version::Newest => is_detached || detach.is_some(),
    };
    if asked && state != "deleting" {
        return (!delays).then_some("deleting");
    }
    match state {
        "deprovisioning" | "powering off before delete" | "deleting" => None,
        "provisioning" | "provisioned" => Some("deprovisioning"),
        "registering" | "unmanaged" | "" => Some("deleting"),
        _ => Some("powering off before delete"),
    }
}

/// State handlers of a deleted host.
async fn leaves(operator: &Operator, host: &DynamicObject, state: &str) -> Turn {
    let status = match state {
        "deprovisioning" => json!({"provisioning": {"state": "powering off before delete"}}),
        "powering off before delete" => {
            if !is(host, "/spec/disablePowerOff") {
                Machine::of(operator, host).await?.reset("ForceOff").await?;
            }
            json!({"poweredOn": false, "provisioning": {"state": "deleting"}})
        }
        _ => {
            operator.nodes.lock().unwrap().remove(&host.name_any());
            operator.update(host, json!({"metadata": {"finalizers": null}})).await?;
            return Ok(None);
        }
    };
    operator.status(host, status).await?;
    Ok(Some(operator.options.step))
}

/// Status of a host without an error.
fn ok() -> Value {
    json!({"operationalStatus": "OK", "errorType": null, "errorMessage": null, "errorCount": 0})
}

fn failed(kind: &str, message: &str) -> Value {
    json!({"operationalStatus": "error", "errorType": kind, "errorMessage": message})
}

/// `checkDetachedHost` and `detachHost`.
async fn detached(operator: &Operator, host: &DynamicObject) -> Turn {
    let name = host.name_any();
    if operator.options.detaches.is_closed() {
        operator.status(host, failed("detach error", "the node is locked")).await?;
        return Ok(Some(operator.options.step * 5));
    }
    // Deleting the node takes several reconciles.
    if operator.nodes.lock().unwrap().remove(&name).is_some() {
        return Ok(Some(operator.options.step));
    }
    if at(host, "/status/operationalStatus") != "detached" {
        let mut status = json!({"operationalStatus": "detached"});
        if at(host, "/status/errorType") == "detach error" {
            status = ok();
            status["operationalStatus"] = json!("detached");
        }
        operator.status(host, status).await?;
    }
    // The next reconcile is after ten minutes.
    Ok(None)
}

/// `ensureRegistered`. `Some`: not registered yet.
async fn registered(
    operator: &Operator,
    host: &DynamicObject,
) -> Result<Option<Option<Duration>>, Box<dyn std::error::Error + Send + Sync>> {
    let (name, step) = (host.name_any(), operator.options.step);
    let node = operator.nodes.lock().unwrap().get(&name).cloned();
    let Some(node) = node else {
        let id = uuid::Uuid::new_v4().to_string();
        operator.nodes.lock().unwrap().insert(name, Node { id: id.clone(), ..Node::default() });
        operator.status(host, json!({"provisioning": {"ID": id}})).await?;
        return Ok(Some(Some(step)));
    };
    if at(host, "/status/provisioning/ID") != node.id {
        operator.status(host, json!({"provisioning": {"ID": node.id}})).await?;
        return Ok(Some(NOW));
    }
    if !node.verified {
        let power = if operator.options.registers.is_closed() {
            Err("cannot reach the BMC".to_owned())
        } else {
            match Machine::of(operator, host).await {
                Ok(machine) => machine.is_on().await,
                Err(error) => Err(error),
            }
        };
        if let Err(error) = power {
            if std::env::var_os("METAL3_LOG").is_some() {
                eprintln!("{name}: {error}");
            }
            operator.status(host, failed("registration error", &error)).await?;
            return Ok(Some(Some(step * 5)));
        }
        operator.nodes.lock().unwrap().entry(name).and_modify(|node| node.verified = true);
        if at(host, "/status/operationalStatus").is_empty() {
            operator.status(host, ok()).await?;
        }
        return Ok(Some(Some(step)));
    }
    if at(host, "/status/errorType") == "registration error" {
        operator.status(host, ok()).await?;
        return Ok(Some(NOW));
    }
    Ok(None)
}

/// `clearRebootAnnotations`. Returns true if the host changed.
async fn clears_keys(operator: &Operator, host: &DynamicObject) -> Result<bool, kube::Error> {
    let all = operator.options.version.deletes_keys();
    let cleared = host.annotations().keys().filter(|key| *key == REBOOT || (all && key.starts_with(REBOOT)));
    let cleared: serde_json::Map<String, Value> = cleared.map(|key| (key.clone(), Value::Null)).collect();
    if cleared.is_empty() {
        return Ok(false);
    }
    operator.update(host, json!({"metadata": {"annotations": cleared}})).await?;
    Ok(true)
}

/// State handlers.
async fn moves(operator: &Operator, host: &DynamicObject, state: &str) -> Turn {
    let wants = !at(host, "/spec/image/url").is_empty();
    let goes = |to: &str| {
        let mut status = ok();
        status["provisioning"] = json!({"state": to});
        status
    };
    let to = match state {
        "" if at(host, "/spec/bmc/address").is_empty() => Some("unmanaged"),
        "" => Some("registering"),
        "unmanaged" => return Ok(None),
        "registering" if is(host, "/spec/externallyProvisioned") => Some("externally provisioned"),
        "registering" => Some("inspecting"),
        "inspecting" => Some("preparing"),
        "preparing" | "deprovisioning" => Some("available"),
        "available" if wants && is(host, "/spec/online") => Some("provisioning"),
        "provisioning" => Some("provisioned"),
        "provisioned" if !wants => Some("deprovisioning"),
        _ => None,
    };
    let Some(to) = to else { return steady(operator, host, state).await };
    if state == "provisioning" && at(host, "/spec/image/format") == "live-iso" {
        if operator.options.boots.is_closed() {
            operator.status(host, failed("provisioning error", "the image cannot be read")).await?;
            return Ok(Some(operator.options.step * 5));
        }
        Machine::of(operator, host).await?.boot_iso(at(host, "/spec/image/url")).await?;
    }
    if state == "deprovisioning" && host.data.pointer("/spec/automatedCleaningMode") == Some(&json!("disabled")) {
        Machine::of(operator, host).await?.end_iso().await?;
    }
    let mut status = goes(to);
    if to == "registering" {
        status["operationalStatus"] = Value::Null;
    }
    if to == "unmanaged" {
        status["operationalStatus"] = json!("discovered");
    }
    if to == "provisioned" {
        status["provisioning"]["image"] = json!({"url": at(host, "/spec/image/url")});
    }
    if to == "deprovisioning" {
        status["provisioning"]["image"] = json!({"url": ""});
    }
    operator.status(host, status).await?;
    Ok(Some(operator.options.step))
}

/// `actionManageSteadyState` and `manageHostPower`.
async fn steady(operator: &Operator, host: &DynamicObject, state: &str) -> Turn {
    let (name, step) = (host.name_any(), operator.options.step);
    let provisioned = matches!(state, "provisioned" | "externally provisioned");
    let adopted = operator.nodes.lock().unwrap().get(&name).is_some_and(|node| node.adopted);
    if provisioned && !adopted {
        operator.nodes.lock().unwrap().entry(name.clone()).and_modify(|node| node.adopted = true);
        return Ok(Some(step));
    }
    let machine = Machine::of(operator, host).await?;
    let on = machine.is_on().await?;
    if on != is(host, "/status/poweredOn") {
        operator.status(host, json!({"poweredOn": on})).await?;
        return Ok(NOW);
    }
    let online = is(host, "/spec/online");
    if !on && host.annotations().contains_key(REBOOT) {
        operator.update(host, json!({"metadata": {"annotations": {REBOOT: null}}})).await?;
        return Ok(NOW);
    }
    let serviced = operator.nodes.lock().unwrap().get(&name).is_some_and(|node| node.serviced);
    let servicing = at(host, "/status/operationalStatus") == "servicing";
    if servicing || (provisioned && !on && online && !serviced && pending(operator, host).await?) {
        if !servicing {
            operator.status(host, json!({"operationalStatus": "servicing"})).await?;
            if operator.options.boots_ramdisk {
                machine.reset("On").await?;
            }
            return Ok(Some(step * 3));
        }
        operator.nodes.lock().unwrap().entry(name).and_modify(|node| node.serviced = true);
        operator.status(host, ok()).await?;
        return Ok(NOW);
    }
    let reboots: Vec<&String> = host
        .annotations()
        .iter()
        .filter(|(key, value)| {
            let counts = provisioned || value.contains("\"force\":true");
            counts && (*key == REBOOT || key.strip_prefix(REBOOT).is_some_and(|rest| rest.starts_with('/')))
        })
        .map(|(_, value)| value)
        .collect();
    let wanted = online && reboots.is_empty();
    let calls = |call| {
        operator.nodes.lock().unwrap().entry(name.clone()).and_modify(|node| node.call = call);
    };
    let call = operator.nodes.lock().unwrap().get(&name).map(|node| node.call).unwrap_or_default();
    if on == wanted {
        if matches!(call, Call::Power { .. }) {
            calls(Call::None);
        }
        return Ok(Some(operator.options.steady));
    }
    // A call lasts until the host reacts; after a limit it is sent again.
    if matches!(call, Call::Power { on, since } if on == wanted && since.elapsed() < step * 20) {
        return Ok(Some(step));
    }
    let (hard, kept_on) = (reboots.iter().any(|value| value.contains("hard")), is(host, "/spec/disablePowerOff"));
    let reset = match (wanted, kept_on, hard) {
        (true, ..) => "On",
        (false, true, true) => "ForceRestart",
        (false, true, false) => "GracefulRestart",
        (false, false, true) => "ForceOff",
        (false, false, false) => "GracefulShutdown",
    };
    if !matches!(call, Call::Foreign) {
        machine.reset(reset).await?;
        let lasts = wanted || !kept_on;
        calls(if lasts { Call::Power { on: wanted, since: Instant::now() } } else { Call::None });
    }
    // Regardless of Ironic's response.
    if kept_on && host.annotations().contains_key(REBOOT) {
        operator.update(host, json!({"metadata": {"annotations": {REBOOT: null}}})).await?;
        return Ok(NOW);
    }
    Ok(Some(step * 2))
}

/// Returns true if firmware changes wait for a reboot.
async fn pending(operator: &Operator, host: &DynamicObject) -> Result<bool, kube::Error> {
    let name = &host.name_any();
    let Some(policy) = operator.api("HostUpdatePolicy").get_opt(name).await? else { return Ok(false) };
    if policy.data["spec"]["firmwareSettings"] != "onReboot" {
        return Ok(false);
    }
    let (wanted, there) = (host.data.pointer("/spec/firmware"), host.data.pointer("/status/provisioning/firmware"));
    if operator.options.version.services_firmware_of_the_host() && wanted != there {
        return Ok(true);
    }
    let Some(settings) = operator.api("HostFirmwareSettings").get_opt(name).await? else { return Ok(false) };
    let conditions = settings.data["status"]["conditions"].clone();
    let is_true = |kind: &str| {
        conditions.as_array().is_some_and(|all| all.iter().any(|one| one["type"] == kind && one["status"] == "True"))
    };
    Ok(is_true("ChangeDetected") && is_true("Valid"))
}
