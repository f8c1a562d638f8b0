//! Boot attributes shared by several types: schema, model, checks.

use std::path::Path;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::{Attribute, AttributeType},
    value::{Value, ValueBool, ValueNumber},
};

use crate::provider::{
    shared::schema::{defaulted, object, optional},
    shared::values::{Text, bad, boot_mode, given, is_given, known, not_empty, one_of, or_default, web_url},
    shared::write_only::{WriteOnly, sha256},
};
use crate::{
    backend::plug::{self, ExternalBootMethod},
    engine::Engine,
    files::{self, Pipes},
    maintenance::{
        machine::Ignition,
        spec::{BootMethod, BootSpec, UrlCheck},
    },
    shown::OneLine,
};

/// `ready_when`, `complete_when`: a URL that must answer with a status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct UrlModel {
    /// The URL for the GET request.
    #[serde(default)]
    pub(in crate::provider) url: Text,
    /// The required status.
    #[serde(default)]
    pub(in crate::provider) status: ValueNumber,
}

/// The object `ignition`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct IgnitionModel {
    #[serde(default)]
    url: Text,
    #[serde(default)]
    file: Text,
    #[serde(default)]
    secret_name: Text,
}

impl IgnitionModel {
    /// Refers to an existing Secret.
    pub(in crate::provider) fn of_secret(name: &str) -> Self {
        Self { secret_name: Value::Value(name.to_owned()), ..Self::default() }
    }

    /// Returns true for a local file.
    pub(in crate::provider) fn is_file(&self) -> bool {
        !self.file.is_null()
    }

    /// Returns the ignition, and its content if it is local.
    pub(in crate::provider) fn check(
        &self,
        diags: &mut Diagnostics,
        at: &AttributePath,
    ) -> Option<(Ignition, Option<SecretString>)> {
        match (given(&self.file), given(&self.secret_name), given(&self.url)) {
            (None, Some(name), None) => Some((Ignition::Secret(name.to_owned()), None)),
            (Some(path), None, None) => match files::read_text(Path::new(path), files::IGNITION, Pipes::Refused) {
                Ok(content) => {
                    let content = SecretString::from(content);
                    Some((Ignition::Content(sha256(&content)), Some(content)))
                }
                Err(error) => {
                    let at = at.clone().attribute("file");
                    bad(diags, at, "The ignition file cannot be read", format!("{error}."));
                    None
                }
            },
            (None, None, Some(_)) => {
                let detail = "A boot operator serves ignition from a Secret. Set file, and the provider creates the \
                              Secret, or set secret_name.";
                bad(diags, at.clone().attribute("url"), "Ignition cannot be fetched", detail);
                None
            }
            (None, None, None) => None,
            _ => {
                bad(diags, at.clone(), "Only one source is allowed", "Set file or secret_name, not both.");
                None
            }
        }
    }
}

/// The boot configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct BootModel {
    pub(in crate::provider) method: Text,
    #[serde(default)]
    pub(in crate::provider) image: Text,
    #[serde(default)]
    pub(in crate::provider) image_sha256: Text,
    #[serde(default)]
    pub(in crate::provider) ignition: Value<IgnitionModel>,
    #[serde(default)]
    pub(in crate::provider) ignition_wo: WriteOnly,
    #[serde(default)]
    pub(in crate::provider) ignition_wo_version: ValueNumber,
    #[serde(default)]
    pub(in crate::provider) once: ValueBool,
    #[serde(default)]
    pub(in crate::provider) boot_mode: Text,
    #[serde(default)]
    pub(in crate::provider) ready_when: Value<UrlModel>,
}

/// Returns the backends' boot methods that accept an ignition file.
fn ignition_methods() -> impl Iterator<Item = &'static ExternalBootMethod> {
    plug::boot_methods().into_iter().filter(|method| method.takes_ignition)
}

/// Returns those methods' names, each enclosed in `mark`.
pub(in crate::provider) fn with_ignition(mark: &str) -> String {
    let names: Vec<String> = ignition_methods().map(|method| format!("{mark}{}{mark}", method.name)).collect();
    names.join(" or ")
}

/// Returns the possible values of `method` in Markdown.
pub(in crate::provider) fn method_text() -> String {
    let external: String = plug::boot_methods().iter().map(|method| format!("; {}", method.text)).collect();
    format!("`http`, `pxe`, `virtual_media` or `disk`{external}.")
}

/// Parses a boot method, either built in or from a backend.
fn method(diags: &mut Diagnostics, value: &Text, path: AttributePath) -> Option<BootMethod> {
    let external = plug::boot_methods().into_iter().map(|method| method.name);
    let names: Vec<&str> = BootMethod::NAMES.into_iter().chain(external).collect();
    one_of(diags, value, path, &names, |name| names.contains(&name).then(|| BootMethod::from_name(name)))
}

