//! `moved` blocks across types: a state is converted completely or not.
use serde_json::json;

use crate::{
    host::{Host, errors, json, tfplugin6},
    trials,
};

trials![a_state_of_another_type_is_taken_over, what_cannot_be_moved_is_an_error_and_no_state];

type Request = tfplugin6::move_resource_state::Request;

fn request(source: &str, target: &str, state: &str) -> Request {
    Request {
        source_provider_address: "example.com/test/other".into(),
        source_type_name: source.into(),
        source_state: Some(tfplugin6::RawState { json: state.as_bytes().to_vec().into(), ..Default::default() }),
        target_type_name: target.into(),
        ..Request::default()
    }
}

async fn a_state_of_another_type_is_taken_over() {
    let mut host = Host::start().await;
    let moved = request("fixture_box", "fixture_shapes", r#"{"label":"one","more":[1]}"#);
    let response = host.provider.move_resource_state(moved).await.unwrap().into_inner();
    assert_eq!(errors(&response.diagnostics), [""; 0]);
    let state = json(response.target_state.as_ref());
    assert_eq!((&state["name"], &state["id"]), (&json!("one"), &json!("id-one")));
    assert!(!response.target_private.is_empty());
    let identity = response.target_identity.unwrap().identity_data;
    assert_eq!(json(identity.as_ref()), json!({ "name": "one" }));
    host.shut_down().await;
}

async fn what_cannot_be_moved_is_an_error_and_no_state() {
    let mut host = Host::start().await;
    for (source, target, state, says) in [
        ("fixture_tree", "fixture_shapes", "{}", "Not a box: example.com/test/other"),
        ("fixture_box", "fixture_shapes", "{}", "Internal error in MoveResourceState"),
        ("fixture_box", "fixture_shapes", "{", "State cannot be read"),
        ("fixture_box", "fixture_wait", "{}", "A fixture_box cannot be moved here"),
        ("fixture_box", "fixture_none", "{}", "fixture_none"),
    ] {
        let moved = request(source, target, state);
        let response = host.provider.move_resource_state(moved).await.unwrap().into_inner();
        let said = errors(&response.diagnostics);
        assert!(said.len() == 1 && said[0].contains(says), "{says}: {said:?}");
        assert_eq!(json(response.target_state.as_ref()), json!(null));
        assert!(response.target_private.is_empty() && response.target_identity.is_none());
    }
    host.shut_down().await;
}
