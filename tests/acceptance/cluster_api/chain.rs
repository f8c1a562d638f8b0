//! Servers managed by Cluster API through Metal3 and Redfish.

use std::path::Path;

use serde_json::{Value, json};

use super::{
    HELD,
    ready::{beat, set_ready},
    traces,
};
use crate::{
    servers::{
        cluster_api::{
            CLUSTER_NAMESPACE, ENABLED, MACHINE, MAINTENANCE, PRE_DRAIN, REBOOT, WORLD as NODE_WORLD, extension,
            world::{Options, World, workload_cluster},
        },
        metal3::{self, world::DETACHED},
    },
    support::{
        images::Images,
        simulator::{Fleet, SOON, maintenance},
        wait::eventually,
        workspace::Workspace,
    },
};

/// Starts with a Metal3 host `node1` used by the Machine `m1`. `metal3`: the extension keeps
/// approved hosts powered off.
pub async fn place(metal3: bool) -> (metal3::world::World, World) {
    place_many(1, metal3).await
}

/// Same as `place` with several hosts: `node2` with `m2` and so on.
pub async fn place_many(number: usize, metal3: bool) -> (metal3::world::World, World) {
    let (hosts, machines) = apart(number, metal3).await;
    for number in 1..=number {
        takes_host(&machines, number).await;
    }
    (hosts, machines)
}

/// Binds a Machine to its host and waits until the extension manages it.
async fn takes_host(machines: &World, number: usize) {
    let (machine, host) = (format!("m{number}"), format!("node{number}"));
    machines.on_host(&machine, &host).await;
    machines.name_node(&machine).await;
    let acts = |machine: &Value| machine["metadata"]["annotations"][PRE_DRAIN].is_string();
    machines.until_machine(&machine, "the extension acts on it", acts).await;
}

/// Returns hosts and Machines before they are bound.
async fn apart(number: usize, metal3: bool) -> (metal3::world::World, World) {
    // With many hosts, the stand-in polls each less often to keep up.
    let mut of_hosts = metal3::operator::Options::default();
    if number > 1 {
        of_hosts.steady = std::time::Duration::from_secs(5);
    }
    let hosts = metal3::world::World::start(number, of_hosts).await;
    let options =
        Options { extension: extension::Options { metal3, ..extension::Options::default() }, ..Options::default() };
    let machines = World::within(&hosts.namespace, options).await;
    for number in 1..=number {
        let (machine, host) = (format!("m{number}"), format!("node{number}"));
        let node = json!({
            "metadata": {
                "labels": { NODE_WORLD: machines.namespace },
                "annotations": { MACHINE: machine, CLUSTER_NAMESPACE: machines.namespace },
            },
            "spec": { "providerID": format!("metal3://{}/{host}/{machine}", machines.namespace) },
        });
        machines.create("Node", &machines.node_name(&machine), node).await;
        machines.add_machine(&machine, json!({ ENABLED: "true" })).await;
    }
    (hosts, machines)
}

/// Configures a host through the Machine that uses it.
pub fn configure(hosts: &metal3::world::World, workspace: &Workspace, body: &str) {
    configure_as(&hosts.kubernetes.user("ci", &["system:masters"]), hosts, workspace, body);
}

/// Same as `configure`, with a kubeconfig.
pub fn configure_as(kubeconfig: &Path, hosts: &metal3::world::World, workspace: &Workspace, body: &str) {
    configure_apart(kubeconfig, kubeconfig, hosts, workspace, body);
}

/// Same as `configure`, with separate kubeconfigs for Machines and hosts.
fn configure_apart(
    machines: &Path,
    kubeconfig: &Path,
    hosts: &metal3::world::World,
    workspace: &Workspace,
    body: &str,
) {
    let (machines, kubeconfig) = (machines.display(), kubeconfig.display());
    workspace.configure(&format!(
        r#"
provider "metal" {{
  graceful_shutdown_timeout = "4s"
  power_timeout             = "4s"
  cluster_api = {{ kubeconfig = "{machines}" }}
  metal3 = {{
    kubeconfig = "{kubeconfig}"
    namespace  = "{}"
  }}
}}
{body}
"#,
        hosts.namespace
    ));
}

fn is_detached(annotations: &std::collections::BTreeMap<String, String>) -> bool {
    annotations.contains_key(DETACHED)
}

