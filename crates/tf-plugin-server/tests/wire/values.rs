//! Values in both directions, through every request with values.
use serde_json::json;
use tf_provider::value::Value;

use crate::{
    fixture::shapes::{Disk, Rule, State},
    host::{Host, errors, json, tfplugin6, value},
    trials,
};

trials![
    a_resource_of_every_shape_lives_its_life,
    a_new_name_replaces,
    decimals_survive,
    five_megabytes_go_there_and_back,
    an_old_state_is_upgraded,
    a_state_of_this_version_passes_without_what_is_gone,
    a_state_of_tomorrow_is_refused,
    import_by_id_and_by_identity,
    a_write_only_value_needs_a_host_that_does_not_store_it,
    null_elements_are_refused_at_their_places,
    a_value_of_the_wrong_type_is_named_but_not_shown,
    the_provider_is_validated_and_configured,
    a_data_source_is_read,
    functions_are_called,
];

const SHAPES: &str = "fixture_shapes";

fn text(of: &str) -> Value<String> {
    Value::Value(of.to_owned())
}

fn disk(size: f64) -> Value<Disk> {
    Value::Value(Disk { size: Value::Value(size), serial: Value::Null })
}

fn rule(port: i64) -> Rule {
    Rule { port: Value::Value(port), ranges: Value::Value(vec![Value::Value(0.5), Value::Value(1.0)]) }
}

/// A configuration that uses every attribute and block.
fn everything() -> State {
    State {
        id: Value::Null,
        name: text("one"),
        count_of: Value::Value(7),
        factor: Value::Value(0.1),
        secret: text("hunter2"),
        token: Value::Null,
        payload: Value::Null,
        tags: Value::Value([text("a"), text("b")].into()),
        labels: Value::Value([("k".to_owned(), text("v"))].into()),
        single: disk(1.0),
        list: Value::Value(vec![disk(2.0), disk(2.5)]),
        set: Value::Value(vec![disk(3.0)]),
        map: Value::Value([("m".to_owned(), disk(4.0))].into()),
        rule: vec![rule(1), rule(2)],
        peer: vec![rule(3)],
        named: [("n".to_owned(), rule(4))].into(),
        group: Value::Value(rule(5)),
        window: Value::Value(rule(6)),
    }
}

/// `everything` on the wire, with numbers in the host's form.
fn expected() -> serde_json::Value {
    let disk = |size: serde_json::Value| json!({ "size": size, "serial": null });
    let rule = |port: i64| json!({ "port": port, "ranges": ["0.5", 1] });
    json!({
        "id": null, "name": "one", "count_of": 7, "factor": "0.1", "secret": "hunter2",
        "token": null, "payload": null, "tags": ["a", "b"], "labels": { "k": "v" },
        "single": disk(1.into()), "list": [disk(2.into()), disk("2.5".into())], "set": [disk(3.into())],
        "map": { "m": disk(4.into()) },
        "rule": [rule(1), rule(2)], "peer": [rule(3)], "named": { "n": rule(4) }, "group": rule(5),
        "window": [rule(6)],
    })
}

async fn plan(
    host: &mut Host,
    prior: Option<&State>,
    proposed: Option<&State>,
) -> tfplugin6::plan_resource_change::Response {
    let request = tfplugin6::plan_resource_change::Request {
        type_name: SHAPES.into(),
        prior_state: value(&prior),
        proposed_new_state: value(&proposed),
        config: value(&proposed),
        ..Default::default()
    };
    let response = host.provider.plan_resource_change(request).await.unwrap().into_inner();
    assert_eq!(errors(&response.diagnostics), [""; 0]);
    response
}

async fn apply(
    host: &mut Host,
    prior: Option<tfplugin6::DynamicValue>,
    planned: tfplugin6::plan_resource_change::Response,
) -> tfplugin6::apply_resource_change::Response {
    let request = tfplugin6::apply_resource_change::Request {
        type_name: SHAPES.into(),
        prior_state: prior.or_else(|| value(&())),
        planned_state: planned.planned_state,
        config: value(&everything()),
        planned_private: planned.planned_private,
        ..Default::default()
    };
    let response = host.provider.apply_resource_change(request).await.unwrap().into_inner();
    assert_eq!(errors(&response.diagnostics), [""; 0]);
    response
}

