//! Actions and ephemeral resources, which live for one host walk.
use serde_json::json;
use tf_provider::value::Value;

use crate::{
    fixture::walks::renewal,
    host::{Host, errors, json, tfplugin6, value, warnings},
    trials,
};

trials![
    an_action_tells_how_far_it_is_and_ends_once,
    an_action_that_fails_ends_with_an_error,
    an_action_that_is_stopped_tells_its_end_only,
    a_plan_of_an_action_sees_unknown_values,
    an_ephemeral_resource_is_opened_renewed_and_closed,
    what_is_not_opened_is_an_error,
];

use tfplugin6::invoke_action::event::Type;

fn told(what: &str) -> Option<tfplugin6::DynamicValue> {
    value(&json!({ "what": what }))
}

fn opening(what: &str) -> Option<tfplugin6::DynamicValue> {
    value(&json!({ "what": what, "key": null }))
}

async fn begin(host: &mut Host, what: &str) -> tonic::Streaming<tfplugin6::invoke_action::Event> {
    let request = tfplugin6::invoke_action::Request {
        action_type: "fixture_act".into(),
        config: told(what),
        ..Default::default()
    };
    host.provider.invoke_action(request).await.unwrap().into_inner()
}

/// Returns the progress lines and the last event's diagnostics. The end must be the last event and
/// occur once.
async fn to_the_end(
    mut events: tonic::Streaming<tfplugin6::invoke_action::Event>,
) -> (Vec<String>, Vec<tfplugin6::Diagnostic>) {
    let (mut lines, mut end) = (Vec::new(), None);
    while let Some(event) = events.message().await.unwrap() {
        assert!(end.is_none(), "something comes after the end");
        match event.r#type.unwrap() {
            Type::Progress(progress) => lines.push(progress.message),
            Type::Completed(completed) => end = Some(completed.diagnostics),
        }
    }
    (lines, end.expect("an end"))
}

async fn an_action_tells_how_far_it_is_and_ends_once() {
    let mut host = Host::start().await;
    let events = begin(&mut host, "work").await;
    let (lines, end) = to_the_end(events).await;
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("begun") && !lines[0].contains('\u{1b}'), "{lines:?}");
    assert!(end.is_empty(), "{end:?}");
    let request =
        tfplugin6::validate_action_config::Request { action_type: "fixture_act".into(), config: told("refuse") };
    let response = host.provider.validate_action_config(request).await.unwrap().into_inner();
    assert_eq!(errors(&response.diagnostics), ["refused: on request"]);
    host.shut_down().await;
}

async fn an_action_that_fails_ends_with_an_error() {
    let mut host = Host::start().await;
    for (what, says) in [
        ("refuse", "refused"),
        ("silence", "Internal error in InvokeAction of fixture_act"),
        ("panic", "Internal error in InvokeAction of fixture_act"),
    ] {
        let events = begin(&mut host, what).await;
        let (_, end) = to_the_end(events).await;
        assert_eq!(errors(&end).len(), 1, "{what}: {end:?}");
        assert!(errors(&end)[0].starts_with(says), "{what}: {end:?}");
    }
    let request = tfplugin6::invoke_action::Request { action_type: "fixture_none".into(), ..Default::default() };
    let events = host.provider.invoke_action(request).await.unwrap().into_inner();
    assert!(errors(&to_the_end(events).await.1)[0].contains("fixture_none"));
    host.shut_down().await;
}

/// Terraform 1.15.5 crashes if anything else follows its stop request.
async fn an_action_that_is_stopped_tells_its_end_only() {
    let mut host = Host::start().await;
    let mut events = begin(&mut host, "wait").await;
    let first = events.message().await.unwrap().unwrap();
    assert!(matches!(first.r#type, Some(Type::Progress(_))));
    host.provider.stop_provider(tfplugin6::stop_provider::Request {}).await.unwrap();
    let (lines, end) = to_the_end(events).await;
    assert_eq!((lines.len(), end.len()), (0, 0), "{lines:?}");
    host.shut_down().await;
}

async fn a_plan_of_an_action_sees_unknown_values() {
    let mut host = Host::start().await;
    let unknown = value(&std::collections::BTreeMap::from([("what", Value::<String>::Unknown)]));
    for (config, what) in [(told("work"), "work"), (unknown, "unknown")] {
        let request =
            tfplugin6::plan_action::Request { action_type: "fixture_act".into(), config, ..Default::default() };
        let response = host.provider.plan_action(request).await.unwrap().into_inner();
        assert_eq!(warnings(&response.diagnostics), [format!("planned: {what}")]);
        assert!(response.deferred.is_none());
    }
    host.shut_down().await;
}

async fn an_ephemeral_resource_is_opened_renewed_and_closed() {
    let mut host = Host::start().await;
    let request = |what: &str| tfplugin6::open_ephemeral_resource::Request {
        type_name: "fixture_open".into(),
        config: opening(what),
        ..Default::default()
    };
    let opened = host.provider.open_ephemeral_resource(request("door")).await.unwrap().into_inner();
    assert_eq!(json(opened.result.as_ref()), json!({ "what": "door", "key": "key of door" }));
    let at = opened.renew_at.unwrap();
    assert_eq!((at.seconds, at.nanos), (1_800_000_000, 250_000_000));
    let since = renewal().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(since.as_secs(), at.seconds.unsigned_abs());

    let request_of =
        |private| tfplugin6::renew_ephemeral_resource::Request { type_name: "fixture_open".into(), private };
    let renewed =
        host.provider.renew_ephemeral_resource(request_of(opened.private.clone())).await.unwrap().into_inner();
    assert_eq!((errors(&renewed.diagnostics).len(), renewed.private.as_ref()), (0, opened.private.as_ref()));
    assert!(renewed.renew_at.is_some());
    let lost = host.provider.renew_ephemeral_resource(request_of(Some("lost".into()))).await.unwrap().into_inner();
    assert_eq!((errors(&lost.diagnostics).len(), lost.renew_at), (1, None));

    let request_of =
        tfplugin6::close_ephemeral_resource::Request { type_name: "fixture_open".into(), private: opened.private };
    let closed = host.provider.close_ephemeral_resource(request_of).await.unwrap().into_inner();
    assert_eq!(warnings(&closed.diagnostics), ["closed: door"]);

    let short = host.provider.open_ephemeral_resource(request("short")).await.unwrap().into_inner();
    assert!(short.renew_at.is_none());
    let plan = host.provider.open_ephemeral_resource(request("plan")).await.unwrap().into_inner();
    assert_eq!(json(plan.result.as_ref())["key"], "<unknown>");
    host.shut_down().await;
}

async fn what_is_not_opened_is_an_error() {
    let mut host = Host::start().await;
    for (type_name, what) in
        [("fixture_open", "refuse"), ("fixture_open", "silence"), ("fixture_open", "panic"), ("fixture_none", "x")]
    {
        let request = tfplugin6::open_ephemeral_resource::Request {
            type_name: type_name.into(),
            config: opening(what),
            ..Default::default()
        };
        let response = host.provider.open_ephemeral_resource(request).await.unwrap().into_inner();
        assert_eq!(errors(&response.diagnostics).len(), 1, "{what}");
    }
    let request = tfplugin6::validate_ephemeral_resource_config::Request {
        type_name: "fixture_open".into(),
        config: opening("refuse"),
    };
    let response = host.provider.validate_ephemeral_resource_config(request).await.unwrap().into_inner();
    assert_eq!(errors(&response.diagnostics), ["refused: on request"]);
    host.shut_down().await;
}
