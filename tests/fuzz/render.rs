//! Renders trees, with placeholders for oversized values: `{"$nest": [n, value]}` is a value in n
//! lists, `{"$repeat": [n, value]}` a list of n, `{"$text": [n, text]}` a text n times.
//! `$password` below a password key is the sentinel.
use serde_json::Value;

use crate::SENTINEL;

/// Output limit, below the target's own message limit, which is not under test.
const LARGEST: usize = 4 << 20;

enum Form<'a> {
    Nest(usize, &'a Value),
    Repeat(usize, &'a Value),
    Text(usize, &'a str),
    Plain,
}

fn form(value: &Value) -> Form<'_> {
    let Some((name, parts)) =
        value.as_object().filter(|fields| fields.len() == 1).and_then(|fields| fields.iter().next())
    else {
        return Form::Plain;
    };
    let Some(parts) = parts.as_array().filter(|parts| parts.len() == 2) else { return Form::Plain };
    let Some(times) = parts[0].as_u64().and_then(|times| usize::try_from(times).ok()) else { return Form::Plain };
    let times = times.min(1 << 20);
    match (name.as_str(), &parts[1]) {
        ("$nest", value) => Form::Nest(times, value),
        ("$repeat", value) => Form::Repeat(times, value),
        ("$text", Value::String(text)) => Form::Text(times, text),
        _ => Form::Plain,
    }
}

fn secret(key: &str, text: &str) -> bool {
    key == "password" && text == "$password"
}

pub fn json(value: &Value, key: &str, to: &mut Vec<u8>) {
    if to.len() > LARGEST {
        to.extend(b"null");
        return;
    }
    match (form(value), value) {
        (Form::Nest(times, value), _) => {
            to.extend(b"[".repeat(times));
            json(value, key, to);
            to.extend(b"]".repeat(times));
        }
        (Form::Repeat(times, value), _) => list(times, to, |to| json(value, key, to)),
        (Form::Text(times, text), _) => {
            to.extend(serde_json::to_vec(&text.repeat(times.min(LARGEST / text.len().max(1)))).unwrap());
        }
        (Form::Plain, Value::Array(items)) => {
            let mut items = items.iter();
            list(items.len(), to, |to| json(items.next().unwrap(), key, to));
        }
        (Form::Plain, Value::Object(fields)) => {
            to.push(b'{');
            for (number, (key, value)) in fields.iter().enumerate() {
                to.extend(if number == 0 { &b""[..] } else { b"," });
                to.extend(serde_json::to_vec(key).unwrap());
                to.push(b':');
                json(value, key, to);
            }
            to.push(b'}');
        }
        (Form::Plain, Value::String(text)) if secret(key, text) => to.extend(format!("{SENTINEL:?}").into_bytes()),
        (Form::Plain, other) => to.extend(serde_json::to_vec(other).unwrap()),
    }
}

fn list(times: usize, to: &mut Vec<u8>, mut item: impl FnMut(&mut Vec<u8>)) {
    to.push(b'[');
    for number in 0..times {
        if to.len() > LARGEST {
            break;
        }
        to.extend(if number == 0 { &b""[..] } else { b"," });
        item(to);
    }
    to.push(b']');
}

/// Renders as MessagePack, like hosts; `<unknown>` is an unknown value.
pub fn msgpack(value: &Value, key: &str, to: &mut Vec<u8>) {
    use rmp::encode::{
        write_array_len, write_bool, write_f64, write_map_len, write_nil, write_sint, write_str, write_uint,
    };
    if to.len() > LARGEST {
        to.push(0xc0);
        return;
    }
    match (form(value), value) {
        (Form::Nest(times, value), _) => {
            to.extend([0x91].repeat(times));
            msgpack(value, key, to);
        }
        (Form::Repeat(times, value), _) => {
            write_array_len(to, u32::try_from(times).unwrap()).unwrap();
            for _ in 0..times {
                msgpack(value, key, to);
            }
        }
        (Form::Text(times, text), _) => {
            write_str(to, &text.repeat(times.min(LARGEST / text.len().max(1)))).unwrap();
        }
        (Form::Plain, Value::Array(items)) => {
            write_array_len(to, u32::try_from(items.len()).unwrap()).unwrap();
            for item in items {
                msgpack(item, key, to);
            }
        }
        (Form::Plain, Value::Object(fields)) => {
            write_map_len(to, u32::try_from(fields.len()).unwrap()).unwrap();
            for (key, value) in fields {
                write_str(to, key).unwrap();
                msgpack(value, key, to);
            }
        }
        (Form::Plain, Value::String(text)) if text == "<unknown>" => to.extend([0xd4, 0, 0]),
        (Form::Plain, Value::String(text)) => write_str(to, if secret(key, text) { SENTINEL } else { text }).unwrap(),
        (Form::Plain, Value::Null) => write_nil(to).unwrap(),
        (Form::Plain, Value::Bool(flag)) => write_bool(to, *flag).unwrap(),
        (Form::Plain, Value::Number(number)) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => drop(write_uint(to, number).unwrap()),
            (None, Some(number)) => drop(write_sint(to, number).unwrap()),
            (None, None) => write_f64(to, number.as_f64().unwrap()).unwrap(),
        },
    }
}
