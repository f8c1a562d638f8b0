//! Service steps and runbooks as operations: started once and observed until their end.

use reqwest::Method;
use serde_json::json;

use super::{
    configure, configure_at, maintenance,
    proxy::{Deal, Proxy},
};
use crate::{
    servers::ironic::{Ironic, Options},
    support::{
        simulator::{Fleet, SOON},
        wait::eventually,
        workspace::Workspace,
    },
};

/// Address of [`service`] in a state.
pub const ADDRESS: &str = "metal_server_operation.service";
/// A slow step without ramdisk.
const STEP: &str = "{ interface = \"vendor\", step = \"log_passthrough\" }";
/// A step that waits indefinitely for a callback to Ironic.
const WAITS: &str = "{ interface = \"vendor\", step = \"trigger_servicewait\" }";

/// An operation on `n1`.
pub fn service(service: &str, more: &str) -> String {
    format!(
        r#"
resource "metal_server_operation" "service" {{
  server    = "n1"
  namespace = "ops"
  name      = "firmware"
  policy    = "Enforced"
  service   = {{ {service} }}
  {more}
}}
"#
    )
}

fn steps(steps: &[&str]) -> String {
    format!("steps = [{}]", steps.join(", "))
}

async fn started(ironic: &Ironic) -> usize {
    ironic.history("n1", "servicing_start").await.len()
}

/// Ends a waiting step, as a ramdisk would.
async fn end_wait(ironic: &Ironic) {
    let set = "provision_state = 'active', target_provision_state = NULL, service_step = '{}', driver_internal_info = '{}', \
               provision_updated_at = datetime('now')";
    ironic.sql(&format!("UPDATE nodes SET {set} WHERE name = 'n1' AND provision_state = 'service wait'")).await;
}

for_one_host! {
    async fn a_service_is_carried_out_once_and_told_step_by_step(host) {
        let ironic = Ironic::start(Options { step_delay: 1, ..Options::default() }).await;
        ironic.active_node("n1").await;
        let workspace = Workspace::new(host);
        configure(&ironic, &workspace, &service(&steps(&[STEP, STEP]), ""));
        workspace.try_plan().await.succeeded().says("n1 is serviced by its external system (steps vendor.log_passthrough, vendor.log_passthrough)");
        let run = workspace.apply().await.succeeded();
        assert!(run.log.contains("of 2, vendor.log_passthrough"), "{}", run.log);
        let made = workspace.resource(ADDRESS).await.unwrap();
        assert_eq!((&made["state"], &made["outcome"]), (&"Completed".into(), &"Proven".into()), "{made}");
        assert!(workspace.plan().await.changes().is_empty());
        assert_eq!(started(&ironic).await, 1);
        // A runbook for this node, selected by name.
        let book = json!({ "name": "CUSTOM_FW", "steps": [
            { "interface": "vendor", "step": "log_passthrough", "args": {}, "order": 1 },
        ] });
        ironic.call(Method::POST, "/v1/runbooks", Some(book)).await;
        configure(&ironic, &workspace, &service("runbook = \"CUSTOM_FW\"", ""));
        workspace.try_plan().await.failed().says("The runbook requires the trait CUSTOM_FW");
        ironic.call(Method::PUT, "/v1/nodes/n1/traits/CUSTOM_FW", None).await;
        workspace.apply().await.succeeded();
        assert_eq!(started(&ironic).await, 2);
        workspace.destroy().await.succeeded();
        assert_eq!(started(&ironic).await, 2);
        let node = ironic.node("n1").await;
        assert_eq!((&node["provision_state"], &node["maintenance"]), (&json!("active"), &json!(false)));
    }
}

for_one_host! {
    async fn what_cannot_be_serviced_is_refused_at_plan(host) {
        let ironic = Ironic::start(Options::default()).await;
        ironic.active_node("n1").await;
        let workspace = Workspace::new(host);
        let refused = async |text: &str, why: &str| {
            configure(&ironic, &workspace, text);
            workspace.try_plan().await.failed().says(why);
        };
        refused(&service("runbook = \"CUSTOM_NONE\"", ""), "This account cannot see a runbook with the name \
                                                            \"CUSTOM_NONE\"").await;
        let hold = "{ interface = \"deploy\", step = \"hold\" }";
        refused(&service(&steps(&[STEP, hold]), ""), "a service with a hold step does not end").await;
        let wait = "{ interface = \"deploy\", step = \"wait\", args = jsonencode({ seconds = 1 }) }";
        refused(&service(&steps(&[wait]), ""), "nothing would be done").await;
        refused(&service("", ""), "Exactly one of steps and runbook").await;
        refused(&service(&steps(&[STEP]), "operation = \"On\""), "Exactly one of operation and service").await;
        let args = "{ interface = \"bios\", step = \"apply_configuration\", args = \"settings\" }";
        refused(&service(&steps(&[args]), ""), "Not a JSON object").await;
        ironic.maintenance("n1", Some("disk swap by carol")).await;
        refused(&service(&steps(&[STEP]), ""), "Ironic does not service nodes in maintenance").await;
        ironic.maintenance("n1", None).await;
        ironic.call(Method::POST, "/v1/nodes", Some(json!({ "name": "n2", "driver": "fake-hardware" }))).await;
        ironic.provision("n2", "manage", "manageable").await;
        let inactive = service(&steps(&[STEP]), "").replace("\"n1\"", "\"n2\"");
        refused(&inactive, "its provision state is \"manageable\"").await;
        let under = maintenance("") + &service(&steps(&[STEP]), "maintenance_id = \"ops/bios\"");
        refused(&under, "Remove maintenance_id").await;
        // An Ironic of 2023.
        let proxy = Proxy::to(&ironic.url()).await;
        let mut seen = false;
        proxy.rule(move |request| {
            if request.path == "/v1" && !std::mem::replace(&mut seen, false) {
                return Deal::Answer(200, "X-OpenStack-Ironic-API-Maximum-Version: 1.86\r\n".into(), "{}".into());
            }
            Deal::Pass
        });
        configure_at(&proxy.url(), &workspace, &service(&steps(&[STEP]), ""));
        workspace.try_plan().await.failed().says("service steps require API version 1.87");
        // A backend without a service system.
        let fleet = Fleet::new(1).await;
        fleet.configure(&workspace, &service(&steps(&[STEP]), "").replace("\"n1\"", "\"node1\""));
        workspace.try_plan().await.failed().says("Its backend does not support services");
        assert_eq!(started(&ironic).await, 0);
    }
}

