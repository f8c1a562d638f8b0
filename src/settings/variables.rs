//! Environment variables that apply if the provider block does not set a value. The backends' and
//! gates' own variables are listed with their attributes (`backend/block.rs`).

/// The coordination store.
pub const COORDINATION_URL: &str = "METAL_COORDINATION_URL";

/// The maintenances' owner.
pub const OWNER: &str = "METAL_OWNER";

/// A kubeconfig file for every cluster without its own.
pub const KUBECONFIG: &str = "METAL_KUBECONFIG";

#[cfg(test)]
mod tests {
    use crate::files::PathTrust;
    use std::{
        collections::{BTreeMap, BTreeSet},
        fs,
        path::Path,
    };

    use crate::backend::{
        cluster_api,
        gate_plug::GATES,
        plug::{Setting, plugins},
    };

    use super::*;

    const COMMON: [&str; 5] = [COORDINATION_URL, OWNER, KUBECONFIG, cluster_api::NAMESPACE, PathTrust::VARIABLE];

    /// An inventory file in the documentation uses this variable in its own setting.
    const EXAMPLE: &str = "METAL_NODE8_PASSWORD";

    /// Collects the variables named in a file or a folder, with the file.
    fn named(at: &Path, found: &mut BTreeMap<String, String>) {
        if at.is_dir() {
            for entry in fs::read_dir(at).unwrap() {
                named(&entry.unwrap().path(), found);
            }
            return;
        }
        let text = fs::read_to_string(at).unwrap();
        for (start, _) in text.match_indices("METAL_") {
            let is_part = |it: char| it.is_ascii_uppercase() || it.is_ascii_digit() || it == '_';
            if text[..start].ends_with(|it: char| is_part(it) || it == '$') {
                continue;
            }
            let name: String = text[start..].chars().take_while(|it| is_part(*it)).collect();
            if !name.ends_with('_') {
                found.insert(name, at.display().to_string());
            }
        }
    }

    #[test]
    fn help_and_documentation_name_only_variables_that_are_read_and_all_of_them() {
        let of_gates = GATES.iter().flat_map(|gate| gate.settings());
        let of_plugs = plugins().iter().flat_map(|plugin| plugin.settings()).chain(of_gates);
        let of_plugs = of_plugs.map(Setting::variable).filter(|it| it.starts_with("METAL_"));
        let read: BTreeSet<&str> = of_plugs.chain(COMMON).collect();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (mut help, mut reference) = (BTreeMap::new(), BTreeMap::new());
        for place in ["src/cli/mod.rs", "src/provider/config"] {
            named(&root.join(place), &mut help);
        }
        named(&root.join("docs/index.md"), &mut reference);
        for (name, place) in help.iter().chain(&reference) {
            assert!(name == EXAMPLE || read.contains(name.as_str()), "{place} names {name}, which nothing reads");
        }
        for name in read {
            assert!(reference.contains_key(name), "docs/index.md does not name {name}");
        }
    }
}
