//! Compares the paths in the sources with the rules.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::paths::{self, Content, Named};

/// Name of the library crate in the program.
const LIBRARY: &str = "terraform_provider_metal";

/// The rules; the constants in `layering.rs` describe each.
#[derive(Clone, Debug)]
pub struct Rules {
    pub may_know: &'static [(&'static str, &'static [&'static str])],
    pub data: (&'static str, &'static [&'static str]),
    pub crates: &'static [(&'static str, &'static [&'static str])],
    pub pure_room: &'static str,
    pub impure: &'static [&'static str],
    /// Ends of paths that only these modules are allowed to name, and why.
    pub only: &'static [(&'static [&'static str], &'static [&'static str], &'static str)],
    pub longest: usize,
    pub longer: &'static [(&'static str, usize, &'static str)],
}

/// A source file of a module.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path below the source folder, with `/`.
    pub file: String,
    pub text: String,
}

impl Source {
    /// Reads all `.rs` files below a folder, sorted.
    pub fn read_all(root: &Path) -> Vec<Self> {
        let mut found = Vec::new();
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            let entries = fs::read_dir(&folder).expect("the folder is readable");
            let paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
            for path in paths {
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let file = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
                    let text = fs::read_to_string(&path).expect("sources are UTF-8");
                    found.push(Self { file, text });
                }
            }
        }
        found.sort_by(|a, b| a.file.cmp(&b.file));
        found
    }

    /// `engine/drive.rs` is `["engine", "drive"]`, `engine/mod.rs` is `["engine"]`.
    pub fn module(&self) -> Vec<String> {
        let path = self.file.trim_end_matches(".rs");
        let mut module: Vec<String> = path.split('/').map(str::to_owned).collect();
        if module.last().is_some_and(|last| last == "mod" || last == "lib" || last == "main") {
            module.pop();
        }
        module
    }

    /// Returns the top-level module; files of the crate root belong to `main`.
    fn room(&self) -> String {
        self.module().first().cloned().unwrap_or_else(|| "main".to_owned())
    }
}

/// Returns a manifest's `[dependencies]`, spelled as in code.
pub fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if let Some((name, _)) = line.split_once('=').filter(|_| inside) {
            let name = name.trim().split('.').next().unwrap_or_default();
            if !name.starts_with('#') {
                found.insert(name.replace('-', "_"));
            }
        }
    }
    found
}

/// Returns the content of all sources without test modules. Unreadable sources are added to
/// `found`.
pub fn without_tests<'a>(sources: &'a [Source], found: &mut Vec<String>) -> Vec<(&'a Source, Content)> {
    let mut contents = Vec::new();
    let mut test_modules: Vec<Vec<String>> = Vec::new();
    for source in sources {
        let module = source.module();
        match paths::read(&source.text, &module) {
            Ok(content) => {
                let tests = content.test_modules.iter();
                test_modules.extend(tests.map(|name| [module.as_slice(), std::slice::from_ref(name)].concat()));
                contents.push((source, content));
            }
            Err(error) => found.push(format!("{}: cannot be read: {error}", source.file)),
        }
    }
    contents.retain(|(source, _)| {
        let module = source.module();
        !test_modules.iter().any(|tests| module.starts_with(tests))
    });
    contents
}

/// Returns all violations, as `file:line: what and why`.
pub fn violations(rules: &Rules, sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for (source, content) in without_tests(sources, &mut found) {
        let room = source.room();
        if !rules.may_know.iter().any(|(name, _)| *name == room) {
            found.push(format!("{}: module `{room}` is not in the table of tests/layering.rs", source.file));
        }
        for named in &content.named {
            let problems = [
                room_wall(rules, &room, named),
                data_wall(rules, &source.file, named),
                crate_wall(rules, &room, named),
                pure_wall(rules, &room, named),
                only_wall(rules, &room, named),
            ];
            let problems = problems.into_iter().flatten();
            found.extend(problems.map(|why| format!("{}:{}: {why}", source.file, named.line)));
        }
        for (name, line) in &content.macros {
            let prints = ["print", "println", "eprint", "eprintln", "dbg"].contains(&name.as_str());
            if prints && !["main", "program"].contains(&room.as_str()) {
                found.push(format!(
                    "{}:{line}: `{name}!`: stdout belongs to the handshake; log, or write to a given writer",
                    source.file
                ));
            }
        }
        found.extend(length(rules, source, content.test_lines));
    }
    found
}

fn room_wall(rules: &Rules, room: &str, named: &Named) -> Option<String> {
    let (first, rest) = named.segments.split_first()?;
    // Root files (lib.rs, main.rs) name modules without `crate::`.
    let rest = match first.as_str() {
        "crate" | LIBRARY => rest,
        name if room == "main" && rules.may_know.iter().any(|(room, _)| *room == name) => &named.segments,
        _ => return None,
    };
    let target = rest.first()?;
    if target == room {
        return None;
    }
    let (_, allowed) = rules.may_know.iter().find(|(name, _)| *name == room)?;
    let path = rest.join("::");
    let fits = |wall: &&str| path == **wall || path.starts_with(&format!("{wall}::"));
    (!allowed.iter().any(fits)).then(|| {
        let allowed = if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") };
        format!("`{room}` names `crate::{path}`; allowed: {allowed}")
    })
}

fn data_wall(rules: &Rules, file: &str, named: &Named) -> Option<String> {
    let (folder, allowed) = rules.data;
    let room = folder.split('/').next().filter(|_| file.starts_with(folder))?;
    let (first, rest) = named.segments.split_first()?;
    if first != "crate" || rest.first().is_none_or(|first| first != room) || rest.len() < 2 {
        return None;
    }
    let path = rest.join("::");
    let fits = |wall: &&str| path == **wall || path.starts_with(&format!("{wall}::"));
    (!allowed.iter().any(fits)).then(|| format!("data names the rule `crate::{path}`"))
}

fn crate_wall(rules: &Rules, room: &str, named: &Named) -> Option<String> {
    let (name, rooms) = rules.crates.iter().find(|(name, _)| named.segments[0] == *name)?;
    (!rooms.contains(&room)).then(|| format!("`{room}` names the crate `{name}`; allowed only in {}", rooms.join(", ")))
}

fn pure_wall(rules: &Rules, room: &str, named: &Named) -> Option<String> {
    if room != rules.pure_room {
        return None;
    }
    let path = named.segments.join("::");
    let impure = rules.impure.iter().find(|part| path == **part || path.starts_with(&format!("{part}::")));
    impure.map(|part| format!("`{room}` is pure and names `{part}`"))
}

fn only_wall(rules: &Rules, room: &str, named: &Named) -> Option<String> {
    let path = named.segments.join("::");
    let fits =
        |end: &&str| path == **end || path.ends_with(&format!("::{end}")) || path.starts_with(&format!("{end}::"));
    let (rooms, _, why) =
        rules.only.iter().find(|(rooms, ends, _)| !rooms.contains(&room) && ends.iter().any(&fits))?;
    Some(format!("`{path}` {why}; allowed only in `{}`", rooms[0]))
}

fn length(rules: &Rules, source: &Source, test_lines: usize) -> Option<String> {
    let lines = source.text.lines().count() - test_lines;
    let excepted = rules.longer.iter().find(|(file, _, _)| *file == source.file);
    let limit = excepted.map_or(rules.longest, |(_, limit, _)| *limit);
    (lines > limit).then(|| format!("{}: {lines} lines, more than {limit}: one idea per file", source.file))
}