async fn a_resource_of_every_shape_lives_its_life() {
    let mut host = Host::start().await;
    let planned = plan(&mut host, None, Some(&everything())).await;
    let mut wanted = expected();
    wanted["id"] = json!("<unknown>");
    wanted["single"]["serial"] = json!("<unknown>");
    wanted["list"][0]["serial"] = json!("<unknown>");
    wanted["list"][1]["serial"] = json!("<unknown>");
    wanted["set"][0]["serial"] = json!("<unknown>");
    wanted["map"]["m"]["serial"] = json!("<unknown>");
    assert_eq!(json(planned.planned_state.as_ref()), wanted);

    let created = apply(&mut host, None, planned).await;
    wanted["id"] = json!("id-one");
    wanted["single"]["serial"] = json!("single");
    wanted["list"][0]["serial"] = json!("listed");
    wanted["list"][1]["serial"] = json!("listed");
    wanted["set"][0]["serial"] = json!("listed");
    wanted["map"]["m"]["serial"] = json!("mapped");
    assert_eq!(json(created.new_state.as_ref()), wanted);
    assert!(!created.private.is_empty());
    let identity = created.new_identity.unwrap().identity_data;
    assert_eq!(json(identity.as_ref()), json!({ "name": "one" }));

    let request = tfplugin6::read_resource::Request {
        type_name: SHAPES.into(),
        current_state: created.new_state.clone(),
        private: created.private.clone(),
        ..Default::default()
    };
    let read = host.provider.read_resource(request).await.unwrap().into_inner();
    assert_eq!(json(read.new_state.as_ref()), wanted);
    assert_eq!(read.private, created.private);

    let request = tfplugin6::plan_resource_change::Request {
        type_name: SHAPES.into(),
        prior_state: read.new_state.clone(),
        proposed_new_state: value(&()),
        config: value(&()),
        prior_private: read.private,
        ..Default::default()
    };
    let planned = host.provider.plan_resource_change(request).await.unwrap().into_inner();
    assert_eq!(json(planned.planned_state.as_ref()), json!(null));
    assert_eq!(planned.planned_private, created.private);
    let destroyed = apply(&mut host, read.new_state, planned).await;
    assert_eq!(json(destroyed.new_state.as_ref()), json!(null));
    host.shut_down().await;
}

async fn a_new_name_replaces() {
    use tfplugin6::attribute_path::step::Selector;
    let mut host = Host::start().await;
    let other = State { name: text("two"), ..everything() };
    let planned = plan(&mut host, Some(&everything()), Some(&other)).await;
    let steps = &planned.requires_replace[0].steps;
    assert_eq!(steps[0].selector, Some(Selector::AttributeName("name".into())));
    assert_eq!(planned.requires_replace.len(), 1);
    let planned = plan(&mut host, Some(&other), Some(&other)).await;
    assert!(planned.requires_replace.is_empty());
    host.shut_down().await;
}

async fn decimals_survive() {
    let mut host = Host::start().await;
    // Host values: exact floats as floats, others as decimals.
    for (sent, wanted) in [
        (json!("0.1"), json!("0.1")),
        (json!(0.5), json!("0.5")),
        (json!(3), json!(3)),
        (json!("-12.000001"), json!("-12.000001")),
        (json!("18446744073709551617000"), json!("18446744073709552000000")),
    ] {
        let request = tfplugin6::read_resource::Request {
            type_name: SHAPES.into(),
            current_state: value(&json!({ "factor": sent })),
            ..Default::default()
        };
        let read = host.provider.read_resource(request).await.unwrap().into_inner();
        assert_eq!(errors(&read.diagnostics), [""; 0]);
        assert_eq!(json(read.new_state.as_ref())["factor"], wanted);
    }
    host.shut_down().await;
}

async fn five_megabytes_go_there_and_back() {
    let mut host = Host::start().await;
    let payload = "x".repeat(5 << 20);
    let request = tfplugin6::read_resource::Request {
        type_name: SHAPES.into(),
        current_state: value(&State { payload: text(&payload), ..State::default() }),
        ..Default::default()
    };
    let read = host.provider.read_resource(request).await.unwrap().into_inner();
    assert_eq!(json(read.new_state.as_ref())["payload"], json!(payload));
    host.shut_down().await;
}

async fn upgrade(
    host: &mut Host,
    version: i64,
    state: serde_json::Value,
) -> tfplugin6::upgrade_resource_state::Response {
    let raw = tfplugin6::RawState { json: state.to_string().into(), ..Default::default() };
    let request =
        tfplugin6::upgrade_resource_state::Request { type_name: SHAPES.into(), version, raw_state: Some(raw) };
    host.provider.upgrade_resource_state(request).await.unwrap().into_inner()
}

