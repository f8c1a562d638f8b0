//! Every relevant answer contains the identity, and it never changes.
use serde_json::json;
use tf_provider::value::Value;

use crate::{
    fixture::shapes::State,
    host::{Host, errors, json, tfplugin6, value},
    trials,
};

trials![
    a_plan_tells_the_identity_that_it_will_have,
    a_replacement_has_the_identity_of_the_new_one,
    a_state_without_an_identity_gets_one,
    an_identity_that_is_not_there_needs_no_upgrade,
];

const SHAPES: &str = "fixture_shapes";

fn named(name: &str) -> State {
    State { name: Value::Value(name.to_owned()), id: Value::Value(format!("id-{name}")), ..State::default() }
}

#[allow(clippy::unnecessary_wraps, reason = "fields of messages are options")]
fn identity(name: &str) -> Option<tfplugin6::ResourceIdentityData> {
    Some(tfplugin6::ResourceIdentityData { identity_data: value(&json!({ "name": name })) })
}

fn shown(of: Option<tfplugin6::ResourceIdentityData>) -> serde_json::Value {
    json(of.expect("an identity").identity_data.as_ref())
}

type Plan = tfplugin6::plan_resource_change::Request;

/// Returns a request to plan from a prior state to the next.
fn plan(prior: Option<&State>, next: &State) -> Plan {
    Plan {
        type_name: SHAPES.into(),
        prior_state: prior.map_or_else(|| value(&json!(null)), value),
        proposed_new_state: value(next),
        config: value(next),
        ..Default::default()
    }
}

async fn planned(host: &mut Host, request: Plan) -> Option<tfplugin6::ResourceIdentityData> {
    let response = host.provider.plan_resource_change(request).await.unwrap().into_inner();
    assert_eq!(errors(&response.diagnostics), [""; 0]);
    response.planned_identity
}

async fn a_plan_tells_the_identity_that_it_will_have() {
    let mut host = Host::start().await;
    let one = named("one");
    let create = plan(None, &State { id: Value::Null, ..one.clone() });
    assert_eq!(shown(planned(&mut host, create).await), json!({ "name": "one" }));
    let unknown = plan(None, &State { name: Value::Unknown, ..State::default() });
    assert_eq!(planned(&mut host, unknown).await, None, "an unknown name does not have an identity yet");
    // An identity from the host stays.
    let known = Plan { prior_identity: identity("known"), ..plan(Some(&one), &one) };
    assert_eq!(shown(planned(&mut host, known).await), json!({ "name": "known" }));
    let gone = Plan {
        prior_identity: identity("one"),
        proposed_new_state: value(&json!(null)),
        config: value(&json!(null)),
        ..plan(Some(&one), &one)
    };
    assert_eq!(shown(planned(&mut host, gone).await), json!({ "name": "one" }));
    host.shut_down().await;
}

async fn a_replacement_has_the_identity_of_the_new_one() {
    let mut host = Host::start().await;
    let (one, two) = (named("one"), named("two"));
    // Hosts plan a replacement twice: from the old resource, and then as a creation.
    for prior in [Some(&one), None] {
        let request = Plan { prior_identity: identity("one"), ..plan(prior, &two) };
        assert_eq!(shown(planned(&mut host, request).await), json!({ "name": "two" }));
    }
    host.shut_down().await;
}

async fn a_state_without_an_identity_gets_one() {
    let mut host = Host::start().await;
    let one = named("one");
    let read = |state, current| tfplugin6::read_resource::Request {
        type_name: SHAPES.into(),
        current_state: state,
        current_identity: current,
        ..Default::default()
    };
    let response = host.provider.read_resource(read(value(&one), None)).await.unwrap().into_inner();
    assert_eq!(shown(response.new_identity), json!({ "name": "one" }));
    assert_eq!(shown(planned(&mut host, plan(Some(&one), &one)).await), json!({ "name": "one" }));
    let null = Some(tfplugin6::ResourceIdentityData { identity_data: value(&json!(null)) });
    let request = Plan { prior_identity: null, ..plan(Some(&one), &one) };
    assert_eq!(shown(planned(&mut host, request).await), json!({ "name": "one" }));
    // A state without an identity keeps the existing identity.
    let nameless = value(&State::default());
    let response = host.provider.read_resource(read(nameless, identity("one"))).await.unwrap().into_inner();
    assert_eq!(shown(response.new_identity), json!({ "name": "one" }));
    host.shut_down().await;
}

async fn an_identity_that_is_not_there_needs_no_upgrade() {
    let mut host = Host::start().await;
    for raw_identity in [None, Some(tfplugin6::RawState::default())] {
        let request =
            tfplugin6::upgrade_resource_identity::Request { type_name: SHAPES.into(), version: 0, raw_identity };
        let response = host.provider.upgrade_resource_identity(request).await.unwrap().into_inner();
        assert_eq!(errors(&response.diagnostics), [""; 0]);
        assert_eq!(response.upgraded_identity, None);
    }
    host.shut_down().await;
}
