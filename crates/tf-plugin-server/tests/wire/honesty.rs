//! No provider fault loses a resource or disguises a failure as success.
use serde_json::json;

use crate::{
    host::{Host, errors, json, tfplugin6, value, warnings},
    trials,
};

trials![
    a_create_that_fails_leaves_nothing_and_says_so,
    an_update_that_fails_leaves_the_prior_state,
    a_destroy_that_fails_leaves_the_prior_state,
    a_read_that_fails_leaves_the_known_state,
    only_the_provider_says_that_a_resource_is_gone,
    a_plan_or_a_validation_that_fails_is_an_error,
    the_provider_lives_on_after_a_panic,
];

const NAME: &str = "fixture_misbehave";
/// Faults without a result, each with the expected error.
const FAULTS: [(&str, &str); 3] = [
    ("panic", "Internal error in RPC of fixture_misbehave"),
    ("silence", "Internal error in RPC of fixture_misbehave"),
    ("error", "the fixture fails: on purpose"),
];

fn state(fault: &str, at: &str) -> Option<tfplugin6::DynamicValue> {
    value(&json!({ "fault": fault, "at": at }))
}

fn check(diagnostics: &[tfplugin6::Diagnostic], fault: &str, wanted: &str, rpc: &str) {
    let errors = errors(diagnostics);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].starts_with(&wanted.replace("RPC", rpc)), "{errors:?}");
    if fault == "panic" {
        assert!(errors[0].contains("misbehave.rs") && errors[0].contains("the fixture panics"), "{errors:?}");
    }
    // Diagnostics from before the fault are kept.
    assert_eq!(warnings(diagnostics).len(), 1);
}

async fn apply(
    host: &mut Host,
    prior: Option<tfplugin6::DynamicValue>,
    planned: Option<tfplugin6::DynamicValue>,
) -> tfplugin6::apply_resource_change::Response {
    let request = tfplugin6::apply_resource_change::Request {
        type_name: NAME.into(),
        prior_state: prior,
        planned_state: planned.clone(),
        config: planned,
        ..Default::default()
    };
    host.provider.apply_resource_change(request).await.unwrap().into_inner()
}

async fn a_create_that_fails_leaves_nothing_and_says_so() {
    let mut host = Host::start().await;
    for (fault, wanted) in FAULTS {
        let response = apply(&mut host, value(&()), state(fault, "create")).await;
        check(&response.diagnostics, fault, wanted, "ApplyResourceChange");
        assert_eq!(json(response.new_state.as_ref()), json!(null));
    }
    // A state next to an error is kept: the host marks it as tainted.
    let response = apply(&mut host, value(&()), state("both", "create")).await;
    assert_eq!(errors(&response.diagnostics).len(), 1);
    assert_eq!(json(response.new_state.as_ref())["fault"], "both");
    host.shut_down().await;
}

async fn an_update_that_fails_leaves_the_prior_state() {
    let mut host = Host::start().await;
    let prior = state("none", "nowhere");
    for (fault, wanted) in FAULTS {
        let response = apply(&mut host, prior.clone(), state(fault, "update")).await;
        check(&response.diagnostics, fault, wanted, "ApplyResourceChange");
        assert_eq!(response.new_state, prior);
    }
    host.shut_down().await;
}

async fn a_destroy_that_fails_leaves_the_prior_state() {
    let mut host = Host::start().await;
    for (fault, wanted) in FAULTS {
        let prior = state(fault, "destroy");
        let response = apply(&mut host, prior.clone(), value(&())).await;
        check(&response.diagnostics, fault, wanted, "ApplyResourceChange");
        assert_eq!(response.new_state, prior);
    }
    // A destroy with an error has not succeeded.
    let prior = state("both", "destroy");
    let response = apply(&mut host, prior.clone(), value(&())).await;
    assert_eq!(errors(&response.diagnostics).len(), 1);
    assert_eq!(response.new_state, prior);
    host.shut_down().await;
}

async fn read(host: &mut Host, current: Option<tfplugin6::DynamicValue>) -> tfplugin6::read_resource::Response {
    let request = tfplugin6::read_resource::Request {
        type_name: NAME.into(),
        current_state: current,
        private: vec![0xc0].into(),
        ..Default::default()
    };
    host.provider.read_resource(request).await.unwrap().into_inner()
}

async fn a_read_that_fails_leaves_the_known_state() {
    let mut host = Host::start().await;
    for (fault, wanted) in FAULTS {
        let current = state(fault, "read");
        let response = read(&mut host, current.clone()).await;
        check(&response.diagnostics, fault, wanted, "ReadResource");
        assert_eq!(response.new_state, current);
        assert_eq!(response.private, vec![0xc0]);
    }
    host.shut_down().await;
}

async fn only_the_provider_says_that_a_resource_is_gone() {
    let mut host = Host::start().await;
    let response = read(&mut host, state("gone", "nowhere")).await;
    assert_eq!(errors(&response.diagnostics), [""; 0]);
    assert_eq!(json(response.new_state.as_ref()), json!(null));
    // With an error, the absence is not certain.
    let response = read(&mut host, state("gone", "read")).await;
    assert_eq!(errors(&response.diagnostics).len(), 1);
    assert_eq!(json(response.new_state.as_ref())["fault"], "gone");
    host.shut_down().await;
}

async fn a_plan_or_a_validation_that_fails_is_an_error() {
    let mut host = Host::start().await;
    for (fault, wanted) in FAULTS {
        let request = tfplugin6::plan_resource_change::Request {
            type_name: NAME.into(),
            prior_state: value(&()),
            proposed_new_state: state(fault, "plan"),
            config: state(fault, "plan"),
            ..Default::default()
        };
        let response = host.provider.plan_resource_change(request).await.unwrap().into_inner();
        check(&response.diagnostics, fault, wanted, "PlanResourceChange");
        assert!(response.planned_state.is_none());
        let request = tfplugin6::validate_resource_config::Request {
            type_name: NAME.into(),
            config: state(fault, "validate"),
            ..Default::default()
        };
        let response = host.provider.validate_resource_config(request).await.unwrap().into_inner();
        check(&response.diagnostics, fault, wanted, "ValidateResourceConfig");
    }
    host.shut_down().await;
}

async fn the_provider_lives_on_after_a_panic() {
    let mut host = Host::start().await;
    let running: Vec<_> = (0..8)
        .map(|_| {
            let mut provider = host.provider.clone();
            let request = tfplugin6::read_resource::Request {
                type_name: NAME.into(),
                current_state: state("panic", "read"),
                ..Default::default()
            };
            tokio::spawn(async move { provider.read_resource(request).await.unwrap().into_inner() })
        })
        .collect();
    for response in running {
        check(&response.await.unwrap().diagnostics, "panic", FAULTS[0].1, "ReadResource");
    }
    let response = read(&mut host, state("none", "nowhere")).await;
    assert_eq!(errors(&response.diagnostics), [""; 0]);
    let (status, log) = host.shut_down().await;
    assert!(status.success());
    assert_eq!(log.matches(r#""@message":"panic""#).count(), 8, "{log}");
}