async fn an_old_state_is_upgraded() {
    let mut host = Host::start().await;
    let response = upgrade(&mut host, 1, json!({ "title": "one", "id": "id-one" })).await;
    assert_eq!(errors(&response.diagnostics), [""; 0]);
    assert_eq!(json(response.upgraded_state.as_ref()), json!({ "name": "one", "id": "id-one" }));
    // The fixture returns no error for a state that it cannot upgrade, so the wire adds it.
    let response = upgrade(&mut host, 1, json!({ "id": "id-one" })).await;
    assert_eq!(errors(&response.diagnostics).len(), 1);
    assert!(response.upgraded_state.is_none());
    host.shut_down().await;
}

async fn a_state_of_this_version_passes_without_what_is_gone() {
    let mut host = Host::start().await;
    let state = json!({
        "name": "one", "retired": true, "labels": { "retired": "stays" },
        "single": { "size": 1, "retired": true }, "rule": [{ "port": 1, "retired": true }],
    });
    let response = upgrade(&mut host, 2, state).await;
    assert_eq!(errors(&response.diagnostics), [""; 0]);
    assert_eq!(
        json(response.upgraded_state.as_ref()),
        json!({ "name": "one", "labels": { "retired": "stays" }, "single": { "size": 1 }, "rule": [{ "port": 1 }] })
    );
    host.shut_down().await;
}

async fn a_state_of_tomorrow_is_refused() {
    let mut host = Host::start().await;
    let response = upgrade(&mut host, 3, json!({ "name": "one" })).await;
    assert!(errors(&response.diagnostics)[0].contains("newer version"), "{:?}", response.diagnostics);
    assert!(response.upgraded_state.is_none());
    host.shut_down().await;
}

async fn import_by_id_and_by_identity() {
    let mut host = Host::start().await;
    let by_id =
        tfplugin6::import_resource_state::Request { type_name: SHAPES.into(), id: "one".into(), ..Default::default() };
    let identity = tfplugin6::ResourceIdentityData { identity_data: value(&json!({ "name": "one" })) };
    let by_identity = tfplugin6::import_resource_state::Request {
        id: String::new(),
        identity: Some(identity.clone()),
        ..by_id.clone()
    };
    for request in [by_id.clone(), by_identity.clone()] {
        let response = host.provider.import_resource_state(request).await.unwrap().into_inner();
        assert_eq!(errors(&response.diagnostics), [""; 0]);
        let imported = &response.imported_resources[0];
        assert_eq!(imported.type_name, SHAPES);
        assert_eq!(json(imported.state.as_ref())["id"], "id-one");
        assert_eq!(imported.identity, Some(identity.clone()));
    }
    for request in [by_id, by_identity] {
        let request = tfplugin6::import_resource_state::Request { type_name: "fixture_wait".into(), ..request };
        let response = host.provider.import_resource_state(request).await.unwrap().into_inner();
        assert!(errors(&response.diagnostics)[0].contains("not supported"));
        assert!(response.imported_resources.is_empty());
    }
    host.shut_down().await;
}

async fn a_write_only_value_needs_a_host_that_does_not_store_it() {
    let mut host = Host::start().await;
    let set = || text("hunter2");
    // An unknown value can still become null, and the host validates again.
    for (token, allowed, refused) in
        [(set(), false, true), (set(), true, false), (Value::Null, false, false), (Value::Unknown, false, false)]
    {
        let capabilities =
            tfplugin6::ClientCapabilities { write_only_attributes_allowed: allowed, ..Default::default() };
        let request = tfplugin6::validate_resource_config::Request {
            type_name: SHAPES.into(),
            config: value(&State { token, ..everything() }),
            client_capabilities: allowed.then_some(capabilities),
        };
        let response = host.provider.validate_resource_config(request).await.unwrap().into_inner();
        assert_eq!(errors(&response.diagnostics).len(), usize::from(refused));
        if refused {
            let steps = &response.diagnostics[0].attribute.as_ref().unwrap().steps;
            assert_eq!(steps.len(), 1);
            assert!(!errors(&response.diagnostics)[0].contains("hunter2"));
        }
    }
    host.shut_down().await;
}

