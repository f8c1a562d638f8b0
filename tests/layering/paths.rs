//! Finds every path in a source file with the compiler's lexer. Comments and strings are skipped;
//! macro arguments and attributes are included.

use std::sync::LazyLock;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use regex::Regex;

/// A debug placeholder: `{name:?}`, `{:#?}`, `{0:>5?}`.
static DEBUGGED: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\{([^{}:]*):[^{}]*\?\}").unwrap());

/// A path with `super` and `self` resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Segments; a use tree yields one path per leaf, and a glob ends in `*`.
    pub segments: Vec<String>,
    /// Line in the file, from 1.
    pub line: usize,
}

/// Parts of a source file that the rules check.
#[derive(Debug, Default)]
pub struct Content {
    /// Paths of two or more segments outside test-only code.
    pub named: Vec<Named>,
    /// Invoked macros with their line.
    pub macros: Vec<(String, usize)>,
    /// Names of debug-formatted values in format strings, with the string's line.
    pub debugged: Vec<(String, usize)>,
    /// Number of lines in test-only items.
    pub test_lines: usize,
    /// Child modules declared for tests only.
    pub test_modules: Vec<String>,
}

/// Reads a source file; `module` is its module path, for `super`.
pub fn read(text: &str, module: &[String]) -> Result<Content, String> {
    let tokens: TokenStream = text.parse().map_err(|error| format!("{error}"))?;
    let mut content = Content::default();
    scan(&tokens.into_iter().collect::<Vec<_>>(), module, &mut content);
    Ok(content)
}

fn scan(tokens: &[TokenTree], module: &[String], content: &mut Content) {
    let mut at = 0;
    while at < tokens.len() {
        if let Some(after) = test_only(tokens, at) {
            let begin = tokens[at].span().start().line;
            at = skip_item(tokens, after, content);
            content.test_lines += tokens[at - 1].span().end().line + 1 - begin;
            continue;
        }
        match &tokens[at] {
            TokenTree::Ident(word) if word == "mod" => {
                let name = tokens.get(at + 1).map(ToString::to_string);
                let body = tokens.get(at + 2);
                if let (Some(name), Some(TokenTree::Group(group))) = (name, body) {
                    let inner = [module, &[name]].concat();
                    scan(&group.stream().into_iter().collect::<Vec<_>>(), &inner, content);
                    at += 3;
                } else {
                    at += 1;
                }
            }
            TokenTree::Ident(word) => {
                let line = word.span().start().line;
                let next = tokens.get(at + 1);
                if is_punct(next, '!') && matches!(tokens.get(at + 2), Some(TokenTree::Group(_))) {
                    content.macros.push((word.to_string(), line));
                }
                let mut found = Vec::new();
                at = path(tokens, at, Vec::new(), &mut found);
                let found = found.into_iter().filter(|named| named.segments.len() > 1);
                content.named.extend(found.map(|named| resolve(named, module)));
            }
            TokenTree::Group(group) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                // A doc comment.
                if !matches!(inner.first(), Some(TokenTree::Ident(word)) if word == "doc" && is_punct(inner.get(1), '='))
                {
                    scan(&inner, module, content);
                }
                at += 1;
            }
            TokenTree::Literal(literal) => {
                let line = literal.span().start().line;
                // Doubled braces are literal.
                let text = literal.to_string().replace("{{", "").replace("}}", "");
                let names = DEBUGGED.captures_iter(&text).map(|found| (found[1].to_owned(), line));
                content.debugged.extend(names);
                at += 1;
            }
            TokenTree::Punct(_) => at += 1,
        }
    }
}

/// Reads the path or use tree at `at`. Returns the position after it.
fn path(tokens: &[TokenTree], mut at: usize, mut segments: Vec<String>, found: &mut Vec<Named>) -> usize {
    let line = tokens[at].span().start().line;
    loop {
        match &tokens[at] {
            TokenTree::Ident(word) => {
                segments.push(word.to_string().trim_start_matches("r#").to_owned());
            }
            TokenTree::Punct(star) if star.as_char() == '*' => segments.push("*".to_owned()),
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let mut next = 0;
                while next < inner.len() {
                    next = match &inner[next] {
                        // `engine as e`: skip the new name.
                        TokenTree::Ident(word) if word == "as" => next + 2,
                        token if starts_path(token) => path(&inner, next, segments.clone(), found),
                        _ => next + 1,
                    };
                }
                return at + 1;
            }
            _ => break,
        }
        at += 1;
        let goes_on = is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':');
        match tokens.get(at + 2) {
            Some(next) if goes_on && (starts_path(next) || matches!(next, TokenTree::Group(_))) => {
                at += 2;
            }
            _ => break,
        }
    }
    // In a use tree, `self` refers to the parent module.
    if segments.len() > 1 && segments.last().is_some_and(|last| last == "self") {
        segments.pop();
    }
    found.push(Named { segments, line });
    at
}

fn starts_path(token: &TokenTree) -> bool {
    match token {
        TokenTree::Ident(_) => true,
        TokenTree::Punct(punct) => punct.as_char() == '*',
        _ => false,
    }
}

fn resolve(named: Named, module: &[String]) -> Named {
    let mut base = module.to_vec();
    let mut rest = named.segments.as_slice();
    let relative = rest[0] == "super" || rest[0] == "self";
    while let Some((first, others)) = rest.split_first() {
        match first.as_str() {
            "super" => drop(base.pop()),
            "self" => {}
            _ => break,
        }
        rest = others;
    }
    if !relative {
        return named;
    }
    let mut segments = vec!["crate".to_owned()];
    segments.extend(base);
    segments.extend_from_slice(rest);
    Named { segments, ..named }
}

/// Returns the position after `#[cfg(test)]` or `#[cfg(all(test, ...))]` at `at`, if present.
fn test_only(tokens: &[TokenTree], at: usize) -> Option<usize> {
    if !is_punct(tokens.get(at), '#') {
        return None;
    }
    let TokenTree::Group(attribute) = tokens.get(at + 1)? else {
        return None;
    };
    let text = attribute.stream().to_string().replace(' ', "");
    (text == "cfg(test)" || text.starts_with("cfg(all(test,")).then_some(at + 2)
}

/// Skips one item up to its closing brace or semicolon. Records declared modules.
fn skip_item(tokens: &[TokenTree], mut at: usize, content: &mut Content) -> usize {
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(word) if word == "mod" => {
                if let Some(name) = tokens.get(at + 1) {
                    content.test_modules.push(name.to_string());
                }
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                // `use a::{b, c};` has braces and ends with a semicolon.
                return at + 1 + usize::from(is_punct(tokens.get(at + 1), ';'));
            }
            TokenTree::Punct(end) if end.as_char() == ';' => return at + 1,
            _ => {}
        }
        at += 1;
    }
    at
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}
