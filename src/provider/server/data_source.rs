//! `metal_server`: a server's current state and its holder.

use async_trait::async_trait;
use tf_provider::{
    AttributePath, DataSource, Diagnostics,
    schema::Schema,
    value::{Value, ValueBool, ValueNumber},
};

use crate::provider::{
    server::check_model::{CheckModel, check_attribute},
    shared::block::table,
    shared::cell::Cell,
    shared::diagnostics::{of_engine, of_machine, silent},
    shared::schema::{computed, optional, required, schema},
    shared::values::{Text, Texts, bad, given, known, not_empty},
};
use crate::{
    backend::BackendError,
    maintenance::{queue, restrictions::Block},
    plugin::diagnostic,
    shown::OneLine,
};

table! {
    /// The object `holder`.
    pub(in crate::provider) struct HolderModel {
        id: Text => computed(String, "`namespace/name` of the maintenance.");
        state: Text => computed(String, "The maintenance's state.");
        since: Text => computed(String, "Start of its lock (RFC 3339, UTC).");
        by: Text => computed(String, "The user and machine that requested it.");
        reason: Text => computed(String, "The stated reason.");
        expires_at: Text => computed(String, "When the maintenance becomes overdue (RFC 3339, UTC).");
        generation: ValueNumber => computed(Number, "The generation, which increases each time a process attaches.");
    }
}

table! {
    /// The object `block`.
    pub(in crate::provider) struct BlockModel {
        until: Text => computed(String, "End (RFC 3339, UTC).");
        since: Text => computed(String, "Start (RFC 3339, UTC).");
        by: Text => computed(String, "The user and machine that blocked it.");
        reason: Text => computed(String, "The stated reason.");
        released: Text => computed(String, "`namespace/name` of the maintenance that was released with the block.");
    }
}

impl From<&Block> for BlockModel {
    fn from(block: &Block) -> Self {
        Self {
            until: Value::Value(block.until.to_string()),
            since: Value::Value(block.since.to_string()),
            by: Value::Value(block.by.to_string()),
            reason: Value::Value(block.reason.to_string()),
            released: Value::Value(block.id.to_string()),
        }
    }
}

table! {
    /// A `metal_server` in configuration and state.
    pub(in crate::provider) struct ServerDataModel {
        name: Text => required(String, "The server's name in the provider's configuration.");
        address: Text => computed(String, "Where the provider reaches its BMC, without credentials.");
        reachable: ValueBool => computed(Bool, "True if the BMC answered.");
        lock_key: Text => computed(
            String,
            "The server's hardware identity, which is the lock key; null while it is unknown.",
        );
        power_state: Text => computed(String, "`On`, `Off`, `PoweringOn`, `PoweringOff`, `Paused` or `Unknown`.");
        boot_progress: Text => computed(String, "The boot progress, if the BMC reports it.");
        boot_override_enabled: Text => computed(String, "`Disabled`, `Once` or `Continuous`.");
        boot_override_target: Text => computed(String, "The override's boot source.");
        health: Text => computed(String, "`OK`, `Warning` or `Critical`, if the BMC reports it.");
        manufacturer: Text => computed(String, "Its manufacturer.");
        model: Text => computed(String, "Its model.");
        serial_number: Text => computed(String, "Its serial number.");
        host_name: Text => computed(String, "The operating system's host name, if the BMC reports it.");
        holder: Value<HolderModel> => computed(
            AttributeSingle(HolderModel::settings()),
            "The maintenance that holds it; null if the server is free.",
        );
        block: Value<BlockModel> => computed(
            AttributeSingle(BlockModel::settings()),
            "The period in which no maintenance can lock the server (`release --block`); null if it is not blocked.",
        );
        queue_length: ValueNumber => computed(Number, "Number of waiters, without the holder.");
        state: Text => computed(
            String,
            "The state in its external system: the Server's (`metal_operator`, for example `Available`), the BareMetalHost's (`metal3`, for example `provisioned (detached)`) or the node's (`ironic`, for example `active (maintenance)`); otherwise null.",
        );
        claim: Text => computed(
            String,
            "Its user in the external system: `namespace/name` of the ServerClaim (`metal_operator`), the consumer's kind and name (`metal3`), or the instance's UUID (`ironic`); otherwise null.",
        );
        endpoint: Text => computed(
            String,
            "The BMC's address, for other Redfish providers; null if the configuration does not contain it (`metal_operator`, `metal3`, `ironic`).",
        );
        system_id: Text => computed(
            String,
            "Its system behind that BMC: the configured id, or else the detected id; null while it is unknown.",
        );
        labels: Texts => computed(Map(Box::new(String)), "Its labels in the inventory.");
        gates: Texts => computed(
            Map(Box::new(String)),
            "Gate states by gate name. `cluster_api` shows its Machine and Node, for example `Machine metal3/m1: Running; Node n1: operational`.",
        );
        check_capabilities: ValueBool => optional(
            Bool,
            "Also read the data that the command `check` shows, with about ten more requests. Default: `false`.",
        );
        check: Value<CheckModel> => check_attribute();
    }
}

/// The data source type.
#[derive(Debug)]
pub(in crate::provider) struct ServerDataSource {
    pub(in crate::provider) cell: Cell,
}

