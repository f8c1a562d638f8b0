//! The provider block: schema, model, checks.

use std::collections::BTreeMap;

use tf_provider::{
    AttributePath, Diagnostics,
    schema::Schema,
    value::{Value, ValueAny, ValueBool, ValueNumber},
};

use crate::{
    backend::{
        gate_plug::GATES,
        plug::{Block, plugins},
    },
    maintenance::window::OnClose,
    settings::{BackendInput, GateBlocks, Input},
};

use crate::provider::{
    config::plug_block::{block_attribute, read},
    shared::block::block,
    shared::schema::{optional, schema},
    shared::values::{Text, bad, duration, given, not_empty, value_of},
    shared::window::{WindowModel, windows_attribute},
};

block! {
    /// The provider block.
    pub struct ProviderModel {
        coordination_url: Text => optional(
            String,
            "The store for records, queue and locks: `s3://bucket/prefix`, `postgres://user@host/database`, `kubernetes://namespace` or `sqlite:///path/to/file`. With `?shared=true`, other users of the machine can have write access to the file. All users and jobs that change the same servers must share one store. Default: `METAL_COORDINATION_URL`, else a file in the user's state directory, which covers only this machine. See the guide about many runners.",
        );
        owner: Text => optional(
            String,
            "The maintenances' owner, for example a team. A configuration finds only its own owner's maintenances again. Default: `METAL_OWNER`, else `default`.",
        );
        run: Text => optional(String, "This run's name in the queue. Default: the detected CI job.");
        always_perform_maintenance: ValueBool => optional(
            Bool,
            "If `true`, `policy = \"OwnerApproval\"` counts as approved in every maintenance of this provider configuration. The plan shows this. Default: `false`.",
        );
        windows: Value<BTreeMap<String, Value<WindowModel>>> => windows_attribute();
        aging: Text => optional(String, "Waiting time after which a waiter gains one priority step. Default: `\"24h\"`.");
        history_days: ValueNumber => optional(
            Number,
            "How many days the store keeps ended maintenances and its audit log. The provider prunes older entries in the background. `0`: forever. Default: `365`.",
        );
        graceful_shutdown_timeout: Text => optional(
            String,
            "How long an operating system can take to shut down before the provider cuts the power. Default: `\"150s\"`.",
        );
        power_timeout: Text => optional(String, "How long a forced power change can take before it counts as failed. An accepted `On` or `ForceOff` without effect is sent once more after half this time. Default: `\"2m\"`.");
        image_ca_certificate_file: Text => optional(
            String,
            "An additional trusted authority for image and readiness URLs, as PEM.",
        );
        allow_local_image_redirects: ValueBool => optional(
            Bool,
            "Follow redirects of an image host to loopback, link-local and metadata addresses of this machine. Default: `false`.",
        );
        trust_world_writable_paths: ValueBool => optional(
            Bool,
            "Accept files that other users of the machine can change or replace: certificates, passwords, \
             kubeconfigs, tokens, exec plugins and the embedded store. For CI executors with umask 0000 on machines \
             without other users. Default: `METAL_TRUST_WORLD_WRITABLE_PATHS`, else `false`.",
        );
        ;
        /// Backend and gate blocks by name.
        #[serde(flatten)]
        blocks: BTreeMap<String, ValueAny>;
    }
}

/// Builds the schema.
pub(in crate::provider) fn provider_schema() -> Schema {
    let mut known = ProviderModel::settings();
    let of_plugs = plugins().iter().map(|plugin| (plugin.name(), plugin.description(), plugin.settings()));
    let of_gates = GATES.iter().map(|gate| (gate.name(), gate.description(), gate.settings()));
    let blocks = of_plugs.chain(of_gates);
    known.extend(blocks.map(|(name, text, settings)| (name.to_owned(), block_attribute(text, settings))));
    schema(
        "Takes physical servers out of service under a durable lock, boots them for a maintenance, restores their prior \
         state and releases them.",
        known,
    )
}

