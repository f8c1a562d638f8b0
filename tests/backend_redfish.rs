//! The Redfish backend against the BMC simulator: allowable values, secrets, and no repeated
//! requests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::disallowed_methods, reason = "BMC timeouts run in real time")]

#[path = "backend_redfish/odd.rs"]
mod odd;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bmc_simulator::{
    Authentication as Shown, Availability, BootResource, Fault, FaultAction, FaultBody, JournalQuery, MediaPath,
    Personality, Simulator, SimulatorConfig, SystemUuid, ToldBy,
};
use secrecy::{ExposeSecret as _, SecretString};
use shown_text::AsRaw;
use terraform_provider_metal::{
    backend::{
        Backend, BackendError, Machine,
        redfish::{
            Authentication, MediaSettings, RedfishBackend, RedfishSettings, ServerSettings, Trust, parse_fingerprint,
        },
    },
    clock::{Clock, SystemClock},
    maintenance::machine::{BootOverride, MediaSlot, PowerState, ResetType},
};

const SOON: Duration = Duration::from_secs(10);

/// The system clock, which tests can advance.
#[derive(Debug, Default)]
struct SetClock {
    system: SystemClock,
    by: Mutex<Duration>,
}

impl SetClock {
    fn pass(&self, time: Duration) {
        *self.by.lock().unwrap() += time;
    }
}

#[async_trait::async_trait]
impl Clock for SetClock {
    fn now(&self) -> jiff::Timestamp {
        self.system.now() + *self.by.lock().unwrap()
    }

    fn monotonic(&self) -> Duration {
        self.system.monotonic() + *self.by.lock().unwrap()
    }

    async fn sleep(&self, duration: Duration) {
        self.system.sleep(duration).await;
    }
}

struct Bench {
    simulator: Simulator,
    clock: Arc<SetClock>,
    settings: RedfishSettings,
    backend: RedfishBackend,
    machine: Arc<dyn Machine>,
}

impl Bench {
    async fn new(personality: Personality) -> Self {
        Self::with(SimulatorConfig::with_systems(1).with_personality(personality), |_| {}).await
    }

    async fn with(config: SimulatorConfig, change: impl Fn(&mut RedfishSettings)) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let simulator = Simulator::start(config).await.unwrap();
        let trust = simulator.trust().map_or(Trust::System, |trust| Trust::Authority(trust.ca_pem.clone()));
        let account = simulator.credentials();
        let limit = Duration::from_secs(2);
        let mut settings =
            RedfishSettings { request_timeout: limit, read_timeout: limit, ..RedfishSettings::default() };
        for name in simulator.systems() {
            let server = ServerSettings {
                endpoint: simulator.url(&name).unwrap().parse().unwrap(),
                system_id: None,
                lock_key: None,
                media: MediaSettings::default(),
                labels: BTreeMap::new(),
                username: account.username.clone(),
                password: SecretString::from(account.password.expose_secret()),
                trust: trust.clone(),
            };
            settings.servers.insert(name, server);
        }
        change(&mut settings);
        let clock = Arc::new(SetClock::default());
        let (backend, machine) = Self::process(&settings, &clock);
        Self { simulator, clock, settings, backend, machine }
    }

    /// Creates a backend without cached BMC data, like a new process.
    fn process(settings: &RedfishSettings, clock: &Arc<SetClock>) -> (RedfishBackend, Arc<dyn Machine>) {
        let backend = RedfishBackend::new(settings.clone(), &(Arc::clone(clock) as _)).unwrap();
        let name = backend.servers()[0].clone();
        let machine = backend.machine(&name).unwrap();
        (backend, machine)
    }

    fn requests(&self, method: &str, path: &str) -> usize {
        self.simulator.journal(&JournalQuery::default().request(method, path)).len()
    }

    fn inject(&self, action: FaultAction, method: &str, path: &str) {
        let _ = self.simulator.inject(Fault::new(action).on_request(method, path));
    }

    async fn settled(&self, power: PowerState) {
        let wanted = match power {
            PowerState::On => bmc_simulator::PowerState::On,
            _ => bmc_simulator::PowerState::Off,
        };
        let name = self.simulator.systems()[0].clone();
        self.simulator.wait_power(&name, wanted, SOON).await.unwrap();
        assert_eq!(self.machine.observe().await.unwrap().power, power);
    }
}

fn once(target: &str) -> BootOverride {
    BootOverride { enabled: Some("Once".into()), target: Some(target.into()), ..BootOverride::default() }
}

#[tokio::test]
async fn power_is_changed_and_seen() {
    let bench = Bench::new(Personality::generic()).await;
    assert_eq!(bench.machine.observe().await.unwrap().power, PowerState::On);
    bench.machine.reset(ResetType::GracefulShutdown).await.unwrap();
    bench.settled(PowerState::Off).await;
    bench.machine.reset(ResetType::On).await.unwrap();
    bench.settled(PowerState::On).await;
    bench.machine.reset(ResetType::ForceOff).await.unwrap();
    bench.settled(PowerState::Off).await;
}

