//! Deferral while the provider's configuration is unknown, for hosts that allow it and hosts that
//! do not.
use serde_json::json;

use crate::{
    host::{Host, Start, errors, json, tfplugin6, value, warnings},
    trials,
};

trials![everything_is_deferred_where_the_host_allows_it, a_host_that_does_not_allow_it_is_answered_as_ever];

async fn start() -> Host {
    let variables = [("FIXTURE_DEFERRED", "1".to_owned())].into();
    Host::start_with(Start { variables, ..Start::default() }).await
}

#[allow(clippy::unnecessary_wraps, reason = "fields of messages are options")]
fn allows(deferral_allowed: bool) -> Option<tfplugin6::ClientCapabilities> {
    Some(tfplugin6::ClientCapabilities { deferral_allowed, ..Default::default() })
}

fn reason(of: Option<tfplugin6::Deferred>) -> Option<tfplugin6::deferred::Reason> {
    of.map(|deferred| deferred.reason())
}

const DEFERRED: Option<tfplugin6::deferred::Reason> = Some(tfplugin6::deferred::Reason::ProviderConfigUnknown);

fn state() -> Option<tfplugin6::DynamicValue> {
    value(&json!({ "fault": "error", "at": "read" }))
}

fn read(host: bool) -> tfplugin6::read_resource::Request {
    tfplugin6::read_resource::Request {
        type_name: "fixture_misbehave".into(),
        current_state: state(),
        private: "private".into(),
        client_capabilities: allows(host),
        ..Default::default()
    }
}

fn data(host: bool) -> tfplugin6::read_data_source::Request {
    tfplugin6::read_data_source::Request {
        type_name: "fixture_echo".into(),
        config: value(&json!({ "text": "a", "echo": null })),
        client_capabilities: allows(host),
        ..Default::default()
    }
}

fn open(host: bool) -> tfplugin6::open_ephemeral_resource::Request {
    tfplugin6::open_ephemeral_resource::Request {
        type_name: "fixture_open".into(),
        config: value(&json!({ "what": "door", "key": null })),
        client_capabilities: allows(host),
    }
}

fn import(host: bool) -> tfplugin6::import_resource_state::Request {
    tfplugin6::import_resource_state::Request {
        type_name: "fixture_shapes".into(),
        id: "n".into(),
        client_capabilities: allows(host),
        ..Default::default()
    }
}

fn plan(host: bool) -> tfplugin6::plan_resource_change::Request {
    let config = value(&json!({ "fault": "none", "at": "elsewhere" }));
    tfplugin6::plan_resource_change::Request {
        type_name: "fixture_misbehave".into(),
        prior_state: value(&()),
        proposed_new_state: config.clone(),
        config,
        client_capabilities: allows(host),
        ..Default::default()
    }
}

fn act(host: bool) -> tfplugin6::plan_action::Request {
    tfplugin6::plan_action::Request {
        action_type: "fixture_act".into(),
        config: value(&json!({ "what": "work" })),
        client_capabilities: allows(host),
    }
}

async fn everything_is_deferred_where_the_host_allows_it() {
    let mut host = start().await;
    let response = host.provider.read_resource(read(true)).await.unwrap().into_inner();
    assert_eq!((reason(response.deferred), errors(&response.diagnostics).len()), (DEFERRED, 0));
    assert_eq!((response.new_state, &*response.private), (state(), &b"private"[..]), "the known state is kept");

    let response = host.provider.plan_resource_change(plan(true)).await.unwrap().into_inner();
    assert_eq!((reason(response.deferred), errors(&response.diagnostics).len()), (DEFERRED, 0));
    assert_eq!(json(response.planned_state.as_ref())["fault"], "none");

    let response = host.provider.import_resource_state(import(true)).await.unwrap().into_inner();
    assert_eq!((reason(response.deferred), errors(&response.diagnostics).len()), (DEFERRED, 0));
    assert!(response.imported_resources.is_empty());

    let response = host.provider.read_data_source(data(true)).await.unwrap().into_inner();
    assert_eq!((reason(response.deferred), errors(&response.diagnostics).len()), (DEFERRED, 0));
    assert_eq!(json(response.state.as_ref()), json!({ "text": "a", "echo": "<unknown>" }));

    let response = host.provider.open_ephemeral_resource(open(true)).await.unwrap().into_inner();
    assert_eq!((reason(response.deferred), response.private), (DEFERRED, None), "it was opened");
    assert_eq!(json(response.result.as_ref()), json!({ "what": "door", "key": "<unknown>" }));

    let response = host.provider.plan_action(act(true)).await.unwrap().into_inner();
    assert_eq!(reason(response.deferred), DEFERRED);
    // The visible output is the same.
    assert_eq!(warnings(&response.diagnostics), ["planned: work"]);
    host.shut_down().await;
}

async fn a_host_that_does_not_allow_it_is_answered_as_ever() {
    // Includes a configured provider with a host that allows deferral.
    for (mut host, allowed) in [(start().await, false), (Host::start().await, true)] {
        let response = host.provider.read_resource(read(allowed)).await.unwrap().into_inner();
        assert_eq!((response.deferred, errors(&response.diagnostics).len()), (None, 1), "the fixture's own error");
        let response = host.provider.plan_resource_change(plan(allowed)).await.unwrap().into_inner();
        assert_eq!((response.deferred, errors(&response.diagnostics).len()), (None, 0));
        let response = host.provider.import_resource_state(import(allowed)).await.unwrap().into_inner();
        assert!(response.deferred.is_none());
        let response = host.provider.read_data_source(data(allowed)).await.unwrap().into_inner();
        assert_eq!((response.deferred, &json(response.state.as_ref())["echo"]), (None, &json!("A")));
        let response = host.provider.open_ephemeral_resource(open(allowed)).await.unwrap().into_inner();
        assert_eq!((response.deferred, &*response.private.unwrap()), (None, &b"door"[..]));
        let response = host.provider.plan_action(act(allowed)).await.unwrap().into_inner();
        assert!(response.deferred.is_none());
        host.shut_down().await;
    }
}