async fn null_elements_are_refused_at_their_places() {
    let mut host = Host::start().await;
    let mut config = serde_json::to_value(everything()).unwrap();
    for place in ["/tags/0", "/labels/k", "/list/1", "/map/m", "/rule/1/ranges/0", "/named/n/ranges/1"] {
        *config.pointer_mut(place).unwrap() = serde_json::Value::Null;
    }
    let request = tfplugin6::validate_resource_config::Request {
        type_name: SHAPES.into(),
        config: value(&config),
        ..Default::default()
    };
    let validated = host.provider.validate_resource_config(request).await.unwrap().into_inner();
    let request = tfplugin6::plan_resource_change::Request {
        type_name: SHAPES.into(),
        prior_state: value(&()),
        proposed_new_state: value(&config),
        config: value(&config),
        ..Default::default()
    };
    let planned = host.provider.plan_resource_change(request).await.unwrap().into_inner();
    for found in [errors(&validated.diagnostics), errors(&planned.diagnostics)] {
        let places: Vec<&str> = found
            .iter()
            .map(|error| error.strip_prefix("An element is null: Attribute ").unwrap().split(": ").next().unwrap())
            .collect();
        let wanted =
            ["labels[\"k\"]", "list[1]", "map[\"m\"]", "named[\"n\"].ranges[1]", "rule[1].ranges[0]", "tags[0]"];
        assert_eq!(places, wanted);
    }
    host.shut_down().await;
}

async fn a_value_of_the_wrong_type_is_named_but_not_shown() {
    use tfplugin6::attribute_path::step::Selector;
    let mut host = Host::start().await;
    let request = tfplugin6::read_resource::Request {
        type_name: SHAPES.into(),
        current_state: value(&json!({ "name": "one", "count_of": "hunter2" })),
        ..Default::default()
    };
    let response = host.provider.read_resource(request.clone()).await.unwrap().into_inner();
    assert_eq!(response.new_state, request.current_state, "kept");
    let path = response.diagnostics[0].attribute.as_ref().unwrap();
    assert_eq!(path.steps[0].selector, Some(Selector::AttributeName("count_of".into())));
    let error = &errors(&response.diagnostics)[0];
    assert!(error.contains("count_of") && !error.contains("hunter2"), "{error}");
    host.shut_down().await;
}

async fn the_provider_is_validated_and_configured() {
    let mut host = Host::start().await;
    let config = |region: &str| value(&json!({ "region": region }));
    for (region, refused) in [("earth", false), ("mars", true)] {
        let request = tfplugin6::validate_provider_config::Request { config: config(region) };
        let response = host.provider.validate_provider_config(request).await.unwrap().into_inner();
        assert_eq!(errors(&response.diagnostics).len(), usize::from(refused));
    }
    let request = tfplugin6::configure_provider::Request {
        terraform_version: "1.13.0".into(),
        config: config("earth"),
        ..Default::default()
    };
    let response = host.provider.configure_provider(request).await.unwrap().into_inner();
    assert_eq!(errors(&response.diagnostics), [""; 0]);
    host.shut_down().await;
}

async fn a_data_source_is_read() {
    let mut host = Host::start().await;
    let config = value(&json!({ "text": "hello", "echo": null }));
    let type_name = "fixture_echo".to_owned();
    let request =
        tfplugin6::validate_data_resource_config::Request { type_name: type_name.clone(), config: config.clone() };
    let response = host.provider.validate_data_resource_config(request).await.unwrap().into_inner();
    assert_eq!(errors(&response.diagnostics), [""; 0]);
    let request = tfplugin6::read_data_source::Request { type_name, config, ..Default::default() };
    let response = host.provider.read_data_source(request).await.unwrap().into_inner();
    assert_eq!(json(response.state.as_ref()), json!({ "text": "hello", "echo": "HELLO" }));
    host.shut_down().await;
}

async fn functions_are_called() {
    let mut host = Host::start().await;
    let mut call = async |name: &str, arguments: &[serde_json::Value]| {
        let arguments = arguments.iter().map(|of| value(of).unwrap()).collect();
        let request = tfplugin6::call_function::Request { name: name.into(), arguments };
        host.provider.call_function(request).await.unwrap().into_inner()
    };
    let sum = call("add", &[json!("0.1"), json!(2)]).await;
    assert_eq!(json(sum.result.as_ref()), json!("2.1"));
    let words = call("join", &[json!("a"), json!("b"), json!("c")]).await;
    assert_eq!(json(words.result.as_ref()), json!("a b c"));
    let nothing = call("join", &[]).await;
    assert_eq!(json(nothing.result.as_ref()), json!(""));

    let refused = call("add", &[json!(1), json!(-1)]).await;
    assert!(refused.result.is_none());
    let error = refused.error.unwrap();
    assert_eq!((error.text.as_str(), error.function_argument), ("negative", Some(1)));
    let wrong = call("add", &[json!("hunter2"), json!(1)]).await.error.unwrap();
    assert_eq!(wrong.function_argument, Some(0));
    assert!(!wrong.text.contains("hunter2"), "{}", wrong.text);
    assert!(call("multiply", &[]).await.error.unwrap().text.contains("multiply"));
    host.shut_down().await;
}