#[tokio::test]
async fn accepted_resets_are_read_from_the_list_or_the_action_info() {
    for told_by in [ToldBy::AllowableValues, ToldBy::ActionInfo] {
        let mut personality = Personality::generic();
        personality.power.reset_types_told_by = told_by;
        personality.power.reset_types = vec![bmc_simulator::ResetType::On, bmc_simulator::ResetType::ForceOff];
        let bench = Bench::new(personality).await;
        let capabilities = bench.machine.capabilities().await.unwrap();
        assert_eq!(capabilities.resets, [ResetType::On, ResetType::ForceOff], "{told_by:?}");
        let refused = bench.machine.reset(ResetType::Nmi).await.unwrap_err();
        assert!(matches!(refused, BackendError::Unsupported { .. }), "{refused:?}");
        assert_eq!(bench.requests("POST", "*Reset*"), 0, "an unlisted reset type was sent");
    }
}

#[tokio::test]
async fn the_override_is_written_where_it_is_listed() {
    for (resource, path) in [
        (BootResource::System, "/redfish/v1/Systems/1"),
        (BootResource::Both, "/redfish/v1/Systems/1/*ettings*"),
        (BootResource::Settings, "/redfish/v1/Systems/1/*ettings*"),
    ] {
        let mut personality = Personality::generic();
        personality.boot.writable_on = resource;
        let bench = Bench::new(personality).await;
        let before = bench.machine.observe().await.unwrap().boot.unwrap();
        assert!(before.is_disabled(), "{before:?}");
        bench
            .machine
            .set_boot_override(&once("Pxe"), false)
            .await
            .unwrap_or_else(|error| panic!("{resource:?}: {error}"));
        let found = bench.machine.observe().await.unwrap().boot.unwrap();
        assert_eq!((found.enabled.as_raw(), found.target.as_raw()), (Some("Once"), Some("Pxe")), "{resource:?}");
        let patches = bench.simulator.journal(&JournalQuery::default().request("PATCH", "*"));
        assert!(patches.iter().any(|patch| patch.status.is_some_and(|status| status < 300)), "{resource:?}");
        assert_eq!(bench.requests("PATCH", path), patches.len(), "{resource:?}: {patches:?}");
        bench.machine.set_boot_override(&before, true).await.unwrap();
        assert!(bench.machine.observe().await.unwrap().boot.unwrap().is_disabled());
    }
}

#[tokio::test]
async fn only_what_changes_is_sent() {
    let bench = Bench::new(Personality::generic()).await;
    bench.machine.set_boot_override(&once("Pxe"), false).await.unwrap();
    let sent = bench.simulator.journal(&JournalQuery::default().request("PATCH", "*"));
    let body = sent[0].body.clone().unwrap();
    let boot = body["Boot"].as_object().unwrap();
    assert_eq!(boot.keys().collect::<Vec<_>>(), ["BootSourceOverrideEnabled", "BootSourceOverrideTarget"]);
    bench.machine.set_boot_override(&once("Pxe"), false).await.unwrap();
    assert_eq!(bench.requests("PATCH", "*"), 1, "a request was sent although nothing differs");
}

#[tokio::test]
async fn an_entity_tag_is_sent_where_one_is_needed() {
    let mut personality = Personality::generic();
    personality.http.if_match = bmc_simulator::IfMatch::Required;
    let bench = Bench::new(personality).await;
    bench.machine.set_boot_override(&once("Pxe"), false).await.unwrap();
    assert_eq!(bench.machine.observe().await.unwrap().boot.unwrap().target.as_raw(), Some("Pxe"));
}

#[tokio::test]
async fn an_http_boot_address_is_set_and_cleared() {
    let bench = Bench::new(Personality::generic()).await;
    let before = bench.machine.observe().await.unwrap().boot.unwrap();
    let uri = "http://images.example/rescue.efi";
    let wanted = BootOverride { http_boot_uri: Some(uri.into()), ..once("UefiHttp") };
    bench.machine.set_boot_override(&wanted, false).await.unwrap();
    assert_eq!(bench.machine.observe().await.unwrap().boot.unwrap().http_boot_uri.as_raw(), Some(uri));
    bench.machine.set_boot_override(&before, true).await.unwrap();
    assert_eq!(bench.machine.observe().await.unwrap().boot.unwrap().http_boot_uri, None);
}

#[tokio::test]
async fn media_are_found_under_the_system_or_its_manager() {
    for offered in [MediaPath::System, MediaPath::Manager] {
        let mut personality = Personality::generic();
        personality.media.offered_under = vec![offered];
        let bench = Bench::new(personality).await;
        let slots = bench.machine.media(&[]).await.unwrap();
        let slot = slots.iter().find(|slot| slot.is_optical()).unwrap_or_else(|| panic!("{offered:?}: {slots:?}"));
        assert_eq!(slot.content(), None);
        bench.machine.insert_medium(slot.slot.raw(), "http://images.example/a.iso", true).await.unwrap();
        let found = bench.machine.media(&[]).await.unwrap();
        let found = found.iter().find(|found| found.slot == slot.slot).unwrap();
        assert_eq!(found.content(), Some("http://images.example/a.iso"), "{offered:?}");
        bench.machine.eject_medium(slot.slot.raw()).await.unwrap();
        let found = bench.machine.media(&[]).await.unwrap();
        assert!(found.iter().all(|slot| slot.content().is_none()), "{offered:?}");
    }
}

