//! Keystone tokens and Ironic's catalog entry.
//!
//! Keystone API v3, `POST /v3/auth/tokens`: the token is in the header `X-Subject-Token`, the
//! catalog and `expires_at` in the body. A token is renewed shortly before it expires, and once if
//! Ironic rejects it (401).

use std::sync::Arc;

use jiff::Timestamp;
use reqwest::Method;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use url::Url;

use crate::{
    backend::{
        BackendError,
        web::{self, BodyError},
    },
    clock::{Clock, no_answer_within, within},
    outbound,
};

use super::{
    answer,
    client::Http,
    settings::{KeystoneAccount, KeystoneName, KeystoneScope, KeystoneSettings},
};

/// Seconds before expiry at which a token is renewed.
const MARGIN: i64 = 60;
/// The maximum answer size, in bytes; a catalog can have several hundred kilobytes.
const LARGEST: usize = 8 << 20;

/// A token and Ironic's endpoint.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) value: SecretString,
    pub(super) endpoint: Option<Url>,
    expires: Option<Timestamp>,
}

/// A Keystone client with a cached token.
#[derive(Debug)]
pub(super) struct Keystone {
    settings: KeystoneSettings,
    http: Http,
    limit: std::time::Duration,
    clock: Arc<dyn Clock>,
    token: Mutex<Option<Token>>,
}

impl Keystone {
    pub(super) fn new(
        settings: KeystoneSettings,
        http: Http,
        limit: std::time::Duration,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { settings, http, limit, clock, token: Mutex::default() }
    }

    pub(super) fn address(&self) -> String {
        self.settings.auth_url.as_str().trim_end_matches('/').to_owned()
    }

    /// Returns a valid token. `refused` is a token that Ironic rejected; it is not used again.
    pub(super) async fn token(&self, refused: Option<&SecretString>) -> Result<Token, BackendError> {
        let mut kept = self.token.lock().await;
        let is_refused =
            |token: &Token| refused.is_some_and(|refused| refused.expose_secret() == token.value.expose_secret());
        let soon = self.clock.now().as_second() + MARGIN;
        if let Some(token) = kept.as_ref()
            && !is_refused(token)
            && token.expires.is_none_or(|expires| expires.as_second() > soon)
        {
            return Ok(token.clone());
        }
        let token = self.log_in().await?;
        *kept = Some(token.clone());
        Ok(token)
    }

    async fn log_in(&self) -> Result<Token, BackendError> {
        let address = self.address();
        let base = address.trim_end_matches("/v3");
        let request = "POST /v3/auth/tokens";
        let away = |cause: String| BackendError::Unreachable { address: address.clone().into(), cause: cause.into() };
        let refused = |cause: String| BackendError::Withheld { address: address.clone().into(), cause: cause.into() };
        let url = Url::parse(&format!("{base}/v3/auth/tokens")).map_err(|error| refused(error.to_string()))?;
        let sent = self.http.request(Method::POST, url).map_err(|error| refused(error.to_string()))?;
        let response = match within(self.limit, sent.json(&body(&self.settings.account)).send()).await {
            Some(Ok(response)) => response,
            Some(Err(error)) => return Err(outbound::refusal(&error).map_or_else(|| away(web::cause(&error)), refused)),
            None => return Err(away(no_answer_within(self.limit))),
        };
        let status = response.status().as_u16();
        let value = response.headers().get("X-Subject-Token").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let text = match within(self.limit, web::body(response, LARGEST)).await {
            Some(Ok(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
            Some(Err(error @ BodyError::TooLarge(_))) => {
                let what = format!("{request}: the answer is {error}");
                return Err(BackendError::Protocol { address: address.clone().into(), what: what.into() });
            }
            Some(Err(BodyError::Broken(cause))) => return Err(away(cause)),
            None => return Err(away(no_answer_within(self.limit))),
        };
        if !(200..300).contains(&status) {
            return Err(refusal(&address, request, status, &text));
        }
        let odd = |what: &str| BackendError::Protocol {
            address: address.clone().into(),
            what: format!("{request}: {what}").into(),
        };
        let value = value.ok_or_else(|| odd("the answer does not contain a token"))?;
        let body: Value = serde_json::from_str(&text).map_err(|_| odd("the answer is not JSON"))?;
        let expires = body.pointer("/token/expires_at").and_then(Value::as_str).and_then(|text| text.parse().ok());
        let endpoint = endpoint(&body, &self.settings.interface, self.settings.region.as_deref())
            .and_then(|text| Url::parse(text).ok());
        Ok(Token { value: SecretString::from(value), endpoint, expires })
    }
}

/// Converts a Keystone error. The result never concerns a node, whatever the status.
fn refusal(address: &str, request: &str, status: u16, body: &str) -> BackendError {
    match answer::error(address, request, status, body, None, false) {
        BackendError::Rejected { address, request, status, message, transient, .. } => {
            let what = format!("{request} was answered with {status}: {message}");
            if transient || status == 404 {
                BackendError::Unreachable { address, cause: what.into() }
            } else {
                BackendError::Protocol { address, what: what.into() }
            }
        }
        error => error,
    }
}

/// Returns Ironic's endpoint from a catalog.
fn endpoint<'a>(body: &'a Value, interface: &str, region: Option<&str>) -> Option<&'a str> {
    let services = body.pointer("/token/catalog")?.as_array()?;
    let ours = services.iter().filter(|service| {
        matches!(service["type"].as_str(), Some("baremetal" | "bare-metal")) || service["name"] == "ironic"
    });
    let mut endpoints = ours.flat_map(|service| service["endpoints"].as_array().into_iter().flatten());
    let found = endpoints.find(|one| {
        let in_region = |region: &str| one["region_id"] == region || one["region"] == region;
        one["interface"] == interface && region.is_none_or(in_region)
    })?;
    found["url"].as_str()
}

