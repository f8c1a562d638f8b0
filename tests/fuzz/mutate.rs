//! Mutates inputs as bytes, as text with words of the format, and as trees.
use mutatis::{Context, Session};
use serde_json::{Map, Value, json};

/// Texts that often break parsers.
const TEXTS: [&str; 24] = [
    "",
    " ",
    "0",
    "-1",
    "1e999",
    "9223372036854775807",
    "18446744073709551616",
    "NaN",
    "true",
    "null",
    "~",
    "\u{0}",
    "\r\n",
    "\u{1b}[2J",
    "\u{202e}",
    "é",
    "\u{1f469}\u{200d}\u{1f4bb}",
    "%00",
    "../../etc/passwd",
    "https://user:word@[::1]:99999/?#",
    "{",
    "*a",
    "<unknown>",
    "9999-12-31T23:59:59.999999999Z",
];

fn below(context: &mut Context, end: usize) -> usize {
    context.rng().gen_index(end.max(1)).unwrap_or(0)
}

fn chosen<'a>(context: &mut Context, words: &'a [&'a str]) -> &'a str {
    context.rng().choose(words).copied().unwrap_or_default()
}

/// Mutates text or bytes with the library's mutator, words of the format, and parts of this and
/// other inputs.
pub fn text(context: &mut Context, input: &mut Vec<u8>, others: &[Vec<u8>], words: &[&str]) {
    let at = below(context, input.len() + 1);
    let reach = 1 << below(context, 10);
    let end = (at + below(context, reach)).min(input.len());
    match below(context, 9) {
        0 => {
            let seed = context.rng().gen_u64() | 1;
            let _ = Session::new().seed(seed).mutate(input);
        }
        1 => drop(input.drain(at..end)),
        2 => {
            let part = input[at..end].to_vec();
            let to = below(context, input.len() + 1);
            input.splice(to..to, part);
        }
        3 | 4 => drop(input.splice(at..end, chosen(context, words).bytes())),
        5 => drop(input.splice(at..at, chosen(context, words).bytes())),
        6 => drop(input.splice(at..end, chosen(context, &TEXTS).bytes())),
        7 => {
            // Repeats a line or a part.
            let part = input[at..end.min(at + 200)].to_vec();
            let times = 1 << below(context, 12);
            if part.len() * times < 200_000 {
                input.splice(at..at, part.repeat(times));
            }
        }
        _ => {
            let other = context.rng().choose(others).cloned().unwrap_or_default();
            let from = below(context, other.len() + 1);
            let to = (from + below(context, 200)).min(other.len());
            input.splice(at..end, other[from..to].iter().copied());
        }
    }
    input.truncate(400_000);
}

/// Mutates a random node of a tree. `words` contains names and values of the format.
/// [`crate::render`] expands placeholders for oversized values.
pub fn tree(context: &mut Context, tree: &mut Value, words: &[&str]) {
    let nodes = count(tree);
    let at = below(context, nodes);
    let other = node(tree, &mut below(context, nodes)).cloned().unwrap_or_default();
    let Some(node) = node(tree, &mut at.clone()) else { return };
    change(context, node, other, words);
}

fn change(context: &mut Context, node: &mut Value, other: Value, words: &[&str]) {
    match below(context, 12) {
        0 => *node = scalar(context),
        1 => *node = json!(chosen(context, words)),
        2 => *node = other,
        3 => *node = json!([node.take()]),
        4 => *node = json!({ "$nest": [1 << below(context, 14), node.take()] }),
        5 => *node = json!({ "$repeat": [1 << below(context, 15), node.take()] }),
        6 => *node = json!({ "$text": [1 << below(context, 18), chosen(context, &TEXTS)] }),
        7 => match node {
            Value::Object(fields) => {
                let key = context.rng().choose(fields.keys()).cloned().unwrap_or_default();
                fields.remove(&key);
            }
            Value::Array(items) if !items.is_empty() => {
                items.remove(below(context, items.len()));
            }
            _ => *node = Value::Null,
        },
        8 => match node {
            Value::Object(fields) => {
                fields.insert(chosen(context, words).to_owned(), other);
            }
            Value::Array(items) => items.push(other),
            _ => *node = json!({ chosen(context, words): other }),
        },
        9 | 10 => match node {
            Value::String(of) => {
                let mut bytes = of.clone().into_bytes();
                text(context, &mut bytes, &[], words);
                *of = String::from_utf8_lossy(&bytes).into_owned();
            }
            Value::Number(_) => *node = scalar(context),
            other => *other = json!(chosen(context, words)),
        },
        _ => *node = json!(chosen(context, &TEXTS)),
    }
}

fn scalar(context: &mut Context) -> Value {
    match below(context, 10) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(0),
        3 => json!(-1),
        4 => json!(i64::MIN),
        5 => json!(u64::MAX),
        6 => json!(1.5e300),
        7 => json!([]),
        8 => json!({}),
        _ => json!(context.rng().gen_u64() >> below(context, 63)),
    }
}

fn count(tree: &Value) -> usize {
    match tree {
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(count).sum::<usize>(),
        _ => 1,
    }
}

/// Returns the node with this number, counted from the root.
fn node<'a>(tree: &'a mut Value, number: &mut usize) -> Option<&'a mut Value> {
    if *number == 0 {
        return Some(tree);
    }
    *number -= 1;
    let children: Vec<&mut Value> = match tree {
        Value::Array(items) => items.iter_mut().collect(),
        Value::Object(fields) => fields.iter_mut().map(|(_, value)| value).collect(),
        _ => Vec::new(),
    };
    for child in children {
        let inside = count(child);
        if *number < inside {
            return node(child, number);
        }
        *number -= inside;
    }
    None
}

/// Mutates a JSON object; other inputs stay unchanged. `change` selects the part.
pub fn within(input: &mut Vec<u8>, change: impl FnOnce(&mut Map<String, Value>)) {
    if let Ok(Value::Object(mut case)) = serde_json::from_slice::<Value>(input) {
        change(&mut case);
        let changed = serde_json::to_vec_pretty(&Value::Object(case)).unwrap();
        if changed.len() < 200_000 {
            *input = changed;
        }
    }
}
