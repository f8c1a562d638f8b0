//! `metal_servers`: the inventory's servers.

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures_util::future::join_all;
use tf_provider::{
    AttributePath, DataSource, Diagnostics,
    schema::Schema,
    value::{Value, ValueList},
};

use crate::{
    backend::{Listed, plug::plugins},
    engine::Engine,
    maintenance::pattern,
    plugin::diagnostic,
};

use crate::provider::{
    shared::block::table,
    shared::cell::Cell,
    shared::diagnostics::of_machine,
    shared::schema::{computed, optional, schema},
    shared::values::{Text, Texts, given, known, not_empty, one_of, texts},
};

table! {
    /// A listed server.
    pub(in crate::provider) struct ListedModel {
        endpoint: Text => computed(String, "The BMC's address; null if the configuration does not contain it.");
        system_id: Text => computed(String, "Its configured system; null if the BMC has only one.");
        labels: Texts => computed(Map(Box::new(String)), "Its labels.");
        backend: Text => computed(String, "Its backend, by its block name in the provider.");
        state: Text => computed(
            String,
            "Its state in the external system, for example `provisioned`; null without an external system.",
        );
        claim: Text => computed(
            String,
            "Its user in the external system, for example its ServerClaim or its BareMetalHost's consumer.",
        );
        gates: Texts => computed(
            Map(Box::new(String)),
            "Gate states by gate name. `cluster_api` shows its Machine with its phase, and its Node.",
        );
    }
}

table! {
    /// A `metal_servers` in configuration and state.
    pub(in crate::provider) struct ServersModel {
        name_pattern: Text => optional(String, "Only names that match: `*` is any text, `?` one character.");
        labels: Texts => optional(Map(Box::new(String)), "Only servers that have all of these labels.");
        backend: Text => optional(String, "Only servers of this backend, by its block name in the provider.");
        names: ValueList<Text> => computed(List(Box::new(String)), "The servers' names, sorted.");
        servers: Value<BTreeMap<String, ListedModel>> => computed(
            AttributeMap(ListedModel::settings()),
            "The servers by name.",
        );
        inventory: Text => computed(
            String,
            "The same servers as a JSON inventory file without passwords, for the command line.",
        );
    }
}

/// The data source type.
#[derive(Debug)]
pub(in crate::provider) struct Servers {
    pub(in crate::provider) cell: Cell,
}

impl ServersModel {
    fn selects(&self, name: &str, listed: &Listed) -> bool {
        given(&self.name_pattern).is_none_or(|pattern| pattern::fits(pattern, name))
            && given(&self.backend).is_none_or(|backend| backend == listed.backend)
            && texts(&self.labels).iter().all(|(label, value)| listed.labels.get(label) == Some(value))
    }
}

impl From<&Listed> for ListedModel {
    fn from(listed: &Listed) -> Self {
        let labels = listed.labels.iter().map(|(name, text)| (name.clone(), Value::Value(text.clone())));
        Self {
            endpoint: known(listed.endpoint.clone()),
            system_id: known(listed.system_id.clone()),
            labels: Value::Value(labels.collect()),
            backend: Value::Value(listed.backend.to_owned()),
            gates: Value::Value(BTreeMap::new()),
            ..Self::default()
        }
    }
}

/// Adds a listed server's current use, from its gates and its external system.
async fn in_use(engine: &Engine, name: &str, listed: &Listed) -> ListedModel {
    let mut model = ListedModel::from(listed);
    let (gates, found) = tokio::join!(engine.gate_states(name), engine.backend().external_state(name));
    model.gates = Value::Value(gates.into_iter().map(|(gate, state)| (gate, Value::Value(state))).collect());
    if let Some(found) = found {
        model.state = known(Some(found.state).filter(|state| !state.is_empty()));
        model.claim = known(found.user);
    }
    model
}

#[async_trait]
impl DataSource for Servers {
    type State<'a> = Value<ServersModel>;
    type ProviderMetaState<'a> = Value<()>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(schema(
            "The configured servers, selected by label or name. Does not read BMCs or the coordination store. With `metal_operator` \
             and `metal3` it lists the cluster's Servers or hosts, with `ironic` Ironic's nodes.",
            ServersModel::settings(),
        ))
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<()> {
        if let Value::Value(model) = config {
            not_empty(diags, &model.name_pattern, AttributePath::new("name_pattern"));
            let backends: Vec<&str> = plugins().iter().map(|plugin| plugin.name()).collect();
            one_of(diags, &model.backend, AttributePath::new("backend"), &backends, |text| {
                backends.contains(&text).then_some(())
            });
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
        let found = match self.cell.read(diags, "the servers", engine.backend().inventory()).await? {
            Ok(found) => found,
            Err(error) => {
                let problem = of_machine("the inventory", &error);
                diags.add_error(diagnostic("The servers cannot be listed", problem.detail, AttributePath::root()));
                return None;
            }
        };
        let chosen: BTreeMap<String, Listed> =
            found.into_iter().filter(|(name, listed)| model.selects(name, listed)).collect();
        model.names = Value::Value(chosen.keys().cloned().map(Value::Value).collect());
        let all = chosen.iter().map(async |(name, listed)| (name.clone(), in_use(&engine, name, listed).await));
        let all = self.cell.read(diags, "the servers", join_all(all)).await?;
        model.servers = Value::Value(all.into_iter().collect());
        model.inventory = Value::Value(engine.backend().inventory_file(&chosen.into_keys().collect()));
        Some(Value::Value(model))
    }
}
