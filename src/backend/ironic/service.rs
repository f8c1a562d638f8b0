//! Service steps and runbooks: work that Ironic's conductor performs on a deployed node.
//!
//! Read and measured with Ironic 39.0.0 (fake-hardware):
//! - `provision_updated_at` changes when the work starts and ends. The node history records both
//!   (`servicing_start`, `servicing_end`).
//! - Without a ramdisk, Ironic silently skips its own steps (`hold`, `wait`, `reboot`, …). A
//!   service with only such steps ends `active` without any effect.
//! - A node in maintenance is not serviced.
//! - `abort` works in `service failed`, after the maintenance flag that Ironic set is cleared. In
//!   `service wait` it takes effect after the current step.
//! - A conductor that dies during the work leaves `service failed`.

use async_trait::async_trait;
use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    backend::{BackendError, ServiceControl},
    maintenance::service::{ServiceSpec, ServiceState, ServiceStep, ServiceView},
    shown,
    shown::AsRaw,
};

use super::{
    flag,
    fleet::path,
    machine::NodeMachine,
    node::Node,
    reason,
    service_history::{self, Run},
};

/// The API version that introduced `service_steps`.
const STEPS: u32 = 87;
/// The API version that introduced `runbook` as the alternative.
const RUNBOOKS: u32 = 92;
/// The first version in which a runbook shows if it needs a ramdisk. Ironic 39.0.0 answers 406 to
/// runbooks below it.
const RUNBOOKS_WITH_RAMDISK: u32 = 108;
/// The first version in which a runbook's traits select its nodes; before, its name does.
const RUNBOOK_TRAITS: u32 = 112;
/// The API version that introduced the node history.
const HISTORY: u32 = 78;

/// The fields to read in addition to [`Node`]: those of the lowest version with services. Owner and
/// lessee are required for project accounts: an older Ironic checks permissions against the
/// requested fields and otherwise hides the last error.
const FIELDS: &str = "uuid,name,maintenance,maintenance_reason,fault,power_state,target_power_state,provision_state,last_error,\
                      reservation,instance_uuid,owner,lessee,traits,service_step,provision_updated_at,driver_internal_info";

/// Ironic's own steps, which need a ramdisk.
const OF_IRONIC: [&str; 5] = ["hold", "power_on", "power_off", "reboot", "wait"];
/// The interfaces with steps (Ironic 39.0.0, conductor/steps.py, `CLEANING_INTERFACE_PRIORITY`).
const INTERFACES: [&str; 7] = ["vendor", "power", "management", "firmware", "deploy", "bios", "raid"];

/// A node with its service state.
pub(super) struct Serviced {
    pub(super) node: Node,
    /// When the provision state last changed.
    pub(super) stamp: String,
    info: Value,
}

impl Serviced {
    fn from_answer(body: Value) -> Result<Self, serde_json::Error> {
        let stamp = body["provision_updated_at"].as_str().unwrap_or_default().to_owned();
        let info = body["driver_internal_info"].clone();
        Ok(Self { stamp, info, node: Node::from_answer(body)? })
    }

    fn state(&self) -> &str {
        self.node.provision_state.as_deref().unwrap_or_default()
    }

    /// Returns the running steps, if this account can read them.
    fn steps(&self) -> Option<&Vec<Value>> {
        self.info["service_steps"].as_array().filter(|steps| !steps.is_empty())
    }

    /// Describes the progress for display.
    fn progress(&self) -> String {
        let count = self.steps().map(Vec::len);
        let index = self.info["service_step_index"].as_u64();
        let name = name_of(&self.node.service_step);
        let step = match (name, index, count) {
            (Some(name), Some(index), Some(count)) => format!("step {} of {count}, {name}", index + 1),
            (Some(name), _, _) => format!("step {name}"),
            _ => "no step yet".to_owned(),
        };
        let server = self.node.listed_name();
        match self.state() {
            // Ironic ignores the agent's heartbeats in this state.
            "service wait" if self.node.maintenance => format!(
                "{step} (paused while the node is in maintenance, {}: openstack baremetal node maintenance unset \
                 {server})",
                reason::shown_reason(self.node.maintenance_reason.as_deref())
            ),
            "service wait" => format!("{step} (Ironic waits for it: service wait)"),
            "service hold" => {
                format!("{step} (held by a runbook step: openstack baremetal node unhold {server})")
            }
            _ => step,
        }
    }