#[tokio::test]
async fn drives_that_are_known_are_not_listed_again_until_one_is_gone() {
    let bench = Bench::new(Personality::generic()).await;
    let known = bench.machine.media(&[]).await.unwrap();
    let listed = || {
        let journal = bench.simulator.journal(&JournalQuery::default());
        journal.iter().filter(|entry| entry.path.trim_end_matches('/').ends_with("/VirtualMedia")).count()
    };
    assert_eq!((known.len(), listed()), (2, 1));

    // Like a destroy's process.
    let (_backend, another) = Bench::process(&bench.settings, &bench.clock);
    assert_eq!(another.media(&known).await.unwrap(), known);
    assert_eq!(listed(), 1, "recorded drives are read without listing them");

    // Updated firmware can rename the slots.
    let mut renamed = known.clone();
    renamed[0].slot = format!("{}-before", renamed[0].slot).into();
    assert_eq!(another.media(&renamed).await.unwrap(), known);
    assert_eq!(listed(), 2, "a missing slot causes a new listing");
}

#[tokio::test]
async fn refused_parameters_of_an_insert_are_left_out() {
    let mut personality = Personality::generic();
    personality.media.refused_parameters = vec!["Inserted".into(), "WriteProtected".into()];
    personality.media.eject_needs_body = true;
    personality.media.image_stays_after_eject = true;
    let bench = Bench::new(personality).await;
    let slot = bench.machine.media(&[]).await.unwrap()[0].slot.clone();
    bench.machine.insert_medium(slot.raw(), "http://images.example/a.iso", true).await.unwrap();
    bench.machine.eject_medium(slot.raw()).await.unwrap();
    let slots = bench.machine.media(&[]).await.unwrap();
    assert!(slots.iter().all(|slot| slot.content().is_none()), "an ejected drive still shows an image: {slots:?}");
}

#[tokio::test]
async fn a_server_says_what_it_is_in_its_own_words() {
    for (uuid, shown) in [
        (None, true),
        (Some(SystemUuid::Nil), true),
        (Some(SystemUuid::Missing), false),
        (Some(SystemUuid::Null), false),
    ] {
        let mut config = SimulatorConfig::with_systems(1);
        if uuid.is_some() {
            config.systems[0].uuid.clone_from(&uuid);
        }
        let bench = Bench::with(config, |_| {}).await;
        let identity = bench.machine.identify().await.unwrap();
        assert_eq!(identity.uuid.is_some(), shown, "{identity:?}");
        assert!(identity.manufacturer.is_some() && identity.serial_number.is_some(), "{identity:?}");
        assert!(identity.authority.starts_with("127.0.0.1:"), "{identity:?}");
        assert_eq!((identity.path.as_str(), identity.has_siblings), ("/redfish/v1/Systems/1", false));
    }
}

#[tokio::test]
async fn systems_behind_one_bmc_are_siblings() {
    for (systems, siblings) in [(1, false), (2, true)] {
        let config = SimulatorConfig::with_systems(systems).behind_one_bmc();
        let bench = Bench::with(config, |settings| {
            for (name, server) in &mut settings.servers {
                server.system_id = Some(name.clone());
            }
        })
        .await;
        for name in bench.backend.servers() {
            let identity = bench.backend.machine(&name).unwrap().identify().await.unwrap();
            assert_eq!(identity.has_siblings, siblings, "{identity:?}");
        }
        assert_eq!(bench.requests("GET", "/redfish/v1/Systems"), 1, "the system list was read more than once");
    }
}

#[tokio::test]
async fn several_systems_need_to_be_told_apart() {
    let config = SimulatorConfig::with_systems(3).behind_one_bmc();
    let bench = Bench::with(config, |_| {}).await;
    let error = bench.machine.observe().await.unwrap_err().to_string();
    assert!(error.contains("system_id") && error.contains("3 systems"), "{error}");
    let id = bench.simulator.system(&bench.simulator.systems()[1]).unwrap().system_id;
    let config = SimulatorConfig::with_systems(3).behind_one_bmc();
    let bench = Bench::with(config, |settings| {
        for server in settings.servers.values_mut() {
            server.system_id = Some(id.clone());
        }
    })
    .await;
    bench.machine.observe().await.unwrap();
    assert_eq!(bench.requests("GET", "*"), 1, "the system_id did not save the lookup");
}

#[tokio::test]
async fn one_read_needs_no_session_and_many_share_one_that_is_ended() {
    let bench = Bench::new(Personality::generic()).await;
    let path = Some("1".to_owned());
    let bench = {
        drop(bench);
        Bench::with(SimulatorConfig::with_systems(1), move |settings| {
            for server in settings.servers.values_mut() {
                server.system_id.clone_from(&path);
            }
        })
        .await
    };
    bench.machine.observe().await.unwrap();
    assert_eq!(bench.simulator.journal(&JournalQuery::default()).len(), 1, "one read is one request");
    let reads = (0..20).map(|_| bench.machine.observe());
    for read in futures_util::future::join_all(reads).await {
        read.unwrap();
    }
    assert_eq!(bench.requests("POST", "*Sessions*"), 1);
    let all = bench.simulator.journal(&JournalQuery::default().request("GET", "*"));
    assert!(all.iter().skip(1).all(|entry| entry.authentication == Shown::Session), "{all:?}");
    bench.backend.close().await;
    assert_eq!(bench.requests("DELETE", "*Sessions*"), 1, "logged out");
    bench.backend.close().await;
    assert_eq!(bench.requests("DELETE", "*Sessions*"), 1, "once");
}

