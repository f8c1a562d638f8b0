//! `metal_server_boot_configuration`: what a server boots, under a hold or in a turn of its own.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics, Resource,
    schema::{AttributeType, Schema},
    value::{Value, ValueBool, ValueList},
};

use crate::{
    engine::{Control, Driven, Engine, Wish},
    maintenance::{
        decide::Finish,
        ids::{MaintenanceId, Uid},
        machine::BootOverride,
        spec::{Kind, Policy, Spec, WaitFor},
        state::{Ending, Maintenance, Phase},
    },
    plugin::{ResourceExt, diagnostic},
};

use super::{
    boot::{self, BootModel, IgnitionModel, UrlModel},
    cell::Cell,
    diagnostics::{no_longer_ours, of_engine},
    private::{Private, missing_here},
    resource_server_maintenance::{over_already, released},
    review,
    schema::{attributes, computed, object, optional, required, schema, timeouts},
    values::{Text, Timeouts, bad, check_timeouts, given, known, not_empty, power, shown_duration, time_limit},
};

/// Time limits when none are given.
const CREATE: Duration = Duration::from_hours(1);
const DELETE: Duration = Duration::from_mins(30);

/// `previous_boot_override`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct OverrideModel {
    enabled: Text,
    target: Text,
    mode: Text,
    http_boot_uri: Text,
}

/// A `metal_server_boot_configuration` in configuration, plan and state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct BootConfigurationModel {
    id: Text,
    server: Text,
    maintenance_id: Text,
    method: Text,
    image: Text,
    image_sha256: Text,
    ignition: Value<IgnitionModel>,
    once: ValueBool,
    boot_mode: Text,
    ready_when: Value<UrlModel>,
    server_power: Text,
    timeouts: Value<Timeouts>,
    state: Text,
    message: Text,
    lock_key: Text,
    previous_boot_override: Value<OverrideModel>,
    previous_media: ValueList<Text>,
}

/// The resource type.
#[derive(Debug)]
pub(super) struct ServerBootConfiguration {
    pub(super) cell: Cell,
}

fn boot_configuration_schema() -> Schema {
    use AttributeType::{List, String};
    let mut all = attributes([
        ("server", required(String, "The server's name in the provider's configuration. Changing it replaces.")),
        (
            "maintenance_id",
            optional(
                String,
                "The `id` of a `metal_server_maintenance` that holds this server: the change happens under that hold. Without it the change takes its own turn in the same queue and holds the server only while it is made. Changing it replaces.",
            ),
        ),
        ("method", required(String, "`http`, `pxe`, `virtual_media` or `disk`.")),
        (
            "server_power",
            optional(
                String,
                "Power wanted once the configuration is `Ready`: `On` or `Off`. The server is switched off first, so that it really boots what is configured. Default: the power is left as it is, and the configuration takes effect whenever the server is next started.",
            ),
        ),
        ("id", computed(String, "`namespace/name` of the record in the coordination store.")),
        (
            "state",
            computed(String, "`Pending`, `Ready` or `Error`. Unknown in a plan that goes on with an interrupted one."),
        ),
        ("message", computed(String, "Why it is not `Ready`; null when it is.")),
        ("lock_key", computed(String, "The server's hardware identity, under which it is locked.")),
        (
            "previous_boot_override",
            computed(
                object([
                    ("enabled", computed(String, "`Disabled`, `Once` or `Continuous`.")),
                    ("target", computed(String, "The boot source.")),
                    ("mode", computed(String, "`UEFI` or `Legacy`.")),
                    ("http_boot_uri", computed(String, "The HTTP boot address.")),
                ]),
                "The boot override before; it is put back at destroy.",
            ),
        ),
        (
            "previous_media",
            computed(
                List(Box::new(String)),
                "What was in the virtual drives before, one entry a drive, empty for an empty one; it is put back at destroy.",
            ),
        ),
        (
            "timeouts",
            timeouts([
                (
                    "create",
                    "For waiting and preparing. Default: `\"1h\"`. When it ends while preparing, the server is put back as it was.",
                ),
                ("update", "For going on with an interrupted one and for changes. Default: `\"1h\"`."),
                ("delete", "For putting everything back. Default: `\"30m\"`."),
            ]),
        ),
    ]);
    all.extend(attributes(boot::attributes()));
    schema(
        "Sets what a server boots: checks the image, sets the boot override or inserts the image, waits until the boot \
         environment is ready, and only then brings the server to the wanted power. Destroy puts override, media and power \
         back.",
        all,
    )
}