    /// Returns true if the running service visibly differs from the requested service.
    fn is_another(&self, service: &ServiceSpec) -> bool {
        let is_of = |seen: &Value| {
            service
                .steps
                .iter()
                .any(|step| seen["interface"] == step.interface.raw() && seen["step"] == step.step.raw())
        };
        service.runbook.is_none() && self.steps().is_some_and(|steps| !steps.iter().all(is_of))
    }
}

fn name_of(step: &Value) -> Option<String> {
    let text = |name: &str| step[name].as_str();
    Some(shown::line(&format!("{}.{}", text("interface")?, text("step")?)).into_owned())
}

/// Returns a service's readiness on the node.
fn readiness(node: &Node) -> ServiceState {
    let state = node.provision_state.as_deref().unwrap_or_default();
    if node.is_of_baremetal_operator() {
        return ServiceState::Impossible(
            "the node is managed by baremetal-operator, which services its hosts itself".into(),
        );
    }
    if state == "service failed" {
        return ServiceState::Impossible(format!("an earlier service of the node failed. {}", way_out(node)).into());
    }
    if let Some(why) = flag::foreign(node) {
        let advice = if flag::mark(node).is_some() { "; leave out maintenance_id" } else { "" };
        return ServiceState::Impossible(format!("{why}; Ironic does not service nodes in maintenance{advice}").into());
    }
    if node.in_transition() || (state == "active" && node.target_power_state.is_some()) {
        return ServiceState::Busy(node.working().unwrap_or_default().into());
    }
    if state != "active" {
        return ServiceState::Impossible(
            format!("its provision state is {state:?}; Ironic services active nodes only").into(),
        );
    }
    ServiceState::Ready
}

/// Returns how to leave `service failed`, as measured with Ironic 39.0.0.
fn way_out(node: &Node) -> String {
    let server = node.listed_name();
    let unset = if node.maintenance {
        format!(
            "clear the maintenance flag that Ironic set (openstack baremetal node maintenance unset {server}), then "
        )
    } else {
        String::new()
    };
    format!(
        "To leave the provision state \"service failed\": {unset}openstack baremetal node abort {server}, which leads to active"
    )
}

/// Returns a started service's progress from the node alone; `None` if it is idle and the
/// history must decide.
fn under_way(seen: &Serviced, service: &ServiceSpec) -> Option<ServiceState> {
    let node = &seen.node;
    let error = node.last_error.as_deref().map(|text| shown::line(text).into_owned());
    Some(match seen.state() {
        "servicing" | "service wait" | "service hold" if seen.is_another(service) => {
            ServiceState::Other(format!("another service runs on the node: {}", seen.progress()).into())
        }
        "servicing" | "service wait" | "service hold" => ServiceState::Running(seen.progress().into()),
        "service failed" => {
            let error = error.unwrap_or_else(|| "Ironic did not report an error".to_owned());
            ServiceState::Failed(format!("{error}. {}", way_out(node)).into())
        }
        // Ironic's message for an abort (conductor/servicing.py, `get_last_error`).
        "active" if error.as_ref().is_some_and(|error| error.contains("service operation was aborted")) => {
            ServiceState::Failed(format!("another Ironic client ended it: {}", error.unwrap_or_default()).into())
        }
        "active" if node.reservation.is_some() => ServiceState::Running("the last step".into()),
        "active" => return None,
        state => ServiceState::Failed(
            format!("the node's provision state is {state:?}: another Ironic client changed it").into(),
        ),
    })
}

/// Returns the problems in the steps themselves.
fn wrong_steps(steps: &[ServiceStep]) -> Vec<String> {
    let mut wrong = Vec::new();
    for step in steps {
        if !INTERFACES.contains(&step.interface.raw()) {
            let interfaces = INTERFACES.join(", ");
            wrong.push(format!("{step}: the interface must be one of {interfaces}."));
        }
        if step.step == "hold" {
            wrong.push(format!(
                "{step}: a service with a hold step does not end. Use metal_server_maintenance to lock a server."
            ));
        }
    }
    if !steps.is_empty() && steps.iter().all(|step| OF_IRONIC.contains(&step.step.raw())) {
        wrong.push(format!(
            "Ironic skips its own steps ({}) unless another step boots a ramdisk: nothing would be done.",
            OF_IRONIC.join(", ")
        ));
    }
    wrong
}

