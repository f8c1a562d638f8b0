//! Keeps secrets out of the journal.

use serde_json::Value;

/// The replacement for a secret.
const REDACTED: &str = "[redacted]";

/// Returns the body for the journal, with secrets replaced at any depth and in any case.
pub(crate) fn redact(body: &[u8]) -> Option<Value> {
    if body.is_empty() {
        return None;
    }
    let Ok(mut value) = serde_json::from_slice::<Value>(body) else {
        // A body that cannot be parsed cannot be redacted.
        return Some(Value::String(format!("{} bytes, not JSON", body.len())));
    };
    replace_secrets(&mut value);
    Some(value)
}

fn replace_secrets(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let name = name.to_ascii_lowercase();
                if ["password", "token", "secret", "passphrase"].iter().any(|word| name.contains(word))
                    && !member.is_null()
                    && !member.is_boolean()
                {
                    *member = Value::String(REDACTED.to_owned());
                } else {
                    replace_secrets(member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(replace_secrets),
        // Media and boot URIs can contain credentials before the host.
        Value::String(text) => {
            if let Some((scheme, rest)) = text.split_once("://") {
                let host = rest.split('/').next().unwrap_or_default();
                if let Some((_, _)) = host.rsplit_once('@') {
                    let after = &rest[host.rfind('@').map_or(0, |at| at + 1)..];
                    *text = format!("{scheme}://{REDACTED}@{after}");
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_do_not_enter_the_journal_at_any_depth() {
        let body = json!({
            "UserName": "admin",
            "Password": "hunter2",
            "Oem": [{"NewPassword": "hunter2", "PasswordChangeRequired": true}],
            "Image": "https://admin:hunter2@images.example/a.iso",
        });
        let shown = redact(body.to_string().as_bytes()).map(|value| value.to_string());
        let shown = shown.unwrap_or_default();
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("images.example/a.iso"), "{shown}");
        assert!(shown.contains("\"PasswordChangeRequired\":true"), "{shown}");
    }

    #[test]
    fn a_body_that_is_no_json_is_not_shown() {
        let shown = redact(b"{\"Password\":\"hunter2\"").map(|value| value.to_string());
        assert_eq!(shown.as_deref(), Some("\"21 bytes, not JSON\""));
    }
}
