//! The provider's metadata and schemas.
use crate::{
    host::{Host, errors, tfplugin6},
    trials,
};

trials![
    the_schema_is_complete_and_well_formed,
    metadata_lists_the_same_names,
    identities_are_told_only_where_there_are_some,
    a_type_that_is_not_there_is_an_error,
    every_shape_is_on_record,
];

use tfplugin6::get_provider_schema::{Request, Response};

async fn schema(host: &mut Host) -> Response {
    let response = host.provider.get_provider_schema(Request {}).await.unwrap().into_inner();
    assert_eq!(errors(&response.diagnostics), [""; 0]);
    response
}

fn check_attributes(attributes: &[tfplugin6::schema::Attribute]) {
    for attribute in attributes {
        let (plain, nested) = (&attribute.r#type, &attribute.nested_type);
        assert_ne!(plain.is_empty(), nested.is_none(), "{}: one of the two types", attribute.name);
        assert!(attribute.required || attribute.optional || attribute.computed, "{}", attribute.name);
        if let Some(nested) = nested {
            check_attributes(&nested.attributes);
        }
    }
}

fn check_block(block: &tfplugin6::schema::Block) {
    check_attributes(&block.attributes);
    for nested in &block.block_types {
        check_block(nested.block.as_ref().unwrap());
    }
}

async fn the_schema_is_complete_and_well_formed() {
    let mut host = Host::start().await;
    let response = schema(&mut host).await;
    let all = response.resource_schemas.values().chain(response.data_source_schemas.values());
    let all = all.chain(response.ephemeral_resource_schemas.values());
    let actions = response.action_schemas.values().filter_map(|of| of.schema.as_ref());
    for schema in all.chain(actions).chain(&response.provider) {
        check_block(schema.block.as_ref().unwrap());
    }
    assert!(response.provider_meta.is_none());
    let capabilities = response.server_capabilities.unwrap();
    assert!(capabilities.plan_destroy && capabilities.get_provider_schema_optional);
    assert!(capabilities.move_resource_state);
    let join = &response.functions["join"];
    assert!(join.variadic_parameter.is_some());
    assert_eq!(join.deprecation_message, "deprecated");
    host.shut_down().await;
}

async fn every_shape_is_on_record() {
    let mut host = Host::start().await;
    let response = schema(&mut host).await;
    let shapes = &response.resource_schemas["fixture_shapes"];
    assert_eq!(shapes.version, 2);
    let block = shapes.block.as_ref().unwrap();
    let attribute = |name| block.attributes.iter().find(|attribute| attribute.name == name).unwrap();
    assert!(attribute("secret").sensitive);
    assert!(attribute("token").write_only);
    assert_eq!(attribute("tags").r#type, r#"["set","string"]"#);
    let nesting = |name| attribute(name).nested_type.as_ref().unwrap().nesting;
    assert_eq!(["single", "list", "set", "map"].map(nesting), [1, 2, 3, 4]);
    let blocks: Vec<_> =
        block.block_types.iter().map(|of| (of.type_name.as_str(), of.nesting, of.min_items, of.max_items)).collect();
    assert_eq!(
        blocks,
        [("group", 5, 0, 0), ("named", 4, 0, 0), ("peer", 3, 0, 0), ("rule", 2, 0, 0), ("window", 2, 0, 1)]
    );
    host.shut_down().await;
}

async fn metadata_lists_the_same_names() {
    let mut host = Host::start().await;
    let request = tfplugin6::get_metadata::Request {};
    let metadata = host.provider.get_metadata(request).await.unwrap().into_inner();
    let response = schema(&mut host).await;
    let names: Vec<_> = metadata.resources.iter().map(|of| &of.type_name).collect();
    assert_eq!(names, response.resource_schemas.keys().collect::<Vec<_>>());
    let names: Vec<_> = metadata.data_sources.iter().map(|of| &of.type_name).collect();
    assert_eq!(names, response.data_source_schemas.keys().collect::<Vec<_>>());
    let names: Vec<_> = metadata.actions.iter().map(|of| &of.type_name).collect();
    assert_eq!(names, response.action_schemas.keys().collect::<Vec<_>>());
    let names: Vec<_> = metadata.ephemeral_resources.iter().map(|of| &of.type_name).collect();
    assert_eq!(names, response.ephemeral_resource_schemas.keys().collect::<Vec<_>>());
    let names: Vec<_> = metadata.functions.iter().map(|of| &of.name).collect();
    assert_eq!(names, response.functions.keys().collect::<Vec<_>>());
    assert_eq!(metadata.server_capabilities, response.server_capabilities);
    let request = tfplugin6::get_functions::Request {};
    let functions = host.provider.get_functions(request).await.unwrap().into_inner();
    assert_eq!(functions.functions, response.functions);
    host.shut_down().await;
}

async fn identities_are_told_only_where_there_are_some() {
    let mut host = Host::start().await;
    let request = tfplugin6::get_resource_identity_schemas::Request {};
    let response = host.provider.get_resource_identity_schemas(request).await.unwrap().into_inner();
    assert!(response.diagnostics.is_empty());
    assert_eq!(response.identity_schemas.keys().collect::<Vec<_>>(), ["fixture_shapes"]);
    let name = &response.identity_schemas["fixture_shapes"].identity_attributes[0];
    assert_eq!((name.name.as_str(), &name.r#type[..]), ("name", &br#""string""#[..]));
    assert!(name.required_for_import && !name.optional_for_import);

    let raw = tfplugin6::RawState { json: br#"{"name":"n"}"#.as_slice().into(), ..Default::default() };
    let mut request = tfplugin6::upgrade_resource_identity::Request {
        type_name: "fixture_shapes".into(),
        version: 1,
        raw_identity: Some(raw),
    };
    let response = host.provider.upgrade_resource_identity(request.clone()).await.unwrap().into_inner();
    assert_eq!(errors(&response.diagnostics), [""; 0]);
    let identity = response.upgraded_identity.unwrap().identity_data.unwrap();
    assert_eq!(identity.json, r#"{"name":"n"}"#);
    request.version = 0;
    let response = host.provider.upgrade_resource_identity(request).await.unwrap().into_inner();
    assert_eq!(errors(&response.diagnostics).len(), 1);
    host.shut_down().await;
}

async fn a_type_that_is_not_there_is_an_error() {
    let mut host = Host::start().await;
    let request = tfplugin6::read_resource::Request { type_name: "fixture_none".into(), ..Default::default() };
    let response = host.provider.read_resource(request).await.unwrap().into_inner();
    assert_eq!(errors(&response.diagnostics).len(), 1);
    assert!(errors(&response.diagnostics)[0].contains("fixture_none"));
    host.shut_down().await;
}
