//! Invalid input causes a clear error with the attribute's path and changes nothing.

use bmc_simulator::{Fault, FaultAction, FaultBody, JournalQuery, Personality, ResetType, SimulatorConfig};

use crate::support::{
    host::Host,
    images::Images,
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

fn boot(more: &str) -> String {
    maintenance("node1", "m", &format!("server_power = \"On\"\n  boot_configuration = {{ {more} }}"))
}

for_each_host! {
    async fn what_is_written_wrongly_is_refused_at_plan_with_its_place(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let usual = |more: &str| maintenance("node1", "m", more);
        for (body, says) in [
            (maintenance("node9", "m", ""), "node9 is not configured"),
            (usual("expires_after = \"soon\""), "Invalid duration"),
            (usual("timeouts = { create = \"-5m\" }"), "Invalid duration"),
            (usual("reason = \"\""), "Must not be empty"),
            (usual(&format!("reason = \"{}\"", "x".repeat(1025))), "is 1025 characters long; at most 1024"),
            (usual(&format!("ticket = \"{}\"", "x".repeat(2049))), "is 2049 characters long; at most 2048"),
            (usual(&format!("triggers = {{ a = \"{}\" }}", "x".repeat(1025))), "value of \"a\" is 1025 characters"),
            (usual("priority = 101"), "is 101; -100 to 100 are allowed"),
            (usual("priority = -101"), "is -101; -100 to 100 are allowed"),
            (maintenance("node1", "", ""), "Invalid name"),
            (maintenance("", "m", ""), "Must not be empty"),
            (usual("server_power = \"Sideways\""), "Invalid value"),
            (usual("wait_for = \"Completed\""), "complete_when is missing"),
            (usual("escalate_after = \"1h\""), "Only with OwnerApproval"),
            (usual("require_claim = true"), "Only with OwnerApproval"),
            (boot("method = \"http\", image = \"ftp://x/y\""), "Invalid URL"),
            (boot("method = \"http\", image = \"nonsense\""), "Invalid URL"),
            (boot("method = \"http\""), "An image is needed"),
            (boot("method = \"pxe\", image = \"http://x/y\""), "This method does not boot an image"),
            (boot("method = \"floppy\""), "Invalid value"),
            (boot("method = \"http\", image = \"http://x/y\", image_sha256 = \"abc\""), "Not a SHA-256"),
            (boot("method = \"pxe\", ignition = { url = \"http://x/y\" }"), "Ignition is not supported with this \
                                                                             method"),
        ] {
            fleet.configure(&workspace, &body);
            let run = workspace.try_plan().await.failed();
            run.says(says).says("on main.tf line");
        }
        assert_eq!(fleet.changes("node1"), [""; 0]);
    }
}

for_each_host! {
    async fn what_the_machine_cannot_do_is_refused_at_plan(host) {
        let mut personality = Personality::generic();
        personality.power.reset_types = vec![ResetType::ForceRestart];
        personality.boot.targets.retain(|target| *target != bmc_simulator::BootTarget::Pxe);
        let fleet = Fleet::with(SimulatorConfig::with_systems(1).with_personality(personality)).await;
        let workspace = Workspace::new(host);
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"On\""));
        workspace.try_plan().await.failed().says("does not accept the reset type On").says("server_power");
        fleet.configure(&workspace, &maintenance("node1", "m", "boot_configuration = { method = \"pxe\" }"));
        workspace.try_plan().await.failed().says("cannot boot from Pxe");
        assert_eq!(fleet.changes("node1"), [""; 0]);
    }
}

for_each_host! {
    async fn a_drive_and_a_target_that_the_bmc_does_not_list_are_refused_at_plan(host) {
        let (fleet, workspace, images) = (Fleet::new(1).await, Workspace::new(host), Images::start().await);
        let boot = format!(
            "server_power = \"On\"\n  boot_configuration = {{ method = \"virtual_media\", image = \"{}\" }}",
            images.url("rescue.iso")
        );
        fleet.configure(&workspace, &maintenance("node1", "m", &boot));
        let inventory = std::fs::read_to_string(workspace.folder().join("servers.yaml")).unwrap();
        for (setting, says) in [("media_slot: Nine", "does not list the virtual drive Nine"), ("boot_target: Vcd", "cannot boot from Vcd")] {
            let with = inventory.replacen("endpoint:", &format!("{setting}\n  endpoint:"), 1);
            workspace.write("servers.yaml", &with);
            workspace.try_plan().await.failed().says(says);
        }
        assert_eq!(fleet.changes("node1"), [""; 0]);
    }
}