fn steps_of(runbook: &Value) -> Vec<ServiceStep> {
    let text = |step: &Value, name: &str| step[name].as_str().unwrap_or_default().to_owned();
    let steps = runbook["steps"].as_array().into_iter().flatten();
    steps
        .map(|it| ServiceStep { interface: text(it, "interface").into(), step: text(it, "step").into(), args: None })
        .collect()
}

impl NodeMachine {
    async fn serviced(&self) -> Result<Serviced, BackendError> {
        if !self.fleet.client.has(STEPS).await? {
            return Err(self.fleet.client.unsupported(self.too_old(STEPS).await?));
        }
        let path = format!("{}?fields={FIELDS}", path(&self.server, ""));
        let body = match self.fleet.client.get(&path, STEPS).await {
            Err(BackendError::Rejected { status: 404, transient: false, .. }) => {
                self.fleet.read(&self.server).await.map(|_| Value::Null)?
            }
            body => body?,
        };
        Serviced::from_answer(body)
            .map_err(|error| self.fleet.client.odd(&Method::GET, &path, &format!("the answer is not a node: {error}")))
    }

    async fn too_old(&self, least: u32) -> Result<String, BackendError> {
        let newest = self.fleet.client.newest().await?;
        let what = if least == STEPS { "service steps" } else { "runbooks" };
        Ok(format!("{what} require API version 1.{least}, but this service supports at most 1.{newest}"))
    }

    async fn runbook(&self, name: &str) -> Result<Value, BackendError> {
        let version = self.fleet.client.newest().await?.min(RUNBOOK_TRAITS);
        let at = path(name, "").replace("/v1/nodes/", "/v1/runbooks/");
        self.fleet.client.get(&at, version).await
    }

    /// Returns the API version for a runbook: its traits decide if it has any, otherwise its name.
    async fn version_for(&self, service: &ServiceSpec) -> Result<u32, BackendError> {
        let Some(name) = &service.runbook else { return Ok(STEPS) };
        let newest = self.fleet.client.newest().await?;
        if newest < RUNBOOKS_WITH_RAMDISK {
            return Ok(RUNBOOKS);
        }
        let has_traits = self.runbook(name.raw()).await?["traits"].as_array().is_some_and(|traits| !traits.is_empty());
        Ok(if has_traits { RUNBOOK_TRAITS } else { RUNBOOKS_WITH_RAMDISK })
    }

    /// Returns the problems with a runbook or with its use on this node.
    async fn wrong_runbook(&self, name: &str, node: &Node) -> Result<Vec<String>, BackendError> {
        if !self.fleet.client.has(RUNBOOKS).await? {
            return Ok(vec![format!("{}.", self.too_old(RUNBOOKS).await?)]);
        }
        let runbook = match self.runbook(name).await {
            Err(BackendError::Rejected { status: 404, transient: false, .. }) => {
                return Ok(vec![format!("This account cannot see a runbook with the name {name:?}.")]);
            }
            runbook => runbook?,
        };
        let mut wrong = wrong_steps(&steps_of(&runbook));
        let of_node = node.traits.clone().unwrap_or_default();
        let of_book: Vec<&str> = runbook["traits"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let by_name = [runbook["name"].as_str().unwrap_or(name)];
        let wanted: &[&str] = if of_book.is_empty() { &by_name } else { &of_book };
        if !wanted.iter().any(|name| of_node.iter().any(|has| has == name)) {
            wrong.push(format!("The runbook requires the trait {}, which this node lacks.", wanted.join(" or ")));
        }
        Ok(wrong)
    }

    /// Returns the last service after `since` from the history; `None` without a record.
    async fn history(&self, since: &str) -> Option<Run> {
        if !self.fleet.client.has(HISTORY).await.ok()? {
            return None;
        }
        let at = format!("{}?detail=true", path(&self.server, "/history"));
        match self.fleet.client.get(&at, HISTORY).await {
            Ok(body) => service_history::last_run(&body, since.parse::<Timestamp>().ok()?),
            Err(error) => {
                tracing::debug!(%error, "the node's history cannot be read");
                None
            }
        }
    }

    async fn ended(&self, seen: &Serviced, service: &ServiceSpec, since: &str) -> ServiceState {
        let Some(run) = self.history(since).await else {
            return ServiceState::Idle { ran: (seen.stamp == since).then_some(false) };
        };
        let left_out: Vec<String> =
            service.steps.iter().filter(|step| !run.had(step.step.raw())).map(ToString::to_string).collect();
        if !left_out.is_empty() {
            return ServiceState::Failed(
                format!(
                    "Ironic skipped {} and ran the other steps. It skips its own steps if no ramdisk is booted",
                    left_out.join(", ")
                )
                .into(),
            );
        }
        match run.end {
            Some(Ok(())) => ServiceState::Idle { ran: Some(true) },
            Some(Err(why)) => ServiceState::Failed(shown::line(&why).into_owned().into()),
            None => ServiceState::Idle { ran: None },
        }
    }
}

#[async_trait]
impl ServiceControl for NodeMachine {
    async fn problems(&self, service: &ServiceSpec) -> Result<Vec<String>, BackendError> {
        let newest = self.fleet.client.newest().await?;
        if newest < STEPS {
            return Ok(vec![format!("{}.", self.too_old(STEPS).await?)]);
        }
        let seen = self.serviced().await?;
        let mut problems = match readiness(&seen.node) {
            ServiceState::Impossible(why) => vec![format!("{why}.")],
            _ => Vec::new(),
        };
        match &service.runbook {
            Some(name) => problems.extend(self.wrong_runbook(name.raw(), &seen.node).await?),
            None => problems.extend(wrong_steps(&service.steps)),
        }
        Ok(problems)
    }