impl ProviderModel {
    /// Checks the known values and converts them to settings.
    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics) -> Option<Input> {
        let Self {
            coordination_url,
            owner,
            run,
            always_perform_maintenance,
            windows,
            aging,
            history_days,
            graceful_shutdown_timeout,
            power_timeout,
            image_ca_certificate_file,
            allow_local_image_redirects,
            trust_world_writable_paths,
            blocks,
        } = self;
        let path = AttributePath::new;
        let backend = configured(blocks, diags);
        for (name, value) in [("coordination_url", coordination_url), ("owner", owner), ("run", run)] {
            not_empty(diags, value, path(name));
        }
        let mut named_windows = BTreeMap::new();
        for (name, window) in value_of(windows).into_iter().flatten() {
            let Value::Value(window) = window else { continue };
            let at = path("windows").key(name.clone());
            let spec = window.check(diags, &at, OnClose::Finish, None, None);
            named_windows.extend(spec.map(|spec| (name.clone(), spec)));
        }
        let history_days = value_of(history_days).and_then(|days| {
            let days = u32::try_from(*days).ok();
            if days.is_none() {
                let problem = "It is a number of whole days from 0 (forever) on.";
                bad(diags, path("history_days"), "history_days is not a number of days", problem);
            }
            days
        });
        let text = |value: &Text| given(value).map(str::to_owned);
        let input = Input {
            coordination_url: text(coordination_url),
            makes_no_store: false,
            owner: text(owner),
            run: text(run),
            aging: duration(diags, aging, path("aging")),
            history_days,
            windows: named_windows,
            always_perform_maintenance: flag(*always_perform_maintenance).unwrap_or(false),
            graceful_shutdown_timeout: duration(diags, graceful_shutdown_timeout, path("graceful_shutdown_timeout")),
            power_timeout: duration(diags, power_timeout, path("power_timeout")),
            image_ca_certificate_file: text(image_ca_certificate_file),
            allow_local_image_redirects: flag(*allow_local_image_redirects).unwrap_or(false),
            trust_world_writable_paths: flag(*trust_world_writable_paths),
            backend,
            gates: gates(blocks, diags),
        };
        diags.errors.is_empty().then_some(input)
    }
}

/// Returns the configured backend; at most one is allowed.
fn configured(blocks: &BTreeMap<String, ValueAny>, diags: &mut Diagnostics) -> BackendInput {
    let given = plugins().iter().filter_map(|plugin| Some((*plugin, given_block(blocks, plugin.name())?)));
    // An unknown block could turn out to be absent.
    let (known, unknown): (Vec<_>, Vec<_>) = given.partition(|(_, values)| **values != ValueAny::Unknown);
    let Some((plugin, values)) = known.first().or(unknown.first()).copied() else { return BackendInput::default() };
    let others: Vec<&str> = known.iter().skip(1).map(|(plugin, _)| plugin.name()).collect();
    if let Some(second) = others.first() {
        bad(
            diags,
            AttributePath::new(*second),
            "Two backends in one provider configuration",
            format!(
                "{} and {} are given; use one provider configuration with an alias for each.",
                plugin.name(),
                others.join(" and ")
            ),
        );
        return BackendInput { plugin, block: Block::default() };
    }
    BackendInput { plugin, block: read(diags, values, plugin.settings(), &AttributePath::new(plugin.name())) }
}

/// Returns the configured gates' blocks.
fn gates(blocks: &BTreeMap<String, ValueAny>, diags: &mut Diagnostics) -> GateBlocks {
    let given = GATES.iter().filter_map(|gate| Some((gate, given_block(blocks, gate.name())?)));
    given
        .map(|(gate, values)| (gate.name(), read(diags, values, gate.settings(), &AttributePath::new(gate.name()))))
        .collect()
}

/// Returns a block that is not null.
fn given_block<'a>(blocks: &'a BTreeMap<String, ValueAny>, name: &str) -> Option<&'a ValueAny> {
    blocks.get(name).filter(|values| **values != ValueAny::Null)
}

pub(in crate::provider) fn flag(value: ValueBool) -> Option<bool> {
    match value {
        Value::Value(flag) => Some(flag),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::provider::shared::block::MayBeUnknown as _;

    /// Returns a provider block with these windows, as a host sends it.
    fn with_windows(windows: &serde_json::Value) -> ProviderModel {
        let mut all = serde_json::to_value(ProviderModel::default()).unwrap();
        all["windows"].clone_from(windows);
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn a_window_that_is_not_known_or_null_is_none_yet() {
        let mut model = with_windows(&serde_json::json!({ "night": null }));
        let mut diags = Diagnostics::default();
        assert!(!model.has_unknown());
        assert!(model.check(&mut diags).unwrap().windows.is_empty());
        model.windows = Value::Value(BTreeMap::from([("night".to_owned(), Value::Unknown)]));
        assert!(model.has_unknown() && model.check(&mut diags).unwrap().windows.is_empty());
        let day = serde_json::json!({ "schedule": "0 22 * * *", "duration": "1h", "exclude": ["2026-12-24"] });
        let model = with_windows(&serde_json::json!({ "night": day }));
        assert!(!model.has_unknown());
        assert_eq!(model.check(&mut diags).unwrap().windows.len(), 1);
    }
}
