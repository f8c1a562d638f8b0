//! Lists of existing resources: streaming, limits and errors.
use std::time::Duration;

use serde_json::json;

use crate::{
    host::{Host, Start, errors, json, tfplugin6, value, warnings},
    trials,
};

trials![
    a_list_has_a_schema_of_its_own,
    everything_found_comes_with_its_identity,
    no_more_is_read_than_the_host_wants,
    a_host_that_stops_reading_ends_the_list,
    what_went_wrong_comes_after_what_was_found,
    arguments_are_validated,
];

const SHAPES: &str = "fixture_shapes";

type Request = tfplugin6::list_resource::Request;
type Event = tfplugin6::list_resource::Event;

fn request(count: i64, fault: Option<&str>) -> Request {
    Request {
        type_name: SHAPES.into(),
        config: value(&json!({ "count": count, "fault": fault })),
        ..Request::default()
    }
}

async fn events(host: &mut Host, request: Request) -> Vec<Event> {
    let mut stream = host.provider.list_resource(request).await.unwrap().into_inner();
    let mut events = Vec::new();
    while let Some(event) = stream.message().await.unwrap() {
        events.push(event);
    }
    events
}

async fn a_list_has_a_schema_of_its_own() {
    let mut host = Host::start().await;
    let schemas = host.provider.get_provider_schema(tfplugin6::get_provider_schema::Request {}).await.unwrap();
    let schemas = schemas.into_inner().list_resource_schemas;
    let attributes = &schemas[SHAPES].block.as_ref().unwrap().attributes;
    assert_eq!(attributes.iter().map(|of| of.name.as_str()).collect::<Vec<_>>(), ["count", "fault"]);
    let metadata = host.provider.get_metadata(tfplugin6::get_metadata::Request {}).await.unwrap().into_inner();
    let names: Vec<_> = metadata.list_resources.iter().map(|of| &of.type_name).collect();
    assert_eq!(names, schemas.keys().collect::<Vec<_>>());
    host.shut_down().await;
}

async fn everything_found_comes_with_its_identity() {
    let mut host = Host::start().await;
    for include_resource_object in [false, true] {
        // More than the stream can buffer.
        let found = events(&mut host, Request { include_resource_object, ..request(100, None) }).await;
        assert_eq!(found.len(), 100);
        assert_eq!(found[7].display_name, "Shape 7");
        let identity = found[7].identity.as_ref().unwrap().identity_data.as_ref();
        assert_eq!(json(identity), json!({ "name": "shape-7" }));
        assert_eq!(found[7].resource_object.is_some(), include_resource_object);
        if include_resource_object {
            assert_eq!(json(found[7].resource_object.as_ref())["name"], "shape-7");
        }
    }
    host.shut_down().await;
}

async fn no_more_is_read_than_the_host_wants() {
    let start = Start { variables: [("TF_LOG", "INFO".to_owned())].into(), ..Start::default() };
    let mut host = Host::start_with(start).await;
    let found = events(&mut host, Request { limit: 3, ..request(100, None) }).await;
    assert_eq!(found.len(), 3);
    let (_, log) = host.shut_down().await;
    assert!(log.contains("\"read\":3") || log.contains("read=3"), "{log}");
}

async fn a_host_that_stops_reading_ends_the_list() {
    let start = Start { variables: [("TF_LOG", "INFO".to_owned())].into(), ..Start::default() };
    let mut host = Host::start_with(start).await;
    let mut stream = host.provider.list_resource(request(1_000_000_000, None)).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    drop(stream);
    // The process waits for running requests. A list that continued would be cut off without its
    // log line.
    let (status, log) = tokio::time::timeout(Duration::from_secs(20), host.shut_down()).await.unwrap();
    assert!(status.success(), "{status}");
    assert!(log.contains("the list has ended"), "{log}");
}

async fn what_went_wrong_comes_after_what_was_found() {
    let mut host = Host::start().await;
    for (fault, error, warning) in [
        ("error", Some("The rest is missing: no answer"), None),
        ("warning", None, Some("A shape was skipped: it is broken")),
        ("panic", Some("the shelf fell down"), None),
    ] {
        let found = events(&mut host, request(2, Some(fault))).await;
        assert_eq!(found.len(), 3, "{fault}");
        assert!(found[2].identity.is_none(), "{fault}");
        let of = |texts: Vec<String>| texts.join("\n");
        let (said, warned) = (of(errors(&found[2].diagnostic)), of(warnings(&found[2].diagnostic)));
        assert!(error.map_or(said.is_empty(), |error| said.contains(error)), "{fault}: {said}");
        assert!(warning.map_or(warned.is_empty(), |warning| warned.contains(warning)), "{fault}: {warned}");
    }
    let unknown = Request { type_name: "fixture_none".into(), ..request(1, None) };
    let found = events(&mut host, unknown).await;
    assert!(errors(&found[0].diagnostic)[0].contains("fixture_none"));
    // The provider still works.
    assert_eq!(events(&mut host, request(1, None)).await.len(), 1);
    host.shut_down().await;
}

async fn arguments_are_validated() {
    let mut host = Host::start().await;
    for (count, refused) in [(12, false), (13, true)] {
        let request = tfplugin6::validate_list_resource_config::Request {
            type_name: SHAPES.into(),
            config: value(&json!({ "count": count, "fault": null })),
            ..Default::default()
        };
        let response = host.provider.validate_list_resource_config(request).await.unwrap().into_inner();
        assert_eq!(!errors(&response.diagnostics).is_empty(), refused, "{count}");
    }
    host.shut_down().await;
}