impl BootConfigurationModel {
    fn boot(&self) -> BootModel {
        BootModel {
            method: self.method.clone(),
            image: self.image.clone(),
            image_sha256: self.image_sha256.clone(),
            ignition: self.ignition.clone(),
            once: self.once,
            boot_mode: self.boot_mode.clone(),
            ready_when: self.ready_when.clone(),
        }
    }

    fn set_defaults(&mut self) {
        let mut boot = self.boot();
        boot.set_defaults();
        self.once = boot.once;
        self.ready_when = boot.ready_when;
    }

    fn hold(&self, diags: &mut Diagnostics) -> Option<MaintenanceId> {
        let text = given(&self.maintenance_id)?;
        match text.parse() {
            Ok(id) => Some(id),
            Err(problem) => {
                bad(
                    diags,
                    AttributePath::new("maintenance_id"),
                    "Not an id of a maintenance",
                    format!("{text:?}: it {problem}. Use the id of a metal_server_maintenance."),
                );
                None
            }
        }
    }

    /// What is asked, except the hold's incarnation, which only the store knows.
    fn check(&self, diags: &mut Diagnostics) -> Option<Spec> {
        not_empty(diags, &self.server, AttributePath::new("server"));
        let boot = self.boot().check(diags, &AttributePath::root());
        let server_power = power(diags, &self.server_power, AttributePath::new("server_power"));
        self.hold(diags);
        check_timeouts(diags, &self.timeouts);
        if !diags.errors.is_empty() {
            return None;
        }
        Some(Spec {
            kind: Kind::BootConfiguration,
            server: given(&self.server)?.to_owned(),
            parent: None,
            policy: Policy::Enforced,
            reason: Some(format!("boot configuration {}", given(&self.method)?)),
            ticket: None,
            priority: 0,
            server_power,
            boot: Some(boot?),
            complete_when: None,
            expires_after: None,
            hold_place_for: Duration::from_mins(15),
            triggers: BTreeMap::new(),
        })
    }

    /// The name of its record: found again from the configuration alone.
    fn record_id(&self) -> Option<MaintenanceId> {
        let (namespace, name) = match given(&self.maintenance_id) {
            Some(hold) => {
                let hold: MaintenanceId = hold.parse().ok()?;
                (hold.namespace().to_owned(), format!("{}.boot", hold.name()))
            }
            None => ("boot-configuration".to_owned(), given(&self.server)?.to_owned()),
        };
        let plain: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
        let plain = plain.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        MaintenanceId::new(&namespace, plain).ok()
    }

    fn unknown_outputs(&mut self) {
        for text in [&mut self.id, &mut self.state, &mut self.message, &mut self.lock_key] {
            *text = Value::Unknown;
        }
        self.previous_boot_override = Value::Unknown;
        self.previous_media = Value::Unknown;
    }

