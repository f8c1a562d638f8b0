//! Generates the page of all messages from the sources: each summary with its detail, and each
//! cause with its meaning.
//!
//! `UPDATE_DOCS=1 cargo test --test docs` writes it.

use std::{collections::BTreeMap, fs, path::Path};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Path of the page.
pub const PAGE: &str = "docs/guides/messages.md";

const HEAD: &str = "---\npage_title: \"Messages\"\nsubcategory: \"Guides\"\ndescription: |-\n  Every message of the provider with its detail, for searching.\n---\n\n\
# Messages\n\n\
This page is generated from the sources. `…` stands for a name, a time or a number. A message has a summary, which says what\n\
failed, and a detail, which says why and what to do next. In an error the summary names the server; summaries of warnings are\n\
constant, because hosts fold equal ones. [When something is stuck](when-something-is-stuck.md) says what to do next.\n";

/// Returns the page for the current sources.
pub fn generate(root: &Path) -> String {
    let (mut messages, mut causes) = (BTreeMap::new(), BTreeMap::new());
    for room in ["provider", "settings", "engine", "backend", "store", "maintenance"] {
        let folder =
            if room == "maintenance" { "crates/maintenance-protocol/src".into() } else { format!("src/{room}") };
        read_folder(&root.join(folder), room, &mut messages, &mut causes);
    }
    let mut page = HEAD.to_owned();
    page.push_str("\n## Errors and warnings\n\n| summary | detail |\n|---|---|\n");
    rows(&mut page, &messages);
    page.push_str("\n## Causes\n\nDetails quote these.\n\n| cause | meaning |\n|---|---|\n");
    rows(&mut page, &causes);
    page
}

fn rows(page: &mut String, of: &BTreeMap<String, String>) {
    for (message, more) in of {
        page.push_str(&format!("| {} | {} |\n", cell(message), cell(more)));
    }
}

fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|").replace('<', "&lt;")
}

type Found = BTreeMap<String, String>;

fn read_folder(folder: &Path, room: &str, messages: &mut Found, causes: &mut Found) {
    for entry in fs::read_dir(folder).expect("the folder is readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            if !path.ends_with("tests") {
                read_folder(&path, room, messages, causes);
            }
            continue;
        }
        if path.extension().is_none_or(|kind| kind != "rs") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("sources are UTF-8");
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let Ok(tokens) = text.parse::<TokenStream>() else { panic!("{} is not Rust", path.display()) };
        let name = path.file_name().unwrap_or_default();
        if room != "provider" {
            variants(tokens.clone(), causes);
        }
        if ["provider", "backend"].contains(&room) {
            // Files that create diagnostics from a table of summaries and details.
            let tables = room == "provider" && (name == "diagnostics.rs" || name == "identity.rs");
            calls(tokens, tables, messages);
        }
    }
}

/// Collects calls that create a diagnostic: `diagnostic(summary, detail, …)`, `bad(diags, path,
/// summary, detail)` and `warn(summary, detail)`.
fn calls(tokens: TokenStream, tables: bool, found: &mut Found) {
    let mut before = String::new();
    for token in tokens {
        if let TokenTree::Group(group) = &token {
            if group.delimiter() == Delimiter::Parenthesis {
                let arguments = split(group.stream());
                let at = match before.as_str() {
                    "diagnostic" | "warn" => Some(0),
                    "bad" => Some(2),
                    "" if tables && arguments.len() > 1 => Some(0),
                    _ => None,
                };
                if let Some(summary) = at.and_then(|at| template(arguments.get(at)?)) {
                    let detail = at.and_then(|at| template(arguments.get(at + 1)?)).unwrap_or_default();
                    // A complete text, not a sentence fragment.
                    let starts = summary.starts_with(|c: char| c.is_alphanumeric() || c == '…');
                    if starts && summary.contains(char::is_alphabetic) {
                        let known = found.entry(summary).or_default();
                        if known.is_empty() {
                            *known = detail;
                        }
                    }
                }
            }
            calls(group.stream(), tables, found);
        }
        before = if let TokenTree::Ident(name) = &token { name.to_string() } else { String::new() };
    }
}

