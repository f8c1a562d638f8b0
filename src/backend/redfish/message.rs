//! A BMC's messages about a refusal: the extended information in an error body (DSP0266, "Error
//! responses").

use serde_json::Value;

use crate::{maintenance::refusal::asks_to_wait, shown};

/// Message ids (without registry and version) after which the same request can be accepted later,
/// besides those of a machine that is not ready ([`asks_to_wait`]).
const LATER: [&str; 3] = ["UnableToModifyDuringSystemPOST", "InvalidOperationForSystemState", "ResourceInUse"];

/// Message ids of a machine that is not ready and has changed nothing. Others, such as Dell's
/// SYS518 and RAC0508, also occur after a change that was applied.
const NOT_READY: [&str; 3] = ["ServiceTemporarilyUnavailable", "ServiceInUnknownState", "ServiceShuttingDown"];

/// Message ids of the standard registries that refuse a request before anything is done (DSP8011),
/// besides [`LATER`] and [`NOT_READY`].
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

/// Returns true if every message shows that the request was rejected before it had any effect.
pub(super) fn says_not_applied(body: &Value) -> bool {
    let error = &body["error"];
    let mut ids = ids(error);
    if ids.is_empty() {
        ids.extend(error["code"].as_str());
    }
    let refuses = |id: &&str| {
        let key = id.rsplit('.').next().unwrap_or_default();
        LATER.contains(&key) || NOT_READY.contains(&key) || REFUSED.contains(&key)
    };
    !ids.is_empty() && ids.iter().all(refuses)
}

/// Returns a message's id. iLO 4 spells the property `MessageID`.
fn id(info: &Value) -> Option<&str> {
    info["MessageId"].as_str().or_else(|| info["MessageID"].as_str())
}

/// An object's message ids.
fn ids(messages: &Value) -> Vec<&str> {
    let infos = messages["@Message.ExtendedInfo"].as_array().into_iter().flatten();
    infos.filter_map(id).collect()
}

/// Returns true if a body reports an error instead of success.
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

/// Returns true if a body contains only messages.
pub(super) fn is_note(body: &Value) -> bool {
    let messages = |name: &String| name == "error" || name.contains("@Message.ExtendedInfo");
    body.as_object().is_some_and(|fields| !fields.is_empty() && fields.keys().all(messages))
}

/// Returns an error body's text, and true if the request can succeed later.
pub(super) fn read(body: &Value) -> (String, bool) {
    let error = &body["error"];
    let mut parts = Vec::new();
    let mut later = false;
    for info in error["@Message.ExtendedInfo"].as_array().into_iter().flatten() {
        let id = id(info).unwrap_or_default();
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
    if parts.iter().all(|part| part.starts_with('(')) {
        let code = error["code"].as_str().unwrap_or_default();
        later |= LATER.contains(&code.rsplit('.').next().unwrap_or_default());
        match error["message"].as_str() {
            Some(message) if !code.is_empty() => parts.push(format!("{message:?} ({code})")),
            Some(message) => parts.push(format!("{message:?}")),
            None if parts.is_empty() => parts.push("no reason given".to_owned()),
            None => {}
        }
    }
    let text = shown::line(&parts.join("; ")).into_owned();
    let later = later || asks_to_wait(&text);
    (text, later)
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
        let only_ids = json!({"error": {"code": "X.1.0.Failed", "message": "The fan is missing", "@Message.ExtendedInfo": [
            {"MessageID": "X.1.0.Fan"}
        ]}});
        assert_eq!(read(&only_ids).0, "(X.1.0.Fan); \"The fan is missing\" (X.1.0.Failed)");
        let ilo4 = |id: &str| json!({"error": {"code": "iLO.0.10.ExtendedInfo", "@Message.ExtendedInfo": [{"MessageID": id}]}});
        assert!(!is_error(&ilo4("Base.0.10.Success")) && is_error(&ilo4("Base.0.10.NotAllowed")));
    }

    #[test]
    fn a_machine_that_is_not_ready_is_asked_again() {
        let body = |id: &str, message: &str, resolution: &str| {
            json!({"error": {"code": "Base.1.12.GeneralError", "@Message.ExtendedInfo": [
                {"MessageId": id, "Message": message, "Resolution": resolution}
            ]}})
        };
        let dell = body("IDRAC.2.9.RAC0508", "The provider is not ready.", "Wait for few minutes and retry.");
        assert!(read(&dell).1);
        assert!(!says_not_applied(&dell), "a 500 does not exclude that the change was applied");
        assert!(read(&body("Contoso.1.0.Boot", "A service has not started.", "Try again in some minutes.")).1);
        assert!(!read(&body("Base.1.8.PropertyUnknown", "Unknown", "Remove it and resubmit the request.")).1);
    }
}