#[async_trait]
impl DataSource for ServerDataSource {
    type State<'a> = Value<ServerDataModel>;
    type ProviderMetaState<'a> = Value<()>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(schema(
            "A server's current state and holder. Changes nothing. If a BMC or the coordination store does not answer, the \
             provider warns and returns null for the missing values. A wrong password, an untrusted certificate and a wrong \
             `system_id` are errors.",
            ServerDataModel::settings(),
        ))
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<()> {
        if let Value::Value(model) = config {
            not_empty(diags, &model.name, AttributePath::new("name"));
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
        let name = given(&model.name)?.to_owned();
        let machine = match engine.machine(&name) {
            Ok(machine) => machine,
            Err(error) => {
                let mut problem = of_engine(&name, &error);
                problem.attribute = AttributePath::new("name");
                diags.add_error(problem);
                return None;
            }
        };
        model.address = Value::Value(machine.address());
        match self.cell.read(diags, &name, machine.observe()).await? {
            Ok(view) => {
                let boot = view.boot.unwrap_or_default();
                model.reachable = Value::Value(true);
                model.power_state = Value::Value(view.power.to_string());
                model.boot_progress = known(view.boot_progress.map(OneLine::into_raw));
                model.boot_override_enabled = known(boot.enabled.map(OneLine::into_raw));
                model.boot_override_target = known(boot.target.map(OneLine::into_raw));
                model.health = known(view.health.map(OneLine::into_raw));
                model.manufacturer = known(view.description.manufacturer.map(OneLine::into_raw));
                model.model = known(view.description.model.map(OneLine::into_raw));
                model.serial_number = known(view.description.serial_number.map(OneLine::into_raw));
                model.host_name = known(view.description.host_name.map(OneLine::into_raw));
            }
            // In a cluster too, a missing server is a mistake and not an unreachable machine.
            Err(error @ (BackendError::Missing { .. } | BackendError::NoServer { .. })) => {
                bad(diags, AttributePath::new("name"), &format!("{name} was not found"), format!("{error}."));
                return None;
            }
            Err(error) if error.is_misconfigured() => {
                let mut problem = of_machine(&name, &error);
                problem.attribute = AttributePath::new("name");
                diags.add_error(problem);
                return None;
            }
            Err(error) => {
                model.reachable = Value::Value(false);
                diags.add_warning(diagnostic(
                    silent(&error),
                    format!("{name}: {error}. Values that its BMC reports are null."),
                    AttributePath::root(),
                ));
            }
        }
        let listed = engine.backend().listed(&name);
        model.endpoint = known(listed.endpoint);
        model.labels = Value::Value(listed.labels.into_iter().map(|(name, text)| (name, Value::Value(text))).collect());
        let found = match (listed.system_id, &model.reachable, &model.endpoint) {
            (None, Value::Value(true), Value::Value(_)) => {
                self.cell.read(diags, &name, machine.identify()).await?.ok().and_then(|seen| seen.system_id())
            }
            (configured, _, _) => configured,
        };
        model.system_id = known(found);
        if model.check_capabilities == Value::Value(true) {
            match self.cell.read(diags, &name, engine.check(&name)).await? {
                Ok(check) => model.check = Value::Value(check.into()),
                Err(error) => {
                    diags.add_error(of_engine(&name, &error));
                    return None;
                }
            }
        }
        let gates = self.cell.read(diags, &name, engine.gate_states(&name)).await?;
        model.gates = Value::Value(gates.into_iter().map(|(gate, state)| (gate, Value::Value(state))).collect());
        if let Some(found) = engine.backend().external_state(&name).await {
            model.state = known(Some(found.state).filter(|state| !state.is_empty()));
            model.claim = known(found.user);
        }
        let Some(key) = engine.known_lock_key(&name).await else { return Some(Value::Value(model)) };
        model.lock_key = Value::Value(key.to_string());
        match engine.store().view(&key).await {
            Ok(view) => {
                let waiting = queue::waiting(&view.lock, engine.tuning().aging, view.now).len();
                model.block = view.lock.block(view.now).map_or(Value::Null, |block| Value::Value(block.into()));
                model.queue_length = Value::Value(i64::try_from(waiting).unwrap_or(i64::MAX));
                model.holder = view.lock.holder().map_or(Value::Null, |holder| {
                    let holder = queue::describe(&view.lock, holder, &view.leases, view.now);
                    Value::Value(HolderModel {
                        id: Value::Value(holder.id.to_string()),
                        state: Value::Value(holder.state.to_owned()),
                        since: Value::Value(holder.since.to_string()),
                        by: Value::Value(holder.by.to_string()),
                        reason: known(holder.reason.map(OneLine::into_raw)),
                        expires_at: known(holder.expires_at.map(|at| at.to_string())),
                        generation: Value::Value(i64::try_from(holder.generation).unwrap_or(i64::MAX)),
                    })
                });
            }
            Err(error) => diags.add_warning(diagnostic(
                "The coordination store did not answer",
                format!("{name}: {error}. Its holder is unknown."),
                AttributePath::root(),
            )),
        }
        Some(Value::Value(model))
    }
}
