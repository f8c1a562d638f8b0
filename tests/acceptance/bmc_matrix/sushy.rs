//! Every method and operation on sushy-tools' emulator, judged by DMTF's client. Both are
//! independent of this project.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::{
    host::Host,
    images::Images,
    sushy::{Driver, Options, Sushy},
    workspace::Workspace,
};

use super::{APPLY, DESTROY, errors, said};

/// One case per machine: resource, arguments, and the resulting power and boot source.
const ASKED: [(&str, &str, &str, Option<&str>); 9] = [
    ("maintenance", "server_power = \"Off\"", "Off", None),
    ("maintenance", "server_power = \"On\"", "On", None),
    ("boot_configuration", "method = \"http\"\n  image = \"IMAGES/rescue.efi\"", "On", Some("UefiHttp")),
    ("boot_configuration", "method = \"virtual_media\"\n  image = \"IMAGES/rescue.iso\"", "On", Some("Cd")),
    ("boot_configuration", "method = \"pxe\"", "On", Some("Pxe")),
    ("boot_configuration", "method = \"disk\"", "On", Some("Hdd")),
    ("operation", "operation = \"ForceRestart\"", "On", None),
    ("operation", "operation = \"GracefulShutdown\"", "Off", None),
    ("operation", "operation = \"PowerCycle\"", "On", None),
];

fn resource(number: usize, images: &Images) -> String {
    let (kind, arguments, ..) = ASKED[number];
    let arguments = arguments.replace("IMAGES", images.url("").trim_end_matches('/'));
    let called = if kind == "boot_configuration" {
        "server_power = \"On\"".to_owned()
    } else {
        format!("namespace = \"sushy\"\n  name = \"m{number}\"\n  policy = \"Enforced\"")
    };
    format!(
        "resource \"metal_server_{kind}\" \"r{number}\" {{\n  server = \"n{number}\"\n  {called}\n  {arguments}\n}}\n"
    )
}

fn configuration(sushy: &Sushy, images: &Images, kept: &[usize]) -> String {
    configuration_of(sushy, images, &(0..ASKED.len()).collect::<Vec<_>>(), kept)
}