    async fn look(&self, service: &ServiceSpec, since: Option<&str>) -> Result<ServiceView, BackendError> {
        let seen = self.serviced().await?;
        let state = match since {
            None => readiness(&seen.node),
            Some(since) => match under_way(&seen, service) {
                Some(state) => state,
                None => self.ended(&seen, service, since).await,
            },
        };
        Ok(ServiceView { stamp: seen.stamp.into(), state })
    }

    async fn begin(&self, service: &ServiceSpec, stamp: &str) -> Result<(), BackendError> {
        let request = "PUT states/provision \"service\"";
        let seen = self.serviced().await?;
        match readiness(&seen.node) {
            ServiceState::Ready if seen.stamp == stamp => {}
            ServiceState::Ready => {
                return Err(self.rejected(request, "not sent: another client started work on the node", true));
            }
            ServiceState::Busy(why) => {
                return Err(self.rejected(request, &format!("not sent: waiting for {why}"), true));
            }
            ServiceState::Impossible(why) => return Err(self.rejected(request, why.shown(), false)),
            _ => return Err(self.rejected(request, "not sent: the node is not ready for it", true)),
        }
        let body = if let Some(runbook) = &service.runbook {
            json!({ "target": "service", "runbook": runbook })
        } else {
            let steps: Vec<Value> = service.steps.iter().map(step).collect();
            json!({ "target": "service", "service_steps": steps })
        };
        let version = self.version_for(service).await?;
        match self.fleet.change(Method::PUT, &seen.node, "/states/provision", version, Some(&body)).await {
            // The node's state has changed since it was read.
            Err(BackendError::Rejected { message, .. }) if message.raw().contains("can not be performed on node") => {
                Err(self.rejected(request, message.raw(), true))
            }
            sent => sent.map(|_| ()),
        }
    }
}

/// Converts a step to Ironic's format.
fn step(step: &ServiceStep) -> Value {
    let mut value = json!({ "interface": step.interface, "step": step.step });
    if let Some(args) = step.args.as_raw().and_then(|args| serde_json::from_str::<Value>(args).ok()) {
        value["args"] = args;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_decides_about_the_rights_of_an_account_is_read_too() {
        let fields: Vec<&str> = FIELDS.split(',').collect();
        assert!(["owner", "lessee", "last_error"].iter().all(|field| fields.contains(field)), "{fields:?}");
    }

    #[test]
    fn a_maintenance_that_stops_a_service_is_told_with_the_way_out() {
        let seen = |maintenance: bool| {
            let body = json!({
                "uuid": "u", "name": "n1", "provision_state": "service wait",
                "maintenance": maintenance, "maintenance_reason": "disk swap by carol",
                "service_step": { "interface": "bios", "step": "apply_configuration" },
            });
            Serviced::from_answer(body).unwrap().progress()
        };
        let told = seen(true);
        for words in ["bios.apply_configuration", "disk swap by carol", "openstack baremetal node maintenance unset n1"]
        {
            assert!(told.contains(words), "{told}");
        }
        assert!(!seen(false).contains("maintenance"), "{}", seen(false));
    }
}
