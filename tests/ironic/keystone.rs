//! Tokens of a real Keystone 30, validated by a real Ironic with its middleware.

use std::{sync::Arc, time::Duration};

use reqwest::Method;
use secrecy::SecretString;
use serde_json::json;
use terraform_provider_metal::{
    backend::{
        Backend as _, BackendError, Machine,
        ironic::{
            IronicAccess, IronicBackend, IronicSettings, KeystoneAccount, KeystoneName, KeystoneScope, KeystoneSettings,
        },
    },
    clock::SystemClock,
    maintenance::{
        gate::{ExternalRequest, ExternalState},
        machine::{PowerState, ResetType},
    },
};

use crate::{
    bench::{entered, settled, wish},
    proxy::Proxy,
    support::{
        ironic::{Ironic, Options},
        keystone::{Credential, Keystone, PASSWORD, PROJECT, REGION},
        server::http_client,
    },
};

/// Policy for runs, from the repository.
const RUNNER: &str = include_str!("../../roles/ironic.yaml");
/// Additional policy for services.
const SERVICES: &str = include_str!("../../roles/ironic-services.yaml");

/// An Ironic with its Keystone, both behind counting proxies.
struct Cloud {
    keystone: Arc<Keystone>,
    ironic: Ironic,
    logins: Proxy,
    requests: Proxy,
}

impl Cloud {
    /// Starts with one active node, the account `ci` with the role `metal_runner`, and the
    /// read-only account `viewer`.
    async fn new(policies: &'static [&'static str]) -> Self {
        Self::with(Duration::from_hours(1), Options { policies, ..Options::default() }).await
    }

    async fn with(lifetime: Duration, options: Options) -> Self {
        let keystone = Arc::new(Keystone::start(lifetime).await);
        keystone.account("ci", PROJECT, &["metal_runner"]).await;
        keystone.account("viewer", PROJECT, &["reader"]).await;
        let options = Options { keystone: Some(Arc::clone(&keystone)), ..options };
        let ironic = Ironic::start(options).await;
        ironic.active_node("n1").await;
        let logins = Proxy::to(keystone.url().trim_end_matches("/v3")).await;
        let requests = Proxy::to(&ironic.url()).await;
        keystone.list_ironic(&requests.url()).await;
        Self { keystone, ironic, logins, requests }
    }

    fn backend(&self, account: KeystoneAccount, region: &str) -> IronicBackend {
        let keystone = KeystoneSettings {
            auth_url: format!("{}/v3", self.logins.url()).parse().unwrap(),
            account,
            interface: "public".into(),
            region: Some(region.into()),
        };
        let settings = IronicSettings::new(None, IronicAccess::Keystone(Box::new(keystone)));
        IronicBackend::new(settings, &(Arc::new(SystemClock::default()) as _)).unwrap()
    }

    fn machine(&self, account: KeystoneAccount) -> Arc<dyn Machine> {
        self.backend(account, REGION).machine("n1").unwrap()
    }

    /// Number of requested tokens.
    fn tokens(&self) -> usize {
        self.logins.count("POST", "/v3/auth/tokens")
    }
}

fn by_password(user: &str, password: &str) -> KeystoneAccount {
    let name = |name: &str| KeystoneName { name: Some(name.into()), ..KeystoneName::default() };
    KeystoneAccount::Password {
        user: name(user),
        password: SecretString::from(password.to_owned()),
        scope: KeystoneScope::Project(name(PROJECT)),
    }
}

fn by_credential(credential: &Credential) -> KeystoneAccount {
    KeystoneAccount::ApplicationCredential {
        id: Some(credential.id.clone()),
        name: None,
        user: None,
        secret: SecretString::from(credential.secret.clone()),
    }
}

