//! Rules for every page: front matter, imports, environment variables, and no passwords in
//! examples.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Returns all violations, as sentences that name the file.
pub fn check(root: &Path) -> Vec<String> {
    let mut found = front_matter(root);
    found.extend(imports(root));
    found.extend(environment(root));
    found.extend(passwords(root));
    found
}

fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
    found.sort();
}

/// Returns the files below a folder with this suffix: names relative to `root`, and texts.
pub fn below(root: &Path, folder: &str, ending: &str) -> Vec<(String, String)> {
    let mut paths = Vec::new();
    files(&root.join(folder), ending, &mut paths);
    let name = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/");
    paths.iter().map(|path| (name(path), fs::read_to_string(path).expect("UTF-8"))).collect()
}

/// Registries read a page's title, group and description from its front matter.
fn front_matter(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for (name, text) in below(root, "docs", "md") {
        // Not a registry page.
        if name == "docs/performance.md" {
            continue;
        }
        let front = text.strip_prefix("---\n").and_then(|rest| rest.split_once("\n---\n")).map(|(front, _)| front);
        let Some(front) = front else {
            found.push(format!("{name} lacks front matter"));
            continue;
        };
        let value = |key: &str| front.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        if value("page_title:").is_none_or(|title| title.trim_matches('"').is_empty()) {
            found.push(format!("{name} lacks page_title"));
        }
        if value("subcategory:").is_none() {
            found.push(format!("{name} lacks subcategory"));
        }
        let described = front.split_once("description: |-\n").is_some_and(|(_, text)| !text.trim().is_empty());
        if !described {
            found.push(format!("{name} lacks description"));
        }
    }
    found
}

fn imports(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for (name, text) in below(root, "docs/resources", "md") {
        let section = text.split("\n## Import\n").nth(1).unwrap_or_default();
        if !section.contains("import {") && !section.contains("cannot be imported") {
            found.push(format!("{name} lacks an import block or the statement that import is unsupported"));
        }
    }
    found
}

/// The provider's page lists every variable that the sources read.
fn environment(root: &Path) -> Vec<String> {
    let page = fs::read_to_string(root.join("docs/index.md")).unwrap_or_default();
    let mut names = BTreeSet::new();
    for (_, text) in below(root, "src", "rs") {
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let text = text.split("#[cfg(all(test").next().unwrap_or_default();
        for reader in ["get(\"", "variable(\"", "env::var(\"", "env::var_os(\"", "get(env, \""] {
            names.extend(text.split(reader).skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned));
        }
        let quoted = text.split('"').skip(1).step_by(1);
        names.extend(quoted.filter(|part| part.starts_with("METAL_") && !part.ends_with('_')).map(str::to_owned));
    }
    // Part of the protocol between host and provider.
    names.retain(|name| !name.starts_with("PLUGIN_"));
    let is_variable = |name: &&String| {
        name.len() > 1
            && name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.contains(|c: char| c == '_' || c.is_ascii_uppercase())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !name.contains(|c: char| c.is_ascii_lowercase()) | name.starts_with("TF_VAR_")
    };
    let words: BTreeSet<&str> = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let missing = names.iter().filter(is_variable).filter(|name| !words.contains(name.as_str()));
    missing.map(|name| format!("docs/index.md does not describe the variable {name}")).collect()
}

/// A saved plan contains the values of variables, unless they are ephemeral.
fn passwords(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for (name, text) in below(root, "examples", "tf") {
        for block in text.split("\nvariable \"").skip(1) {
            let variable = block.split('"').next().unwrap_or_default();
            let block = block.split("\n}").next().unwrap_or_default();
            if variable.contains("password") && !block.contains("ephemeral = true") {
                found.push(format!("{name}: the variable {variable} is not ephemeral: a saved plan would contain it"));
            }
        }
    }
    found
}

/// Writes a file and its parent folders into a test checkout.
pub fn write(root: &Path, file: &str, text: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn each_omission_is_found() {
    let root = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| write(root.path(), file, text);
    write("docs/index.md", "---\npage_title: \"metal\"\nsubcategory: \"\"\ndescription: |-\n  x\n---\nMETAL_KNOWN\n");
    write("docs/resources/a.md", "# a\n");
    write("docs/guides/b.md", "---\npage_title: \"\"\n---\n\n# b\n");
    write(
        "src/a.rs",
        "fn f() { env.get(\"METAL_KNOWN\"); env.get(\"CI_NUMBER\"); json.get(\"power\"); }\n#[cfg(test)] get(\"X_Y\")",
    );
    write("examples/x.tf", "x\nvariable \"bmc_password\" {\n  sensitive = true\n}\n");
    assert_eq!(
        check(root.path()),
        [
            "docs/guides/b.md lacks page_title",
            "docs/guides/b.md lacks subcategory",
            "docs/guides/b.md lacks description",
            "docs/resources/a.md lacks front matter",
            "docs/resources/a.md lacks an import block or the statement that import is unsupported",
            "docs/index.md does not describe the variable CI_NUMBER",
            "examples/x.tf: the variable bmc_password is not ephemeral: a saved plan would contain it",
        ]
    );
}
