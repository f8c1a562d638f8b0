//! Differences between the schema, the pages, the examples and the tests.

use std::{fs, path::Path};

use crate::{
    page,
    schema::{Kind, Type, Use},
};

/// Returns all differences, as sentences that name the file. `root` is the checkout.
pub fn compare(types: &[Type], root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for one in types {
        let page = page_of(one);
        match fs::read_to_string(root.join(&page)) {
            Ok(text) => compare_page(one, &page, &text, &mut found),
            Err(_) => found.push(format!("{page} is missing")),
        }
        for file in [Some(example_of(one)), test_of(one)].into_iter().flatten() {
            if !root.join(&file).is_file() {
                found.push(format!("{file} is missing"));
            }
        }
    }
    found.extend(leftovers(types, root));
    found
}

fn compare_page(one: &Type, page: &str, text: &str, found: &mut Vec<String>) {
    let described = page::attributes(text);
    for (name, is) in &one.attributes {
        let Some(described) = described.get(name) else {
            found.push(format!("{page} does not describe `{name}`"));
            continue;
        };
        if let Some(said) = described.how.filter(|said| !fits(*said, is.how)) {
            found.push(format!("{page} documents `{name}` as {said:?}, but the schema has {:?}", is.how));
        }
        if described.flags != is.flags {
            found
                .push(format!("{page} documents `{name}` as {:?}, but the schema has {:?}", described.flags, is.flags));
        }
        let text = page::one_line(&is.text);
        if described.text != text {
            found.push(format!("{page} describes `{name}`: {}\n  but the schema: {text}", described.text));
        }
    }
    let unknown = described.keys().filter(|name| !one.attributes.contains_key(*name));
    found.extend(unknown.map(|name| format!("{page} describes `{name}`, which the schema does not have")));
}

/// A page can call an attribute optional if the provider supplies a default.
fn fits(said: Use, is: Use) -> bool {
    said == is || (said == Use::Optional && is == Use::OptionalComputed)
}

/// Returns pages of deleted types.
fn leftovers(types: &[Type], root: &Path) -> Vec<String> {
    let expected: Vec<String> = types.iter().map(page_of).collect();
    let mut found = Vec::new();
    for folder in [
        "docs/resources",
        "docs/data-sources",
        "docs/functions",
        "docs/list-resources",
        "docs/actions",
        "docs/ephemeral-resources",
    ] {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten();
        for entry in entries {
            let name = entry.expect("readable").file_name();
            let page = format!("{folder}/{}", name.to_string_lossy());
            if !expected.contains(&page) {
                found.push(format!("{page} describes a type that the provider does not offer"));
            }
        }
    }
    found.sort();
    found
}

fn short(one: &Type) -> &str {
    one.name.strip_prefix("metal_").unwrap_or(&one.name)
}

fn page_of(one: &Type) -> String {
    match one.kind {
        Kind::Provider => "docs/index.md".to_owned(),
        Kind::Resource => format!("docs/resources/{}.md", short(one)),
        Kind::DataSource => format!("docs/data-sources/{}.md", short(one)),
        Kind::Function => format!("docs/functions/{}.md", one.name),
        Kind::ListResource => format!("docs/list-resources/{}.md", short(one)),
        Kind::Action => format!("docs/actions/{}.md", short(one)),
        Kind::Ephemeral => format!("docs/ephemeral-resources/{}.md", short(one)),
    }
}

fn example_of(one: &Type) -> String {
    let name = &one.name;
    match one.kind {
        Kind::Provider => "examples/provider/provider.tf".to_owned(),
        Kind::Resource => format!("examples/resources/{name}/resource.tf"),
        Kind::DataSource => format!("examples/data-sources/{name}/data-source.tf"),
        Kind::Function => format!("examples/functions/{name}/function.tf"),
        Kind::ListResource => format!("examples/list-resources/{name}/list-resource.tfquery.hcl"),
        Kind::Action => format!("examples/actions/{name}/action.tf"),
        Kind::Ephemeral => format!("examples/ephemeral-resources/{name}/ephemeral-resource.tf"),
    }
}

/// `tests/acceptance/metal_server.rs` tests everything called `metal_server`.
fn test_of(one: &Type) -> Option<String> {
    match one.kind {
        Kind::Provider => None,
        Kind::Function => Some(format!("tests/acceptance/function_{}.rs", one.name)),
        // A single file, because one lost state contains all of them.
        Kind::ListResource => Some("tests/acceptance/lists.rs".to_owned()),
        Kind::Action => Some(format!("tests/acceptance/action_{}.rs", short(one))),
        Kind::Ephemeral => Some(format!("tests/acceptance/ephemeral_{}.rs", short(one))),
        Kind::Resource | Kind::DataSource => Some(format!("tests/acceptance/{}.rs", one.name)),
    }
}
