//! Base registry messages for extended errors.

use serde_json::{Value, json};

/// The base registry's version.
pub(crate) const REGISTRY: &str = "Base.1.18";

/// A message.
#[derive(Clone, Debug)]
pub struct Message {
    /// The key in the base registry.
    pub(crate) id: &'static str,
    text: String,
    args: Vec<String>,
    severity: &'static str,
    resolution: &'static str,
    related: Option<String>,
}

impl Message {
    fn new(id: &'static str, text: String, args: &[&str], resolution: &'static str) -> Self {
        Self {
            id,
            text,
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            severity: "Warning",
            resolution,
            related: None,
        }
    }

    fn critical(mut self) -> Self {
        self.severity = "Critical";
        self
    }

    /// Sets the affected property, as a JSON pointer.
    pub(crate) fn about(mut self, pointer: &str) -> Self {
        self.related = Some(format!("#{pointer}"));
        self
    }

    pub(crate) fn general(text: &str) -> Self {
        Self::new("GeneralError", text.to_owned(), &[], "See the message.").critical()
    }

    pub(crate) fn success() -> Self {
        let mut message = Self::new("Success", "The request completed successfully.".into(), &[], "None.");
        message.severity = "OK";
        message
    }

    pub(crate) fn malformed_json() -> Self {
        Self::new(
            "MalformedJSON",
            "The request body was malformed JSON and could not be parsed.".into(),
            &[],
            "Send valid JSON.",
        )
        .critical()
    }

    pub(crate) fn not_an_object() -> Self {
        Self::new(
            "UnrecognizedRequestBody",
            "The request body is not a JSON object.".into(),
            &[],
            "Send a JSON object.",
        )
    }

    pub(crate) fn empty_json() -> Self {
        Self::new(
            "EmptyJSON",
            "The request body contained an empty JSON object.".into(),
            &[],
            "Send at least one property.",
        )
    }

    pub(crate) fn no_operation() -> Self {
        Self::new(
            "NoOperation",
            "The request body contained nothing that the service could act upon.".into(),
            &[],
            "Send at least one property that can be changed.",
        )
    }

    pub(crate) fn header_invalid(name: &str) -> Self {
        Self::new("HeaderInvalid", format!("The header '{name}' is invalid."), &[name], "Correct the header.")
    }

    pub(crate) fn missing_resource(uri: &str) -> Self {
        Self::new(
            "ResourceMissingAtURI",
            format!("The resource at the URI '{uri}' was not found."),
            &[uri],
            "Use the URI of a resource that exists.",
        )
        .critical()
    }

    pub(crate) fn no_valid_session() -> Self {
        Self::new(
            "NoValidSession",
            "There is no valid session established with the implementation.".into(),
            &[],
            "Log in, or authenticate with each request.",
        )
        .critical()
    }

    pub(crate) fn wrong_credentials(uri: &str) -> Self {
        Self::new(
            "ResourceAtUriUnauthorized",
            format!("Access to '{uri}' was denied: the credentials are not valid."),
            &[uri, "invalid credentials"],
            "Use valid credentials.",
        )
        .critical()
    }

    pub(crate) fn insufficient_privilege() -> Self {
        Self::new(
            "InsufficientPrivilege",
            "The account lacks the privileges for this request.".into(),
            &[],
            "Use an account with more privileges.",
        )
        .critical()
    }

    pub(crate) fn password_change_required(uri: &str) -> Self {
        Self::new(
            "PasswordChangeRequired",
            format!("This account's password must be changed by a PATCH of '{uri}'."),
            &[uri],
            "Change the password.",
        )
        .critical()
    }

    pub(crate) fn session_limit() -> Self {
        Self::new("SessionLimitExceeded", "No more sessions can be opened.".into(), &[], "Close other sessions first.")
            .critical()
    }

    pub(crate) fn busy(seconds: u64) -> Self {
        Self::new(
            "ServiceTemporarilyUnavailable",
            format!("The service is temporarily unavailable. Retry in {seconds} seconds."),
            &[&seconds.to_string()],
            "Wait and retry.",
        )
        .critical()
    }

    pub(crate) fn precondition_failed() -> Self {
        Self::new(
            "PreconditionFailed",
            "The ETag supplied did not match the ETag of the resource.".into(),
            &[],
            "Read the resource again and retry with its ETag.",
        )
        .critical()
    }

    pub(crate) fn precondition_required() -> Self {
        Self::new(
            "PreconditionRequired",
            "A precondition header is required to change this resource.".into(),
            &[],
            "Retry with an If-Match header.",
        )
        .critical()
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(
            "OperationNotAllowed",
            "The HTTP method is not allowed on this resource.".into(),
            &[],
            "Use one of the methods in the Allow header.",
        )
        .critical()
    }

    pub(crate) fn query_not_supported(name: &str) -> Self {
        Self::new(
            "QueryParameterUnsupported",
            format!("The query parameter '{name}' is not supported."),
            &[name],
            "Leave the query parameter out.",
        )
    }

