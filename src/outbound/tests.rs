//! Attacks: names and addresses that redirect credentials. `0.0.0.0` acts as another machine: it is
//! not a loopback address, but Linux connects it to the local machine.

use std::{net::SocketAddr, sync::Mutex};

use kube::Config;
use reqwest::Method;
use tokio::{io::AsyncReadExt as _, net::TcpListener};

use super::{kubernetes::guarded, *};

/// A server that records each request and does not answer.
async fn listener(at: &str) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind((at, 0)).await.unwrap();
    let (address, heard) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
    let all = Arc::clone(&heard);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut part = [0; 4096];
            let read = stream.read(&mut part).await.unwrap_or_default();
            all.lock().unwrap().push(String::from_utf8_lossy(&part[..read]).into_owned());
        }
    });
    (address, heard)
}

/// Sends a password to a host, and returns why it was refused.
async fn send(route: &Route, host: &str, port: u16) -> Option<String> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let client = HttpClient::new(false, route.clone(), Ok).unwrap();
    match client.request(Method::GET, format!("http://{host}:{port}/").parse().unwrap()) {
        Err(refused) => Some(refused.to_string()),
        Ok(request) => refusal(&request.basic_auth("admin", Some("hunter2")).send().await.unwrap_err()),
    }
}

#[tokio::test]
async fn plain_text_leaves_this_machine_only_by_the_named_setting() {
    let (address, heard) = listener("127.0.0.1").await;
    let names: &[_] = &[
        ("ironic", "0.0.0.0"),
        ("localhost", "0.0.0.0"),
        ("here", "127.0.0.1"),
        ("both", "127.0.0.1"),
        ("both", "0.0.0.0"),
    ];
    let route = Route::new(false, "ironic.plain_http = true").named(names);
    for host in ["ironic", "localhost", "0.0.0.0", "[::]", "[::ffff:0.0.0.0]"] {
        let refused = send(&route, host, address.port()).await.unwrap_or_else(|| panic!("{host}"));
        assert!(refused.contains("set ironic.plain_http = true"), "{refused}");
        assert!(heard.lock().unwrap().is_empty(), "{host}");
    }
    for host in ["here", "both", "127.0.0.1"] {
        assert_eq!(send(&route, host, address.port()).await, None, "{host}");
    }
    let opted_in = Route::new(true, "").named(names);
    assert_eq!(send(&opted_in, "ironic", address.port()).await, None);
    assert_eq!(heard.lock().unwrap().iter().filter(|said| said.contains("authorization: Basic")).count(), 4);
}

#[tokio::test]
async fn credentials_of_a_cluster_stay_within_the_networks_whatever_the_name_leads_to() {
    let (theirs, overheard) = listener("127.0.0.2").await;
    let names: &[_] = &[("bmc", "127.0.0.2"), ("both", "127.0.0.2"), ("both", "127.0.0.1")];
    let within = |networks: &[&str]| Within {
        networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
        setting: "metal3.bmc_networks",
    };
    let route = Route::new(true, "").named(names);
    let bmcs = route.clone().within(within(&["127.0.0.1/32", "10.0.0.0/24"]));
    for host in ["bmc", "127.0.0.2", "[::ffff:127.0.0.2]"] {
        let refused = send(&bmcs, host, theirs.port()).await.unwrap_or_else(|| panic!("{host}"));
        assert!(refused.contains("add \"127.0.0.0/24\" to metal3.bmc_networks"), "{refused}");
        let https = format!("https://{host}:{}", theirs.port()).parse().unwrap();
        assert!(bmcs.check(&https).await.is_err() && bmcs.connect(&https).await.is_err(), "{host}: https, too");
    }
    // The client uses the name's allowed address only, where no server listens.
    assert_eq!(send(&bmcs, "both", theirs.port()).await, None);
    assert!(overheard.lock().unwrap().is_empty());
    let unset = send(&route.clone().within(within(&[])), "bmc", theirs.port()).await.unwrap();
    assert!(unset.contains("which is not set"), "{unset}");
    assert_eq!(send(&route.within(within(&["127.0.0.0/24"])), "bmc", theirs.port()).await, None);
    assert_eq!(overheard.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn no_token_of_a_cluster_goes_in_plain_text() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (address, heard) = listener("127.0.0.1").await;
    let ask = async |host: &str, names: Names, skip: bool| {
        let mut config = Config::new(format!("http://{host}:{}", address.port()).parse().unwrap());
        config.auth_info.token = Some("hunter2".to_owned().into());
        config.accept_invalid_certs = skip;
        let client = guarded(config, names).await.map_err(|error| error.to_string())?;
        Ok::<_, String>(client.apiserver_version().await.is_err())
    };
    let names = Names::Fixed(&[("api", "0.0.0.0"), ("localhost", "0.0.0.0"), ("here", "127.0.0.1")]);
    for host in ["0.0.0.0", "api", "localhost"] {
        let refused = ask(host, names.clone(), false).await.unwrap_err();
        assert!(refused.contains("insecure-skip-tls-verify"), "{refused}");
    }
    assert!(heard.lock().unwrap().is_empty());
    // The name is not resolved again, because the system does not have it.
    assert_eq!(ask("here", names.clone(), false).await, Ok(true));
    assert_eq!(ask("0.0.0.0", names, true).await, Ok(true));
    assert!(heard.lock().unwrap().iter().filter(|said| said.contains("Bearer hunter2")).count() >= 2);
}