    fn show(&mut self, record: &Maintenance) {
        let (state, message) = match &record.phase {
            Phase::Pending => ("Pending", Some("waiting for its turn".to_owned())),
            Phase::Preparing(progress) => ("Pending", Some(format!("preparing {}", progress.text()))),
            Phase::InMaintenance { .. } => ("Ready", None),
            Phase::Releasing { stuck: Some(cause), .. } => ("Error", Some(format!("could not be put back: {cause}"))),
            Phase::Releasing { progress, .. } => ("Error", Some(format!("being put back, {}", progress.text()))),
            Phase::Completed { ending, .. } => ("Error", Some(format!("not in force any more: {ending}"))),
            Phase::Failed { cause, .. } => ("Error", Some(cause.clone())),
        };
        self.id = Value::Value(record.id.to_string());
        self.state = Value::Value(state.to_owned());
        self.message = known(message);
        self.lock_key = Value::Value(record.lock_key.to_string());
        let prior = record.prior.as_ref();
        self.previous_boot_override =
            prior.and_then(|prior| prior.boot.as_ref()).map_or(Value::Null, |boot| Value::Value(boot.into()));
        self.previous_media = prior.map_or(Value::Null, |prior| {
            let contents = prior.media.iter().map(|slot| Value::Value(slot.content().unwrap_or_default().to_owned()));
            Value::Value(contents.collect())
        });
    }
}

impl From<&BootOverride> for OverrideModel {
    fn from(boot: &BootOverride) -> Self {
        Self {
            enabled: known(boot.enabled.clone()),
            target: known(boot.target.clone()),
            mode: known(boot.mode.clone()),
            http_boot_uri: known(boot.http_boot_uri.clone()),
        }
    }
}

impl ServerBootConfiguration {
    fn control(&self, model: &BootConfigurationModel, create: bool) -> Control {
        let release_timeout = time_limit(&model.timeouts, |t| &t.delete, DELETE);
        let timeout = time_limit(&model.timeouts, |t| if create { &t.create } else { &t.update }, CREATE);
        Control { stop: self.cell.stop.clone(), timeout, release_timeout }
    }

    /// The incarnation of the hold that is named.
    async fn parent(
        diags: &mut Diagnostics,
        engine: &Engine,
        model: &BootConfigurationModel,
        server: &str,
    ) -> Result<Option<Uid>, ()> {
        let Some(id) = model.hold(diags) else { return Ok(None) };
        match engine.active(&id).await {
            Ok(hold) if hold.spec.kind == Kind::Maintenance => Ok(Some(hold.uid)),
            Ok(_) => {
                bad(
                    diags,
                    AttributePath::new("maintenance_id"),
                    "Not a maintenance",
                    format!("{id} is a boot configuration; use the id of a metal_server_maintenance."),
                );
                Err(())
            }
            Err(error) => {
                let mut problem = of_engine(server, &error);
                problem.attribute = AttributePath::new("maintenance_id");
                diags.add_error(problem);
                Err(())
            }
        }
    }
}

/// What a drive means for the state: `None` leaves nothing in it.
fn conclude(
    diags: &mut Diagnostics,
    engine: &Engine,
    mut model: BootConfigurationModel,
    driven: &Driven,
    timeout: Duration,
) -> Option<(Value<BootConfigurationModel>, Value<Private>)> {
    let record = &driven.record;
    let server = record.server().to_owned();
    model.show(record);
    let state = Some((Value::Value(model), Value::Value(Private::of(engine, record))));
    let mut error =
        |summary: String, detail: String| diags.add_error(diagnostic(summary, detail, AttributePath::root()));
    match &driven.finish {
        Finish::Reached => state,
        Finish::Over => {
            match &record.phase {
                Phase::Failed { cause, .. } => error(
                    format!("The boot configuration of {server} failed"),
                    format!("{cause}\nThe server was put back as it was; nothing is left in the state."),
                ),
                _ => diags.add_error(no_longer_ours(&server, record)),
            }
            None
        }
        Finish::Withdrawn => {
            error(
                format!("Waiting for {server} was interrupted"),
                "The boot configuration left the queue; nothing was done to the server.".to_owned(),
            );
            None
        }
        Finish::TimedOut(reason) => {
            error(
                format!("{server} was not available in time"),
                format!(
                    "The boot configuration was {reason}.\nWaited {}. Its place in the queue is kept for {}: apply again to go \
                     on in it.",
                    shown_duration(timeout),
                    shown_duration(record.spec.hold_place_for)
                ),
            );
            None
        }
        Finish::Interrupted => {
            diags.add_warning(diagnostic(
                "Preparing a server was interrupted",
                format!(
                    "{server}: the boot configuration is not Ready yet. Apply goes on, destroy puts the server back."
                ),
                AttributePath::root(),
            ));
            state
        }
        Finish::Stuck(cause) => {
            error(
                format!("{server} could not be put back"),
                format!(
                    "{cause}\nThe server stays locked, because it is not as it was. Destroy again when the cause is gone."
                ),
            );
            state
        }
        Finish::Lost => {
            diags.add_error(no_longer_ours(&server, record));
            None
        }
    }
}

