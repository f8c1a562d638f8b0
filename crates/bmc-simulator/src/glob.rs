//! Patterns for paths: `*` matches any text including slashes; all other characters match
//! themselves.

/// Returns true if the pattern matches the whole text.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut last = None;
    for part in parts {
        if let Some(middle) = last.replace(part) {
            match rest.find(middle) {
                Some(at) => rest = &rest[at + str::len(middle)..],
                None => return false,
            }
        }
    }
    match last {
        // The last part must match at the end.
        Some(last) => rest.ends_with(last),
        None => rest.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_stands_for_any_text_and_the_rest_for_itself() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("/a", "/a", true),
            ("/a", "/a/b", false),
            ("/a*", "/a/b", true),
            ("*/Actions/*.Reset", "/s/1/Actions/ComputerSystem.Reset", true),
            ("*/Actions/*.Reset", "/s/1/Actions/ComputerSystem.ResetX", false),
            ("*aa*aa", "aaa", false),
            ("*aa*aa", "aaaa", true),
            ("a*b*c", "axbxbxc", true),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }
}
