//! BMCs that accept a boot override and do something else: no apply succeeds that boots production,
//! and no release succeeds that leaves a difference.

use bmc_simulator::{
    BootMode, BootOverride, BootResource, BootSource, BootTarget, Fault, OverrideEnabled, Personality, PowerState,
    SimulatorConfig, SystemChange,
};

use crate::{
    golden::diagnostics,
    support::{
        images::Images,
        simulator::{Fleet, maintenance},
        workspace::Workspace,
    },
};

const ENABLED: &str = "/Boot/BootSourceOverrideEnabled";
const TARGET: &str = "/Boot/BootSourceOverrideTarget";
const MODE: &str = "/Boot/BootSourceOverrideMode";

/// One maintenance for each of these boot configurations, on `node1` and onwards.
fn booted(configurations: &[String]) -> String {
    let each = configurations.iter().enumerate().map(|(n, boot)| {
        let n = n + 1;
        format!(
            r#"
resource "metal_server_maintenance" "node{n}" {{
  server             = "node{n}"
  namespace          = "tests"
  name               = "m{n}"
  policy             = "Enforced"
  server_power       = "On"
  boot_configuration = {{ {boot} }}
}}
"#
        )
    });
    each.collect()
}

fn arm(fleet: &Fleet, server: &str, enabled: OverrideEnabled, target: BootTarget, mode: BootMode) {
    let boot = BootOverride { enabled, target, mode, ..BootOverride::default() };
    let change = SystemChange { boot: Some(boot), ..SystemChange::default() };
    fleet.simulator.change_system(server, change).unwrap();
}

fn inject(fleet: &Fleet, server: &str, fault: Fault) {
    let mut fault = fault.on_system(server);
    fault.method = Some("PATCH".into());
    fault.path = Some("*/Systems/*".into());
    let _ = fleet.simulator.inject(fault);
}

fn last_boot(fleet: &Fleet, server: &str) -> Option<BootSource> {
    fleet.simulator.boots(server).unwrap().pop().map(|boot| boot.booted_from)
}