#[tokio::test]
async fn keystone_lets_in_by_password_and_by_credential_and_tells_what_is_wrong() {
    let cloud = Cloud::new(&[RUNNER]).await;
    let credential = cloud.keystone.credential("ci").await;
    for account in [by_password("ci", PASSWORD), by_credential(&credential)] {
        let machine = cloud.machine(account);
        assert_eq!(machine.observe().await.unwrap().power, PowerState::On);
    }
    let wrong = Credential { secret: "hunter2".into(), ..credential };
    for account in [by_password("ci", "hunter2"), by_password("nobody", "hunter2"), by_credential(&wrong)] {
        let before = cloud.tokens();
        let refused = cloud.machine(account).observe().await.unwrap_err();
        assert!(matches!(refused, BackendError::Denied { .. }), "{refused}");
        assert!(refused.to_string().contains("The request you have made requires authentication"), "{refused}");
        assert!(!refused.to_string().contains("hunter2"), "{refused}");
        assert_eq!(cloud.tokens() - before, 1, "a wrong secret is not sent again");
    }
    let nowhere = cloud.backend(by_password("ci", PASSWORD), "r2").machine("n1").unwrap();
    let nowhere = nowhere.observe().await.unwrap_err();
    assert!(nowhere.to_string().contains("no baremetal service"), "{nowhere}");
}

#[tokio::test]
async fn a_revoked_token_is_renewed_once_and_the_change_is_made() {
    let options = Options { policies: &[RUNNER], asks_each_time: true, ..Options::default() };
    let cloud = Cloud::with(Duration::from_hours(1), options).await;
    let machine = cloud.machine(by_password("ci", PASSWORD));
    for _ in 0..3 {
        assert_eq!(machine.observe().await.unwrap().power, PowerState::On);
    }
    assert_eq!(cloud.tokens(), 1, "more than one token was created");
    let first = cloud.requests.token().unwrap();
    cloud.keystone.revoke(&first).await;
    let puts = || cloud.requests.count("PUT", "/maintenance");
    machine.maintenance_system().unwrap().enter(&wish()).await.unwrap();
    assert_eq!((cloud.tokens(), puts()), (2, 1));
    let second = cloud.requests.token().unwrap();
    assert_ne!(first, second);
    // Revoked right before a change: Ironic refuses it, and the client retries with a new token.
    let under = machine.maintenance_system().unwrap().under(&entered(&wish()));
    cloud.keystone.revoke(&second).await;
    under.reset(ResetType::ForceOff).await.unwrap();
    settled(&under, PowerState::Off).await;
    assert_eq!(cloud.tokens(), 3);
    // A disabled account is reported, without repeated logins.
    cloud.keystone.enable("ci", false).await;
    let refused = machine.observe().await.unwrap_err();
    assert!(matches!(refused, BackendError::Denied { .. }), "{refused}");
    assert_eq!(cloud.tokens(), 4);
}