/// Builds the attributes of [`BootModel`] except `method`: some types require it, and others nest
/// it.
pub(in crate::provider) fn attributes() -> [(&'static str, Attribute); 6] {
    let images: Vec<&str> = plug::boot_methods().iter().map(|method| method.image).collect();
    let (images, with_ignition) = (images.join(" "), with_ignition("`"));
    [
        (
            "image",
            optional(
                AttributeType::String,
                &format!(
                    "The image's address (`http` or `https`), for the methods `http` and `virtual_media`. The provider \
                     checks it before it changes the server; the server's BMC or firmware must reach it too. {images} \
                     State and plan contain the complete address. Records, logs and messages omit user, query and fragment. \
                     Mark a signed address as sensitive."
                ),
            ),
        ),
        (
            "image_sha256",
            optional(
                AttributeType::String,
                "The image's SHA-256. The provider reads the image once and compares it before it changes the server. Limits: the operation's time limit, at least 256 KiB in 10 s, at most 64 GiB.",
            ),
        ),
        (
            "ignition",
            optional(
                object([
                    (
                        "url",
                        optional(
                            AttributeType::String,
                            "Not supported, because a boot operator serves ignition from a Secret. Set `file` or `secret_name`.",
                        ),
                    ),
                    (
                        "file",
                        optional(
                            AttributeType::String,
                            &format!(
                                "A local file of at most 1 MiB. With {with_ignition} the provider stores it in a Secret, which is \
                                 deleted with the maintenance. Plans, states and records do not contain its content."
                            ),
                        ),
                    ),
                    (
                        "secret_name",
                        optional(
                            AttributeType::String,
                            "Name of a Secret with the key `ignition`, in the provider's `metal_operator.namespace`.",
                        ),
                    ),
                ]),
                &format!(
                    "An ignition file for the booted system, with {with_ignition} of `metal_operator`. The other methods and \
                     `metal3` do not support ignition and reject it."
                ),
            ),
        ),
        (
            "once",
            defaulted(
                AttributeType::Bool,
                "If `true` (the default), the override applies to the next boot only. If `false`, every boot uses it until the prior override is restored.",
            ),
        ),
        (
            "boot_mode",
            optional(AttributeType::String, "`UEFI` or `Legacy`. Default: the server's mode is not changed."),
        ),
        (
            "ready_when",
            optional(
                object([
                    ("url", optional(AttributeType::String, "The URL for a GET request.")),
                    ("status", defaulted(AttributeType::Number, "The expected status. Default: `200`.")),
                ]),
                "The boot environment's readiness check. The provider does not switch the server on before this URL answers with this status.",
            ),
        ),
    ]
}

impl BootModel {
    /// Fills in default values.
    pub(in crate::provider) fn set_defaults(&mut self) {
        or_default(&mut self.once, true);
        if let Value::Value(check) = &mut self.ready_when {
            or_default(&mut check.status, 200);
        }
    }

    /// Checks the known values and converts them; returns `None` if a value is invalid or unknown.
    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics, at: &AttributePath) -> Option<BootSpec> {
        let path = |name: &'static str| at.clone().attribute(name);
        let method = method(diags, &self.method, path("method"));
        let external = method.as_ref().filter(|method| method.is_external()).map(BootMethod::name);
        let takes_ignition = external.is_some_and(|name| ignition_methods().any(|method| method.name == name));
        // An unknown method could accept an image name from a registry.
        let image = if method.as_ref().is_some_and(|method| !method.is_external()) {
            web_url(diags, &self.image, path("image"))
        } else {
            not_empty(diags, &self.image, path("image"));
            given(&self.image).map(str::to_owned)
        };
        let digest = self.check_digest(diags, path("image_sha256"));
        let has_content = self.ignition_wo.content().is_some();
        let given_twice = is_given(&self.ignition) && has_content;
        let ignition = match &self.ignition {
            _ if given_twice => {
                bad(diags, path("ignition_wo"), "Only one source is allowed", "Set ignition or ignition_wo, not both.");
                None
            }
            _ if method.is_some() && !takes_ignition && (is_given(&self.ignition) || has_content) => {
                bad(
                    diags,
                    path(if has_content { "ignition_wo" } else { "ignition" }),
                    "Ignition is not supported with this method",
                    format!(
                        "Only method = {} passes an ignition file to a server. Build it into the image, or name it \
                         on the image's kernel command line.",
                        with_ignition("\"")
                    ),
                );
                None
            }
            Value::Value(ignition) => ignition.check(diags, &path("ignition")).map(|(ignition, _)| ignition),
            _ => self.ignition_wo.content().map(|content| Ignition::Content(sha256(content))),
        };
        if let Some(name) = external.filter(|_| is_given(&self.image_sha256)) {
            bad(
                diags,
                path("image_sha256"),
                &format!("Not with {name}"),
                "Name the image by its digest instead: name@sha256:….",
            );
        }
        let mode = boot_mode(diags, &self.boot_mode, path("boot_mode"));
        let ready_when = check_url(diags, &self.ready_when, &path("ready_when"));
        let name = given(&self.method).unwrap_or_default();
        match &method {
            Some(BootMethod::Http | BootMethod::VirtualMedia | BootMethod::External(_)) if self.image.is_null() => {
                bad(diags, path("image"), "An image is needed", format!("Method {name:?} boots an image: set image."));
            }
            Some(BootMethod::Pxe | BootMethod::Disk) if is_given(&self.image) => bad(
                diags,
                path("image"),
                "This method does not boot an image",
                format!("Method {name:?} boots from the network or the disk and would ignore the image."),
            ),
            _ => {}
        }
        if is_given(&self.image_sha256) && self.image.is_null() {
            bad(diags, path("image_sha256"), "No image to compare", "Set image too, or remove image_sha256.");
        }
        let once = match self.once {
            Value::Value(once) => once,
            _ => true,
        };
        Some(BootSpec {
            ignition,
            method: method?,
            image: image.map(OneLine::from),
            image_sha256: digest,
            once,
            boot_mode: mode,
            ready_when,
        })
    }

    /// Passes local content to the backend, because the record contains only its digest.
    pub(in crate::provider) fn hand_over(&self, engine: &Engine) {
        if let Value::Value(ignition) = &self.ignition
            && let Some((Ignition::Content(sha256), Some(content))) =
                ignition.check(&mut Diagnostics::default(), &AttributePath::root())
        {
            engine.backend().keep(sha256, content);
        }
        if let Some(content) = self.ignition_wo.content() {
            engine.backend().keep(sha256(content), content.clone());
        }
    }

    /// Checks that `ignition_wo` and its version come together. Only for configurations: a state
    /// does not contain the content.
    pub(in crate::provider) fn check_write_only(&self, diags: &mut Diagnostics, at: &AttributePath) {
        self.ignition_wo.check_version(diags, &self.ignition_wo_version, at, "ignition_wo");
    }

    fn check_digest(&self, diags: &mut Diagnostics, path: AttributePath) -> Option<String> {
        let text = given(&self.image_sha256)?.to_ascii_lowercase();
        if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Some(text);
        }
        bad(
            diags,
            path,
            "Not a SHA-256",
            format!("A SHA-256 has 64 hexadecimal digits; this has {} characters.", text.chars().count()),
        );
        None
    }
}