fn configuration_of(sushy: &Sushy, images: &Images, servers: &[usize], kept: &[usize]) -> String {
    let servers: String = servers
        .iter()
        .map(|n| {
            format!("      n{n} = {{ endpoint = \"{}\", system_id = \"{}\" }}\n", sushy.url(), sushy.system(n + 1))
        })
        .collect();
    let mut text = format!(
        "provider \"metal\" {{\n  redfish = {{\n    servers = {{\n{servers}    }}\n    username = \"admin\"\n    password = \
         \"{}\"\n    ca_certificate_file = \"${{path.module}}/bmc-ca.pem\"\n    request_timeout = \"15s\"\n    read_timeout = \
         \"60s\"\n  }}\n}}\n",
        sushy.password()
    );
    for number in kept {
        text.push_str(&resource(*number, images));
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emulator_that_is_not_ours_does_what_it_lists_or_the_plan_refuses_it() {
    let sushy = Sushy::start(Options { powered_on: true, systems: ASKED.len(), ..Options::default() }).await;
    let (images, workspace) = (Images::start().await, Workspace::new(Host::OpenTofu));
    workspace.write("bmc-ca.pem", &std::fs::read_to_string(&sushy.certificates().unwrap().authority).unwrap());
    let client = sushy.client();
    let path = |number: usize| format!("/redfish/v1/Systems/{}", sushy.system(number + 1));
    let mut before = Vec::new();
    for number in 0..ASKED.len() {
        before.push(client.machine(&path(number)).await);
    }
    let all: Vec<usize> = (0..ASKED.len()).collect();
    workspace.configure(&configuration(&sushy, &images, &all));
    let run = workspace.run(&["plan", "-input=false", "-json"]).await;
    let refused = errors(&said(&run));
    let changes: Vec<String> = sushy
        .requests()
        .into_iter()
        .filter(|request| !request.starts_with("GET") && !request.contains("/SessionService/"))
        .collect();
    assert_eq!(changes, [""; 0], "changed by a plan");
    let kept: Vec<usize> = all
        .into_iter()
        .filter(|number| !refused.keys().any(|address| address.ends_with(&format!(".r{number}"))))
        .collect();
    // This version lists everything except PowerCycle.
    let shown: BTreeMap<&String, &String> = refused.iter().collect();
    assert_eq!(kept, [0, 1, 2, 3, 4, 5, 6, 7], "{shown:#?}");

    workspace.configure(&configuration(&sushy, &images, &kept));
    // The emulator lists HttpBootUri but refuses it: it would fill a drive, which its in-memory
    // machines lack (2.2.0).
    let failed = errors(&said(&workspace.run(&APPLY).await.failed()));
    let addresses: Vec<&str> = failed.keys().map(String::as_str).collect();
    assert_eq!(addresses, ["metal_server_boot_configuration.r2"], "{failed:#?}");
    let told = failed.values().next().unwrap();
    assert!(told.contains("was refused") && told.contains("The server was restored"), "{told}");
    assert_eq!(client.machine(&path(2)).await, before[2]);
    let kept: Vec<usize> = kept.into_iter().filter(|number| *number != 2).collect();
    workspace.configure(&configuration(&sushy, &images, &kept));
    let mut during = BTreeMap::new();
    for number in &kept {
        let (kind, arguments, power, target) = ASKED[*number];
        let machine = client.machine(&path(*number)).await;
        assert_eq!(machine.power, power, "{kind} {arguments}");
        if let Some(target) = target {
            assert_eq!(machine.boot["BootSourceOverrideTarget"], target, "{kind} {arguments}");
        }
        let filled = machine.media.iter().any(|(_, image, inserted)| *inserted && *image != Value::Null);
        assert_eq!(filled, target == Some("Cd"), "{kind} {arguments}: {:?}", machine.media);
        during.insert(*number, machine);
    }
    workspace.plan().await.is_empty();
    workspace.run(&DESTROY).await.succeeded();
    for (number, held) in during {
        let after = client.machine(&path(number)).await;
        let (kind, arguments, ..) = ASKED[number];
        let wanted = if kind == "operation" { &held } else { &before[number] };
        assert_eq!(&after, wanted, "{kind} {arguments}");
    }
}

/// The same service with libvirt, whose only machine runs one case after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "part of make soak: the other driver tests the same in less time"]
async fn an_emulator_before_libvirt_does_what_it_lists_or_the_plan_refuses_it() {
    const MACHINE: usize = 0;
    let options = Options { driver: Driver::Libvirt, powered_on: true, ..Options::default() };
    let (sushy, images) = (Sushy::start(options).await, Images::start().await);
    let (client, path) = (sushy.client(), format!("/redfish/v1/Systems/{}", sushy.system(MACHINE + 1)));
    // Allowable values decide the rest: HttpBootUri and PowerCycle are missing. The listed drives
    // do not exist.
    for (number, possible) in [(0, true), (1, true), (2, false), (4, true), (5, true), (8, false), (6, true), (7, true)]
    {
        let (kind, arguments, power, target) = ASKED[number];
        let asked = format!("{kind} {arguments}");
        let workspace = Workspace::new(Host::OpenTofu);
        workspace.write("bmc-ca.pem", &std::fs::read_to_string(&sushy.certificates().unwrap().authority).unwrap());
        let before = client.machine(&path).await;
        assert_eq!(before.power, "On", "{asked}");
        let resource = resource(number, &images).replace(&format!("\"n{number}\""), &format!("\"n{MACHINE}\""));
        let provider = configuration_of(&sushy, &images, &[MACHINE], &[]);
        workspace.configure(&format!("{provider}{resource}"));
        if !possible {
            let refused = errors(&said(&workspace.run(&["plan", "-input=false", "-json"]).await.failed()));
            assert_eq!(refused.len(), 1, "{asked}: {refused:#?}");
            assert_eq!(client.machine(&path).await, before, "{asked}: a plan changed it");
            continue;
        }
        workspace.run(&APPLY).await.succeeded();
        let held = client.machine(&path).await;
        assert_eq!(held.power, power, "{asked}");
        if let Some(target) = target {
            assert_eq!(held.boot["BootSourceOverrideTarget"], target, "{asked}");
        }
        workspace.plan().await.is_empty();
        workspace.run(&DESTROY).await.succeeded();
        let after = client.machine(&path).await;
        assert_eq!(after, if kind == "operation" { held } else { before }, "{asked}");
    }
}