for_one_host! {
    async fn a_host_is_detached_under_an_approval_and_managed_again_before_that_ends(host) {
        let ((hosts, machines), images) = (place(false).await, Images::start().await);
        let (workspace, fleet) = (Workspace::new(host), Fleet { simulator: hosts.simulator.clone() });
        let boot = format!(
            "server_power = \"On\"\n  boot_configuration = {{ method = \"virtual_media\", image = \"{}\" }}",
            images.url("rescue.iso")
        );
        configure(&hosts, &workspace, &maintenance("node1", "bios", &boot));
        workspace.try_plan().await.succeeded().says("Cluster API: Machine").says("Hold: the host is detached");
        workspace.apply().await.succeeded();
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        assert_eq!(machines.maintenance("m1").await.as_deref(), Some("approved"));
        assert!(fleet.runs("node1").contains("rescue.iso"), "{}", fleet.runs("node1"));
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        assert_eq!(traces(&machines, "m1").await, Vec::<String>::new());
        assert_eq!(hosts.traces("node1").await, Vec::<String>::new());
        assert!(fleet.runs("node1").contains("Disk"), "{}", fleet.runs("node1"));
        machines
            .always("a detached host is approved, and its Node cordoned", |moment| {
                let detached = moment
                    .iter()
                    .any(|((kind, _), marks)| *kind == "BareMetalHost" && is_detached(&marks.annotations));
                let machine = moment.get(&("Machine", "m1".to_owned()));
                let cordoned = moment.iter().any(|((kind, _), marks)| *kind == "Node" && marks.cordoned);
                !detached || (cordoned && machine.and_then(|it| it.label(MAINTENANCE)) == Some("approved"))
            })
            .await;
    }
}

for_one_host! {
    async fn a_host_that_the_extension_keeps_off_is_taken_all_the_same(host) {
        let (hosts, machines) = place(true).await;
        let (workspace, fleet) = (Workspace::new(host), Fleet { simulator: hosts.simulator.clone() });
        beat(&machines).await;
        set_ready(&machines, true).await;
        configure(&hosts, &workspace, &maintenance("node1", "bios", "server_power = \"On\""));
        workspace.apply().await.succeeded();
        // The host powers on after the extension removes its annotation, which follows our label's
        // removal.
        set_ready(&machines, false).await;
        let held = workspace.resource(HELD).await.unwrap();
        // The host owner's setting, not the state caused by the extension.
        assert_eq!(held["previous_power_state"], "On", "{held}");
        let key = |host: &Value| host["metadata"]["annotations"][REBOOT].is_string();
        assert!(key(&hosts.host("node1").await), "the extension must remove it");
        workspace.destroy().await.succeeded();
        assert_eq!(traces(&machines, "m1").await, Vec::<String>::new());
        assert_eq!(hosts.traces("node1").await, Vec::<String>::new());
        let back = hosts.until("node1", "on", |host| !key(host) && host["status"]["poweredOn"] == true).await;
        assert_eq!(back["status"]["operationalStatus"], "OK", "{back}");
        fleet.until("node1", bmc_simulator::PowerState::On).await;
    }
}