    pub(crate) fn property_unknown(name: &str) -> Self {
        Self::new(
            "PropertyUnknown",
            format!("The property '{name}' is not in the list of valid properties for the resource."),
            &[name],
            "Leave the property out.",
        )
    }

    pub(crate) fn property_not_writable(name: &str) -> Self {
        Self::new(
            "PropertyNotWritable",
            format!("The property '{name}' is read-only and cannot be assigned a value."),
            &[name],
            "Leave the property out.",
        )
    }

    pub(crate) fn property_missing(name: &str) -> Self {
        Self::new(
            "PropertyMissing",
            format!("The property '{name}' is required and must be included in the request."),
            &[name],
            "Send the property.",
        )
    }

    pub(crate) fn property_value_not_in_list(value: &Value, name: &str) -> Self {
        let value = shown(value);
        Self::new(
            "PropertyValueNotInList",
            format!("The value '{value}' for the property '{name}' is not in the list of acceptable values."),
            &[&value, name],
            "Choose an acceptable value.",
        )
    }

    pub(crate) fn property_value_type(value: &Value, name: &str) -> Self {
        let value = shown(value);
        Self::new(
            "PropertyValueTypeError",
            format!("The value '{value}' for the property '{name}' has a type that the property does not accept."),
            &[&value, name],
            "Send a value of the right type.",
        )
    }

    pub(crate) fn property_value_format(value: &Value, name: &str) -> Self {
        let value = shown(value);
        Self::new(
            "PropertyValueFormatError",
            format!("The value '{value}' for the property '{name}' has a format that the property does not accept."),
            &[&value, name],
            "Send a value of the right format.",
        )
    }

    pub(crate) fn parameter_missing(action: &str, name: &str) -> Self {
        Self::new(
            "ActionParameterMissing",
            format!("The action '{action}' requires the parameter '{name}' to be present in the request body."),
            &[action, name],
            "Send the parameter.",
        )
        .critical()
    }

    pub(crate) fn parameter_unknown(action: &str, name: &str) -> Self {
        Self::new(
            "ActionParameterUnknown",
            format!("The action '{action}' was submitted with the unknown parameter '{name}'."),
            &[action, name],
            "Leave the parameter out.",
        )
    }

    pub(crate) fn parameter_not_supported(action: &str, name: &str) -> Self {
        Self::new(
            "ActionParameterNotSupported",
            format!("The parameter '{name}' for the action '{action}' is not supported on the target resource."),
            &[name, action],
            "Leave the parameter out.",
        )
    }

    pub(crate) fn parameter_value(action: &str, name: &str, value: &Value) -> Self {
        let value = shown(value);
        Self::new(
            "ActionParameterValueNotInList",
            format!(
                "The value '{value}' for the parameter '{name}' in the action '{action}' is not in the list of acceptable values."
            ),
            &[&value, name, action],
            "Choose an acceptable value.",
        )
    }

    pub(crate) fn parameter_format(action: &str, name: &str, value: &Value) -> Self {
        let value = shown(value);
        Self::new(
            "ActionParameterValueFormatError",
            format!(
                "The value '{value}' for the parameter '{name}' in the action '{action}' has a format that the \
                 parameter does not accept."
            ),
            &[&value, name, action],
            "Send a value of the right format.",
        )
    }

    pub(crate) fn parameter_conflict(name: &str, value: &str) -> Self {
        Self::new(
            "ActionParameterValueConflict",
            format!("The parameter '{name}' with the value '{value}' conflicts with the resource's state."),
            &[name, value],
            "Wait until the resource is in another state.",
        )
    }

    pub(crate) fn in_use() -> Self {
        Self::new(
            "ResourceInUse",
            "The request cannot be carried out because the resource is in use.".into(),
            &[],
            "Free the resource first.",
        )
    }

    pub(crate) fn already_exists(kind: &str, name: &str, value: &str) -> Self {
        Self::new(
            "ResourceAlreadyExists",
            format!("A resource of type '{kind}' with the property '{name}' of the value '{value}' already exists."),
            &[kind, name, value],
            "Choose another value.",
        )
        .critical()
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut value = json!({
            "@odata.type": "#Message.v1_2_1.Message",
            "MessageId": format!("{REGISTRY}.{}", self.id),
            "Message": self.text,
            "MessageArgs": self.args,
            "MessageSeverity": self.severity,
            "Resolution": self.resolution,
        });
        if let (Some(related), Some(members)) = (&self.related, value.as_object_mut()) {
            members.insert("RelatedProperties".into(), json!([related]));
        }
        value
    }

    /// Returns an error response's body.
    pub(crate) fn error_body(messages: &[Self]) -> Value {
        let (code, text) = match messages {
            [only] => (only.id, only.text.as_str()),
            _ => ("GeneralError", "Several errors occurred, see the extended information."),
        };
        json!({ "error": {
            "code": format!("{REGISTRY}.{code}"),
            "message": text,
            "@Message.ExtendedInfo": messages.iter().map(Self::to_json).collect::<Vec<_>>(),
        }})
    }
}

/// Formats a value in a sentence: texts without quotes, everything else as JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
