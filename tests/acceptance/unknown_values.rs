//! Unknown values are never an error: each attribute of each type is tested as unknown.
//!
//! The attributes come from the schema, so new attributes are covered automatically. The test
//! calls the provider over the wire, like a host, and applies the hosts' rule that configured
//! values are planned unchanged.

mod hosts_rules;
mod null_elements;
mod of_provider;

use std::path::Path;

use serde_json::{Value, json};

use crate::{
    each_request::{
        host::{Host, Start, completed, errors, json as plain, tfplugin6 as wire, value},
        places::{Metal3, MetalOperator, Place as _},
        provider::redfish,
    },
    support::simulator::Fleet,
};

use hosts_rules::{differences, places, proposed, wire_value, with_unknown};

/// A valid configuration.
struct Base {
    kind: &'static str,
    config: Value,
    /// True if these servers support it, so that it can be planned.
    plan: bool,
    /// True to apply it and then plan changes.
    apply: bool,
}

/// Merges more attributes into a configuration.
fn merged(mut config: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("{more} should be an object") };
    config.as_object_mut().unwrap().extend(more);
    config
}

fn bases() -> Vec<Base> {
    let base = |kind, config| Base { kind, config, plan: true, apply: false };
    let named =
        |more| merged(json!({ "server": "node1", "namespace": "ops", "name": "case", "policy": "Enforced" }), more);
    let window = json!({
        "schedule": "0 22 * * SAT", "duration": "4h", "time_zone": "Europe/Berlin", "exclude": ["2026-12-24"],
    });
    let held = json!({
        "server_power": "On", "reason": "BIOS 2.19", "expires_after": "4h",
        "boot_configuration": { "method": "pxe" }, "timeouts": { "create": "30m", "delete": "30m" },
    });
    let of_window =
        json!({ "window": window, "complete_when": { "power_state": "Off" }, "timeouts": { "create": "240h" } });
    vec![
        Base { apply: true, ..base("metal_server_maintenance", named(held)) },
        base("metal_server_maintenance", named(of_window)),
        base(
            "metal_server_maintenance",
            named(
                json!({ "server_power": "Off", "require_claim": true, "policy": "OwnerApproval", "escalate_after": "2h" }),
            ),
        ),
        Base {
            plan: false,
            ..base(
                "metal_server_maintenance",
                named(json!({
                    "boot_configuration": { "method": "boot_operator", "image": "registry.example/bios:2" },
                    "complete_when": { "url": "https://ci.example/done" },
                })),
            )
        },
        Base {
            apply: true,
            ..base(
                "metal_server_boot_configuration",
                json!({ "server": "node2", "method": "pxe", "policy": "Enforced" }),
            )
        },
        base(
            "metal_server_boot_configuration",
            json!({ "server": "node1", "method": "pxe", "maintenance_id": "ops/case" }),
        ),
        Base {
            plan: false,
            ..base(
                "metal_server_boot_configuration",
                json!({ "server": "node1", "method": "http", "image": "https://images.example/rescue.efi", "policy": "Enforced" }),
            )
        },
        Base {
            apply: true,
            ..base("metal_server_operation", {
                let more = json!({ "operation": "ForceRestart", "triggers": { "kernel": "1" }, "reason": "kernel" });
                merged(named(more), json!({ "server": "node3" }))
            })
        },
        Base {
            plan: false,
            ..base(
                "metal_server_operation",
                named(
                    json!({ "service": { "steps": [{ "interface": "bios", "step": "apply_configuration", "args": "{}" }] } }),
                ),
            )
        },
        Base {
            apply: true,
            ..base(
                "metal_server_claim",
                json!({ "server": "node4", "namespace": "ops", "name": "db", "contact": "#db" }),
            )
        },
        Base {
            plan: false,
            ..base(
                "metal_server_claim",
                json!({ "server": "node1", "namespace": "ops", "name": "db", "image": "registry.example/os:1", "server_power": "On",
                    "ignition": { "secret_name": "s" }, "tolerations": [{ "key": "a", "operator": "Exists" }] }),
            )
        },
        Base {
            plan: false,
            ..base("metal_maintenance_approval", json!({ "server": "node1", "maintenance": "ops/case" }))
        },
    ]
}