for_one_host! {
    async fn a_host_whose_machine_cannot_be_found_is_not_taken_undrained(host) {
        let (hosts, machines) = place(false).await;
        let fleet = Fleet { simulator: hosts.simulator.clone() };
        let refuses = async |workspace: &Workspace| {
            let why = "and its Node would not be drained";
            workspace.try_plan().await.says(why).says("cluster_api.context");
            workspace.apply().await.failed().says(why).says("cluster_api.context");
            assert_eq!(fleet.resets("node1"), Vec::<String>::new());
            assert_eq!(hosts.traces("node1").await, Vec::<String>::new());
            assert!(machines.maintenance("m1").await.is_none());
            workspace.metal(&["queue"]).await.succeeded().says("No server is held");
        };
        // Another reachable cluster's context, without Machines.
        let (workspace, off) = (Workspace::new(host), maintenance("node1", "bios", "server_power = \"Off\""));
        let elsewhere = workload_cluster().await.kubeconfig_of("admin");
        configure_apart(&elsewhere, &hosts.kubernetes.user("ci", &["system:masters"]), &hosts, &workspace, &off);
        refuses(&workspace).await;

        // The consumer does not exist.
        configure(&hosts, &workspace, &off);
        let consumer = hosts.host("node1").await["spec"]["consumerRef"].clone();
        hosts.merge("BareMetalHost", "node1", json!({"spec": {"consumerRef": {"name": "gone"}}})).await;
        refuses(&workspace).await;
        hosts.merge("BareMetalHost", "node1", json!({"spec": {"consumerRef": consumer}})).await;
        workspace.apply().await.succeeded();
        assert_eq!(machines.maintenance("m1").await.as_deref(), Some("approved"));
        workspace.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn a_machine_that_takes_the_host_during_the_wait_is_asked_before_it_is_touched(host) {
        let (hosts, machines) = apart(1, false).await;
        hosts.annotate("node1", json!({ DETACHED: "by the night shift" })).await;
        let (workspace, fleet) = (Workspace::new(host), Fleet { simulator: hosts.simulator.clone() });
        configure(&hosts, &workspace, &maintenance("node1", "bios", "server_power = \"Off\""));
        let apply = workspace.start_apply();
        eventually("the apply waits for the other author", SOON, async || {
            let queue = workspace.metal(&["queue"]).await.succeeded();
            queue.words().contains("another author detached").then_some(())
        })
        .await;
        takes_host(&machines, 1).await;
        hosts.annotate("node1", json!({ DETACHED: null })).await;
        let refused = apply.wait(SOON * 2).await.failed();
        let machine = format!("Machine {}/m1", machines.namespace);
        refused.says("Cluster API").says(&machine).says("did not receive a request").says("Apply again");
        assert_eq!(fleet.resets("node1"), Vec::<String>::new());
        assert_eq!(hosts.traces("node1").await, Vec::<String>::new());
        assert!(machines.maintenance("m1").await.is_none());
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
        workspace.apply().await.succeeded();
        assert_eq!(machines.maintenance("m1").await.as_deref(), Some("approved"));
        workspace.destroy().await.succeeded();
        assert_eq!(traces(&machines, "m1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn a_machine_that_takes_the_host_after_the_lock_is_asked_before_it_is_touched(host) {
        let ((hosts, machines), images) = (apart(1, false).await, Images::start().await);
        let (workspace, fleet) = (Workspace::new(host), Fleet { simulator: hosts.simulator.clone() });
        let boot = format!(
            "server_power = \"On\"\n  boot_configuration = {{ method = \"virtual_media\", image = \"{}\" }}",
            images.url("rescue.iso")
        );
        configure(&hosts, &workspace, &maintenance("node1", "bios", &boot));
        // The maintenance has the lock, but the host is not detached yet.
        images.answers(false);
        let apply = workspace.start_apply();
        eventually("the image is requested", SOON * 2, async || (images.asked() > 0).then_some(())).await;
        takes_host(&machines, 1).await;
        images.answers(true);
        apply.wait(SOON * 2).await.failed().says("Cluster API").says("did not receive a request").says("Apply again");
        assert_eq!(fleet.resets("node1"), Vec::<String>::new());
        assert_eq!(hosts.traces("node1").await, Vec::<String>::new());
        assert!(machines.maintenance("m1").await.is_none());
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
        workspace.apply().await.succeeded();
        assert_eq!(machines.maintenance("m1").await.as_deref(), Some("approved"));
        workspace.destroy().await.succeeded();
        assert_eq!(traces(&machines, "m1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn a_list_of_servers_shows_the_use_of_each_host_and_the_phase_of_its_machine(host) {
        let (hosts, machines) = place(false).await;
        let workspace = Workspace::new(host);
        let body = "data \"metal_servers\" \"all\" {}\noutput \"all\" {\n  value = data.metal_servers.all.servers\n}\n";
        configure(&hosts, &workspace, body);
        workspace.apply().await.succeeded();
        let all = workspace.json(&["output", "-json", "all"]).await;
        let (server, namespace) = (&all["node1"], &machines.namespace);
        assert_eq!(server["state"], "provisioned", "{all}");
        assert_eq!(server["claim"], format!("Metal3Machine {namespace}/m1"), "{all}");
        let gate = server["gates"]["cluster_api"].as_str().unwrap_or_default();
        assert!(gate.starts_with(&format!("Machine {namespace}/m1: Running; ")), "{all}");
    }
}

for_one_host! {
    async fn a_machine_is_freed_although_its_host_is_deleted(host) {
        let (hosts, machines) = place(false).await;
        let workspace = Workspace::new(host);
        beat(&machines).await;
        set_ready(&machines, true).await;
        configure(&hosts, &workspace, &maintenance("node1", "bios", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        set_ready(&machines, false).await;
        hosts.delete("node1").await;
        // The operator waits for the release. The deprovisioned server no longer runs its Node.
        workspace.destroy().await.succeeded();
        assert_eq!(traces(&machines, "m1").await, Vec::<String>::new());
        eventually("the host is deleted", SOON, async || hosts.find("node1").await.is_none().then_some(())).await;
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

for_one_host! {
    async fn a_machine_of_another_host_is_refused(host) {
        let (hosts, machines) = place_many(2, false).await;
        let workspace = Workspace::new(host);
        // The host lacks a consumer, and the configuration names another host's Machine.
        hosts.merge("BareMetalHost", "node1", json!({ "spec": { "consumerRef": null } })).await;
        let id = format!("metal3://{}/node2/m2", machines.namespace);
        machines.merge("Machine", "m2", json!({ "spec": { "providerID": id } })).await;
        let names = format!("cluster_api = {{ machines = {{ node1 = \"{}/m2\" }},", machines.namespace);
        configure(&hosts, &workspace, &maintenance("node1", "bios", "server_power = \"Off\""));
        let file = workspace.folder().join("main.tf");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace("cluster_api = {", &names)).unwrap();
        workspace.try_plan().await.succeeded().says("of another server: name this server's Machine");
        workspace.apply().await.failed().says("of another server: name this server's Machine").says("cluster_api.machines");
        assert_eq!(machines.maintenance("m2").await, None);
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}