for_each_host! {
    async fn a_provider_that_cannot_work_says_so(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let body = maintenance("node1", "m", "");
        fleet.configure_with(&workspace, "metal_operator = { context = \"none\" }", &body);
        workspace.try_plan().await.failed().says("Two backends in one provider configuration");
        let with = |redfish: &str| format!("provider \"metal\" {{\n  redfish = {{ {redfish} }}\n}}\n{body}");
        for (redfish, says) in [
            ("servers = { node1 = { endpoint = \"https://127.0.0.1:1\" } }", "does not have credentials"),
            ("servers = { node1 = { endpoint = \"nonsense\" } }", "is not a URL"),
            ("servers = { node1 = { endpoint = \"https://u:p@127.0.0.1\" } }", "contains credentials"),
            ("inventory_file = \"/nowhere.yaml\"", "cannot be read"),
            ("username = \"a\"\n password = \"b\"\n servers = { node1 = { endpoint = \"https://127.0.0.1:1\", certificate_sha256 = \"zz\" } }", "64 hexadecimal digits"),
        ] {
            workspace.configure(&with(redfish));
            workspace.try_plan().await.failed().says(says);
        }
        for (url, says) in [
            ("kubernetes://Metal_1", "is not a valid namespace name"),
            ("kubernetes://metal?prefix=x", "unknown parameter"),
            ("kubernetes://metal?kubeconfig=/nowhere", "/nowhere"),
        ] {
            workspace.configure(&format!("provider \"metal\" {{\n  coordination_url = \"{url}\"\n}}\n{body}"));
            workspace.try_plan().await.failed().says(says);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_one_try_in_a_plan() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    fleet.configure(&workspace, &maintenance("node1", "m", ""));
    let text = std::fs::read_to_string(workspace.folder().join("main.tf")).unwrap();
    std::fs::write(workspace.folder().join("main.tf"), text.replace("simulated-password", "wrong")).unwrap();
    workspace.try_plan().await.failed().says("refused the credentials");
    let refused = fleet.simulator.journal(&JournalQuery { status: Some(401), ..JournalQuery::default() });
    assert_eq!(refused.len(), 1, "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_authority_and_strange_answers_are_named() {
    let (fleet, stranger) = (Fleet::new(1).await, Fleet::new(1).await);
    let workspace = Workspace::new(Host::OpenTofu);
    fleet.configure(&workspace, &maintenance("node1", "m", ""));
    workspace.write("bmc-ca.pem", &stranger.simulator.trust().unwrap().ca_pem);
    workspace.try_plan().await.failed().says("is not trusted").says("ca_certificate_file");
    workspace.write("bmc-ca.pem", &fleet.simulator.trust().unwrap().ca_pem);
    let answer = |body| FaultAction::Answer { status: 200, body, headers: vec![], apply: false };
    for (action, says) in [
        (answer(FaultBody::Html("<html>hello</html>".into())), "web page instead of Redfish"),
        (FaultAction::Truncate { bytes: 30, honest_length: true }, "is not JSON"),
        (answer(FaultBody::Large(10 << 20)), "larger than 4 MiB"),
        (
            FaultAction::Redirect { location: "http://127.0.0.9:1/redfish/v1/".into() },
            "redirected to http://127.0.0.9:1",
        ),
    ] {
        let fault = fleet.simulator.inject(Fault::new(action).on_request("GET", "*"));
        workspace.try_plan().await.failed().says(says).says("node1");
        fleet.simulator.remove_fault(fault).unwrap();
    }
    workspace.apply().await.succeeded();
    workspace.destroy().await.succeeded();
}