/// Configurations only for metal-operator.
fn bases_of_metal_operator() -> Vec<Base> {
    let base = |kind, config| Base { kind, config, plan: true, apply: false };
    let image =
        json!({ "method": "boot_operator", "image": "registry.example/bios:2", "ignition": { "secret_name": "s" } });
    let named = json!({ "server": "node1", "namespace": "default", "name": "case", "policy": "OwnerApproval" });
    let with = |more| merged(named.clone(), more);
    let boots = json!({ "server_power": "On", "boot_configuration": image, "policy": "Enforced" });
    let claim = json!({
        "server": "node1", "namespace": "default", "name": "db", "image": "registry.example/os:1", "server_power": "On",
        "ignition": { "secret_name": "s" }, "tolerations": [{ "key": "a", "operator": "Exists" }],
        "timeouts": { "create": "30m" },
    });
    vec![
        base("metal_server_maintenance", with(boots)),
        base("metal_server_maintenance", with(json!({ "require_claim": true, "escalate_after": "2h" }))),
        base("metal_server_operation", with(json!({ "operation": "PowerCycle" }))),
        base("metal_server_claim", claim),
        base("metal_maintenance_approval", json!({ "server": "node1", "all": true })),
    ]
}

struct Process {
    host: Host,
    schema: wire::get_provider_schema::Response,
}

impl Process {
    async fn start(config: Value) -> Self {
        let program = Some(env!("CARGO_BIN_EXE_terraform-provider-metal").into());
        let mut host = Host::start_with(Start { program, ..Start::default() }).await;
        let schema = host.provider.get_provider_schema(wire::get_provider_schema::Request::default()).await;
        let schema = schema.unwrap().into_inner();
        let block = schema.provider.as_ref().unwrap().block.as_ref().unwrap();
        let request = wire::configure_provider::Request {
            config: wire_value(&completed(&block.attributes, &config)),
            terraform_version: "1.15.5".into(),
            ..Default::default()
        };
        let answer = host.provider.configure_provider(request).await.unwrap().into_inner();
        assert_eq!(errors(&answer.diagnostics), [""; 0]);
        Self { host, schema }
    }

    fn attributes(&self, kind: &str) -> Vec<wire::schema::Attribute> {
        self.schema.resource_schemas[kind].block.as_ref().unwrap().attributes.clone()
    }

    /// Returns all validation errors, with and without support for write-only attributes.
    async fn validated(&mut self, kind: &str, config: &Value) -> Vec<String> {
        let mut all = Vec::new();
        for allowed in [true, false] {
            let capabilities =
                wire::ClientCapabilities { write_only_attributes_allowed: allowed, ..Default::default() };
            let request = wire::validate_resource_config::Request {
                type_name: kind.into(),
                config: wire_value(config),
                client_capabilities: Some(capabilities),
            };
            let answer = self.host.provider.validate_resource_config(request).await.unwrap().into_inner();
            all.extend(errors(&answer.diagnostics));
        }
        all
    }

    async fn planned(
        &mut self,
        kind: &str,
        prior: &Value,
        private: &prost::bytes::Bytes,
        config: &Value,
    ) -> wire::plan_resource_change::Response {
        let of = self.attributes(kind);
        let request = wire::plan_resource_change::Request {
            type_name: kind.into(),
            prior_state: wire_value(prior),
            proposed_new_state: wire_value(&proposed(&of, prior, config)),
            config: wire_value(config),
            prior_private: private.clone(),
            ..Default::default()
        };
        self.host.provider.plan_resource_change(request).await.unwrap().into_inner()
    }

    /// Returns a plan's problems.
    async fn wrong_plan(
        &mut self,
        kind: &str,
        prior: &Value,
        private: &prost::bytes::Bytes,
        config: &Value,
    ) -> Vec<String> {
        let planned = self.planned(kind, prior, private, config).await;
        let mut wrong = errors(&planned.diagnostics);
        if wrong.is_empty() {
            differences(&self.attributes(kind), config, &plain(planned.planned_state.as_ref()), "", &mut wrong);
        }
        wrong
    }

