//! Name patterns: `*` matches any text, `?` one character.

/// Returns true if the whole name matches the pattern.
#[must_use]
pub fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // The last `*`: its position, and how much text it matches.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, swallowed)) => {
                    star = Some((at, swallowed + 1));
                    p = at + 1;
                    n = swallowed + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_pattern_fits_the_whole_name() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("rack1-*", "rack1-node7", true),
            ("rack1-*", "rack10-node7", false),
            ("*-node7", "rack1-node7", true),
            ("*node*7", "rack1-node17", true),
            ("node?", "node7", true),
            ("node?", "node17", false),
            ("node7", "node7", true),
            ("node", "node7", false),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbXbX", false),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }
}