/// Checks a URL and status.
pub(in crate::provider) fn check_url(
    diags: &mut Diagnostics,
    value: &Value<UrlModel>,
    at: &AttributePath,
) -> Option<UrlCheck> {
    let Value::Value(check) = value else { return None };
    if check.url.is_null() {
        bad(diags, at.clone().attribute("url"), "A URL is needed", "Set the URL that must answer.");
    }
    let url = web_url(diags, &check.url, at.clone().attribute("url"));
    let status = match check.status {
        Value::Value(status) => status,
        _ => 200,
    };
    let status = u16::try_from(status).ok().filter(|status| (100..600).contains(status));
    if status.is_none() {
        bad(diags, at.clone().attribute("status"), "Not an HTTP status", "A status is a number from 100 to 599.");
    }
    Some(UrlCheck { url: url?.into(), status: status? })
}

impl From<&BootSpec> for BootModel {
    fn from(spec: &BootSpec) -> Self {
        Self {
            method: Value::Value(spec.method.name().to_owned()),
            image: known(spec.image.clone().map(OneLine::into_raw)),
            image_sha256: known(spec.image_sha256.clone()),
            // Records do not contain the content, so the source file is unknown.
            ignition: match &spec.ignition {
                Some(Ignition::Secret(name)) => Value::Value(IgnitionModel::of_secret(name)),
                _ => Value::Null,
            },
            ignition_wo: WriteOnly::default(),
            ignition_wo_version: Value::Null,
            once: Value::Value(spec.once),
            boot_mode: known(spec.boot_mode.map(|mode| mode.as_redfish().to_owned())),
            ready_when: spec.ready_when.as_ref().map_or(Value::Null, |check| {
                Value::Value(UrlModel {
                    url: Value::Value(check.url.clone().into_raw()),
                    status: Value::Value(i64::from(check.status)),
                })
            }),
        }
    }
}