    async fn applied(&mut self, kind: &str, config: &Value) -> (Value, prost::bytes::Bytes) {
        let none = prost::bytes::Bytes::new();
        let planned = self.planned(kind, &Value::Null, &none, config).await;
        assert_eq!(errors(&planned.diagnostics), [""; 0], "{kind} {config}");
        let request = wire::apply_resource_change::Request {
            type_name: kind.into(),
            prior_state: value(&Value::Null),
            planned_state: planned.planned_state,
            planned_private: planned.planned_private,
            config: wire_value(config),
            ..Default::default()
        };
        let applied = self.host.provider.apply_resource_change(request).await.unwrap().into_inner();
        assert_eq!(errors(&applied.diagnostics), [""; 0], "{kind} {config}");
        (plain(applied.new_state.as_ref()), applied.private)
    }

    async fn destroyed(&mut self, kind: &str, state: &Value, private: prost::bytes::Bytes) {
        let request = wire::apply_resource_change::Request {
            type_name: kind.into(),
            prior_state: wire_value(state),
            planned_state: value(&Value::Null),
            planned_private: private,
            config: value(&Value::Null),
            ..Default::default()
        };
        let answer = self.host.provider.apply_resource_change(request).await.unwrap().into_inner();
        assert_eq!(errors(&answer.diagnostics), [""; 0], "{kind}");
    }
}

/// Tests one system's servers. Returns the number of requests with an unknown value.
async fn try_all(system: Value, folder: &Path, bases: Vec<Base>) -> usize {
    let mut provider = system;
    provider["coordination_url"] = json!(format!("sqlite://{}", folder.join("store.db").display()));
    provider["owner"] = json!("ops");
    let none = prost::bytes::Bytes::new();
    let (mut wrong, mut tried) = (Vec::new(), 0);
    for Base { kind, config, plan, apply } in bases {
        // Requests of one process belong to one plan, so each has its own.
        let mut process = Process::start(provider.clone()).await;
        let of = process.attributes(kind);
        let config = completed(&of, &config);
        assert_eq!(process.validated(kind, &config).await, [""; 0], "{kind} {config}");
        if plan {
            assert_eq!(process.wrong_plan(kind, &Value::Null, &none, &config).await, [""; 0], "{kind} {config}");
        }
        let cells: Vec<(String, Value)> = places(&of, &config, "")
            .into_iter()
            .map(|place| {
                let unknown = with_unknown(&config, &place);
                (place, unknown)
            })
            .collect();
        let mut tell = |when: &str, place: &str, problems: Vec<String>| {
            tried += 1;
            wrong.extend(problems.into_iter().map(|problem| format!("{kind} {when}, {place}: {problem}")));
        };
        for (place, unknown) in &cells {
            tell("validate", place, process.validated(kind, unknown).await);
            if plan {
                tell("create", place, process.wrong_plan(kind, &Value::Null, &none, unknown).await);
            }
        }
        if apply {
            let (state, private) = process.applied(kind, &config).await;
            for (place, unknown) in &cells {
                tell("update", place, process.wrong_plan(kind, &state, &private, unknown).await);
            }
            process.destroyed(kind, &state, private).await;
        }
        let (status, log) = process.host.shut_down().await;
        assert!(status.success(), "{log}");
        assert!(!log.contains("panicked"), "{log}");
    }
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    tried
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_is_not_known_yet_is_never_wrong() {
    let (fleet, folder) = (Fleet::new(4).await, tempfile::tempdir().unwrap());
    let system = json!({ "redfish": redfish(&fleet.simulator, folder.path()) });
    let tried = try_all(system, folder.path(), bases()).await;
    assert!(tried > 500, "{tried}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_is_not_known_yet_is_never_wrong_with_metal_operator() {
    let (place, folder) = (MetalOperator::new().await, tempfile::tempdir().unwrap());
    let system = place.config(&place.kubernetes().kubeconfig(), folder.path());
    let tried = try_all(system, folder.path(), bases_of_metal_operator()).await;
    assert!(tried > 200, "{tried}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_is_not_known_yet_is_never_wrong_with_metal3() {
    let (place, folder) = (Metal3::new(json!({})).await, tempfile::tempdir().unwrap());
    let system = place.config(&place.kubernetes().kubeconfig(), folder.path());
    let all =
        bases().into_iter().filter(|base| base.config["server"] == "node1").map(|base| Base { apply: false, ..base });
    let tried = try_all(system, folder.path(), all.collect()).await;
    assert!(tried > 200, "{tried}");
}
