//! `metal_maintenance_preview`: the outlook for a maintenance of several servers, as data for a
//! pull request comment.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, DataSource, Diagnostics,
    schema::{AttributeType, Schema},
    value::{Value, ValueBool, ValueList, ValueNumber},
};

use crate::{
    engine::Engine,
    maintenance::{
        forecast::SeenServer,
        ids::MaintenanceId,
        queue::QueueEntry,
        spec::{MaintenanceKind, Policy, Spec},
        window::OnClose,
    },
    shown::OneLine,
};

use crate::provider::{
    shared::block::table,
    shared::boot::{self, BootModel, IgnitionModel, UrlModel},
    shared::cell::Cell,
    shared::prospect::{PlannedRequest, Prospect},
    shared::schema::{Attributes, attributes, computed, optional, required, schema},
    shared::values::{Text, bad, check_priority, duration, given, known, one_of, power},
    shared::window::{self, WindowModel, window_attribute},
};

/// The most BMCs read concurrently.
const AT_ONCE: usize = 10;

table! {
    /// A maintenance that comes first.
    pub(in crate::provider) struct AheadModel {
        id: Text => computed(String, "`namespace/name` of the maintenance.");
        state: Text => computed(String, "The maintenance's state.");
        holds: ValueBool => computed(Bool, "True for the holder, false for waiters.");
        since: Text => computed(String, "Start of its lock or its wait (RFC 3339, UTC).");
        by: Text => computed(String, "The user and machine that requested it.");
        reason: Text => computed(String, "The stated reason.");
        expires_at: Text => computed(String, "When it becomes overdue (RFC 3339, UTC); null: never.");
        waits_for: Text => computed(
            String,
            "The gate that prevents its start, so that it does not block other maintenances; null without such a gate.",
        );
    }
}

table! {
    /// A server's preview.
    pub(in crate::provider) struct PreviewModel {
        server: Text => computed(String, "The server's name.");
        effect: Text => computed(String, "The effect on the server, in words; empty if it would only be locked.");
        power_state: Text => computed(String, "The server's current power; null if its BMC does not answer.");
        ahead: ValueList<AheadModel> => computed(
            AttributeList(AheadModel::settings()),
            "Maintenances ahead of it: the holder, then the waiters in their order.",
        );
        owner: Text => computed(String, "The claim's owner; null if the server is unclaimed.");
        contact: Text => computed(String, "How to contact the owner.");
        approval_missing: ValueBool => computed(Bool, "True if the maintenance would wait for an approval.");
        digest: Text => computed(
            String,
            "The digest for an approval in advance. It is valid if the maintenance is requested with exactly these values.",
        );
        window_opens_at: Text => computed(String, "When the window opens or opened (RFC 3339, UTC).");
        window_closes_at: Text => computed(String, "When that opening ends (RFC 3339, UTC).");
        earliest_start: Text => computed(
            String,
            "The earliest start (RFC 3339, UTC). Null if it depends on an approval or on a maintenance without an end.",
        );
        problems: ValueList<Text> => computed(
            List(Box::new(String)),
            "Blockers and unknown facts, for example a BMC that does not answer or a window that opens too late.",
        );
        text: Text => computed(String, "The whole preview in sentences, as in the maintenance's plan.");
    }
}

/// `boot_configuration` without write-only attributes, because a state stores all attributes of a
/// data source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct PreviewBootModel {
    method: Text,
    #[serde(default)]
    image: Text,
    #[serde(default)]
    image_sha256: Text,
    #[serde(default)]
    ignition: Value<IgnitionModel>,
    #[serde(default)]
    once: ValueBool,
    #[serde(default)]
    boot_mode: Text,
    #[serde(default)]
    ready_when: Value<UrlModel>,
}

/// Builds the attributes of `boot_configuration`.
fn boot_attributes() -> Attributes {
    let mut boot = attributes(boot::attributes());
    boot.insert("method".to_owned(), required(AttributeType::String, "`http`, `pxe`, `virtual_media` or `disk`."));
    boot
}

impl From<PreviewBootModel> for BootModel {
    fn from(of: PreviewBootModel) -> Self {
        let PreviewBootModel { method, image, image_sha256, ignition, once, boot_mode, ready_when } = of;
        Self { method, image, image_sha256, ignition, once, boot_mode, ready_when, ..Self::default() }
    }
}

table! {
    /// A `metal_maintenance_preview` in configuration and state.
    pub(in crate::provider) struct PreviewsModel {
        servers: ValueList<Text> => required(
            List(Box::new(String)),
            "The servers' names in the provider's configuration.",
        );
        maintenance: Text => optional(
            String,
            "`namespace/name` of the previewed maintenance. Its own queue position does not count as ahead, and its approval counts.",
        );
        policy: Text => optional(String, "`Enforced` (the default) or `OwnerApproval`.");
        require_claim: ValueBool => optional(Bool, "As in `metal_server_maintenance`.");
        priority: ValueNumber => optional(Number, "As in the maintenance. Default: `0`.");
        server_power: Text => optional(String, "As in `metal_server_maintenance`.");
        boot_configuration: Value<PreviewBootModel> => optional(
            AttributeSingle(boot_attributes()),
            "As in `metal_server_maintenance`.",
        );
        window: Value<WindowModel> => window_attribute();
        timeout: Text => optional(
            String,
            "How long create would wait. A later start is reported as a problem. Default: no limit.",
        );
        previews: ValueList<PreviewModel> => computed(
            AttributeList(PreviewModel::settings()),
            "One entry per server, in the order of `servers`.",
        );
    }
}