fn named(name: &KeystoneName) -> Value {
    let mut fields = serde_json::Map::new();
    if let Some(id) = &name.id {
        fields.insert("id".to_owned(), json!(id));
        return Value::Object(fields);
    }
    fields.insert("name".to_owned(), json!(name.name));
    match (&name.domain_id, &name.domain_name) {
        (Some(id), _) => fields.insert("domain".to_owned(), json!({ "id": id })),
        (None, Some(domain)) => fields.insert("domain".to_owned(), json!({ "name": domain })),
        (None, None) => fields.insert("domain".to_owned(), json!({ "id": "default" })),
    };
    Value::Object(fields)
}

/// Builds the request body. It contains the secret and is never logged or displayed.
fn body(account: &KeystoneAccount) -> Value {
    match account {
        KeystoneAccount::Password { user, password, scope } => {
            let mut user = named(user);
            user["password"] = json!(password.expose_secret());
            let scope = match scope {
                KeystoneScope::Project(project) => json!({ "project": named(project) }),
                KeystoneScope::Domain(domain) => json!({ "domain": match (&domain.id, &domain.name) {
                    (Some(id), _) => json!({ "id": id }),
                    (None, name) => json!({ "name": name }),
                } }),
                KeystoneScope::System => json!({ "system": { "all": true } }),
            };
            let identity = json!({ "methods": ["password"], "password": { "user": user } });
            json!({ "auth": { "identity": identity, "scope": scope } })
        }
        KeystoneAccount::ApplicationCredential { id, name, user, secret } => {
            let mut credential = json!({ "secret": secret.expose_secret() });
            match (id, user) {
                (Some(id), _) => credential["id"] = json!(id),
                (None, user) => {
                    credential["name"] = json!(name);
                    credential["user"] = user.as_ref().map_or(Value::Null, named);
                }
            }
            let identity = json!({ "methods": ["application_credential"], "application_credential": credential });
            json!({ "auth": { "identity": identity } })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalog_is_read_by_interface_and_region() {
        let catalog = json!({ "token": { "catalog": [
            { "type": "compute", "endpoints": [{ "interface": "public", "url": "http://nova" }] },
            { "type": "baremetal", "endpoints": [
                { "interface": "internal", "region_id": "a", "url": "http://a-internal" },
                { "interface": "public", "region_id": "a", "url": "http://a" },
                { "interface": "public", "region_id": "b", "url": "http://b" },
            ] },
        ] } });
        assert_eq!(endpoint(&catalog, "public", None), Some("http://a"));
        assert_eq!(endpoint(&catalog, "public", Some("b")), Some("http://b"));
        assert_eq!(endpoint(&catalog, "internal", Some("a")), Some("http://a-internal"));
        assert_eq!(endpoint(&catalog, "admin", None), None);
    }

    #[test]
    fn no_answer_of_keystone_is_one_about_a_node() {
        let gone = r#"{"error_message": "Node n1 could not be found."}"#;
        for (status, text, passes) in [(404, "", true), (404, gone, true), (503, "", true), (400, "{}", false)] {
            let told = refusal("k", "POST /v3/auth/tokens", status, text);
            assert!(!matches!(told, BackendError::Rejected { .. }), "{told}");
            assert_eq!(told.is_transient(), passes, "{told}");
        }
        assert!(matches!(refusal("k", "POST /v3/auth/tokens", 401, "{}"), BackendError::Denied { .. }));
    }

    #[test]
    fn a_credential_asks_for_no_scope_of_its_own() {
        let secret = SecretString::from("s3cret".to_owned());
        let sent = body(&KeystoneAccount::ApplicationCredential {
            id: Some("c1".into()),
            name: None,
            user: None,
            secret: secret.clone(),
        });
        assert_eq!(sent["auth"]["identity"]["application_credential"]["id"], "c1");
        assert!(sent["auth"].get("scope").is_none());
        let user =
            KeystoneName { name: Some("ci".into()), domain_name: Some("Users".into()), ..KeystoneName::default() };
        let project = KeystoneName { id: Some("p1".into()), ..KeystoneName::default() };
        let sent = body(&KeystoneAccount::Password { user, password: secret, scope: KeystoneScope::Project(project) });
        assert_eq!(sent["auth"]["identity"]["password"]["user"]["domain"]["name"], "Users");
        assert_eq!(sent["auth"]["scope"]["project"]["id"], "p1");
    }
}
