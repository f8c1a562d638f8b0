//! The comparer finds each kind of difference, and reports nothing for a consistent checkout.

use std::{fs, path::Path};

use serde_json::json;
use tempfile::TempDir;

use crate::{
    compare, page,
    schema::{self, Type, Use},
};

const PAGE: &str = "# metal_box\n\
    - `ignored` outside of the lists\n\
    ## Arguments\n\
    - `server` (String, required) Which one.\n\
    - `priority` (Number, optional) Default `0`.\n\
    - `window` (Object, optional) When.\n\
    | `boot` | Block, optional | How. |\n\
    ```hcl\n\
    - `fenced` is no attribute\n\
    ```\n\
    ### `window`\n\
    - `schedule` (String, required, sensitive) Cron.\n\
    ### Nested `boot`\n\
    * `method` (String, required) How.\n\
    ## Attributes\n\
    - `id` (String, computed) `namespace/name`.\n\
    ## See also\n\
    - `metal_other`\n";

fn types() -> Vec<Type> {
    schema::read(&json!({
        "provider": { "block": {} },
        "resource_schemas": { "metal_box": { "block": {
            "attributes": {
                "id": { "type": "string", "computed": true, "description": "`namespace/name`." },
                "server": { "type": "string", "required": true, "description": "Which one." },
                "priority": { "type": "number", "optional": true, "computed": true, "description": "Default `0`." },
                "window": {
                    "optional": true, "description": "When.",
                    "nested_type": { "nesting_mode": "single", "attributes": { "schedule": {
                        "type": "string", "required": true, "sensitive": true, "description": "Cron." } } },
                },
            },
            "block_types": { "boot": { "nesting_mode": "list", "max_items": 1, "block": {
                "description": "How.",
                "attributes": { "method": { "type": "string", "required": true, "description": "How." } } } } },
        } } },
        "list_resource_schemas": { "metal_box": { "block": { "attributes": {
            "states": { "type": ["list", "string"], "optional": true } } } } },
        "functions": { "next": { "parameters": [{ "name": "schedule" }], "variadic_parameter": { "name": "more" } } },
    }))
}

/// Returns a complete checkout.
fn checkout() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (file, text) in [
        ("docs/index.md", "# metal\n"),
        ("docs/resources/box.md", PAGE),
        ("docs/functions/next.md", "## Arguments\n- `schedule` (String)\n- `more` (String)\n"),
        ("docs/list-resources/box.md", "## Arguments\n- `states` (List of strings, optional)\n"),
        ("examples/list-resources/metal_box/list-resource.tfquery.hcl", ""),
        ("tests/acceptance/lists.rs", ""),
        ("examples/provider/provider.tf", ""),
        ("examples/resources/metal_box/resource.tf", ""),
        ("examples/functions/next/function.tf", ""),
        ("tests/acceptance/metal_box.rs", ""),
        ("tests/acceptance/function_next.rs", ""),
    ] {
        write(root.path(), file, text);
    }
    root
}

fn write(root: &Path, file: &str, text: &str) {
    let file = root.join(file);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

#[track_caller]
fn finds(change: impl FnOnce(&Path), expected: &[&str]) {
    let root = checkout();
    change(root.path());
    assert_eq!(compare::compare(&types(), root.path()), expected);
}

#[track_caller]
fn finds_in_page(from: &str, to: &str, expected: &[&str]) {
    assert!(PAGE.contains(from));
    finds(|root| write(root, "docs/resources/box.md", &PAGE.replace(from, to)), expected);
}

#[test]
fn nothing_where_everything_fits() {
    finds(|_| {}, &[]);
}

#[test]
fn a_page_is_read() {
    let found = page::attributes(PAGE);
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(names, ["boot", "boot.method", "id", "priority", "server", "window", "window.schedule"]);
    let uses = ["server", "boot", "id"].map(|name| found[name].how);
    assert_eq!(uses, [Use::Required, Use::Optional, Use::Computed].map(Some));
}

#[test]
fn a_text_goes_on_in_indented_lines_and_is_compared_without_addresses() {
    let on = "Which\n  [one](../one.md).\n\n  Another paragraph";
    finds_in_page("Which one.", on, &[]);
    finds_in_page(
        "Which one.",
        "Which\n  - one.",
        &["docs/resources/box.md describes `server`: Which\n  but the schema: Which one."],
    );
}

#[test]
fn a_text_or_a_word_that_differs() {
    let differs = |name: &str, said: &str, is: &str| {
        format!("docs/resources/box.md describes `{name}`: {said}\n  but the schema: {is}")
    };
    finds_in_page("Which one.", "Which one. Or two.", &[&differs("server", "Which one. Or two.", "Which one.")]);
    finds_in_page("How. |", "Why. |", &[&differs("boot", "Why.", "How.")]);
    let flag = "docs/resources/box.md documents `window.schedule` as [], but the schema has [\"sensitive\"]";
    finds_in_page("required, sensitive", "required", &[flag]);
    let flag = "docs/resources/box.md documents `server` as [\"write-only\"], but the schema has []";
    finds_in_page("required) Which", "required, write-only) Which", &[flag]);
}

#[test]
fn an_attribute_without_a_description() {
    finds_in_page("- `server` (", "- server (", &["docs/resources/box.md does not describe `server`"]);
    finds_in_page("- `schedule`", "- schedule", &["docs/resources/box.md does not describe `window.schedule`"]);
    finds_in_page("* `method`", "* method", &["docs/resources/box.md does not describe `boot.method`"]);
}

#[test]
fn a_description_without_an_attribute() {
    let old = "docs/resources/box.md describes `old`, which the schema does not have";
    finds_in_page("## See also", "- `old` (String, optional)\n## See also", &[old]);
}

#[test]
fn a_wrong_word_about_an_attribute() {
    let wrong = "docs/resources/box.md documents `server` as Optional, but the schema has Required";
    finds_in_page("(String, required) Which", "(String, optional) Which", &[wrong]);
    let wrong = "docs/resources/box.md documents `id` as Optional, but the schema has Computed";
    finds_in_page("(String, computed)", "(String, optional)", &[wrong]);
}

#[test]
fn missing_files() {
    for file in [
        "docs/index.md",
        "docs/resources/box.md",
        "docs/functions/next.md",
        "examples/provider/provider.tf",
        "examples/resources/metal_box/resource.tf",
        "examples/functions/next/function.tf",
        "tests/acceptance/metal_box.rs",
        "docs/list-resources/box.md",
        "examples/list-resources/metal_box/list-resource.tfquery.hcl",
        "tests/acceptance/lists.rs",
        "tests/acceptance/function_next.rs",
    ] {
        let expected = format!("{file} is missing");
        finds(|root| fs::remove_file(root.join(file)).unwrap(), &[&expected]);
    }
}

#[test]
fn a_page_that_was_left_behind() {
    let expected = "docs/data-sources/gone.md describes a type that the provider does not offer";
    finds(|root| write(root, "docs/data-sources/gone.md", ""), &[expected]);
}

#[test]
fn parameters_of_functions_count() {
    finds(
        |root| {
            write(root, "docs/functions/next.md", "## Arguments\n- `schedule` (String)\n");
        },
        &["docs/functions/next.md does not describe `more`"],
    );
}