/// The data source type.
#[derive(Debug)]
pub(in crate::provider) struct MaintenancePreview {
    pub(in crate::provider) cell: Cell,
}

impl PreviewsModel {
    /// Returns the planned request without its server, and its time limit.
    fn check(&self, diags: &mut Diagnostics, engine: Option<&Engine>) -> Option<(Spec, Option<Duration>)> {
        let path = AttributePath::new;
        let policy = one_of(diags, &self.policy, path("policy"), &Policy::NAMES, Policy::from_name);
        if let Some(text) = given(&self.maintenance)
            && let Err(problem) = text.parse::<MaintenanceId>()
        {
            bad(diags, path("maintenance"), "Not a maintenance id", format!("{text:?}: it {problem}."));
        }
        check_priority(diags, &self.priority, path("priority"));
        let server_power = power(diags, &self.server_power, path("server_power"));
        let boot = match &self.boot_configuration {
            Value::Value(boot) => {
                let mut boot = BootModel::from(boot.clone());
                boot.set_defaults();
                boot.check(diags, &path("boot_configuration"))
            }
            _ => None,
        };
        let window = window::asked(diags, &self.window, OnClose::Finish, engine).flatten();
        let timeout = duration(diags, &self.timeout, path("timeout"));
        let spec = Spec {
            policy: policy.unwrap_or(Policy::Enforced),
            require_claim: self.require_claim == Value::Value(true),
            priority: if let Value::Value(priority) = self.priority { priority } else { 0 },
            server_power,
            boot,
            window,
            ..Spec::new(MaintenanceKind::Maintenance, "")
        };
        diags.errors.is_empty().then_some((spec, timeout))
    }
}

async fn preview(engine: &Engine, spec: &Spec, id: Option<&MaintenanceId>, timeout: Option<Duration>) -> PreviewModel {
    let mut problems = Vec::new();
    let seen = match engine.machine(spec.server.shown()) {
        Err(error) => {
            problems.push(format!("{error}."));
            None
        }
        Ok(machine) => match machine.observe().await {
            Ok(seen) => Some(seen),
            Err(error) => {
                problems.push(format!("{error}."));
                None
            }
        },
    };
    let key = engine.known_lock_key(spec.server.shown()).await;
    let seen = SeenServer { machine: seen, ..SeenServer::default() };
    let prospect = Prospect::look(engine, &PlannedRequest::new(spec, id, timeout), key.as_ref(), seen).await;
    problems.extend(prospect.too_late.clone());
    problems.extend(prospect.refusals().into_iter().map(|(_, why)| why));
    problems.extend(prospect.others.clone());
    if !prospect.store_answered {
        problems.push("The queue is not known.".to_owned());
    }
    let text = prospect.lines().join("\n");
    let (owner, contact) = prospect.owner.unzip();
    let (opens, closes) = prospect.window.unzip();
    PreviewModel {
        server: Value::Value(prospect.server),
        effect: Value::Value(prospect.effect),
        power_state: known(prospect.power.map(|power| power.to_string())),
        ahead: Value::Value(prospect.ahead.into_iter().map(AheadModel::from).collect()),
        owner: known(owner),
        contact: known(contact.flatten()),
        approval_missing: Value::Value(prospect.approval_missing),
        digest: Value::Value(prospect.digest),
        window_opens_at: known(opens.map(|at| at.to_string())),
        window_closes_at: known(closes.map(|at| at.to_string())),
        earliest_start: known(prospect.earliest.map(|at| at.to_string())),
        problems: Value::Value(problems.into_iter().map(Value::Value).collect()),
        text: Value::Value(text),
    }
}

impl From<QueueEntry> for AheadModel {
    fn from(ahead: QueueEntry) -> Self {
        Self {
            id: Value::Value(ahead.id.to_string()),
            state: Value::Value(ahead.state.to_owned()),
            holds: Value::Value(ahead.holds),
            since: Value::Value(ahead.since.to_string()),
            by: Value::Value(ahead.by.to_string()),
            reason: known(ahead.reason.map(OneLine::into_raw)),
            expires_at: known(ahead.expires_at.map(|at| at.to_string())),
            waits_for: known(ahead.blocker),
        }
    }
}

#[async_trait]
impl DataSource for MaintenancePreview {
    type State<'a> = Value<PreviewsModel>;
    type ProviderMetaState<'a> = Value<()>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(schema(
            "Previews a maintenance of some servers: its effect, earlier maintenances, missing approvals and the earliest start. \
             Changes nothing, and works while BMCs and the store are unreachable.",
            PreviewsModel::settings(),
        ))
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<()> {
        if let Value::Value(model) = config {
            model.check(diags, None);
        }
        Some(())
    }

    async fn read<'a>(
        &self,
        diags: &mut Diagnostics,
        config: Self::State<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<Self::State<'a>> {
        let Value::Value(mut model) = config else { return Some(Value::Null) };
        let engine = self.cell.engine(diags)?;
        let (spec, timeout) = model.check(diags, Some(&engine))?;
        let id: Option<MaintenanceId> = given(&model.maintenance).and_then(|text| text.parse().ok());
        let Value::Value(servers) = &model.servers else { return None };
        let specs: Vec<Spec> =
            servers.iter().filter_map(given).map(|server| Spec { server: server.into(), ..spec.clone() }).collect();
        let looks: Vec<_> = specs.iter().map(|spec| Box::pin(preview(&engine, spec, id.as_ref(), timeout))).collect();
        let looks = stream::iter(looks).buffered(AT_ONCE).collect::<Vec<_>>();
        model.previews = Value::Value(Box::pin(self.cell.read(diags, "the servers", looks)).await?);
        Some(Value::Value(model))
    }
}
