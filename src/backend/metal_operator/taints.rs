//! Server taints, and claims that tolerate them (v0.6 and later).

use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

use crate::backend::Toleration;

pub(super) const FIELD: &str = "tolerations";

pub(super) fn tolerated(claim: &DynamicObject) -> Vec<Toleration> {
    let all = claim.data.pointer("/spec/tolerations").and_then(Value::as_array);
    let read = |one: &Value| {
        let part = |name: &str| one.get(name).and_then(Value::as_str).filter(|it| !it.is_empty()).map(str::to_owned);
        Toleration {
            key: part("key").unwrap_or_default(),
            operator: part("operator"),
            value: part("value"),
            effect: part("effect"),
        }
    };
    all.into_iter().flatten().map(read).collect()
}

/// Converts tolerations into a claim's format.
pub(super) fn written(all: &[Toleration]) -> Value {
    let write = |one: &Toleration| {
        let mut object = Map::from_iter([("key".to_owned(), json!(one.key))]);
        for (name, said) in [("operator", &one.operator), ("value", &one.value), ("effect", &one.effect)] {
            if let Some(said) = said {
                object.insert(name.to_owned(), json!(said));
            }
        }
        Value::Object(object)
    };
    all.iter().map(write).collect()
}

/// Returns a blocking taint's key: only the effect `NoBind` blocks a claim.
pub(super) fn keeps_away<'a>(server: &'a DynamicObject, tolerated: &[Toleration]) -> Option<&'a str> {
    let part = |taint: &'a Value, name: &str| taint.get(name).and_then(Value::as_str).unwrap_or_default();
    let taints = server.data.pointer("/spec/taints").and_then(Value::as_array);
    let taint = taints.into_iter().flatten().find(|taint| {
        let is_met = |one: &Toleration| {
            let exists = one.operator.as_deref() == Some("Exists");
            one.key == part(taint, "key")
                && (exists || one.value.as_deref().unwrap_or_default() == part(taint, "value"))
                && one.effect.as_deref().is_none_or(|effect| effect == part(taint, "effect"))
        };
        part(taint, "effect") == "NoBind" && !tolerated.iter().any(is_met)
    })?;
    Some(part(taint, "key"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(spec: &Value) -> DynamicObject {
        serde_json::from_value(json!({ "metadata": { "name": "one" }, "spec": spec })).unwrap()
    }

    fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
        let said = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Toleration { key: key.to_owned(), operator: said(operator), value: said(value), effect: said(effect) }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let all = vec![toleration("disk", "Exists", "", "NoBind"), toleration("rack", "", "7", "")];
        assert_eq!(tolerated(&object(&json!({ "tolerations": written(&all) }))), all);
        assert_eq!(written(&all[1..]), json!([{ "key": "rack", "value": "7" }]));
    }

    #[test]
    fn only_what_matches_in_key_value_and_effect_is_put_up_with() {
        let taints = json!([
            { "key": "rack", "value": "7", "effect": "NoBind" },
            { "key": "fan", "effect": "Evict" },
        ]);
        let server = object(&json!({ "taints": taints }));
        assert_eq!(keeps_away(&server, &[]), Some("rack"));
        for (one, away) in [
            (toleration("rack", "Exists", "", ""), false),
            (toleration("rack", "Equal", "7", "NoBind"), false),
            (toleration("rack", "", "7", ""), false),
            (toleration("rack", "", "8", ""), true),
            (toleration("rack", "", "", ""), true),
            (toleration("rack", "Exists", "", "Evict"), true),
            (toleration("fan", "Exists", "", ""), true),
        ] {
            assert_eq!(keeps_away(&server, std::slice::from_ref(&one)).is_some(), away, "{one:?}");
        }
        assert_eq!(keeps_away(&object(&json!({})), &[]), None);
    }
}
