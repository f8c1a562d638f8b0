//! A null element is rejected with its path, for each list, set and map in the schemas of all
//! types and the provider.

use super::{Host, Start, Value, errors, json, wire, wire_value};

use wire::schema::{Attribute, object::NestingMode};

/// A value with a null element, and the element's path within the value.
type Cell = (Value, String);

/// Cells of a collection: a null element, and an element that contains one.
fn of_collection(is_map: bool, inside: Vec<Cell>) -> Vec<Cell> {
    let step = if is_map { "[\"k\"]" } else { "[0]" };
    let whole = |element: Value| if is_map { json!({ "k": element }) } else { json!([element]) };
    let within = inside.into_iter().map(|(element, place)| (whole(element), format!("{step}{place}")));
    std::iter::once((whole(Value::Null), step.to_owned())).chain(within).collect()
}

/// Returns an object with one value and all other attributes null.
fn with<'a>(names: impl Iterator<Item = &'a String>, name: &str, value: Value) -> Value {
    let mut object: serde_json::Map<_, _> = names.map(|name| (name.clone(), Value::Null)).collect();
    object.insert(name.to_owned(), value);
    Value::Object(object)
}

/// Cells of a wire type such as `["map", "string"]`.
fn of_type(of: &Value) -> Vec<Cell> {
    match (of[0].as_str(), &of[1]) {
        (Some("object"), fields) => {
            let fields = fields.as_object().unwrap();
            let cells = fields.iter().flat_map(|(name, of)| of_type(of).into_iter().map(move |cell| (name, cell)));
            cells.map(|(name, (value, place))| (with(fields.keys(), name, value), format!(".{name}{place}"))).collect()
        }
        (Some(kind @ ("list" | "set" | "map")), of) => of_collection(kind == "map", of_type(of)),
        _ => Vec::new(),
    }
}

/// Cells of an object, with all other attributes null.
fn of_object(of: &[Attribute]) -> Vec<Cell> {
    let configurable = of.iter().filter(|attribute| attribute.optional || attribute.required);
    let cells = configurable.flat_map(|attribute| {
        let cells = match &attribute.nested_type {
            None => of_type(&serde_json::from_slice(&attribute.r#type).unwrap()),
            Some(nested) => match nested.nesting() {
                NestingMode::Single => of_object(&nested.attributes),
                mode => of_collection(mode == NestingMode::Map, of_object(&nested.attributes)),
            },
        };
        cells.into_iter().map(move |cell| (attribute.name.as_str(), cell))
    });
    let names = || of.iter().map(|attribute| &attribute.name);
    cells.map(|(name, (value, place))| (with(names(), name, value), format!(".{name}{place}"))).collect()
}

/// Sends one request with a configuration and returns the errors.
macro_rules! asked {
    ($host:expr, $method:ident, $message:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        #[allow(clippy::needless_update, reason = "some messages have only these fields")]
        let request = wire::$message::Request { $($field: $value,)* ..Default::default() };
        errors(&$host.provider.$method(request).await.unwrap().into_inner().diagnostics)
    }};
}

async fn answers(host: &mut Host, what: &str, name: &str, config: &Value) -> Vec<Vec<String>> {
    let (kind, config) = (name.to_owned(), wire_value(config));
    match what {
        "provider" => vec![
            asked!(host, validate_provider_config, validate_provider_config { config: config.clone() }),
            asked!(host, configure_provider, configure_provider { config: config }),
        ],
        "resource" => vec![
            asked!(
                host,
                validate_resource_config,
                validate_resource_config { type_name: kind.clone(), config: config.clone() }
            ),
            asked!(
                host,
                plan_resource_change,
                plan_resource_change {
                    type_name: kind,
                    prior_state: wire_value(&Value::Null),
                    proposed_new_state: config.clone(),
                    config: config,
                }
            ),
        ],
        "data" => vec![
            asked!(
                host,
                validate_data_resource_config,
                validate_data_resource_config { type_name: kind.clone(), config: config.clone() }
            ),
            asked!(host, read_data_source, read_data_source { type_name: kind, config: config }),
        ],
        "ephemeral" => vec![
            asked!(
                host,
                validate_ephemeral_resource_config,
                validate_ephemeral_resource_config { type_name: kind.clone(), config: config.clone() }
            ),
            asked!(host, open_ephemeral_resource, open_ephemeral_resource { type_name: kind, config: config }),
        ],
        "action" => vec![
            asked!(
                host,
                validate_action_config,
                validate_action_config { action_type: kind.clone(), config: config.clone() }
            ),
            asked!(host, plan_action, plan_action { action_type: kind, config: config }),
        ],
        "list" => vec![asked!(
            host,
            validate_list_resource_config,
            validate_list_resource_config { type_name: kind, config: config }
        )],
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_element_that_is_null_is_refused_at_its_place() {
    let program = Some(env!("CARGO_BIN_EXE_terraform-provider-metal").into());
    let mut host = Host::start_with(Start { program, ..Start::default() }).await;
    let schema = host.provider.get_provider_schema(wire::get_provider_schema::Request::default()).await;
    let schema = schema.unwrap().into_inner();
    let mut types = vec![("provider", "metal".to_owned(), schema.provider.unwrap())];
    for (what, schemas) in [
        ("resource", schema.resource_schemas),
        ("data", schema.data_source_schemas),
        ("ephemeral", schema.ephemeral_resource_schemas),
        ("list", schema.list_resource_schemas),
        ("action", schema.action_schemas.into_iter().map(|(name, it)| (name, it.schema.unwrap())).collect()),
    ] {
        types.extend(schemas.into_iter().map(|(name, schema)| (what, name, schema)));
    }
    let (mut wrong, mut found) = (Vec::new(), std::collections::BTreeSet::new());
    for (what, name, schema) in types {
        let block = schema.block.unwrap();
        assert!(block.block_types.is_empty(), "{name} has blocks, which this matrix does not cover");
        for (config, place) in of_object(&block.attributes) {
            let place = place.trim_start_matches('.');
            let wanted = format!("An element is null: Attribute {place}: ");
            for (number, problems) in answers(&mut host, what, &name, &config).await.into_iter().enumerate() {
                if problems.len() != 1 || !problems[0].starts_with(&wanted) {
                    wrong.push(format!("{what} {name} {place}, request {number}: {problems:?}"));
                }
            }
            found.insert(format!("{what} {name} {place}"));
        }
    }
    let (status, log) = host.shut_down().await;
    assert!(status.success(), "{log}");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    for known in [
        "provider metal redfish.servers[\"k\"].labels[\"k\"]",
        "provider metal windows[\"k\"].exclude[0]",
        "provider metal cluster_api.machines[\"k\"]",
        "resource metal_server_maintenance allow_under[0]",
        "resource metal_server_maintenance window.exclude[0]",
        "resource metal_server_operation service.steps[0]",
        "action metal_server_operation triggers[\"k\"]",
        "data metal_maintenance_preview servers[0]",
    ] {
        assert!(found.contains(known), "{known} is not among {found:#?}");
    }
}