#[tokio::test]
async fn a_token_is_renewed_before_it_ends() {
    // Tokens are renewed a minute before expiry, here after ten seconds, long before Ironic
    // refuses them.
    let options = Options { policies: &[RUNNER], asks_each_time: true, ..Options::default() };
    let cloud = Cloud::with(Duration::from_secs(70), options).await;
    let machine = cloud.machine(by_password("ci", PASSWORD));
    let until = std::time::Instant::now() + Duration::from_mins(3);
    while cloud.tokens() < 2 {
        assert_eq!(machine.observe().await.unwrap().power, PowerState::On);
        assert!(std::time::Instant::now() < until, "the token is not renewed");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let refused = cloud
        .ironic
        .log()
        .lines()
        .filter(|line| line.contains("127.0.0.1 - GET /v1/nodes/n1") && line.contains(" - 401 "))
        .count();
    assert_eq!(refused, 0, "a token was used until it expired");
}

#[tokio::test]
async fn the_role_of_the_guide_may_what_a_hold_needs_and_a_reader_may_not() {
    let cloud = Cloud::new(&[RUNNER]).await;
    let machine = cloud.machine(by_password("ci", PASSWORD));
    let system = machine.maintenance_system().unwrap();
    let memory = system.look(&wish(), true).await.unwrap().memory;
    system.enter(&wish()).await.unwrap();
    let held = ExternalRequest { memory, ..entered(&wish()) };
    assert_eq!(system.look(&held, true).await.unwrap().standing, ExternalState::Granted);
    let under = system.under(&held);
    under.observe().await.unwrap();
    under.capabilities().await.unwrap();
    under.reset(ResetType::ForceOff).await.unwrap();
    settled(&under, PowerState::Off).await;
    under.reset(ResetType::On).await.unwrap();
    settled(&under, PowerState::On).await;
    system.leave(&held).await.unwrap();
    assert_eq!(cloud.ironic.node("n1").await["maintenance"], json!(false));
    // A reader in another project cannot see the node, and `viewer` cannot change it.
    let viewer = cloud.machine(by_password("viewer", PASSWORD));
    let unseen = viewer.observe().await.unwrap_err();
    assert!(matches!(unseen, BackendError::NoServer { .. }), "{unseen}");
    let project = cloud.keystone.call(Method::GET, &format!("/projects?name={PROJECT}"), json!(null)).await;
    let owner = json!([{ "op": "add", "path": "/owner", "value": project["projects"][0]["id"] }]);
    cloud.ironic.call(Method::PATCH, "/v1/nodes/n1", Some(owner)).await;
    assert_eq!(viewer.observe().await.unwrap().power, PowerState::On);
    let refused = viewer.maintenance_system().unwrap().enter(&wish()).await.unwrap_err();
    assert!(matches!(refused, BackendError::Denied { .. }), "{refused}");
    let words = refused.to_string();
    assert!(words.contains("baremetal:node:set_maintenance") && words.contains("lists the policy rules"), "{words}");
    assert_eq!(cloud.ironic.node("n1").await["maintenance"], json!(false));
}

/// Returns the status codes of calls that neither holds nor services need.
async fn beyond(cloud: &Cloud, machine: &Arc<dyn Machine>) -> Vec<u16> {
    machine.observe().await.unwrap();
    let token = cloud.requests.token().unwrap();
    let http = http_client().build().unwrap();
    let book = json!({ "name": "CUSTOM_OTHER", "steps": [
        { "interface": "vendor", "step": "log_passthrough", "args": {}, "order": 1 },
    ] });
    let patch = json!([{ "op": "add", "path": "/extra/x", "value": "y" }]);
    let mut answers = Vec::new();
    for (method, path, body) in [
        (Method::PATCH, "/v1/nodes/n1", patch),
        (Method::DELETE, "/v1/nodes/n1", json!(null)),
        (Method::PUT, "/v1/nodes/n1/traits/CUSTOM_OTHER", json!({})),
        (Method::POST, "/v1/runbooks", book),
        (Method::POST, "/v1/nodes", json!({ "name": "n2", "driver": "fake-hardware" })),
    ] {
        let request = http.request(method, format!("{}{path}", cloud.ironic.url())).json(&body);
        let request = request.header("X-OpenStack-Ironic-API-Version", "1.95").header("X-Auth-Token", &token);
        answers.push(request.send().await.unwrap().status().as_u16());
    }
    answers
}

#[tokio::test]
async fn the_roles_are_allowed_nothing_else() {
    let cloud = Cloud::new(&[RUNNER, SERVICES]).await;
    cloud.keystone.account("firmware", PROJECT, &["metal_runner", "metal_servicer"]).await;
    for account in ["ci", "firmware"] {
        let machine = cloud.machine(by_password(account, PASSWORD));
        let answers = beyond(&cloud, &machine).await;
        assert!(answers.iter().all(|status| *status == 403), "{account}: {answers:?}");
    }
    assert_eq!(cloud.ironic.node("n1").await["provision_state"], "active");
}
