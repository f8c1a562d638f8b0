//! A BMC's own words about a refusal: the extended information of an error body (DSP0266, "Error
//! responses").

use serde_json::Value;

use crate::shown;

/// Message ids (without registry and version) after which the same request may be accepted later.
const LATER: [&str; 7] = [
    "UnableToModifyDuringSystemPOST",
    "InvalidOperationForSystemState",
    "ServiceTemporarilyUnavailable",
    "ServiceInUnknownState",
    "ResourceInUse",
    "ServiceShuttingDown",
    "SYS518",
];

/// Message ids of the standard registries that refuse a request before anything is done (DSP8011),
/// besides [`LATER`].
const REFUSED: [&str; 12] = [
    "ActionNotSupported",
    "ActionParameterNotSupported",
    "ActionParameterUnknown",
    "ActionParameterMissing",
    "InsufficientPrivilege",
    "PropertyNotWritable",
    "PropertyUnknown",
    "PropertyValueNotInList",
    "MalformedJSON",
    "UnrecognizedRequestBody",
    "NoValidSession",
    "AccessDenied",
];

/// Whether every message says that the request was refused before anything was done.
pub(super) fn says_not_applied(body: &Value) -> bool {
    let error = &body["error"];
    let mut ids = ids(error);
    if ids.is_empty() {
        ids.extend(error["code"].as_str());
    }
    let refuses = |id: &&str| {
        let key = id.rsplit('.').next().unwrap_or_default();
        LATER.contains(&key) || REFUSED.contains(&key)
    };
    // SYS518 of a Dell may come with a change that was applied.
    !ids.is_empty() && ids.iter().all(refuses) && !ids.iter().any(|id| id.ends_with("SYS518"))
}

/// An object's message ids.
fn ids(messages: &Value) -> Vec<&str> {
    let infos = messages["@Message.ExtendedInfo"].as_array().into_iter().flatten();
    infos.filter_map(|info| info["MessageId"].as_str()).collect()
}

/// Returns true if a body reports an error, and not success.
pub(super) fn is_error(body: &Value) -> bool {
    let error = &body["error"];
    let mut ids = ids(error);
    if ids.is_empty() {
        ids.extend(error["code"].as_str());
    }
    let succeeds =
        |id: &&str| ["Success", "NoOperation", "Created"].contains(&id.rsplit('.').next().unwrap_or_default());
    error.is_object() && (ids.is_empty() || !ids.iter().all(succeeds))
}

/// Returns true if a body holds messages and no resource.
pub(super) fn is_note(body: &Value) -> bool {
    let messages = |name: &String| name == "error" || name.contains("@Message.ExtendedInfo");
    body.as_object().is_some_and(|fields| !fields.is_empty() && fields.keys().all(messages))
}

/// The text of an error body, and whether it says that the request may be accepted later.
pub(super) fn read(body: &Value) -> (String, bool) {
    let error = &body["error"];
    let mut parts = Vec::new();
    let mut later = false;
    for info in error["@Message.ExtendedInfo"].as_array().into_iter().flatten() {
        let id = info["MessageId"].as_str().unwrap_or_default();
        later |= LATER.contains(&id.rsplit('.').next().unwrap_or_default());
        let mut text = String::new();
        if let Some(message) = info["Message"].as_str() {
            text.push_str(&format!("{message:?}"));
        }
        if !id.is_empty() {
            text.push_str(&format!(" ({id})"));
        }
        if let Some(resolution) = info["Resolution"].as_str().filter(|text| !text.is_empty() && *text != "None") {
            text.push_str(&format!(" {resolution}"));
        }
        if !text.is_empty() {
            parts.push(text.trim().to_owned());
        }
    }
    if parts.is_empty() {
        let code = error["code"].as_str().unwrap_or_default();
        later |= LATER.contains(&code.rsplit('.').next().unwrap_or_default());
        match error["message"].as_str() {
            Some(message) if !code.is_empty() => parts.push(format!("{message:?} ({code})")),
            Some(message) => parts.push(format!("{message:?}")),
            None => parts.push("no reason given".to_owned()),
        }
    }
    (shown::line(&parts.join("; ")).into_owned(), later)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_machines_own_words_are_kept() {
        let body = json!({"error": {"code": "Base.1.8.GeneralError", "message": "See ExtendedInfo", "@Message.ExtendedInfo": [
            {"MessageId": "iLO.2.14.UnableToModifyDuringSystemPOST", "Message": "Unable to modify during POST", "Resolution": "Wait for POST."}
        ]}});
        let (text, later) = read(&body);
        assert_eq!(text, "\"Unable to modify during POST\" (iLO.2.14.UnableToModifyDuringSystemPOST) Wait for POST.");
        assert!(later);
        let (text, later) = read(&json!({"error": {"code": "Base.1.0.PropertyNotWritable", "message": "no"}}));
        assert_eq!((text.as_str(), later), ("\"no\" (Base.1.0.PropertyNotWritable)", false));
        assert_eq!(read(&json!([])).0, "no reason given");
    }
}
