//! Inspects a BMC: certificate, account in use, and request durations.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rustls::pki_types::ServerName;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use url::{Host, Url};

use crate::{
    backend::{Account, BackendError, BmcInspection, Certificate, Timing},
    clock::{no_answer_within, within},
    outbound::Route,
};

use super::{
    machine::RedfishMachine,
    trust::{self, show_fingerprint},
};

/// The maximum number of accounts to search for the account in use.
const MOST_ACCOUNTS: usize = 20;

/// Reads an address's certificate in DER form; `Err` is the reason if that fails.
async fn presented(route: &Route, endpoint: &Url) -> Result<Vec<u8>, String> {
    let host = endpoint.host().ok_or("the endpoint does not name a host")?;
    let name = match &host {
        Host::Domain(name) => (*name).to_owned(),
        Host::Ipv4(address) => address.to_string(),
        Host::Ipv6(address) => address.to_string(),
    };
    // This connection carries no data.
    let config = trust::judged_by_fingerprint(None, Arc::default(), &[])?;
    let stream = route.connect(endpoint).await?;
    let name = ServerName::try_from(name).map_err(|error| error.to_string())?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, stream).await.map_err(|error| format!("TLS: {error}"))?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    certificates.first().map(|first| first.to_vec()).ok_or_else(|| "it presents no certificate".to_owned())
}

fn read_certificate(der: &[u8], judged_by: &'static str) -> Certificate {
    let digest: [u8; 32] = Sha256::digest(der).into();
    let parsed = x509_parser::parse_x509_certificate(der).ok().map(|(_, certificate)| certificate);
    let shown = |text: String| Some(text).filter(|text| !text.is_empty());
    Certificate {
        sha256: show_fingerprint(&digest),
        subject: parsed.as_ref().and_then(|certificate| shown(certificate.subject().to_string())),
        issuer: parsed.as_ref().and_then(|certificate| shown(certificate.issuer().to_string())),
        expires: parsed
            .and_then(|certificate| Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()),
        judged_by,
    }
}

/// Returns the privileges of DSP0266's predefined roles, for BMCs that do not report them.
fn predefined(role: &str) -> Option<Vec<String>> {
    let names: &[&str] = match role {
        "Administrator" => &["Login", "ConfigureManager", "ConfigureUsers", "ConfigureComponents", "ConfigureSelf"],
        "Operator" => &["Login", "ConfigureComponents", "ConfigureSelf"],
        "ReadOnly" => &["Login", "ConfigureSelf"],
        _ => return None,
    };
    Some(names.iter().map(|name| (*name).to_owned()).collect())
}

impl RedfishMachine {
    /// Reads a resource that can be missing or hidden from this account.
    async fn shown(&self, path: &str) -> Result<Value, BackendError> {
        match self.bmc.get(path).await {
            Ok(answer) => Ok(answer.body),
            Err(BackendError::Rejected { transient: false, .. } | BackendError::Protocol { .. }) => Ok(Value::Null),
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl BmcInspection for RedfishMachine {
    async fn certificate(&self) -> Result<Option<Certificate>, BackendError> {
        if self.bmc.endpoint.scheme() != "https" {
            return Ok(None);
        }
        let limit = self.bmc.limits.read;
        let unreachable =
            |cause: String| BackendError::Unreachable { address: self.bmc.address().into(), cause: cause.into() };
        match within(limit, presented(self.bmc.route(), &self.bmc.endpoint)).await {
            Some(Ok(der)) => Ok(Some(read_certificate(&der, self.bmc.judged_by()))),
            Some(Err(cause)) => Err(unreachable(cause)),
            None => Err(unreachable(no_answer_within(limit))),
        }
    }

    async fn account(&self) -> Result<Account, BackendError> {
        let username = self.bmc.username().to_owned();
        let mut found =
            Account { username: username.clone(), role: None, privileges: None, must_change_password: false };
        let service = self.shown("/redfish/v1/AccountService").await?;
        let accounts = service["Accounts"]["@odata.id"].as_str().unwrap_or("/redfish/v1/AccountService/Accounts");
        let members = self.shown(accounts).await?;
        let paths = members["Members"].as_array().into_iter().flatten();
        for path in paths.filter_map(|member| member["@odata.id"].as_str()).take(MOST_ACCOUNTS) {
            let account = self.shown(path).await?;
            if account["UserName"].as_str() != Some(username.as_str()) {
                continue;
            }
            found.must_change_password = account["PasswordChangeRequired"].as_bool().unwrap_or(false);
            found.role = account["RoleId"].as_str().map(str::to_owned);
            if let Some(role) = account["Links"]["Role"]["@odata.id"].as_str() {
                let role = self.shown(role).await?;
                found.privileges = role["AssignedPrivileges"]
                    .as_array()
                    .map(|names| names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect());
            }
            if found.privileges.is_none() {
                found.privileges = found.role.as_deref().and_then(predefined);
            }
            break;
        }
        Ok(found)
    }

    fn flaws(&self) -> Vec<String> {
        self.bmc.flaws()
    }

    fn timing(&self) -> Timing {
        Timing {
            slowest_read: self.bmc.slowest_read(),
            read_timeout: self.bmc.limits.read,
            request_timeout: self.bmc.limits.change,
        }
    }
}