for_one_host! {
    async fn an_override_that_the_bmc_does_not_show_fails_apply_before_the_server_starts(host) {
        let (images, workspace) = (Images::start().await, Workspace::new(host));
        let mut config = SimulatorConfig::with_systems(7);
        let mut settings = Personality::generic();
        settings.boot.writable_on = BootResource::Settings;
        config.systems[5].personality = Some(settings);
        let fleet = Fleet::with(config).await;
        let cases = [
            ("method = \"pxe\"".to_owned(), Fault::ignore(), "Enabled Disabled"),
            ("method = \"pxe\"".to_owned(), Fault::alter(TARGET, "Hdd").with_body("Pxe"), "Target Hdd"),
            ("method = \"pxe\", boot_mode = \"UEFI\"".to_owned(), Fault::alter(MODE, "Legacy"), "Mode Legacy"),
            ("method = \"pxe\", once = false".to_owned(), Fault::alter(ENABLED, "Once").with_body("Continuous"), "Enabled Once"),
            (format!("method = \"http\", image = \"{}\"", images.url("rescue.efi")), Fault::omit("/Boot/HttpBootUri"), "Target UefiHttp"),
            ("method = \"pxe\"".to_owned(), Fault::ignore(), "Enabled Disabled"),
            ("method = \"disk\"".to_owned(), Fault::alter(ENABLED, "Disabled").with_body("Once"), "Enabled Disabled"),
        ];
        let before = (1..=cases.len()).map(|n| fleet.system(&format!("node{n}"))).collect::<Vec<_>>();
        for (n, (_, fault, _)) in cases.iter().enumerate() {
            inject(&fleet, &format!("node{}", n + 1), fault.clone());
        }
        fleet.configure(&workspace, &booted(&cases.clone().map(|(boot, ..)| boot)));
        let applied = workspace.apply().await.failed();
        applied.says("the BMC shows BootSourceOverrideEnabled");
        applied.says("BootSourceOverrideMode is Legacy, was UEFI. No override is active");
        for (n, (_, _, shown)) in cases.iter().enumerate() {
            let (server, before) = (format!("node{}", n + 1), &before[n]);
            applied.says(&format!("{server} could not be prepared"));
            assert!(applied.words().contains(shown), "{server}: {shown}\n{}", applied.output);
            // Only the restore started the server.
            assert_eq!(fleet.resets(&server), ["GracefulShutdown", "On"], "{server}");
            assert_eq!(last_boot(&fleet, &server), Some(BootSource::Disk), "{server}");
            let now = fleet.system(&server);
            assert_eq!((now.power, now.boot.enabled, now.boot.target), (before.power, before.boot.enabled, before.boot.target), "{server}");
        }
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
        workspace.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn an_override_that_works_the_second_time_or_is_listed_as_continuous_is_applied(host) {
        let (fleet, workspace) = (Fleet::new(2).await, Workspace::new(host));
        let before = ["node1", "node2"].map(|server| fleet.system(server).boot);
        inject(&fleet, "node1", Fault::ignore_first().with_body("Once"));
        inject(&fleet, "node2", Fault::alter(ENABLED, "Continuous").with_body("Once"));
        fleet.configure(&workspace, &booted(&["node1", "node2"].map(|_| "method = \"pxe\"".to_owned())));
        workspace
            .apply()
            .await
            .succeeded()
            .says("A BMC shows another value than requested")
            .says("node2: BootSourceOverrideEnabled is Continuous, not Once.")
            .is_silent_about("node1: Boot");
        for server in ["node1", "node2"] {
            assert_eq!(last_boot(&fleet, server), Some(BootSource::Pxe), "{server}");
        }
        fleet.simulator.clear_faults();
        workspace.destroy().await.succeeded();
        for (server, before) in ["node1", "node2"].into_iter().zip(before) {
            assert_eq!(fleet.system(server).boot, before, "{server}");
        }
    }
}

for_one_host! {
    async fn a_release_that_leaves_a_difference_fails_and_keeps_the_lock(host) {
        let (images, fleet, workspace) = (Images::start().await, Fleet::new(5).await, Workspace::new(host));
        arm(&fleet, "node3", OverrideEnabled::Disabled, BootTarget::None, BootMode::Legacy);
        arm(&fleet, "node4", OverrideEnabled::Continuous, BootTarget::Hdd, BootMode::UEFI);
        arm(&fleet, "node5", OverrideEnabled::Once, BootTarget::Cd, BootMode::UEFI);
        let servers = ["node1", "node2", "node3", "node4", "node5"];
        let before = servers.map(|server| fleet.system(server));
        fleet.configure(&workspace, &booted(&[
            "method = \"pxe\", once = false".to_owned(),
            format!("method = \"http\", image = \"{}\"", images.url("rescue.efi")),
            "method = \"pxe\", boot_mode = \"UEFI\"".to_owned(),
            "method = \"pxe\"".to_owned(),
            "method = \"pxe\"".to_owned(),
        ]));
        workspace.apply().await.succeeded();
        inject(&fleet, "node1", Fault::alter(ENABLED, "Continuous"));
        inject(&fleet, "node1", Fault::alter(TARGET, "Pxe"));
        inject(&fleet, "node2", Fault::omit("/Boot/HttpBootUri"));
        inject(&fleet, "node3", Fault::omit(MODE));
        inject(&fleet, "node4", Fault::alter(ENABLED, "Once").with_body("Continuous"));
        inject(&fleet, "node5", Fault::ignore().with_body("Once"));
        let boots = fleet.simulator.boots("node1").unwrap().len();
        let released = workspace.destroy().await.failed();
        for (server, shown) in servers.into_iter().zip([
            "the BMC shows BootSourceOverrideEnabled Continuous, BootSourceOverrideTarget Pxe",
            "HttpBootUri http://",
            "BootSourceOverrideMode UEFI",
            "the BMC shows BootSourceOverrideEnabled Once, BootSourceOverrideTarget Hdd",
            "set boot override Cd Once was accepted",
        ]) {
            released.says(&format!("Releasing {server} failed")).says(shown);
        }
        assert_eq!(fleet.simulator.boots("node1").unwrap().len(), boots, "it would boot the network");
        fleet.simulator.clear_faults();
        workspace.destroy().await.succeeded();
        for (server, before) in servers.into_iter().zip(before) {
            let now = fleet.system(server);
            assert_eq!((now.power, now.boot), (before.power, before.boot), "{server}");
            assert_ne!(last_boot(&fleet, server), Some(BootSource::Pxe), "{server}");
        }
    }
}

for_one_host! {
    async fn a_maintenance_that_only_locks_does_not_arm_a_used_override_again(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        arm(&fleet, "node1", OverrideEnabled::Once, BootTarget::Pxe, BootMode::UEFI);
        fleet.configure(&workspace, &maintenance("node1", "m", ""));
        workspace.apply().await.succeeded();
        // A person restarts the server, which uses the override, and switches it off.
        for power in [PowerState::Off, PowerState::On, PowerState::Off] {
            fleet.simulator.set_power("node1", power).unwrap();
        }
        assert_eq!(last_boot(&fleet, "node1"), Some(BootSource::Pxe));
        let planned = workspace.run(&["plan", "-input=false", "-destroy", "-json"]).await.succeeded();
        let planned = diagnostics(&planned.stdout);
        for sentence in [
            "node1 is switched on. It is off now and was on before the maintenance.",
            "Its one-time boot override (Pxe Once) has been used since and is not armed again.",
        ] {
            assert!(planned.contains(sentence), "{sentence}\n{planned}");
        }
        workspace.destroy().await.succeeded().says("The one-time boot override (Pxe Once) was used during the maintenance");
        assert_eq!(fleet.resets("node1"), ["On"]);
        assert_eq!(last_boot(&fleet, "node1"), Some(BootSource::Disk));
        assert_eq!(fleet.system("node1").boot.enabled, OverrideEnabled::Disabled);
    }
}

for_one_host! {
    async fn a_plan_names_the_override_that_a_start_boots_and_the_one_that_is_used_up(host) {
        let mut config = SimulatorConfig::with_systems(2);
        config.systems[0].power = PowerState::Off;
        let (fleet, workspace) = (Fleet::with(config).await, Workspace::new(host));
        arm(&fleet, "node1", OverrideEnabled::Continuous, BootTarget::Pxe, BootMode::UEFI);
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"On\""));
        workspace.plan().await.run.says("node1: the boot override Pxe Continuous is armed, and this start boots it.");
        let hold = |once: &str| {
            let boot = format!("server_power = \"On\"\n  boot_configuration = {{ method = \"pxe\"{once} }}");
            maintenance("node2", "m", &boot)
        };
        let restart = r#"
resource "metal_server_operation" "restart" {
  server         = "node2"
  namespace      = "tests"
  name           = "restart"
  operation      = "ForceRestart"
  maintenance_id = metal_server_maintenance.held.id
}
"#;
        fleet.configure(&workspace, &(hold("") + restart));
        workspace.plan().await.run.says("this start boots the server's own disk. Set once = false");
        fleet.configure(&workspace, &hold(""));
        workspace.apply().await.succeeded();
        fleet.configure(&workspace, &(hold("") + restart));
        workspace.plan().await.run.says("The one-time boot override of tests/m is used up");
        workspace.destroy().await.succeeded();
        fleet.configure(&workspace, &hold(", once = false"));
        workspace.apply().await.succeeded();
        fleet.configure(&workspace, &(hold(", once = false") + restart));
        workspace.plan().await.run.says("node2: the boot override Pxe Continuous is armed").is_silent_about("used up");
        workspace.destroy().await.succeeded();
    }
}