#[async_trait]
impl Resource for ServerBootConfiguration {
    type State<'a> = Value<BootConfigurationModel>;
    type PrivateState<'a> = Value<Private>;
    type ProviderMetaState<'a> = Value<()>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(boot_configuration_schema())
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<()> {
        if let Value::Value(mut model) = config {
            model.set_defaults();
            model.check(diags);
        }
        Some(())
    }

    async fn plan_create<'a>(
        &self,
        diags: &mut Diagnostics,
        _proposed: Self::State<'a>,
        config: Self::State<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let Value::Value(mut model) = config else { return None };
        model.set_defaults();
        if let Some(spec) = model.check(diags)
            && let Some(engine) = self.cell.engine_if_ready()
        {
            self.cell.unless_stopped(review::boot_configuration(diags, &engine, &spec)).await;
        }
        model.unknown_outputs();
        Some((Value::Value(model), Value::Null))
    }

    async fn plan_update<'a>(
        &self,
        diags: &mut Diagnostics,
        prior: Self::State<'a>,
        _proposed: Self::State<'a>,
        config: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>, Vec<AttributePath>)> {
        let (Value::Value(prior), Value::Value(config)) = (prior, config) else { return None };
        let mut model = BootConfigurationModel {
            id: prior.id.clone(),
            state: prior.state.clone(),
            message: prior.message.clone(),
            lock_key: prior.lock_key.clone(),
            previous_boot_override: prior.previous_boot_override.clone(),
            previous_media: prior.previous_media.clone(),
            ..config
        };
        model.set_defaults();
        let spec = model.check(diags);
        let mut replaced = Vec::new();
        for (name, now, before) in
            [("server", &model.server, &prior.server), ("maintenance_id", &model.maintenance_id, &prior.maintenance_id)]
        {
            if now != before {
                replaced.push(AttributePath::new(name));
            }
        }
        let over = given(&prior.state) == Some("Error");
        if over && replaced.is_empty() && model.boot() == prior.boot() && model.server_power == prior.server_power {
            // What it set is not in force any more: it is made anew.
            replaced.push(AttributePath::new("state"));
        }
        if !replaced.is_empty() || model != prior || given(&prior.state) == Some("Pending") {
            if let (Some(spec), Some(engine)) = (&spec, self.cell.engine_if_ready()) {
                self.cell.unless_stopped(review::boot_configuration(diags, &engine, spec)).await;
            }
            let (id, lock_key) = (model.id.clone(), model.lock_key.clone());
            model.unknown_outputs();
            if replaced.is_empty() {
                (model.id, model.lock_key) = (id, lock_key);
            }
        }
        Some((Value::Value(model), private, replaced))
    }

    async fn plan_destroy<'a>(
        &self,
        _diags: &mut Diagnostics,
        _prior: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<Self::PrivateState<'a>> {
        Some(private)
    }

    async fn create<'a>(
        &self,
        diags: &mut Diagnostics,
        planned: Self::State<'a>,
        _config: Self::State<'a>,
        _private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let Value::Value(model) = planned else { return None };
        let engine = self.cell.engine(diags)?;
        let spec = model.check(diags)?;
        let server = spec.server.clone();
        let parent = Self::parent(diags, &engine, &model, &server).await.ok()?;
        let wish = Wish { id: model.record_id()?, spec: Spec { parent, ..spec }, wait_for: WaitFor::InMaintenance };
        let control = self.control(&model, true);
        match engine.hold(&wish, &control).await {
            Ok(driven) => conclude(diags, &engine, model, &driven, control.timeout),
            Err(error) => {
                diags.add_error(of_engine(&server, &error));
                None
            }
        }
    }

    async fn update<'a>(
        &self,
        diags: &mut Diagnostics,
        prior: Self::State<'a>,
        planned: Self::State<'a>,
        _config: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let (Value::Value(prior), Value::Value(model)) = (prior, planned) else { return None };
        let engine = self.cell.engine(diags)?;
        let spec = model.check(diags)?;
        let server = spec.server.clone();
        let wish = Wish { id: model.record_id()?, spec, wait_for: WaitFor::InMaintenance };
        let control = self.control(&model, false);
        let Some(uid) = Private::uid(&private) else {
            diags.add_error(Private::missing(&server));
            return Some((Value::Value(prior), private));
        };
        match engine.resume(&uid, &wish, &control).await {
            Ok(Some(driven)) => conclude(diags, &engine, model, &driven, control.timeout),
            Ok(None) => {
                let mut model = model;
                if let Ok(Some(held)) = engine.held(&uid).await {
                    model.show(&held.record);
                }
                Some((Value::Value(model), private))
            }
            Err(error) => {
                diags.add_error(of_engine(&server, &error));
                Some((Value::Value(prior), private))
            }
        }
    }

    async fn destroy<'a>(
        &self,
        diags: &mut Diagnostics,
        prior: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<()> {
        let Value::Value(model) = prior else { return Some(()) };
        let engine = self.cell.engine(diags)?;
        let server = given(&model.server).unwrap_or_default().to_owned();
        let Some(uid) = Private::uid(&private) else {
            diags.add_error(Private::missing(&server));
            return None;
        };
        let control = self.control(&model, false);
        let control = Control { timeout: control.release_timeout, ..control };
        match engine.release(&uid, &server, Ending::Completed, &control).await {
            Ok(Some(driven)) => released(diags, &server, &driven),
            Ok(None) => over_already(diags, &engine, &server, &uid, &private).await,
            Err(error) => {
                diags.add_error(of_engine(&server, &error));
                None
            }
        }
    }

    async fn read<'a>(
        &self,
        diags: &mut Diagnostics,
        state: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let Value::Value(mut model) = state else { return Some((Value::Null, private)) };
        let Some(engine) = self.cell.engine_if_ready() else { return Some((Value::Value(model), private)) };
        let server = given(&model.server).unwrap_or_default().to_owned();
        let Some(uid) = Private::uid(&private) else {
            diags.add_error(Private::missing(&server));
            return Some((Value::Value(model), private));
        };
        match engine.held(&uid).await {
            Ok(Some(held)) if !held.active => Some((Value::Null, private)),
            Ok(Some(held)) => {
                model.show(&held.record);
                Some((Value::Value(model), private))
            }
            Ok(None) => {
                let gone = missing_here(diags, &engine, &server, &private);
                Some((if gone { Value::Null } else { Value::Value(model) }, private))
            }
            Err(error) => {
                diags.add_warning(diagnostic(
                    "The coordination store did not answer",
                    format!("{server}: {error}. Its last known values are kept."),
                    AttributePath::root(),
                ));
                Some((Value::Value(model), private))
            }
        }
    }
}

impl ResourceExt for ServerBootConfiguration {
    fn is_gone(&self, state: &Self::State<'_>) -> bool {
        state.is_null()
    }
}
