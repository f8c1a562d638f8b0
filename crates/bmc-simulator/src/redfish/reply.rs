//! BMC answers.

use bytes::{Bytes, BytesMut};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode, header};
use serde_json::{Value, json};

use super::Message;
use crate::personality::Etags;

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Request data that a hook can read.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a> {
    /// The method.
    pub method: &'a str,
    /// The path, without the query.
    pub path: &'a str,
    /// The body.
    pub body: &'a [u8],
    pub(crate) headers: &'a HeaderMap,
}

impl RequestView<'_> {
    /// Returns a header's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl Reply {
    /// Returns an answer without a body.
    #[must_use]
    pub fn empty(status: u16) -> Self {
        Self {
            status: StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    /// Returns an answer with a JSON body.
    #[must_use]
    pub fn json(status: u16, body: &Value) -> Self {
        Self::with_body(status, "application/json", body.to_string())
    }

    /// Returns an answer with a Redfish error that has one message.
    #[must_use]
    pub fn error_text(status: u16, text: &str) -> Self {
        Self::error(status, &[Message::general(text)])
    }

    pub(crate) fn error(status: u16, messages: &[Message]) -> Self {
        Self::json(status, &Message::error_body(messages))
    }

    pub(crate) fn with_body(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let mut reply = Self::empty(status);
        reply.body = body.into();
        reply.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        reply
    }

    /// Returns a resource with its entity tag and the link to its schema.
    pub(crate) fn resource(status: u16, resource: &Value, etags: Etags) -> Self {
        let (body, etag) = render(resource, etags);
        let kind = resource["@odata.type"].as_str().unwrap_or_default();
        Self::rendered(status, kind, body, etag.as_deref())
    }

    /// Like [`Reply::resource`], for a resource that is already rendered.
    pub(crate) fn rendered(status: u16, kind: &str, body: Bytes, etag: Option<&str>) -> Self {
        let mut reply = Self::with_body(status, "application/json", body);
        if let Some(etag) = etag {
            reply.set(header::ETAG, etag);
        }
        if let Some(schema) = schema_of(kind) {
            reply.set(header::LINK, &format!("<{schema}>; rel=describedby"));
        }
        reply
    }

    pub(crate) fn set(&mut self, name: HeaderName, value: &str) {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
    }

    /// Returns the status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status.as_u16()
    }

    /// Sets the status.
    pub fn set_status(&mut self, status: u16) {
        if let Ok(status) = StatusCode::from_u16(status) {
            self.status = status;
        }
    }

    /// Sets a header; ignores invalid names and values.
    pub fn set_header(&mut self, name: &str, value: &str) {
        if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
            self.set(name, value);
        }
    }

    /// Removes a header.
    pub fn remove_header(&mut self, name: &str) {
        self.headers.remove(name);
    }

    /// Returns the body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Edits a JSON body; the entity tag stays unchanged.
    pub fn edit_json(&mut self, edit: impl FnOnce(&mut Value)) {
        if let Ok(mut value) = serde_json::from_slice(&self.body) {
            edit(&mut value);
            self.body = value.to_string().into();
        }
    }

    pub(crate) fn is_success(&self) -> bool {
        self.status.is_success()
    }
}

/// Returns the members of every resource.
pub(crate) fn resource(path: &str, kind: &str, id: &str, name: &str) -> Value {
    json!({
        "@odata.id": path,
        "@odata.type": kind,
        "Id": id,
        "Name": name,
    })
}

/// Returns a collection of references.
pub(crate) fn collection(path: &str, kind: &str, name: &str, members: impl IntoIterator<Item = String>) -> Value {
    let members: Vec<Value> = members.into_iter().map(|path| json!({ "@odata.id": path })).collect();
    json!({
        "@odata.id": path,
        "@odata.type": kind,
        "Name": name,
        "Members@odata.count": members.len(),
        "Members": members,
    })
}

/// Renders a resource and adds its entity tag, a digest of everything else.
pub(crate) fn render(resource: &Value, etags: Etags) -> (Bytes, Option<String>) {
    let text = resource.to_string();
    let weak = match etags {
        Etags::None => return (text.into(), None),
        Etags::Strong => "",
        Etags::Weak => "W/",
    };
    let etag = format!("{weak}\"{:016x}\"", digest(text.as_bytes()));
    let mut body = BytesMut::with_capacity(text.len() + etag.len() + 24);
    body.extend_from_slice(b"{\"@odata.etag\":");
    body.extend_from_slice(Value::from(etag.as_str()).to_string().as_bytes());
    if text.len() > 2 {
        body.extend_from_slice(b",");
    }
    body.extend_from_slice(&text.as_bytes()[1..]);
    (body.freeze(), Some(etag))
}

/// FNV-1a: fast, the same in every process, and not security-relevant.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns the published URL of the schema for `#Namespace.version.Type`.
fn schema_of(kind: &str) -> Option<String> {
    let namespace = kind.strip_prefix('#')?.rsplit_once('.')?.0;
    Some(format!("http://redfish.dmtf.org/schemas/v1/{namespace}.json"))
}

/// Adds headers common to all answers.
pub(crate) fn finish(reply: &mut Reply, method: &Method, allow: Option<&str>, closes: bool) {
    reply.headers.insert(HeaderName::from_static("odata-version"), HeaderValue::from_static("4.0"));
    reply.headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Some(allow) = allow
        && (method == Method::GET || method == Method::HEAD || reply.status == StatusCode::METHOD_NOT_ALLOWED)
    {
        reply.set(header::ALLOW, allow);
    }
    if closes {
        reply.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entity_tag_is_in_the_body_and_depends_on_the_rest_only() {
        let resource = json!({"Id": "1"});
        let (body, etag) = render(&resource, Etags::Strong);
        let parsed: Value = serde_json::from_slice(&body).unwrap_or_default();
        assert_eq!(parsed["@odata.etag"].as_str(), etag.as_deref());
        assert_eq!(parsed["Id"], "1");
        assert_eq!(render(&resource, Etags::Strong).1, etag);
        assert_ne!(render(&json!({"Id": "2"}), Etags::Strong).1, etag);
        let (body, none) = render(&resource, Etags::None);
        assert_eq!((&body[..], none), (&b"{\"Id\":\"1\"}"[..], None));
    }
}
