//! Authentication with HTTP basic, API versions, and responses that a real Keystone never sends.

use std::sync::Arc;

use secrecy::SecretString;
use serde_json::json;
use terraform_provider_metal::{
    backend::{
        Backend as _, BackendError,
        ironic::{IronicAccess, IronicBackend, IronicSettings, KeystoneAccount, KeystoneSettings},
    },
    clock::SystemClock,
    maintenance::{gate::ExternalState, machine::PowerState},
};

use crate::{
    bench::{Bench, asked, backend, entered, wish},
    proxy::{Deal, Proxy},
    support::ironic::{
        Ironic, Options,
        installation::{PASSWORD, USERNAME},
    },
};

#[tokio::test]
async fn http_basic_lets_in_and_keeps_out() {
    let ironic = Ironic::start(Options { basic: true, ..Options::default() }).await;
    ironic.active_node("n1").await;
    let basic = |password: &str| IronicAccess::Basic {
        username: USERNAME.into(),
        password: SecretString::from(password.to_owned()),
    };
    let known = backend(&ironic.url(), basic(PASSWORD), |_| {});
    let machine = known.machine("n1").unwrap();
    assert_eq!(machine.observe().await.unwrap().power, PowerState::On);
    let system = machine.maintenance_system().unwrap();
    system.enter(&wish()).await.unwrap();
    assert_eq!(system.look(&asked(&wish()), true).await.unwrap().standing, ExternalState::Granted);
    system.leave(&entered(&wish())).await.unwrap();
    for wrong in [basic("wrong"), IronicAccess::Open] {
        let refused = backend(&ironic.url(), wrong, |_| {}).machine("n1").unwrap().observe().await.unwrap_err();
        assert!(matches!(refused, BackendError::Denied { .. }), "{refused}");
        assert!(!refused.to_string().contains("wrong"), "{refused}");
    }
}

#[tokio::test]
async fn a_node_or_service_that_is_not_there_is_told() {
    let bench = Bench::new(Options::default()).await;
    let missing = bench.machine().observe().await.unwrap_err();
    assert!(matches!(missing, BackendError::NoServer { .. }), "{missing}");
    assert!(missing.to_string().contains("openstack baremetal node list"), "{missing}");
    let nowhere = backend("http://127.0.0.1:9", IronicAccess::Open, |_| {});
    let away = nowhere.machine("n1").unwrap().observe().await.unwrap_err();
    assert!(matches!(away, BackendError::Unreachable { .. }), "{away}");
    let proxy = Proxy::to(&bench.ironic.url()).await;
    proxy.rule(|_| Deal::Answer(200, String::new(), "{}".into()));
    let odd = backend(&proxy.url(), IronicAccess::Open, |_| {}).machine("n1").unwrap().observe().await.unwrap_err();
    assert!(odd.to_string().contains("it is not Ironic"), "{odd}");
}

#[tokio::test]
async fn an_ironic_that_starts_behind_a_proxy_is_waited_for() {
    let bench = Bench::active().await;
    let proxy = Proxy::to(&bench.ironic.url()).await;
    let bad_gateway = || Deal::Answer(502, String::new(), "<html>Bad Gateway</html>".into());
    proxy.rule(move |_| bad_gateway());
    let behind = backend(&proxy.url(), IronicAccess::Open, |_| {});
    let away = behind.machine("n1").unwrap().observe().await.unwrap_err();
    assert!(away.is_transient() && away.to_string().contains("502"), "{away}");
    let mut asked = 0;
    proxy.rule(move |seen| {
        asked += usize::from(seen.path == "/v1");
        if asked < 2 { bad_gateway() } else { Deal::Pass }
    });
    assert_eq!(behind.machine("n1").unwrap().observe().await.unwrap().power, PowerState::On);
}

#[tokio::test]
async fn the_api_version_is_negotiated_and_an_old_service_is_refused() {
    let bench = Bench::active().await;
    let proxy = Proxy::to(&bench.ironic.url()).await;
    let newest = |minor: u32| {
        let versions = format!("X-OpenStack-Ironic-API-Maximum-Version: 1.{minor}\r\n");
        move |seen: &crate::proxy::Seen| match seen.path.as_str() {
            "/v1" => Deal::Answer(200, versions.clone(), "{}".into()),
            _ => Deal::Pass,
        }
    };
    proxy.rule(newest(41));
    let old = backend(&proxy.url(), IronicAccess::Open, |_| {}).machine("n1").unwrap().observe().await.unwrap_err();
    assert!(matches!(old, BackendError::Unsupported { .. }) && old.to_string().contains("1.42"), "{old}");
    // An Ironic of 2018: all required features work, and missing ones are not requested.
    proxy.rule(newest(42));
    let old = backend(&proxy.url(), IronicAccess::Open, |_| {});
    let machine = old.machine("n1").unwrap();
    let system = machine.maintenance_system().unwrap();
    system.enter(&wish()).await.unwrap();
    assert_eq!(system.look(&asked(&wish()), true).await.unwrap().standing, ExternalState::Granted);
    assert!(machine.media(&[]).await.unwrap().is_empty(), "virtual media need 1.93 to be read back");
    system.leave(&entered(&wish())).await.unwrap();
    // A proxy that announces a wrong version: the error explains Ironic's response.
    proxy.rule(|seen| match seen.path.as_str() {
        "/v1" => Deal::Answer(200, "X-OpenStack-Ironic-API-Maximum-Version: 1.115\r\n".into(), "{}".into()),
        _ => Deal::Answer(
            406,
            String::new(),
            json!({ "error_message": json!({ "description": "Version 1.95 was requested" }).to_string() }).to_string(),
        ),
    });
    let refused = backend(&proxy.url(), IronicAccess::Open, |_| {}).machine("n1").unwrap().observe().await.unwrap_err();
    assert!(refused.to_string().contains("Version 1.95 was requested"), "{refused}");
}