/// Collects messages of error enums, with the first paragraph of their documentation.
fn variants(tokens: TokenStream, found: &mut Found) {
    let mut documented = String::new();
    let mut is_first = true;
    for token in tokens {
        let TokenTree::Group(group) = &token else {
            if !matches!(&token, TokenTree::Punct(_)) {
                documented.clear();
                is_first = true;
            }
            continue;
        };
        let inside: Vec<TokenTree> = group.stream().into_iter().collect();
        match (group.delimiter(), inside.first().map(ToString::to_string).as_deref()) {
            (Delimiter::Bracket, Some("doc")) => {
                let line = inside.last().map(|text| unquoted(&text.to_string())).unwrap_or_default();
                is_first &= !line.trim().is_empty();
                if is_first {
                    if !documented.is_empty() {
                        documented.push(' ');
                    }
                    documented.push_str(line.trim());
                }
            }
            (Delimiter::Bracket, Some("error")) => {
                if let Some(TokenTree::Group(message)) = inside.get(1)
                    && let Some(text) = split(message.stream()).first().and_then(|first| template(first))
                    && text.chars().any(char::is_alphabetic)
                {
                    found.entry(text).or_insert_with(|| documented.clone());
                }
                documented.clear();
                is_first = true;
            }
            _ => {
                variants(group.stream(), found);
                documented.clear();
                is_first = true;
            }
        }
    }
}

/// Splits arguments at commas.
fn split(tokens: TokenStream) -> Vec<Vec<TokenTree>> {
    let mut arguments = vec![Vec::new()];
    for token in tokens {
        if matches!(&token, TokenTree::Punct(punct) if punct.as_char() == ',') {
            arguments.push(Vec::new());
        } else if let Some(last) = arguments.last_mut() {
            last.push(token);
        }
    }
    arguments.retain(|argument| !argument.is_empty());
    arguments
}

/// Returns a literal's or `format!` string's text, with `…` for inserted values.
fn template(argument: &[TokenTree]) -> Option<String> {
    let mut tokens =
        argument.iter().filter(|token| !matches!(token, TokenTree::Punct(punct) if punct.as_char() == '&'));
    match tokens.next()? {
        TokenTree::Literal(literal) => {
            let text = literal.to_string();
            text.starts_with('"').then(|| filled(&unquoted(&text)))
        }
        TokenTree::Ident(name) if name == "format" => argument.iter().find_map(|token| match token {
            TokenTree::Group(group) => template(split(group.stream()).first()?),
            _ => None,
        }),
        _ => None,
    }
}

/// Replaces a format string's placeholders.
fn filled(text: &str) -> String {
    let mut shown = String::new();
    let mut inside = false;
    for c in text.replace("{{", "\u{1}").replace("}}", "\u{2}").chars() {
        match c {
            '{' => {
                inside = true;
                shown.push('…');
            }
            '}' => inside = false,
            _ if inside => {}
            '\u{1}' => shown.push('{'),
            '\u{2}' => shown.push('}'),
            c => shown.push(c),
        }
    }
    shown
}

/// Returns a string literal's value.
fn unquoted(literal: &str) -> String {
    let text = literal.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(literal);
    let mut value = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('\\', Some('\n')) => while chars.next_if(|c| c.is_whitespace()).is_some() {},
            ('\\', Some('n')) => {
                chars.next();
                value.push('\n');
            }
            ('\\', Some(_)) => value.extend(chars.next()),
            (c, _) => value.push(c),
        }
    }
    value
}

#[test]
fn messages_are_found_in_every_form() {
    let source = r#"
        fn a(diags: &mut Diagnostics) {
            bad(diags, path, "Not a word", "Write \"one\" \
                of two.");
            diags.add_warning(diagnostic(format!("{name} is {}", 1), other(), at));
            let row = (format!("{server} is away"), "Check it.", path);
        }
    "#;
    let (mut found, mut tables) = (Found::new(), Found::new());
    calls(source.parse().unwrap(), false, &mut found);
    calls(source.parse().unwrap(), true, &mut tables);
    assert_eq!(found["Not a word"], "Write \"one\" of two.");
    assert_eq!((found.len(), found["… is …"].as_str()), (2, ""));
    assert_eq!(tables["… is away"], "Check it.");
    let mut causes = Found::new();
    let source = "enum E { /// No reply\n /// came.\n ///\n /// More.\n #[error(\"{address}: no answer\")] Away { address: String } }";
    variants(source.parse().unwrap(), &mut causes);
    assert_eq!(causes["…: no answer"], "No reply came.");
}