#[tokio::test]
async fn a_session_that_ended_is_opened_again_once() {
    let bench = Bench::new(Personality::generic()).await;
    for _ in 0..3 {
        bench.machine.observe().await.unwrap();
    }
    let bmc = bench.simulator.bmc_of(&bench.simulator.systems()[0]).unwrap();
    bench.simulator.close_sessions(&bmc).unwrap();
    bench.machine.observe().await.unwrap();
    assert_eq!(bench.requests("POST", "*Sessions*"), 2);
}

#[tokio::test]
async fn where_no_session_is_to_be_had_basic_authentication_serves() {
    for limit in [0, 1] {
        let mut personality = Personality::generic();
        personality.sessions.offered = limit != 0;
        personality.sessions.limit = 0;
        let bench = Bench::new(personality).await;
        for _ in 0..4 {
            bench.machine.observe().await.unwrap();
        }
        assert!(bench.requests("POST", "*Sessions*") <= 1, "a session was requested twice");
    }
}

#[tokio::test]
async fn where_basic_is_not_accepted_a_session_serves() {
    let mut personality = Personality::generic();
    personality.sessions.basic_auth = false;
    let bench = Bench::new(personality).await;
    bench.machine.observe().await.unwrap();
    bench.machine.observe().await.unwrap();
}

#[tokio::test]
async fn a_wrong_password_is_tried_once() {
    for authentication in [Authentication::Session, Authentication::Basic] {
        let bench = Bench::with(SimulatorConfig::with_systems(1), |settings| {
            settings.authentication = authentication;
            for server in settings.servers.values_mut() {
                server.password = SecretString::from("wrong-sentinel");
            }
        })
        .await;
        let reads = (0..5).map(|_| bench.machine.observe());
        for read in futures_util::future::join_all(reads).await {
            let error = read.unwrap_err();
            assert!(matches!(error, BackendError::Unauthorized { .. }), "{error:?}");
            assert!(!error.to_string().contains("wrong-sentinel"), "{error}");
        }
        let tried = bench.simulator.journal(&JournalQuery { status: Some(401), ..JournalQuery::default() }).len();
        assert_eq!(tried, 1, "{authentication:?}");
    }
}

