//! Who asks: HTTP basic, Keystone tokens, API versions.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use secrecy::SecretString;
use serde_json::json;
use terraform_provider_metal::{
    backend::{
        Backend as _, BackendError,
        ironic::{
            IronicAccess, IronicBackend, IronicSettings, KeystoneAccount, KeystoneName, KeystoneScope, KeystoneSettings,
        },
    },
    clock::SystemClock,
    maintenance::{gate::Standing, machine::PowerState},
};

use crate::{
    bench::{Bench, asked, backend, entered, wish},
    proxy::{Deal, Proxy},
    support::ironic::{Ironic, Options, PASSWORD, USERNAME},
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
    assert_eq!(system.look(&asked(&wish()), true).await.unwrap().standing, Standing::Granted);
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
    assert!(matches!(missing, BackendError::NoSystem { .. }), "{missing}");
    let nowhere = backend("http://127.0.0.1:9", IronicAccess::Open, |_| {});
    let away = nowhere.machine("n1").unwrap().observe().await.unwrap_err();
    assert!(matches!(away, BackendError::Unreachable { .. }), "{away}");
    let proxy = Proxy::to(&bench.ironic.url()).await;
    proxy.rule(|_| Deal::Answer(200, String::new(), "{}".into()));
    let odd = backend(&proxy.url(), IronicAccess::Open, |_| {}).machine("n1").unwrap().observe().await.unwrap_err();
    assert!(odd.to_string().contains("it is not Ironic"), "{odd}");
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
    // A service of 2018: all that is needed works, and what it lacks is not asked for.
    proxy.rule(newest(42));
    let old = backend(&proxy.url(), IronicAccess::Open, |_| {});
    let machine = old.machine("n1").unwrap();
    let system = machine.maintenance_system().unwrap();
    system.enter(&wish()).await.unwrap();
    assert_eq!(system.look(&asked(&wish()), true).await.unwrap().standing, Standing::Granted);
    assert!(machine.media().await.unwrap().is_empty(), "virtual media need 1.93 to be read back");
    system.leave(&entered(&wish())).await.unwrap();
    // A proxy in front that lies: what Ironic answers is explained.
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

/// Keystone's two calls, and an Ironic behind it that accepts only the newest token.
async fn keystone(ironic: &Ironic) -> (Proxy, Arc<AtomicUsize>) {
    let proxy = Proxy::to(&ironic.url()).await;
    let issued = Arc::new(AtomicUsize::new(0));
    let (url, count) = (proxy.url(), Arc::clone(&issued));
    proxy.rule(move |seen| {
        if seen.is("POST", "/v3/auth/tokens") {
            let known = seen.body.contains("s3cret") || seen.body.contains("\"password\":\"correct\"");
            if !known {
                let error = json!({ "error": { "message": "The request you have made requires authentication." } });
                return Deal::Answer(401, String::new(), error.to_string());
            }
            let number = count.fetch_add(1, Ordering::SeqCst) + 1;
            let body = json!({ "token": { "expires_at": "2099-01-01T00:00:00.000000Z", "catalog": [
                { "type": "baremetal", "endpoints": [{ "interface": "public", "region_id": "r1", "url": format!("{url}/") }] },
            ] } });
            return Deal::Answer(201, format!("X-Subject-Token: token-{number}\r\n"), body.to_string());
        }
        let newest = format!("x-auth-token: token-{}\r\n", count.load(Ordering::SeqCst));
        if seen.headers.contains(&newest) { Deal::Pass } else { Deal::Answer(401, String::new(), "{}".into()) }
    });
    (proxy, issued)
}

fn cloud(proxy: &Proxy, account: KeystoneAccount, region: &str) -> IronicBackend {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let keystone = KeystoneSettings {
        auth_url: format!("{}/v3", proxy.url()).parse().unwrap(),
        account,
        interface: "public".into(),
        region: Some(region.into()),
    };
    let settings = IronicSettings::new(None, IronicAccess::Keystone(Box::new(keystone)));
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
async fn a_token_is_got_kept_and_renewed_when_it_is_refused() {
    let bench = Bench::active().await;
    let (proxy, issued) = keystone(&bench.ironic).await;
    let backend = cloud(&proxy, credential("s3cret"), "r1");
    let machine = backend.machine("n1").unwrap();
    for _ in 0..3 {
        assert_eq!(machine.observe().await.unwrap().power, PowerState::On);
    }
    assert_eq!(issued.load(Ordering::SeqCst), 1, "one token for all");
    // Revoked: the next request is refused once and sent again with a new one, also a change.
    issued.fetch_add(1, Ordering::SeqCst);
    machine.maintenance_system().unwrap().enter(&wish()).await.unwrap();
    assert_eq!(issued.load(Ordering::SeqCst), 3);
    assert_eq!(bench.standing(&asked(&wish())).await, Standing::Granted);
}

#[tokio::test]
async fn wrong_secrets_and_regions_are_told_without_the_secret() {
    let bench = Bench::active().await;
    let (proxy, issued) = keystone(&bench.ironic).await;
    let refused = cloud(&proxy, credential("hunter2"), "r1").machine("n1").unwrap().observe().await.unwrap_err();
    assert!(refused.to_string().contains("requires authentication"), "{refused}");
    assert!(!refused.to_string().contains("hunter2"), "{refused}");
    let elsewhere = cloud(&proxy, credential("s3cret"), "r2").machine("n1").unwrap().observe().await.unwrap_err();
    assert!(elsewhere.to_string().contains("no baremetal service"), "{elsewhere}");
    let name = |name: &str| KeystoneName { name: Some(name.into()), ..KeystoneName::default() };
    let password = KeystoneAccount::Password {
        user: name("ci"),
        password: SecretString::from("correct".to_owned()),
        scope: KeystoneScope::Project(name("ops")),
    };
    let machine = cloud(&proxy, password, "r1").machine("n1").unwrap();
    assert_eq!(machine.observe().await.unwrap().power, PowerState::On);
    assert_eq!(issued.load(Ordering::SeqCst), 2);
}