/// A Keystone with abnormal responses; `keystone.rs` covers a real one.
async fn odd_keystone(ironic: &Ironic, status: u16, header: &'static str, body: &'static str) -> Proxy {
    let proxy = Proxy::to(&ironic.url()).await;
    proxy.rule(move |seen| match seen.path.as_str() {
        "/v3/auth/tokens" => Deal::Answer(status, header.to_owned(), body.to_owned()),
        "/v1" => Deal::Pass,
        _ => Deal::Answer(401, String::new(), "{}".into()),
    });
    proxy
}

fn access(proxy: &Proxy, account: KeystoneAccount, region: &str) -> IronicAccess {
    let keystone = KeystoneSettings {
        auth_url: format!("{}/v3", proxy.url()).parse().unwrap(),
        account,
        interface: "public".into(),
        region: Some(region.into()),
    };
    IronicAccess::Keystone(Box::new(keystone))
}

fn cloud(proxy: &Proxy, account: KeystoneAccount, region: &str) -> IronicBackend {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let settings = IronicSettings::new(None, access(proxy, account, region));
    IronicBackend::new(settings, &(Arc::new(SystemClock::default()) as _)).unwrap()
}

fn credential(secret: &str) -> KeystoneAccount {
    KeystoneAccount::ApplicationCredential {
        id: Some("c1".into()),
        name: None,
        user: None,
        secret: SecretString::from(secret.to_owned()),
    }
}

#[tokio::test]
async fn what_is_not_an_answer_of_keystone_is_told() {
    let bench = Bench::active().await;
    let token = "X-Subject-Token: token-1\r\n";
    for (status, header, body, words) in [
        (201, "", "{}", "the answer does not contain a token"),
        (201, token, "<html>", "the answer is not JSON"),
        (201, token, "{}", "no baremetal service"),
        (503, "", "<html>busy</html>", "busy"),
    ] {
        let proxy = odd_keystone(&bench.ironic, status, header, body).await;
        let odd = cloud(&proxy, credential("s3cret"), "r1").machine("n1").unwrap().observe().await.unwrap_err();
        assert!(odd.to_string().contains(words), "{odd}");
        assert!(!odd.to_string().contains("s3cret"), "{odd}");
    }
}

#[tokio::test]
async fn a_token_that_is_refused_at_once_is_renewed_once() {
    let bench = Bench::active().await;
    let catalog = r#"{ "token": { "catalog": [{ "type": "baremetal", "endpoints": [
        { "interface": "public", "region_id": "r1", "url": "http://127.0.0.1:9/" }] }] } }"#;
    let proxy = odd_keystone(&bench.ironic, 201, "X-Subject-Token: token-1\r\n", catalog).await;
    let settings = IronicSettings::new(Some(proxy.url().parse().unwrap()), access(&proxy, credential("s3cret"), "r1"));
    let backend = IronicBackend::new(settings, &(Arc::new(SystemClock::default()) as _)).unwrap();
    let refused = backend.machine("n1").unwrap().observe().await.unwrap_err();
    assert!(matches!(refused, BackendError::Denied { .. }), "{refused}");
    assert_eq!((proxy.count("POST", "/v3/auth/tokens"), proxy.count("GET", "/v1/nodes/n1")), (2, 2));
}

#[tokio::test]
async fn a_catalog_that_lists_an_address_without_tls_gets_no_token() {
    let bench = Bench::active().await;
    let theirs = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    // Linux connects this address to the listener, and it is not a loopback address.
    let url = format!("http://0.0.0.0:{}/", theirs.local_addr().unwrap().port());
    let listed = json!([{ "interface": "public", "region_id": "r1", "url": url }]);
    let catalog = json!({ "token": { "catalog": [{ "type": "baremetal", "endpoints": listed }] } }).to_string();
    let proxy = odd_keystone(&bench.ironic, 201, "X-Subject-Token: token-1\r\n", catalog.leak()).await;
    let refused = cloud(&proxy, credential("s3cret"), "r1").machine("n1").unwrap().observe().await.unwrap_err();
    assert!(matches!(refused, BackendError::Withheld { .. }), "{refused}");
    assert!(refused.to_string().contains("ironic.plain_http = true"), "{refused}");
    let nobody = tokio::time::timeout(std::time::Duration::from_millis(100), theirs.accept()).await;
    assert!(nobody.is_err(), "a connection arrived");
}
