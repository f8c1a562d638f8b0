//! The same for the provider's own configuration: with any unknown value, it plans without reading
//! its servers.

use super::{
    Fleet, Host, Path, Start, Value, completed, errors, json, merged, places, redfish, wire, wire_value, with_unknown,
};

/// Warning of a plan that could not read the servers.
const NOT_CHECKED: &str = "A BMC was not checked";

/// Valid provider configurations.
fn bases(fleet: &Fleet, folder: &Path) -> Vec<Value> {
    let store = json!(format!("sqlite://{}", folder.join("store.db").display()));
    let window = json!({ "schedule": "0 22 * * SAT", "duration": "4h", "exclude": ["2026-12-24"] });
    let mut servers = redfish(&fleet.simulator, folder);
    servers["servers"] = json!({ "other": { "endpoint": "https://10.0.0.9", "labels": { "rack": "1" } } });
    let common = json!({
        "coordination_url": store, "owner": "ops", "run": "job 7", "aging": "24h", "history_days": 30,
        "windows": { "night": window }, "graceful_shutdown_timeout": "1m", "power_timeout": "1m",
    });
    let with = |more| merged(common.clone(), more);
    let nodes = json!({ "nodes": { "node1": "worker1" } });
    vec![
        with(json!({
            "redfish": servers, "cluster_api": { "machines": { "node1": "ns/m1" } },
            "kubernetes_node": { "nodes": { "other": "worker1" } }, "node_leases": nodes,
        })),
        with(json!({ "metal_operator": { "host": "https://10.0.0.1:6443", "namespace": "metal" } })),
        with(json!({ "metal3": { "context": "c", "namespace": "metal3", "hold": "power_off" } })),
        with(json!({ "ironic": { "endpoint": "https://10.0.0.1:6385", "username": "a", "password": "b" } })),
    ]
}

/// Returns the errors of validating this configuration, and of planning a maintenance with it.
async fn tried(host: &mut Host, schema: &wire::get_provider_schema::Response, config: &Value) -> Vec<String> {
    let request = wire::validate_provider_config::Request { config: wire_value(config) };
    let answer = host.provider.validate_provider_config(request).await.unwrap().into_inner();
    let mut wrong = errors(&answer.diagnostics);
    let request = wire::configure_provider::Request {
        config: wire_value(config),
        terraform_version: "1.15.5".into(),
        ..Default::default()
    };
    let answer = host.provider.configure_provider(request).await.unwrap().into_inner();
    wrong.extend(errors(&answer.diagnostics));
    let kind = "metal_server_maintenance";
    let of = &schema.resource_schemas[kind].block.as_ref().unwrap().attributes;
    let asked = json!({ "server": "node1", "namespace": "ops", "name": "case", "policy": "Enforced" });
    let asked = wire_value(&completed(of, &asked));
    let request = wire::plan_resource_change::Request {
        type_name: kind.into(),
        prior_state: wire_value(&Value::Null),
        proposed_new_state: asked.clone(),
        config: asked,
        ..Default::default()
    };
    let answer = host.provider.plan_resource_change(request).await.unwrap().into_inner();
    wrong.extend(errors(&answer.diagnostics));
    if !answer.diagnostics.iter().any(|it| it.summary == NOT_CHECKED) {
        wrong.push("the plan continued without a warning about unknown values".to_owned());
    }
    wrong
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_of_which_anything_is_not_known_plans_without_its_servers() {
    let (fleet, folder) = (Fleet::new(1).await, tempfile::tempdir().unwrap());
    let program = Some(env!("CARGO_BIN_EXE_terraform-provider-metal").into());
    let mut host = Host::start_with(Start { program, ..Start::default() }).await;
    let schema = host.provider.get_provider_schema(wire::get_provider_schema::Request::default()).await;
    let schema = schema.unwrap().into_inner();
    let of = &schema.provider.as_ref().unwrap().block.as_ref().unwrap().attributes;
    let (mut wrong, mut cells) = (Vec::new(), 0);
    for base in bases(&fleet, folder.path()) {
        let config = completed(of, &base);
        let request = wire::validate_provider_config::Request { config: wire_value(&config) };
        let answer = host.provider.validate_provider_config(request).await.unwrap().into_inner();
        assert_eq!(errors(&answer.diagnostics), [""; 0], "{base}");
        for place in places(of, &config, "") {
            cells += 1;
            let problems = tried(&mut host, &schema, &with_unknown(&config, &place)).await;
            let backend = ["redfish", "metal_operator", "metal3", "ironic"].iter().find(|it| base[**it].is_object());
            wrong.extend(problems.into_iter().map(|problem| format!("{}, {place}: {problem}", backend.unwrap())));
        }
    }
    let (status, log) = host.shut_down().await;
    assert!(status.success(), "{log}");
    assert!(cells > 150, "{cells}");
    assert!(wrong.is_empty(), "{} of {cells}:\n{}", wrong.len(), wrong.join("\n"));
}
