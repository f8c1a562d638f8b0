//! `tolerations` of `metal_server_claim`: taints that its server can have.

use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::{Attribute, AttributeType},
    value::{Value, ValueList},
};

use crate::backend::Toleration;

use crate::provider::{
    shared::schema::{attributes, optional, required},
    shared::values::{Text, bad, given, known, one_of},
};

/// A tolerated taint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct TolerationModel {
    key: Text,
    operator: Text,
    value: Text,
    effect: Text,
}

/// All tolerations of a claim.
pub(in crate::provider) type Tolerations = ValueList<Value<TolerationModel>>;

/// Builds the attribute's schema.
pub(in crate::provider) fn tolerations_attribute() -> Attribute {
    use AttributeType::String;
    optional(
        AttributeType::AttributeList(attributes([
            ("key", required(String, "The taint's key.")),
            (
                "operator",
                optional(
                    String,
                    "`Equal`: the taint has this `value`. `Exists`: the taint has any value. Default: as `Equal`.",
                ),
            ),
            ("value", optional(String, "The taint's value; not with `Exists`.")),
            (
                "effect",
                optional(
                    String,
                    "The taint's effect, `NoBind` or `Evict`; null: any. metal-operator reserves `Evict` and does nothing for it.",
                ),
            ),
        ])),
        "With `metal_operator` v0.6 and later: server taints that the claim tolerates.",
    )
}

/// Reports every known value that is invalid.
pub(in crate::provider) fn check(diags: &mut Diagnostics, all: &Tolerations) {
    let Value::Value(all) = all else { return };
    for (index, one) in (0i64..).zip(all) {
        let at = |name: &'static str| AttributePath::new("tolerations").index(index).attribute(name);
        let one = match one {
            Value::Value(one) => one,
            Value::Null => {
                let path = AttributePath::new("tolerations").index(index);
                bad(diags, path, "A toleration is null", "Set a taint's key, or remove the element.");
                continue;
            }
            Value::Unknown => continue,
        };
        if given(&one.key).is_some_and(str::is_empty) {
            let detail = format!("tolerations[{index}].key: set a taint's key, or remove the element.");
            bad(diags, at("key"), "A toleration without a key", detail);
        }
        for (name, value, words) in
            [("operator", &one.operator, ["Equal", "Exists"]), ("effect", &one.effect, ["NoBind", "Evict"])]
        {
            one_of(diags, value, at(name), &words, |text| words.contains(&text).then_some(()));
        }
        if given(&one.operator) == Some("Exists") && given(&one.value).is_some() {
            let detail = format!(
                "tolerations[{index}]: operator = \"Exists\" ignores the taint's value. Remove operator or value."
            );
            bad(diags, at("value"), "value is ignored with Exists", detail);
        }
    }
}

/// Returns true if at least one toleration is known.
pub(in crate::provider) fn are_wanted(all: &Tolerations) -> bool {
    matches!(all, Value::Value(all) if !all.is_empty())
}

/// Converts the configuration; returns `None` while a part is unknown.
pub(in crate::provider) fn meant(all: &Tolerations) -> Option<Vec<Toleration>> {
    let said = |text: &Text| match text {
        Value::Unknown => None,
        text => Some(given(text).filter(|text| !text.is_empty()).map(str::to_owned)),
    };
    let one = |one: &Value<TolerationModel>| {
        let Value::Value(one) = one else { return None };
        Some(Toleration {
            key: given(&one.key)?.to_owned(),
            operator: said(&one.operator)?,
            value: said(&one.value)?,
            effect: said(&one.effect)?,
        })
    };
    match all {
        Value::Null => Some(Vec::new()),
        Value::Unknown => None,
        Value::Value(all) => all.iter().map(one).collect(),
    }
}

/// Returns the current tolerations, in the notation of `before` if they are equivalent. API servers
/// fill in defaults.
pub(in crate::provider) fn seen(before: &Tolerations, now: &[Toleration]) -> Tolerations {
    let full = |all: Vec<Toleration>| -> Vec<Toleration> {
        let equal = || Some("Equal".to_owned());
        all.into_iter().map(|one| Toleration { operator: one.operator.or_else(equal), ..one }).collect()
    };
    if meant(before).is_some_and(|before| full(before) == full(now.to_vec())) {
        return before.clone();
    }
    let model = |one: &Toleration| {
        let Toleration { key, operator, value, effect } = one.clone();
        let (operator, value, effect) = (known(operator), known(value), known(effect));
        Value::Value(TolerationModel { key: Value::Value(key), operator, value, effect })
    };
    if now.is_empty() { Value::Null } else { Value::Value(now.iter().map(model).collect()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(key: &str, operator: Text, value: Text) -> Value<TolerationModel> {
        Value::Value(TolerationModel { key: Value::Value(key.to_owned()), operator, value, effect: Value::Null })
    }

    fn text(text: &str) -> Text {
        Value::Value(text.to_owned())
    }

    #[test]
    fn what_means_the_same_is_no_change() {
        let before = Value::Value(vec![model("rack", Value::Null, text("7"))]);
        let mut now = meant(&before).unwrap();
        now[0].operator = Some("Equal".to_owned());
        assert_eq!(seen(&before, &now), before);
        now[0].value = Some("8".to_owned());
        assert_eq!(seen(&before, &now), Value::Value(vec![model("rack", text("Equal"), text("8"))]));
        assert_eq!(seen(&Value::Value(Vec::new()), &[]), Value::Value(Vec::new()));
        assert_eq!(seen(&before, &[]), Value::Null);
    }

    #[test]
    fn what_is_not_known_yet_is_not_guessed() {
        assert_eq!(meant(&Value::Unknown), None);
        assert_eq!(meant(&Value::Value(vec![model("rack", Value::Unknown, Value::Null)])), None);
        assert_eq!(meant(&Value::Null), Some(Vec::new()));
    }
}