for_one_host! {
    async fn a_failed_service_tells_its_words_and_the_way_out(host) {
        let mut ironic = Ironic::start(Options { step_delay: 2, ..Options::default() }).await;
        ironic.active_node("n1").await;
        let workspace = Workspace::new(host);
        let unknown = "{ interface = \"vendor\", step = \"no_such_step\" }";
        configure(&ironic, &workspace, &service(&steps(&[STEP, unknown]), ""));
        let run = workspace.apply().await.failed();
        run.says("The service of n1 failed").says("no_such_step").says("openstack baremetal node maintenance unset n1");
        assert!(workspace.resource(ADDRESS).await.is_none(), "nothing is in the state");
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
        // The next service starts after the operator has cleared the failure.
        workspace.try_plan().await.failed().says("an earlier service of the node failed");
        ironic.maintenance("n1", None).await;
        ironic.provision("n1", "abort", "active").await;
        // The service fails if its conductor ends.
        configure(&ironic, &workspace, &service(&steps(&[STEP, STEP, STEP]), ""));
        let run = workspace.start_apply();
        run.until_it_logs("step 2 of 3", SOON * 2).await;
        ironic.restart().await;
        let run = run.wait(SOON * 4).await.failed();
        run.says("can't be resumed by conductor").says("openstack baremetal node abort n1");
        run.is_silent_about("maintenance unset");
        ironic.provision("n1", "abort", "active").await;
        configure(&ironic, &workspace, &service(&steps(&[STEP]), ""));
        workspace.apply().await.succeeded();
        assert_eq!(started(&ironic).await, 3);
        // Skipped steps do not count as done.
        let reboot = "{ interface = \"power\", step = \"reboot\" }";
        configure(&ironic, &workspace, &service(&steps(&[STEP, reboot]), ""));
        workspace.apply().await.failed().says("Ironic skipped power.reboot and ran the other steps");
    }
}

for_one_host! {
    async fn a_service_is_begun_once_whatever_ends_the_run(host) {
        let ironic = Ironic::start(Options { step_delay: 1, ..Options::default() }).await;
        ironic.active_node("n1").await;
        let proxy = Proxy::to(&ironic.url()).await;
        let workspace = Workspace::new(host);
        let short = "timeouts = { create = \"25s\", update = \"5m\", delete = \"1s\" }";
        // The reply to the start call is lost.
        proxy.rule(|seen| if seen.is("PUT", "/states/provision") { Deal::LoseReply } else { Deal::Pass });
        configure_at(&proxy.url(), &workspace, &service(&steps(&[WAITS]), short));
        let run = workspace.start_apply();
        run.until_it_logs("service wait", SOON * 2).await;
        // A timeout does not release a server during its service.
        let run = run.wait(SOON * 4).await.failed();
        run.says("The service of n1 did not end in time").says("It is not started a second time");
        assert!(workspace.resource(ADDRESS).await.is_none());
        let queue = workspace.metal(&["queue"]).await.succeeded();
        queue.says("ops/firmware");
        // The run is killed.
        let run = workspace.start_apply();
        run.until_it_logs("service wait", SOON * 2).await;
        run.kill_everything();
        let _ = run.wait(SOON).await;
        // The run is interrupted.
        let run = workspace.start_apply();
        run.until_it_logs("service wait", SOON * 2).await;
        run.interrupt();
        run.wait(SOON).await.says("An operation was interrupted");
        let held = workspace.resource(ADDRESS).await.unwrap();
        assert_eq!(held["state"], "Preparing", "{held}");
        // A destroy also waits for the end.
        workspace.destroy().await.failed().says("The service of n1 has not ended");
        assert!(workspace.resource(ADDRESS).await.is_some());
        // Ironic is unavailable for a while.
        let run = workspace.start_apply();
        run.until_it_logs("service wait", SOON * 2).await;
        proxy.rule(|_| Deal::Answer(503, String::new(), "{}".into()));
        run.until_it_logs("trying again", SOON * 2).await;
        proxy.rule(|_| Deal::Pass);
        end_wait(&ironic).await;
        run.wait(SOON * 4).await.succeeded();
        let made = workspace.resource(ADDRESS).await.unwrap();
        assert_eq!((&made["state"], &made["outcome"]), (&"Completed".into(), &"Accepted".into()), "{made}");
        assert_eq!((started(&ironic).await, proxy.count("PUT", "/states/provision")), (1, 1));
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
        // The only reply is lost, and the service ends before the next read.
        proxy.rule(|seen| if seen.is("PUT", "/states/provision") { Deal::LoseReply } else { Deal::Pass });
        configure_at(&proxy.url(), &workspace, &service(&steps(&[STEP]), ""));
        workspace.apply().await.succeeded();
        assert_eq!(workspace.resource(ADDRESS).await.unwrap()["outcome"], "Proven");
        assert_eq!(started(&ironic).await, 2);
        eventually("the node is active again", SOON, async || {
            (ironic.node("n1").await["provision_state"] == "active").then_some(())
        }).await;
    }
}