/// A valid certificate for another host is refused before any request, because the name is checked
/// along with the authority.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_another_host_gets_no_request() {
    let real = Bench::with(SimulatorConfig::with_systems(1), |_| {}).await;
    let url: url::Url = real.simulator.url(&real.simulator.systems()[0]).unwrap().parse().unwrap();
    let there = (url.host_str().unwrap().to_owned(), url.port().unwrap());
    // The same BMC at an address that its certificate does not cover.
    let listener = tokio::net::TcpListener::bind("127.0.0.2:0").await.unwrap();
    let elsewhere = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let there = there.clone();
            tokio::spawn(async move {
                let mut far = tokio::net::TcpStream::connect(there).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    let account = real.simulator.credentials();
    let server = |trust: Trust| ServerSettings {
        endpoint: elsewhere.parse().unwrap(),
        system_id: None,
        lock_key: None,
        media: MediaSettings::default(),
        labels: BTreeMap::new(),
        username: account.username.clone(),
        password: SecretString::from(account.password.expose_secret()),
        trust,
    };
    let asked = |trust: Trust| {
        let settings =
            RedfishSettings { servers: [("node".to_owned(), server(trust))].into(), ..RedfishSettings::default() };
        let backend = RedfishBackend::new(settings, &(Arc::new(SystemClock::default()) as _)).unwrap();
        async move { backend.machine("node").unwrap().observe().await }
    };
    let authority = Trust::Authority(real.simulator.trust().unwrap().ca_pem.clone());
    let error = asked(authority).await.unwrap_err();
    assert!(matches!(error, BackendError::Untrusted { .. }), "{error:?}");
    assert!(real.simulator.journal(&JournalQuery::default()).is_empty(), "a request was sent");
    // Only the name mattered: with `Trust::Anything` the request succeeds.
    asked(Trust::Anything).await.unwrap();
}

#[tokio::test]
async fn certificates_are_judged_as_told() {
    let config = || SimulatorConfig::with_systems(1);
    let untrusted = Bench::with(config(), |settings| {
        for server in settings.servers.values_mut() {
            server.trust = Trust::System;
        }
    })
    .await;
    let error = untrusted.machine.observe().await.unwrap_err();
    assert!(matches!(&error, BackendError::Untrusted { .. }), "{error:?}");
    assert!(error.to_string().contains("ca_certificate_file"), "{error}");

    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem();
    let wrong = Bench::with(config(), |settings| {
        for server in settings.servers.values_mut() {
            server.trust = Trust::Authority(other.clone());
        }
    })
    .await;
    assert!(matches!(wrong.machine.observe().await, Err(BackendError::Untrusted { .. })));

    let pinned = Bench::with(config(), |settings| {
        for server in settings.servers.values_mut() {
            server.trust = Trust::Fingerprint([7; 32]);
        }
    })
    .await;
    let error = pinned.machine.observe().await.unwrap_err().to_string();
    let seen =
        error.split("SHA-256 is ").nth(1).and_then(|rest| rest.split('.').next()).unwrap_or_else(|| panic!("{error}"));
    let seen = parse_fingerprint(seen).unwrap();
    let url = pinned.simulator.url(&pinned.simulator.systems()[0]).unwrap();
    let account = pinned.simulator.credentials();
    let server = ServerSettings {
        endpoint: url.parse().unwrap(),
        system_id: None,
        lock_key: None,
        media: MediaSettings::default(),
        labels: BTreeMap::new(),
        username: account.username.clone(),
        password: SecretString::from(account.password.expose_secret()),
        trust: Trust::Fingerprint(seen),
    };
    let settings = RedfishSettings { servers: [("node".to_owned(), server)].into(), ..RedfishSettings::default() };
    let backend = RedfishBackend::new(settings, &(Arc::new(SystemClock::default()) as _)).unwrap();
    backend.machine("node").unwrap().observe().await.expect("the error showed the wrong fingerprint");

    let insecure = Bench::with(config(), |settings| {
        for server in settings.servers.values_mut() {
            server.trust = Trust::Anything;
        }
    })
    .await;
    insecure.machine.observe().await.unwrap();
}

#[tokio::test]
async fn answers_that_are_not_redfish_are_said_to_be() {
    let large = FaultAction::Answer { status: 200, body: FaultBody::Large(10 << 20), headers: vec![], apply: false };
    let html = FaultAction::Answer {
        status: 200,
        body: FaultBody::Html("<html>log in</html>".into()),
        headers: vec![],
        apply: false,
    };
    let cut = FaultAction::Truncate { bytes: 40, honest_length: true };
    let redirect = FaultAction::Redirect { location: "http://other.example/redfish/v1/".into() };
    for (action, says) in [
        (html, "web page"),
        (cut, "not JSON"),
        (large, "larger than 4 MiB"),
        (redirect, "redirected to http://other.example"),
    ] {
        let bench = Bench::new(Personality::generic()).await;
        bench.inject(action, "GET", "*");
        let error = bench.machine.observe().await.unwrap_err();
        assert!(matches!(&error, BackendError::Protocol { .. }), "{error:?}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[tokio::test]
async fn a_lost_reply_is_said_to_be_one_and_nothing_is_sent_twice() {
    for action in [FaultAction::LoseReply, FaultAction::Cut] {
        let bench = Bench::new(Personality::generic()).await;
        bench.machine.observe().await.unwrap();
        bench.inject(action.clone(), "POST", "*Reset*");
        let error = bench.machine.reset(ResetType::ForceOff).await.unwrap_err();
        assert!(error.outcome_unknown(), "{action:?}: {error:?}");
        assert_eq!(bench.requests("POST", "*Reset*"), 1, "{action:?}");
        let bench = Bench::new(Personality::generic()).await;
        bench.inject(action.clone(), "PATCH", "*");
        let error = bench.machine.set_boot_override(&once("Pxe"), false).await.unwrap_err();
        assert!(error.outcome_unknown(), "{action:?}: {error:?}");
        assert_eq!(bench.requests("PATCH", "*"), 1, "{action:?}");
    }
}

#[tokio::test]
async fn the_machines_own_words_reach_the_error() {
    let bench = Bench::new(Personality::generic()).await;
    let body = FaultBody::Error { key: "ResourceInUse".into(), message: "The system is in POST".into() };
    bench.inject(FaultAction::Answer { status: 409, body, headers: vec![], apply: false }, "POST", "*Reset*");
    let error = bench.machine.reset(ResetType::ForceOff).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    assert!(error.to_string().contains("The system is in POST"), "{error}");
}

#[tokio::test]
async fn a_bmc_that_asks_to_wait_is_asked_again_and_a_dead_one_is_not_waited_for_twice() {
    let bench = Bench::new(Personality::generic()).await;
    let _ = bench
        .simulator
        .inject(Fault::new(FaultAction::Busy { retry_after_seconds: 1 }).on_request("GET", "*").times(1));
    bench.machine.observe().await.expect("asked again");

    let bmc = bench.simulator.bmc_of(&bench.simulator.systems()[0]).unwrap();
    for dead in [Availability::Silent, Availability::Refusing] {
        bench.simulator.set_availability(&bmc, dead).await.unwrap();
        let error = bench.machine.observe().await.unwrap_err();
        assert!(matches!(error, BackendError::Unreachable { .. }), "{dead:?}: {error:?}");
        let before = bench.simulator.sequence();
        assert!(bench.machine.observe().await.is_err());
        assert_eq!(bench.simulator.sequence(), before, "{dead:?}: the second read sent a request");
        bench.simulator.set_availability(&bmc, Availability::Up).await.unwrap();
    }
}

fn answer(status: u16, key: &str, apply: bool) -> FaultAction {
    let body = FaultBody::Error { key: key.into(), message: "simulated failure".into() };
    FaultAction::Answer { status, body, headers: vec![], apply }
}

#[tokio::test]
async fn an_answer_that_does_not_tell_what_was_done_leaves_the_outcome_unknown() {
    for status in [500, 502, 504] {
        let bench = Bench::new(Personality::generic()).await;
        bench.inject(answer(status, "InternalError", true), "POST", "*Reset*");
        let error = bench.machine.reset(ResetType::ForceRestart).await.unwrap_err();
        assert!(error.outcome_unknown(), "{status}: {error:?}");
        assert!(error.to_string().contains("simulated failure"), "{error}");
        assert_eq!(bench.requests("POST", "*Reset*"), 1, "{status}");
    }
    for (status, key) in [(503, "InternalError"), (500, "UnableToModifyDuringSystemPOST"), (409, "InternalError")] {
        let bench = Bench::new(Personality::generic()).await;
        bench.inject(answer(status, key, false), "POST", "*Reset*");
        let error = bench.machine.reset(ResetType::ForceRestart).await.unwrap_err();
        assert!(!error.outcome_unknown() && error.is_transient(), "{status} {key}: {error:?}");
    }
}

#[tokio::test]
async fn a_success_that_cannot_be_read_leaves_the_outcome_unknown() {
    let mut personality = Personality::generic();
    personality.power.accepted = bmc_simulator::Accepted::Ok;
    let bench = Bench::new(personality).await;
    bench.inject(FaultAction::Truncate { bytes: 10, honest_length: true }, "POST", "*Reset*");
    let error = bench.machine.reset(ResetType::ForceRestart).await.unwrap_err();
    assert!(error.outcome_unknown(), "{error:?}");
}

#[tokio::test]
async fn a_redirect_on_the_bmc_itself_is_followed_for_reads_and_changes() {
    for status in [301, 302, 307, 308] {
        let bench = Bench::new(Personality::generic()).await;
        let moved = |location: &str| FaultAction::Answer {
            status,
            body: FaultBody::Empty,
            headers: vec![("Location".into(), location.into())],
            apply: false,
        };
        bench.inject(moved("/redfish/v1/Systems/1/"), "GET", "/redfish/v1/Systems/1");
        let reset = "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset";
        bench.inject(moved(&format!("{reset}/")), "POST", reset);
        bench.inject(moved("/redfish/v1/SessionService/Sessions/"), "POST", "/redfish/v1/SessionService/Sessions");
        assert_eq!(bench.machine.observe().await.unwrap().power, PowerState::On, "{status}");
        bench.machine.reset(ResetType::ForceOff).await.unwrap_or_else(|error| panic!("{status}: {error}"));
        bench.settled(PowerState::Off).await;
        assert_eq!(bench.requests("POST", "/redfish/v1/SessionService/Sessions/"), 1, "{status}: a session was opened");
    }
}

#[tokio::test]
async fn no_request_follows_a_redirect_to_another_host() {
    let other = Bench::new(Personality::generic()).await;
    let bench = Bench::new(Personality::generic()).await;
    let url = other.simulator.url(&other.simulator.systems()[0]).unwrap();
    bench.inject(FaultAction::Redirect { location: format!("{url}/redfish/v1/") }, "GET", "*");
    let error = bench.machine.observe().await.unwrap_err();
    assert!(matches!(&error, BackendError::Protocol { .. }), "{error:?}");
    assert_eq!(other.requests("GET", "*"), 0);
}

#[tokio::test]
async fn a_partial_override_that_is_refused_is_sent_once_as_a_whole() {
    let mut personality = Personality::generic();
    personality.boot.required =
        ["BootSourceOverrideTarget", "BootSourceOverrideEnabled", "BootSourceOverrideMode"].map(String::from).to_vec();
    let bench = Bench::new(personality).await;
    bench.machine.set_boot_override(&once("Pxe"), false).await.unwrap();
    assert_eq!(bench.requests("PATCH", "*"), 2, "a partial PATCH, then the complete one");
    let disarm = BootOverride { enabled: Some("Disabled".into()), ..BootOverride::default() };
    bench.machine.set_boot_override(&disarm, false).await.unwrap();
    assert!(bench.machine.observe().await.unwrap().boot.unwrap().is_disabled());
}

#[tokio::test]
async fn a_weak_entity_tag_that_is_refused_is_sent_in_its_strong_form_and_then_left_out() {
    let mut personality = Personality::generic();
    personality.http.etags = bmc_simulator::Etags::Weak;
    let bench = Bench::new(personality).await;
    let refuse = Fault::new(answer(412, "PreconditionFailed", false)).on_request("PATCH", "*").times(2);
    let _ = bench.simulator.inject(refuse);
    bench.machine.set_boot_override(&once("Pxe"), false).await.unwrap();
    let sent = bench.simulator.journal(&JournalQuery::default().request("PATCH", "*"));
    let tags: Vec<Option<&str>> = sent.iter().map(|entry| entry.if_match.as_deref()).collect();
    assert!(
        matches!(tags[..], [Some(weak), Some(strong), None] if weak.strip_prefix("W/") == Some(strong)),
        "{tags:?}"
    );
}

#[tokio::test]
async fn a_drive_without_actions_is_filled_and_emptied_by_writing_to_it() {
    let mut personality = Personality::generic();
    personality.media.by_patch = true;
    let bench = Bench::new(personality).await;
    let slot = bench.machine.media(&[]).await.unwrap().into_iter().find(MediaSlot::is_optical).unwrap().slot;
    bench.machine.insert_medium(slot.raw(), "http://images.example/a.iso", true).await.unwrap();
    let name = &bench.simulator.systems()[0];
    assert_eq!(bench.simulator.system(name).unwrap().media.len(), 1);
    bench.machine.eject_medium(slot.raw()).await.unwrap();
    assert_eq!(bench.simulator.system(name).unwrap().media.len(), 0);
}

#[tokio::test]
async fn what_is_empty_counts_as_ejected_and_asked_parameters_are_added() {
    let mut personality = Personality::generic();
    personality.media.eject_empty_refused = true;
    personality.media.required_parameters = vec!["TransferProtocolType".into()];
    let bench = Bench::new(personality).await;
    let slot = bench.machine.media(&[]).await.unwrap()[0].slot.clone();
    bench.machine.eject_medium(slot.raw()).await.unwrap();
    bench.machine.insert_medium(slot.raw(), "https://images.example/a.iso", true).await.unwrap();
    assert_eq!(bench.requests("POST", "*InsertMedia"), 2);
}

#[tokio::test]
async fn credentials_that_were_accepted_are_tried_once_more_after_a_while_and_then_no_more() {
    let bench = Bench::with(SimulatorConfig::with_systems(1), |settings| {
        settings.authentication = Authentication::Basic;
    })
    .await;
    bench.machine.observe().await.unwrap();
    let refuse = || Fault::new(answer(401, "NoValidSession", false)).on_request("*", "*");
    for (times, works) in [(1, true), (9, false)] {
        let fault = bench.simulator.inject(Fault { method: None, ..refuse() }.times(times));
        let before = bench.simulator.sequence();
        for _ in 0..3 {
            let error = bench.machine.observe().await.unwrap_err();
            assert!(error.is_transient(), "the first refusal is not transient: {error:?}");
        }
        assert_eq!(bench.simulator.journal(&JournalQuery::default().since(before)).len(), 1, "asked once");
        bench.clock.pass(bench.settings.patience.doubt);
        let again = bench.machine.observe().await;
        assert_eq!(again.is_ok(), works, "{again:?}");
        if !works {
            assert!(matches!(again, Err(BackendError::Unauthorized { .. })), "{again:?}");
            let asked = bench.simulator.sequence();
            assert!(bench.machine.observe().await.is_err());
            assert_eq!(bench.simulator.sequence(), asked, "a third request was sent");
        }
        bench.simulator.remove_fault(fault).unwrap();
    }
}

#[tokio::test]
async fn a_bmc_that_starts_anew_is_away_and_not_gone() {
    let html =
        FaultAction::Answer { status: 200, body: FaultBody::Html("<html>".into()), headers: vec![], apply: false };
    let cut = FaultAction::Truncate { bytes: 40, honest_length: true };
    for action in [answer(404, "ResourceMissingAtURI", false), html, cut] {
        let bench = Bench::with(SimulatorConfig::with_systems(1), |_| {}).await;
        bench.machine.observe().await.unwrap();
        bench.inject(action.clone(), "GET", "/redfish/v1/Systems/1");
        let error = bench.machine.observe().await.unwrap_err();
        assert!(error.is_transient(), "{action:?}: {error:?}");
        bench.clock.pass(bench.settings.patience.away);
        let error = bench.machine.observe().await.unwrap_err();
        assert!(!error.is_transient(), "still transient after the grace period: {error:?}");
        bench.simulator.clear_faults();
        bench.machine.observe().await.unwrap();
    }
}

#[tokio::test]
async fn a_log_in_without_a_reply_is_not_repeated_and_loses_no_change() {
    let bench = Bench::new(Personality::generic()).await;
    bench.inject(FaultAction::LoseReply, "POST", "*Sessions");
    bench.machine.observe().await.unwrap();
    bench.machine.reset(ResetType::ForceOff).await.unwrap();
    bench.settled(PowerState::Off).await;
    assert_eq!(bench.requests("POST", "*Sessions"), 1, "more than one session was created");
}

#[tokio::test]
async fn a_task_that_failed_is_told_in_its_own_words_and_a_forgotten_one_is_no_failure() {
    let mut personality = Personality::generic();
    personality.power.accepted = bmc_simulator::Accepted::Task;
    let failed = |id: &str| {
        let messages = serde_json::json!([{ "MessageId": id, "Message": "the job was lost" }]);
        FaultAction::Answer {
            status: 200,
            body: FaultBody::Json(serde_json::json!({ "TaskState": "Exception", "Messages": messages })),
            headers: vec![],
            apply: false,
        }
    };
    for (id, unknown) in [("Base.1.12.ResourceInUse", false), ("Base.1.12.InternalError", true)] {
        let bench = Bench::new(personality.clone()).await;
        bench.inject(failed(id), "GET", "*Task*");
        let error = bench.machine.reset(ResetType::ForceRestart).await.unwrap_err();
        assert_eq!(error.outcome_unknown(), unknown, "{error:?}");
        assert!(error.to_string().contains("the job was lost"), "{error}");
        assert!(!error.to_string().contains("answered with"), "the request was accepted: {error}");
    }
    let bench = Bench::new(personality.clone()).await;
    bench.inject(answer(409, "ResourceInUse", false), "GET", "*TaskMonitors*");
    let error = bench.machine.reset(ResetType::ForceRestart).await.unwrap_err();
    assert!(error.outcome_unknown() && error.to_string().contains("its task failed"), "{error}");
    let bench = Bench::new(personality).await;
    bench.inject(answer(404, "ResourceMissingAtURI", false), "GET", "*Task*");
    bench.machine.reset(ResetType::ForceOff).await.unwrap();
}

#[tokio::test]
async fn a_task_that_fails_after_its_call_has_returned_is_told_once() {
    let mut personality = Personality::generic();
    personality.power.accepted = bmc_simulator::Accepted::Task;
    let bench = Bench::new(personality).await;
    let standing = |body: serde_json::Value| FaultAction::Answer {
        status: 200,
        body: FaultBody::Json(body),
        headers: vec![],
        apply: false,
    };
    bench.inject(standing(serde_json::json!({ "TaskState": "Running" })), "GET", "*Task*");
    bench.machine.reset(ResetType::ForceRestart).await.unwrap();
    assert!(bench.machine.late_answer().await.is_none(), "the task is still running");
    bench.simulator.clear_faults();
    let messages =
        serde_json::json!([{ "MessageId": "Base.1.12.InternalError", "Message": "the fan tray is missing" }]);
    let failed = serde_json::json!({ "TaskState": "Exception", "Messages": messages });
    bench.inject(standing(failed), "GET", "*Task*");
    let error = bench.machine.late_answer().await.unwrap();
    assert!(error.to_string().contains("the fan tray is missing") && error.outcome_unknown(), "{error}");
    assert!(bench.machine.late_answer().await.is_none(), "once");
}

#[tokio::test]
async fn a_system_of_the_second_page_is_no_less_a_system() {
    let bench = Bench::new(Personality::generic()).await;
    let page = |members: &[&str], next: Option<&str>| {
        let members: Vec<_> = members.iter().map(|path| serde_json::json!({ "@odata.id": path })).collect();
        let mut body = serde_json::json!({ "Members": members });
        if let Some(next) = next {
            body["Members@odata.nextLink"] = next.into();
        }
        FaultAction::Answer { status: 200, body: FaultBody::Json(body), headers: vec![], apply: false }
    };
    let second = "/redfish/v1/Systems/page2";
    bench.inject(page(&["/redfish/v1/Systems/1"], Some(second)), "GET", "/redfish/v1/Systems");
    bench.inject(page(&["/redfish/v1/Systems/2"], None), "GET", second);
    let other = FaultAction::Answer {
        status: 200,
        body: FaultBody::Json(serde_json::json!({ "Actions": { "#ComputerSystem.Reset": { "target": "/x" } } })),
        headers: vec![],
        apply: false,
    };
    bench.inject(other, "GET", "/redfish/v1/Systems/2");
    let error = bench.machine.observe().await.unwrap_err().to_string();
    assert!(error.contains("2 systems"), "{error}");
}

#[tokio::test]
async fn settings_that_lead_nowhere_and_values_that_are_only_at_the_system_do_no_harm() {
    let mut personality = Personality::generic();
    personality.boot.writable_on = BootResource::Both;
    let bench = Bench::new(personality).await;
    bench.inject(answer(404, "ResourceMissingAtURI", false), "GET", "*ettings");
    bench.machine.observe().await.unwrap();
    bench.machine.set_boot_override(&once("Pxe"), false).await.unwrap();
    assert_eq!(bench.machine.observe().await.unwrap().boot.unwrap().target.as_raw(), Some("Pxe"));
}

#[tokio::test]
async fn a_bmc_that_asks_for_a_longer_pause_is_left_alone_for_that_time() {
    let bench = Bench::new(Personality::generic()).await;
    bench.machine.observe().await.unwrap();
    let busy = FaultAction::Busy { retry_after_seconds: 4 };
    let _ = bench.simulator.inject(Fault::new(busy).on_request("GET", "*").times(1));
    assert!(bench.machine.observe().await.unwrap_err().is_transient());
    let asked = bench.simulator.sequence();
    let error = bench.machine.reset(ResetType::ForceOff).await.unwrap_err();
    assert!(error.is_transient() && !error.outcome_unknown(), "{error:?}");
    assert_eq!(bench.simulator.sequence(), asked, "a request was sent before Retry-After ended");
    tokio::time::sleep(Duration::from_secs(4)).await;
    bench.machine.reset(ResetType::ForceOff).await.unwrap();
}
