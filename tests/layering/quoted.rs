//! Messages must not contain Rust names: `{value:?}` shows a value by its names in the code.
//!
//! For a text, `{:?}` prints the text in quotes with escapes, which messages are allowed to use.
//! [`QUOTED`] lists each such text. A placeholder without a name is rejected.

use std::collections::BTreeSet;

use crate::check::{self, Source};

/// Modules whose messages reach people and scripts unchanged.
const ROOMS: [&str; 2] = ["cli/", "provider/"];

/// Quoted texts by file. Each is a `&str` or a `String` from a person, a configuration or a record
/// (names, owners, reasons, arguments).
pub const QUOTED: &[(&str, &[&str])] = &[
    ("cli/approvals.rs", &["reason", "you"]),
    ("cli/cluster_approvals.rs", &["owner"]),
    ("cli/commands.rs", &["asked", "existing", "owner", "server", "text"]),
    ("cli/release.rs", &["owner", "reason"]),
    ("cli/table.rs", &["reason"]),
    ("cli/why.rs", &["reason"]),
    ("provider/approval/lifecycle.rs", &["reason"]),
    ("provider/approval/model.rs", &["text"]),
    ("provider/approval/of_store.rs", &["owner"]),
    ("provider/boot_configuration/outcome.rs", &["asked", "existing"]),
    ("provider/claim/model.rs", &["id"]),
    ("provider/claim/of_cluster.rs", &["owner"]),
    ("provider/functions/arguments.rs", &["moment"]),
    ("provider/planning/preview.rs", &["text"]),
    ("provider/shared/boot.rs", &["name"]),
    ("provider/shared/diagnostics.rs", &["asked", "existing", "reason"]),
    ("provider/shared/list_filter.rs", &["state"]),
    ("provider/shared/values.rs", &["scheme", "text", "word"]),
    ("provider/shared/window.rs", &["name"]),
];

/// Returns the debug-formatted values that the table lacks, and the table's unused entries.
pub fn violations(quoted: &[(&str, &[&str])], sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut needed = BTreeSet::new();
    for (source, content) in check::without_tests(sources, &mut problems) {
        if !ROOMS.iter().any(|room| source.file.starts_with(room)) {
            continue;
        }
        let names = quoted.iter().find(|(file, _)| *file == source.file).map_or(&[][..], |(_, names)| *names);
        for (name, line) in content.debugged {
            if names.contains(&name.as_str()) {
                needed.insert((source.file.clone(), name));
            } else {
                problems.push(format!("{}:{line}: {{{name}:?}} shows a value by its Rust name", source.file));
            }
        }
    }
    for (file, names) in quoted {
        let idle = names.iter().filter(|name| !needed.contains(&((*file).to_owned(), (**name).to_owned())));
        problems.extend(idle.map(|name| format!("{file} does not show {{{name}:?}}: remove the exception")));
    }
    problems
}

#[test]
fn no_way_of_writing_a_placeholder_hides_it() {
    let found = |quoted: &[(&str, &[&str])], file: &str, text: &str| {
        violations(quoted, &[Source { file: file.to_owned(), text: text.to_owned() }])
    };
    for (text, name) in [
        ("fn f() -> String { format!(\"is {phase:?}\") }", "phase"),
        ("fn f() -> String { format!(\"is {phase:#?}\") }", "phase"),
        ("fn f() -> String { format!(\"is {phase:>12?}\") }", "phase"),
        ("fn f() -> String { format!(\"is {:?}\", self.phase) }", ""),
        ("fn f() -> String { format!(\"is {0:?} or {0}\", self.phase) }", "0"),
        ("fn f() -> String { format!(\n    \"a long \\\n     line with {phase:?}\"\n) }", "phase"),
        ("fn f() { let all = names.iter().map(|name| format!(r#\"\"{name:?}\"\"#)); }", "name"),
        ("#[derive(thiserror::Error)]\nenum E { #[error(\"is {phase:?}\")] A { phase: Phase } }", "phase"),
        ("fn f() { text.push_str(&format!(\"{{{phase:?}}}\")); }", "phase"),
    ] {
        for file in ["cli/show.rs", "provider/shared/prospect.rs"] {
            let found = found(&[], file, text);
            assert!(found.len() == 1 && found[0].contains(&format!("{{{name}:?}} shows")), "{text}: {found:#?}");
        }
    }
    for text in [
        "fn f() -> String { format!(\"is {phase}, {{phase:?}}, a ? b : c, {:>5}\", 1) }",
        "/// Shows {phase:?}.\nfn f() {} // {phase:?}",
        "#[cfg(test)]\nmod tests { fn f() { panic!(\"{phase:?}\"); } }",
    ] {
        assert_eq!(found(&[], "cli/show.rs", text), [] as [&str; 0], "{text}");
    }
    let shows = "fn f() -> String { format!(\"is {reason:?}\") }";
    assert_eq!(found(&[], "engine/drive.rs", shows), [] as [&str; 0], "other modules show its messages");
    let excepted: &[(&str, &[&str])] = &[("cli/show.rs", &["reason"])];
    assert_eq!(found(excepted, "cli/show.rs", shows), [] as [&str; 0]);
    assert_eq!(found(excepted, "cli/table.rs", shows).len(), 2, "another file's exception, and an unused one");
    assert!(found(excepted, "cli/show.rs", "")[0].contains("remove the exception"));
}
