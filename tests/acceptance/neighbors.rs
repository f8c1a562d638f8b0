//! A server's neighbors: boards and servers behind one BMC, unused fields, shared drives
//! and machines that report one identity.

use std::sync::Arc;

use bmc_simulator::{
    Fault, FaultAction, MediaPath, Personality, Place, PowerState, Quirks, Reply, RequestView, SimulatorConfig,
    SystemUuid,
};
use secrecy::ExposeSecret as _;

use crate::support::{
    run::Run,
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

/// The board next to the host.
const BOARD: &str = "HGX_Baseboard_0";

/// Hides the reset action of [`BOARD`].
#[derive(Debug)]
struct Board;

impl Quirks for Board {
    fn after(&self, request: &RequestView<'_>, reply: &mut Reply) {
        if request.path.ends_with(BOARD) {
            reply.edit_json(|system| {
                if let Some(fields) = system.as_object_mut() {
                    fields.remove("Actions");
                }
            });
        }
    }
}

/// Configures servers, each with its endpoint and more arguments.
fn configure(fleet: &Fleet, workspace: &Workspace, servers: &[(&str, &str, &str)], body: &str) {
    let account = fleet.simulator.credentials();
    let servers: String = servers
        .iter()
        .map(|(name, system, more)| {
            let endpoint = fleet.simulator.url(system).unwrap();
            format!("      {name} = {{\n        endpoint = \"{endpoint}\"\n        {more}\n      }}\n")
        })
        .collect();
    workspace.configure(&format!(
        r#"
provider "metal" {{
  owner                     = "ops"
  graceful_shutdown_timeout = "4s"
  power_timeout             = "4s"
  redfish = {{
    username        = "{}"
    password        = "{}"
    request_timeout = "3s"
    servers = {{
{servers}    }}
  }}
}}
{body}
"#,
        account.username,
        account.password.expose_secret()
    ));
}

/// One maintenance for each server, with more arguments.
fn maintenances(servers: &[&str], more: &str) -> String {
    let of = |server: &&str| {
        let resource = maintenance(server, server, more);
        resource.replace("\"held\"", &format!("\"{server}\""))
    };
    servers.iter().map(of).collect()
}

/// Checks all servers of the fleet.
async fn check(fleet: &Fleet, workspace: &mut Workspace) -> Run {
    let account = fleet.simulator.credentials();
    workspace.write("servers.yaml", &fleet.simulator.inventory());
    workspace.set("METAL_REDFISH_USERNAME", account.username.clone());
    workspace.set("METAL_REDFISH_PASSWORD", account.password.expose_secret());
    workspace.metal(&["check", "--inventory", "servers.yaml"]).await
}

fn config(systems: &[&str]) -> SimulatorConfig {
    let mut config = SimulatorConfig::with_systems(systems.len()).without_tls();
    for (system, name) in config.systems.iter_mut().zip(systems) {
        (*name).clone_into(&mut system.name);
    }
    config
}

for_each_host! {
    async fn a_board_that_fails_blocks_neither_plan_nor_apply_nor_release(host) {
        let personality = Personality { quirks: Some(Arc::new(Board)), ..Personality::generic() };
        let config = config(&["DGX", BOARD]).behind_one_bmc().with_personality(personality);
        let (fleet, workspace) = (Fleet::with(config).await, Workspace::new(host));
        let busy = FaultAction::Busy { retry_after_seconds: 120 };
        let _ = fleet.simulator.inject(Fault::new(busy).on_request("GET", &format!("*/{BOARD}*")));
        configure(&fleet, &workspace, &[("node1", "DGX", "")], &maintenance("node1", "m", "server_power = \"Off\""));
        workspace.plan().await.run.succeeded();
        workspace.apply().await.succeeded();
        fleet.until("DGX", PowerState::Off).await;
        workspace.metal(&["show", "tests/m"]).await.succeeded().says("system /redfish/v1/Systems/DGX");
        workspace.plan().await.is_empty();
        // The host hides its reset action while it is off. The record has its path.
        let hides = Fault::show("/Actions", serde_json::Value::Null).on_request("GET", "/redfish/v1/Systems/DGX").times(2);
        let _ = fleet.simulator.inject(hides);
        workspace.destroy().await.succeeded();
        fleet.until("DGX", PowerState::On).await;
        assert_eq!(fleet.changes(BOARD), Vec::<String>::new());
    }
}

for_one_host! {
    async fn several_servers_behind_one_bmc_need_system_id(host) {
        let (fleet, workspace) = (Fleet::with(config(&["n1", "n2"]).behind_one_bmc()).await, Workspace::new(host));
        configure(&fleet, &workspace, &[("node1", "n1", "")], &maintenance("node1", "m", ""));
        workspace.apply().await.failed().says("set system_id to one of: n1, n2");
        let fault = Fault::error(500, "The controller does not answer").on_request("GET", "/redfish/v1/Systems/n*");
        let _ = fleet.simulator.inject(fault);
        workspace.try_plan().await.says("The controller does not answer").says("set system_id to one of: n1, n2");
    }
}

for_one_host! {
    async fn an_invalid_byte_in_an_unused_field_disables_no_server(host) {
        for (place, bytes) in [
            (Place::Inside("Model".to_owned()), &b"\xff\xff"[..]),
            (Place::Inside("SerialNumber".to_owned()), b"\r"),
            (Place::Front, b"\xef\xbb\xbf"),
            (Place::Back, b"\0"),
        ] {
            let (fleet, workspace) = (Fleet::with(config(&["node1"])).await, Workspace::new(host));
            let before = fleet.system("node1");
            let more = "server_power = \"Off\"";
            configure(&fleet, &workspace, &[("node1", "node1", "")], &maintenance("node1", "m", more));
            let add = FaultAction::Add { place, bytes: bytes.to_vec() };
            let _ = fleet.simulator.inject(Fault::new(add).on_request("GET", "/redfish/v1/Systems/1"));
            workspace.apply().await.succeeded().says("A BMC sends invalid JSON").says("GET /redfish/v1/Systems/1");
            fleet.until("node1", PowerState::Off).await;
            workspace.destroy().await.succeeded();
            fleet.until("node1", PowerState::On).await;
            assert_eq!(fleet.system("node1").boot, before.boot);
        }
    }
}

for_one_host! {
    async fn an_error_in_front_of_a_resource_is_quoted(host) {
        let (fleet, workspace) = (Fleet::with(config(&["node1"])).await, Workspace::new(host));
        let body = maintenance("node1", "m", "server_power = \"Off\"");
        configure(&fleet, &workspace, &[("node1", "node1", "")], &body);
        let error = br#"{"error":{"code":"Base.1.0.InternalError","message":"There is no licence for this"}}"#;
        let add = || {
            let add = FaultAction::Add { place: Place::Front, bytes: error.to_vec() };
            Fault::new(add).on_request("GET", "/redfish/v1/Systems/1")
        };
        let id = fleet.simulator.inject(add());
        let failed = workspace.apply().await.failed();
        failed.says("There is no licence for this").is_silent_about("endpoint");
        assert_eq!(fleet.changes("node1"), Vec::<String>::new());
        fleet.simulator.remove_fault(id).unwrap();
        workspace.apply().await.succeeded();
        let id = fleet.simulator.inject(add());
        workspace.destroy().await.failed().says("There is no licence for this");
        fleet.simulator.remove_fault(id).unwrap();
        workspace.destroy().await.succeeded();
        fleet.until("node1", PowerState::On).await;
    }
}

for_one_host! {
    async fn a_drive_of_a_shared_manager_is_refused_with_a_remedy(host) {
        let mut personality = Personality::generic();
        personality.media.offered_under = vec![MediaPath::Manager];
        personality.media.shared = true;
        let config = config(&["n1", "n2"]).behind_one_bmc().with_personality(personality);
        let (fleet, mut workspace) = (Fleet::with(config).await, Workspace::new(host));
        let servers = [("n1", "n1", "system_id = \"n1\""), ("n2", "n2", "system_id = \"n2\"")];
        let boot = "server_power = \"On\"\n  boot_configuration = {\n    method = \"virtual_media\"\n    image = \
                    \"http://127.0.0.1:9/a.iso\"\n  }";
        configure(&fleet, &workspace, &servers, &maintenances(&["n1", "n2"], boot));
        let refused = workspace.try_plan().await.failed();
        refused.says("n1 does not support this request").says("are shared with the system n2");
        refused.says("are shared with the system n1").says("Use method = \"http\" or \"pxe\"");
        for name in ["n1", "n2"] {
            assert_eq!(fleet.changes(name), Vec::<String>::new());
        }
        // Everything else works.
        configure(&fleet, &workspace, &servers, &maintenances(&["n1", "n2"], "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        check(&fleet, &mut workspace).await.says("virtual_media: NO.").says("are shared with the system n2");
        workspace.destroy().await.succeeded();
        fleet.until("n1", PowerState::On).await;
        fleet.until("n2", PowerState::On).await;
    }
}

for_one_host! {
    async fn two_machines_with_one_uuid_are_explained_and_told_apart_by_lock_key(host) {
        let uuid = "5a0b6a1e-0d5e-4c1b-9a55-7d0c0a5d1e77";
        for serial in [None, Some("To be filled by O.E.M.".to_owned())] {
            let mut config = config(&["n1", "n2"]);
            for system in &mut config.systems {
                system.uuid = Some(SystemUuid::Real(uuid.parse().unwrap()));
                system.serial_number.clone_from(&serial);
            }
            let (fleet, mut workspace) = (Fleet::with(config).await, Workspace::new(host));
            let servers = |more| [("n1", "n1", ""), ("n2", "n2", more)];
            let limited = "server_power = \"Off\"\n  timeouts = { create = \"8s\" }";
            configure(&fleet, &workspace, &servers(""), &maintenances(&["n1", "n2"], limited));
            let explained = |text: &Run| {
                text.says(&format!("n1 and n2 report the same system UUID {uuid}")).says("set lock_key for one of them");
            };
            // One configuration with both can never apply. Two configurations wait for each other.
            let plan = workspace.try_plan().await.failed();
            plan.says("Servers share one lock").says("is needed twice in this configuration");
            explained(&plan);
            let second = workspace.beside();
            configure(&fleet, &workspace, &servers(""), &maintenances(&["n1"], limited));
            configure(&fleet, &second, &servers(""), &maintenances(&["n2"], limited));
            workspace.apply().await.succeeded();
            let failed = second.apply().await.failed();
            failed.says("was not available in time");
            explained(&failed);
            assert_eq!(fleet.resets("n1").len() + fleet.resets("n2").len(), 1, "both were switched off");
            // The waiter keeps its position in the queue.
            explained(&workspace.metal(&["queue"]).await.succeeded());
            explained(&check(&fleet, &mut workspace).await.failed());

            // The remedy: a lock key for the server that waits.
            configure(&fleet, &second, &servers("lock_key = \"rack1-second\""), &maintenances(&["n2"], limited));
            second.apply().await.succeeded().is_silent_about("Servers share one lock");
            for name in ["n1", "n2"] {
                fleet.until(name, PowerState::Off).await;
            }
            workspace.metal(&["queue"]).await.succeeded().says("tests/n1").says("tests/n2").is_silent_about("report the same");
            workspace.metal(&["show", "tests/n2", "--json"]).await.succeeded().says("rack1-second");
            workspace.metal(&["store", "check"]).await.succeeded();
            second.destroy().await.succeeded();
            workspace.destroy().await.succeeded();
            for name in ["n1", "n2"] {
                fleet.until(name, PowerState::On).await;
            }
        }
    }
}

for_one_host! {
    async fn systems_without_uuid_behind_one_bmc_are_told_apart_by_lock_key(host) {
        let mut config = config(&["n1", "n2"]).behind_one_bmc();
        for system in &mut config.systems {
            system.uuid = Some(SystemUuid::Missing);
            system.serial_number = Some("To be filled by O.E.M.".to_owned());
        }
        let (fleet, workspace) = (Fleet::with(config).await, Workspace::new(host));
        let off = "server_power = \"Off\"";
        let servers = [("n1", "n1", "system_id = \"n1\""), ("n2", "n2", "system_id = \"n2\"")];
        configure(&fleet, &workspace, &servers, &maintenances(&["n1", "n2"], off));
        workspace.apply().await.failed().says("reports no system UUID").says("set lock_key");
        let servers = [
            ("n1", "n1", "system_id = \"n1\"\n        lock_key = \"chassis1-n1\""),
            ("n2", "n2", "system_id = \"n2\"\n        lock_key = \"chassis1-n2\""),
        ];
        configure(&fleet, &workspace, &servers, &maintenances(&["n1", "n2"], off));
        workspace.apply().await.succeeded();
        for name in ["n1", "n2"] {
            fleet.until(name, PowerState::Off).await;
        }
        workspace.destroy().await.succeeded();
        for name in ["n1", "n2"] {
            fleet.until(name, PowerState::On).await;
        }
    }
}
